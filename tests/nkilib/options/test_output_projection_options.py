"""Every documented option of the output projections, one at a time, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both, refusals
from options.qkv_reference import rounded, wide

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.output_projection_cte import output_projection_cte
from nkilib.core.output_projection.output_projection_tkg import output_projection_tkg
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.common_types import DtypeMode, QuantizationType

BF16, FP8, OCP = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn
B, N, D, S, H = 2, 3, 32, 5, 256
TOLERANCE = 1e-5
ROW, STATIC = QuantizationType.ROW, QuantizationType.STATIC


def projected(x: np.ndarray, o: dict, input_scale: Any, weight_scale: Any) -> np.ndarray:
    """x [tokens, N D] times the weights, element (n, d) of attention with row n D + d."""
    w, kind, factor = wide(o["weight"]), o.get("quantization_type", QuantizationType.NONE), 1.0
    if kind == STATIC:
        factor = float(wide(input_scale).flat[0])
        limit = 448.0 if o["weight"].dtype == OCP else 240.0
        if o["attention"].dtype.itemsize > 1:
            x = rounded(np.clip(x / factor, -limit, limit), o["weight"].dtype)
    y = x @ w * factor
    if kind != QuantizationType.NONE:
        y = y * wide(weight_scale)[0]
    return y if o.get("bias") is None else y + wide(o["bias"])


def prefill(**o: Any) -> np.ndarray:
    b, n, d, s = o["attention"].shape
    x = wide(o["attention"]).transpose(0, 3, 1, 2).reshape(b * s, n * d)
    return projected(x, o, o.get("input_scales"), o.get("weight_scales")).reshape(b, s, -1)


def decode(**o: Any) -> np.ndarray:
    d, b, n, s = o["attention"].shape
    x = wide(o["attention"]).transpose(1, 3, 2, 0).reshape(b * s, n * d)
    y = projected(x, o, o.get("input_scale"), o.get("weight_scale"))
    if o.get("TRANSPOSE_OUT"):
        cores = o.get("cores", 1)
        return y.reshape(b * s, cores, 128, -1).transpose(2, 1, 3, 0)
    return y


PREFILL = {"attention": random((B, N, D, S)), "weight": random((N * D, H), seed=1, scale=0.1)}
NARROW = random((N * D, H), FP8, 1)
ROW_SCALE = np.random.default_rng(2).uniform(0.1, 1, (128, H)).astype(np.float32)
ONE, HALF = np.full((128, 1), 2.0**-5, np.float32), np.full((128, 1), 0.5, np.float32)


def shared(scales: str) -> list[Option]:
    """What both kernels have; `scales` ends the names of theirs."""
    static = {
        "weight": NARROW,
        "quantization_type": STATIC,
        f"input_scale{scales}": ONE,
        f"weight_scale{scales}": HALF,
    }
    return [
        Option("basic"),
        Option("bias", {"bias": random((1, H), seed=3)}),
        Option("H-odd", {"weight": random((N * D, 300), seed=1, scale=0.1)}),
        Option("weight-bfloat16", {"weight": random((N * D, H), BF16, 1)}, tolerance=1e-2),
        Option("weight-float16", {"weight": random((N * D, H), np.float16, 1)}, tolerance=5e-3),
        Option("STATIC", static),
        Option("STATIC-clips", static | {f"input_scale{scales}": ONE / 16}),
        Option("STATIC-bias", static | {"bias": random((1, H), seed=3)}),
        Option(
            "STATIC-OCP",
            static | {"weight": random((N * D, H), OCP, 1), "dtype_mode": DtypeMode.OCP},
            on="trn3",
        ),
        Option(
            "ROW",
            {"weight": NARROW, "quantization_type": ROW, f"weight_scale{scales}": ROW_SCALE},
            tolerance=1e-2,
        ),
        Option("dtype_mode", {"dtype_mode": DtypeMode.AUTO}),
    ]


def refused(scales: str) -> list[Option]:
    fp8 = {"weight": NARROW, "quantization_type": STATIC}
    weight_scale, input_scale = f"weight_scale{scales}", f"input_scale{scales}"
    return [
        *refusals(
            attention=None,
            attention__rank=random((B, N, D)),
            attention__dtype=np.zeros((B, N, D, S), np.int32),
            weight=None,
            weight__rows=random((7, H)),
            weight__dtype=NARROW,
            bias=1.0,
            bias__shape=random((1, 3)),
            quantization_type=None,
            quantization_type__text="ROW",
            quantization_type__mx=QuantizationType.ROW_MX,
            dtype_mode=None,
            **{weight_scale: HALF, input_scale: ONE},
        ),
        Option("refuses-STATIC-without-weight-scale", fp8 | {input_scale: ONE}, weight_scale),
        Option("refuses-STATIC-without-input-scale", fp8 | {weight_scale: HALF}, input_scale),
        Option("refuses-STATIC-scale-shape", fp8 | {weight_scale: ROW_SCALE, input_scale: ONE}, weight_scale),
        Option(
            "refuses-ROW-with-input-scale",
            fp8 | {"quantization_type": ROW, weight_scale: ROW_SCALE, input_scale: ONE},
            input_scale,
        ),
        Option(
            "refuses-flavour",
            fp8 | {"dtype_mode": DtypeMode.OCP, weight_scale: HALF, input_scale: ONE},
            "weight",
        ),
    ]


@each(
    on_both(
        [
            *shared("s"),
            Option("output_dtype", {"output_dtype": nl.bfloat16}, tolerance=1e-2),
            Option(
                "bfloat16",
                {"attention": random((B, N, D, S), BF16), "weight": random((N * D, H), BF16, 1)},
                tolerance=1e-2,
            ),
            Option("one-head", {"attention": random((1, 1, 128, 130)), "weight": random((128, 64), seed=1)}),
            Option(
                "FP8-attention",
                {
                    "attention": random((B, N, D, S), FP8),
                    "weight": NARROW,
                    "quantization_type": STATIC,
                    "input_scales": ONE,
                    "weight_scales": HALF,
                },
                tolerance=1e-2,
            ),
        ]
    )
    + refused("s")
    + refusals(compact_weight_scales=True)
)
def test_output_projection_cte(option: Option) -> None:
    check(option, output_projection_cte, PREFILL, prefill, TOLERANCE)


DECODE = {"attention": random((D, B, N, S)), "weight": PREFILL["weight"]}


@each(on_both(shared("")) + refused(""))
def test_output_projection_tkg(option: Option) -> None:
    changes = dict(option.changes)
    if getattr(changes.get("attention"), "dtype", None) == np.int32:
        changes["attention"] = np.zeros((D, B, N, S), np.int32)
    check(option._replace(changes=changes), output_projection_tkg, DECODE, decode, TOLERANCE)


@each(on_both([Option("TRANSPOSE_OUT"), Option("TRANSPOSE_OUT-bias", {"bias": random((1, H), seed=3)})]))
def test_a_transposed_result(option: Option) -> None:
    basic = DECODE | {"TRANSPOSE_OUT": True}
    check(option, output_projection_tkg, basic, lambda **o: decode(**o, cores=option.lnc), TOLERANCE)


@nki.jit
def on_chip(attention, weight, transposed, managed):
    """The projection of a tile, whose result stays in SBUF."""
    sbm = SbufManager(0, 196608) if managed else None
    tile = nl.ndarray(attention.shape, attention.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, attention)
    found = output_projection_tkg(tile, weight, TRANSPOSE_OUT=transposed, OUT_IN_SB=True, sbm=sbm)
    out = nl.ndarray(found.shape, found.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, found)
    return out


@each([Option(f"{t}-{m}", {"transposed": t, "managed": m}) for t in (False, True) for m in (False, True)])
def test_results_in_sbuf(option: Option) -> None:
    def expected(transposed: bool, managed: bool, **o: Any) -> np.ndarray:
        y = decode(**o)
        return y.reshape(B * S, 128, -1).transpose(1, 2, 0) if transposed else y

    check(option, on_chip, DECODE, expected, TOLERANCE)
