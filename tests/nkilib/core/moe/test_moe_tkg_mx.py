"""Experts with MX weights against float64 on numbers that the OCP emulation quantises."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import each_lnc, invalid, random, run
from mx_experts import Experts, agree

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_tkg import moe_tkg
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode, MoEBlockIOLayout

POST = {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE}
each_format = pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
each_way = pytest.mark.parametrize("all_expert", [False, True])


@each_lnc
@each_format
def test_each_token_goes_to_its_experts(lnc, form):
    case = Experts(3, 512, 512, 4, 2, form)
    y = run(moe_tkg, lnc=lnc, on="trn3", **case.arguments(False, **POST))
    agree(y, case.expected(case.chosen(True)))


@each_lnc
@each_format
def test_all_local_experts_take_all_tokens(lnc, form):
    case = Experts(5, 1024, 256, 2, 1, form)
    rank = np.array([[1]], np.int32)
    affinities = np.concatenate([random((5, 2), "float32", 9), case.affinities], axis=1)
    options = {"rank_id": rank, "expert_affinities": affinities, **POST}
    y = run(moe_tkg, lnc=lnc, on="trn3", **case.arguments(True, **options))
    agree(y, case.expected(case.affinities))


@each_lnc
@each_way
@pytest.mark.parametrize(
    "tokens, inner, experts",
    [(1, 64, 3), (2, 360, 3), (2, 640, 3), (130, 90, 1), (3, 730, 2), (3, 180, 2), (2, 692, 2)],
)
def test_sizes_may_be_ragged(lnc, all_expert, tokens, inner, experts):
    if tokens > 128 and not all_expert:
        pytest.skip("selected experts take 128 tokens")
    case = Experts(tokens, 512, inner, experts, 1)
    y = run(moe_tkg, lnc=lnc, on="trn3", **case.arguments(all_expert))
    agree(y, case.expected(np.ones(case.affinities.shape) if all_expert else case.chosen(False)))


@each_lnc
@each_way
@pytest.mark.parametrize("inner", [640, 180])
def test_biases_limits_activation_and_masks(lnc, all_expert, inner):
    case = Experts(4, 512, inner, 2, 1)
    flat = random((2, 2, inner), "float32", 5)
    places = case.columns
    tiled = np.where(places >= 0, flat[:, :, places], 0)  # expert, half, tile, row, lane
    bias = (flat, random((2, 512), "float32", 6))
    options = {
        "expert_gate_up_bias": np.ascontiguousarray(tiled.transpose(0, 3, 1, 2, 4)).astype(np.float32),
        "expert_down_bias": bias[1],
        "activation_fn": ActFnType.Swish,
        "mask_unselected_experts": all_expert,
        "rank_id": np.zeros((1, 1), np.int32),
        **POST,
    }
    for side in ("gate", "up"):
        options[f"{side}_clamp_upper_limit"], options[f"{side}_clamp_lower_limit"] = 0.75, -0.5
    y = run(moe_tkg, lnc=lnc, on="trn3", **case.arguments(all_expert, **options))
    agree(y, case.expected(case.chosen(True), bias=bias, limits=(-0.5, 0.75), act=ActFnType.Swish))


@each_lnc
def test_only_tokens_that_chose_an_expert_pass_through_it(lnc):
    case = Experts(9, 512, 128, 3, 1)
    options = {"rank_id": np.zeros((1, 1), np.int32), "mask_unselected_experts": True, **POST}
    dynamic = {"is_all_expert_dynamic": True, "block_size": 4}
    y = run(moe_tkg, lnc=lnc, on="trn3", **case.arguments(True, **options, **dynamic))
    agree(y, case.expected(case.chosen(True)))


@each_lnc
def test_the_result_may_be_spread_over_partitions(lnc):
    case = Experts(3, 512, 64, 2, 1)
    layout = MoEBlockIOLayout._128_Nprgs_Hfree_T
    y = run(moe_tkg, lnc=lnc, on="trn3", **case.arguments(False, output_layout=layout))
    wanted = case.expected(case.chosen(False))
    agree(y, wanted.T.reshape(lnc, 128, 4 // lnc, 3).transpose(1, 0, 2, 3))


@nki.jit
def through_sbuf(x, gate_up, down, affinities, index, gate_up_scale, down_scale):
    tokens, size = x.shape
    tile = nl.ndarray((128, tokens, size // 128), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x.reshape((tokens, 128, size // 128)).permute((1, 0, 2)))
    y = moe_tkg(
        tile,
        gate_up,
        down,
        affinities,
        index,
        False,
        expert_gate_up_weights_scale=gate_up_scale,
        expert_down_weights_scale=down_scale,
        output_in_sbuf=True,
    )
    out = nl.ndarray(x.shape, y.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.dma_copy(out.reshape((tokens, 128, size // 128)).permute((1, 0, 2)), y)
    return out


@each_lnc
def test_tokens_and_results_may_stay_in_sbuf(lnc):
    case = Experts(3, 512, 64, 2, 1)
    w = case.weights
    arguments = [case.x, w["expert_gate_up_weights"], w["expert_down_weights"], case.affinities, case.index]
    scales = [w["expert_gate_up_weights_scale"], w["expert_down_weights_scale"]]
    y = run(through_sbuf, *arguments, *scales, lnc=lnc, on="trn3")
    agree(y, case.expected(case.chosen(False)))


def test_words_without_a_dtype_and_fp8_with_its_lanes_are_taken():
    fp8, fp4 = Experts(2, 512, 64, 2, 1, "float8_e4m3fn"), Experts(2, 512, 64, 2, 1)
    names = ("expert_gate_up_weights", "expert_down_weights")
    for case, plain in ((fp4, np.uint16), (fp8, np.uint32)):
        raw = {name: case.weights[name].view(plain) for name in names}
        agree(run(moe_tkg, on="trn3", **case.arguments(False, **raw)), case.expected(case.chosen(False)))
    shapes = {name: (*fp8.weights[name].shape, 4) for name in names}
    lanes = {
        name: fp8.weights[name].view(np.uint8).reshape(shapes[name]).view(ml_dtypes.float8_e4m3fn)
        for name in names
    }
    agree(run(moe_tkg, on="trn3", **fp8.arguments(False, **lanes)), fp8.expected(fp8.chosen(False)))


def test_mismatched_arguments_raise():
    case = Experts(2, 512, 64, 2, 1)

    def refuses(text, on="trn3", **options):
        with invalid(text):
            run(moe_tkg, on=on, **case.arguments(False, **options))

    refuses("MX weights.*trn3", on="trn2")
    refuses("expert_gate_up_weights_scale: got None", expert_gate_up_weights_scale=None)
    refuses(
        "expert_down_weights_scale: got float32", expert_down_weights_scale=np.zeros((2, 2, 1, 512), "f4")
    )
    refuses("expert_down_weights", expert_down_weights=case.weights["expert_down_weights"][:, :8])
    refuses("hidden_input", hidden_input=random((2, 1024), "bfloat16"))
