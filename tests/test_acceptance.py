"""What runs elsewhere runs here, with a warning; strict mode refuses what compiler and hardware refuse."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import find
from support import run_tiles, target


def square(n=8, m=None):
    return np.arange(n * (m or n), dtype=np.float32).reshape(n, m or n)


def loaded_by_nl(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.exp(x))
    return out


def too_large_for_sbuf(x):
    tile = nl.ndarray((4, 300_000), nl.uint8)
    nisa.memset(tile, 1)
    out = nl.ndarray((4, 300_000), nl.uint8, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def too_large_for_psum(x):
    tile = nl.ndarray((4, 5_000), nl.float32, buffer=nl.psum)
    nisa.memset(tile, 1.0)
    out = nl.ndarray((4, 5_000), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, nl.copy(tile))
    return out


def trailing_ones(x):
    out = nl.ndarray((x.shape[1], x.shape[0]), x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load_transpose2d(x.reshape((*x.shape, 1))))
    return out


def spare_start(x):
    tile, out = nl.load(x), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    done = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_scalar_cumulative(done, tile, nl.add, nl.add, 0.0)
    nisa.tensor_scalar_cumulative(done, tile, nl.add, nl.add, 0.0, 1.0, nisa.reduce_cmd.reduce)
    nl.store(out, done)
    return out


X = square()
SUMS = np.cumsum(X, axis=1) + X.sum(axis=1, keepdims=True)
FORGIVEN = [
    (loaded_by_nl, square(2), "buffer", np.exp(square(2))),
    (too_large_for_sbuf, X, "capacity", np.ones((4, 300_000))),
    (too_large_for_psum, X, "capacity", np.ones((4, 5_000))),
    (trailing_ones, X, "rank", X.T),
    (spare_start, X, "reduce-cmd", SUMS),
]


@pytest.mark.tiny
@pytest.mark.parametrize("kernel, x, kind, expected", FORGIVEN, ids=[f[0].__name__ for f in FORGIVEN])
def test_what_simulators_forgive_warns_by_default_and_fails_when_strict(
    kernel, x, kind, expected, monkeypatch
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_allclose(nki.jit(kernel)(x), expected, rtol=1e-6)
    assert kind in [getattr(w.category, "kind", None) for w in caught]
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    with pytest.raises(nki.NkiError) as refused:
        nki.jit(kernel)(x)
    assert refused.value.kind == kind


def test_a_tile_that_does_not_fit_is_said_of_each_line_that_makes_one():
    def kernel(x):
        nl.ndarray((4, 300_000), nl.uint8)
        nl.ndarray((4, 300_000), nl.uint8)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nki.jit(kernel)(X)
    assert len([w for w in caught if getattr(w.category, "kind", None) == "capacity"]) == 2


def test_the_row_length_of_a_slice_as_first_step_is_one_partition():
    def body(dst, src):
        part = src[:, 2:6]
        nisa.tensor_copy(dst, part.ap([[4, 8], [1, 4]]))

    (got,) = run_tiles(body, [X], [((8, 4), np.float32)])
    assert (got == X[:, 2:6]).all()


@pytest.mark.parametrize("key", [slice(0, 0), nl.ds(3, 0), slice(5, 2)])
def test_an_empty_slice_may_be_made_and_is_refused_when_used(key):
    def made(dst, src):
        assert src[:, key].shape == (8, 0)
        nisa.tensor_copy(dst, src)

    assert (run_tiles(made, [X], [((8, 8), np.float32)])[0] == X).all()
    with pytest.raises(IndexError, match="data1 is empty") as refused:
        run_tiles(
            lambda dst, src: nisa.tensor_tensor(dst, src[:, key], src, nl.add), [X], [((8, 8), np.float32)]
        )
    assert "leave the instruction out" in str(refused.value)


def test_a_tensor_indexed_by_a_range_is_sliced():
    def body(dst, src):
        nisa.tensor_copy(dst, src[nl.affine_range(8), nl.affine_range(1, 8, 2)])

    assert (run_tiles(body, [X], [((8, 4), np.float32)])[0] == X[:, 1::2]).all()


def test_the_base_of_a_view_is_the_whole_tensor():
    def body(dst, src):
        assert src[2:4, 1:3].base_tensor.shape == (8, 8) and src.base_tensor.dtype == src.dtype
        nisa.tensor_copy(dst, src[2:4].base_tensor)

    assert (run_tiles(body, [X], [((8, 8), np.float32)])[0] == X).all()


@pytest.mark.parametrize(
    "name, generation",
    [("trn1n", 2), ("inf2.xlarge", 2), ("trn2u", 3), ("trn2.48xlarge", 3), ("trn3pre", 4), ("trn3_a0", 4)],
)
def test_variants_of_a_platform_are_the_platform(name, generation):
    assert find(name).generation == generation


@pytest.mark.parametrize("name", ["trn22", "trn2x", "trn4", "inf1", "trn2.", ""])
def test_other_names_are_no_platform(name):
    with pytest.raises(nki.NkiError):
        find(name)


@pytest.mark.parametrize(
    "module, names",
    [
        ("nki.language.buffers", ["sbuf", "psum", "hbm", "shared_hbm", "private_hbm", "is_hbm"]),
        ("nki.language.tensor", ["NkiTensor"]),
        ("nki.framework.compiled", ["CompileKernel"]),
        ("nki.framework.kernel", ["Kernel"]),
        ("nki.runtime", []),
    ],
)
def test_modules_that_public_code_imports(module, names):
    imported = importlib.import_module(module)
    for name in names:
        assert getattr(imported, name) is not None


def test_what_needs_a_device_is_not_found():
    with pytest.raises(ImportError):
        from nki.runtime import SpikeModel  # noqa: F401
    with pytest.raises(NotImplementedError, match="which Open NKI does not have"):
        nki.runtime.SpikeModel  # noqa: B018


def test_a_compiled_kernel_runs():
    from nki.framework.compiled import CompileKernel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(
            CompileKernel(loaded_by_nl, artifacts_dir="x")(square(2)), np.exp(square(2))
        )
        np.testing.assert_allclose(nki.trace(loaded_by_nl)(square(2)), np.exp(square(2)))


def test_old_names_of_the_language_work_with_a_warning():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, nl.float16, buffer=nl.shared_hbm)
        nl.store(out, nl.cast(nl.load(x), nl.float16))
        return out

    with pytest.warns(nki.NkiWarning, match="nl.cast is an old form"):
        assert (kernel(X) == X.astype(np.float16)).all()
    with pytest.warns(nki.NkiWarning, match="kernel"):
        assert nl.nc(2) == 2 and nl.spmd_dim(nl.nc(2), 1) == 2


# ---- releases ------------------------------------------------------------------------------------


def quantized(monkeypatch, release, x):
    if release:
        monkeypatch.setenv("OPEN_NKI_API", release)

    def kernel(x):
        tile = nl.load(x)
        packed = nl.ndarray((32, x.shape[1] // 4), nl.float8_e5m2_x4)
        scale = nl.ndarray((32, x.shape[1] // 4), nl.uint8)
        nisa.quantize_mx(packed, tile, scale)
        found = [nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm) for t in (packed, scale)]
        for out, t in zip(found, (packed, scale), strict=True):
            nisa.dma_copy(out, t)
        return found

    with target("trn3"), warnings.catch_warnings():
        warnings.simplefilter("error")
        return nki.jit(kernel)(x)


def test_quantize_mx_has_twice_the_scale_from_0_5_on(monkeypatch):
    import ml_dtypes

    x = np.full((32, 4), 1.99, ml_dtypes.bfloat16)
    new, now = quantized(monkeypatch, "", x), quantized(monkeypatch, "0.5", x)
    old = quantized(monkeypatch, "0.4", x)
    assert (np.asarray(now[1]) == np.asarray(new[1])).all()
    assert (np.asarray(old[1])[:4].astype(int) + 1 == np.asarray(new[1])[:4]).all()
    lanes = np.asarray(old[0]).view(np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32)
    assert lanes.max() == 57344.0  # it saturates


def test_scale_rows_that_nobody_wrote_are_zero(monkeypatch):
    import ml_dtypes

    scale = np.asarray(quantized(monkeypatch, "", np.ones((32, 8), ml_dtypes.bfloat16))[1])
    assert (scale[:4] != 0).all() and (scale[4:] == 0).all()


def test_rsqrt_reads_psum_before_0_5(monkeypatch):
    def body(dst, src):
        nisa.tensor_copy(dst, nl.rsqrt(src))

    x = np.full((4, 4), 16.0, np.float32)
    with pytest.raises(nki.NkiError, match="PSUM"):
        run_tiles(body, [x], [((4, 4), np.float32)], in_psum=[0])
    monkeypatch.setenv("OPEN_NKI_API", "0.4.1")
    assert (run_tiles(body, [x], [((4, 4), np.float32)], in_psum=[0])[0] == 0.25).all()


def test_dma_transpose_pads_the_rank_of_dst_before_0_4(monkeypatch):
    def kernel(x):
        out = nl.ndarray((4, 2), x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((4, 2), x.dtype)
        nisa.dma_transpose(tile, x.reshape((2, 1, 4)))
        nisa.dma_copy(out, tile)
        return out

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with pytest.raises(nki.NkiError, match="the rank must be equal"):
        nki.jit(kernel)(x)
    monkeypatch.setenv("OPEN_NKI_API", "0.3")
    assert (nki.jit(kernel)(x) == x.T).all()


def test_a_release_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_API", "0.2")
    with pytest.raises(nki.NkiError, match="0.3, 0.4, 0.5, 0.6"):
        nki.jit(loaded_by_nl)(X)
