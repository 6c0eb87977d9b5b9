"""The fused backend: a Program as a few large matrix products, on all processor cores."""

from __future__ import annotations

from functools import partial

from ...ir.program import Program
from ...options import Options
from ..protocol import ExecutionContext
from .planner import NoPlan, plan_of
from .running import Runner
from .steps import Plan
from .threads import available, beside

LARGEST = 448 << 20  # bytes that cores which run at the same time may need together


class FusedBackend:
    """Runs a program by its plan, where it has one that pays; `executor="fused"` also where it does not."""

    name = "fused"

    def refusal(self, program: Program, options: Options) -> str:
        if not options.precise_fp:
            return "NKI_PRECISE_FP=0 keeps narrow floats as float32 values"
        found = _plan(program, options)
        return found.why if isinstance(found, NoPlan) else ""

    def run(self, program: Program, execution: ExecutionContext) -> bool:
        """Run the plan. False if anything was reported: the reference reports it at its line."""
        plan = _plan(program, execution.options)
        assert isinstance(plan, Plan)
        known = {id(diagnostic) for diagnostic in program.said}
        try:
            self._run(plan, program, execution)
        except Exception:  # the reference raises it at its line
            return False
        return all(id(diagnostic) in known for diagnostic in execution.diagnostics.found)

    def _run(self, plan: Plan, program: Program, execution: ExecutionContext) -> None:
        cores = execution.cores
        threads = execution.options.threads or available()
        parallel = len(cores) > 1 and _can_run_in_parallel(plan, program, threads)
        share = max(1, threads // len(cores)) if parallel else threads
        runners = [Runner(plan, program, core, share) for core in cores]
        if parallel:
            for runner in runners:
                runner.open_results()
            beside([partial(_run_alone, execution, runner) for runner in runners])
        else:
            execution.run_cores([(runner.core, partial(_run_core, runner)) for runner in runners])
            execution.report_divergent_loops()


def _run_alone(execution: ExecutionContext, runner: Runner) -> None:
    execution.run_cores([(runner.core, runner.run)])


def _run_core(runner: Runner) -> None:
    runner.open_results()
    runner.run()


def _can_run_in_parallel(plan: Plan, program: Program, threads: int) -> bool:
    """Cores that share nothing, report nothing in an order, and fit memory together."""
    needed = sum(part.arena + part.packed for part in plan.cores)
    return plan.independent and not program.said and threads > 1 and needed <= LARGEST


def _plan(program: Program, options: Options) -> Plan | NoPlan:
    return plan_of(program, options.executor in ("fused", "plan"))
