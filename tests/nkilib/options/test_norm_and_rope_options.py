"""Every documented option of RoPE, `rmsnorm_quant_kernel` and the FP8 helpers, one at a time, in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from kernel_support import fp8_steps, random, run
from options.common import Option, check, each, fresh, on_both, refusals
from options.qkv_reference import wide

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.embeddings.rope import RoPE, RoPE_sbuf
from nkilib.core.embeddings.rope_hf import rope_hf
from nkilib.core.quantization.fp8_quantize import (
    pre_combine_dequant_scales,
    row_quantization,
    static_quantization,
)
from nkilib.core.rmsnorm.rmsnorm_quant import rmsnorm_quant_kernel
from nkilib.core.rmsnorm.rmsnorm_quant_arguments import RmsNormQuantKernelArgs
from nkilib.core.utils.common_types import DtypeMode, NormType, QuantizationType

BF16, FP8, OCP = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn
D, B, N, S = 64, 2, 3, 6

# ---- RoPE ----------------------------------------------------------------------------------------


def rotated(x_in: Any, cos: Any, sin: Any, contiguous_layout: bool = True, **_: Any) -> np.ndarray:
    x, cos, sin = wide(x_in), wide(cos), wide(sin)
    out, half = x.copy(), len(x) // 2
    for i in range(half):
        low, high = (i, i + half) if contiguous_layout else (2 * i, 2 * i + 1)
        c, s = cos[i][:, None], sin[i][:, None]
        out[low], out[high] = x[low] * c - x[high] * s, x[high] * c + x[low] * s
    return out


ANGLE = np.random.default_rng(1).uniform(0, 6, (D // 2, B, S))
ROPE: dict[str, Any] = {
    "x_in": random((D, B, N, S)),
    "cos": np.cos(ANGLE).astype(np.float32),
    "sin": np.sin(ANGLE).astype(np.float32),
}
TURNED = {"contiguous_layout": False}
ROPE_CASES = [
    Option("basic"),
    Option("lnc_shard", {"lnc_shard": True}),
    Option("interleaved", TURNED),
    Option("interleaved-lnc_shard", TURNED | {"lnc_shard": True}),
    Option("relayout_in_sbuf", TURNED | {"relayout_in_sbuf": True}),
    Option("relayout-contiguous", {"relayout_in_sbuf": True}),
    Option("bfloat16", {name: x.astype(BF16) for name, x in ROPE.items()}, tolerance=1e-2),
    Option("float16", {name: x.astype(np.float16) for name, x in ROPE.items()}, tolerance=2e-3),
    Option(
        "d_head-128",
        {"x_in": random((128, 1, 1, 4)), "cos": random((64, 1, 4)), "sin": random((64, 1, 4), seed=1)},
    ),
]
ROPE_REFUSED = refusals(
    x_in=None,
    x_in__rank=random((D, B, N)),
    x_in__depth=random((32, B, N, S)),
    x_in__dtype=np.zeros((D, B, N, S), np.int32),
    x_in__heads=random((D, 1, 17, 1)),
    cos=None,
    cos__shape=ROPE["cos"][:3],
    sin=1.0,
    sin__shape=ROPE["sin"][:, :1],
)
ROPE_REFUSED += [
    Option(
        "refuses-uneven-positions",
        {
            "lnc_shard": True,
            "x_in": random((D, B, N, 5)),
            "cos": ROPE["cos"][..., :5],
            "sin": ROPE["sin"][..., :5],
        },
        "lnc_shard",
        lnc=2,
    ),
    Option(
        "refuses-large-relayout",
        TURNED
        | {
            "relayout_in_sbuf": True,
            "x_in": random((D, 2, 16, 32)),
            "cos": random((32, 2, 32)),
            "sin": random((32, 2, 32)),
        },
        "relayout_in_sbuf",
    ),
]


@each(on_both(ROPE_CASES) + ROPE_REFUSED)
def test_rope(option: Option) -> None:
    check(option, RoPE, ROPE, rotated, 1e-5)


@nki.jit
def in_sbuf(x_in, cos, sin, convert_from_interleaved, in_place):
    tiles = []
    for tensor in (x_in, cos, sin):
        tiles.append(nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.sbuf))
        nisa.dma_copy(tiles[-1], tensor)
    place = tiles[0] if in_place else nl.ndarray(x_in.shape, x_in.dtype, buffer=nl.sbuf)
    found = RoPE_sbuf(tiles[0], tiles[1], tiles[2], place, convert_from_interleaved)
    out = nl.ndarray(x_in.shape, x_in.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, found)
    return out


@each(
    [
        Option(f"{c}-{p}", {"convert_from_interleaved": c, "in_place": p})
        for c in (False, True)
        for p in (False, True)
    ]
)
def test_rope_in_sbuf(option: Option) -> None:
    def expected(convert_from_interleaved: bool, in_place: bool, **o: Any) -> np.ndarray:
        found = rotated(**o, contiguous_layout=not convert_from_interleaved)
        return np.concatenate([found[0::2], found[1::2]]) if convert_from_interleaved else found

    check(option, in_sbuf, ROPE, expected, 1e-5)


HF: dict[str, Any] = {
    "q": random((B, 3, S, D)),
    "k": random((B, 2, S, D), seed=1),
    "q_out": np.zeros((B, 3, S, D), np.float32),
    "k_out": np.zeros((B, 2, S, D), np.float32),
    "cos": random((B, S, D), seed=2),
    "sin": random((B, S, D), seed=3),
}


def hf(
    q: Any, k: Any, cos: Any = None, sin: Any = None, rope_cache: Any = None, backward: bool = False, **_: Any
) -> Any:
    if rope_cache is not None:
        cos, sin = (np.broadcast_to(part, (B, S, D)) for part in np.split(rope_cache, 2, 1))
    found = []
    for x in (wide(q), wide(k)):
        c, s = wide(cos)[:, None], wide(sin)[:, None]
        half = D // 2
        if backward:
            z = x * s
            found.append(x * c + np.concatenate([z[..., half:], -z[..., :half]], -1))
        else:
            found.append(x * c + np.concatenate([-x[..., half:], x[..., :half]], -1) * s)
    return found


CACHE = {"cos": None, "sin": None, "rope_cache": random((S, 2 * D), seed=4)}
HF_CASES = [
    Option("basic"),
    Option("backward", {"backward": True}),
    Option("rope_cache", CACHE),
    Option("rope_cache-backward", CACHE | {"backward": True}),
    Option("bfloat16", {name: x.astype(BF16) for name, x in HF.items()}, tolerance=1e-2),
]
HF_REFUSED = refusals(
    q=None,
    q__rank=random((B, S, D)),
    k=random((B, 2, S, 8)),
    q_out=random((B, 3, S, 8)),
    k_out=None,
    cos=None,
    cos__shape=random((B, S, 8)),
    sin=None,
    rope_cache=CACHE["rope_cache"],
)


@each(on_both(HF_CASES) + HF_REFUSED)
def test_rope_hf(option: Option) -> None:
    check(option, rope_hf, HF, hf, 1e-5)


# ---- RMSNorm and quantisation --------------------------------------------------------------------

H = 96
ROW, STATIC = QuantizationType.ROW, QuantizationType.STATIC
NORM: dict[str, Any] = {
    "hidden": random((2, 7, H)),
    "ln_w": random((H,), seed=1),
    "kargs": RmsNormQuantKernelArgs(0.0),
}


def kargs(lower_bound: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {"kargs": RmsNormQuantKernelArgs(lower_bound, **fields)}


def quantised(
    hidden: Any,
    ln_w: Any,
    kargs: Any,
    input_dequant_scale: Any = None,
    pre_norm_gamma: Any = None,
    residual: Any = None,
    **o: Any,
) -> Any:
    """(values before rounding, scales or None, the sum or None)."""
    x = wide(hidden)

    def normed(x: np.ndarray, gamma: Any) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + kargs.eps) * wide(gamma).reshape(-1)

    x = x if pre_norm_gamma is None else normed(x, pre_norm_gamma)
    x = x if residual is None else x + wide(residual)
    n = normed(x, ln_w) if kargs.norm_type == NormType.RMS_NORM else x
    ocp = o.get("dtype_mode", DtypeMode.NON_OCP) != DtypeMode.NON_OCP or o.get("auto_resolve_fp8_dtype")
    largest = 448.0 if ocp else 240.0
    if kargs.quantization_type == STATIC:
        return np.clip(n / float(wide(input_dequant_scale).flat[0]), -largest, largest), None, x
    c = kargs.lower_bound or np.inf
    n = np.clip(n, -c, c)
    scale = np.maximum(np.abs(n).max(-1, keepdims=True) / largest, 1e-5)
    return n / scale, scale, x


SCALE = {"input_dequant_scale": np.full((128, 1), 2.0**-6, np.float32)}
NORM_CASES = [
    Option("basic"),
    Option("rows", {"hidden": random((5, H))}),
    Option("four-dimensions", {"hidden": random((2, 1, 3, H))}),
    Option("gamma-row", {"ln_w": random((1, H), seed=1)}),
    Option("bfloat16", {"hidden": random((2, 7, H), BF16), "ln_w": random((H,), BF16, 1)}),
    Option("float16", {"hidden": random((2, 7, H), np.float16)}),
    Option("zeros", {"hidden": np.zeros((2, 3, H), np.float32)}),
    Option("lower_bound", kargs(0.5)),
    Option("eps", kargs(eps=2.0)),
    Option("NO_NORM", kargs(norm_type=NormType.NO_NORM)),
    Option("NO_NORM-without-gamma", kargs(norm_type=NormType.NO_NORM) | {"ln_w": None}),
    Option("STATIC", kargs(quantization_type=STATIC) | SCALE),
    Option("STATIC-NO_NORM", kargs(quantization_type=STATIC, norm_type=NormType.NO_NORM) | SCALE),
    Option("pre_norm_gamma", {"pre_norm_gamma": random((1, H), seed=2)}),
    Option("residual", {"residual": random((2, 7, H), seed=3)}),
    Option(
        "residual-and-pre_norm",
        {"residual": random((2, 7, H), seed=3), "pre_norm_gamma": random((H,), seed=2)},
    ),
    Option("OCP", {"dtype_mode": DtypeMode.OCP}, on="trn3"),
    Option("AUTO", {"dtype_mode": DtypeMode.AUTO}, on="trn3"),
    Option("auto_resolve_fp8_dtype", {"auto_resolve_fp8_dtype": True}, on="trn3"),
]
NORM_REFUSED = refusals(
    hidden=None,
    hidden__list=[1.0],
    hidden__rank=random((H,)),
    hidden__dtype=np.zeros((2, H), np.int32),
    ln_w=None,
    ln_w__size=random((3,)),
    kargs=None,
    input_dequant_scale=SCALE["input_dequant_scale"],
    pre_norm_gamma=random((3,)),
    residual=random((2, 7, 3)),
)
NORM_REFUSED.append(
    Option("refuses-STATIC-without-scale", kargs(quantization_type=STATIC), "input_dequant_scale")
)


@each(on_both(NORM_CASES) + NORM_REFUSED)
def test_rmsnorm_quant(option: Option) -> None:
    if option.refused:
        check(option, rmsnorm_quant_kernel, NORM, quantised, 0.0)
        return
    arguments = NORM | option.changes
    got = run(rmsnorm_quant_kernel, **fresh(arguments), lnc=option.lnc, on=option.on)
    values, scales, total = quantised(**arguments)
    if "residual" in arguments:
        np.testing.assert_allclose(got[1].astype(np.float64), total, rtol=1e-5, atol=1e-5)
        got = got[0]
    if scales is not None:
        np.testing.assert_allclose(
            np.ascontiguousarray(got[..., -4:]).view(np.float32),
            scales,
            rtol=1e-4 if arguments["hidden"].dtype == np.float32 else 4e-3,
        )
        got = np.ascontiguousarray(got[..., :-4])
    assert fp8_steps(got, values.astype(np.float32).astype(got.dtype)) <= 1


@nki.jit
def helper(x, column, kind, dtype):
    """One of the helpers, from HBM to HBM."""
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    factor = nl.ndarray(column.shape, column.dtype, buffer=nl.sbuf)
    nisa.dma_copy(factor, column)
    if kind == "combine":
        found = pre_combine_dequant_scales(factor, tile)
    elif kind == "row":
        found = row_quantization(tile, dtype)[0]
    elif kind == "inverse":
        found = static_quantization(tile, None, quant_scale=factor, dtype=dtype)
    else:
        found = static_quantization(tile, factor, dtype=dtype)
    out = nl.ndarray(found.shape, found.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, found)
    return out


def helped(x: Any, column: Any, kind: str, dtype: Any) -> np.ndarray:
    x, c = wide(x), float(column[0, 0])
    largest = {nl.float8_e4m3: 240.0, nl.float8_e4m3fn: 448.0, nl.float8_e5m2: 57344.0}[dtype]
    if kind == "combine":
        return x * c
    if kind == "row":
        return x / (np.abs(x).max(-1, keepdims=True) / largest)
    return np.clip(x * c if kind == "inverse" else x / c, -largest, largest)


HELPED = {
    "x": random((128, 40), scale=20.0),
    "column": np.full((128, 1), 2.0**-4, np.float32),
    "kind": "static",
    "dtype": nl.float8_e4m3,
}


@each(
    [
        Option(
            f"{kind}-{dtype}",
            {"kind": kind, "dtype": getattr(nl, dtype)},
            "",
            1,
            "trn3",
            0.13 if dtype == "float8_e5m2" else 0.07,
        )
        for kind in ("static", "inverse", "row", "combine")
        for dtype in ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")
    ]
)
def test_fp8_helpers(option: Option) -> None:
    check(option, helper, HELPED, helped, 0.07)
