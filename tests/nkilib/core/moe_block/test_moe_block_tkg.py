import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, random, run

import nki.language as nl
from nkilib.core.moe_block.moe_block_tkg import moe_block_tkg, moe_block_tkg_ref
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode, RouterActFnType

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype("float32")
FP8 = np.dtype(ml_dtypes.float8_e4m3)
POST = {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE}


def case(batch, sequence, hidden, inner, experts, k, dtype=BF16, local=None, stored=None, **options):
    local, stored = local or experts, stored or dtype
    return {
        "inp": random((batch, sequence, hidden), dtype, 1),
        "gamma": random((1, hidden), dtype, 2),
        "router_weights": random((hidden, experts), dtype, 3, hidden**-0.5),
        "expert_gate_up_weights": random((local, hidden, 2, inner), stored, 4, hidden**-0.5),
        "expert_down_weights": random((local, inner, hidden), stored, 5, inner**-0.5),
        "top_k": k,
        **POST,
        **options,
    }


def check(arguments, lnc, tolerance=1e-2, **options):
    wanted = moe_block_tkg_ref(**arguments)
    got = run(moe_block_tkg, lnc=lnc, **arguments, **options)
    for actual, expected in zip(got, wanted, strict=False):
        assert actual.shape == expected.shape
        assert np.abs(actual.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()
    return got


def shared(hidden, inner, dtype=BF16):
    return {
        "shared_expert_gate_w": random((hidden, inner), dtype, 6, hidden**-0.5),
        "shared_expert_up_w": random((hidden, inner), dtype, 7, hidden**-0.5),
        "shared_expert_down_w": random((inner, hidden), dtype, 8, inner**-0.5),
    }


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(moe_block_tkg)


@each_lnc
@pytest.mark.parametrize("act_fn", list(RouterActFnType)[:2])
@pytest.mark.parametrize("pre_norm, norm", [(True, True), (True, False), (False, False)])
def test_each_token_goes_where_the_router_sends_it(act_fn, pre_norm, norm, lnc):
    rule = {"router_act_fn": act_fn, "router_pre_norm": pre_norm, "norm_topk_prob": norm}
    check(case(2, 3, 256, 48, 8, 2, F32, **rule), lnc, 1e-5, router_mm_dtype=nl.float32)


@each_lnc
@pytest.mark.parametrize("tokens", [5, 140])
def test_a_rank_serves_the_tokens_that_chose_its_experts(tokens, lnc):
    everyone = {"is_all_expert": True, "rank_id": np.array([[1]], np.int32)}
    check(case(tokens, 1, 256, 32, 6, 2, local=2, **everyone), lnc)


@each_lnc
def test_residual_padding_and_biases(lnc):
    a = case(2, 2, 256, 32, 4, 2, hidden_actual=200, residual=random((2, 2, 256), BF16, 9))
    a |= {"expert_gate_up_bias": random((4, 2, 32), BF16, 6), "expert_down_bias": random((4, 256), BF16, 7)}
    a |= {"gate_clamp_upper_limit": 1.0, "up_clamp_lower_limit": -1.0, "hidden_act_fn": ActFnType.Swish}
    assert len(check(a, lnc)) == 3


@each_lnc
@pytest.mark.parametrize("tokens", [3, 130])
def test_shared_experts_are_added(tokens, lnc):
    everyone = {"is_all_expert": True, "rank_id": np.zeros((1, 1), np.int32)} if tokens > 128 else {}
    check(case(tokens, 1, 256, 32, 4, 2, **everyone, **shared(256, 64)), lnc)


@each_lnc
def test_fp8_experts_have_scales(lnc):
    a = case(3, 1, 256, 32, 4, 2, stored=FP8)
    rng = np.random.default_rng(0)
    a["expert_gate_up_weights_scale"] = rng.random((4, 2, 32), np.float32)
    a["expert_down_weights_scale"] = rng.random((4, 256), np.float32)
    check(a, lnc)


def test_logits_may_be_left_out():
    got = run(moe_block_tkg, **case(1, 2, 256, 32, 4, 1), skip_router_logits=True)
    assert isinstance(got, np.ndarray) and got.shape == (2, 256)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"gamma": np.zeros((1, 128), BF16)}, "gamma: got shape"),
        ({"router_weights": np.zeros((128, 4), BF16)}, "router_weights: got shape"),
        ({"shared_expert_up_w": np.zeros((256, 32), BF16)}, "expected all or none"),
    ],
)
def test_raises_on_invalid_arguments(change, message):
    with pytest.raises(AssertionError, match=message):
        run(moe_block_tkg, **{**case(1, 2, 256, 32, 4, 1), **change})


def test_what_is_not_documented_is_not_built():
    with pytest.raises(NotImplementedError, match="hidden_act_bias"):
        run(moe_block_tkg, **case(1, 2, 256, 32, 4, 1), hidden_act_bias=1.0)
