"""Blockwise experts with MX weights against float64 on numbers that the OCP emulation quantises."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import each_lnc, invalid, random, run
from mx_experts import Experts, agree
from mx_weights import by_blocks

from nkilib.core.moe.moe_cte.bwmm_shard_on_block_mx import bwmm_shard_on_block_mx
from nkilib.core.moe.moe_cte.bwmm_shard_on_I_mx import (
    blockwise_mm_shard_intermediate_mx,
    blockwise_mm_shard_intermediate_mx_hybrid,
)
from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation as Kind,
)
from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTESpec,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
)
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode

BF16 = ml_dtypes.bfloat16
MX = [kind for kind in Kind if kind.name.endswith(("mx", "mx_hybrid"))]
TOKENS, B = 300, 256


class Layer:
    """300 tokens in blocks of 256 for three experts; expert 1 has two blocks, the last one half empty."""

    def __init__(self, h=512, inner=160, form="float4_e2m1fn", skip_token=False):
        rng = np.random.default_rng(0)
        self.experts = Experts(TOKENS + (not skip_token), h, inner, 3, 1, form)
        self.x, self.skip_token = self.experts.x, skip_token
        pad = -1 if skip_token else TOKENS
        blocks = [rng.permutation(TOKENS)[:B], rng.permutation(TOKENS)[:B], rng.permutation(TOKENS)[: B // 2]]
        blocks.append(rng.permutation(TOKENS)[:100])
        self.numbers = np.array([[1], [0], [1], [2]], np.int32)
        self.ids = [np.r_[ids, np.full(B - len(ids), pad)].astype(np.int32) for ids in blocks]
        self.affinities = rng.uniform(0.2, 1, (len(self.x), 3)).astype(np.float32)

    def arguments(self, kind, **options):
        w = self.experts.weights
        config = ShardOnIConfig(num_static_block=2) if kind == Kind.shard_on_i_mx_hybrid else None
        return {
            "hidden_states": self.x,
            "expert_affinities_masked": self.affinities.reshape(-1, 1),
            "gate_up_proj_weight": w["expert_gate_up_weights"],
            "down_proj_weight": w["expert_down_weights"],
            "gate_up_proj_scale": w["expert_gate_up_weights_scale"],
            "down_proj_scale": w["expert_down_weights_scale"],
            "token_position_to_id": np.concatenate(self.ids),
            "block_to_expert": self.numbers,
            "block_size": B,
            "spec": MoECTESpec(kind, shard_on_I=config),
            "conditions": np.array([1, 1, 1, 1, 0], np.int32),
            "skip_dma": SkipMode(skip_token=self.skip_token),
            **options,
        }

    def expected(self, blocks=4, before=False, **options):
        out = np.zeros((TOKENS, self.x.shape[1]))
        for ids, e in zip(self.ids[:blocks], self.numbers[:blocks, 0], strict=True):
            real = ids[(ids >= 0) & (ids < TOKENS)]
            w = self.affinities[real][:, [e]].astype(np.float64)
            x = np.asarray(self.x, np.float64)[real]
            x = (x * w).astype(BF16) if before else x
            np.add.at(out, real, self.experts.expert(e, x, **options) * (1 if before else w))
        return out


@each_lnc
@pytest.mark.parametrize("kind", MX)
def test_every_implementation_gives_the_sum_over_blocks(lnc, kind):
    layer = Layer()
    got = run(moe_cte, lnc=lnc, on="trn3", **layer.arguments(kind))
    agree(got[:TOKENS], layer.expected())


@each_lnc
@pytest.mark.parametrize("form, inner", [("float8_e4m3fn", 544), ("float8_e5m2", 72), ("float4_e2m1fn", 180)])
def test_mxfp8_and_ragged_intermediate_sizes(lnc, form, inner):
    layer = Layer(inner=inner, form=form, skip_token=True)
    got = run(moe_cte, lnc=lnc, on="trn3", **layer.arguments(Kind.shard_on_i_mx))
    agree(got, layer.expected())


@each_lnc
@pytest.mark.parametrize("tiled", [False, True])
def test_biases_limits_and_an_end(lnc, tiled):
    layer = Layer(inner=544)
    flat, down = random((3, 2, 544), "float32", 5), random((3, 512), "float32", 6)
    places = layer.experts.columns
    by_tile = np.where(places >= 0, flat[:, :, places], 0).transpose(0, 3, 1, 2, 4)
    options = {
        "gate_and_up_proj_bias": np.ascontiguousarray(by_tile).astype(np.float32) if tiled else flat,
        "down_proj_bias": down,
        "activation_function": ActFnType.Swish,
        "conditions": np.array([1, 1, 0, 1, 1], np.int32),
    }
    for side in ("gate", "up"):
        options[f"{side}_clamp_upper_limit"], options[f"{side}_clamp_lower_limit"] = 0.75, -0.5
    got = run(moe_cte, lnc=lnc, on="trn3", **layer.arguments(Kind.shard_on_block_mx, **options))
    wanted = layer.expected(2, bias=(flat, down), limits=(-0.5, 0.75), act=ActFnType.Swish)
    agree(got[:TOKENS], wanted)


@each_lnc
def test_affinities_may_come_before(lnc):
    layer = Layer()
    mode = {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.PRE_SCALE}
    got = run(moe_cte, lnc=lnc, on="trn3", **layer.arguments(Kind.shard_on_i_mx, **mode))
    agree(got[:TOKENS], layer.expected(before=True))


@each_lnc
@pytest.mark.parametrize("inner, kind", [(544, Kind.shard_on_i_mx), (180, Kind.shard_on_i_mx_hybrid)])
def test_activations_are_returned_on_request(lnc, inner, kind):
    layer = Layer(inner=inner)
    config = ShardOnIConfig(checkpoint_activation=True, num_static_block=2)
    limits = {f"{side}_clamp_upper_limit": 0.75 for side in ("gate", "up")}
    arguments = layer.arguments(kind, spec=MoECTESpec(kind, shard_on_I=config), **limits)
    out, gate_up, down = run(moe_cte, lnc=lnc, on="trn3", **arguments)
    agree(out[:TOKENS], layer.expected(limits=(None, 0.75)))
    assert gate_up.shape == (4, 2, inner, B) and down.shape == (4, B, 512)
    for n, (ids, e) in enumerate(zip(layer.ids, layer.numbers[:, 0], strict=True)):
        real = ids < TOKENS
        x = by_blocks(layer.x[ids[real]].astype(np.float64), layer.experts.rows)
        for side in range(2):
            wanted = np.minimum(x @ layer.experts.seen[e][side], 0.75)
            agree(gate_up[n, side][:, real].T, wanted)
        agree(down[n][real], layer.experts.expert(e, layer.x[ids[real]], limits=(None, 0.75)))


def test_activations_are_written_to_the_tensors_of_the_caller():
    layer = Layer()
    arguments = layer.arguments(Kind.shard_on_i_mx)
    arguments.pop("spec")
    checkpoints = {
        "gate_up_activations_T": np.zeros((4, 2, 160, B), BF16),
        "down_activations": np.zeros((4, B, 512), BF16),
    }
    config = ShardOnIConfig(checkpoint_activation=True)
    wanted = run(moe_cte, on="trn3", spec=MoECTESpec(Kind.shard_on_i_mx, shard_on_I=config), **arguments)
    got = run(blockwise_mm_shard_intermediate_mx, on="trn3", **checkpoints, **arguments)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a[:TOKENS], b[:TOKENS])


def test_entry_points_are_that_kernel():
    layer = Layer()
    arguments = layer.arguments(Kind.shard_on_block_mx)
    spec, conditions = arguments.pop("spec"), arguments.pop("conditions")
    wanted = run(moe_cte, on="trn3", spec=spec, conditions=conditions, **arguments)
    for got in (
        run(bwmm_shard_on_block_mx, on="trn3", conditions=conditions, **arguments),
        run(blockwise_mm_shard_intermediate_mx, on="trn3", **arguments),
        run(blockwise_mm_shard_intermediate_mx_hybrid, conditions, on="trn3", **arguments),
    ):
        np.testing.assert_array_equal(got[:TOKENS], wanted[:TOKENS])


def test_weights_and_implementation_have_to_fit():
    layer = Layer()
    with invalid("gate_up_proj_weight.*shard_on_i"):
        run(moe_cte, on="trn3", **layer.arguments(Kind.shard_on_i))
    with invalid("gate_up_proj_scale: got None"):
        run(moe_cte, on="trn3", **layer.arguments(Kind.shard_on_i_mx, gate_up_proj_scale=None))
