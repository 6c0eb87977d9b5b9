"""Scans, running reductions and bounds of sequences run on a device."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.lowered import lower
from support import loaded, stored, target

torch = pytest.importorskip("torch")
from backend_agreement import agrees_on_device, torch_devices  # noqa: E402
from nki.backends.torch import kernels  # noqa: E402
from nki.backends.torch.kernels import StepKernels  # noqa: E402
from nki.backends.torch.steps import device_plan_of  # noqa: E402

DEVICES = torch_devices()
on_every_device = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
CHANCE = np.random.default_rng(11)
ANY = [CHANCE.standard_normal((64, 24)).astype(np.float32) for _ in range(2)]
WHOLE = [CHANCE.integers(-3, 4, (64, 24)).astype(np.float32) for _ in range(2)]  # any order sums the same
SIGNS = [np.where(x < 0, np.float32(-0.5), np.float32(2)) for x in WHOLE]  # any order multiplies the same
STEPS = [(nl.multiply, nl.add), (nl.add, nl.multiply), (nl.maximum, nl.subtract), (nl.greater, nl.add)]


@nki.jit
def scan(a, b, op0, op1, reverse0, reverse1):
    results = []
    for start in (0, 32):  # two instructions, one step
        x, y = loaded(a[start : start + 32]), loaded(b[start : start + 32])
        out = nl.ndarray((32, 24), nl.float32)
        nisa.tensor_tensor_scan(out, x, y, x[:, 0:1], op0, op1, reverse0=reverse0, reverse1=reverse1)
        results.append(stored(out))
    return tuple(results)


@nki.jit
def cumulate(a, op):
    tile, out, more = loaded(a), nl.ndarray((64, 24), nl.float32), nl.ndarray((64, 24), nl.bfloat16)
    nisa.tensor_scalar_cumulative(out, tile, nl.multiply, op, 1.0)
    nisa.tensor_scalar_cumulative(more, tile, nl.multiply, op, 1.0, reduce_cmd=nisa.reduce_cmd.reduce)
    return stored(out), stored(more)


@nki.jit
def bounds(ids):
    out = nl.ndarray((1, 2, ids.shape[1]), nl.int32)
    nisa.sequence_bounds(out, loaded(ids))
    return stored(out)


def agree(kernel, arrays, options, device, **exactness):
    assert agrees_on_device(kernel, arrays, options, device, **exactness) == "ran"


@on_every_device
@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
@pytest.mark.parametrize("ops", STEPS, ids=lambda ops: "-".join(op.__name__ for op in ops))
def test_a_scan_takes_its_steps_in_order_with_the_bits_of_the_reference(ops, reverse0, reverse1, device):
    agree(scan, ANY, (*ops, reverse0, reverse1), device)


@on_every_device
@pytest.mark.parametrize("op1", [nl.add, nl.subtract], ids=["add", "subtract"])
def test_a_scan_of_sums_is_a_running_sum(op1, device):
    agree(scan, WHOLE, (nl.add, op1, False, False), device)


@on_every_device
@pytest.mark.parametrize(
    ("op", "data"),
    [(nl.add, WHOLE), (nl.subtract, WHOLE), (nl.multiply, SIGNS), (nl.maximum, ANY), (nl.minimum, ANY)],
    ids=["add", "subtract", "multiply", "maximum", "minimum"],
)
def test_running_reductions_start_from_the_registers(op, data, device):
    agree(cumulate, data[:1], (op,), device)


@on_every_device
@pytest.mark.parametrize("op", [nl.maximum, nl.minimum], ids=["maximum", "minimum"])
def test_a_nan_stays_in_a_running_maximum(op, device):
    data = ANY[0].copy()
    data[::3, 7] = np.nan
    data[1, 3:5] = np.inf, -np.inf
    agree(cumulate, [data], (op,), device, tolerance=1e-9)  # the bits of a NaN may differ


@on_every_device
@pytest.mark.parametrize("ids", [[1, 1, 2, 2, 2, 0, 0, 3], [5], [0, 0], [4, 0, 4, 4]], ids=str)
def test_bounds_of_sequences(ids, device):
    agree(bounds, [np.array([ids], np.int32)], (), device)


def test_a_loop_over_steps_is_not_compiled(monkeypatch):
    monkeypatch.setattr(kernels, "LARGE", 0)
    with target("trn3"):
        plan = device_plan_of(lower(scan.trace(*ANY, nl.multiply, nl.add, False, False)))
    compiled = []
    made = StepKernels(torch, torch.device("cpu"), lambda graph, inputs: compiled.append(graph))
    made.ask(plan)
    made.finish()
    assert not made.take(plan) and not compiled  # a problem would warn, and warnings are errors here
