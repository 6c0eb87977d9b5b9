"""The cost of one configuration: traced from shapes, checked, and timed unless it cannot be the best."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from ..check.findings import MILD
from ..errors import NkiError
from ..ir.instruction import WHOLE_ARRAY, array_use
from ..ir.program import Program
from ..kernel.kernel import Kernel
from ..kernel.profile import profile_program
from ..options import options
from .space import Config

SAFE = 0.98  # of the bound: engines may overlap the ends of their instructions


class Outcome(NamedTuple):
    """The result of one configuration. `us` is None where it was dropped or cannot be the best."""

    config: Config
    us: float | None
    why: str = ""  # the kind of error, "bound", or "same" as an earlier one
    message: str = ""


class TuningJob(NamedTuple):
    """A kernel and the call to tune."""

    kernel: Kernel
    args: tuple
    kwargs: dict[str, Any]
    target: str


def evaluate(job: TuningJob, config: Config, known: MutableMapping[str, float], best: float) -> Outcome:
    """Trace a configuration and time it. `known` has the times of programs by their hashes."""
    with options(target=job.target), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = job.kernel.trace(*job.args, **{**job.kwargs, **config})
        except NkiError as problem:
            return Outcome(config, None, problem.kind, problem.message)
        except Exception as problem:  # a kernel may refuse sizes with an assert
            return Outcome(config, None, type(problem).__name__, str(problem))
        for diagnostic in program.diagnostics:
            if diagnostic.kind not in MILD:
                return Outcome(config, None, diagnostic.kind, diagnostic.message)
        if bound_us(program) > best:
            return Outcome(config, None, "bound")
        digest = program.digest
        if digest in known:
            return Outcome(config, known[digest], "same")
        known[digest] = us = profile_program(program).total_us
    return Outcome(config, us)


def bound_us(program: Program) -> float:
    """Return a time that no schedule beats: that of the busiest engine, one instruction after the other."""
    machine = program.machine
    clocks = {"vector": machine.vector_ghz, "scalar": machine.scalar_ghz, "gpsimd": machine.scalar_ghz}
    longest = 0.0
    for items in program.unrolled():
        busy: defaultdict[str, float] = defaultdict(float)
        for instruction, _ in items:
            if instruction.runs_on is not None:
                name = instruction.runs_on.name
                if name in clocks:
                    busy[name] += instruction.cost(machine).cycles / clocks[name]
                elif name == "tensor" and array_use(instruction)[1] == WHOLE_ARRAY:
                    busy[name] += instruction.cost(machine).cycles / machine.tensor_ghz
        longest = max([longest, *busy.values()])
    return SAFE * longest / 1e3
