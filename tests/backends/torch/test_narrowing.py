"""Products that are only rounded to bfloat16 and stored are computed where they are stored."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine import dtypes
from support import loaded, target

torch = pytest.importorskip("torch")
from backend_agreement import assert_agrees, torch_devices  # noqa: E402
from nki.backends.lowered import lower  # noqa: E402
from nki.backends.torch.gemms import BatchedGemm  # noqa: E402
from nki.backends.torch.steps import device_plan_of  # noqa: E402

DEVICES = torch_devices()
BF16 = dtypes.bfloat16.storage


@pytest.fixture(autouse=True, params=DEVICES)
def device(request):
    with target("trn2"):
        yield DEVICES[request.param]


@nki.jit
def rounded(left, right, dtype: str = "bfloat16", use: str = "", columns: int = 64):
    """left.T @ right by tiles, rounded by two engines in turn, some columns at a time."""
    (k, m), n = left.shape, right.shape[1]
    out = nl.ndarray((m, n), dtype, buffer=nl.shared_hbm)
    other = nl.ndarray((m, n), nl.float32, buffer=nl.shared_hbm)
    for row in range(0, m, 32):
        for column in range(0, n, columns):
            psum = nl.ndarray((32, columns), nl.float32, buffer=nl.psum)
            for term in range(0, k, 64):
                a, b = (
                    left[term : term + 64, row : row + 32],
                    right[term : term + 64, column : column + columns],
                )
                nisa.nc_matmul(psum, loaded(a), loaded(b))
            tile = nl.ndarray((32, columns), dtype)
            if use == "scale":
                nisa.activation(tile, nl.copy, psum, scale=2.0)
            elif row % 64:
                nisa.activation(tile, nl.copy, psum)
            else:
                nisa.tensor_copy(tile, psum)
            nisa.dma_copy(out[row : row + 32, column : column + columns], tile)
            if use == "both":
                wide = nl.ndarray((32, columns), nl.float32)
                nisa.tensor_copy(wide, psum)
                nisa.dma_copy(other[row : row + 32, column : column + columns], wide)
    return (out, other) if use == "both" else out


def factors(dtype=BF16):
    """Return factors of small whole numbers: their sums are exact, and need rounding."""
    chance = np.random.default_rng(0)
    return [
        chance.integers(-16, 17, shape).astype(np.float32).astype(dtype) for shape in ((128, 96), (128, 192))
    ]


def products(program):
    plan = device_plan_of(lower(program))
    return [str(step.results.layout.dtype) for step in plan.steps if isinstance(step, BatchedGemm)], len(
        plan.steps
    )


def test_a_product_is_rounded_where_it_is_stored(device):
    given = factors()
    program = rounded.trace(*given)
    assert products(program) == (["bfloat16"], 1)
    assert assert_agrees(program, given, "torch", exact=True, **device) == "ran"


@pytest.mark.parametrize(
    "options", [{"use": "scale"}, {"use": "both"}, {"dtype": "float16"}, {"dtype": "float32"}], ids=str
)
def test_what_is_used_otherwise_has_float32_sums(device, options):
    given = factors()
    program = rounded.trace(*given, **options)
    dtypes_of_products, steps = products(program)
    assert set(dtypes_of_products) == {"float32"} and (steps > 1 or options == {"dtype": "float32"})
    assert assert_agrees(program, given, "torch", exact=True, **device) == "ran"


def test_wide_factors_have_float32_sums(device):
    given = factors(np.float32)
    program = rounded.trace(*given)
    assert products(program)[0] == ["float32"]
    assert assert_agrees(program, given, "torch", exact=True, **device) == "ran"
