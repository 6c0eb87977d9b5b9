"""Blockwise experts against a dense formulation: every expert on every token, in float64 with torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

import nki.language as nl
from nki.check import lint
from nkilib.core.moe.moe_cte.bwmm_shard_on_block import bwmm_shard_on_block
from nkilib.core.moe.moe_cte.bwmm_shard_on_I import (
    blockwise_mm_baseline_shard_intermediate,
    blockwise_mm_baseline_shard_intermediate_hybrid,
    blockwise_mm_shard_intermediate_dropping,
)
from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    QuantizationConfig,
    ShardOnBlockConfig,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
    moe_cte_ref,
)
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import NotBuilt

Kind = MoECTEImplementation
SPEC = MoECTESpec(Kind.shard_on_block)
KEEP = MoECTESpec(Kind.shard_on_i, shard_on_I=ShardOnIConfig(checkpoint_activation=True))
EXACT = {"compute_dtype": nl.float32}
WITHOUT_MX = [kind for kind in Kind if not kind.name.endswith(("mx", "mx_hybrid"))]


@dataclass
class Layer:
    """Tokens, affinities and weights; which token goes to which expert is `chosen` [T, E]."""

    hidden: np.ndarray
    affinities: np.ndarray
    gate_up: np.ndarray
    down: np.ndarray
    chosen: np.ndarray
    block: int
    skip: bool

    @property
    def tensors(self) -> list[np.ndarray]:
        return [self.hidden, self.affinities, self.gate_up, self.down]

    def blocks(self, spare: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Ids and experts: each expert's tokens fill blocks; `spare` blocks of padding follow."""
        tokens, experts = self.chosen.shape
        rows, owners = [], []
        for e in range(experts):
            mine = np.repeat(np.arange(tokens), self.chosen[:, e])
            count = -(-len(mine) // self.block)
            row = np.full(count * self.block, -1 if self.skip else tokens)
            row[: len(mine)] = mine
            rows.append(row)
            owners += [e] * count
        rows.append(np.full(spare * self.block, -1 if self.skip else tokens))
        return np.concatenate(rows).astype(np.int32), np.array([*owners, *[0] * spare], np.int32)[:, None]

    def dense(self, mlp: Any, scaled: bool = True) -> np.ndarray:
        """sum over experts of chosen * affinity * mlp(e, tokens), and a row of zeros for padding."""
        tokens, experts = self.chosen.shape
        x = torch.tensor(self.hidden[:tokens].astype(np.float64))
        w = torch.tensor(self.affinities.astype(np.float64)).reshape(-1, experts)[:tokens]
        w = w if scaled else torch.ones_like(w)
        factor = torch.tensor(self.chosen) * w
        out = sum(factor[:, e : e + 1] * mlp(e, x) for e in range(experts))
        return np.pad(out.numpy(), [(0, len(self.hidden) - tokens), (0, 0)])

    def plain(self, e: int, x: torch.Tensor) -> torch.Tensor:
        wg, wu = torch.tensor(self.gate_up[e].astype(np.float64)).unbind(1)
        return (torch.nn.functional.silu(x @ wg) * (x @ wu)) @ torch.tensor(self.down[e].astype(np.float64))


def layer(
    chosen: Any, dtype: Any = "float32", h: int = 512, i: int = 48, block: int = 256, skip=False
) -> Layer:
    chosen = np.asarray(chosen)
    tokens, experts = chosen.shape
    rows = tokens if skip else tokens + 1
    return Layer(
        random((rows, h), dtype),
        np.abs(random((rows * experts, 1), dtype, seed=1)),
        random((experts, h, 2, i), dtype, seed=2, scale=h**-0.5),
        random((experts, i, h), dtype, seed=3, scale=i**-0.5),
        chosen,
        block,
        skip,
    )


def routed(tokens: int = 200, experts: int = 3, k: int = 2, seed: int = 0) -> np.ndarray:
    """k experts for each token."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros((tokens, experts), int)
    for t in range(tokens):
        chosen[t, rng.permutation(experts)[:k]] = 1
    return chosen


def launch(w: Layer, spec: MoECTESpec = SPEC, lnc: int = 1, spare: int = 0, **options: Any) -> Any:
    ids, owners = w.blocks(spare)
    skip = SkipMode(skip_token=w.skip)
    return run(moe_cte, *w.tensors, ids, owners, w.block, spec, skip_dma=skip, lnc=lnc, **options)


def near(got: Any, reference: np.ndarray, part: float) -> None:
    """Within a part of the largest reference, as spec/library/moe.md says."""
    assert np.abs(np.asarray(got, np.float64) - reference).max() <= part * np.abs(reference).max()


@each_lnc
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tokens_are_the_weighted_sum_of_their_experts(lnc, dtype):
    w = layer(routed(), dtype)
    close(launch(w, lnc=lnc, **EXACT), w.dense(w.plain), terms=512)


@each_lnc
@pytest.mark.parametrize("kind", WITHOUT_MX)
def test_all_implementations_give_one_result(lnc, kind):
    w = layer(routed(), "bfloat16")
    ids, owners = w.blocks(spare=2)
    conditions = np.r_[np.ones(len(owners) - 2), 0, 0, 0].astype(np.int32)
    got = launch(w, MoECTESpec(kind), lnc=lnc, spare=2, conditions=conditions)
    np.testing.assert_array_equal(got, launch(w, lnc=lnc))


@each_lnc
def test_callers_who_configure_block_sharding_get_a_slice_for_each_core(lnc):
    w = layer(routed(), "bfloat16")
    got = launch(w, MoECTESpec(Kind.shard_on_block, shard_on_block=ShardOnBlockConfig()), lnc=lnc)
    assert got.shape == ((201, 512) if lnc == 1 else (201, 2, 512))
    np.testing.assert_array_equal(got if lnc == 1 else got[:, 0] + got[:, 1], launch(w, lnc=lnc))


@each_lnc
def test_padding_without_a_row_of_its_own_is_skipped(lnc):
    w = layer(routed(), skip=True)
    close(launch(w, lnc=lnc, **EXACT), w.dense(w.plain), terms=512)


def test_float32_tensors_are_multiplied_in_compute_dtype():
    w = layer(routed())
    near(launch(w), w.dense(w.plain), 2e-2)


@pytest.mark.parametrize("i, spare, skip", [(128, 0, False), (48, 1, True)])
def test_two_cores_alternate_blocks_if_tokens_are_in_many_blocks(i, spare, skip):
    w = layer(routed(300, 8, 4), i=i, skip=skip)
    got = launch(w, lnc=2, spare=spare, **EXACT)
    close(got, w.dense(w.plain), terms=512)
    slices = launch(w, MoECTESpec(Kind.shard_on_block, ShardOnBlockConfig()), lnc=2, spare=spare, **EXACT)
    close(slices[:, 0], w.dense(w.plain), terms=512)
    assert not slices[:, 1].any()


def test_cores_that_alternate_blocks_store_checkpoints():
    w = layer(routed(300, 8, 4), i=128)
    found = launch(w, KEEP, lnc=2, **EXACT)
    for got, wanted in zip(found, launch(w, KEEP, lnc=1, **EXACT), strict=True):
        close(got, wanted, terms=512)


# ---- options -------------------------------------------------------------------------------------


@each_lnc
def test_biases_and_limits(lnc):
    w = layer(routed(), i=144)
    bgu, bd = random((3, 2, 144), seed=5), random((3, 512), seed=6)
    limits = {"gate_clamp_upper_limit": 0.7, "up_clamp_upper_limit": 0.8, "up_clamp_lower_limit": -0.5}

    def mlp(e, x):
        g, u = torch.einsum("th,hgi->gti", x, torch.tensor(w.gate_up[e].astype(np.float64))) + torch.tensor(
            bgu[e, :, None]
        )
        m = torch.nn.functional.silu(g.clamp(max=0.7)) * u.clamp(-0.5, 0.8)
        return m @ torch.tensor(w.down[e].astype(np.float64)) + torch.tensor(bd[e])

    options = {"gate_and_up_proj_bias": bgu, "down_proj_bias": bd, **limits, **EXACT}
    close(launch(w, lnc=lnc, **options), w.dense(mlp), terms=512)


FUNCTIONS = {
    ActFnType.SiLU: torch.nn.functional.silu,
    ActFnType.GELU: torch.nn.functional.gelu,
    ActFnType.GELU_Tanh_Approx: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ActFnType.Swish: lambda x: x * torch.sigmoid(1.702 * x),
    ActFnType.ReLU: torch.relu,
    ActFnType.SquaredReLU: lambda x: torch.relu(x) ** 2,
}


@pytest.mark.parametrize("act_fn", FUNCTIONS)
@pytest.mark.parametrize("skip_gate", [False, True])
def test_activation_functions_with_and_without_a_gate(act_fn, skip_gate):
    w = layer(routed(60), h=512, i=32)

    def mlp(e, x):
        g, u = torch.einsum("th,hgi->gti", x, torch.tensor(w.gate_up[e].astype(np.float64)))
        m = FUNCTIONS[act_fn](u) if skip_gate else FUNCTIONS[act_fn](g) * u
        return m @ torch.tensor(w.down[e].astype(np.float64))

    got = launch(w, activation_function=act_fn, skip_gate_proj=skip_gate, **EXACT)
    close(got, w.dense(mlp), terms=10**3)


@each_lnc
@pytest.mark.parametrize("mode", ExpertAffinityScaleMode)
def test_affinities_scale_the_result_the_tokens_or_nothing(lnc, mode):
    w = layer(routed())
    post = mode == ExpertAffinityScaleMode.POST_SCALE
    before = mode.name.startswith("PRE")

    def mlp(e, x):
        aff = torch.tensor(w.affinities.astype(np.float64)).reshape(-1, 3)[:200, e : e + 1]
        return w.plain(e, x * aff if before else x)

    got = launch(w, expert_affinities_scaling_mode=mode, lnc=lnc, **EXACT)
    close(got, w.dense(mlp, scaled=post), terms=512)


def test_without_accumulation_the_last_block_of_a_token_wins():
    w = layer(routed(100, 2, 2))
    got = launch(w, is_tensor_update_accumulating=False, **EXACT)
    w.chosen = np.tile([0, 1], (100, 1))
    close(got, w.dense(w.plain), terms=512)


@each_lnc
@pytest.mark.parametrize("one_for_all", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_fp8_weights_with_scales(lnc, one_for_all, static):
    w = layer(routed(), "bfloat16")
    count = 1 if one_for_all else 3
    sgu = np.abs(random((count, 1, 1 if static else 96), seed=7)) + 0.5
    sd = np.abs(random((count, 1, 1 if static else 512), seed=8)) + 0.5
    w.gate_up, w.down = (x.astype(ml_dtypes.float8_e4m3) for x in (w.gate_up, w.down))

    def mlp(e, x):
        a, b = (s.astype(np.float64)[e % count].ravel() for s in (sgu, sd))
        wgu = w.gate_up[e].astype(np.float64) * np.broadcast_to(a, 96).reshape(2, 48)
        g, u = torch.einsum("th,hgi->gti", x, torch.tensor(wgu))
        return (torch.nn.functional.silu(g) * u) @ torch.tensor(w.down[e].astype(np.float64) * b)

    got = launch(w, gate_up_proj_scale=sgu, down_proj_scale=sd, lnc=lnc)
    near(got, w.dense(mlp), 2e-2)
    config = QuantizationConfig(gate_up_proj_scale=sgu, down_proj_scale=sd)
    np.testing.assert_array_equal(launch(w, quantization_config=config, lnc=lnc), got)


@each_lnc
@pytest.mark.parametrize("skip", [False, True])
def test_checkpoints_hold_what_goes_into_the_activation_and_what_down_gives(lnc, skip):
    w = layer(routed(), skip=skip)
    ids, owners = w.blocks()
    bias = random((3, 2, 48), seed=5)
    options = {"gate_and_up_proj_bias": bias, "gate_clamp_upper_limit": 0.5}
    out, gate_up, down = launch(w, KEEP, lnc=lnc, **options, **EXACT)
    wanted = moe_cte_ref(
        *w.tensors, ids, owners, w.block, gate_up_bias=bias, gate_limits=(0.5, None), skip_token=skip
    )
    for got, reference in zip((out, gate_up, down), wanted, strict=True):
        rows = slice(None) if skip or got.ndim > 2 else slice(0, 200)
        close(got[rows], reference[rows], terms=512)


def test_with_affinities_on_i_there_is_no_checkpoint_of_down():
    w = layer(routed())
    config = ShardOnIConfig(checkpoint_activation=True, expert_affinity_multiply_on_I=True)
    out, gate_up = launch(w, MoECTESpec(Kind.shard_on_i, shard_on_I=config), **EXACT)
    close(out, w.dense(w.plain), terms=512)
    assert gate_up.shape == (len(w.blocks()[1]), 2, 48, 256)


def test_checkpoints_go_to_the_callers_tensors():
    w = layer(routed())
    blocks = len(w.blocks()[1])
    mine = np.zeros((blocks, 2, 48, 256), np.float32), np.zeros((blocks, 256, 512), np.float32)
    got = launch(w, KEEP, gate_up_activations_T=mine[0], down_activations=mine[1], **EXACT)
    for a, b in zip(got[1:], launch(w, KEEP, **EXACT)[1:], strict=True):
        np.testing.assert_array_equal(a, b)


# ---- routing as users meet it --------------------------------------------------------------------


@each_lnc
def test_all_tokens_go_to_one_expert(lnc):
    chosen = np.zeros((300, 4), int)
    chosen[:, 2] = 1
    w = layer(chosen)
    close(launch(w, lnc=lnc, **EXACT), w.dense(w.plain), terms=512)


def test_experts_without_tokens_and_blocks_of_padding_change_nothing():
    chosen = np.zeros((130, 4), int)
    chosen[:, [0, 3]] = 1
    w = layer(chosen)
    close(launch(w, spare=3, **EXACT), w.dense(w.plain), terms=512)


@each_lnc
@pytest.mark.parametrize("skip", [False, True])
def test_a_token_that_is_repeated_in_a_block_counts_each_time(lnc, skip):
    chosen = routed(90, 2, 2)
    chosen[7, 0], chosen[40, 1] = 3, 2
    w = layer(chosen, skip=skip)
    close(launch(w, lnc=lnc, **EXACT), w.dense(w.plain), terms=512)


@pytest.mark.parametrize("block", [512, 1024])
def test_a_block_of_any_documented_size(block):
    w = layer(routed(700, 2, 1), block=block, i=16)
    close(launch(w, lnc=2, **EXACT), w.dense(w.plain), terms=512)


@each_lnc
@pytest.mark.parametrize("kind", [Kind.shard_on_block, Kind.shard_on_i_hybrid])
@pytest.mark.parametrize("fixed", [0, 1, 99])
def test_blocks_from_the_first_condition_that_is_zero_are_left_out(lnc, kind, fixed):
    w = layer(routed(200, 4, 2))
    blocks = len(w.blocks()[1])
    conditions = np.ones(blocks + 1, np.int32)
    conditions[2:] = [0, 1, 0]
    spec = MoECTESpec(kind, shard_on_I=ShardOnIConfig(num_static_block=fixed))
    got = launch(w, spec, lnc=lnc, conditions=conditions, **EXACT)
    w.chosen[:, 2:] = 0
    close(got, w.dense(w.plain), terms=512)


@each_lnc
def test_blocks_of_experts_beyond_the_last_are_left_out(lnc):
    w = layer(routed(200, 3, 2))
    ids, owners = w.blocks()
    owners[1] = 3
    got = run(moe_cte, *w.tensors, ids, owners, w.block, SPEC, lnc=lnc, **EXACT)
    w.chosen[:, 1] = 0
    close(got, w.dense(w.plain), terms=512)


@pytest.mark.parametrize("wrong", [-1, 201, 10**6])
@pytest.mark.parametrize("skip", [False, True])
def test_an_id_that_is_no_tokens_fails_before_anything_is_written(wrong, skip):
    if skip and wrong == -1:
        wrong = -2
    w = layer(routed(), skip=skip)
    ids, owners = w.blocks()
    ids[-w.block] = wrong
    checkpoints = np.full((len(owners), 2, 48, 256), 5.0, np.float32)
    options = {"gate_up_activations_T": checkpoints, "skip_dma": SkipMode(skip_token=skip)}
    with pytest.raises(IndexError, match="affinities|index"):
        run(moe_cte, *w.tensors, ids, owners, w.block, KEEP, **options)
    assert (checkpoints == 5.0).all()


# ---- entry points, refusals ----------------------------------------------------------------------


@each_lnc
def test_entry_points_are_the_same_engine(lnc):
    w = layer(routed(), "bfloat16")
    ids, owners = w.blocks()
    arguments = (*w.tensors, w.block, ids, owners)
    conditions = np.r_[np.ones(len(owners)), 0].astype(np.int32)
    wanted = launch(w, lnc=lnc)
    dealt = run(bwmm_shard_on_block, *arguments, lnc=lnc)
    assert dealt.shape == ((201, 512) if lnc == 1 else (201, 2, 512))
    for got in (
        dealt if lnc == 1 else dealt[:, 0] + dealt[:, 1],
        run(blockwise_mm_baseline_shard_intermediate, *arguments, lnc=lnc),
        run(blockwise_mm_baseline_shard_intermediate_hybrid, conditions, *arguments, lnc=lnc),
        run(blockwise_mm_shard_intermediate_dropping, *arguments, lnc=lnc)[0],
    ):
        np.testing.assert_array_equal(got, wanted)


def test_fp8_activations_raise_by_name():
    w = layer(routed())
    with pytest.raises(NotBuilt, match="gate_up_in_scale"):
        launch(w, gate_up_in_scale=np.ones((1, 1), np.float32))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block_size": 128}, "block_size: got 128, allowed are multiples of 256 from 256 to 1024"),
        ({"hidden_states": np.zeros((201, 500), np.float32)}, r"hidden_states: got shape \(201, 500\)"),
        ({"block_to_expert": np.zeros((9, 1), np.int32)}, "token_position_to_id: got 768 elements"),
        ({"token_position_to_id": np.zeros(768, np.uint32)}, "token_position_to_id: got uint32"),
        ({"expert_affinities_masked": np.zeros((5, 1), np.float32)}, "expert_affinities_masked: got 5"),
        ({"conditions": np.ones(2, np.int32)}, r"conditions: got 2 elements, expected N \+ 1 = 4"),
        ({"down_proj_bias": np.zeros((3, 1), np.float32)}, r"down_proj_bias: got shape \(3, 1\)"),
        ({"gate_up_proj_scale": np.ones((1, 1, 96), np.float32)}, "gate_up_proj_scale, down_proj_scale"),
        ({"accumulation_dtype": nl.bfloat16}, "accumulation_dtype: got"),
        ({"spec": MoECTESpec(Kind.shard_on_i_hybrid)}, "conditions: got None, needed by"),
    ],
)
def test_wrong_arguments_raise_by_name(change, message):
    w = layer(routed())
    ids, owners = w.blocks()
    names = ("hidden_states", "expert_affinities_masked", "gate_up_proj_weight", "down_proj_weight")
    arguments = dict(zip(names, w.tensors, strict=True))
    arguments |= {"token_position_to_id": ids, "block_to_expert": owners, "block_size": 256, "spec": SPEC}
    with pytest.raises(AssertionError, match=message):
        run(moe_cte, **{**arguments, **change})


def test_the_compiler_takes_it_and_the_example_is_right():
    compiles_and_example_runs(moe_cte)
    for kernel in (bwmm_shard_on_block, blockwise_mm_baseline_shard_intermediate_hybrid):
        assert lint(kernel) == []
