import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, cosine, each_lnc, invalid, run
from mxfp8_layer import BF16, Layer

from nki import mx
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import NotBuilt
from nkilib.experimental.clamp_limits import ClampLimits
from nkilib.experimental.matmul_mxfp8 import MatmulMxfp8KernelConfig
from nkilib.experimental.moe.bwd.moe_bwd_parameters import AffinityOption, ShardOption
from nkilib.experimental.moe_mxfp8.bwd import blockwise_mm_bwd_mxfp8


def backward(layer, sides, lnc=1, **changes):
    named = {
        "hidden_states": layer.hidden,
        "expert_affinities_masked": layer.affinities,
        "gate_up_proj_weight": np.ascontiguousarray(layer.gate_up.transpose(0, 3, 1, 2)),
        "down_proj_weight": np.ascontiguousarray(layer.down.swapaxes(1, 2)),
        "token_position_to_id": layer.ids,
        "block_to_expert": layer.owners,
        "output_hidden_states_grad": layer.grad,
        "block_size": layer.block,
        "gate_up_proj_act_checkpoint_T": sides,
        "clamp_limits": layer.limits,
        "fp8_x4_dtype": f"{layer.fp8}_x4",
    }
    return run(blockwise_mm_bwd_mxfp8, lnc=lnc, on="trn3", **{**named, **changes})


def check(layer, lnc=1, **changes):
    sides = layer.forward()[1]
    for got, want in zip(backward(layer, sides, lnc, **changes), layer.backward(sides), strict=True):
        assert got.shape == want.shape and cosine(got, want) > 0.9999
        np.testing.assert_allclose(np.float64(got), want, rtol=0.02, atol=0.02 * np.abs(want).max())


@each_lnc
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokens": 77, "top": 3, "i": 384},
        {"tokens": 130, "experts": 2, "block": 256, "top": 1},
        {"tokens": 600, "experts": 2, "block": 1024, "h": 128},
    ],
    ids=str,
)
def test_tokens_of_any_routing(options, lnc):
    check(Layer(**options), lnc)


def test_the_id_after_the_last_is_padding_too():
    check(Layer(tokens=50, pad=50))


def test_the_dtype_of_the_elements_is_chosen():
    check(Layer(tokens=60, fp8="float8_e5m2"))


@each_lnc
def test_nothing_flows_where_a_limit_was_reached(lnc):
    check(Layer(tokens=60, limits=ClampLimits(1.0, -0.5, 0.75, None)), lnc)


def test_without_accumulation_one_block_stores_a_token():
    check(Layer(tokens=150, top=1), is_tensor_update_accumulating=False)


@pytest.mark.parametrize("packed", [True, False])
def test_weights_come_quantised(packed):
    layer = Layer(tokens=60, experts=2, i=128, h=640)
    layout = "packed" if packed else "hardware"
    quantised = lambda w: mx.quantize_operand(np.ascontiguousarray(w), "float8_e4m3fn", scale_layout=layout)  # noqa: E731
    gate_up = [quantised(w.reshape(256, 640).T) for w in layer.gate_up]
    down = [quantised(w.T) for w in layer.down]
    check(
        layer,
        gate_up_proj_weight=np.stack([x[0] for x in gate_up]),
        gate_up_weight_scales=np.stack([x[1] for x in gate_up]),
        down_proj_weight=np.stack([x[0] for x in down]),
        down_weight_scales=np.stack([x[1] for x in down]),
    )


@each_lnc
@pytest.mark.parametrize("options", [{"tokens": 150}, {"tokens": 600, "block": 1024, "h": 640}], ids=str)
def test_biases_have_the_sums_over_tokens(options, lnc):
    layer = Layer(**options)
    sides = layer.forward()[1]
    got = backward(layer, sides, lnc, bias=True)
    gradients = layer.backward(sides)
    for one, want in zip(got[:4], gradients, strict=True):
        assert cosine(one, want) > 0.9999
    both = np.zeros((len(layer.down), 2, layer.i))
    down = np.zeros((len(layer.down), layer.h))
    for n, e, t, _, w in layer.blocks():
        g, u = np.float64(sides[n])
        sigmoid = 1 / (1 + np.exp(-g))
        dm = layer.product(layer.down[e].T, layer.grad[t]) * w
        both[e, 0] += (dm * u * sigmoid * (1 + g * (1 - sigmoid))).sum(1)
        both[e, 1] += (dm * g * sigmoid).sum(1)
        down[e] += np.float64(layer.grad[t]).T @ w
    for one, want in zip(got[4:], (both, down), strict=True):
        np.testing.assert_allclose(np.float64(one), want, rtol=0.01, atol=0.01 * np.abs(want).max())


def test_gradients_are_new_tensors_with_and_without_initialisation():
    with pytest.warns(UserWarning, match="skip_grad_initialization has no effect"):
        check(Layer(tokens=40), skip_grad_initialization=True)


def test_hints_change_nothing():
    config = MatmulMxfp8KernelConfig(TILES_IN_BLOCK_M=2)
    options = {f"phase{n}_config": config for n in range(1, 5)}
    layer = Layer(tokens=40)
    check(layer, spill_reload=True, skip_dma=SkipMode(True, True), **options)
    check(layer, 2, run_with_lnc2=False)


def test_the_gradients_are_close_to_those_of_autograd_in_float64():
    torch = pytest.importorskip("torch")
    layer = Layer(tokens=90)
    leaf = lambda x: torch.tensor(x.astype(np.float64), requires_grad=True)  # noqa: E731
    x, aff, gate_up, down = map(leaf, (layer.hidden, layer.affinities, layer.gate_up, layer.down))
    out = torch.zeros(x.shape, dtype=torch.float64)
    for _, e, t, real, _ in layer.blocks():
        own = torch.tensor(t[real])
        g, u = x[own] @ gate_up[e, 0].T, x[own] @ gate_up[e, 1].T
        w = aff.reshape(90, -1)[own, e][:, None]
        out = out.index_add(0, own, (torch.nn.functional.silu(g) * u * w) @ down[e].T)
    out.backward(torch.tensor(layer.grad.astype(np.float64)))
    exact = x.grad, aff.grad, gate_up.grad.permute(0, 3, 1, 2), down.grad.transpose(1, 2)
    for got, want in zip(backward(layer, layer.forward()[1]), exact, strict=True):
        assert cosine(got, want.numpy()) > 0.995


@pytest.mark.parametrize(
    "change, text",
    [
        ({"block_size": 100}, "block_size: got 100"),
        ({"gate_up_proj_act_checkpoint_T": None}, "gate_up_proj_act_checkpoint_T"),
        ({"output_hidden_states_grad": np.ones((7, 256), BF16)}, "output_hidden_states_grad: got shape"),
        ({"gate_up_proj_weight": np.ones((3, 128, 2, 128), BF16)}, "gate_up_proj_weight: got shape"),
        ({"down_proj_weight": np.ones((3, 128, 128), BF16)}, "down_proj_weight: is"),
        ({"token_position_to_id": np.ones(7, np.int32)}, "token_position_to_id: got shape"),
        ({"expert_affinities_masked": np.ones((7, 1), np.float32)}, "expert_affinities_masked: got 7"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(change, text):
    layer = Layer(tokens=20)
    with invalid(text):
        backward(layer, np.ones((3, 2, 128, 128), BF16), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"gate_act_checkpoint_T": np.ones(1, BF16)},
        {"intermediate_checkpoint_T": np.ones(1, BF16)},
        {"scaled_intermediate_checkpoint_T": np.ones(1, BF16)},
        {"down_proj_act_checkpoint": np.ones(1, BF16)},
        {"gate_up_weight_is_swizzled": True},
        {"down_weight_is_swizzled": True},
        {"shard_option": ShardOption.SHARD_ON_BLOCK},
        {"affinity_option": AffinityOption.AFFINITY_ON_H},
        {"activation_type": ActFnType.GELU},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_not_built_is_refused_by_name(change):
    with pytest.raises(NotBuilt, match=next(iter(change))):
        backward(Layer(tokens=20), np.ones((3, 2, 128, 128), BF16), **change)


def test_the_compiler_accepts_it_and_the_example_runs():
    compiles_and_example_runs(blockwise_mm_bwd_mxfp8)
