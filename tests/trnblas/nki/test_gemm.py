"""The product kernels on every generation, by numpy arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki
from support import target

pytest.importorskip("torch")
from nki.check.python import lint  # noqa: E402
from trnblas.nki import gemm, mp2, nki_batched_gemm, nki_gemm, nki_syrk, trsm  # noqa: E402

PLATFORMS = ["trn1", "trn2", "trn3"]
spec = nki.TensorSpec


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def stored(x, transposed):
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if transposed else x


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("layout", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_ragged_sizes_on_every_generation(platform, dtype, layout):
    a, b = random(140, 150, dtype=dtype), random(150, 530, dtype=dtype, seed=1)
    with target(platform):
        found = gemm.gemm_kernel(stored(a, layout[0]), stored(b, layout[1]), *layout)
    exact = gemm.gemm_ref(a, b)
    assert found.dtype == dtype
    tolerance = {np.float32: 1e-6 * 150**0.5, np.float16: 5e-3}.get(dtype, 1e-2)
    np.testing.assert_allclose(
        found.astype(np.float64), exact, rtol=tolerance, atol=0.1 * tolerance * np.abs(exact).max()
    )


@pytest.mark.parametrize("blocks", [(128, 128), (512, 1024), (1024, 512)], ids=str)
def test_block_sizes_do_not_change_the_product(blocks):
    a, b = random(300, 40), random(40, 1100, seed=1)
    with target("trn2"):
        np.testing.assert_array_equal(gemm.gemm_kernel(a, b, False, False, *blocks), gemm.gemm_kernel(a, b))


def test_a_long_k_is_summed_in_blocks(monkeypatch):
    monkeypatch.setattr(gemm, "BLOCK_BYTES", 4096)  # two tiles of K in a block of 512 columns
    a, b = random(140, 600), random(600, 60, seed=1)
    with target("trn2"):
        found = gemm.gemm_kernel(a, b)
        half = gemm.gemm_kernel(a.astype(np.float16), b.astype(np.float16))
        triangle = gemm.syrk_kernel(a)
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=2e-5, atol=1e-3)
    np.testing.assert_allclose(half, a @ b, rtol=1e-2, atol=0.5)
    np.testing.assert_allclose(np.tril(triangle), np.tril(a @ a.T), rtol=2e-5, atol=1e-3)


def test_an_operand_too_large_for_sbuf_is_reloaded(monkeypatch):
    monkeypatch.setattr(gemm, "RESIDENT_BYTES", 0)
    a, b = random(140, 100), random(100, 200, seed=1)
    with target("trn2"):
        found = gemm.gemm_kernel(a, b, False, False, 128, 128)
        triangle = gemm.syrk_kernel(a, False, 128, 128)
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(np.tril(triangle), np.tril(a @ a.T), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("transposed", [False, True])
def test_syrk_computes_one_triangle(platform, transposed):
    a = random(300, 70)
    with target(platform):
        found = gemm.syrk_kernel(stored(a, transposed), transposed, 256, 256)
    np.testing.assert_allclose(np.tril(found), np.tril(a @ a.T), rtol=1e-5, atol=1e-4)
    assert (found[:100, 200:] == 0).all()


def test_batches_and_a_wider_result():
    a, b = random(3, 40, 50, dtype=ml_dtypes.bfloat16), random(3, 50, 20, dtype=ml_dtypes.bfloat16)
    import nki.language as nl

    with target("trn2"):
        found = gemm.batched_gemm_kernel(a, b, out_dtype=nl.float32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-5, atol=1e-5)


def test_the_functions_are_kernels_for_arrays_and_for_the_profiler():
    a = random(40, 40)
    with target("trn2"):
        np.testing.assert_array_equal(nki_gemm(a, a), gemm.gemm_kernel(a, a))
        np.testing.assert_array_equal(nki_batched_gemm(a[None], a[None]), nki_gemm(a, a)[None])
        np.testing.assert_array_equal(np.tril(nki_syrk(a)), np.tril(nki_gemm(a, a.T.copy())))
        assert nki.profile(nki_gemm)(spec((40, 40), "float32"), spec((40, 40), "float32")).total_us > 5


@pytest.mark.parametrize(
    "kernel",
    [gemm.gemm_kernel, gemm.batched_gemm_kernel, gemm.syrk_kernel, trsm.trsm_kernel, mp2.mp2_energy_kernel],
    ids=lambda kernel: kernel.__name__,
)
def test_the_python_of_the_kernels_is_what_the_compiler_accepts(kernel):
    assert lint(kernel.func) == []


@pytest.mark.parametrize("rows", [5, 130, 700])
def test_two_cores_share_the_rows(rows):
    a, b = random(rows, 70), random(70, 600, seed=1)
    with target("trn2"):
        np.testing.assert_allclose(gemm.gemm_kernel[2](a, b), gemm.gemm_ref(a, b), rtol=1e-5, atol=1e-4)
        triangle = np.tril(gemm.syrk_kernel[2](a))
    np.testing.assert_allclose(
        triangle, np.tril(gemm.gemm_ref(a, a, b_transposed=True)), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_two_cores_share_a_batch(batch):
    a, b = random(batch, 200, 30), random(batch, 30, 40, seed=1)
    with target("trn2"):
        np.testing.assert_allclose(
            gemm.batched_gemm_kernel[2](a, b), gemm.gemm_ref(a, b), rtol=1e-5, atol=1e-4
        )


def test_operands_that_cannot_be_multiplied_are_refused():
    a = random(4, 5)
    cases = [
        (lambda: gemm.gemm_kernel(a, a), "gemm_kernel: a contracts 5 elements, b 4; they must be equal"),
        (lambda: gemm.gemm_kernel(a, a.T.astype(np.float16)), "a is float32, b is float16"),
        (lambda: gemm.gemm_kernel(a.astype(np.int32), a), "a is int32; float32, bfloat16 and float16"),
        (lambda: gemm.gemm_kernel(a[None], a), "a has 3 dimensions, 2 are needed"),
        (lambda: gemm.batched_gemm_kernel(a[None], a), "b has 2 dimensions, 3 are needed"),
        (lambda: gemm.batched_gemm_kernel(a[None], np.stack([a.T, a.T])), "1 matrices a, 2 matrices b"),
    ]
    for call, text in cases:
        with pytest.raises(AssertionError, match=text):
            call()


# ---- the timing model ----------------------------------------------------------------------------


def percent_of_peak(timeline, flops, ns, multiplier=1.0):
    return 100 * flops / (timeline.machine.peak_flops(multiplier) * ns * 1e-9)


@pytest.mark.parametrize("dtype, multiplier, least", [("bfloat16", 1, 88), ("float32", 0.25, 95)])
def test_a_square_product_keeps_tensor_engine_busy(dtype, multiplier, least):
    n = 2048
    with target("trn2"):
        timeline = nki.profile(gemm.gemm_kernel)(spec((n, n), dtype), spec((n, n), dtype)).timeline
        triangle = nki.profile(gemm.syrk_kernel)(spec((n, n), dtype)).timeline
    assert percent_of_peak(timeline, 2 * n**3, timeline.total_ns, multiplier) >= least
    assert timeline.spill_bytes == triangle.spill_bytes == 0
    assert timeline.total_ns / triangle.total_ns >= 1.7


def test_a_ragged_product_wastes_little():
    """Without the fixed cost of a kernel run, which alone is more than a third of this time."""
    with target("trn2"):
        timeline = nki.profile(gemm.gemm_kernel)(
            spec((1000, 700), "bfloat16"), spec((700, 900), "bfloat16")
        ).timeline
    assert percent_of_peak(timeline, 2 * 1000 * 700 * 900, timeline.work_ns) >= 58
