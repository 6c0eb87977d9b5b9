"""rmsnorm_router_topk_tkg and _a2av against a token-by-token reference in float64."""

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, each, near, on_both, refusal, refusals

import nki.language as nl
from nkilib.core.utils.common_types import QuantizationType, RouterActFnType
from nkilib.experimental.moe_block.rmsnorm_router_topk_a2av import rmsnorm_router_topk_a2av
from nkilib.experimental.moe_block.rmsnorm_router_topk_tkg import rmsnorm_router_topk_tkg

SIGMOID, SOFTMAX = RouterActFnType.SIGMOID, RouterActFnType.SOFTMAX


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [rmsnorm_router_topk_tkg, rmsnorm_router_topk_a2av])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def block(b=1, s=6, h=256, e=12, dtype="float32"):
    """Logits are far apart: bfloat16 does not change which experts are chosen."""
    weights = np.zeros((h, e), np.float32)
    weights[:e, :] = 4 * np.random.default_rng(1).permuted(np.tile(np.arange(e), (e, 1)), axis=1) / e
    x = np.zeros((b, s, h), np.float32)
    x[..., :] = 0.1
    x[np.arange(b)[:, None], np.arange(s)[None] % s, np.arange(s)[None] % e] = 8.0
    return {
        "hidden_states": x.astype(np.dtype(dtype)),
        "gamma": (1 + 0.01 * random((1, h))).astype(np.dtype(dtype)),
        "router_weights": weights.astype(np.dtype(dtype)),
        "top_k": 3,
    }


def routed(
    hidden_states,
    gamma,
    router_weights,
    router_bias=None,
    eps=1e-6,
    top_k=1,
    hidden_actual=None,
    router_act_fn=SIGMOID,
    **how,
):
    """Logits are products of rounded rows and weights."""
    dtype = np.dtype(str(how.get("router_mm_dtype", "bfloat16")))
    dtype = hidden_states.dtype if hidden_states.dtype == np.float16 else dtype
    x = hidden_states.astype(np.float64).reshape(-1, hidden_states.shape[-1])
    normal, chosen, affinities = [], [], np.zeros((len(x), router_weights.shape[1]))
    for t, row in enumerate(x):
        n = row / np.sqrt(np.dot(row, row) / (hidden_actual or len(row)) + eps) * gamma[0].astype(np.float64)
        rounded = [
            v.astype(hidden_states.dtype).astype(dtype).astype(np.float64) for v in (n, router_weights)
        ]
        logits = rounded[0] @ rounded[1] + (0 if router_bias is None else router_bias[0])
        best = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:top_k]
        weigh = (
            1 / (1 + np.exp(-logits[best]))
            if router_act_fn == SIGMOID
            else np.exp(logits[best] - logits[best[0]])
        )
        affinities[t, best] = weigh if router_act_fn == SIGMOID else weigh / weigh.sum()
        normal.append(n)
        chosen.append(best)
    return np.array(normal), np.array(chosen), affinities


def compare(option, kernel, basic, tolerance):
    arguments = basic | option.changes
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(kernel, **arguments, lnc=option.lnc, on=option.on)
        return
    rows, experts, affinities = run(kernel, **arguments, lnc=option.lnc, on=option.on)
    expected = routed(**arguments)
    assert rows.dtype == arguments["hidden_states"].dtype and experts.dtype == np.int32
    near(rows, expected[0], tolerance)
    scored = np.take_along_axis(expected[2], experts, 1)  # of equal logits either may come first
    near(np.sort(scored, 1), np.sort(np.take_along_axis(expected[2], expected[1], 1), 1), 2**-6)
    near(affinities, expected[2], 2**-6)


BIAS = {"router_bias": random((1, 12), seed=3)}
EVERY = [
    Option("basic"),
    Option("bias", BIAS),
    Option("softmax", {"router_act_fn": SOFTMAX}),
    Option("softmax-bias", {"router_act_fn": SOFTMAX, **BIAS}),
    Option("one", {"top_k": 1}),
    Option("eight", {"top_k": 8}),
    Option("eps", {"eps": 0.5}),
]
TKG = EVERY + [
    Option("one-token", block(s=1)),
    Option("batch", block(b=3, s=5)),
    Option("130-tokens", block(s=130)),
    Option("wide", block(h=640, e=40)),
    Option("actual", {"hidden_actual": 250}),
    Option("float32-matmul", {"router_mm_dtype": nl.float32}),
    Option("float16-matmul", {"router_mm_dtype": nl.float16}),
    Option("bfloat16", block(dtype="bfloat16"), tolerance=2**-7),
    Option("few-experts", block(e=5)),
]
WRONG = refusals(hidden_states=None, gamma=None, router_weights=None, gamma__shape=random(256), top_k=0)
WRONG += refusals(top_k__many=9, hidden_states__rank=random((2, 256)), hidden_states__H=random((1, 2, 100)))
WRONG += refusals(
    router_weights__shape=random((128, 12)), router_bias=random(12), router_act_fn=RouterActFnType.NOAUX_TC
)


@each(
    on_both(TKG)
    + [Option("trn3", on="trn3")]
    + WRONG
    + refusals(quantization_type__row=QuantizationType.ROW)
    + [Option("refuses-mx-columns", {"quantization_type": QuantizationType.MX}, "hidden_states", on="trn3")]
    + [
        Option(
            "refuses-mx-trn2",
            block(h=512) | {"quantization_type": QuantizationType.MX},
            "rmsnorm_router_topk_tkg",
        )
    ]
    + refusals(hidden_actual=300, router_mm_dtype=nl.int32)
)
def test_tkg(option):
    compare(option, rmsnorm_router_topk_tkg, block(), option.tolerance or 1e-5)


MX = [
    Option("basic", block(h=512)),
    Option("tiles", block(h=1536, e=40)),
    Option("bfloat16", block(h=1024, s=130, dtype="bfloat16")),
    Option("padded", block(h=1024) | {"hidden_actual": 1000}),
    Option("softmax-bias", block(h=512, s=1) | {"router_act_fn": SOFTMAX, **BIAS}),
    Option("float16", block(h=512, dtype="float16")),
]


@each(on_both(MX))
def test_rows_of_mx_have_elements_then_scales(option):
    """The bits are those of the OCP specification of the rows that the kernel returns without MX."""
    plain = run(rmsnorm_router_topk_tkg, **option.changes, lnc=option.lnc, on="trn3")
    quantized = {"quantization_type": QuantizationType.MX}
    packed, *routes = run(rmsnorm_router_topk_tkg, **option.changes, **quantized, lnc=option.lnc, on="trn3")
    rows = plain[0] if plain[0].dtype != np.float32 else plain[0].astype(ml_dtypes.bfloat16)
    count, size = rows.shape
    wanted = mx_emulation.quantized(rows, "float8_e4m3fn", "1x32")
    bits = np.asarray(packed).view(np.uint8)
    assert packed.dtype == np.dtype(ml_dtypes.float8_e4m3fn) and bits.shape == (count, size + size // 4)
    assert np.array_equal(bits[:, :size], wanted.codes)
    scales = bits[:, size:].reshape(count, size // 512, 4, 32)[..., :4].reshape(count, size // 32)
    assert np.array_equal(scales, np.asarray(wanted.scales).T)
    for got, same in zip(routes, plain[1:], strict=True):
        assert np.array_equal(got, same)


A2AV = EVERY + [
    Option("one-token", block(s=1, dtype="bfloat16")),
    Option("batch", block(b=3, s=5, dtype="bfloat16")),
    Option("128-tokens", block(s=128, dtype="bfloat16")),
    Option("float16", block(dtype="float16")),
    Option("wide", block(h=640, e=40, dtype="bfloat16")),
]


@each(
    on_both(A2AV)
    + [Option("trn3", on="trn3")]
    + WRONG
    + refusals(hidden_states__tokens=block(s=129, dtype="bfloat16")["hidden_states"])
    + refusals(hidden_states__dtype=block()["hidden_states"], router_weights__dtype=block()["router_weights"])
)
def test_a2av(option):
    compare(option, rmsnorm_router_topk_a2av, block(dtype="bfloat16"), 2**-7)
