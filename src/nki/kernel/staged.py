"""Staged calls: what a call will do, known from shapes alone (spec/frameworks.md 1).

A compiler asks for the results of a kernel before there is data. The kernel is traced once on
descriptions of its tensors; the Program then runs on data, as often as the compiled code does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..backends.reference.blas import one_blas_thread
from ..ir.instruction import State
from ..ir.program import Diagnostic, Program
from ..ir.tree import replace_leaves
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import DType
from .attempts import cache_program, execute_or_eager, run_eagerly, take_snapshot, trace_call
from .cache import programs
from .run import Call, Run
from .transfer import is_whole
from .user_function import plain


class Returned(NamedTuple):
    """A tensor among the results."""

    shape: tuple[int, ...]
    dtype: DType
    name: str
    argument: int | None  # the position of the tensor argument that it is, as a whole


@dataclass(frozen=True)
class Outline:
    """What a call does. `result` has the structure the caller receives, with `Returned`s for tensors."""

    result: Any
    arguments: tuple[str, ...]  # names of the tensors, in order
    written: tuple[int, ...]  # positions of those the kernel writes
    draws_random: bool  # the results depend on the random state of the core
    prints: bool  # device_print
    has_collectives: bool
    constants: tuple[np.ndarray, ...]  # of nl.shared_constant and its kind, in order of use


RANDOM = (State.vector_random, State.gpsimd_random)


def outline(program: Program, returns: bool, relabelled: bool) -> Outline:
    """What a program does, for those who compile a call of it.

    `relabelled`: float8_e4m3fn arguments arrived as float8_e4m3, and leave as what they were.
    """
    storages = [storage for _, storage in program.parameters]

    def returned(view: View) -> Returned:
        is_argument = view.storage in storages and is_whole(view)
        dtype = dtypes.float8_e4m3fn if relabelled and view.dtype == dtypes.float8_e4m3 else view.dtype
        position = storages.index(view.storage) if is_argument else None
        return Returned(tuple(view.shape), dtype, view.name, position)

    return Outline(
        replace_leaves(program.result, View, returned) if returns else None,
        tuple(name for name, _ in program.parameters),
        tuple(i for i, storage in enumerate(storages) if storage in program.written),
        any(state in program.state for state in RANDOM),
        State.output in program.state,
        State.ranks in program.state,
        tuple(raw.view(s.dtype.storage).reshape(s.shape) for s, raw in program.constants),
    )


class Staged:
    """A call that was traced without data. `outline` describes what it does, `run` does it."""

    def __init__(self, call: Call, program: Program, is_fixed: bool):
        self.kernel, self.call, self.program = call.kernel, call, program
        self.is_fixed = is_fixed  # False: the Python read values, so the program is one of many
        self.verified: dict[int, int] = {}  # how often each loop may run: the Python was seen to allow it
        specs = [dtypes.resolve(spec.dtype) for _, spec in self.described]
        relabelled = dtypes.float8_e4m3fn in specs and call.machine.generation < 4
        self.outline = outline(program, call.kernel.returns, relabelled)

    @property
    def described(self) -> list[tuple[str, Any]]:
        """The tensors by name, as they were given to `stage`."""
        return [(tensor.name, tensor.value) for tensor in self.call.arguments.tensors]

    def run(self, tensors: Sequence[Any], into: Sequence[np.ndarray] = ()) -> Run:
        """Run on the values of the tensors, in the order of `outline.arguments`.

        `into` may offer dense memory for each returned tensor; it is used where that saves a copy.
        A program that depends on values its Python read runs that Python again.
        """
        call = replace(self.call, arguments=self.call.arguments.with_tensors(tensors), key=None)
        with one_blas_thread():
            if not self.is_fixed:
                run = run_eagerly(call)
            else:
                run = execute_or_eager(call, self.program, self.verified, into)
        self.silence(run.diagnostics)
        if self.is_fixed and not any(d.kind == "loop-divergence" for d in run.diagnostics):
            for number, counts in run.trips.items():
                self.verified[number] = max(self.verified.get(number, 0), *counts)
        return run

    def silence(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Silence what one run reported: a compiled function runs many times."""
        if diagnostics:
            self.call = replace(self.call, silenced=(*self.call.silenced, *diagnostics))

    def describe(self) -> str:
        """Return everything that tells this program from others, the same in every process."""
        call = self.call
        circumstances = (call.machine.name, call.options, self.kernel.grid, self.kernel.schedule)
        if self.is_fixed:
            what = self.program.text(constants=False)
        else:
            what = f"{self.kernel.__module__} {plain(self.kernel.func).__qualname__} {self.outline.result!r}"
        tensors = [(name, tuple(spec.shape), str(spec.dtype)) for name, spec in self.described]
        return f"{self.kernel.__name__} {circumstances!r} {tensors!r}\n{what}"

    def is_same(self, other: Staged) -> bool:
        """Return True when both do the same, given that their descriptions are equal."""
        if self.is_fixed or other.is_fixed:
            return self.is_fixed and other.is_fixed
        return self is other or (self.call.key is not None and self.call.key == other.call.key)


def stage_call(call: Call) -> Staged:
    """Trace a call now, to be run with data later."""
    cached = programs.find(call.key) if call.key is not None else None
    if cached is not None and cached.program is not None:
        return Staged(call, cached.program, True)
    return stage_anew(call)


def stage_anew(call: Call) -> Staged:
    """Trace a call whose program is not in the cache."""
    take_snapshot(call)
    traced = trace_call(call, has_data=False)
    program = traced.program
    if traced.is_fixed and call.key is not None and not program.loops:
        cache_program(call, program, traced.files)
    return Staged(replace(call, silenced=program.diagnostics), program, traced.is_fixed)
