"""Views: indexing, the view methods and access patterns (spec/tensor.md 3 to 7)."""

from __future__ import annotations

import contextlib
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.indexing import DynamicSlice
from nki.ir.tensor import NkiTensor
from nki.language import float32
from support import refused, target

ds = DynamicSlice


def tensor(*shape, dtype=float32, buffer=nl.sbuf, name=""):
    """A placeholder: it has attributes and views, and no data."""
    return NkiTensor(shape, dtype, None, buffer, name)


def sbuf(*shape, dtype=float32):
    return tensor(*shape, dtype=dtype, buffer=nl.sbuf)


def hbm(*shape, dtype=float32):
    return tensor(*shape, dtype=dtype, buffer=nl.hbm)


def layout(view):
    return tuple(view.shape), view.strides, view.offset


# ---- indexing (spec/tensor.md 4) ----------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize(
    "key, shape",
    [
        ((0, 0, 10), (1, 1)),
        ((slice(None), 0), (64, 64)),
        ((slice(None), 0, 10), (64, 1)),
        ((0, ..., slice(None)), (1, 64, 64)),
        ((slice(None), slice(None), slice(None, None, 2)), (64, 64, 32)),
        (5, (1, 64, 64)),
        (-1, (1, 64, 64)),
        (..., (64, 64, 64)),
        ((slice(3, 7), ..., 5), (4, 64)),
        ((..., 0, 0), (64, 1)),
        ((ds(8, 4), 1, ds(0, 2)), (4, 2)),
    ],
)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=str)
def test_an_index_on_chip_keeps_the_partition_and_one_free_dimension(key, shape, buffer):
    assert tensor(64, 64, 64, buffer=buffer)[key].shape == shape


@pytest.mark.parametrize(
    "key, shape",
    [
        ((0, slice(None), slice(None)), (128, 32)),
        ((slice(None), 1, slice(0, 2)), (4, 2)),
        ((1, 2, 3), (1,)),
        ((0,), (128, 32)),
        ((..., 3), (4, 128)),
        ((slice(None, None, 2), ...), (2, 128, 32)),
        ([1, 2], (32,)),
        ((ds(1, 2), 0), (2, 32)),
        ((np.int64(2), np.uint8(0)), (32,)),
    ],
)
def test_an_index_in_hbm_drops_dimensions_but_the_last(key, shape):
    assert hbm(4, 128, 32)[key].shape == shape


def test_the_kept_dimension_of_a_fully_indexed_tensor_has_the_stride_of_the_last_one():
    assert layout(hbm(4, 6)[1, 2]) == ((1,), (1,), 8)
    assert layout(hbm(4, 6).permute((1, 0))[2, 1]) == ((1,), (6,), 8)
    assert layout(sbuf(4, 2, 3)[1, 1, 2]) == ((1, 1), (6, 1), 11)


def test_indices_move_the_offset_and_steps_multiply_strides():
    t = sbuf(128, 8, 16)
    assert layout(t[4:8, 2, 1:9:3]) == ((4, 3), (128, 3), 4 * 128 + 2 * 16 + 1)
    assert layout(t[:, 1:7:2][:, 1:3, ::4]) == ((128, 2, 4), (128, 32, 4), 48)


def test_negative_indices_count_from_the_end():
    t = hbm(10, 20)
    assert layout(t[-3, -5:-1]) == layout(t[7, 15:19])
    assert layout(t[-10]) == layout(t[0])


def test_a_slice_to_the_last_element_with_a_step_counts_upwards():
    assert hbm(10)[::3].shape == (4,) and hbm(10)[1::3].shape == (3,) and hbm(10)[9:10:7].shape == (1,)


@pytest.mark.parametrize(
    "key, text",
    [
        ((0, 0, 0), "3 indices for a tensor with 2 dimensions"),
        ((..., 0, ...), "only one ellipsis"),
        ((0, 0, ..., 0), "3 indices"),
        (128, "index 128 is out of range for dimension 0 of size 128"),
        (-129, "index -129 is out of range"),
        ((0, 512), "index 512 is out of range for dimension 1 of size 512"),
        ((slice(None), slice(0, 600)), "slice 0:600 is out of range for dimension 1 of size 512"),
        ((slice(None), slice(600, 700)), "slice 600:700 is out of range"),
        ((slice(None), slice(-600, 3)), "slice -600:3 is out of range"),
        ((slice(None), slice(0, 8, -1)), "step must be at least 1, got -1"),
        ((slice(None), slice(0, 8, 0)), "step must be at least 1, got 0"),
        ((slice(None), ds(510, 4)), "slice 510:514 is out of range"),
    ],
)
def test_an_index_out_of_range_is_an_index_error(key, text):
    error = refused("index", text, lambda: sbuf(128, 512)[key])
    assert isinstance(error, IndexError) and isinstance(error, AssertionError)


def test_the_error_of_a_slice_beyond_the_end_shows_how_to_bound_it():
    assert refused("index", "", lambda: sbuf(128, 512)[:, 0:600]).help.endswith("min(600, 512)")


@pytest.mark.parametrize(
    "index",
    [
        None,
        True,
        np.bool_(True),
        1.0,
        "x",
        np.arange(3),
        np.array(1),
        np.float32(1),
        [0, 1],
        sbuf(4, 4, dtype=nl.int32),
        {},
    ],
    ids=lambda i: type(i).__name__,
)
@pytest.mark.parametrize("make", [sbuf, hbm])
def test_an_index_of_another_kind_is_a_type_error_that_names_alternatives(index, make):
    with pytest.raises(TypeError) as caught:
        make(8, 16)[1:3, index]
    assert caught.value.kind == "argument"
    if not isinstance(index, NkiTensor):
        assert "expand_dim" in caught.value.help and "vector_select" in caught.value.help


def test_the_error_of_none_as_an_index_names_expand_dim():
    problem = refused("argument", "adds no dimension", lambda: sbuf(8, 16)[:, None, :])
    assert problem.help.startswith("t.expand_dim(1) adds one")


def test_slice_bounds_must_be_ints():
    refused("argument", "slice bounds must be ints", lambda: hbm(8)[0:2.5])
    refused("argument", "slice bounds must be ints", lambda: hbm(8)[True:3])


def test_nl_ds_with_an_int_start_is_a_slice():
    t = sbuf(128, 64)
    assert layout(t[ds(32, 64), ds(8, 16)]) == layout(t[32:96, 8:24])
    assert ds(1, 2) == ds(1, 2) and hash(ds(1, 2)) == hash(ds(np.int32(1), 2)) and ds(1, 2) != ds(1, 3)
    assert repr(ds(1, 2)) == "nl.ds(1, 2)"


def test_nl_ds_refuses_wrong_starts_and_sizes():
    refused("argument", "size must be an int", lambda: ds(0, 2.0))
    refused("argument", "start must be", lambda: ds(None, 2))
    refused("argument", "start must be", lambda: ds(1.5, 2))
    refused("index", "size must not be negative", lambda: ds(0, -1))
    refused("index", "start must not be negative", lambda: ds(-3, 2))


def test_a_step_over_partitions_is_refused_at_once():
    refused("partition-step", "step 1 only", lambda: sbuf(128, 4)[::2])
    refused("partition-step", "", lambda: sbuf(128, 4).slice(0, 0, 8, 2))
    assert sbuf(128, 4)[0:8:1].shape == (8, 4) and hbm(128, 4)[::2].shape == (64, 4)


def test_shapes_equal_tuples_and_lists():
    shape = sbuf(2, 3).shape
    two_three, as_list = (2, 3), [2, 3]
    assert shape == two_three and two_three == shape and shape == as_list and as_list == shape
    assert shape != [2, 4] and (shape != as_list) is False and hash(shape) == hash(two_three)
    assert isinstance(shape, tuple) and {shape: 1}[2, 3] == 1


# ---- queries (spec/tensor.md 3) -----------------------------------------------------------------------


def test_on_chip_contiguity_looks_at_free_dimensions_alone():
    assert sbuf(128, 64)[:, 0:32].is_contiguous()
    assert not hbm(128, 64)[:, 0:32].is_contiguous()
    assert not sbuf(128, 4, 16)[:, :, 0:8].is_contiguous()
    assert not sbuf(128, 64)[:, ::2].is_contiguous()
    assert sbuf(128, 64)[8:16].is_contiguous() and hbm(128, 64)[8:16].is_contiguous()


def test_size_1_dimensions_do_not_matter_for_contiguity():
    assert sbuf(128, 64).expand_dim(1).is_contiguous()
    assert hbm(8, 16)[:, 3:4].permute((1, 0)).is_contiguous() is False
    assert hbm(8, 1, 16).permute((1, 0, 2)).is_contiguous()


def test_get_pattern_is_a_fresh_list_the_caller_may_edit():
    t = sbuf(128, 64)[:, 8:24]
    pattern = t.get_pattern()
    assert pattern == [[64, 128], [1, 16]]
    pattern[0][0] = 99
    assert t.get_pattern() == [[64, 128], [1, 16]]


def test_static_views_are_not_indirect():
    assert not sbuf(128, 64)[:, 3].is_indirect()


# ---- view methods (spec/tensor.md 5): one passing and one failing case of each rule --------------------


def test_slice_method():
    t = sbuf(128, 64)
    assert layout(t.slice(1, 8, 24)) == layout(t[:, 8:24])
    assert layout(t.slice(-1, 0, 64, 2)) == layout(t[:, ::2])
    assert layout(t.slice(dim=0, start=3, end=5, step=1)) == layout(t[3:5])
    refused("index", "slice 0:65 is out of range", lambda: t.slice(1, 0, 65))
    assert t.slice(1, 8, 8).shape == (128, 0)  # refused when it is used
    refused("index", "step", lambda: t.slice(1, 0, 8, 0))
    refused("index", "slice: dimension 2 of a tensor with 2", lambda: t.slice(2, 0, 1))
    refused("argument", "dim must be an int", lambda: t.slice(None, 0, 1))


def test_select_method():
    t = sbuf(128, 8, 64)
    assert layout(t.select(1, 3)) == ((128, 64), (512, 1), 192)
    assert layout(t.select(-1, -1)) == layout(t[:, :, 63])
    assert sbuf(128, 8).select(1, 3).shape == (128, 1)
    assert hbm(4).select(0, 1).shape == (1,)
    assert layout(hbm(4, 6).select(0, 2)) == layout(hbm(4, 6)[2])
    refused("index", "index 8 is out of range", lambda: t.select(1, 8))
    error = refused("partition-dim", "cannot be dropped", lambda: t.select(0, 3))
    assert "t[3:4]" in error.help
    refused("argument", "an index must be", lambda: t.select(1, slice(0, 2)))
    refused("argument", "an index must be", lambda: t.select(1, None))
    refused("index", "dimension 3", lambda: t.select(3, 0))


def test_permute_method():
    t = sbuf(128, 4, 8)
    assert layout(t.permute((0, 2, 1))) == ((128, 8, 4), (32, 1, 8), 0)
    assert layout(t.permute([0, -1, 1])) == layout(t.permute((0, 2, 1)))
    assert layout(hbm(2, 3).permute((1, 0))) == ((3, 2), (1, 3), 0)
    refused("partition-dim", "must stay first", lambda: t.permute((1, 0, 2)))
    refused("pattern", "not a permutation", lambda: t.permute((0, 1)))
    refused("pattern", "not a permutation", lambda: t.permute((0, 1, 1)))
    refused("index", "dimension 3", lambda: t.permute((0, 1, 3)))
    refused("argument", "tuple or list", lambda: t.permute(1))


def test_broadcast_method():
    t = sbuf(128, 1, 64)
    assert layout(t.broadcast(1, 8)) == ((128, 8, 64), (64, 0, 1), 0)
    assert hbm(1, 4).broadcast(0, 128).shape == (128, 4)
    refused("shape", "dimension 2 has size 64", lambda: t.broadcast(2, 8))
    refused("shape", "positive int", lambda: t.broadcast(1, 0))
    refused("shape", "positive int", lambda: t.broadcast(1, 2.0))
    error = refused("partition-dim", "not possible on dimension 0", lambda: sbuf(1, 4).broadcast(0, 128))
    assert "nl.broadcast_to" in error.help


def test_expand_dim_method():
    t = sbuf(128, 64)
    assert layout(t.expand_dim(1)) == ((128, 1, 64), (64, 64, 1), 0)
    assert layout(t.expand_dim(2)) == layout(t.expand_dim(-1)) == ((128, 64, 1), (64, 1, 1), 0)
    assert layout(hbm(4, 6).expand_dim(0)) == ((1, 4, 6), (24, 6, 1), 0)
    refused("partition-dim", "dimension 0", lambda: t.expand_dim(0))
    refused("index", "dimension 3", lambda: t.expand_dim(3))
    refused("rank", "2 to 5 dimensions", lambda: sbuf(4, 2, 2, 2, 2).expand_dim(1))
    assert hbm(1, 1, 1, 1, 1).expand_dim(0).ndim == 6


def test_squeeze_dim_method():
    t = sbuf(128, 1, 64)
    assert layout(t.squeeze_dim(1)) == layout(sbuf(128, 64))
    assert hbm(1, 4).squeeze_dim(-2).shape == (4,)
    refused("shape", "dimension 2 has size 64", lambda: t.squeeze_dim(2))
    refused("partition-dim", "", lambda: sbuf(1, 4, 4).squeeze_dim(0))
    refused("rank", "2 to 5 dimensions", lambda: sbuf(128, 1).squeeze_dim(1))
    refused("rank", "at least one", lambda: hbm(1).squeeze_dim(0))


def test_reshape_dim_method():
    t = sbuf(128, 24)
    assert layout(t.reshape_dim(1, (4, 6))) == ((128, 4, 6), (24, 6, 1), 0)
    assert t.reshape_dim(1, (4, -1)).shape == t.reshape_dim(-1, [-1, 6]).shape == (128, 4, 6)
    assert t.reshape_dim(0, (128,)).shape == (128, 24)
    assert hbm(12, 2).reshape_dim(0, (3, 4)).strides == (8, 2, 1)
    assert t[:, ::2].reshape_dim(1, (3, 4)).strides == (24, 8, 2)
    assert sbuf(8, 1).broadcast(1, 12).reshape_dim(1, (3, 4)).strides == (1, 0, 0)
    refused("shape", "(5, 5) holds 25 elements", lambda: t.reshape_dim(1, (5, 5)))
    refused("shape", "-1 cannot be worked out", lambda: t.reshape_dim(1, (5, -1)))
    refused("shape", "", lambda: t.reshape_dim(1, (-1, -1)))
    refused("shape", "", lambda: t.reshape_dim(1, (0, -1)))
    refused("partition-dim", "", lambda: t.reshape_dim(0, (2, 64)))
    refused("rank", "this would have 6", lambda: t.reshape_dim(1, (2, 2, 2, 3, 1)))
    refused("argument", "sizes must be ints", lambda: t.reshape_dim(1, (4.0, 6)))
    refused("index", "", lambda: t.reshape_dim(2, (1,)))


def test_flatten_dims_method():
    t = sbuf(128, 2, 3, 4)
    assert layout(t.flatten_dims(1, 2)) == ((128, 6, 4), (24, 4, 1), 0)
    assert layout(t.flatten_dims(1, -1)) == ((128, 24), (24, 1), 0)
    assert layout(t.flatten_dims(2, 2)) == layout(t)
    assert hbm(2, 3, 4).flatten_dims(0, 2).shape == (24,)
    assert layout(t.expand_dim(2).flatten_dims(1, 2)) == layout(t)
    assert sbuf(128, 1, 1).flatten_dims(1, 2).shape == (128, 1)
    error = refused("layout", "dimensions 1 and 2", lambda: t[:, :, 0:2].flatten_dims(1, 2))
    assert isinstance(error, AssertionError) and isinstance(error, ValueError)
    refused("layout", "", lambda: t.permute((0, 2, 1, 3)).flatten_dims(1, 2))
    refused("partition-dim", "", lambda: t.flatten_dims(0, 1))
    refused("index", "lies behind", lambda: t.flatten_dims(2, 1))


def test_neighbouring_broadcast_dimensions_flatten_and_a_broadcast_beside_a_dense_one_does_not():
    t = sbuf(8, 1, 1, 4).broadcast(1, 3).broadcast(2, 5)
    assert layout(t.flatten_dims(1, 2)) == ((8, 15, 4), (4, 0, 1), 0)
    refused("layout", "dimensions 2 and 3", lambda: t.flatten_dims(2, 3))


@pytest.mark.parametrize(
    "view, shape, strides",
    [
        (sbuf(128, 4, 6), (128, 24), (24, 1)),
        (sbuf(128, 4, 6), (128, 2, 12), (24, 12, 1)),
        (sbuf(128, 4, 6), (128, -1, 3), (24, 3, 1)),
        (hbm(4, 6), (24,), (1,)),
        (hbm(4, 6), (2, 2, 3, 2), (12, 6, 2, 1)),
        (hbm(4, 6)[:, 0:3], (2, 2, 3), (12, 6, 1)),
        (hbm(4, 6)[:, 0:3], (4, 1, 3), (6, 6, 1)),
        (hbm(4, 6)[:, 0:3], (4, 3, 1), (6, 1, 1)),
        (hbm(4, 6).permute((1, 0)), (3, 2, 2, 2), (2, 1, 12, 6)),
        (hbm(4, 6).permute((1, 0)), (6, 1, 4), (1, 1, 6)),
        (sbuf(8, 1, 6).broadcast(1, 4), (8, 2, 2, 6), (6, 0, 0, 1)),
        (sbuf(8, 12)[:, ::2], (8, 2, 3), (12, 6, 2)),
        (hbm(1, 1), (1,), (1,)),
    ],
)
def test_reshape_regroups_what_memory_allows(view, shape, strides):
    reshaped = view.reshape(shape)
    assert reshaped.strides == strides and reshaped.offset == view.offset


@pytest.mark.parametrize(
    "kind, view, shape",
    [
        ("layout", hbm(4, 6)[:, 0:3], (12,)),
        ("layout", hbm(4, 6)[:, 0:3], (6, 2)),
        ("layout", hbm(4, 6).permute((1, 0)), (24,)),
        ("layout", sbuf(8, 1, 6).broadcast(1, 4), (8, 24)),
        ("shape", sbuf(8, 6), (8, 7)),
        ("shape", sbuf(8, 6), (8, -1, 4)),
        ("shape", hbm(6), ()),
        ("rank", hbm(1), ()),
        ("rank", sbuf(8, 1), (8,)),
        ("rank", sbuf(8, 32), (8, 2, 2, 2, 2, 2)),
        ("partition-dim", sbuf(8, 6), (4, 12)),
        ("argument", sbuf(8, 6), "ab"),
    ],
)
def test_reshape_refuses_what_needs_a_copy_or_another_size(kind, view, shape):
    error = refused(kind, "reshape", lambda: view.reshape(shape))
    if kind == "layout":
        assert "copy to a dense tensor first" in error.help


def test_rearrange_splits_permutes_and_merges_by_name():
    t = sbuf(128, 24)
    assert layout(t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})) == ((128, 6, 4), (24, 1, 6), 0)
    h = hbm(6, 10, 4)
    assert layout(h.rearrange(("a", "b", "c"), (("a", "b"), "c"))) == layout(h.reshape((60, 4)))
    assert layout(h.rearrange(["a", "b", "c"], ["c", "a", "b"])) == layout(h.permute((2, 0, 1)))
    five = sbuf(8, 2, 3, 4, 6)  # six dimensions on the way, five in the end
    assert (
        five.rearrange(("p", "a", "b", "c", ("d", "e")), ("p", "a", "b", ("c", "d"), "e"), {"d": 2}).ndim == 5
    )


@pytest.mark.parametrize(
    "kind, text, args",
    [
        ("pattern", "3 source entries for 2", (("a", "b", "c"), ("a", "b", "c"))),
        ("pattern", "same names", (("a", "b"), ("a", "c"))),
        ("pattern", "same names", (("a", "a"), ("a", "a"))),
        ("pattern", "same names", (("a", "b"), ("a", "b", "b"))),
        ("pattern", "'z', which no pattern has", (("a", "b"), ("a", "b"), {"z": 2})),
        ("pattern", "an axis is a name, got 1", (("a", 1), ("a", 1))),
        ("pattern", "an axis is a name, got 1", (("a", "b"), ("a", "b", 1))),
        ("pattern", "an axis is a name", (("a", ()), ("a",))),
        ("pattern", "a pattern is a tuple", ("a b", "b a")),
        ("pattern", "all but one axis", (("a", ("b", "c")), ("a", "b", "c"))),
        ("shape", "has size 24, not 5", (("a", "b"), ("a", "b"), {"b": 5})),
        ("shape", "-1 cannot be worked out", (("a", ("b", "c")), ("a", "b", "c"), {"b": 5})),
        ("layout", "not adjacent", (("a", ("b", "c")), ("a", ("c", "b")), {"b": 4})),
        ("partition-dim", "", ((("a", "c"), "b"), ("a", "c", "b"), {"a": 4})),
        ("partition-dim", "", (("a", "b"), ("b", "a"))),
        ("rank", "this would have 6", (("a", ("b", "c", "d", "e", "f")), ("a", "b", "c", "d", "e", "f"),
                                       {"b": 2, "c": 2, "d": 2, "e": 3})),
    ],
)  # fmt: skip
def test_rearrange_refuses_wrong_patterns(kind, text, args):
    refused(kind, text, lambda: sbuf(128, 24).rearrange(*args))


@pytest.mark.parametrize(
    "old, new, shape, strides, offset",
    [
        (nl.float32, nl.int32, (4, 8), (16, 1), 36),
        (nl.float32, nl.uint16, (4, 16), (32, 1), 72),
        (nl.float32, nl.float8_e4m3, (4, 32), (64, 1), 144),
        (nl.bfloat16, nl.uint8, (4, 16), (32, 1), 72),
        (nl.bfloat16, nl.float32, (4, 4), (8, 1), 18),
        (nl.uint8, nl.float16, (4, 4), (8, 1), 18),
        (nl.uint8, nl.int32, (4, 2), (4, 1), 9),
        (nl.float8_e4m3fn, nl.float8_e4m3fn_x4, (4, 2), (4, 1), 9),
        (nl.uint8, nl.float4_e2m1fn_x4, (4, 4), (8, 1), 18),
        (nl.float8_e5m2_x4, nl.float8_e5m2, (4, 32), (64, 1), 144),
    ],
)
def test_view_scales_the_last_dimension_the_strides_and_the_offset(old, new, shape, strides, offset):
    view = sbuf(8, 16, dtype=old)[2:6, 4:12].view(new)
    assert layout(view) == (shape, strides, offset) and view.dtype is new
    assert layout(sbuf(8, 16, dtype=old)[2:6, 4:12].reinterpret_cast(new)) == (shape, strides, offset)
    assert layout(view.view(old)) == layout(sbuf(8, 16, dtype=old)[2:6, 4:12])


def test_view_of_a_size_1_last_dimension_counts_its_stride_as_1():
    assert layout(sbuf(8, 16)[:, 3].view(nl.uint8)) == ((8, 4), (64, 1), 12)
    assert hbm(8, 16).permute((1, 0))[:, 0:1].view(nl.bfloat16).shape == (16, 2)


def test_the_stride_of_a_size_1_dimension_need_not_divide():
    odd = hbm(6, 2, dtype=nl.bfloat16).slice(0, 0, 6, 1)[:, 0:2].ap([[3, 1], [1, 2]])
    assert odd.view(nl.float32).shape == (1, 1)


@pytest.mark.parametrize(
    "kind, view, dtype",
    [
        ("layout", sbuf(8, 16)[:, ::2], nl.bfloat16),
        ("layout", sbuf(8, 16, dtype=nl.bfloat16)[:, ::2], nl.float32),
        ("alignment", sbuf(8, 16, dtype=nl.bfloat16)[:, 0:7], nl.float32),  # last size
        ("alignment", sbuf(8, 16, dtype=nl.bfloat16)[:, 1:9], nl.float32),  # offset
        ("alignment", sbuf(8, 15, dtype=nl.bfloat16)[:, 0:8], nl.float32),  # stride
        ("alignment", sbuf(1, 15, dtype=nl.bfloat16)[:, 0:8], nl.float32),  # rows of 30 bytes
        ("alignment", sbuf(8, 15, dtype=nl.bfloat16)[0:1, 0:8], nl.float32),
        ("alignment", hbm(4, 6, dtype=nl.uint8)[:, 0:4], nl.float32),
        ("alignment", sbuf(8, 1, dtype=nl.bfloat16), nl.float32),
        ("dtype", sbuf(8, 16), np.float64),
        ("dtype", sbuf(8, 16), "no such dtype"),
    ],
)
def test_view_refuses_what_does_not_divide(kind, view, dtype):
    refused(kind, "", lambda: view.view(dtype))


def test_view_takes_no_shape():
    with pytest.raises(TypeError):
        sbuf(8, 16).view(shape=(8, 4, 4))


def test_views_keep_buffer_name_and_storage():
    t = tensor(8, 16, buffer=nl.psum, name="acc")
    for view in (t[0], t.reshape((8, 4, 4)), t.view(nl.uint8), t.ap([[16, 8], [2, 8]]), t.permute((0, 1))):
        assert view.buffer is nl.psum and view.name == "acc" and view.storage is t.storage


# ---- access patterns (spec/tensor.md 6) ---------------------------------------------------------------


def test_indexing_slice_and_ap_agree():
    t = sbuf(128, 64)
    assert layout(t[:, 8:24]) == layout(t.slice(1, 8, 24)) == layout(t.ap([[64, 128], [1, 16]], offset=8))
    h = hbm(6, 4, 8)
    rest = h.get_pattern()[1:]
    for i in range(6):
        assert layout(h.select(0, i)) == layout(h.ap(rest, scalar_offset=i, indirect_dim=0))
    assert layout(h.ap([[8, 4]], scalar_offset=3, indirect_dim=2)) == layout(h.ap([[8, 4]], offset=3))


def test_ap_adds_its_offset_to_the_views_and_forgets_the_rest():
    t = sbuf(128, 64)[32:96, 8:40]
    assert layout(t.ap([[64, 4], [2, 3]], offset=2)) == ((4, 3), (64, 2), 32 * 64 + 10)
    assert layout(t.ap([[64, 4], [2, 3]])) == layout(t.ap([[64, 4], [2, 3]], offset=0))


def test_ap_examples():
    t = sbuf(128, 1024, dtype=nl.float16)
    assert layout(t.ap([(1024, 128), (2, 512)])) == layout(t[:, ::2])
    assert layout(t.ap([[1024, 64], [1, 1024]])) == layout(t[0:64])
    assert t.ap(((1024, 128), (0, 7), (1, 2))).shape == (128, 7, 2)
    assert t.ap([[1024, 128], [1, 2], [1, 2], [1, 2], [1, 2]]).ndim == 5
    assert sbuf(16, 1).ap([[1, 16], [1, 1]]).shape == (16, 1)
    assert hbm(8).ap([[1, 2]] * 6).ndim == 6


def test_ap_with_a_dtype_counts_in_its_units():
    words = sbuf(128, 256, dtype=nl.int32)
    assert words.ap([[512, 128], [1, 512]], dtype=nl.bfloat16).shape == (128, 512)
    assert layout(words[:, 4:8].ap([[512, 128], [1, 8]], offset=1, dtype=nl.bfloat16))[2] == 9
    pairs = sbuf(128, 512, dtype=nl.bfloat16)
    assert layout(pairs[:, 4:8].ap([[256, 128], [1, 2]], dtype=nl.float32))[2] == 2
    refused("alignment", "", lambda: pairs[:, 1:9].ap([[256, 128], [1, 2]], dtype=nl.float32))
    refused("alignment", "", lambda: sbuf(8, 15, dtype=nl.bfloat16).ap([[7, 1], [1, 2]], dtype=nl.float32))


def test_ap_with_one_partition_takes_any_first_step():
    assert sbuf(128, 64).ap([[1, 1], [1, 64]]).shape == (1, 64)
    assert layout(sbuf(128, 64).ap([[0, 1], [1, 64]], offset=64 * 5)) == ((1, 64), (0, 1), 320)


@pytest.mark.parametrize(
    "kind, text, view, pattern, offset",
    [
        ("index", "first step must be 1024", sbuf(128, 1024), [[2048, 64], [1, 1024]], None),
        ("index", "first step must be 64", sbuf(128, 64), [[1, 2], [1, 64]], None),
        ("index", "reaches partition 128 of 128", sbuf(128, 64), [[64, 129], [1, 64]], None),
        ("index", "reaches element 64 of a partition", sbuf(128, 64)[:, 1:], [[64, 128], [1, 64]], None),
        ("index", "reaches element 66", sbuf(128, 64), [[64, 128], [2, 34]], None),
        ("index", "reaches element 24, the tensor has 24", hbm(4, 6), [[6, 4], [1, 6]], 1),
        ("index", "reaches element 30", hbm(4, 6), [[10, 4]], None),
        ("pattern", "step is >= 0", hbm(8), [[-1, 8]], None),
        ("pattern", "count >= 1", hbm(8), [[1, 0]], None),
        ("pattern", "", hbm(8), [[1.0, 2]], None),
        ("pattern", "[step, count] pairs", hbm(8), [1, 2], None),
        ("pattern", "[step, count] pairs", hbm(8), [[1, 2, 3]], None),
        ("pattern", "[step, count] pairs", hbm(8), "x", None),
        ("pattern", "at least 1", hbm(8), [], None),
        ("pattern", "2 to 5", sbuf(8, 8), [[8, 8]], None),
        ("pattern", "2 to 5", sbuf(8, 8), [[8, 8]] + [[1, 1]] * 5, None),
        ("pattern", "offset must be", hbm(8), [[1, 2]], -1),
        ("pattern", "offset must be", hbm(8), [[1, 2]], 1.0),
    ],
)
def test_ap_refuses_patterns_that_leave_the_tensor(kind, text, view, pattern, offset):
    refused(kind, text, lambda: view.ap(pattern, offset=offset))


@pytest.mark.parametrize(
    "offset, text",
    [(12, "reaches element 48 of a partition that holds 48"), (48, "reaches partition 4 of 4")],
)
def test_a_pattern_that_starts_too_far_along_is_refused_when_it_is_used(offset, text):
    @nki.jit
    def every_twelfth(a, used):
        weights, picked = nl.ndarray((4, 48), a.dtype), nl.ndarray((4, 4), a.dtype)
        out = nl.ndarray((4, 4), a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(weights, a)
        for start in (0, 11, offset):
            column = weights.ap([[48, 4], [12, 4]], offset=start)
            if start < 12 and start != offset or used:
                nisa.tensor_copy(picked, column)
        nisa.dma_copy(out, picked)
        return out

    a = np.arange(192, dtype=np.float32).reshape(4, 48)
    np.testing.assert_array_equal(every_twelfth(a, False), a[:, 11::12])
    refused("index", f"tensor_copy: src {text}", lambda: every_twelfth(a, True))


def test_an_index_tile_that_leaves_its_partitions_is_refused_when_it_is_used():
    @nki.jit
    def gather(a, rows):
        out = nl.ndarray((4, 48), a.dtype, buffer=nl.shared_hbm)
        picked, index = nl.ndarray((4, 48), a.dtype), nl.ndarray((4, 1), rows.dtype)
        nisa.dma_copy(index, rows)
        nisa.dma_copy(picked, a.vector_select(0, index.ap([[1, 4], [1, 1]], offset=1)))
        return out

    a, rows = np.zeros((8, 48), np.float32), np.zeros((4, 1), np.int32)
    refused("index", "the index of src reaches partition 4 of 4", lambda: gather(a, rows))


def test_ap_with_a_negative_static_offset_is_refused():
    refused("index", "before the tensor", lambda: hbm(4, 6).ap([[1, 6]], scalar_offset=-1))
    with pytest.raises(IndexError):
        hbm(4, 6).ap([[1, 6]], scalar_offset=4)


def test_ap_takes_one_kind_of_offset():
    index = sbuf(4, 1, dtype=nl.int32)
    refused(
        "indirect-twice",
        "not both",
        lambda: hbm(4, 6).ap([[6, 4], [1, 6]], scalar_offset=1, vector_offset=index),
    )


# ---- run-time indices (spec/tensor.md 4.5, 6.1, 6.2, 7): the rules about making such views -------------


def one(dtype=nl.int32):
    return sbuf(1, 1, dtype=dtype)


def test_a_one_element_tile_indexes_at_run_time():
    t = hbm(4, 128, 8)
    picked = t.select(0, one())
    assert picked.is_indirect() and picked.shape == (128, 8) and picked.strides == (8, 1)
    assert t[one()].shape == (128, 8) and t[0, one(), 2:4].shape == (2,)
    assert t[:, ds(one(), 16)].shape == (4, 16, 8) and t[:, ds(one(), 16)].is_indirect()
    assert sbuf(128, 8, 16)[:, one()].shape == (128, 16) and sbuf(128, 8)[:, one()].shape == (128, 1)
    assert t.ap([[8, 128], [1, 8]], scalar_offset=one(), indirect_dim=0).is_indirect()


def test_select_and_ap_make_the_same_run_time_view():
    t, index = hbm(4, 128, 8), one()
    a, b = t.select(0, index), t.ap([[8, 128], [1, 8]], scalar_offset=index, indirect_dim=0)
    assert layout(a) == layout(b) and a.indirection.scale == b.indirection.scale == 128 * 8 * 4


def test_vector_select_and_ap_make_the_same_run_time_view():
    t, rows = hbm(64, 16, 8), sbuf(32, 1, dtype=nl.uint32)
    a, b = t.vector_select(0, rows), t.ap([[128, 32], [8, 16], [1, 8]], vector_offset=rows)
    assert layout(a) == layout(b) == ((32, 16, 8), (128, 8, 1), 0)
    assert a.indirection.scale == b.indirection.scale == 512 and a.is_indirect()


def test_dimensions_beside_the_indexed_one_can_be_viewed_further():
    rows = hbm(64, 16, 8).vector_select(0, sbuf(32, 1, dtype=nl.int32))
    assert rows[:, 2:4, 1].shape == (32, 2) and rows.permute((0, 2, 1)).shape == (32, 8, 16)
    assert rows.reshape((32, 128)).shape == (32, 128) and rows.expand_dim(1).shape == (32, 1, 16, 8)
    assert rows.flatten_dims(1, 2)[:, 5:9].indirection.dim == 0
    window = hbm(4, 32, 6)[:, ds(one(), 8)]
    assert window.permute((2, 1, 0)).indirection.dim == 1
    assert window.reshape((2, 2, 8, 6)).indirection.dim == 2
    assert window.reshape((4, 8, 2, 3)).indirection.dim == 1
    assert window[0].indirection.dim == 0 and window.expand_dim(0).indirection.dim == 2
    assert hbm(4, 32, 6)[one()].reshape((192,)).shape == (192,)


@pytest.mark.parametrize(
    "action",
    [
        lambda v: v[0],
        lambda v: v[1:3],
        lambda v: v[ds(0, 2)],
        lambda v: v.slice(0, 0, 2),
        lambda v: v.select(0, 1),
        lambda v: v.reshape_dim(0, (2, 16)),
    ],
)
def test_the_indexed_dimension_cannot_be_changed(action):
    rows = hbm(64, 16, 8).vector_select(0, sbuf(32, 1, dtype=nl.int32))
    with pytest.raises(nki.NkiError) as caught:
        action(rows)
    assert caught.value.kind in ("indirect-dim", "partition-dim")
    window = hbm(64, 8)[ds(one(), 32)]
    refused("indirect-dim", "run-time index", lambda: action(window))


@pytest.mark.parametrize(
    "action",
    [
        lambda v: v.permute((1, 0, 2)),
        lambda v: v.broadcast(0, 4),
        lambda v: v.expand_dim(0),
        lambda v: v.squeeze_dim(0),
        lambda v: v.flatten_dims(0, 1),
        lambda v: v.reshape((512,)),
    ],
)
def test_dimension_0_stays_after_vector_select(action):
    rows = hbm(64, 16, 8).vector_select(0, sbuf(4, 1, dtype=nl.int32))
    refused("partition-dim", "", lambda: action(rows))


def test_a_view_takes_one_run_time_index():
    first = hbm(4, 8, 16)[one()]
    rows = sbuf(4, 1, dtype=nl.int32)
    for second in (
        lambda: first[one()],
        lambda: first.select(0, one()),
        lambda: first[ds(one(), 2)],
        lambda: first.vector_select(0, rows),
        lambda: first.ap([[1, 4]], scalar_offset=one()),
        lambda: first.ap([[1, 4]], scalar_offset=2),
        lambda: first.ap([[1, 4], [1, 1]], vector_offset=rows),
        lambda: hbm(4, 8)[one(), one()],
    ):
        refused("indirect-twice", "only one", second)


def test_ap_without_offsets_drops_a_run_time_index_with_a_warning():
    with pytest.warns(nki.NkiWarning, match="dropped"):
        assert not hbm(4, 8)[one()].ap([[1, 4]]).is_indirect()


def test_partitions_cannot_be_indexed_at_run_time():
    for action in (
        lambda: sbuf(8, 16)[one()],
        lambda: sbuf(8, 16)[ds(one(), 2)],
        lambda: sbuf(8, 16).select(0, one()),
        lambda: sbuf(8, 16).ap([[16, 8], [1, 1]], scalar_offset=one()),
    ):
        refused("partition-dynamic", "", action)
    assert sbuf(1, 16).ap([[16, 1], [1, 1]], scalar_offset=one()).is_indirect()


def test_run_time_indices_are_32_bit_integers_in_sbuf():
    refused("dtype", "int32 or uint32, got float32", lambda: hbm(4, 8)[one(nl.float32)])
    refused("dtype", "int32 or uint32, got int16", lambda: hbm(4, 8).select(0, one(nl.int16)))
    refused("buffer", "must be in SBUF", lambda: hbm(4, 8)[tensor(1, 1, dtype=nl.int32, buffer=nl.psum)])
    refused("buffer", "must be in SBUF", lambda: hbm(4, 8)[hbm(1, dtype=nl.int32)])
    refused("argument", "must have one element", lambda: hbm(4, 8)[sbuf(2, 1, dtype=nl.int32)])
    refused("argument", "scalar_offset must be", lambda: hbm(4, 8).ap([[1, 8]], scalar_offset="x"))
    refused("register-value", "slice bound", lambda: hbm(4, 8)[0 : one()])
    refused("indirect-dim", "broadcast", lambda: hbm(1, 8).broadcast(0, 4)[one()])
    refused("index", "nl.ds of 9 elements", lambda: hbm(4, 8)[:, ds(one(), 9)])


def test_vector_select_rules():
    rows = sbuf(4, 1, dtype=nl.int32)
    refused("indirect-dim", "only dimension 0", lambda: hbm(4, 8).vector_select(1, rows))
    refused("buffer", "needs an HBM tensor", lambda: sbuf(4, 8).vector_select(0, rows))
    refused("layout", "largest stride", lambda: hbm(4, 8).permute((1, 0)).vector_select(0, rows))
    refused("layout", "largest stride", lambda: hbm(1, 8).broadcast(0, 4).vector_select(0, rows))
    refused("argument", "tile of indices", lambda: hbm(4, 8).vector_select(0, [1, 2]))
    refused("dtype", "", lambda: hbm(4, 8).vector_select(0, sbuf(4, 1)))
    refused("shape", "8 indices for 4 rows", lambda: hbm(4, 8).vector_select(0, sbuf(4, 2, dtype=nl.int32)))
    refused("shape", "4 indices for 5 rows", lambda: hbm(8, 8).ap([[8, 5], [1, 8]], vector_offset=rows))
    refused("indirect-dim", "", lambda: hbm(8, 8).ap([[8, 4], [1, 8]], vector_offset=rows, indirect_dim=1))
    refused("index", "reaches element 64", lambda: hbm(8, 8).ap([[8, 4], [1, 65]], vector_offset=rows))
    assert hbm(8, 8).ap([[999, 4], [1, 8]], vector_offset=rows).shape == (4, 8)  # the first step is ignored


def test_view_of_another_dtype_is_refused_after_a_run_time_index():
    refused("indirect-view", "", lambda: hbm(4, 8)[one()].view(nl.int32))
    refused("indirect-view", "", lambda: hbm(4, 8)[one()].view(nl.bfloat16))


def test_an_index_is_read_when_the_instruction_runs():
    @nki.jit
    def kernel(table, steps):
        out = nl.ndarray((2, 4), table.dtype, buffer=nl.shared_hbm)
        index = nl.ndarray((1, 1), nl.int32)
        row = table[index]
        for i in range(2):
            nisa.dma_copy(index, steps[i : i + 1])
            nisa.dma_copy(out[i], row)
        return out

    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    out = kernel(table, np.array([3, 1], np.int32))
    np.testing.assert_array_equal(out, table[[3, 1]])


def test_run_time_indices_out_of_range_are_index_errors_unless_skipped():
    @nki.jit
    def kernel(table, index, skip):
        out = nl.ndarray((1, 4), table.dtype, buffer=nl.shared_hbm)
        tile, at = nl.ndarray((1, 4), table.dtype), nl.ndarray((1, 1), nl.int32)
        nisa.memset(tile, 7.0)
        nisa.dma_copy(at, index)
        mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
        nisa.dma_copy(tile, table[at].expand_dim(0), oob_mode=mode)
        nisa.dma_copy(out, tile)
        return out

    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(kernel(table, np.array([4], np.int32), False), table[4:5])
    for bad in (5, -1, 2**31 - 1):
        error = refused(
            "index", f"index {bad}", lambda bad=bad: kernel(table, np.array([bad], np.int32), False)
        )
        assert isinstance(error, IndexError)
        np.testing.assert_array_equal(kernel(table, np.array([bad], np.int32), True), np.full((1, 4), 7.0))


def test_vector_indices_pick_rows():
    @nki.jit
    def kernel(table, ids):
        out = nl.ndarray((4, 6), table.dtype, buffer=nl.shared_hbm)
        tile, rows = nl.ndarray((4, 6), table.dtype), nl.ndarray((4, 1), nl.int32)
        nisa.dma_copy(rows, ids)
        nisa.dma_copy(tile, table.vector_select(0, rows))
        nisa.dma_copy(out, tile)
        return out

    table = np.arange(48, dtype=np.float32).reshape(8, 6)
    ids = np.array([[7], [0], [3], [3]], np.int32)
    np.testing.assert_array_equal(kernel(table, ids), table[ids[:, 0]])
    error = refused("index", "index 8", lambda: kernel(table, np.array([[7], [8], [3], [3]], np.int32)))
    assert any("index:" in note for note in error.notes)


# ---- .indirect (spec/tensor.md 7.5) -------------------------------------------------------------------


def gathered(data, index, group, rows, count):
    """The formula of spec/tensor.md 7.5, element by element."""
    out = np.empty((rows, count), data.dtype)
    for p in range(rows):
        for i in range(count):
            out[p, i] = data[p, index[p // group * group + i % group, i // group]]
    return out


@pytest.mark.parametrize("partitions", [16, 32, 128])
def test_indirect_gathers_columns_in_groups_of_16(partitions):
    rng = np.random.default_rng(partitions)
    data = rng.standard_normal((partitions, 40)).astype(np.float32)
    index = rng.integers(0, 40, (partitions, 3)).astype(np.uint16)

    @nki.jit
    def kernel(data, index):
        out = nl.ndarray((partitions, 37), data.dtype, buffer=nl.shared_hbm)
        tile, at = nl.ndarray(data.shape, data.dtype), nl.ndarray(index.shape, index.dtype)
        picked = nl.ndarray((partitions, 37), data.dtype)
        nisa.dma_copy(tile, data)
        nisa.dma_copy(at, index)
        nisa.tensor_copy(picked, tile.indirect(at, num_elem=37))
        nisa.dma_copy(out, picked)
        return out

    with target("trn3"):
        np.testing.assert_array_equal(kernel(data, index), gathered(data, index, 16, partitions, 37))


def test_indirect_needs_trn3_and_an_index_tile():
    tile, index = sbuf(16, 32), sbuf(16, 2, dtype=nl.uint16)
    with target("trn2"):
        error = refused("generation", "needs trn3", lambda: tile.indirect(index))
        assert isinstance(error, NotImplementedError)
    with target("trn3"):
        assert tile.indirect(index).shape == (16, 32) and tile.indirect(index, 20).shape == (16, 20)
        assert tile.indirect(index).is_indirect()
        refused("buffer", "on chip", lambda: hbm(16, 32).indirect(index))
        refused("buffer", "SBUF tile", lambda: tile.indirect(tensor(16, 2, dtype=nl.int32, buffer=nl.psum)))
        refused("buffer", "SBUF tile", lambda: tile.indirect(3))
        refused("dtype", "16- or 32-bit", lambda: tile.indirect(sbuf(16, 2)))
        refused("shape", "num_elem", lambda: tile.indirect(index, 0))
        refused("shape", "num_elem", lambda: tile.indirect(index, 2.5))
        picked = tile.indirect(index)
        refused("indirect-twice", "", lambda: picked.indirect(index))
        for action in (
            lambda: picked[:, 0:2],
            lambda: picked.reshape((16, 4, 8)),
            lambda: picked.expand_dim(1),
            lambda: picked.reshape_dim(1, (4, 8)),
        ):
            refused("indirect-dim", "", action)


# ---- property: any chain of view methods against numpy strides -----------------------------------

DTYPES = {1: nl.uint8, 2: nl.bfloat16, 4: nl.float32}


def viewed(array, shape):
    """array.reshape(shape, copy=False), which numpy 1.26 does not have."""
    result = array.reshape(shape)
    if not np.may_share_memory(result, array):
        raise ValueError("a copy")
    return result


class Model:
    """A view as the byte addresses of its elements: a strided numpy array with a last axis of bytes.

    Every operation is numpy's own, without copies; ValueError where numpy (or a rule of dim 0) refuses.
    """

    def __init__(self, shape, itemsize, on_chip):
        self.on_chip = on_chip
        flat = np.arange(math.prod(shape) * itemsize)
        self.pitch = flat.size // shape[0] if on_chip else flat.size
        self.bytes = flat.reshape(*shape, itemsize)

    shape = property(lambda self: self.bytes.shape[:-1])
    ndim = property(lambda self: self.bytes.ndim - 1)

    def need(self, condition):
        if not condition:
            raise ValueError

    def result(self, array):
        self.need(array.ndim >= (3 if self.on_chip else 2) and (not self.on_chip or array.ndim <= 6))
        self.bytes = array

    def keep_dim0(self, dim):
        self.need(not (self.on_chip and dim == 0))

    def index(self, key):
        self.need(len(key) <= self.ndim)
        new, dropped = [], []
        for dim, k in enumerate(key):
            size = self.shape[dim]
            if isinstance(k, slice):
                start, stop = k.start + size * (k.start < 0), k.stop + size * (k.stop < 0)
                self.need(0 <= start < stop <= size and (dim > 0 or k.step == 1 or not self.on_chip))
                new.append(slice(start, stop, k.step))
            else:
                self.need(-size <= k < size)
                k %= size
                new.append(slice(k, k + 1))
                dropped += [] if self.on_chip and dim == 0 else [dim]
        least = 2 if self.on_chip else 1
        if self.ndim - len(dropped) < least:
            dropped.pop()
        array = self.bytes[tuple(new)]
        self.bytes = viewed(array, [n for d, n in enumerate(array.shape) if d not in dropped])

    def select(self, dim, index):
        self.keep_dim0(dim)
        self.index([slice(0, n, 1) for n in self.shape[:dim]] + [index])

    def slice(self, dim, start, end, step):
        self.index([slice(0, n, 1) for n in self.shape[:dim]] + [slice(start, end, step)])

    def permute(self, dims):
        self.need(sorted(dims) == list(range(self.ndim)) and (dims[0] == 0 or not self.on_chip))
        self.bytes = self.bytes.transpose(*dims, self.ndim)

    def broadcast(self, dim, size):
        self.keep_dim0(dim)
        self.need(self.shape[dim] == 1)
        self.bytes = np.broadcast_to(self.bytes, (*self.shape[:dim], size, *self.bytes.shape[dim + 1 :]))

    def expand_dim(self, dim):
        self.keep_dim0(dim)
        self.result(np.expand_dims(self.bytes, dim))

    def squeeze_dim(self, dim):
        self.keep_dim0(dim)
        self.need(self.shape[dim] == 1)
        self.result(np.squeeze(self.bytes, dim))

    def reshape(self, shape):
        self.need(not self.on_chip or shape[0] == self.shape[0])
        self.need(math.prod(shape) == math.prod(self.shape))
        self.result(viewed(self.bytes, (*shape, self.bytes.shape[-1])))

    def reshape_dim(self, dim, shape):
        if len(shape) > 1:
            self.keep_dim0(dim)
        self.need(math.prod(shape) == self.shape[dim])
        new = (*self.shape[:dim], *shape, *self.bytes.shape[dim + 1 :])
        self.result(viewed(self.bytes, new))

    def flatten_dims(self, first, last):
        if first != last:
            self.keep_dim0(first)
        merged = math.prod(self.shape[first : last + 1])
        new = (*self.shape[:first], merged, *self.bytes.shape[last + 1 :])
        self.result(viewed(self.bytes, new))

    def view(self, itemsize):
        old = self.bytes.shape[-1]
        if itemsize == old:
            return
        rows = [list(row) for row in self.bytes.reshape(-1, self.shape[-1] * old)]  # a copy: addresses only
        self.need(all(b - a == 1 for row in rows for a, b in zip(row, row[1:], strict=False)))
        self.need(len(rows[0]) % itemsize == 0 and all(row[0] % itemsize == 0 for row in rows))
        self.need(not self.on_chip or self.pitch % itemsize == 0)
        word = self.bytes.itemsize
        shape = (*self.shape[:-1], self.shape[-1] * old // itemsize, itemsize)
        strides = (*self.bytes.strides[:-2], word * itemsize, word)
        self.bytes = np.lib.stride_tricks.as_strided(self.bytes, shape, strides)


def addresses(view):
    """The byte addresses of a view's elements, from its offset and strides."""
    at = np.array(view.offset)
    for size, stride in zip(view.shape, view.strides, strict=True):
        at = at[..., None] + np.arange(size) * stride
    return at[..., None] * view.dtype.itemsize + np.arange(view.dtype.itemsize)


@st.composite
def operations(draw, shape, itemsize):
    """One view method with arguments for a view of this shape; most of them are legal."""
    n = len(shape)
    dim = draw(st.integers(0, n - 1))
    size = shape[dim]
    name = draw(
        st.sampled_from(
            ["index", "slice", "select", "permute", "broadcast", "expand_dim", "squeeze_dim"]
            + ["reshape", "reshape_dim", "flatten_dims", "view"]
        )
    )
    bound = st.integers(-1, size + 1)
    if name == "index":
        key = []
        for length in shape[: draw(st.integers(1, n))]:
            start = draw(st.integers(-length, length - 1))
            if draw(st.booleans()):
                key.append(start)
            else:
                start %= length
                stop = draw(st.integers(start, length + draw(st.sampled_from([0, 0, 0, 1]))))
                key.append(slice(start, stop, draw(st.sampled_from([1, 1, 2, 3]))))
        return name, (key,)
    if name == "slice":
        return name, (dim, draw(bound), draw(bound), draw(st.sampled_from([1, 1, 2, 3])))
    if name == "select":
        return name, (dim, draw(st.integers(-size, size)))
    if name == "permute":
        dims = draw(st.permutations(range(n)))
        return name, ([0, *(d for d in dims if d)] if draw(st.booleans()) else dims,)
    if name == "broadcast":
        return name, (dim, draw(st.integers(1, 4)))
    if name == "expand_dim":
        return name, (draw(st.integers(0, n)),)
    if name == "squeeze_dim":
        return name, (dim,)
    if name == "flatten_dims":
        return name, (dim, draw(st.integers(dim, n - 1)))
    if name == "view":
        return name, (draw(st.sampled_from([1, 2, 4])),)
    if name == "reshape_dim":
        return name, (dim, draw(splits(size)))
    keep = shape[0] if draw(st.booleans()) else 1
    rest = draw(splits(math.prod(shape) // keep))
    return name, ([keep, *rest] if keep != 1 or draw(st.booleans()) else rest,)


@st.composite
def splits(draw, total):
    sizes = []
    while total > 1 and len(sizes) < 3:
        factor = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
        sizes.append(factor)
        total //= factor
    return [*sizes, total]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_chain_of_view_methods_agrees_with_numpy_or_both_refuse(data):
    on_chip = data.draw(st.booleans())
    itemsize = data.draw(st.sampled_from([1, 2, 4]))
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    view = tensor(*shape, dtype=DTYPES[itemsize], buffer=nl.sbuf if on_chip else nl.hbm)
    model = Model(shape, itemsize, on_chip)
    for _ in range(data.draw(st.integers(1, 7))):
        name, args = data.draw(operations(tuple(view.shape), view.dtype.itemsize))
        before = model.bytes
        try:
            getattr(model, name)(*args)
            legal = True
        except ValueError:
            model.bytes, legal = before, False
        ours = (DTYPES[args[0]],) if name == "view" else args
        method = view.__getitem__ if name == "index" else getattr(view, name)
        ours = (tuple(ours[0]),) if name == "index" else ours
        if not legal:
            with contextlib.suppress(nki.NkiError):
                assert 0 in method(*ours).shape  # an empty view may be made, and not be used
            continue
        view = method(*ours)
        np.testing.assert_array_equal(addresses(view), model.bytes, err_msg=f"{name}{args}")
        dense = model.bytes[0] if on_chip else model.bytes
        assert view.is_contiguous() == dense.flags.c_contiguous
        if not on_chip or view.strides[0] == view.row_pitch:
            assert layout(view.ap(view.get_pattern())) == layout(view)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rearrange_agrees_with_numpy(data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    names = list("abcde"[: len(sizes)])
    cut = sorted(data.draw(st.sets(st.integers(1, len(sizes) - 1))))
    groups = [tuple(names[i:j]) for i, j in zip([0, *cut], [*cut, len(names)], strict=True)]
    size = dict(zip(names, sizes, strict=True))
    order = data.draw(st.permutations(names))
    cut = sorted(data.draw(st.sets(st.integers(1, len(sizes) - 1))))
    target_groups = [tuple(order[i:j]) for i, j in zip([0, *cut], [*cut, len(order)], strict=True)]
    grouped = [math.prod(size[a] for a in g) for g in groups]
    view = hbm(*grouped)
    wanted = np.arange(view.size).reshape(sizes).transpose([names.index(a) for a in order])
    shape = [math.prod(size[a] for a in g) for g in target_groups]
    try:
        legal, wanted = True, viewed(wanted, shape)
    except ValueError:
        legal = False
    if not legal:
        refused("layout", "", lambda: view.rearrange(groups, target_groups, size))
        return
    result = view.rearrange(groups, target_groups, size)
    np.testing.assert_array_equal(addresses(result)[..., 0] // 4, wanted)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_an_instruction_sees_the_elements_a_view_names(data):
    rows, columns = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 12))
    p0 = data.draw(st.integers(0, rows - 1))
    p1 = data.draw(st.integers(p0 + 1, rows))
    f0 = data.draw(st.integers(0, columns - 1))
    step = data.draw(st.integers(1, 3))
    values = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    key = (slice(p0, p1), slice(f0, columns, step))

    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        part = tile[key]
        nisa.tensor_copy(part, part)
        out = nl.ndarray(part.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, part)
        nisa.dma_copy(x[key], part)
        nisa.memset(tile, 0.0)
        return out

    before = values.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # start partitions that engines cannot address
        np.testing.assert_array_equal(kernel(values), before[key])
    np.testing.assert_array_equal(values, before)


# ---- registers as indices ------------------------------------------------------------------------

TABLE = np.arange(48, dtype=np.float32).reshape(8, 6)


def picked(make, value, table=TABLE):
    """What a DMA reads through `make(tensor, register)` while the register holds `value`."""

    @nki.jit
    def kernel(x):
        view = make(x, nisa.register_alloc(value))
        assert view.is_indirect()
        out = nl.ndarray(view.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, view)
        return out

    return kernel(table)


@pytest.mark.parametrize(
    "make, wanted",
    [
        (lambda t, r: t[r], lambda i: TABLE[i]),
        (lambda t, r: t.select(0, r), lambda i: TABLE[i]),
        (lambda t, r: t[:, r], lambda i: TABLE[:, i]),
        (lambda t, r: t[ds(r, 3)], lambda i: TABLE[i : i + 3]),
        (lambda t, r: t[1:3, ds(r, 2)], lambda i: TABLE[1:3, i : i + 2]),
        (lambda t, r: t[2, ds(r, 1)], lambda i: TABLE[2, i : i + 1]),
        (lambda t, r: t.ap([[6, 3], [2, 3]], scalar_offset=r), lambda i: TABLE[i : i + 3, ::2]),
        (lambda t, r: t.ap([[1, 1]], scalar_offset=r, indirect_dim=1), lambda i: TABLE[0, i : i + 1]),
        (lambda t, r: t.permute((1, 0))[r], lambda i: TABLE[:, i]),
        (lambda t, r: t[::2][r], lambda i: TABLE[2 * i]),
        (lambda t, r: t[r].reshape((2, 3)).permute((1, 0)), lambda i: TABLE[i].reshape(2, 3).T),
    ],
)
@pytest.mark.parametrize("value", [0, 1, 3])
def test_a_register_indexes_at_run_time(make, wanted, value):
    np.testing.assert_array_equal(picked(make, value), wanted(value))


@pytest.mark.parametrize(
    "make, value",
    [
        (lambda t, r: t[r], 8),
        (lambda t, r: t[r], -1),
        (lambda t, r: t[ds(r, 3)], 6),
        (lambda t, r: t.ap([[6, 3], [2, 3]], scalar_offset=r), 6),
    ],
)
def test_a_register_out_of_range_is_an_index_error(make, value):
    refused("index", f"index {value}", lambda: picked(make, value))


def test_on_chip_free_dimensions_take_registers():
    @nki.jit
    def kernel(x):
        tile, part = nl.ndarray((8, 6), x.dtype), nl.ndarray((8, 2), x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(part, tile[:, ds(nisa.register_alloc(3), 2)])
        nisa.tensor_copy(tile[:, ds(nisa.register_alloc(0), 2)], part)
        nisa.dma_copy(x, tile)

    x, wanted = TABLE.copy(), TABLE.copy()
    wanted[:, 0:2] = TABLE[:, 3:5]
    kernel(x)
    np.testing.assert_array_equal(x, wanted)


def test_registers_where_only_compile_time_numbers_go():
    @nki.jit
    def kernel(x):
        register = nisa.register_alloc(2)
        refused("register-value", "nl.ds(register, size)", lambda: x[0:register])
        refused("register-value", "nl.ds(register, size)", lambda: x[register:])
        refused("partition-dynamic", "", lambda: nl.ndarray((8, 6), x.dtype)[register])
        refused("partition-dynamic", "", lambda: nl.ndarray((8, 6), x.dtype)[ds(register, 2)])
        refused("indirect-twice", "", lambda: x[register, register])
        for action in (
            lambda: x.slice(0, 0, register),
            lambda: x.broadcast(0, register),
            lambda: x.reshape((register, 6)),
            lambda: x.expand_dim(register),
            lambda: x.ap([[register, 2]]),
            lambda: x.ap([[1, 2]], offset=register),
            lambda: ds(0, register),
        ):
            with pytest.raises((TypeError, ValueError)):
                action()

    kernel(TABLE)
