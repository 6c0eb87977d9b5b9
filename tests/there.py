"""A program on torch tensors, beside one instruction at a time in numpy."""

from __future__ import annotations

import warnings

import numpy as np

from both_ways import leaves, outcome
from nki.backends.torch.runner import part_of, run
from nki.backends.torch.schedule import Refused
from nki.backends.torch.steps import device_plan_of
from nki.frameworks.torch import from_numpy, to_numpy
from nki.ir.tree import replace_leaves
from nki.ir.view import View
from nki.kernel.devices import torch_name


def results_there(program, arrays, device="cpu"):
    """What a program returns on a device as numpy arrays; or why it runs on the host."""
    plan = device_plan_of(program)
    if isinstance(plan, Refused):
        return str(plan)
    import torch

    given = {
        storage: from_numpy(np.ascontiguousarray(array)).to(device)
        for (_, storage), array in zip(program.parameters, arrays, strict=True)
    }
    for storage, raw in program.constants:
        given[storage] = torch.from_numpy(raw.copy()).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(plan, given, device)
    if found is None:
        return "something is to be said"

    def back(view):
        if view.storage not in found:
            return None
        tensor = part_of(found[view.storage].view(getattr(torch, torch_name(view.dtype))), view)
        return to_numpy(tensor.cpu()).view(view.dtype.storage)

    return replace_leaves(program.result, View, back)


def assert_same_there(program, arrays, device="cpu", tolerance=None):
    """A device gives what the numpy executor gives, but for the order of sums; or why it does not run it."""
    found = results_there(program, arrays, device)
    if isinstance(found, str):
        return found
    (wanted, _), _ = outcome(program, arrays, "reference")
    for one, other in zip(leaves(wanted), leaves(found), strict=True):
        if isinstance(one, np.ndarray) and other is not None and one.tobytes() != other.tobytes():
            assert one.shape == other.shape and one.dtype == other.dtype
            bound = tolerance or (2e-2 if one.dtype.itemsize < 4 else 1e-4)
            a, b = one.astype(np.float64), other.astype(np.float64)
            finite = np.abs(a[np.isfinite(a)])
            scale = finite.max() if finite.size else 1.0
            np.testing.assert_allclose(b, a, rtol=bound, atol=bound * scale)
    return None
