from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_segmented_cte import (
    attention_segmented_cte,
    attention_segmented_cte_ref,
    ceil_nisa_kernel,
    floor_nisa_kernel,
    load_kv_cache,
)

bfloat16, fp8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3


def operands(
    heads: int,
    kv_heads: int,
    queries: int,
    prior: int,
    d: int,
    block: int = 32,
    sequences: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """Random operands; every sequence has its own blocks, in no order."""
    dtype, cache = more.pop("dtype", bfloat16), more.pop("cache", None)
    blocks = (prior + queries) // block
    total = sequences * blocks + 2
    tables = np.random.default_rng(prior).permutation(total)[: sequences * blocks].reshape(sequences, blocks)
    return dict(
        q=random((sequences * heads, queries, d), dtype, 1, d**-0.25),
        k_cache=random((total, kv_heads, block, d), cache or dtype, 2, d**-0.25),
        v_cache=random((total, kv_heads, block, d), cache or dtype, 3),
        block_tables=tables.astype(np.int32),
        prior_tokens=np.array([[prior]], np.int32),
        block_size=block,
        prior_seg_size=4 * block,
        num_q_heads=heads,
        **more,
    )


def check(arguments: dict[str, Any], lnc: int = 1, tolerance: float = 1.5e-2) -> np.ndarray:
    expected = attention_segmented_cte_ref(**arguments).astype(np.float64)
    got = run(attention_segmented_cte, lnc=lnc, **arguments)
    assert got.dtype == arguments["q"].dtype and got.shape == expected.shape
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=tolerance)
    return got


@each_lnc
@pytest.mark.parametrize("prior", [0, 96, 512])
def test_new_tokens_see_the_prefix_and_themselves(prior, lnc):
    check(operands(4, 1, 128, prior, 64, scale=0.5), lnc)


@each_lnc
def test_sequences_have_blocks_of_their_own(lnc):
    check(operands(2, 2, 64, 128, 32, block=16, sequences=3), lnc)


@pytest.mark.parametrize("table", [[-1, -1, 3, 1, 4, 0], [3, 1, 4, 0, -1, -1], [3, -1, 1, 4, -1, 0]])
def test_entries_of_minus_one_are_skipped_at_any_position(table):
    arguments = operands(2, 1, 64, 64, 64)
    arguments["block_tables"] = np.array([table], np.int32)
    check(arguments)


@each_lnc
def test_a_window_and_sinks(lnc):
    check(operands(4, 2, 128, 256, 64, sliding_window=70, sink=random((4, 1), "float32", 5)), lnc)


@pytest.mark.parametrize("tp_q, tp_out", [(False, False), (True, True), (False, True)])
def test_queries_and_results_may_be_transposed(tp_q, tp_out):
    arguments = operands(2, 1, 128, 64, 64, tp_q=tp_q, tp_out=tp_out)
    if not tp_q:
        arguments["q"] = np.ascontiguousarray(arguments["q"].swapaxes(1, 2))
    check(arguments)


@pytest.mark.parametrize(
    "queries, prior, block", [(96, 48, 16), (200, 40, 8), (130, 26, 13), (128, 384, 128)]
)
def test_ragged_sizes(queries, prior, block):
    check(operands(2, 1, queries, prior, 48, block=block))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes(dtype):
    check(operands(2, 1, 128, 64, 64, dtype=dtype), tolerance={"float32": 2e-5, "float16": 5e-3}[dtype])


@each_lnc
def test_keys_may_lie_transposed_in_their_blocks(lnc):
    arguments = operands(4, 2, 128, 96, 64, k_pre_transposed=True)
    arguments["k_cache"] = np.ascontiguousarray(arguments["k_cache"].swapaxes(2, 3)).reshape(-1, 64, 32)
    check(arguments, lnc)


@pytest.mark.parametrize("heads_inside", [False, True])
def test_packed_fp8_keys_have_two_tokens_side_by_side(heads_inside):
    arguments = operands(4, 2, 64, 64, 64, cache=fp8, fp8_packed=True)
    k = arguments["k_cache"]
    packed = k.reshape(len(k), 2, 16, 2, 64).transpose(0, 1, 2, 4, 3)
    if heads_inside:
        packed = packed.transpose(0, 2, 1, 3, 4).reshape(len(k), 16, 128, 2)
    arguments["k_cache"] = np.ascontiguousarray(packed)
    check(arguments, tolerance=5e-2)


@pytest.mark.parametrize("dtype", [bfloat16, "float32"])
def test_fp8_caches_with_scales(dtype):
    scales = [np.abs(random((128, 1), "float32", seed)) + 0.5 for seed in (7, 8)]
    check(
        operands(2, 1, 128, 64, 64, dtype=dtype, cache=fp8, k_scale=scales[0], v_scale=scales[1]),
        tolerance=5e-2,
    )


def test_long_sequences_are_joined_from_sections(monkeypatch):
    monkeypatch.setattr("nkilib.core.attention.attention_units.SECTION_KEYS", 512)
    check(operands(2, 1, 128, 1024, 64))


def merged(parts: list) -> np.ndarray:
    """What ranks with a part of the keys have, joined by the online softmax."""
    outs, maxima, sums = (np.stack([np.asarray(p[i], np.float64) for p in parts]) for i in range(3))
    rows = [x.transpose(0, 1, 3, 2).reshape(*x.shape[:2], -1)[..., None] for x in (maxima, sums)]
    weights = np.exp(rows[0] - rows[0].max(0))
    return (outs * weights).sum(0) / (rows[1] * weights).sum(0)


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("window", [None, 100])
def test_ranks_with_a_part_of_the_keys_can_be_merged(in_turn, window):
    arguments = operands(2, 1, 128, 128, 64, dtype="float32", sliding_window=window)
    expected = attention_segmented_cte_ref(**arguments)
    table, parts = arguments["block_tables"], []
    for rank in range(2):
        part = dict(
            arguments, block_tables=table[:, rank::2] if in_turn else table[:, 4 * rank : 4 * rank + 4]
        )
        offset = 128 if in_turn else 128 - rank * 128
        part["kvp_q_offset"] = np.array([[offset]], np.int32)
        if in_turn:
            part |= dict(kvp_group_size=2, kvp_rank_id=np.array([[rank]], np.int32))
        parts.append(attention_segmented_cte(**part))
    np.testing.assert_allclose(merged(parts), expected, atol=2e-5)


@nki.jit
def whole_numbers(x):
    tile = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    out = nl.ndarray((2, x.shape[0], x.shape[1]), nl.int32, buffer=nl.shared_hbm)
    for i in range(2):
        result = nl.ndarray(x.shape, nl.int32, buffer=nl.sbuf)
        (floor_nisa_kernel if i == 0 else ceil_nisa_kernel)(tile, result, x.shape[0], x.shape[1], None)
        nisa.dma_copy(out[i], result)
    return out


def test_floor_and_ceiling_of_negative_numbers_too():
    x = np.array([[-2.5, -2.0, -0.5, -0.1, 0.0, 0.4, 0.5, 0.6, 1.0, 1.5, 2.5, 7.99]], np.float32)
    below, above = whole_numbers(x)
    np.testing.assert_array_equal(below, np.floor(x))
    np.testing.assert_array_equal(above, np.ceil(x))


@nki.jit
def loaded(k_cache, v_cache, tables, offset, count):
    block, d = v_cache.shape[2], v_cache.shape[3]
    k = nl.ndarray((d, count * block), k_cache.dtype, buffer=nl.sbuf)
    v = nl.ndarray((count, block, d), v_cache.dtype, buffer=nl.sbuf)
    nisa.memset(v, 0.0)
    start = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(start, offset)
    load_kv_cache(k_cache, v_cache, tables, k, v, 1, 1, start, count, None)
    k_out = nl.ndarray(k.shape, k.dtype, buffer=nl.shared_hbm)
    v_out = nl.ndarray(v.shape, v.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(k_out, k)
    nisa.dma_copy(v_out, v)
    return k_out, v_out


def test_blocks_are_loaded_from_a_place_of_the_table_known_at_run_time():
    k, v = random((9, 2, 8, 32), "float32", 1), random((9, 2, 8, 32), "float32", 2)
    tables = np.array([[0, 1, 2, 3, 4], [5, 8, -1, 2, 7]], np.int32)
    keys, values = loaded(k, v, tables, np.array([[1]], np.int32), 3)
    wanted = [np.concatenate([x[8, 1], np.zeros((8, 32)), x[2, 1]]) for x in (k, v)]
    np.testing.assert_array_equal(keys, wanted[0].T)
    np.testing.assert_array_equal(values.reshape(24, 32), wanted[1])


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(prior_seg_size=100), "prior_seg_size: got 100"),
        (dict(num_q_heads=3), "num_q_heads: got 3"),
        (dict(block_tables=np.zeros((2, 4), np.int32)), "block_tables: got shape"),
        (dict(k_scale=np.ones((64, 1), np.float32)), "k_scale: got shape"),
        (dict(k_pre_transposed=True), "k_cache: got shape"),
        (dict(kvp_group_size=2), "kvp_group_size: got 2"),
        (dict(sliding_window=-1), "sliding_window: got -1"),
        (dict(scale=0.0), "scale: got 0.0"),
    ],
)
def test_wrong_arguments_raise(change, message):
    with pytest.raises(AssertionError, match=message):
        attention_segmented_cte(**(operands(2, 1, 64, 64, 64) | change))


def test_the_compiler_would_take_it_and_the_example_runs():
    compiles_and_example_runs(attention_segmented_cte)
