"""Every option of the three convolutions, against sums written out over taps."""

from __future__ import annotations

import itertools
import math

import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both, refusals

from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.conv.conv1d import conv1d
from nkilib.experimental.conv.conv3d import conv3d
from nkilib.experimental.conv.depthwise_conv1d import depthwise_conv1d_implicit_gemm

ACTIVATIONS = {
    None: lambda x: x,
    ActFnType.SiLU: lambda x: x / (1 + np.exp(-x)),
    ActFnType.Swish: lambda x: x / (1 + np.exp(-x)),
    ActFnType.GELU: lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    ActFnType.GELU_Tanh_Approx: lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    ActFnType.ReLU: lambda x: np.maximum(x, 0),
}


def convolved(x, filters, bias, stride, pairs, dilation, activation) -> np.ndarray:
    """x [B, C, spatial], filters [taps, C, O]: one einsum for each tap."""
    axes = range(len(stride))
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pairs])
    taps = filters.shape[: len(stride)]
    sizes = [(x.shape[i + 2] - dilation[i] * (taps[i] - 1) - 1) // stride[i] + 1 for i in axes]
    out = np.zeros((x.shape[0], filters.shape[-1], *sizes))
    for tap in itertools.product(*(range(n) for n in taps)):
        place = tuple(
            slice(tap[i] * dilation[i], tap[i] * dilation[i] + stride[i] * (sizes[i] - 1) + 1, stride[i])
            for i in axes
        )
        out += np.einsum(
            "bc...,co->bo...", x[(slice(None), slice(None), *place)], filters[tap].astype(np.float64)
        )
    if bias is not None:
        out += bias.astype(np.float64).reshape(1, -1, *([1] * len(stride)))
    return ACTIVATIONS[activation](out)


# ---- conv1d ------------------------------------------------------------------------------------------

ONE = {"x_in": random((2, 5, 40)), "filters": random((3, 5, 7), seed=1), "bias": random(7, seed=2)}


def one(x_in, filters, bias=None, stride=1, padding=(0, 0), dilation=1, activation_fn=None, lnc_shard=False):
    return convolved(x_in, filters, bias, (stride,), [padding], (dilation,), activation_fn)


def one_cases() -> list[Option]:
    made = [Option("basic"), Option("no-bias", {"bias": None}), Option("lnc_shard", {"lnc_shard": True})]
    made += [Option(f"stride-{s}", {"stride": s}) for s in (2, 3, 7, 40)]
    made += [Option(f"padding-{p}", {"padding": p}) for p in ((1, 1), (0, 5), (9, 0), (50, 3))]
    made += [Option(f"dilation-{d}", {"dilation": d}) for d in (2, 5, 19)]
    made += [Option(f"act-{a.name}", {"activation_fn": a}) for a in ACTIVATIONS if a is not None]
    made += [Option(f"taps-{k}", {"filters": random((k, 5, 7), seed=1)}) for k in (1, 2, 16, 40)]
    for c in (1, 128, 130):
        x, f = random((1, c, 20)), random((2, c, 7), seed=1)
        made.append(Option(f"channels-{c}", {"x_in": x, "filters": f}))
    wide = {"filters": random((1, 5, 200), seed=1), "bias": random(200, seed=2)}
    made.append(Option("200-outputs", wide))
    made.append(Option("600-positions", {"x_in": random((1, 5, 700)), "stride": 1}))
    made.append(Option("everything", {"stride": 2, "padding": (3, 2), "dilation": 3, "lnc_shard": True}))
    for dtype, tolerance in (("bfloat16", 2**-8), ("float16", 2**-11)):
        cast = {name: x.astype(dtype) for name, x in ONE.items()}
        made.append(Option(dtype, cast, tolerance=tolerance))
    return made


@each(on_both(one_cases()))
def test_conv1d(option):
    check(option, conv1d, ONE, one, 1e-5)


ONE_REFUSED = refusals(
    x_in=None,
    x_in__rank=random((5, 40)),
    x_in__dtype=np.ones((2, 5, 40), np.int32),
    filters=None,
    filters__rank=random((5, 7)),
    filters__channels=random((3, 4, 7)),
    filters__dtype=random((3, 5, 7), "bfloat16"),
    filters__taps=random((41, 5, 7)),
    bias=random(6),
    bias__number=1.0,
    stride=0,
    stride__tuple=(1,),
    stride__none=None,
    padding=1,
    padding__three=(1, 1, 1),
    padding__negative=(-1, 0),
    padding__none=None,
    dilation=0,
    dilation__tuple=(2,),
    activation_fn=ActFnType.SquaredReLU,
    activation_fn__text="silu",
)


@each(ONE_REFUSED)
def test_conv1d_refusals(option):
    check(option, conv1d, ONE, one, 1e-5)


# ---- conv3d ------------------------------------------------------------------------------------------

THREE = {
    "x_in": random((1, 3, 4, 6, 5)),
    "filters": random((2, 3, 2, 3, 4), seed=1),
    "bias": random(4, seed=2),
}


def three(
    x_in,
    filters,
    bias=None,
    stride=(1, 1, 1),
    padding=(0,) * 6,
    dilation=(1, 1, 1),
    activation_fn=None,
    lnc_shard=False,
):
    pairs = [padding[0:2], padding[2:4], padding[4:6]]
    return convolved(x_in, filters, bias, stride, pairs, dilation, activation_fn)


def three_cases() -> list[Option]:
    made = [Option("basic"), Option("no-bias", {"bias": None}), Option("lnc_shard", {"lnc_shard": True})]
    made += [Option(f"stride-{s}", {"stride": s}) for s in ((2, 1, 1), (1, 3, 1), (1, 1, 4), (3, 2, 2))]
    for padding in ((1, 0, 0, 0, 0, 0), (0, 2, 0, 0, 0, 0), (0, 0, 1, 3, 0, 0), (0, 0, 0, 0, 4, 1)):
        made.append(Option(f"padding-{padding}", {"padding": padding}))
    made += [Option(f"dilation-{d}", {"dilation": d}) for d in ((3, 1, 1), (1, 2, 1), (1, 1, 4))]
    made += [Option(f"act-{a.name}", {"activation_fn": a}) for a in ACTIVATIONS if a is not None]
    made.append(Option("two-batches", {"x_in": random((2, 3, 4, 6, 5))}))
    made.append(Option("one-tap", {"filters": random((1, 1, 1, 3, 4), seed=1)}))
    made.append(Option("bfloat16", {n: x.astype("bfloat16") for n, x in THREE.items()}, tolerance=2**-8))
    return made


@each(on_both(three_cases()))
def test_conv3d(option):
    check(option, conv3d, THREE, three, 1e-5)


THREE_REFUSED = refusals(
    x_in=None,
    x_in__rank=random((1, 3, 4, 6)),
    filters=None,
    filters__rank=random((2, 3, 2, 3)),
    filters__channels=random((2, 3, 2, 2, 4)),
    bias=random(5),
    stride=1,
    stride__two=(1, 1),
    stride__zero=(1, 0, 1),
    padding=1,
    padding__three=(1, 1, 1),
    dilation=2,
    dilation__zero=(0, 1, 1),
    activation_fn=ActFnType.SquaredReLU,
)


@each(THREE_REFUSED)
def test_conv3d_refusals(option):
    check(option, conv3d, THREE, three, 1e-5)


# ---- depthwise ---------------------------------------------------------------------------------------

DEPTHWISE = {"img_ref": random((2, 6, 1, 30)), "filter_ref": random((6, 1, 1, 4), seed=1)}


def depthwise(img_ref, filter_ref, padding=((0, 0), (0, 0)), stride=(1, 1), **unused):
    x = np.pad(img_ref.astype(np.float64), [(0, 0), (0, 0), *padding])
    taps, step = filter_ref.shape[3], stride[1]
    size = (x.shape[3] - taps) // step + 1
    out = np.zeros((*x.shape[:3], size))
    for s in range(taps):
        out += (
            x[..., s : s + step * (size - 1) + 1 : step]
            * filter_ref.astype(np.float64)[None, :, 0, :, s, None]
        )
    return out


def depthwise_cases() -> list[Option]:
    made = [Option("basic"), Option("groups", {"feature_group_count": 6})]
    made += [Option(f"stride-{s}", {"stride": (1, s)}) for s in (2, 3, 26)]
    made += [Option(f"padding-{p}", {"padding": ((0, 0), p)}) for p in ((3, 3), (0, 7), (12, 0))]
    made += [Option(f"taps-{s}", {"filter_ref": random((6, 1, 1, s), seed=1)}) for s in (1, 2, 30)]
    for c in (2, 128, 260):
        x, f = random((1, c, 1, 20)), random((c, 1, 1, 3), seed=1)
        made.append(Option(f"channels-{c}", {"img_ref": x, "filter_ref": f}))
    cast = {n: x.astype("bfloat16") for n, x in DEPTHWISE.items()}
    made.append(Option("bfloat16", cast, tolerance=2**-8))
    return made


@each(on_both(depthwise_cases()))
def test_depthwise(option):
    check(option, depthwise_conv1d_implicit_gemm, DEPTHWISE, depthwise, 1e-5)


DEPTHWISE_REFUSED = refusals(
    img_ref=None,
    img_ref__height=random((2, 6, 2, 30)),
    filter_ref=None,
    filter_ref__channels=random((5, 1, 1, 4)),
    filter_ref__dtype=random((6, 1, 1, 4), "bfloat16"),
    padding=1,
    padding__height=((1, 1), (0, 0)),
    padding__flat=(1, 1),
    padding__negative=((0, 0), (-1, 0)),
    stride=2,
    stride__height=(2, 1),
    stride__zero=(1, 0),
    rhs_dilation=(1, 2),
    rhs_dilation__number=1,
    lhs_dilation=(1, 2),
    feature_group_count=2,
    batch_group_count=2,
    in_perm=(0, 1, 2, 3),
    kern_perm=(0, 1, 2, 3),
    out_perm=(0, 1, 2, 3),
)


@each(DEPTHWISE_REFUSED)
def test_depthwise_refusals(option):
    check(option, depthwise_conv1d_implicit_gemm, DEPTHWISE, depthwise, 1e-5)
