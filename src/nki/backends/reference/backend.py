"""The reference backend: instructions one by one, in program order, on numpy arrays."""

from __future__ import annotations

from functools import partial

from ...ir.program import Program
from ...options import Options
from ..protocol import ExecutionContext
from .prepared import prepare


class ReferenceBackend:
    """The definition of what a Program computes."""

    name = "reference"

    def refusal(self, program: Program, options: Options) -> str:
        return ""

    def run(self, program: Program, execution: ExecutionContext) -> bool:
        prepared = prepare(program)
        execution.run_cores([(core, partial(prepared.run, core)) for core in execution.cores])
        execution.report_divergent_loops()
        return True
