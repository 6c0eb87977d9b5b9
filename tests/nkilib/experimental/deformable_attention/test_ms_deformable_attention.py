"""Multi-scale deformable attention and its gradients against torch's grid_sample in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.deformable_attention import (
    ms_deformable_attention,
    ms_deformable_attention_bwd,
    ms_deformable_attention_ref,
)

SHAPES = ((3, 5), (2, 2), (1, 4))
NAMES = ("value", "sampling_locations", "attention_weights")


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [ms_deformable_attention, ms_deformable_attention_bwd])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def call(shapes=SHAPES, batch=2, queries=7, heads=3, size=4, points=2, dtype="float32", seed=0, **options):
    """Arguments with locations inside and outside the levels."""
    rng = np.random.default_rng(seed)
    cells = [height * width for height, width in shapes]
    places = rng.uniform(-0.4, 1.4, (batch, queries, heads, len(shapes), points, 2)).astype(np.float32)
    weights = rng.uniform(0, 1, places.shape[:-1]).astype(np.float32)
    return {
        "value": random((batch, sum(cells), heads, size), dtype, seed),
        "spatial_shapes": shapes,
        "level_start_index": tuple(int(n) for n in np.cumsum([0, *cells[:-1]])),
        "sampling_locations": places,
        "attention_weights": weights,
    } | options


def by_torch(value, spatial_shapes, sampling_locations, attention_weights, **options):
    """The result from leaves in float64, in whichever layout they are."""
    if options.get("value_layout") == "BNLC":
        value = value.transpose(1, 2)
    if options.get("sampling_locations_layout") == "B2QHLP":
        sampling_locations = sampling_locations.movedim(1, -1)
    batch, queries, heads, _, points = attention_weights.shape
    total, first = 0, 0
    for level, (height, width) in enumerate(spatial_shapes):
        cells = value[:, first : first + height * width]
        first += height * width
        image = cells.permute(0, 2, 3, 1).reshape(batch * heads, -1, height, width)
        grid = (2 * sampling_locations[:, :, :, level] - 1).transpose(1, 2).reshape(-1, queries, points, 2)
        taken = torch.nn.functional.grid_sample(
            image,
            grid,
            "bilinear",
            options.get("padding_mode", "zeros"),
            options.get("align_corners", False),
        ).reshape(batch, heads, -1, queries, points)
        weights = attention_weights[:, :, :, level].transpose(1, 2)
        total = total + torch.einsum("bhcqp,bhqp->bqhc", taken, weights)
    return total.reshape(batch, queries, -1)


def leaves(arguments):
    return {
        name: torch.tensor(arguments[name].astype(np.float64), requires_grad=name in NAMES)
        if name in NAMES
        else arguments[name]
        for name in arguments
        if name != "level_start_index"
    }


def reference(**arguments):
    return by_torch(**leaves(arguments)).detach().numpy()


def b2qhlp(arguments):
    places = np.ascontiguousarray(np.moveaxis(arguments["sampling_locations"], -1, 1))
    return arguments | {"sampling_locations": places, "sampling_locations_layout": "B2QHLP"}


def bnlc(arguments):
    value = np.ascontiguousarray(arguments["value"].swapaxes(1, 2))
    return arguments | {"value": value, "value_layout": "BNLC"}


BASIC = call()
LARGE = call(shapes=((9, 11), (6, 5)), batch=1, queries=130, heads=2, size=8, points=3)
CASES = [
    Option("basic"),
    Option("border", {"padding_mode": "border"}),
    Option("corners", {"align_corners": True}),
    Option("both-options", {"align_corners": True, "padding_mode": "border"}),
    Option("b2qhlp", b2qhlp(BASIC)),
    Option("bnlc", bnlc(BASIC)),
    Option("both-layouts", bnlc(b2qhlp(BASIC)) | {"padding_mode": "border"}),
    Option("130-queries", LARGE),
    Option("130-queries-bnlc", bnlc(LARGE)),
    Option("one-cell", call(((1, 1), (1, 2), (2, 1)), queries=3)),
    Option("one-head-one-point", call(heads=1, points=1, batch=1)),
    Option("wide-heads", call(((4, 4),), size=600, batch=1, queries=2, heads=1)),
    Option("many-points", call(((4, 4),), size=64, batch=1, queries=2, heads=1, points=20)),
    Option("bfloat16", call(dtype="bfloat16"), tolerance=2**-8),
    Option("float16", call(dtype="float16"), tolerance=2**-11),
]
ON = [Option("trn3", on="trn3"), Option("trn1", on="trn1")]
WRONG = refusals(value=None, value__rank=random((2, 3)), value__dtype=np.ones((2, 23, 3, 4), np.int32))
WRONG += refusals(value_layout="BCLN", sampling_locations_layout="BQHL", padding_mode="reflect")
WRONG += refusals(spatial_shapes=((3, 5),), spatial_shapes__cells=((3, 5), (2, 2), (1, 5)))
WRONG += refusals(level_start_index=(0, 15, 20), sampling_locations=random((2, 7, 3, 3, 2)))
WRONG += refusals(attention_weights=random((2, 7, 3, 3, 1)), attention_weights__none=None)
WRONG[6] = WRONG[6]._replace(refused="level_start_index")


@each(on_both(CASES, slow=True) + ON + WRONG)
def test_forward(option):
    check(option, ms_deformable_attention, BASIC, reference, 1e-6)


@each(on_both(CASES, slow=True) + ON)
def test_backward(option):
    arguments = BASIC | option.changes
    given = leaves(arguments)
    out = by_torch(**given)
    dy = random(out.shape, arguments["value"].dtype, seed=3)
    out.backward(torch.tensor(dy.astype(np.float64)))
    got = run(ms_deformable_attention_bwd, dy, **arguments, lnc=option.lnc, on=option.on)
    for name, grad in zip(NAMES, got, strict=True):
        assert grad.dtype == arguments[name].dtype
        near(grad, given[name].grad.numpy(), max(option.tolerance or 0, 2e-6))


@each(refusals(grad_output=random((2, 7, 11)), grad_output__none=None, value_layout="x"))
def test_backward_refusals(option):
    basic = {"grad_output": random((2, 7, 12))} | BASIC
    check(option, ms_deformable_attention_bwd, basic, lambda **_: None, 0.0)


def test_the_reference_beside_the_kernel_agrees():
    for options in ({}, {"align_corners": True}, {"padding_mode": "border"}):
        near(ms_deformable_attention_ref(**BASIC, **options), reference(**BASIC, **options), 1e-12)


def test_points_that_share_a_patch_are_added_up():
    """All 200 queries sample one place: 200 gradients end in four cells."""
    arguments = call(((3, 3),), batch=1, queries=200, heads=1, size=2, points=1)
    arguments["sampling_locations"][:] = 0.4
    dy = random((1, 200, 2), seed=1)
    grad = run(ms_deformable_attention_bwd, dy, **arguments)[0]
    given = leaves(arguments)
    by_torch(**given).backward(torch.tensor(dy.astype(np.float64)))
    near(grad, given["value"].grad.numpy(), 2e-6)


def test_is_differentiable_in_torch():
    given = {name: torch.tensor(BASIC[name], requires_grad=True) for name in NAMES}
    out = autograd.ms_deformable_attention(
        given["value"],
        SHAPES,
        BASIC["level_start_index"],
        given["sampling_locations"],
        given["attention_weights"],
    )
    (out**2).sum().backward()
    expected = leaves(BASIC)
    (by_torch(**expected) ** 2).sum().backward()
    for name in NAMES:
        near(given[name].grad.numpy(), expected[name].grad.numpy(), 2e-6)
