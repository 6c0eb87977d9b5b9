"""The engine of instructions for which the kernel names none."""

from __future__ import annotations

from collections import defaultdict
from math import fsum

from ...ir.instruction import Instruction
from ...ir.rewriting import replace_engine
from ...ir.view import View
from ...machine.engines import engine
from ...machine.machine import Machine
from ..operation_plan import engine_clocks
from .compilation import Compilation


def share_copies(core: Compilation) -> int:
    """Move some copies to another engine, if theirs is the busiest of the kernel.

    The manual of tensor_copy says that the compiler selects the best engine "based on engine workload". A
    copy goes to ScalarE when VectorE is the busiest engine and ScalarE has time. Of others the manual
    says "based on the input tile shape": they stay where they are.
    """
    machine, instructions = core.machine, core.listed.instructions
    movable = [number for number in core.copies if core.is_free_number(number)]
    if not movable:
        return 0
    work = _work(core)
    moved: dict[int, Instruction] = {}
    groups: dict[tuple[engine, engine], list[int]] = defaultdict(list)
    for number in movable:
        i = instructions[number]
        assert i.runs_on is not None and (other := i.other_engine()) is not None
        groups[i.runs_on, other].append(number)
    for (default, other), copies in groups.items():
        if work[default.name] < max(work.values()):
            continue  # something else decides
        here = fsum(held_ns(machine, instructions[n]) for n in copies)
        there = fsum(held_ns(machine, replace_engine(instructions[n], other)) for n in copies)
        part = min(1.0, (work[default.name] - work[other.name]) / (here + there))
        owed = 0.0  # spread evenly, so that both engines have some of it all the time
        for number in copies:
            owed += part
            if owed >= 1:
                owed -= 1
                moved[number] = replace_engine(instructions[number], other)
    if moved:
        core.move(moved)
    return len(moved)


def scale_on_scalar(core: Compilation) -> int:
    """Scale and shift wide tiles on ScalarE where that is faster.

    In the profiles of NKIBench's first kernels (trn1), VectorE is active for reductions and tensor_tensor
    alone: 6.0 of 19.1 ms for gqa-full, whose 8,192 tensor_scalar would add 4.9; ScalarE has their time. In
    the traces of trn2, where VectorE is faster from SBUF to SBUF, they are on VectorE.
    """
    return _replace(core, engine.scalar)


def divide(core: Compilation) -> int:
    """Compute reciprocals of wide tiles as divisions, which take one pass.

    VectorE needs eight cycles for a reciprocal on trn1. In the profiles of NKIBench's silu, swiglu and adamw
    it is active for much less than that.
    """
    return _replace(core, engine.vector)


def _replace(core: Compilation, target: engine) -> int:
    """Replace instructions on wide tiles by their faster alternatives on an engine."""
    machine, found, changed = core.machine, list(core.items), 0
    for number, item in enumerate(found):
        other = item.instruction.alternative(machine) if core.is_free(item) else None
        if other is None or other.runs_on is not target or not is_wide(machine, other):
            continue
        if held_ns(machine, other) < held_ns(machine, item.instruction):
            same = type(other) is type(item.instruction)
            found[number] = (core.numbers.moved if same else core.numbers.replaced)(item, other)
            changed += 1
    core.items = found
    return changed


def is_wide(machine: Machine, instruction: Instruction) -> bool:
    """True when its elements take longer than the shortest instruction."""
    return any(
        isinstance(view, View) and view.free_elements > machine.min_ii_cycles
        for view in instruction.operands()
    )


def _work(core: Compilation) -> dict[str, float]:
    """Return ns that each engine is held; for DMA, the least that its bytes and triggers take."""
    machine = core.machine
    engines = [i.runs_on for i in core.listed.instructions]
    keys = [*zip(core.listed.signatures, engines, strict=True)]
    examples = dict(zip(keys, core.listed.instructions, strict=True))
    known = {key: _work_of(machine, instruction) for key, instruction in examples.items()}
    found = list(map(known.__getitem__, keys))
    work: defaultdict[str, float] = defaultdict(float)
    for name, ns in found:
        work[name] += ns
    if machine.dma_default_mode == "software":
        triggers = sum(name == "dma" for name, _ in found)
        work["dma"] = max(work["dma"], triggers * machine.swdge_spacing_ns)
    return work


def _work_of(machine: Machine, instruction: Instruction) -> tuple[str, float]:
    """Return the engine and ns of its work; of a transfer, the time of its bytes."""
    name = instruction.engine_name()
    if name != "dma":
        return name, held_ns(machine, instruction)
    return name, moving_ns(machine, instruction)


def moving_ns(machine: Machine, instruction: Instruction) -> float:
    """Return the least time that the bytes of a transfer take."""
    most = max((v.nbytes for v in instruction.operands() if isinstance(v, View)), default=0)
    return most / (machine.dma_engines * machine.dma_bytes_per_ns)


def held_ns(machine: Machine, instruction: Instruction) -> float:
    """Return ns that an instruction holds its engine."""
    clock = engine_clocks(machine).get(instruction.engine_name())
    return 0.0 if clock is None else instruction.cost(machine).interval / clock
