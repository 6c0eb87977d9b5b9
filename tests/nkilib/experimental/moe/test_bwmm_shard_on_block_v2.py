"""Block-sharded experts and their steps against numpy in float64, block by block."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

import nki
import nki.language as nl
from nki.check import lint
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.experimental.moe.moe_cte import bwmm_shard_on_block_v2 as v2

HIDDEN, INNER, EXPERTS, TOKENS, BLOCK = 512, 48, 3, 201, 128
HI_LO, PING_PONG = v2.BlockShardStrategy.HI_LO, v2.BlockShardStrategy.PING_PONG
OWNERS = np.array([0, 2, 1, 1, 2], np.int32)
EXACT = {"compute_dtype": nl.float32}


def layer(dtype: Any = "float32", skip: bool = False) -> tuple:
    """Tokens, affinities and weights, the size of a block, ids and experts of five blocks."""
    rows = TOKENS + (not skip)
    rng = np.random.default_rng(4)
    ids = np.stack([rng.permutation(TOKENS)[:BLOCK] for _ in OWNERS]).astype(np.int32)
    ids[:, 111:] = -1 if skip else TOKENS
    return (
        random((rows, HIDDEN), dtype),
        np.abs(random(((TOKENS + 1) * EXPERTS, 1), dtype, seed=1)),
        random((EXPERTS, HIDDEN, 2, INNER), dtype, seed=2, scale=HIDDEN**-0.5),
        random((EXPERTS, INNER, HIDDEN), dtype, seed=3, scale=INNER**-0.5),
        BLOCK,
        ids.ravel(),
        OWNERS[:, None],
    )


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def mlp(given: tuple, n: int, act: Any = silu, bias: Any = (0.0, 0.0), limit: float = np.inf) -> np.ndarray:
    """The expert of block n on all its positions, before its affinity."""
    hidden, _, gate_up, down, block, ids, owners = given
    x = hidden.astype(np.float64)[ids[n * block : (n + 1) * block]]
    e = owners[n, 0]
    gu = np.einsum("th,hgi->tgi", x, gate_up[e].astype(np.float64))
    gu = np.minimum(gu + (bias[0][e] if np.ndim(bias[0]) else 0.0), limit)
    down_bias = bias[1][e] if np.ndim(bias[1]) else 0.0
    return (act(gu[:, 0]) * gu[:, 1]) @ down[e].astype(np.float64) + down_bias


def wanted(given: tuple, blocks: Any = range(5), scaled: bool = True, **options: Any) -> np.ndarray:
    """The sum over some blocks, [T, H]."""
    affinities, ids = given[1].astype(np.float64).reshape(-1, EXPERTS), given[5].reshape(-1, BLOCK)
    out = np.zeros((TOKENS, HIDDEN))
    for n in blocks:
        real = np.flatnonzero((ids[n] >= 0) & (ids[n] < TOKENS))
        token = ids[n][real]
        factor = affinities[token, OWNERS[n]][:, None] if scaled else 1.0
        np.add.at(out, token, mlp(given, n, **options)[real] * factor)
    return out


def check_result(got: Any, given: tuple, reference: np.ndarray) -> None:
    """The sum in the first slot, zeros in the second, affinities behind both."""
    got = np.asarray(got)
    assert got.shape == (len(given[0]), 2, HIDDEN + EXPERTS)
    close(got[:TOKENS, 0, :HIDDEN], reference, terms=HIDDEN)
    assert not got[:, 1, :HIDDEN].any()
    affinities = given[1].reshape(-1, EXPERTS)[: len(got)]
    np.testing.assert_array_equal(got[:, 0, HIDDEN:], affinities)
    np.testing.assert_array_equal(got[:, 1, HIDDEN:], affinities)


@each_lnc
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_result_has_sums_and_affinities(lnc, dtype, skip):
    given = layer(dtype, skip)
    options = {
        "skip_dma": v2.SkipMode(skip_token=skip),
        "non_overlapping_shards": skip,
        "n_block_per_iter": 2,
    }
    check_result(run(v2.bwmm_shard_on_block, *given, lnc=lnc, **options, **EXACT), given, wanted(given))


@pytest.mark.parametrize("strategy", [PING_PONG, HI_LO])
def test_two_cores_take_blocks_in_turn_where_tokens_stand_in_many(strategy):
    given = layer()
    twice = (*given[:5], np.tile(given[5], 2), np.tile(given[6], (2, 1)))
    options = {"block_sharding_strategy": strategy, "num_static_block": 9, "total_n_blocks": 10}
    got = run(v2.bwmm_shard_on_block, *twice, lnc=2, **options, **EXACT)
    check_result(got, given, 2 * wanted(given) - wanted(given, [4]))


@each_lnc
def test_without_accumulation_the_last_block_of_a_token_stays(lnc):
    given = layer()
    got = run(v2.bwmm_shard_on_block, *given, lnc=lnc, is_tensor_update_accumulating=False, **EXACT)
    reference = np.zeros((TOKENS + 1, HIDDEN))
    for n in range(5):
        alone = wanted(given, [n])
        token = given[5].reshape(-1, BLOCK)[n]
        reference[token[token < TOKENS]] = alone[token[token < TOKENS]]
    close(got, reference, terms=HIDDEN)


@each_lnc
@pytest.mark.parametrize(
    "strategy, count, total, blocks",
    [
        (PING_PONG, 3, None, [[0, 1, 2], [0, 1, 2]]),
        (PING_PONG, 2, 5, [[0, 1], [0, 1]]),
        (HI_LO, 3, None, [[0, 1, 2], [0, 1, 2]]),
        (HI_LO, 3, 5, [[0, 1, 2], [0, 1, 3]]),
        (HI_LO, 2, 4, [[0, 1], [0, 2]]),
    ],
)
def test_only_the_static_blocks_are_processed(lnc, strategy, count, total, blocks):
    given = layer()
    options = {"block_sharding_strategy": strategy, "num_static_block": count, "total_n_blocks": total}
    got = run(v2.bwmm_shard_on_block, *given, lnc=lnc, **options, **EXACT)
    check_result(got, given, wanted(given, blocks[lnc - 1]))


@each_lnc
@pytest.mark.parametrize("strategy", [PING_PONG, HI_LO])
@pytest.mark.parametrize("active", [1, 2, 5])
def test_the_hybrid_ends_with_the_conditions_of_the_cores(lnc, strategy, active):
    given = layer()
    steps = -(-5 // lnc)
    conditions = np.r_[np.arange(steps) < active, 0].astype(np.int32)
    got = run(
        v2.bwmm_shard_on_block_hybrid, conditions, *given, lnc=lnc, block_sharding_strategy=strategy, **EXACT
    )
    number = {n: n if lnc == 1 else n // 2 if strategy == PING_PONG else n % 3 for n in range(5)}
    check_result(got, given, wanted(given, [n for n in number if number[n] < active]))


@each_lnc
@pytest.mark.parametrize("hybrid", [False, True])
def test_biases_limits_activation_and_scaling(lnc, hybrid):
    given = layer()
    bias = random((EXPERTS, 2, INNER), "float32", seed=5), random((EXPERTS, 1, HIDDEN), "float32", seed=6)
    kernel = v2.bwmm_shard_on_block_hybrid if hybrid else v2.bwmm_shard_on_block
    conditions = [np.r_[np.ones(-(-5 // lnc)), 0].astype(np.int32)] if hybrid else []
    got = run(
        kernel,
        *conditions,
        *given,
        *bias,
        lnc=lnc,
        activation_function=ActFnType.Swish,
        expert_affinities_scaling_mode=ExpertAffinityScaleMode.NO_SCALE,
        gate_clamp_upper_limit=0.5,
        up_clamp_upper_limit=0.5,
        **EXACT,
    )

    def swish(x):
        return x / (1 + np.exp(-1.702 * x))

    check_result(got, given, wanted(given, scaled=False, act=swish, bias=bias, limit=0.5))


@each_lnc
@pytest.mark.parametrize("own", [False, True])
def test_a_rank_adds_its_columns_of_the_bias_alone(lnc, own):
    given = layer()
    bias = random((EXPERTS, 1, HIDDEN), "float32", seed=6)
    part = np.zeros_like(bias)
    part[..., 384:] = bias[..., 384:]
    options = {"down_bias_tp_degree": 4, "down_bias_tp_rank": 3}
    options["down_proj_bias"] = np.ascontiguousarray(bias[..., 384:]) if own else bias
    got = run(v2.bwmm_shard_on_block, *given, lnc=lnc, **options, **EXACT)
    check_result(got, given, wanted(given, bias=(0.0, part)))


@each_lnc
@pytest.mark.parametrize("hybrid", [False, True])
def test_results_of_the_experts_are_stored(lnc, hybrid):
    given = layer()
    kept = np.zeros((5, BLOCK, HIDDEN), np.float32)
    kernel = v2.bwmm_shard_on_block_hybrid if hybrid else v2.bwmm_shard_on_block
    conditions = [np.r_[np.ones(-(-5 // lnc)), 0].astype(np.int32)] if hybrid else []
    options = {"down_activations": kept, "block_sharding_strategy": HI_LO}
    check_result(run(kernel, *conditions, *given, lnc=lnc, **options, **EXACT), given, wanted(given))
    close(kept, np.stack([mlp(given, n) for n in range(5)]), terms=HIDDEN)


@each_lnc
def test_fp8_weights_with_scales(lnc):
    given = list(layer("bfloat16"))
    scales = [np.abs(random((EXPERTS, 1, n), "float32", seed=7)) + 0.5 for n in (2 * INNER, HIDDEN)]
    given[2], given[3] = (w.astype(ml_dtypes.float8_e4m3) for w in given[2:4])
    got = run(v2.bwmm_shard_on_block, *given, None, None, *scales, lnc=lnc)
    exact = list(given)
    exact[2] = given[2].astype(np.float64) * scales[0].reshape(EXPERTS, 1, 2, INNER)
    exact[3] = given[3].astype(np.float64) * scales[1]
    reference = wanted(tuple(exact))
    assert (
        np.abs(np.asarray(got, np.float64)[:TOKENS, 0, :HIDDEN] - reference).max()
        <= 0.02 * np.abs(reference).max()
    )


# ---- steps ---------------------------------------------------------------------------------------


@nki.jit
def one_block(
    middle: Any,
    weights: Any,
    gate_up: Any,
    expert: Any,
    affinity: Any,
    old: Any,
    ids: Any,
    bias: Any,
    table: Any,
) -> tuple:
    """Down of two tiles of tokens by the steps alone, added to old rows; then slot 1 to slot 0."""
    tokens, hidden = middle.shape[1], weights.shape[2]
    result = nl.ndarray((tokens, hidden), nl.float32, buffer=nl.shared_hbm)
    kept = nl.ndarray((1, tokens, hidden), nl.float32, buffer=nl.shared_hbm)
    first_tile = nl.ndarray((128, *gate_up.shape[2:]), nl.float32, buffer=nl.shared_hbm)
    slots = nl.ndarray((old.shape[0], 2, hidden + 3), nl.float32, buffer=nl.shared_hbm)
    e = nl.load(expert)
    which = nl.load(ids)
    bias_tile = nl.load(bias)
    wd = v2.load_down_proj_weight(weights, e, nl.float32)
    wgu = v2.load_gate_up_proj_weights(gate_up, e, nl.float32)
    nl.store(first_tile, wgu[0])
    parts, factors = [], []
    for k in range(len(wd)):
        part = nl.ndarray((128, tokens), nl.float32, buffer=nl.sbuf)
        nki.isa.memset(part, 0.0)
        rows = min(128, middle.shape[0] - 128 * k)
        nki.isa.dma_copy(part[0:rows], middle[128 * k : 128 * k + rows])
        parts.append(part)
    for t in range(2):
        factors.append(nl.load(affinity[128 * t : 128 * (t + 1)]))
    before = v2.bwmm_load_old_block(old, which, 2, nl.float32, v2.SkipMode(skip_token=True))
    rows = v2.compute_block_output(
        parts, wd, factors, before, kept, 0, hidden, middle.shape[0], 2, nl.float32, True, bias_tile,
        down_bias_h_offset=128,
    )  # fmt: skip
    for t in range(2):
        nl.store(result[128 * t : 128 * (t + 1)], rows[t])
    for slot in range(2):
        v2.bwmm_output_initialization(slots, slot, None, table, 3, hidden)
        nki.isa.dma_copy(slots[0:256, slot, 0:hidden], result)
    v2.reduce_outputs(slots, 2, 100, 50, hidden)
    return result, kept, first_tile, slots


def test_the_steps_compute_a_block():
    tokens, hidden, inner = 256, 640, 144
    middle, weights = random((inner, tokens), "float32"), random((2, inner, hidden), "float32", seed=1)
    gate_up, affinity = random((2, 200, 2, 16), "float32", seed=2), random((tokens, 1), "float32", seed=3)
    old, bias = random((300, hidden), "float32", seed=4), random((128, 64), "float32", seed=5)
    table = random((301 * 3, 1), "float32", seed=6)
    bias[:] = bias[0]
    ids = np.random.default_rng(0).integers(0, 300, (128, 2)).astype(np.int32)
    ids[5, 1] = -1
    expert = np.array([[1]], np.int32)
    got, kept, first, slots = run(
        one_block, middle, weights, gate_up, expert, affinity, old, ids, bias, table
    )
    down = middle.T.astype(np.float64) @ weights[1]
    down[:, 128:192] += bias[0]
    before = old.astype(np.float64)[ids.T.ravel()]
    before[128 + 5] = 0
    close(kept[0], down, terms=inner)
    close(got, before + down * affinity, terms=inner)
    np.testing.assert_array_equal(first, gate_up[1, :128])
    expected = np.zeros((300, 2, hidden))
    expected[:256] = np.asarray(got)[:, None]
    expected[50:250, 0] *= 2
    np.testing.assert_array_equal(slots[..., :hidden], expected)
    np.testing.assert_array_equal(slots[:, 1, hidden:], table.reshape(-1, 3)[:300])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_static_block": 6}, "num_static_block, total_n_blocks: got 6, 6, expected at most N = 5"),
        ({"num_static_block": 3, "total_n_blocks": 2}, "num_static_block, total_n_blocks: got 3, 2"),
        ({"down_bias_tp_degree": 2}, "down_bias_tp_degree, down_bias_tp_rank: got 2, None"),
        ({"down_bias_tp_degree": 2, "down_bias_tp_rank": 2}, "down_bias_tp_rank: got 2, 2"),
        ({"block_sharding_strategy": 1}, "block_sharding_strategy: got 1"),
        ({"down_activations": np.zeros((5, 128, 256), np.float32)}, "down_activations: got shape"),
        ({"down_proj_bias": np.zeros((3, 1, 64), np.float32)}, "down_proj_bias: got shape"),
        ({"block_size": 100}, "block_size: got 100, allowed are multiples of 128"),
    ],
)
def test_wrong_arguments_raise_by_name(change, message):
    names = ("hidden_states", "expert_affinities_masked", "gate_up_proj_weight", "down_proj_weight")
    names += ("block_size", "token_position_to_id", "block_to_expert")
    with pytest.raises(AssertionError, match=message):
        run(v2.bwmm_shard_on_block, **{**dict(zip(names, layer(), strict=True)), **change})


def test_conditions_have_one_for_each_core_and_an_end():
    with pytest.raises(AssertionError, match=r"conditions: got 6 elements, expected ceil\(N / 2\) \+ 1 = 4"):
        run(v2.bwmm_shard_on_block_hybrid, np.ones(6, np.int32), *layer(), lnc=2)


def test_the_compiler_takes_it_and_the_example_is_right():
    compiles_and_example_runs(v2.bwmm_shard_on_block)
    assert lint(v2.bwmm_shard_on_block_hybrid) == []
