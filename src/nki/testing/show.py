"""nki.show: a call as a page to step through, instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.context import current
from ..ir.instruction import Instruction
from ..ir.tree import leaves
from ..ir.view import View
from ..kernel.arrays import TensorSpec
from ..kernel.jit import as_kernel
from ..kernel.kernel import Kernel
from ..launch.loop_counters import Iterations
from ..launch.observers import Sink, observe, observe_first
from ..options import choose_machine
from ..report.heatmaps import BUDGET
from ..report.recording import Recording
from ..report.viewer import Viewer
from .debug import compared, run_for_views


def show(
    kernel: object,
    *,
    reference: object = None,
    steps: range | None = None,
    megabytes: float = BUDGET / 2**20,
) -> Callable[..., Viewer]:
    """Return a function like the kernel, whose result is a page that steps through the call.

    Given arrays, the kernel runs and the page has its values; given TensorSpecs, it is traced. A notebook
    shows the page by itself; `.html()` is its text, `.save(file)` writes it. `reference` is what the results
    should be, or a function of the same arguments in float64. A page holds `megabytes` of values: of `steps`,
    counted from 0, or of all.
    """
    made = as_kernel(kernel)

    def call(*args: object, **kwargs: object) -> Viewer:
        name, machine = made.__name__, choose_machine(made.target)
        if leaves([args, kwargs], TensorSpec):
            recording = Recording(name, machine)
            _observed(recording, lambda: made.trace(*args, **kwargs))
        else:
            recording = Recording(name, machine, _values, int(megabytes * 2**20), steps)
            _run(made, recording, reference, args, kwargs)
        recording.cores = made.lnc
        return Viewer(recording)

    return call


def _values(view: View) -> tuple[np.ndarray, np.ndarray | None]:
    core = current()
    return core.values(view), core.unwritten(view)


def _observed(recording: Recording, run: Callable[[], Any]) -> Any:
    """Return what a run returns, with its steps on core 0 recorded."""
    iterations = Iterations()
    before, after = _on_first_core(recording.before), _on_first_core(recording.after)
    with observe_first(before), observe(iterations), observe(after):
        result = run()
    recording.turns = iterations.turns
    return result


def _on_first_core(sink: Sink) -> Sink:
    def call(instruction: Instruction) -> None:
        if current().index == 0:
            sink(instruction)

    return call


def _run(
    kernel: Kernel, recording: Recording, reference: object, args: tuple, kwargs: dict[str, Any]
) -> None:
    run, views = _observed(recording, lambda: run_for_views(kernel, args, kwargs))
    if reference is None:
        return
    for view, (got, expected, wrong, allowed) in zip(
        views, compared(kernel.__name__, run, reference, args), strict=True
    ):
        with np.errstate(all="ignore"):
            ratio = np.abs(got.astype(np.float64) - expected) / allowed
        limited = np.where(wrong, np.fmax(ratio, np.nextafter(np.float32(1), 2)), np.fmin(ratio, 1))
        recording.compare(view, got, expected, np.nan_to_num(limited, nan=0.0, posinf=np.inf))
