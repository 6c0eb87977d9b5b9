"""bwmm_block_mx against float64 on numbers that the OCP emulation quantises."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, invalid, random, run
from mx_experts import Experts, agree

from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.experimental.deepseek_v32.moe_cte import bwmm_block_mx


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(bwmm_block_mx)


class Blocks:
    """Tokens in blocks, each of an expert; the last places of a block are empty."""

    def __init__(
        self, tokens=40, h=512, inner=160, sizes=(40, 17, 30), owners=(1, 0, 1), form="float8_e4m3fn"
    ):
        rng = np.random.default_rng(5)
        self.experts = Experts(tokens, h, inner, 2, 1, form)
        self.owners = np.array(owners, np.int32)
        self.ids = [rng.permutation(tokens)[:size] for size in sizes]
        self.affinities = rng.uniform(0.2, 1, (tokens, 2)).astype(np.float32)

    def arguments(self, block_size=256, **options):
        w = self.experts.weights
        places = [np.r_[ids, np.full(block_size - len(ids), -1)] for ids in self.ids]
        return {
            "hidden_states": self.experts.x,
            "expert_affinities_masked": self.affinities.reshape(-1, 1),
            "gate_up_proj_weight": w["expert_gate_up_weights"],
            "down_proj_weight": w["expert_down_weights"],
            "token_position_to_id": np.concatenate(places).astype(np.int32),
            "block_to_expert": self.owners[:, None],
            "gate_up_proj_scale": w["expert_gate_up_weights_scale"],
            "down_proj_scale": w["expert_down_weights_scale"],
            "block_size": block_size,
            **options,
        }

    def expected(self, **options):
        x = np.asarray(self.experts.x, np.float64)
        out = np.zeros(x.shape)
        for ids, e in zip(self.ids, self.owners, strict=True):
            weight = self.affinities[ids][:, [e]].astype(np.float64)
            np.add.at(out, ids, self.experts.expert(e, x[ids], **options) * weight)
        return out


CASES = {
    "basic": {},
    "mxfp4": {"form": "float4_e2m1fn"},
    "e5m2": {"form": "float8_e5m2"},
    "one-token": {"tokens": 1, "sizes": (1, 1, 1)},
    "one-block": {"sizes": (40,), "owners": (1,)},
    "an-empty-block": {"sizes": (40, 0, 12)},
    "full-block": {"tokens": 256, "sizes": (256, 3), "owners": (0, 1)},
    "ragged-inner": {"inner": 72},
    "wide-inner": {"inner": 544},
    "wide": {"h": 1024},
    "one-expert": {"owners": (0, 0, 0)},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_sum_over_blocks(case):
    blocks = Blocks(**case)
    got = run(bwmm_block_mx, on="trn3", **blocks.arguments())
    agree(np.asarray(got), blocks.expected())


def test_biases_limits_and_activation():
    blocks = Blocks()
    gate_up, down = random((2, 2, 160), "float32", 5), random((2, 512), "float32", 6)
    options = {
        "gate_and_up_proj_bias": gate_up,
        "down_proj_bias": down,
        "activation_function": ActFnType.Swish,
    }
    for side in ("gate", "up"):
        options[f"{side}_clamp_upper_limit"], options[f"{side}_clamp_lower_limit"] = 0.75, -0.5
    got = run(bwmm_block_mx, on="trn3", **blocks.arguments(**options))
    agree(np.asarray(got), blocks.expected(bias=(gate_up, down), limits=(-0.5, 0.75), act=ActFnType.Swish))


def test_a_larger_block_and_no_affinities():
    blocks = Blocks()
    blocks.affinities[:] = 1
    mode = {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.NO_SCALE}
    got = run(bwmm_block_mx, on="trn3", **blocks.arguments(512, **mode))
    agree(np.asarray(got), blocks.expected())


def test_two_cores_and_wrong_arguments_are_refused():
    given = Blocks().arguments()
    with invalid("bwmm_block_mx: launched on 2 programs"):
        run(bwmm_block_mx, on="trn3", lnc=2, **given)
    with invalid("token_position_to_id"):
        run(bwmm_block_mx, on="trn3", **given | {"token_position_to_id": np.zeros(100, np.int32)})
    with invalid("gate_up_proj_scale"):
        run(bwmm_block_mx, on="trn3", **given | {"gate_up_proj_scale": np.zeros((2, 3), np.uint8)})
