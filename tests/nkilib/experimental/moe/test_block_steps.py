"""Steps of block-sharded experts: which blocks a core has, biases, and what down is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_support import close, random, run

import nki
import nki.language as nl
from nkilib.core.utils.allocator import SbufManager
from nkilib.experimental.moe.moe_cte import bwmm_shard_on_block_v2 as v2

HI_LO, PING_PONG = v2.BlockShardStrategy.HI_LO, v2.BlockShardStrategy.PING_PONG


def blocks_of(core: int, strategy: Any, count: int) -> list[int]:
    """The blocks of one of two cores, by the definition of a strategy."""
    if strategy == HI_LO:
        half = (count + 1) // 2
        return list(range(count))[core * half : (core + 1) * half]
    return [n for n in range(count) if n % 2 == core]


@pytest.mark.parametrize("strategy", [HI_LO, PING_PONG])
@pytest.mark.parametrize("core", [0, 1])
def test_iterations_visit_the_blocks_of_a_core(strategy, core):
    first = v2.shard_strat2new_blk_idx_offset(core, strategy, 6)
    visited = [
        first + v2.shard_strat2blk_idx(strategy, outer, inner) for outer in range(3) for inner in (0, 1)
    ]
    assert visited == blocks_of(core, strategy, 12)


@nki.jit
def same_weights(owners: Any, shards: int, shard: int, strategy: Any) -> Any:
    mask = v2.compute_same_weights_block_parallel_hbm(owners.size, owners, shards, shard, strategy)
    out = nl.ndarray(mask.shape, mask.dtype, buffer=nl.shared_hbm)
    nki.isa.dma_copy(out, mask)
    return out


@pytest.mark.parametrize("count", [1, 2, 7, 130])
@pytest.mark.parametrize("strategy", [HI_LO, PING_PONG])
@pytest.mark.parametrize("core", [0, 1])
def test_the_mask_has_ones_where_weights_can_stay(strategy, core, count):
    owners = np.random.default_rng(count).integers(0, 3, (count, 1)).astype(np.int32)
    own = owners[blocks_of(core, strategy, count), 0]
    if len(own) == 0:
        with pytest.raises(AssertionError, match="N: got 1, expected at least a block for core 1"):
            run(same_weights, owners, 2, core, strategy)
        return
    got = run(same_weights, owners, 2, core, strategy)
    wanted = [0, *(int(own[i] == own[i - 1]) for i in range(1, len(own)))]
    np.testing.assert_array_equal(got[:, 0], wanted)


@nki.jit
def biases(gate_up: Any, down: Any, expert: Any, hidden: int, inner: int, columns: int, dtype: Any) -> tuple:
    """All three biases of an expert, as they are loaded."""
    inps, dims, cfg = v2.InputTensors(gate_up, down), v2.DimensionSizes(hidden, inner), v2.Configs(dtype)
    e = nl.load(expert)
    tiles = v2.load_and_transpose_gup_bias(inps, dims, cfg, e, None)
    both = nl.ndarray((len(tiles) * 128, 2), dtype, buffer=nl.shared_hbm)
    for k in range(len(tiles)):
        nl.store(both[128 * k : 128 * (k + 1)], tiles[k])
    wide = nl.ndarray((128, hidden), dtype, buffer=nl.shared_hbm)
    nl.store(wide, v2.load_and_broadcast_down_bias(inps, dims, cfg, e, None, use_pe_broadcast=True))
    raw = nl.ndarray((1, columns), dtype, buffer=nl.shared_hbm)
    nl.store(raw, v2.load_down_bias_raw(inps, dims, cfg, e, None, bias_h_size=columns))
    return both, wide, raw


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("expert", [0, 2])
@pytest.mark.parametrize(("hidden", "inner"), [(512, 48), (640, 128), (130, 300)])
def test_biases_of_an_expert_are_loaded(hidden, inner, expert, dtype):
    gate_up = random((3, 2, inner), dtype)
    down = random((3, 1, hidden) if inner == 48 else (3, hidden), dtype, seed=1)
    which = np.array([[expert]], np.int32)
    both, wide, raw = run(biases, gate_up, down, which, hidden, inner, hidden - 3, getattr(nl, dtype))
    np.testing.assert_array_equal(both[:inner], gate_up[expert].T)
    assert not np.asarray(both[inner:], np.float32).any()
    np.testing.assert_array_equal(wide, np.broadcast_to(down[expert].reshape(1, hidden), (128, hidden)))
    np.testing.assert_array_equal(raw, down[expert].reshape(1, hidden)[:, :-3])


@nki.jit
def down_from_hbm(middle: Any, weights: Any, expert: Any, bias: Any, first: int) -> Any:
    """Down whose weights are loaded there, into tiles of the caller, with a raw bias."""
    inner, tokens = middle.shape
    hidden = weights.shape[2]
    out = nl.ndarray((tokens, hidden), nl.float32, buffer=nl.shared_hbm)
    part = nl.ndarray((128, tokens), nl.float32, buffer=nl.sbuf)
    nki.isa.memset(part, 0.0)
    nki.isa.dma_copy(part[0:inner], middle)
    given = [nl.ndarray((128, hidden), nl.float32, buffer=nl.sbuf)]
    rows = v2.compute_block_output(
        [part], None, None, None, None, 0, hidden, inner, 1, nl.float32, False,
        down_bias_raw=nl.load(bias), down_proj_weight_hbm=weights, block_expert=nl.load(expert),
        block_new_lst_pre=given, i_tp_offset=first,
    )  # fmt: skip
    nl.store(out, given[0])
    assert rows[0] is given[0]
    return out


@pytest.mark.parametrize(("inner", "first"), [(96, 0), (40, 16), (33, 7)])
def test_down_loads_its_rows_of_the_weights(inner, first):
    middle, weights = random((inner, 128), "float32"), random((2, 112, 520), "float32", seed=1)
    bias = random((1, 520), "float32", seed=2)
    got = run(down_from_hbm, middle, weights, np.array([[1]], np.int32), bias, first)
    close(got, middle.T.astype(np.float64) @ weights[1, first : first + inner] + bias, terms=inner)


@nki.jit
def steps_with_given_tiles(
    weights: Any, expert: Any, output: Any, ids: Any, middle: Any, scale: Any, bias: Any
) -> tuple:
    """Weights into the caller's tiles, rows of slot 1, and down with a scale and part of a bias."""
    hidden = weights.shape[2]
    e, which = nl.load(expert), nl.load(ids)
    given = [nl.ndarray((128, hidden), nl.float32, buffer=nl.sbuf)]
    tiles = v2.load_down_proj_weight(weights, e, nl.float32, load_dst=given)
    assert tiles[0] is given[0]
    old = v2.bwmm_load_old_block(output, which, 1, nl.float32, shard_id=1, token_indices_offset=1)
    part = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nki.isa.memset(part, 0.0)
    nki.isa.dma_copy(part[0 : middle.shape[0]], middle)
    rows = v2.compute_block_output(
        [part], tiles, None, None, None, 0, hidden, middle.shape[0], 1, nl.float32, False,
        down_bias_broadcasted=nl.load(bias), down_scale=nl.load(scale),
        down_bias_h_offset=5, down_bias_h_size=7,
    )  # fmt: skip
    results = []
    for tile in (old[0], rows[0]):
        out = nl.ndarray(tile.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        results.append(out)
    kept = nl.ndarray((130, 2, hidden + 2), nl.float32, buffer=nl.shared_hbm)
    nki.isa.dma_copy(kept, output)
    v2.bwmm_output_initialization(
        kept, 0, None, scale.reshape((scale.size, 1)), 2, hidden, skip_zero_init=True
    )
    return results[0], results[1], kept


def test_steps_take_tiles_slots_and_scales_of_the_caller():
    hidden, inner = 130, 48
    weights, middle = random((2, inner, hidden), "float32"), random((inner, 128), "float32", seed=1)
    output = random((130, 2, hidden + 2), "float32", seed=2)
    ids = np.random.default_rng(0).integers(0, 130, (128, 2)).astype(np.int32)
    scale = np.tile(np.abs(random((1, hidden), "float32", seed=3)), (128, 1))
    bias = np.tile(random((1, 9), "float32", seed=4), (128, 1))
    old, rows, kept = run(
        steps_with_given_tiles, weights, np.array([[1]], np.int32), output, ids, middle, scale, bias
    )
    np.testing.assert_array_equal(old, output[ids[:, 1], 1])
    wanted = (middle.T.astype(np.float64) @ weights[1]) * scale
    wanted[:, 5:12] += bias[:, :7]
    close(rows, wanted, terms=inner)
    np.testing.assert_array_equal(kept[:, :, :hidden], output[:, :, :hidden])
    np.testing.assert_array_equal(kept[:, 0, hidden:], scale.reshape(-1, 2)[:130])
    np.testing.assert_array_equal(kept[:, 1], output[:, 1])


def test_a_manager_that_places_tiles_is_refused():
    manual = SbufManager(0, 1024)
    with pytest.raises(AssertionError, match="sbm: got manual allocation"):
        v2.load_down_bias_raw(None, None, None, None, None, sbm=manual)
