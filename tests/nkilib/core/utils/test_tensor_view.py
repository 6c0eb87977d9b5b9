import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check import lint
from nkilib.core.utils.tensor_view import TensorView, key_in_dict

X = np.arange(4 * 6 * 10, dtype=np.float32).reshape(4, 6, 10)


def seen(change, x=X):
    """What a view of an HBM tensor holds."""

    @nki.jit
    def kernel(x):
        view = change(TensorView(x))
        tensor = view.get_view()
        assert tuple(tensor.shape) == view.shape and tuple(tensor.strides) == view.strides
        out = nl.ndarray(view.shape, view.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tensor)
        return out

    return kernel(x)


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda v: v.slice(1, 1, 5, 2), X[:, 1:5:2]),
        (lambda v: v.slice(2, 7, 99), X[:, :, 7:]),
        (lambda v: v.permute((2, 0, 1)), X.transpose(2, 0, 1)),
        (lambda v: v.expand_dim(1).broadcast(1, 3), np.broadcast_to(X[:, None], (4, 3, 6, 10))),
        (lambda v: v.reshape_dim(1, (2, -1)), X.reshape(4, 2, 3, 10)),
        (lambda v: v.flatten_dims(1, 2), X.reshape(4, 60)),
        (lambda v: v.slice(0, 2, 3).squeeze_dim(0), X[2]),
        (lambda v: v.select(1, 4), X[:, 4]),
        (lambda v: v.rearrange(("a", ("b", "c"), "d"), ("c", ("a", "b"), "d"), {"c": 3}),
         X.reshape(4, 2, 3, 10).transpose(2, 0, 1, 3).reshape(3, 8, 10)),
        (lambda v: v.reshape((8, 30)), X.reshape(8, 30)),
        (lambda v: v.reinterpret_cast(nl.uint8), X.view(np.uint8)),
    ],
)  # fmt: skip
def test_a_view_shows_what_numpy_would(change, expected):
    np.testing.assert_array_equal(seen(change), expected)


def on_chip(change):
    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        view = change(TensorView(tile))
        assert view.is_sbuf()
        out = nl.ndarray(view.shape, view.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, view.get_view())
        return out

    return kernel(X)


def test_views_of_tiles_keep_their_partitions():
    np.testing.assert_array_equal(on_chip(lambda v: v.permute((0, 2, 1))), X.transpose(0, 2, 1))
    np.testing.assert_array_equal(on_chip(lambda v: v.slice(0, 1, 3).select(2, 5)), X[1:3, :, 5])


@nki.jit
def picked(x, index):
    at = nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(at, index)
    view = TensorView(x)
    assert not view.has_dynamic_access()
    view = view.select(0, at)
    assert view.has_dynamic_access()
    out = nl.ndarray(view.shape, view.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, view.get_view())
    return out


def test_an_index_may_be_a_run_time_value():
    np.testing.assert_array_equal(picked(X, np.array([[2]], np.int32)), X[2])


def test_a_kernel_with_views_compiles():
    assert [str(f) for f in lint(picked)] == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda v: v.slice(3, 0, 1), "slice: got dim 3, allowed are 0 to 2"),
        (lambda v: v.slice(-1, 0, 1), "slice: got dim -1"),
        (lambda v: v.slice(1, 4, 4), "slice: got start 4, end 4, step 1 of dimension 1 with size 6"),
        (lambda v: v.permute((0, 1)), r"permute: got \(0, 1\), expected every dimension"),
        (lambda v: v.permute((0, 1, 1)), r"permute: got \(0, 1, 1\), expected every dimension"),
        (lambda v: v.broadcast(1, 3), "broadcast: dimension 1 has size 6, expected 1"),
        (lambda v: v.reshape_dim(1, (4, 2)), r"reshape_dim: got \(4, 2\), expected sizes that make 6"),
        (lambda v: v.reshape_dim(1, (4, -1)), r"reshape_dim: got \(4, -1\), expected sizes that make 6"),
        (lambda v: v.reshape_dim(1, (-1, -1)), "reshape_dim: .* at most one of them -1"),
        (lambda v: v.permute((0, 2, 1)).flatten_dims(1, 2), "dimensions 1 and 2 .* are not contiguous"),
        (lambda v: v.flatten_dims(2, 1), "flatten_dims: got 2 to 1, expected start <= end"),
        (lambda v: v.expand_dim(4), "expand_dim: got dim 4, allowed are 0 to 3"),
        (lambda v: v.squeeze_dim(0), "squeeze_dim: dimension 0 has size 4, expected 1"),
        (lambda v: v.select(1, 6), "select: got index 6 of dimension 1, allowed are 0 to 5"),
        (lambda v: v.rearrange(("a", "b"), ("b", "a")), "rearrange: got 2 names for the 3 dimensions"),
    ],
)
def test_an_impossible_view_raises(change, text):
    with pytest.raises(AssertionError, match=f"Kernel validation exception: .*{text}"):
        seen(change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda v: v.permute((1, 0, 2)), "the partition dimension 0 must stay first"),
        (lambda v: v.expand_dim(0), "expand_dim: not possible on the partition dimension 0"),
        (lambda v: v.select(0, 1), "select: not possible on the partition dimension 0"),
        (lambda v: v.reshape_dim(0, (2, 2)), "reshape_dim: not possible on the partition dimension 0"),
        (lambda v: v.flatten_dims(0, 1), "flatten_dims: not possible on the partition dimension 0"),
        (lambda v: v.slice(0, 0, 1).broadcast(0, 4), "broadcast: not possible on the partition dimension 0"),
        (lambda v: v.slice(0, 0, 1).squeeze_dim(0), "squeeze_dim: not possible on the partition dimension 0"),
    ],
)
def test_the_partition_dimension_stays_where_it_is(change, text):
    with pytest.raises(AssertionError, match=text):
        on_chip(change)


def test_a_layout_that_would_need_a_copy_is_not_reshaped():
    with pytest.raises(AssertionError, match="would need a copy"):
        seen(lambda v: v.permute((0, 2, 1)).reshape((4, 60)))


def test_keys_of_dictionaries():
    assert key_in_dict("a", {"a": 1}) and not key_in_dict("b", {"a": 1})
