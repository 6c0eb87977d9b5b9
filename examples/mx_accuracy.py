"""One MLP layer in bfloat16, FP8 and microscaling (MX) formats: the error of each, and its time on trn3.

python examples/mx_accuracy.py [--plot mx_accuracy.svg]

Errors compare simulated kernels with float64, on random weights; times are modelled at the size of
one rank of a large language model, for a prompt and for decoding four tokens.
"""

import argparse
import os
from pathlib import Path

import ml_dtypes
import numpy as np

import nki
from nki import TensorSpec, mx
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.kernels import mlp, mlp_forward_mxfp8_nki

FP8 = ml_dtypes.float8_e4m3fn
ROW = {"quantization_type": QuantizationType.ROW, "dtype_mode": DtypeMode.OCP}
DECODED = 4  # tokens
FORMATS = ("bfloat16", "fp8 ROW", "MXFP8", "MXFP4 weights")


# ---- accuracy: the kernels compute, on a layer that is small enough ----------------------------------


def random_layer(tokens, width, inner):
    """x [T, H] and Wg, Wu [H, I], Wd [I, H] in bfloat16."""
    rng = np.random.default_rng(0)
    shapes = ((tokens, width), (width, inner), (width, inner), (inner, width))
    layer = [rng.standard_normal(shape) for shape in shapes]
    return [(a if i == 0 else a / a.shape[0] ** 0.5).astype(ml_dtypes.bfloat16) for i, a in enumerate(layer)]


def exact(x, gate, up, down):
    x, gate, up, down = (np.asarray(a, np.float64) for a in (x, gate, up, down))
    g = x @ gate
    return (g / (1 + np.exp(-g)) * (x @ up)) @ down


def in_bfloat16(x, *weights):
    return mlp(x[None], *weights)[0][0]


def in_fp8(x, *weights):
    """FP8 with one scale per column of the weights; the kernel computes one scale per token."""
    scales = [np.abs(w.astype(np.float32)).max(0, keepdims=True) / 448 for w in weights]
    narrow = [(w.astype(np.float32) / s).astype(FP8) for w, s in zip(weights, scales, strict=True)]
    names = ("gate_w_scale", "up_w_scale", "down_w_scale")
    spread = {name: s.repeat(128, 0) for name, s in zip(names, scales, strict=True)}
    return mlp(x[None], *narrow, **spread, **ROW)[0][0]


def in_mx(weight_format, rule):
    """MX weights, MXFP8 activations. FP4 numbers are also FP8 numbers: one kernel multiplies both."""

    def layer(x, gate, up, down):
        stacked = np.concatenate([gate.T, up.T]).astype(np.float32)
        gate_up, gate_up_scales = mx.quantize_operand(stacked, weight_format, rule=rule)
        narrow, down_scales = mx.quantize_operand(down.T.astype(np.float32), weight_format, rule=rule)
        middle = np.zeros((x.shape[0], down.shape[0]), x.dtype)
        return mlp_forward_mxfp8_nki(
            x,
            gate_up.astype(FP8),
            narrow.astype(FP8),
            middle,
            run_with_lnc2=False,
            gate_up_scales=gate_up_scales,
            down_scales=down_scales,
        )

    return layer


LAYERS = (in_bfloat16, in_fp8, in_mx("float8_e4m3fn", "hardware"), in_mx("float4_e2m1fn", "ocp"))


def errors(tokens, width, inner):
    """Return the norm of each format's error, in per cent of the result's norm."""
    layer = random_layer(tokens, width, inner)
    wanted = exact(*layer)
    results = [np.asarray(compute(*layer), np.float64) for compute in LAYERS]
    return [100 * np.linalg.norm(y - wanted) / np.linalg.norm(wanted) for y in results]


# ---- time: the kernels are only traced ---------------------------------------------------------------


def modelled(kernel, *specs, **options):
    """Return microseconds, or None if the library has no such kernel yet."""
    try:
        return nki.profile(kernel)(*specs, **options).total_us
    except NotImplementedError:
        return None


def plain_times(tokens, width, inner):
    """Return the times of mlp with bfloat16 weights and with scaled FP8 weights."""
    hidden = TensorSpec((1, tokens, width), "bfloat16")
    shapes = ((width, inner), (width, inner), (inner, width))
    bf16 = modelled(mlp, hidden, *(TensorSpec(s, "bfloat16") for s in shapes))
    names = ("gate_w_scale", "up_w_scale", "down_w_scale")
    scales = {name: TensorSpec((128, s[1]), "float32") for name, s in zip(names, shapes, strict=True)}
    return [bf16, modelled(mlp, hidden, *(TensorSpec(s, "float8_e4m3fn") for s in shapes), **scales, **ROW)]


def quantized_spec(features, k):
    """Elements and packed scales of [F, K]."""
    return TensorSpec((k // 4, 4 * features), "float8_e4m3fn"), TensorSpec(
        (128 * -(-k // 2048), features), "uint8"
    )


def prompt_times(tokens, width, inner):
    gate_up, down = quantized_spec(2 * inner, width), quantized_spec(width, inner)
    mxfp8 = modelled(
        mlp_forward_mxfp8_nki,
        TensorSpec((tokens, width), "bfloat16"),
        gate_up[0],
        down[0],
        TensorSpec((tokens, inner), "bfloat16"),
        run_with_lnc2=False,
        gate_up_scales=gate_up[1],
        down_scales=down[1],
    )
    return [
        *plain_times(tokens, width, inner),
        mxfp8,
        four_packed_time("float4_e2m1fn_x4", tokens, width, inner),
    ]


def four_packed_time(packed, tokens, width, inner):
    """Return the time of mlp with MX weights: four-packed, one scale for 8 x 4 elements."""
    rows, tiles = (inner // 4 if inner <= 512 else 128), -(-inner // 512)
    weights = [TensorSpec((128, width // 512, inner), packed)] * 2
    weights.append(TensorSpec((rows, tiles, width), packed))
    scales = {name: TensorSpec((16, width // 512, inner), "uint8") for name in ("gate_w_scale", "up_w_scale")}
    scales["down_w_scale"] = TensorSpec((rows // 8, tiles, width), "uint8")
    hidden = TensorSpec((1, tokens, width), "bfloat16")
    return modelled(mlp, hidden, *weights, quantization_type=QuantizationType.MX, **scales)


def decode_times(width, inner):
    words = ("float8_e4m3fn_x4", "float4_e2m1fn_x4")
    return plain_times(DECODED, width, inner) + [four_packed_time(w, DECODED, width, inner) for w in words]


# ---- table and plot ------------------------------------------------------------------------------------


def text(value, unit):
    return "-" if value is None else f"{value:.2f} {unit}"


def table(columns):
    """Lines of text; columns are (heading, unit, values)."""
    lines = [f"{'':16}" + "".join(f"{heading:>24}" for heading, _, _ in columns)]
    for i, name in enumerate(FORMATS):
        lines.append(f"{name:16}" + "".join(f"{text(v[i], unit):>24}" for _, unit, v in columns))
    return "\n".join(lines)


def plot(columns):
    """Return the columns as a bar chart in SVG."""
    parts = []
    for n, (heading, unit, values) in enumerate(columns):
        left, most = 140 + 260 * n, max(v for v in values if v is not None)
        parts.append(f'<text x="{left}" y="24" font-weight="bold">{heading}</text>')
        for i, value in enumerate(values):
            y, width = 40 + 32 * i, 0 if value is None else 170 * value / most
            parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="20" fill="#4878a8"/>')
            parts.append(f'<text x="{left + width + 6:.1f}" y="{y + 15}">{text(value, unit)}</text>')
    for i, name in enumerate(FORMATS):
        parts.append(f'<text x="8" y="{55 + 32 * i}">{name}</text>')
    size = f'width="{150 + 260 * len(columns)}" height="{50 + 32 * len(FORMATS)}"'
    style = 'font-family="sans-serif" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>' + "".join(parts) + "</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, default=Path("mx_accuracy.svg"), help="where the plot goes")
    for name, default in (("tokens", 2048), ("width", 4096), ("inner", 3584)):
        parser.add_argument(f"--{name}", type=int, default=default, help="size whose time is modelled")
    options = parser.parse_args()
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    columns = [
        ("error", "%", errors(128, 512, 512)),
        (f"{options.tokens} tokens", "us", prompt_times(options.tokens, options.width, options.inner)),
        (f"{DECODED} tokens", "us", decode_times(options.width, options.inner)),
    ]
    print(table(columns))
    options.plot.write_text(plot(columns))
    print(f"plot: {options.plot}")


if __name__ == "__main__":
    main()
