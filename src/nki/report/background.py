"""Bars beside those of instructions: what an engine does in the background, before one of them."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Site
from ..ir.instruction import MatmulInstruction
from ..ir.view import View
from ..timing.operation_plan import engine_clocks
from ..timing.timeline import Bar, Timeline

STATIONARY = "stationary"  # the lane of LoadStationary, apart from TensorE's Matmult


def background(timeline: Timeline) -> list[Bar]:
    """Loads of activation tables and of stationary operands."""
    return [*table_loads(timeline), *stationary_loads(timeline)]


def table_loads(timeline: Timeline) -> Iterator[Bar]:
    """Yield the loads of activation tables as bars of ScalarE; the instruction behind each waits for it."""
    for number, core in enumerate(timeline.cores):
        for start, end, index in core.table_loads:
            yield _bar(
                number, "scalar", "scalar", "activation table load", start, end, core.operations[index].site
            )


def stationary_loads(timeline: Timeline) -> Iterator[Bar]:
    """The LoadStationary of each Matmult, which ends where that begins, while the one before it still runs.

    Four columns a cycle, of float32 one (spec/machine.md 5.2). On trn1 it has to be over a little earlier.
    """
    m = timeline.machine
    clock = engine_clocks(m)["tensor"]
    for number, core in enumerate(timeline.cores):
        until = 0.0
        matmuls = [op for op in core.operations if op.kind == "tensor"]
        for op in sorted(matmuls, key=lambda op: core.start[op.index]):
            if not isinstance(op.instruction, MatmulInstruction):
                continue
            operand = op.instruction.array_operand()
            cycles = operand.free_elements / m.load_stationary_columns
            if operand.dtype == "float32":
                cycles *= m.fp32_load_stationary_factor
            end = max(0.0, core.start[op.index] - max(0.0, m.matmul_after_load_ns - cycles / clock))
            start = max(until, end - cycles / clock)
            until = max(until, end)
            if end > start:
                iteration = timeline.iteration(op)
                yield _bar(
                    number, "tensor", STATIONARY, "LoadStationary", start, end, op.site, operand
                )._replace(iteration=iteration)


def _bar(
    core: int,
    engine: str,
    queue: str,
    name: str,
    start: float,
    end: float,
    site: Site | None,
    operand: View | None = None,
) -> Bar:
    views = () if operand is None else (operand,)
    text = (
        "" if operand is None else f"stationary {operand.dtype}{list(operand.shape)} {operand.buffer.value}"
    )
    return Bar(core, -1, engine, queue, name, "", start, end, -1, "", 0.0, site, 0, 0, text, (), views)
