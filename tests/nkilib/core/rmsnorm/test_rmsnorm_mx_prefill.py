"""rmsnorm_mx_prefill: norm and router in float64, and the MX bits of the rounded norm by emulation."""

import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, each, near, on_both, refusal, refusals

import nki.language as nl
from nkilib.core.rmsnorm.rmsnorm_mx_prefill import rmsnorm_mx_prefill, rmsnorm_mx_prefill_ref
from nkilib.core.utils.common_types import RouterActFnType

SIGMOID, SOFTMAX, NOAUX = RouterActFnType.SIGMOID, RouterActFnType.SOFTMAX, RouterActFnType.NOAUX_TC


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(rmsnorm_mx_prefill)


def tokens(b=1, s=5, h=512, seed=0):
    return {
        "hidden_states": random((b, s, h), "bfloat16", seed),
        "gamma": (1 + 0.1 * random((1, h), seed=1)).astype(ml_dtypes.bfloat16),
    }


def router(h=512, e=16, **more):
    """Weights whose logits are far apart, permuted as the page's swizzle_h_index does it."""
    weight = random((h, e), "bfloat16", 3, 4 * h**-0.5)
    order = [512 * t + 4 * p + q for t in range(h // 512) for q in range(4) for p in range(128)]
    return {"router_weights": weight[order], "top_k": 3} | more


def expected_affinities(n, weight, bias, k, act_fn, groups, kept, factor):
    """Token by token; weight in natural order."""
    out = np.zeros((len(n), weight.shape[1]))
    for t, row in enumerate(n):
        logits = row @ weight
        if act_fn == NOAUX:
            scores = 1 / (1 + np.exp(-logits))
            choice = scores + bias
            parts = choice.reshape(groups, -1)
            best = sorted(range(groups), key=lambda g: -np.sort(parts[g])[-2:].sum())[:kept]
            allowed = [e for e in range(len(logits)) if e // parts.shape[1] in best]
            chosen = sorted(allowed, key=lambda e: -choice[e])[:k]
            out[t, chosen] = scores[chosen] / scores[chosen].sum() * factor
            continue
        logits = logits + (0 if bias is None else bias)
        chosen = np.argsort(-logits, kind="stable")[:k]
        powers = np.exp(logits[chosen] - logits[chosen].max())
        out[t, chosen] = powers / powers.sum() if act_fn == SOFTMAX else 1 / (1 + np.exp(-logits[chosen]))
    return out


def packed_rows(n, dtype, shared):
    """Elements in order, then scales of tile t in block t // 4 (shared) or t."""
    emulated = mx_emulation.quantized(n, dtype, "1x32")
    rows, size = n.shape
    tiles = size // 512
    scales = np.zeros((rows, 128 * (-(-tiles // 4) if shared else tiles)), np.uint8)
    for block, codes in enumerate(emulated.scales):
        t, inside = divmod(block, 16)
        start = 128 * (t // 4) + 4 * (t % 4) if shared else 128 * t
        scales[:, start + 32 * (inside // 4) + inside % 4] = codes
    return np.concatenate([emulated.codes, scales], axis=1)


def compare(option):
    arguments = tokens() | option.changes
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(rmsnorm_mx_prefill, **arguments, lnc=option.lnc, on=option.on)
        return
    results = run(rmsnorm_mx_prefill, **arguments, emit_norm_bf16=True, lnc=option.lnc, on=option.on)
    packed, *others, norm = results
    x = arguments["hidden_states"]
    if "residual" in arguments:
        total = (x.astype(np.float32) + arguments["residual"].astype(np.float32)).astype(ml_dtypes.bfloat16)
        assert np.array_equal(others.pop(), total)
        x = total
    rows = x.astype(np.float64).reshape(-1, x.shape[-1])
    power = (rows**2).sum(1, keepdims=True) / arguments.get("unpadded_hidden_size", rows.shape[1])
    n = rows / np.sqrt(power + arguments.get("eps", 1e-6)) * arguments["gamma"].astype(np.float64).reshape(-1)
    np.testing.assert_allclose(norm.astype(np.float64), n, rtol=2**-8, atol=1e-6)
    form = "float8_e5m2" if "e5m2" in str(arguments.get("qmx_output_dtype")) else "float8_e4m3fn"
    bits = packed_rows(norm, form, arguments.get("pack_scales", True))
    assert packed.dtype == np.dtype(form)
    assert np.array_equal(packed.view(np.uint8)[:, : bits.shape[1]], bits)
    if "router_weights" in arguments:
        check_routes(arguments, norm.astype(np.float64), packed.view(np.uint8)[:, bits.shape[1] :], others)


def check_routes(arguments, norm, appended, others):
    weight = np.zeros(arguments["router_weights"].shape)
    h, e = weight.shape
    order = [512 * t + 4 * p + q for t in range(h // 512) for q in range(4) for p in range(128)]
    weight[order] = arguments["router_weights"].astype(ml_dtypes.bfloat16).astype(np.float64)
    bias, act_fn = arguments.get("router_bias"), arguments.get("router_act_fn", SIGMOID)
    rule = (
        arguments.get("n_group", 1),
        arguments.get("topk_group", 1),
        arguments.get("routed_scaling_factor", 1.0),
    )
    bias = None if bias is None else bias.reshape(-1).astype(np.float64)
    expected = expected_affinities(norm, weight, bias, arguments["top_k"], act_fn, *rule)
    if arguments.get("pack_affinities"):
        affinities = appended[:, : 2 * e].copy().view(ml_dtypes.bfloat16)
        assert appended.shape[1] % 4 == 0 and not appended[:, 2 * e :].any()
    else:
        affinities = others.pop()
        assert appended.shape[1] == 0
    near(affinities, expected, 2**-8)
    if act_fn == NOAUX:
        assert not others
        return
    (experts,) = others
    assert experts.dtype == np.int32 and np.all(np.take_along_axis(expected, experts, 1) > 0)
    assert all(len(set(row)) == arguments["top_k"] for row in experts)


BIAS = random((1, 16), seed=4, scale=0.3)
CASES = [
    Option("basic"),
    Option("one-token", tokens(s=1)),
    Option("129-tokens-batch", tokens(b=3, s=43)),
    Option("wide", tokens(h=2560)),
    Option("gamma-row", {"gamma": random(512, "bfloat16")}),
    Option("eps", {"eps": 0.5}),
    Option("e5m2", {"qmx_output_dtype": nl.float8_e5m2_x4}),
    Option("own-scales", tokens(h=1024) | {"pack_scales": False}),
    Option("own-scales-router", {"pack_scales": False} | router()),
    Option("unpadded", {"unpadded_hidden_size": 500}),
    Option("residual", {"residual": random((1, 5, 512), "bfloat16", 7)}),
    Option("sigmoid", router(router_bias=BIAS)),
    Option("softmax", router(router_act_fn=SOFTMAX, router_bias=BIAS[0])),
    Option("float32-weights", router() | {"router_weights": router()["router_weights"].astype(np.float32)}),
    Option("eight-of-130", router(e=130) | {"top_k": 8}),
    Option("noaux", router(router_act_fn=NOAUX, router_bias=BIAS)),
    Option(
        "noaux-groups",
        router(router_act_fn=NOAUX, router_bias=BIAS, n_group=4, topk_group=2, routed_scaling_factor=2.5),
    ),
    Option("packed-affinities", router(pack_affinities=True)),
    Option("packed-odd", router(e=5, pack_affinities=True, router_act_fn=SOFTMAX)),
    Option(
        "all",
        tokens(s=131, h=1536)
        | router(h=1536, pack_affinities=True, router_act_fn=NOAUX, router_bias=BIAS, n_group=2)
        | {"residual": random((1, 131, 1536), "bfloat16", 7)},
    ),
]
WRONG = (
    refusals(
        hidden_states=random((1, 5, 640), "bfloat16"),
        hidden_states__dtype=random((1, 5, 512)),
        gamma=random((1, 511), "bfloat16"),
        residual=random((1, 4, 512), "bfloat16"),
        qmx_output_dtype=nl.float4_e2m1fn_x4,
        unpadded_hidden_size=513,
        router_bias=BIAS,
        pack_affinities=True,
        router_weights=random((512, 600), "bfloat16"),
    )
    + [Option(f"refuses-{name}", router(**{name: value}), name) for name, value in (("top_k", 9),)]
    + [
        Option("refuses-no-bias", router(router_act_fn=NOAUX), "router_bias"),
        Option("refuses-n_group", router(router_act_fn=NOAUX, router_bias=BIAS, n_group=3), "n_group"),
        Option("refuses-trn2", {}, "rmsnorm_mx_prefill"),
    ]
)


@each(
    [case._replace(on="trn3") for case in on_both(CASES)]
    + [case._replace(on="trn2" if case.name == "refuses-trn2" else "trn3") for case in WRONG]
)
def test_each_option_is_right_or_refused(option):
    compare(option)


def test_the_reference_agrees_with_a_loop():
    arguments = tokens() | router(router_act_fn=NOAUX, router_bias=BIAS, n_group=4, topk_group=2)
    n, affinities = rmsnorm_mx_prefill_ref(**arguments)
    weight = np.zeros((512, 16))
    weight[[4 * p + q for q in range(4) for p in range(128)]] = arguments["router_weights"].astype(np.float64)
    expected = expected_affinities(n, weight, BIAS[0].astype(np.float64), 3, NOAUX, 4, 2, 1.0)
    np.testing.assert_allclose(affinities, expected, atol=1e-12)
