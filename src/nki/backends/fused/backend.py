"""The fused backend: a Program as a few large matrix products, on all processor cores."""

from __future__ import annotations

from functools import partial

from ...options import Options
from ..lowered import Lowered
from ..protocol import ExecutionContext
from .planner import NoPlan, plan_of
from .runner import CHAIN_THREADS, PlanRunner
from .steps import FusedPlan
from .threads import available, run_concurrently

MAX_PARALLEL_BYTES = 448 << 20  # that cores which run at the same time may use together


class FusedBackend:
    """Runs a program by its plan, where it has one that pays; `executor="fused"` also where it does not."""

    name = "fused"

    def refusal(self, lowered: Lowered, options: Options) -> str:
        if not options.precise_fp:
            return "NKI_PRECISE_FP=0 keeps narrow floats as float32 values"
        found = _plan(lowered, options)
        return found.why if isinstance(found, NoPlan) else ""

    def run(self, lowered: Lowered, execution: ExecutionContext) -> bool:
        """Run the plan. False if anything was reported: the reference reports it at its line."""
        plan = _plan(lowered, execution.options)
        assert isinstance(plan, FusedPlan)
        known = {id(diagnostic) for diagnostic in lowered.diagnostics}
        try:
            self._run(plan, lowered, execution)
        except Exception:  # the reference raises it at its line
            return False
        return all(id(diagnostic) in known for diagnostic in execution.diagnostics.found)

    def _run(self, plan: FusedPlan, lowered: Lowered, execution: ExecutionContext) -> None:
        cores = execution.cores
        threads = execution.options.threads or available()
        parallel = len(cores) > 1 and _can_run_in_parallel(plan, lowered, threads)
        share = max(1, threads // len(cores)) if parallel else threads
        runners = [PlanRunner(plan, lowered, core, share) for core in cores]
        if parallel:
            for runner in runners:
                runner.open_results()
            run_concurrently([partial(_run_alone, execution, runner) for runner in runners])
        else:
            execution.run_cores([(runner.core, partial(_run_core, runner)) for runner in runners])
            execution.report_divergent_loops()


def _run_alone(execution: ExecutionContext, runner: PlanRunner) -> None:
    execution.run_cores([(runner.core, runner.run)])


def _run_core(runner: PlanRunner) -> None:
    runner.open_results()
    runner.run()


def _can_run_in_parallel(plan: FusedPlan, lowered: Lowered, threads: int) -> bool:
    """Cores that share nothing, report nothing in an order, and fit memory together."""
    needed = sum(part.memory(CHAIN_THREADS) for part in plan.cores)
    return plan.independent and not lowered.diagnostics and threads > 1 and needed <= MAX_PARALLEL_BYTES


def _plan(lowered: Lowered, options: Options) -> FusedPlan | NoPlan:
    return plan_of(lowered, options.executor in ("fused", "plan"))
