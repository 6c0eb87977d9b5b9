"""conv3d_transpose and conv3d_temporal_unroll against torch in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, on_both, refusals

from nkilib.core.utils.allocator import SbufManager, create_auto_alloc_manager
from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.conv.conv3d_temporal_unroll import conv3d_temporal_unroll, should_use_temporal_unroll
from nkilib.experimental.conv.conv3d_transpose import conv3d_transpose


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [conv3d_transpose, conv3d_temporal_unroll])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


ACT = {None: lambda y: y, ActFnType.ReLU: torch.relu, ActFnType.SiLU: torch.nn.functional.silu}


def wide(x):
    return None if x is None else torch.tensor(np.asarray(x, np.float64))


def transposed(
    x_in,
    filters,
    bias=None,
    stride=(1, 1, 1),
    padding=(0, 0, 0),
    dilation=(1, 1, 1),
    activation_fn=None,
    filter_shape="KDHW_CI_CO",
    **how,
):
    rows = filters if filter_shape == "KDHW_CI_CO" else np.swapaxes(filters, 3, 4)
    weights = wide(np.flip(rows, (0, 1, 2)).transpose(3, 4, 0, 1, 2).copy())
    y = torch.nn.functional.conv_transpose3d(wide(x_in), weights, wide(bias), stride, padding, 0, 1, dilation)
    return ACT[activation_fn](y).numpy()


def volume(b=1, ci=3, co=4, size=(3, 4, 5), taps=(2, 3, 2), dtype="float32"):
    return {"x_in": random((b, ci, *size), dtype), "filters": random((*taps, ci, co), dtype, seed=1)}


BASIC = volume() | {"lnc_shard": True}
CASES = [
    Option("basic"),
    Option("stride", {"stride": (2, 2, 2)}),
    Option("stride-3", {"stride": (3, 1, 2)}),
    Option("gaps", volume(taps=(1, 1, 1)) | {"stride": (2, 3, 2)}),
    Option("padding", {"padding": (1, 2, 1)}),
    Option("stride-padding", {"stride": (2, 2, 2), "padding": (1, 1, 0)}),
    Option("dilation", {"dilation": (2, 1, 3)}),
    Option("all", {"stride": (2, 3, 2), "padding": (1, 0, 1), "dilation": (1, 2, 2)}),
    Option("even-dilation", {"stride": (2, 2, 1), "dilation": (2, 2, 1)}),
    Option("bias", {"bias": random(4, seed=2)}),
    Option(
        "gap-bias",
        volume(taps=(1, 1, 1)) | {"stride": (2, 2, 2), "bias": random(4), "activation_fn": ActFnType.ReLU},
    ),
    Option("silu", {"activation_fn": ActFnType.SiLU}),
    Option("swapped", {"filters": random((2, 3, 2, 4, 3)), "filter_shape": "KDHW_CO_CI"}),
    Option("batch", volume(b=2) | {"stride": (1, 2, 2)}),
    Option("130-channels", volume(ci=130, co=5, size=(1, 2, 3))),
    Option("one-core", {"lnc_shard": False}),
    Option("auto", {"sbm": create_auto_alloc_manager(), "use_auto_allocation": True}),
    Option("bfloat16", volume(dtype="bfloat16") | {"stride": (2, 2, 2)}, tolerance=2**-7),
]
WRONG = refusals(x_in=None, filters=None, x_in__rank=random((3, 4)), filters__rank=random((3, 4)), stride=2)
WRONG += refusals(stride__zero=(1, 0, 1), padding=(1, 1), padding__many=(9, 0, 0), dilation=(0, 1, 1))
WRONG += refusals(filter_shape="x", bias=random(5), activation_fn="x", sbm=SbufManager(0, 1000))
WRONG += refusals(filters__channels=random((2, 2, 2, 5, 4)))


@each(on_both(CASES) + WRONG + [Option("trn3", on="trn3")])
def test_conv3d_transpose(option):
    check(option, conv3d_transpose, BASIC, transposed, 1e-5)


def convolved(
    x_in,
    filters,
    bias=None,
    stride=(1, 1, 1),
    padding=(0,) * 6,
    dilation=(1, 1, 1),
    activation_fn=None,
    lnc_shard=False,
):
    padded = np.pad(x_in, [(0, 0), (0, 0), *zip(padding[::2], padding[1::2], strict=True)])
    weights = wide(filters.transpose(4, 3, 0, 1, 2).copy())
    y = torch.nn.functional.conv3d(wide(padded), weights, wide(bias), stride, 0, dilation)
    return ACT[activation_fn](y).numpy()


UNROLLED = [
    Option("basic"),
    Option("stride", {"stride": (1, 2, 3)}),
    Option("padding", {"padding": (1, 0, 2, 1, 0, 1)}),
    Option("dilation", {"dilation": (2, 1, 2)}),
    Option("bias", {"bias": random(4, seed=2)}),
    Option("relu", {"activation_fn": ActFnType.ReLU}),
    Option("wide", volume(co=2, size=(2, 3, 600), taps=(2, 1, 3))),
    Option("bfloat16", volume(dtype="bfloat16"), tolerance=2**-7),
]


@each(
    on_both(UNROLLED)
    + [Option("trn3", on="trn3")]
    + refusals(x_in=None, stride=2, padding=(1,), bias=random(5))
)
def test_conv3d_temporal_unroll(option):
    check(option, conv3d_temporal_unroll, BASIC, convolved, 1e-5)


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ((16, 8, 64, 3, 1024), True),
        ((16, 9, 64, 3, 1024), False),
        ((16, 8, 8, 3, 1024), False),
        ((16, 8, 64, 3, 512), False),
    ],
)
def test_should_use_temporal_unroll(shape, fits):
    assert should_use_temporal_unroll(*shape) is fits
