"""Sorting, packing, counting and summing of routed tokens: exact, whatever the sizes."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

import nki
import nki.language as nl
from nkilib.experimental.subkernels.argsort_unstable import argsort_unstable
from nkilib.experimental.subkernels.build_all_to_all_v_metadata import (
    build_all_to_all_v_metadata,
    build_all_to_all_v_metadata_ref,
)
from nkilib.experimental.subkernels.permute_routed_tokens import (
    permute_routed_tokens,
    permute_routed_tokens_ref,
)
from nkilib.experimental.subkernels.topk_reduce import topk_reduce, topk_reduce_ref

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3)


@pytest.mark.tiny
@pytest.mark.parametrize(
    "kernel", [argsort_unstable, build_all_to_all_v_metadata, permute_routed_tokens, topk_reduce]
)
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


# ---- argsort_unstable ----------------------------------------------------------------------------


def passes_of_eight(row, descending):
    """Emulate max8 and nc_match_replace8 step by step."""
    left = {i: np.float32(v) for i, v in enumerate(row)}
    order = []
    while left:
        best = sorted(left.values(), reverse=True)[:8]
        slots = []
        for value in reversed(best):
            slots.insert(0, next(i for i in sorted(left) if left[i] == value))
            del left[slots[0]]
        order += slots
    return np.array([order if descending else order[::-1]], np.uint32)


@each_lnc
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 8, 13, 64, 200, 520])
def test_equal_elements_are_ordered_as_the_instructions_order_them(size, descending, lnc):
    data = np.random.default_rng(size).integers(-3, 6, (1, size)).astype(np.int32)
    got = run(argsort_unstable, data, descending, lnc=lnc)
    assert got.dtype == np.uint32
    np.testing.assert_array_equal(got, passes_of_eight(data[0], descending))


def test_floats_sort_like_integers():
    data = random((1, 128))
    np.testing.assert_array_equal(run(argsort_unstable, data), np.argsort(data[0])[None])


@each_lnc
def test_nan_is_the_largest_and_zeros_are_equal(lnc):
    data = random((1, 90))
    data[0, [3, 40, 77]], data[0, [5, 6]], data[0, [7, 8, 9]] = np.nan, [np.inf, -np.inf], [-0.0, 0.0, 1e-40]
    data.view(np.uint32)[0, 40] |= 1 << 31  # a negative NaN
    order = run(argsort_unstable, data, lnc=lnc)[0]
    assert sorted(order) == list(range(90))
    np.testing.assert_array_equal(data[0, order], np.sort(data[0]))
    np.testing.assert_array_equal(
        run(argsort_unstable, np.where(data == 0, 0.0, data).astype("f4"))[0], order
    )
    np.testing.assert_array_equal(run(argsort_unstable, data, True, lnc=lnc)[0], order[::-1])


@pytest.mark.parametrize("size", [64, 600])
def test_all_int32_sort_exactly(size):
    near = np.arange(size) + 2**24 - size // 2
    far = np.random.default_rng(0).integers(-(2**31), 2**31, size)
    ends = [2**31 - 1, -(2**31), 2**31 - 2, 1 - 2**31, 65535, 65536, -65536, -65537]
    for values in (near, -near, np.r_[far, ends]):
        shuffled = np.random.default_rng(1).permutation(values).astype(np.int32)
        order = run(argsort_unstable, shuffled[None])[0]
        np.testing.assert_array_equal(shuffled[order], np.sort(shuffled))


@nki.jit
def sorted_in_sbuf(data):
    tile = nl.ndarray(data.shape, data.dtype, buffer=nl.sbuf)
    nki.isa.dma_copy(tile, data)
    index = argsort_unstable(tile, output_in_sbuf=True)
    assert index.buffer == nl.sbuf
    result = nl.ndarray(index.shape, index.dtype, buffer=nl.shared_hbm)
    nki.isa.dma_copy(result, index)
    return result


@pytest.mark.parametrize("size", [40, 600])
def test_data_and_result_may_stay_in_sbuf(size):
    data = np.random.default_rng(1).integers(0, 9, (1, size)).astype(np.int32)
    np.testing.assert_array_equal(run(sorted_in_sbuf, data), passes_of_eight(data[0], False))


def test_argsort_refuses_what_is_not_a_row():
    with pytest.raises(AssertionError, match="data: got shape"):
        run(argsort_unstable, np.zeros((2, 8), np.int32))
    with pytest.raises(AssertionError, match="data: got .*float16"):
        run(argsort_unstable, np.zeros((1, 8), np.float16))


# ---- build_all_to_all_v_metadata -----------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("tokens, k, ranks, experts", [(4, 8, 4, 128), (128, 1, 8, 8), (150, 4, 2, 32)])
def test_metadata_counts_what_every_rank_gets(tokens, k, ranks, experts, lnc):
    index = np.random.default_rng(0).integers(0, experts, (tokens, k)).astype(np.int32)
    got = run(build_all_to_all_v_metadata, index, ranks, experts, lnc=lnc)
    counts = np.bincount(index.ravel() * ranks // experts, minlength=ranks)
    wanted = np.array([counts, [counts[:r].sum() for r in range(ranks)], 0 * counts])
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(got, build_all_to_all_v_metadata_ref(index, ranks, experts))
    assert got.dtype == np.uint32


@pytest.mark.parametrize("option", ["recv_counts_known", "has_rdispls"])
def test_metadata_raises_on_unsupported_options(option):
    with pytest.raises(AssertionError, match=option):
        run(build_all_to_all_v_metadata, np.zeros((2, 2), np.int32), 2, 4, **{option: True})


@pytest.mark.parametrize("expert", [-1, 4, 2**30])
def test_metadata_raises_on_an_expert_that_no_rank_has(expert):
    with pytest.raises(IndexError):
        run(build_all_to_all_v_metadata, np.array([[0, 3], [expert, 3]], np.int32), 2, 4)


# ---- permute_routed_tokens -----------------------------------------------------------------------


def routed(tokens, k, columns, experts, dtype=BF16):
    index = np.random.default_rng(7).integers(0, experts, (tokens, k)).astype(np.int32)
    return random((tokens, columns), dtype), index, random((tokens, experts), BF16, 2)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


@each_lnc
@pytest.mark.parametrize(
    "tokens, k, columns, experts, dtype",
    [
        (16, 8, 96, 32, BF16),
        (5, 2, 33, 8, BF16),
        (128, 1, 64, 256, BF16),
        (32, 4, 68, 64, FP8),
        (300, 3, 16, 9, BF16),
    ],
)
def test_rows_are_sorted_by_expert_bit_for_bit(tokens, k, columns, experts, dtype, lnc):
    hidden, index, affinities = routed(tokens, k, columns, experts, dtype)
    got = run(permute_routed_tokens, hidden, index, affinities, lnc=lnc)
    order = passes_of_eight(index.ravel(), False)[0]
    token, expert = order // k, index.ravel()[order]
    assert got.shape == (tokens * k, columns + (6 if dtype == FP8 else 3))
    assert (np.diff(expert) >= 0).all()
    np.testing.assert_array_equal(bits(got)[:, : columns * dtype.itemsize], bits(hidden[token]))
    tail = bits(got)[:, columns * dtype.itemsize :]
    np.testing.assert_array_equal(tail[:, :2], bits(affinities[token, expert][:, None]))
    np.testing.assert_array_equal(tail[:, 2:], bits(token.astype(np.int32)[:, None]))
    np.testing.assert_array_equal(bits(got), bits(permute_routed_tokens_ref(hidden, index, affinities)))


@each_lnc
def test_all_tokens_may_choose_one_expert(lnc):
    hidden, index, affinities = routed(140, 2, 8, 4)
    index[:] = 3
    got = run(permute_routed_tokens, hidden, index, affinities, lnc=lnc)
    np.testing.assert_array_equal(bits(got), bits(permute_routed_tokens_ref(hidden, index, affinities)))


def test_an_expert_that_does_not_exist_is_an_error():
    hidden, index, affinities = routed(8, 2, 8, 4)
    index[3, 1] = 4
    with pytest.raises(IndexError):
        run(permute_routed_tokens, hidden, index, affinities)


# ---- topk_reduce ---------------------------------------------------------------------------------


def packed(tokens, k, rows, width, dtype=BF16, base=1, missing=0.2):
    """Return rows in random order, with some tokens absent and padding in between."""
    rng = np.random.default_rng(tokens)
    data = random((rows, width + 2), dtype)
    ids = np.full(rows, -1, np.int32)
    used = rng.permutation(rows)[: tokens * k]
    wanted = np.repeat(np.arange(tokens), k) + base
    ids[used] = np.where(rng.random(tokens * k) < missing, -1, wanted)[: len(used)]
    data[:, width:] = ids.reshape(-1, 1).view(dtype)
    return data


@each_lnc
@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize(
    "tokens, k, rows, width, dtype",
    [
        (32, 4, 128, 96, BF16),
        (5, 2, 10, 512, np.dtype("float16")),
        (128, 8, 1024, 64, BF16),
        (257, 2, 700, 4, BF16),
    ],
)
def test_rows_of_a_token_are_summed(tokens, k, rows, width, dtype, base, lnc):
    data = packed(tokens, k, rows, width, dtype, base)
    got = run(topk_reduce, data, tokens, k, base, lnc=lnc)
    close(got, topk_reduce_ref(data, tokens, k, base), dtype)


@each_lnc
@pytest.mark.parametrize("tokens", [40, 200])
def test_padding_rows_may_hold_anything(tokens, lnc):
    data = packed(tokens, 2, 3 * tokens, 8)
    padding = np.ascontiguousarray(data[:, 8:]).view(np.int32).ravel() == -1
    data[padding, :8] = np.nan
    close(run(topk_reduce, data, tokens, 2, lnc=lnc), topk_reduce_ref(data, tokens, 2))


@each_lnc
def test_tokens_come_back_from_the_packed_rows(lnc):
    hidden, index, affinities = routed(60, 4, 32, 8)
    rows = run(permute_routed_tokens, hidden, index, affinities, lnc=lnc)
    sent = np.concatenate([rows[:, :32], rows[:, 33:]], axis=1)
    close(run(topk_reduce, sent, 60, 4, 0, lnc=lnc), 4 * hidden.astype(np.float64), BF16)
