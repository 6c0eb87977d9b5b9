"""How a call runs: a cached Program, one that is traced now, or each instruction as it is issued.

A call whose attempt cannot finish (`NeedsEager`) starts again in eager mode. Every attempt has memory of its
own.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..backends.reference.blas import one_blas_thread
from ..backends.reference.collector import fewer_collections
from ..check.capacity import capacity_of_run
from ..check.whole_program import findings
from ..ir.items import Diagnostic
from ..ir.program import Program
from ..ir.schedule_edges import by_name, check_names, names_of
from ..ir.statistics import Statistics
from ..ir.storage import Storage
from ..ir.tensor import whole
from ..launch.core import Core
from ..launch.diagnostics import NeedsEager, SideEffects
from ..launch.execution import Execution, execute
from ..launch.launch import Launch, Mode
from ..launch.world import current_world
from . import output
from .cache import CachedProgram, programs
from .devices import check_device
from .progress import LONG, shown
from .results import (
    bare,
    check_results,
    is_plain,
    report_executed,
    report_traced,
    tensors,
    warn_lost_writes,
)
from .run import Call, CalledKernel, Run, Traced
from .staged import Staged
from .transfer import Transfer, parameter_storages


def run_call(kernel: CalledKernel, call: Call) -> Run:
    """Execute the cached Program of a call, or trace it and execute that; where neither can be: eager."""
    check_device(call.options.device)  # an error here, not an execution that starts again
    with one_blas_thread(), fewer_collections():
        cached = programs.find(call.key) if call.key is not None else None
        program = None if cached is None else cached.program
        if cached and program is not None and (current_world().size == 1 or not program.loops):
            with shown(kernel.__name__) if len(program) > LONG else contextlib.nullcontext():
                return _execute_or_eager(kernel, call, program, cached.verified)
        take_snapshot(kernel, call)
        with shown(kernel.__name__):
            if call.eager or (cached is not None and program is None):
                return run_eagerly(kernel, call)
            return _run_traced(kernel, call)


def _run_traced(kernel: CalledKernel, call: Call) -> Run:
    """Trace the kernel's Python, then execute the Program; cache it for the next call."""
    printed, side_effects = output.Printed(), SideEffects()
    try:
        with output.once(printed) if call.snapshot is None else contextlib.nullcontext():
            traced = trace_call(kernel, call, has_data=True)
        is_cached = traced.is_fixed and call.key is not None
        if is_cached and current_world().size > 1:  # the next rank finds it
            cache_program(call, traced.program, traced.files)
        run = _execute(kernel, call, traced.program, traced.transfer, side_effects)
    except NeedsEager:
        return run_eagerly(kernel, call, side_effects.prints, printed)
    if is_cached:
        cache_program(call, traced.program, traced.files)
    return run


def trace_call(kernel: CalledKernel, call: Call, has_data: bool) -> Traced:
    """Run the kernel's Python without executing instructions."""
    with _launch(kernel, call, "trace", has_data=has_data) as launch:
        storages = parameter_storages(call.arguments.tensors, launch)
        transfer = Transfer(call.arguments.tensors, storages, call.machine, call.options)
        diagnostics = launch.execution.diagnostics
        try:
            results = _python(kernel, call, launch, storages)
        except Exception:
            diagnostics.show()
            raise
        check_results(kernel, launch.execution, results, executed=False)
        parameters = [(storage.name, storage) for storage in storages]
        program = launch.recorded(kernel.__name__, parameters, bare(results[0]), kernel.schedule)
        for core in range(len(program.cores)) if kernel.schedule else ():
            check_names(kernel.schedule, by_name(program, core))
        if not has_data:
            program = report_traced(kernel, launch, program)
        is_fixed = not launch.python.read_values and is_plain(results[0])
        return Traced(program, transfer, is_fixed, launch.python.files)


def _execute_or_eager(
    kernel: CalledKernel,
    call: Call,
    program: Program,
    verified: dict[int, int] | None = None,
    into: Sequence[np.ndarray] = (),
) -> Run:
    """Execute a Program that was traced before on the tensors of this call."""
    side_effects = SideEffects()
    storages = [storage for _, storage in program.parameters]
    transfer = Transfer(call.arguments.tensors, storages, call.machine, call.options)
    try:
        return _execute(kernel, call, program, transfer, side_effects, verified, into)
    except NeedsEager:
        take_snapshot(kernel, call)
        return run_eagerly(kernel, call, side_effects.prints)


def _execute(
    kernel: CalledKernel,
    call: Call,
    program: Program,
    transfer: Transfer,
    side_effects: SideEffects,
    verified: dict[int, int] | None = None,
    into: Sequence[np.ndarray] = (),
) -> Run:
    """Execute a Program. An instruction that fails does so again in eager mode: Python may catch it."""
    results = transfer.lent_for(tensors(program.result), into) if into else None
    with _restarting(side_effects):
        execution = execute(
            program,
            call.options,
            transfer.inputs,
            results,
            side_effects=side_effects,
            silenced=call.silenced,
            verified=verified,
        )
    with execution:
        with _restarting(side_effects):
            check_results(kernel, execution, [program.result], executed=True)
            counted = replace(program, trips=execution.trips) if execution.trips else program
            run = _received(kernel, call, transfer, execution, program.result, counted.statistics)
        execution.diagnostics.show()
        report_executed(kernel, transfer, execution, program.result, findings(program, call.options))
        return _deliver(kernel, transfer, execution, run)


def run_eagerly(
    kernel: CalledKernel,
    call: Call,
    prints: int = 0,
    printed: output.Printed | None = None,
    raced: Launch | None = None,
) -> Run:
    """Run the kernel's Python, each instruction as it is issued; again, interleaved, if cores raced.

    What an earlier attempt printed (`prints` of device_print, `printed` by Python) is not printed again.
    """
    printed = printed or output.Printed()
    found = [] if raced is None else raced.execution.diagnostics.found
    silenced = [*call.silenced, *found]
    with (
        output.once(printed),
        _launch(
            kernel, call, "eager", silenced=silenced, prints_before=prints, interleaved=raced is not None
        ) as launch,
    ):
        launch.execution.diagnostics.found += found
        storages = parameter_storages(call.arguments.tensors, launch)
        transfer = Transfer(call.arguments.tensors, storages, call.machine, call.options)
        for storage, raw in transfer.inputs.items():
            launch.execution.memories.borrow(storage, raw)
        named = [_note_names(core) for core in launch.cores] if kernel.schedule else []
        results = _python(kernel, call, launch, storages)
        for names in named:
            check_names(kernel.schedule, names)
        races = launch.races()
        if not races or launch.execution.barriers.interleaving is not None:
            return _finish_eagerly(kernel, call, transfer, launch, results, races)
    return run_eagerly(kernel, call, max(prints, launch.execution.side_effects.prints), printed, launch)


def _note_names(core: Core) -> set[str]:
    """Return the names of what a core issues, to be filled while it runs."""
    names: set[str] = set()
    core.sinks.append(lambda instruction: names.update(names_of(instruction)))
    return names


def _finish_eagerly(
    kernel: CalledKernel,
    call: Call,
    transfer: Transfer,
    launch: Launch,
    results: list[Any],
    races: list[Diagnostic],
) -> Run:
    execution, statistics, python = launch.execution, launch.statistics, launch.python
    assert statistics is not None
    check_results(kernel, execution, results, executed=True)
    statistics.finish()
    run = _received(kernel, call, transfer, execution, results[0], lambda: statistics)
    found = [*races, *capacity_of_run(statistics, call.options.reserve_psum_bank)]
    report_executed(kernel, transfer, execution, results[0], found, python.read_values)
    if call.key is not None and python.read_values:
        programs.refuse(call.key, "its Python reads values of tensors")
        cache_program(call, None, ())
    elif call.key is not None and run.trips and not python.diverged:
        _cache_loops(kernel, call, run, python.files)
    return _deliver(kernel, transfer, execution, run)


def _cache_loops(kernel: CalledKernel, call: Call, run: Run, files: list[tuple[str, str]]) -> None:
    """Cache a program whose dynamic loops did the same in every iteration, for as many iterations."""
    if call.snapshot is None or not call.snapshot.holds():  # tracing again would be of no use
        return
    trips = {number: max(counts) for number, counts in run.trips.items()}
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # the eager run has shown them
        traced = trace_call(kernel, replace(call, silenced=run.diagnostics), has_data=False)
        if traced.is_fixed and {loop.number for loop in traced.program.loops} == set(trips):
            cache_program(call, traced.program, files, trips)


def run_staged(
    kernel: CalledKernel, staged: Staged, tensors: Sequence[Any], into: Sequence[np.ndarray] = ()
) -> Run:
    """Run a staged call on the values of its tensors."""
    call = replace(staged.call, arguments=staged.call.arguments.with_tensors(tensors), key=None)
    with one_blas_thread():
        if staged.is_fixed:
            run = _execute_or_eager(kernel, call, staged.program, staged.verified, into)
        else:
            run = run_eagerly(kernel, call)
    staged.silence(run.diagnostics)
    if staged.is_fixed and not any(d.kind == "loop-divergence" for d in run.diagnostics):
        for number, counts in run.trips.items():
            staged.verified[number] = max(staged.verified.get(number, 0), *counts)
    return run


def _received(
    kernel: CalledKernel,
    call: Call,
    transfer: Transfer,
    execution: Execution,
    result: object,
    count: Callable[[], Statistics],
) -> Run:
    """Return what the caller will get, before anything of the caller's is changed."""
    returned = transfer.result(result, execution.memories, kernel.__name__) if kernel.returns else None
    warn_lost_writes(kernel, transfer, execution, result, call.aliased)
    transfer.check_write_back(execution.memories)
    return Run(returned, call.machine, count, execution.diagnostics.found, execution.trips)


def _deliver(kernel: CalledKernel, transfer: Transfer, execution: Execution, run: Run) -> Run:
    """Write the caller's arrays and random state: the last thing a call does."""
    run.written = transfer.write_back(execution.memories, kernel.__name__)
    if execution.world.keeps_random_state:
        execution.generators.keep()
    return run


def cache_program(
    call: Call,
    program: Program | None,
    files: Sequence[tuple[str, str]],
    verified: dict[int, int] | None = None,
) -> None:
    """Cache the program of a call; None: its Python reads values of tensors."""
    entry = CachedProgram(program, call.snapshot, tuple(files), verified or {})
    programs.add(call.key, entry, call.options.cache_bytes)


def take_snapshot(kernel: CalledKernel, call: Call) -> None:
    """Note what the Python can read before it runs: what it changes itself then counts as a change."""
    if call.key is not None:
        call.snapshot = programs.snapshot(call.key, kernel.func, call.arguments)


def _launch(kernel: CalledKernel, call: Call, mode: Mode, **settings: Any) -> Launch:
    silenced = settings.pop("silenced", call.silenced)
    return Launch(call.machine, call.options, kernel.grid, mode, silenced=silenced, **settings)


def _python(kernel: CalledKernel, call: Call, launch: Launch, storages: list[Storage]) -> list[Any]:
    """Run the kernel's function on every core and return what each returned."""
    given = [whole(storage, None) for storage in storages]
    return launch.run(lambda: call.arguments.call(kernel.func, given))


@contextlib.contextmanager
def _restarting(side_effects: SideEffects) -> Iterator[None]:
    """Start the call again in eager mode if something fails, unless other ranks have received data."""
    try:
        yield
    except Exception:
        if side_effects.sent:
            raise
        raise NeedsEager from None
