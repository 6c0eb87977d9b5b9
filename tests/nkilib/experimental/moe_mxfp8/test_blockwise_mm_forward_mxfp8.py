import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, invalid, run
from mxfp8_layer import BF16, Layer

import nki.language as nl
from nki import mx
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import NotBuilt
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.matmul_mxfp8 import MatmulMxfp8KernelConfig
from nkilib.experimental.moe.bwd.moe_bwd_parameters import AffinityOption, ShardOption
from nkilib.experimental.moe_mxfp8.fwd import (
    MXFP8MOECheckpointConfig,
    blockwise_mm_fwd_mxfp8,
    blockwise_mm_fwd_mxfp8_ref,
)


def forward(layer, lnc=1, **changes):
    named = {
        "hidden_states": layer.hidden,
        "expert_affinities_masked": layer.affinities,
        "gate_up_proj_weight": layer.gate_up,
        "down_proj_weight": layer.down,
        "token_position_to_id": layer.ids,
        "block_to_expert": layer.owners,
        "block_size": layer.block,
        "clamp_limits": layer.limits,
        "fp8_x4_dtype": f"{layer.fp8}_x4",
    }
    return run(blockwise_mm_fwd_mxfp8, lnc=lnc, on="trn3", **{**named, **changes})


def check(layer, lnc=1, **changes):
    out, sides, middle = forward(layer, lnc, **changes)
    want_out, want_sides, want_middle = layer.forward()
    close(sides, want_sides)
    assert cosine(middle, want_middle) > 0.99999
    np.testing.assert_allclose(np.float64(middle), np.float64(want_middle), rtol=0.02, atol=0.02)
    assert cosine(out, want_out) > 0.9999
    np.testing.assert_allclose(np.float64(out), want_out, rtol=0.02, atol=0.02 * np.abs(want_out).max())


@each_lnc
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokens": 77, "top": 3, "h": 136 + 120, "i": 384},
        {"tokens": 130, "experts": 2, "block": 256, "top": 1},
        {"tokens": 700, "experts": 2, "block": 1024, "i": 128, "h": 128},
    ],
    ids=str,
)
def test_tokens_of_any_routing(options, lnc):
    check(Layer(**options), lnc)


def test_the_id_after_the_last_is_padding_too():
    check(Layer(tokens=50, pad=50))


@pytest.mark.parametrize("fp8", ["float8_e4m3fn", "float8_e5m2"])
def test_the_dtype_of_the_elements_is_chosen(fp8):
    check(Layer(tokens=60, fp8=fp8))


@each_lnc
def test_limits_are_applied_before_the_checkpoint(lnc):
    check(Layer(tokens=60, limits=ClampLimits(1.0, -0.5, 0.75, None)), lnc)


def test_without_accumulation_one_block_stores_a_token():
    check(Layer(tokens=150, top=1), is_tensor_update_accumulating=False)


@pytest.mark.parametrize("packed", [True, False])
def test_weights_come_quantised(packed):
    layer = Layer(tokens=60, experts=2, i=640, h=256)
    layout = "packed" if packed else "hardware"
    quantised = lambda w: mx.quantize_operand(w, "float8_e4m3fn", scale_layout=layout)  # noqa: E731
    gate_up = [[quantised(side) for side in expert] for expert in layer.gate_up]
    down = [quantised(expert) for expert in layer.down]
    check(
        layer,
        gate_up_proj_weight=np.stack([np.stack([x[0] for x in e]) for e in gate_up]),
        gate_up_weight_scales=np.stack([np.stack([x[1] for x in e]) for e in gate_up]),
        down_proj_weight=np.stack([x[0] for x in down]),
        down_weight_scales=np.stack([x[1] for x in down]),
        use_scale_packing=packed,
    )


def test_weights_come_swizzled():
    layer = Layer(tokens=60, experts=2)
    check(
        layer,
        2,
        gate_up_proj_weight=np.stack([np.stack([mx.swizzle(x) for x in e]) for e in layer.gate_up]),
        gate_up_weight_is_swizzled=True,
        down_proj_weight=np.stack([mx.swizzle(e) for e in layer.down]),
        down_weight_is_swizzled=True,
    )


@each_lnc
@pytest.mark.parametrize("block", [128, 1024])
def test_tokens_of_one_expert_come_in_order(block, lnc):
    layer = Layer(tokens=2 * block if block == 128 else block, experts=1, top=1, block=block)
    dummy = {"token_position_to_id": np.zeros(1, np.int32), "block_to_expert": np.zeros((1, 1), np.int32)}
    check(layer, lnc, no_indirect_load=True, **dummy)


@pytest.mark.parametrize("gate_up, middle", [(True, False), (False, True), (False, False)])
def test_only_the_wanted_checkpoints_are_returned(gate_up, middle):
    layer = Layer(tokens=20)
    found = forward(layer, checkpoint_config=MXFP8MOECheckpointConfig(gate_up, middle))
    found = found if isinstance(found, tuple) else (found,)
    want = [x for x, wanted in zip(layer.forward(), (True, gate_up, middle), strict=True) if wanted]
    assert [x.shape for x in found] == [x.shape for x in want]


def test_hints_change_nothing():
    config = MatmulMxfp8KernelConfig(TILES_IN_BLOCK_M=2)
    options = {"gate_up_config": config, "down_config": config, "spill_reload": True}
    layer = Layer(tokens=40)
    check(layer, shard_option=ShardOption.SHARD_ON_FREE, skip_dma=SkipMode(True, True), **options)
    check(layer, 2, run_with_lnc2=False)


def test_the_reference_is_the_emulation():
    layer = Layer(tokens=30, limits=ClampLimits(1.0, -1.0, 1.0, -1.0))
    arguments = (layer.hidden, layer.affinities, layer.gate_up, layer.down, layer.ids, layer.owners, 128)
    found = blockwise_mm_fwd_mxfp8_ref(*arguments, limits=layer.limits)
    for got, want in zip(found, layer.forward(), strict=True):
        np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=1e-2, atol=1e-2)


def test_the_result_is_close_to_experts_without_quantisation():
    layer = Layer(tokens=100)
    out = np.zeros(layer.hidden.shape)
    for _, e, t, real, w in layer.blocks():
        g, u = np.einsum("th,sih->sti", np.float64(layer.hidden[t]), np.float64(layer.gate_up[e]))
        y = (g / (1 + np.exp(-g)) * u * w[:, None]) @ np.float64(layer.down[e]).T
        np.add.at(out, t[real], y[real])
    assert cosine(forward(layer)[0], out) > 0.997


@pytest.mark.parametrize(
    "change, text",
    [
        ({"block_size": 100}, "block_size: got 100"),
        ({"compute_dtype": nl.float32}, "compute_dtype: got float32"),
        ({"fp8_x4_dtype": "float8_e3m4"}, "fp8_x4_dtype: got float8_e3m4"),
        ({"hidden_states": np.ones((20, 256), np.float32)}, "hidden_states: got dtype float32"),
        ({"expert_affinities_masked": np.ones((7, 1), np.float32)}, "expert_affinities_masked: got 7"),
        ({"down_proj_weight": np.ones((2, 256, 128), BF16)}, "down_proj_weight: got 2 experts"),
        ({"gate_up_proj_weight": np.ones((3, 2, 128, 128), BF16)}, "gate_up_proj_weight: is"),
        ({"token_position_to_id": np.ones(7, np.int32)}, "token_position_to_id: got shape"),
        ({"block_to_expert": np.ones((3, 1), np.float32)}, "block_to_expert: got float32"),
        ({"no_indirect_load": True}, "gate_up_proj_weight: got 3 experts"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(change, text):
    with invalid(text):
        forward(Layer(tokens=20), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"affinity_option": AffinityOption.AFFINITY_ON_H},
        {"activation_type": ActFnType.GELU},
        {"bias": True},
    ],
)
def test_what_the_page_reserves_is_refused_by_name(change):
    with pytest.raises(NotBuilt, match=next(iter(change))):
        forward(Layer(tokens=20), **change)


def test_the_compiler_accepts_it_and_the_example_runs():
    compiles_and_example_runs(blockwise_mm_fwd_mxfp8)
