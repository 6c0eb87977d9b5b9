"""Forms that public code of other releases uses: annotations, dtypes, removed names (spec/language.md 1)."""

from collections.abc import Callable
from typing import Optional, Union

import numpy as np
import pytest

import nki
import nki.dtype
import nki.isa as nisa
import nki.language as nl

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def double(x, factor=2.0):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor * nl.num_programs(0))
    nisa.dma_copy(out, tile)
    return out


def test_the_version_is_that_of_nki():
    assert nki.__version__.startswith("0.6.0")


def test_nki_dtype_has_every_dtype_of_the_language():
    import nki.dtype

    assert all(getattr(nki.dtype, name) is getattr(nl, name) for name in nki.dtype.__all__)
    assert len(nki.dtype.__all__) == 18


# ---- annotations ---------------------------------------------------------------------------------


@pytest.mark.tiny
def test_tensors_and_dtypes_may_be_annotations():
    def kernel(
        x: nl.ndarray,
        y: nl.ndarray | None = None,
        z: None | nl.ndarray = None,
        w: Optional[nl.ndarray] = None,  # noqa: UP045
        v: Union[nl.ndarray, list[nl.ndarray]] = (),  # noqa: UP007
        u: "nl.ndarray | None" = None,
        t: dict[str, nl.NkiTensor] | None = None,
        f: Callable[[nl.ndarray], nl.ndarray] | None = None,
    ) -> tuple[nl.ndarray, ...]:
        return double(x)

    assert np.array_equal(nki.jit(kernel)(X), 2 * X)


# ---- dtypes and arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in nki.dtype.__all__ if not name.endswith("_x4")])
def test_numpy_takes_the_dtypes_of_nki(name):
    dtype = getattr(nl, name)
    assert np.zeros((2, 3), dtype).dtype == np.ones(4).astype(dtype).dtype == np.dtype(dtype)
    assert {dtype: name}[dtype] == name and dtype == str(dtype)


PACKED = {
    "float8_e4m3fn_x4": np.dtype([("float8_e4m3fn_x4", "<u2"), ("high", "<u2")]),
    "float8_e5m2_x4": np.dtype([("float8_e5m2_x4", "<u2"), ("high", "<u2")]),
    "float4_e2m1fn_x4": np.dtype([("float4_e2m1fn_x4", "u1"), ("high", "u1")]),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_arrays_are_records_in_and_out(name):
    def twice(x):
        assert x.dtype is getattr(nl, name) and x.shape == (4, 6)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        nisa.dma_copy(x[0:1, :], out[1:2, :])
        return out, out[:, 0:2]

    record = PACKED[name]
    codes = np.arange(24 * record.itemsize, dtype=np.uint8)
    for x in (np.zeros((4, 6), record), np.zeros((4, 12), record)[:, ::2]):  # dense, and with gaps
        x[...] = codes.view(record).reshape(4, 6)
        whole, part = nki.jit(twice)(x)
        assert whole.dtype == part.dtype == x.dtype == record
        assert whole.tobytes() == codes.tobytes() and np.array_equal(part, whole[:, 0:2])
        assert np.array_equal(x[0], whole[1]) and np.array_equal(x[1:], whole[1:])


def test_packed_results_without_a_packed_argument_are_bits():
    def fill():
        out = nl.ndarray((2, 2), nl.float8_e4m3fn_x4, buffer=nl.shared_hbm)
        nisa.dma_copy(out, nl.zeros((2, 2), nl.float8_e4m3fn_x4))
        return out

    assert np.array_equal(nki.jit(fill)(), np.zeros((2, 2), np.uint32))


# ---- names that are gone -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"])
def test_a_removed_instruction_raises_with_its_replacement(name):
    with pytest.raises(AttributeError) as caught:
        getattr(nisa, name)
    assert caught.value.kind == "removed" and f"nisa.{name}" in str(caught.value)
    assert "scalar_offset" in caught.value.help and not hasattr(nisa, name)


def test_a_mistyped_instruction_suggests_its_neighbour():
    with pytest.raises(AttributeError, match="did you mean nisa.tensor_tensor"):
        _ = nisa.tensor_tesnor


@pytest.mark.parametrize(
    "call",
    [
        lambda t: nisa.tensor_copy(t),
        lambda t: nisa.tensor_tensor(t, t, op=nl.add),
        lambda t: nisa.activation(op=nl.exp, data=t),
        lambda t: nisa.nc_matmul(t, t),
    ],
)
def test_calls_in_the_style_of_returned_tiles_raise_with_dst_in_the_help(call):
    def kernel():
        call(nl.zeros((4, 4), nl.float32))

    with pytest.raises(TypeError) as caught:
        nki.jit(kernel)()
    assert caught.value.kind == "argument" and "(dst, " in caught.value.help


@pytest.mark.parametrize("call", [nl.zeros, nl.ones, lambda *a, mask: nl.add(nl.zeros(*a), 1.0, mask=mask)])
def test_masks_are_refused_with_the_bound_to_write(call):
    def kernel():
        call((4, 4), nl.float32, mask=True)

    with pytest.raises(TypeError, match="mask") as caught:
        nki.jit(kernel)()
    assert "min()" in caught.value.help


# ---- shapes across partitions --------------------------------------------------------------------


@nki.jit
def turned(x):
    """(n, 1) as (1, n): simulators reshape it, no view of a tile can."""
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    row = tile.reshape((1, x.shape[0]))
    out = nl.ndarray(row.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, row)
    return out


def test_a_reshape_across_partitions_copies_and_warns():
    column = np.arange(5, dtype=np.float32).reshape(5, 1)
    with pytest.warns(nki.NkiWarning, match="dimension 0 must stay 5, got 1"):
        np.testing.assert_array_equal(turned(column), column.T)


def test_a_reshape_across_partitions_is_an_error_when_strict(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    with pytest.raises(nki.NkiError, match="dimension 0 must stay 5, got 1"):
        turned(np.zeros((5, 1), np.float32))
