"""Runs a program on several backends and compares everything that a caller can see."""

from __future__ import annotations

import contextlib
import io
import warnings

import numpy as np
import pytest

import nki
from nki.backends.fused.backend import FusedBackend
from nki.backends.fused.planner import plan_of
from nki.backends.fused.steps import FusedPlan
from nki.backends.lowered import lower
from nki.backends.reference import random as random_state
from nki.backends.torch.backend import TorchBackend, complete_plan
from nki.backends.torch.schedule import Refused
from nki.ir.tree import replace_leaves
from nki.ir.view import View
from nki.options import from_environment
from support import target

BACKENDS = {"fused": FusedBackend, "torch": TorchBackend}  # which are compared with the reference


def outcome(program, arrays, executor, **environment):
    """Return results, arguments, printed text, warnings and random state; or the error."""
    random_state.reset()
    arrays = [a.copy() for a in arrays]
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(printed),
    ):
        patch.setenv("OPEN_NKI_EXECUTOR", executor)
        for name, value in environment.items():
            patch.setenv(name, value)
        warnings.simplefilter("always")
        try:
            values = [program.run(*arrays), arrays]
        except nki.NkiError as problem:
            values = [problem.kind, problem.message]
    shown = [str(w.message) for w in caught if getattr(w.category, "kind", "") != "device-copy"]
    state = {key: words.tobytes() for key, words in sorted(random_state._left.items())}
    return values, [printed.getvalue(), shown, state]


def assert_agrees(program, arrays, backend="fused", exact=False, tolerance=None, **environment):
    """Compare a backend with the reference; return "ran", "dropped" for the reference, or "" if refused.

    Of torch "in order" if it ran without a plan. Sums of products may differ in the last places, if they
    are not of small integers; on torch all sums may.
    """
    kind, ran = BACKENDS[backend], []
    with nki.options(executor=backend):
        if kind().refusal(lower(program), from_environment()):
            return ""
    with pytest.MonkeyPatch.context() as patch:
        run = kind.run
        patch.setattr(kind, "run", lambda self, *given: (ran.append(run(self, *given)), ran[-1])[1])
        found, too = outcome(program, arrays, backend, **environment)
    wanted, beside = outcome(program, arrays, "reference")
    assert beside == too
    plan = plan_of(lower(program), forced=True)
    has_products = isinstance(plan, FusedPlan) and any(True for _ in plan.products)
    sums = not exact and (backend == "torch" or has_products)
    for one, other in zip(leaves(wanted), leaves(found), strict=True):
        if not isinstance(one, np.ndarray):
            assert one == other
        elif one.tobytes() != other.tobytes():
            assert sums, "no sum of products, and other bits"
            assert_close(one, other, tolerance)
    if backend == "torch" and any(ran) and isinstance(complete_plan(lower(program)), Refused):
        return "in order"
    return "ran" if any(ran) else "dropped"


def assert_close(wanted, found, tolerance=None):
    """Compare arrays whose sums were computed in another order."""
    assert wanted.shape == found.shape and wanted.dtype == found.dtype
    bound = tolerance or (2e-2 if wanted.dtype.itemsize < 4 else 1e-4)
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    finite = np.abs(a[np.isfinite(a)])
    scale = finite.max() if finite.size else 1.0
    np.testing.assert_allclose(b, a, rtol=bound, atol=bound * scale)


@contextlib.contextmanager
def nothing_goes_to_the_host():
    """Fail where an instruction of a program on a device runs on the host."""
    from nki.backends.torch import in_order, instructions

    def refuse(instruction, where, why):
        raise AssertionError(f"{instruction.public} runs on the host: {why}")

    with pytest.MonkeyPatch.context() as patch:
        for module in (in_order, instructions):
            patch.setattr(module, "warn_copies", refuse)
        yield


def torch_devices():
    """Return the environment of each device that tests of the torch backend run on, by its name."""
    import torch

    return {"cpu": {}, **({"cuda": {"OPEN_NKI_DEVICE": "cuda"}} if torch.cuda.is_available() else {})}


def agrees_on_device(kernel, arrays, options, device, **exactness):
    """Compare a kernel on trn3 with the reference, bit for bit unless told; nothing goes to the host."""
    with target("trn3"), nothing_goes_to_the_host():
        program = kernel.trace(*arrays, *options)
        return assert_agrees(program, arrays, "torch", **(exactness or {"exact": True}), **device)


def torch_results(program, arrays, device="cpu"):
    """Return what a program returns on a torch device as numpy arrays; or why it does not run there."""
    import torch

    from nki.backends.torch.graphs import run
    from nki.backends.torch.schedule import Refused
    from nki.backends.torch.steps import device_plan_of
    from nki.frameworks.torch import from_numpy, to_numpy
    from nki.kernel.devices import part_of, torch_name

    plan = device_plan_of(lower(program))
    if isinstance(plan, Refused):
        return str(plan)
    given = {
        storage: from_numpy(np.ascontiguousarray(array)).to(device)
        for (_, storage), array in zip(program.parameters, arrays, strict=True)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(plan, given, device)
    if found is None:
        return "a diagnostic is to be reported"

    def back(view):
        if view.storage not in found:
            return None
        tensor = part_of(found[view.storage].view(getattr(torch, torch_name(view.dtype))), view)
        return to_numpy(tensor.cpu()).view(view.dtype.storage)

    return replace_leaves(program.result, View, back)


def leaves(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value
