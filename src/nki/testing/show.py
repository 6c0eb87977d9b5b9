"""nki.show: a call as a page to step through, instruction by instruction."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from ..errors import raised_at
from ..ir.context import current
from ..ir.instruction import Instruction
from ..ir.tree import leaves
from ..ir.view import View
from ..kernel.arrays import TensorSpec
from ..kernel.jit import as_kernel
from ..kernel.run import Run
from ..launch.loop_counters import record_iterations
from ..launch.observers import Sink, observe, observe_first
from ..options import choose_machine
from ..report.heatmaps import BUDGET
from ..report.recording import Recording
from ..report.viewer import Viewer
from .debug import compared, run_for_views
from .replay import Replay


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
    counted from 0, or of all; `.values(number)` computes those of any step again, from checkpoints. If the
    kernel raises, the page ends with the step that did; `.error` is what it raised.
    """
    made = as_kernel(kernel)

    def call(*args: object, **kwargs: object) -> Viewer:
        name, machine, cores = made.__name__, choose_machine(made.target), made.lnc
        if leaves([args, kwargs], TensorSpec):
            recording = Recording(name, machine, cores=cores)
            error = _observed(recording, lambda: made.trace(*args, **kwargs))
            values = None
        else:
            recording = Recording(name, machine, _values, int(megabytes * 2**20), steps, cores)
            ran: list[tuple[Run, list[View]]] = []
            replay = Replay()
            with observe_first(replay.before):
                error = _observed(
                    recording, lambda: ran.append(run_for_views(made, args, kwargs)), replay.after
                )
            if ran and reference is not None:
                _compare(recording, *ran[0], reference, args)
            values = replay.values
        return Viewer(recording, error, values)

    return call


def _values(view: View) -> tuple[np.ndarray, np.ndarray | None]:
    core = current()
    return core.values(view), core.unwritten(view)


def _observed(recording: Recording, run: Callable[[], Any], *last: Sink) -> Exception | None:
    """Record the steps of a run, then hand them to the last observers; return what the run raised."""
    error = None
    before: Sink = partial(_on_core, recording.before)
    sinks: list[Sink] = [partial(_on_core, recording.after), *last]
    try:
        with ExitStack() as stack:
            stack.enter_context(observe_first(before))
            recorder = stack.enter_context(record_iterations(observe_first))
            for sink in sinks:
                stack.enter_context(observe(sink))
            run()
    except Exception as problem:
        recording.fail("".join(traceback.format_exception_only(problem)).strip(), raised_at(problem))
        error = problem
    recording.iterations = recorder.table
    return error


def _on_core(sink: Callable[[Instruction, int], None], instruction: Instruction) -> None:
    sink(instruction, current().index)


def _compare(recording: Recording, run: Run, views: list[View], reference: object, args: tuple) -> None:
    """Add how the results of a run agree with a reference."""
    pairs = compared(recording.name, run, reference, args)
    for view, (got, expected, wrong, allowed) in zip(views, pairs, strict=True):
        with np.errstate(all="ignore"):
            ratio = np.abs(got.astype(np.float64) - expected) / allowed
        limited = np.where(wrong, np.fmax(ratio, np.nextafter(np.float32(1), 2)), np.fmin(ratio, 1))
        recording.compare(view, got, expected, np.nan_to_num(limited, nan=0.0, posinf=np.inf))
