"""Every option of mlp in prefill and decode, against a float64 formula."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from kernel_support import random, run
from options.common import Option, check, each, fresh, near, on_both, refusals

from nkilib.core.mlp.mlp import fused_mlp_isa_kernel, mlp
from nkilib.core.utils.common_types import (
    ActFnType,
    ComputationMode,
    DtypeMode,
    MLPGateUpWeightLayout,
    NormType,
    QuantizationType,
)

H, INNER = 256, 48
BF16 = 2**-8
ACTIVATIONS = {
    ActFnType.SiLU: lambda x: x / (1 + np.exp(-x)),
    ActFnType.Swish: lambda x: x / (1 + np.exp(-1.702 * x)),
    ActFnType.GELU: lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    ActFnType.GELU_Tanh_Approx: lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    ActFnType.ReLU: lambda x: np.maximum(x, 0),
    ActFnType.SquaredReLU: lambda x: np.maximum(x, 0) ** 2,
}
NAMES = ("gate", "up", "down")


def weights(h=H, i=INNER, dtype="float32") -> dict:
    shapes = ((h, i), (h, i), (i, h))
    return {
        f"{name}_proj_weights_tensor": random(shape, dtype, seed=n + 1, scale=shape[0] ** -0.5)
        for n, (name, shape) in enumerate(zip(NAMES, shapes, strict=True))
    }


BASIC = {"hidden_tensor": random((2, 3, H))} | weights()


def norm(x, kind, gamma, beta, eps):
    if kind == NormType.NO_NORM:
        return x
    x = x - x.mean(-1, keepdims=True) if kind == NormType.LAYER_NORM else x
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    x = x if kind == NormType.RMS_NORM_SKIP_GAMMA else x * gamma.astype(np.float64)
    return x if beta is None else x + beta.astype(np.float64)


def expected(**a):
    """y, and hidden + fused_add where it is stored; scales multiply the columns of products."""
    wide = {n: np.asarray(x, np.float64) for n, x in a.items() if isinstance(x, np.ndarray)}
    x = wide["hidden_tensor"] + wide.get("fused_add_tensor", 0.0)
    added = x
    kind = a.get("normalization_type", NormType.NO_NORM)
    x = norm(
        x, kind, a.get("normalization_weights_tensor"), a.get("normalization_bias_tensor"), a.get("eps", 1e-6)
    )

    def linear(x, name):
        y = x @ wide[f"{name}_proj_weights_tensor"]
        if a.get("quantization_type", QuantizationType.NONE) != QuantizationType.NONE:
            y = y * wide[f"{name}_w_scale"][0]
        y = y + wide.get(f"{name}_proj_bias_tensor", 0.0)
        upper, lower = a.get(f"{name}_clamp_upper_limit"), a.get(f"{name}_clamp_lower_limit")
        y = y if upper is None else np.minimum(y, upper)
        return y if lower is None else np.maximum(y, lower)

    act = ACTIVATIONS[a.get("activation_fn", ActFnType.SiLU)]
    up = linear(x, "up")
    m = act(up) if a.get("skip_gate_proj") else act(linear(x, "gate")) * up
    y = linear(m, "down")
    return [y, added] if a.get("store_fused_add_result") else [y]


def plain() -> list[Option]:
    gamma, beta = 1 + random((1, H), seed=5, scale=0.2), random((1, H), seed=6)
    made = [
        Option("basic"),
        Option("gate-bias", {"gate_proj_bias_tensor": random((1, INNER), seed=7)}),
        Option("up-bias", {"up_proj_bias_tensor": random((1, INNER), seed=7)}),
        Option("down-bias", {"down_proj_bias_tensor": random((1, H), seed=7)}),
        Option("fused-add", {"fused_add_tensor": random((2, 3, H), seed=8)}),
        Option("stored-add", {"fused_add_tensor": random((2, 3, H), seed=8), "store_fused_add_result": True}),
        Option("skip-gate", {"skip_gate_proj": True}),
        Option("skip-gate-none", {"skip_gate_proj": True, "gate_proj_weights_tensor": None}),
        Option("gate-upper", {"gate_clamp_upper_limit": 0.3}),
        Option("gate-lower", {"gate_clamp_lower_limit": -0.2}),
        Option("up-upper", {"up_clamp_upper_limit": 0.3}),
        Option("up-lower", {"up_clamp_lower_limit": -0.2}),
        Option("up-both", {"up_clamp_upper_limit": 0.1, "up_clamp_lower_limit": -0.1}),
        Option("crossed-limits", {"up_clamp_upper_limit": -0.1, "up_clamp_lower_limit": 0.1}),
        Option("rms", {"normalization_type": NormType.RMS_NORM, "normalization_weights_tensor": gamma}),
        Option("rms-skip-gamma", {"normalization_type": NormType.RMS_NORM_SKIP_GAMMA}),
        Option(
            "layer-norm", {"normalization_type": NormType.LAYER_NORM, "normalization_weights_tensor": gamma}
        ),
        Option(
            "layer-norm-bias",
            {
                "normalization_type": NormType.LAYER_NORM,
                "normalization_weights_tensor": gamma,
                "normalization_bias_tensor": beta,
            },
        ),
        Option("eps", {"normalization_type": NormType.RMS_NORM_SKIP_GAMMA, "eps": 0.5}),
        Option("output-bfloat16", {"output_dtype": "bfloat16"}, tolerance=BF16),
        Option(
            "bfloat16",
            {"hidden_tensor": random((2, 3, H), "bfloat16")} | weights(dtype="bfloat16"),
            tolerance=3 * BF16,
        ),
        Option(
            "float16",
            {"hidden_tensor": random((2, 3, H), "float16")} | weights(dtype="float16"),
            tolerance=2**-8,
        ),
        Option("one-token", {"hidden_tensor": random((1, 1, H))}),
        Option("97-tokens", {"hidden_tensor": random((1, 97, H))}),
        Option("INNER-2", weights(i=2)),
        Option("INNER-130", weights(i=130)),
        Option("H-512", {"hidden_tensor": random((2, 3, 512))} | weights(h=512)),
    ]
    made += [Option(f"act-{act.name}", {"activation_fn": act}) for act in ACTIVATIONS]
    return made


def modes(cases: list[Option]) -> list[Option]:
    chosen = {"decode": {"mode": ComputationMode.DECODE}, "prefill": {"mode": ComputationMode.PREFILL}}
    return [
        case._replace(name=f"{case.name}-{name}", changes=case.changes | mode)
        for case in cases
        for name, mode in chosen.items()
    ]


@each(on_both(modes(plain())))
def test_plain(option):
    check(option, mlp, BASIC, expected, 2e-5)


DECODE = [
    Option("auto", {"mode": ComputationMode.AUTO}),
    Option("forced-prefill", {"force_cte_mode": True}),
    Option("rows-stationary", {"use_tkg_gate_up_proj_column_tiling": False}),
    Option("down-columns", {"use_tkg_down_proj_column_tiling": False}),
    Option(
        "neither", {"use_tkg_gate_up_proj_column_tiling": False, "use_tkg_down_proj_column_tiling": False}
    ),
]


@each(on_both(DECODE))
def test_decode(option):
    check(option, mlp, BASIC, expected, 2e-5)


@pytest.mark.parametrize("lnc", [1, 2])
def test_transposed_layouts(lnc):
    """On n cores [128, n, J, T], J = H / (128 n): element c H / n + p J + j of a token is at [p, c, j]."""
    tokens = random((1, 6, H))
    wanted = expected(**(BASIC | {"hidden_tensor": tokens}))[0][0]
    got = run(
        mlp,
        **(BASIC | {"hidden_tensor": tokens}),
        lnc=lnc,
        transposed_out=True,
        use_tkg_down_proj_column_tiling=False,
    )[0]
    assert got.shape == (128, lnc, H // 128 // lnc, 6)
    back = got.transpose(3, 1, 0, 2).reshape(6, H)
    near(back, wanted, 2e-5)
    again = run(mlp, **(BASIC | {"hidden_tensor": got}), lnc=lnc, transposed_in=True)[0]
    near(again[0], expected(**(BASIC | {"hidden_tensor": back[None]}))[0][0], 2e-5)


# ---- FP8 weights --------------------------------------------------------------------------------------


def fp8(dtype=ml_dtypes.float8_e4m3) -> dict:
    return {name: (16 * w).astype(dtype) for name, w in weights().items()}


def row_scales() -> dict:
    columns = {"gate": INNER, "up": INNER, "down": H}
    return {
        f"{name}_w_scale": np.tile(0.03 + 0.05 * np.abs(random((1, n), seed=9)), (128, 1)).astype(np.float32)
        for name, n in columns.items()
    }


def static_scales() -> dict:
    made = {f"{name}_w_scale": np.full((128, 1), 0.06, np.float32) for name in NAMES}
    return made | {
        "gate_up_in_scale": np.full((128, 1), 0.02, np.float32),
        "down_in_scale": np.full((128, 1), 0.02, np.float32),
    }


ROW = fp8() | row_scales() | {"quantization_type": QuantizationType.ROW}
STATIC = fp8() | static_scales() | {"quantization_type": QuantizationType.STATIC}
OCP = {"dtype_mode": DtypeMode.OCP} | fp8(ml_dtypes.float8_e4m3fn)
QUANTIZED = [
    Option("row", ROW, tolerance=0.01),
    Option("row-prefill", ROW | {"mode": ComputationMode.PREFILL}, tolerance=0.08),
    Option("row-clipped", ROW | {"quant_clipping_bound": 100.0}, tolerance=0.08),
    Option("static", STATIC, tolerance=0.01),
    Option("static-prefill", STATIC | {"mode": ComputationMode.PREFILL}, tolerance=0.08),
    Option("row-bias", ROW | {"gate_proj_bias_tensor": random((1, INNER), seed=7)}, tolerance=0.01),
    Option("row-limits", ROW | {"gate_clamp_upper_limit": 0.2, "up_clamp_lower_limit": -0.1}, tolerance=0.01),
    Option("row-OCP-trn3", ROW | OCP, tolerance=0.01, on="trn3"),
    Option("static-OCP-trn3", STATIC | OCP, tolerance=0.01, on="trn3"),
    Option("none", fp8(), tolerance=0.01),
]


@each(on_both(QUANTIZED))
def test_fp8_weights(option):
    check(option, mlp, BASIC | {"hidden_tensor": random((2, 3, H), "bfloat16")}, expected, 0.01)


@pytest.mark.parametrize(
    "name", ["gate_w_scale", "up_w_scale", "down_w_scale", "gate_up_in_scale", "down_in_scale"]
)
def test_scales_without_quantization_are_warned_about(name):
    arguments = BASIC | fp8() | {name: (row_scales() | static_scales())[name]}
    with pytest.warns(UserWarning, match=f"mlp: {name} has no effect.*quantization_type"):
        got = run(mlp, **fresh(arguments))
    near(got[0], expected(**(BASIC | fp8()))[0], 0.01)


@pytest.mark.parametrize(
    "name", ["gate_proj_bias_tensor", "gate_clamp_upper_limit", "gate_clamp_lower_limit"]
)
def test_options_of_a_skipped_gate_are_warned_about(name):
    value = random((1, INNER)) if name == "gate_proj_bias_tensor" else 0.1
    with pytest.warns(UserWarning, match=f"mlp: {name} has no effect.*skip_gate_proj=False"):
        got = run(mlp, **BASIC, **{name: value}, skip_gate_proj=True)
    near(got[0], expected(**BASIC, skip_gate_proj=True)[0], 2e-5)


def test_weights_of_no_norm_are_warned_about():
    with pytest.warns(UserWarning, match="normalization_weights_tensor has no effect"):
        run(mlp, **BASIC, normalization_weights_tensor=np.ones((1, H), np.float32))


REFUSED = refusals(
    hidden_tensor=None,
    hidden_tensor__rank=random((3, H)),
    hidden_tensor__H=random((2, 3, 128)),
    hidden_tensor__dtype=np.ones((2, 3, H), np.int32),
    gate_proj_weights_tensor=None,
    gate_proj_weights_tensor__I=random((H, INNER + 1)),
    gate_proj_weights_tensor__H=random((128, INNER)),
    gate_proj_weights_tensor__dtype=random((H, INNER), "bfloat16"),
    up_proj_weights_tensor=None,
    up_proj_weights_tensor__I=random((H, INNER + 1)),
    up_proj_weights_tensor__H=random((128, INNER)),
    up_proj_weights_tensor__rank=random(INNER),
    down_proj_weights_tensor=None,
    down_proj_weights_tensor__I=random((INNER + 1, H)),
    down_proj_weights_tensor__H=random((INNER, 128)),
    gate_proj_bias_tensor=random((1, H)),
    up_proj_bias_tensor=random((1, H)),
    down_proj_bias_tensor=random((1, INNER)),
    normalization_bias_tensor=random((1, H)),
    fused_add_tensor=random((2, 2, H)),
    store_fused_add_result=True,
    activation_fn="silu",
    activation_fn__none=None,
    normalization_type=None,
    normalization_type__cross=NormType.RMS_NORM_ACROSS_HEADS,
    quantization_type=None,
    quant_clipping_bound=1.0,
    quant_clipping_bound__negative=-1.0,
    output_dtype="int32",
    use_tkg_down_proj_optimized_layout=True,
    use_contiguous_x4_gate_up=True,
    transposed_out=True,
    dtype_mode=None,
    gate_up_w_layout=MLPGateUpWeightLayout.H_X4_INNERMOST,
    gate_clamp_upper_limit="1",
)
PREFILL = {"mode": ComputationMode.PREFILL}
REFUSED += [
    Option("refuses-gamma", {"normalization_type": NormType.RMS_NORM}, "normalization_weights_tensor"),
    Option("refuses-mode", {"mode": ComputationMode.DECODE, "force_cte_mode": True}, "mode"),
    Option("refuses-prefill-sbuf", PREFILL | {"store_output_in_sbuf": True}, "store_output_in_sbuf"),
    Option("refuses-prefill-out", PREFILL | {"transposed_out": True}, "transposed_out"),
    Option("refuses-prefill-in", PREFILL | {"transposed_in": True}, "hidden_tensor"),
    Option(
        "refuses-many",
        {"hidden_tensor": random((1, 513, H)), "mode": ComputationMode.DECODE},
        "hidden_tensor",
    ),
    Option("refuses-row-scale", ROW | {"up_w_scale": None}, "up_w_scale"),
    Option("refuses-row-shape", ROW | {"down_w_scale": np.ones((128, INNER), np.float32)}, "down_w_scale"),
    Option("refuses-row-weights", ROW | weights(), "up_proj_weights_tensor"),
    Option("refuses-static-in", STATIC | PREFILL | {"gate_up_in_scale": None}, "gate_up_in_scale"),
]


@each(REFUSED)
def test_refusals(option):
    check(option, mlp, BASIC, expected, 2e-5)


# ---- the tutorial's name ------------------------------------------------------------------------------

FUSED = {"hidden": BASIC["hidden_tensor"]} | {f"{n}_w": BASIC[f"{n}_proj_weights_tensor"] for n in NAMES}
FUSED_NAMES = (
    {
        "hidden": "hidden_tensor",
        "norm_w": "normalization_weights_tensor",
        "norm_b": "normalization_bias_tensor",
        "attn_output": "fused_add_tensor",
        "norm_type": "normalization_type",
        "act_fn": "activation_fn",
        "store_add": "store_fused_add_result",
    }
    | {f"{n}_w": f"{n}_proj_weights_tensor" for n in NAMES}
    | {f"{n}_b": f"{n}_proj_bias_tensor" for n in NAMES}
)


def fused(dtype=None, **a):
    return expected(**{FUSED_NAMES.get(name, name): value for name, value in a.items()})


FUSED_CASES = [
    Option("basic"),
    Option("attn_output", {"attn_output": random((2, 3, H), seed=8)}),
    Option("store_add", {"attn_output": random((2, 3, H), seed=8), "store_add": True}),
    Option("norm", {"norm_w": 1 + random((1, H), seed=5, scale=0.2), "norm_type": NormType.RMS_NORM}),
    Option("norm_b", {"norm_w": random((1, H)), "norm_b": random((1, H)), "norm_type": NormType.LAYER_NORM}),
    Option("act_fn", {"act_fn": ActFnType.GELU}),
    Option("gate_b", {"gate_b": random((1, INNER))}),
    Option("up_b", {"up_b": random((1, INNER))}),
    Option("down_b", {"down_b": random((1, H))}),
    Option("eps", {"norm_type": NormType.RMS_NORM_SKIP_GAMMA, "eps": 0.1}),
    Option("dtype", {"dtype": "bfloat16"}, tolerance=BF16),
]


@each(on_both(FUSED_CASES))
def test_fused_mlp(option):
    check(option, fused_mlp_isa_kernel, FUSED, fused, 2e-5)
