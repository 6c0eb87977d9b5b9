"""Calls whose tensors are on a device: run there by their plan, where it can."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..options import from_environment
from ..plan import device
from ..plan.planner import NoPlan, plan_of
from ..run.launch import speak
from ..tensors import View
from ..tree import replace_leaves
from .staged import Staged


def on_device(kernel: Any, args: tuple, kwargs: dict, tensors: Sequence[Any], where: Any) -> list[Any]:
    """What a call returns, in a list; an empty one: it does not run there, and nothing was done.

    `args` and `kwargs` have descriptions in place of the tensors, which are given beside them, dense.
    """
    options = from_environment()
    if options.executor == "reference" or options.strict or not options.precise_fp:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below, or by the call itself if it runs on the host
        staged: Staged = kernel.stage(*args, **kwargs)
    program = staged.program
    if not staged.fixed or not kernel.returns or program.constants:
        return []
    plan = plan_of(program, forced=options.executor == "plan")
    if isinstance(plan, NoPlan) or device.refusal(plan) is not None:
        return []
    given = {storage: tensor for (_, storage), tensor in zip(program.parameters, tensors, strict=True)}
    found = device.run(plan, given, where)
    if any(view.storage not in found for view in _views(program.result)):
        return []
    for diagnostic in program.said:  # about shapes alone: nothing here looks at values
        speak(diagnostic)
    return [replace_leaves(program.result, View, lambda view: device.part_of(found[view.storage], view))]


def _views(result: Any) -> list[View]:
    views: list[View] = []
    replace_leaves(result, View, lambda view: views.append(view))
    return views
