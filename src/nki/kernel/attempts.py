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
from ..backends.reference.collector import fewer_collections, no_collections
from ..check.capacity import capacity_of_run
from ..check.whole_program import findings
from ..ir.items import Diagnostic
from ..ir.program import Program
from ..ir.schedule_edges import by_name, check_names, names_of
from ..ir.statistics import Statistics
from ..ir.tensor import whole
from ..ir.tree import leaves
from ..ir.view import View
from ..launch.core import Core
from ..launch.diagnostics import NeedsEager, SideEffects
from ..launch.execution import Execution, execute
from ..launch.launch import Launch
from ..launch.world import current_world
from . import output
from .cache import CachedProgram, programs
from .progress import LONG, shown
from .results import (
    bare,
    check_results,
    is_plain,
    report_executed,
    report_traced,
    warn_lost_writes,
)
from .run import Call, Run, Traced
from .transfer import Transfer, parameter_storages


def run_call(call: Call) -> Run:
    """Execute the cached Program of a call, or trace it and execute that; where neither can be: eager."""
    name = call.kernel.__name__
    if call.options.device not in ("", "cpu"):
        from ..backends.torch.backend import torch_device

        torch_device(call.options.device)  # an error here, not an execution that starts again
    with one_blas_thread(), fewer_collections():
        cached = programs.find(call.key) if call.key is not None else None
        program = None if cached is None else cached.program
        if cached and program is not None and (current_world().size == 1 or not program.loops):
            with shown(name) if len(program) > LONG else contextlib.nullcontext():
                return execute_or_eager(call, program, cached.verified)
        take_snapshot(call)
        with shown(name):
            if call.eager or (cached is not None and program is None):
                return run_eagerly(call)
            return _run_traced(call)


def _run_traced(call: Call) -> Run:
    """Trace the kernel's Python, then execute the Program; cache it for the next call."""
    printed, side_effects = output.Printed(), SideEffects()
    try:
        with output.once(printed) if call.snapshot is None else contextlib.nullcontext():
            traced = trace_call(call, has_data=True)
        is_cached = traced.is_fixed and call.key is not None
        if is_cached and current_world().size > 1:  # the next rank finds it
            cache_program(call, traced.program, traced.files)
        run = _execute(call, traced.program, traced.transfer, side_effects)
    except NeedsEager:
        return run_eagerly(call, side_effects.prints, printed)
    if is_cached:
        cache_program(call, traced.program, traced.files)
    return run


def trace_call(call: Call, has_data: bool) -> Traced:
    """Run the kernel's Python without executing instructions."""
    kernel = call.kernel
    launch = Launch(
        call.machine, call.options, kernel.grid, "trace", has_data=has_data, silenced=call.silenced
    )
    with no_collections(), launch:  # a trace keeps what it makes
        try:
            transfer, results = _run_python(call, launch)
        except Exception:
            launch.execution.diagnostics.show()
            raise
        check_results(kernel, launch.execution, results, executed=False)
        parameters = [(storage.name, storage) for storage in transfer.storages]
        program = launch.recorded(kernel.__name__, parameters, bare(results[0]), kernel.schedule)
        for core in range(len(program.cores)) if kernel.schedule else ():
            check_names(kernel.schedule, by_name(program, core))
        if not has_data:
            program = report_traced(kernel, launch, program)
        is_fixed = not launch.python.read_values and is_plain(results[0]) and _is_untouched(call)
        return Traced(program, transfer, is_fixed, launch.python.files)


def _run_python(call: Call, launch: Launch) -> tuple[Transfer, list[Any]]:
    """Run the kernel's function on every core. Returns its tensors, and what each core returned."""
    storages = parameter_storages(call.arguments.tensors, launch)
    transfer = Transfer(call.arguments.tensors, storages, call.machine, call.options, launch.has_data)
    if launch.executes:
        for storage, raw in transfer.inputs.items():
            launch.execution.memories.borrow(storage, raw)
    given = [whole(storage, None) for storage in storages]
    return transfer, launch.run(lambda: call.arguments.call(call.kernel.func, given))


def execute_or_eager(
    call: Call, program: Program, verified: dict[int, int], into: Sequence[np.ndarray] = ()
) -> Run:
    """Execute a Program that was traced before on the tensors of this call."""
    side_effects = SideEffects()
    storages = [storage for _, storage in program.parameters]
    transfer = Transfer(call.arguments.tensors, storages, call.machine, call.options)
    try:
        return _execute(call, program, transfer, side_effects, verified, into)
    except NeedsEager:
        take_snapshot(call)
        return run_eagerly(call, side_effects.prints)


def _execute(
    call: Call,
    program: Program,
    transfer: Transfer,
    side_effects: SideEffects,
    verified: dict[int, int] | None = None,
    into: Sequence[np.ndarray] = (),
) -> Run:
    """Execute a Program. An instruction that fails does so again in eager mode: Python may catch it."""
    results = transfer.lent_for(leaves(program.result, View), into) if into else None
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
            counted = replace(program, trips=execution.trips) if execution.trips else program
            run = _received(call, transfer, execution, [program.result], counted.statistics)
        execution.diagnostics.show()
        report_executed(call.kernel, transfer, execution, program.result, findings(program, call.options))
        return _deliver(call, transfer, execution, run)


def run_eagerly(
    call: Call, prints: int = 0, printed: output.Printed | None = None, raced: Launch | None = None
) -> Run:
    """Run the kernel's Python, each instruction as it is issued; again, interleaved, if cores raced.

    What an earlier attempt printed (`prints` of device_print, `printed` by Python) is not printed again.
    """
    printed = printed or output.Printed()
    found = [] if raced is None else raced.execution.diagnostics.found
    with (
        output.once(printed),
        Launch(
            call.machine,
            call.options,
            call.kernel.grid,
            "eager",
            silenced=[*call.silenced, *found],
            prints_before=prints,
            interleaved=raced is not None,
        ) as launch,
    ):
        launch.execution.diagnostics.found += found
        schedule = call.kernel.schedule
        named = [_note_names(core) for core in launch.cores] if schedule else []
        transfer, results = _run_python(call, launch)
        for names in named:
            check_names(schedule, names)
        races = launch.races()
        if not races or launch.execution.barriers.interleaving is not None:
            return _finish_eagerly(call, transfer, launch, results, races)
    return run_eagerly(call, max(prints, launch.execution.side_effects.prints), printed, launch)


def _note_names(core: Core) -> set[str]:
    """Return the names of what a core issues, to be filled while it runs."""
    names: set[str] = set()
    core.sinks.append(lambda instruction: names.update(names_of(instruction)))
    return names


def _finish_eagerly(
    call: Call, transfer: Transfer, launch: Launch, results: list[Any], races: list[Diagnostic]
) -> Run:
    execution, statistics, python = launch.execution, launch.statistics, launch.python
    assert statistics is not None
    statistics.finish()
    run = _received(call, transfer, execution, results, lambda: statistics)
    found = [
        *races,
        *launch.continued_products(),
        *capacity_of_run(statistics, call.options.reserve_psum_bank),
    ]
    report_executed(call.kernel, transfer, execution, results[0], found, python.read_values)
    if call.key is not None and python.read_values:
        programs.refuse(call.key, "its Python reads values of tensors")
        cache_program(call, None, ())
    elif call.key is not None and run.trips and not python.diverged:
        _cache_loops(call, run, python.files)
    return _deliver(call, transfer, execution, run)


def _cache_loops(call: Call, run: Run, files: list[tuple[str, str]]) -> None:
    """Cache a program whose dynamic loops did the same in every iteration, for as many iterations."""
    if call.snapshot is None or not call.snapshot.holds():  # tracing again would be of no use
        return
    trips = {number: max(counts) for number, counts in run.trips.items()}
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # the eager run has shown them
        traced = trace_call(replace(call, silenced=run.diagnostics), has_data=False)
        if traced.is_fixed and {loop.number for loop in traced.program.loops} == set(trips):
            cache_program(call, traced.program, files, trips)


def _received(
    call: Call,
    transfer: Transfer,
    execution: Execution,
    results: list[Any],
    count: Callable[[], Statistics],
) -> Run:
    """Return what the caller will get, before anything of the caller's is changed."""
    kernel = call.kernel
    check_results(kernel, execution, results, executed=True)
    returned = transfer.result(results[0], execution.memories, kernel.__name__) if kernel.returns else None
    warn_lost_writes(kernel, transfer, execution, results[0], call.arguments.aliased)
    transfer.check_write_back(execution.memories)
    return Run(returned, call.machine, count, execution.diagnostics.found, execution.trips)


def _deliver(call: Call, transfer: Transfer, execution: Execution, run: Run) -> Run:
    """Write the caller's arrays and random state: the last thing a call does."""
    run.written = transfer.write_back(execution.memories, call.kernel.__name__)
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


def _is_untouched(call: Call) -> bool:
    """Return False if the Python may have read what was changed and restored while it ran."""
    if call.snapshot is None or call.snapshot.is_untouched():
        return True
    programs.refuse(call.key, "something that its Python can read was changed while it ran")
    return False


def take_snapshot(call: Call) -> None:
    """Note what the Python can read before it runs: what it changes itself then counts as a change."""
    if call.key is not None:
        call.snapshot = programs.snapshot(call.key, call.kernel.func, call.arguments.followed)


@contextlib.contextmanager
def _restarting(side_effects: SideEffects) -> Iterator[None]:
    """Start the call again in eager mode if something fails, unless other ranks have received data."""
    try:
        yield
    except Exception:
        if side_effects.sent:
            raise
        raise NeedsEager from None
