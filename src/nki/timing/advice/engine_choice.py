"""Findings about the choice of engine: another one, or TensorE instead of a DMA that transposes."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.view import View
from ...machine.engines import SCALAR, VECTOR, engine
from ...machine.memories import PSUM
from ..change import Change
from ..operation import Operation
from .formatting import NAMES, count, lines, percent, site_of
from .study import WORTH, Advice, Gain, Study

# ---- other-engine, psum-eviction -----------------------------------------------------------------

SPARE = 0.75  # of the work of the busiest engine: with more, another one has no time left
OTHER = {"vector": SCALAR, "scalar": VECTOR}


def other_engine(study: Study) -> Iterator[Advice]:
    """Yield findings when the busiest engine does what another one has time for."""
    busiest = study.busiest
    if busiest not in OTHER:
        return
    other = OTHER[busiest]
    if study.active.get(other.name, 0.0) > SPARE * study.active[busiest]:
        return
    for evicts in (True, False):
        movable = [
            (number, op)
            for number, op in study.on(busiest)
            if _reads_psum(op) == evicts and _could_run(op, other, study)
        ]
        change = _shared(study, movable, busiest, other)
        if not change.on:
            continue
        gain = study.gain_of_new_schedule(change)
        if gain.worth:
            yield _finding(study, evicts, busiest, other, change, gain)


def _finding(study: Study, evicts: bool, busiest: str, other: engine, change: Change, gain: Gain) -> Advice:
    operations = study.timeline.operations
    moved = count(len(change.on), "instruction")
    what = "read PSUM" if evicts else "could run elsewhere"
    return Advice(
        "psum-eviction" if evicts else "other-engine",
        f"{moved} of {NAMES[busiest]} {what}: {NAMES[other.name]} has time for them",
        f"{NAMES[busiest]} is busy {percent(study.active[busiest])} of the time, {NAMES[other.name]} "
        f"{percent(study.active.get(other.name, 0.0))}. {gain.text(f'With these on {NAMES[other.name]}')} "
        f"Pass engine=nisa.engine.{other.name} there, or leave the engine of tensor_copy open.",
        lines((operations[number].site, study.held_ns(number)) for number in change.on),
        gain.us,
        busiest,
    )


def _reads_psum(op: Operation) -> bool:
    operands = op.instruction.operands() if op.instruction is not None else ()
    return any(isinstance(v, View) and v.buffer is PSUM for v in operands)


def _could_run(op: Operation, other: engine, study: Study) -> bool:
    """True when the other engine has the instruction: a copy of floats, or a multiply-add on ScalarE."""
    ins = op.instruction
    if ins is None or other not in ins.engines or ins.public not in ("tensor_copy", "tensor_scalar"):
        return False
    views = [v for v in ins.operands() if isinstance(v, View)]
    if any(v.indirection is not None or v.dtype.is_integer for v in views):
        return False
    if ins.public == "tensor_copy" or other is VECTOR:
        return True
    has = study.machine.scalar_tensor_scalar
    names = tuple(o.name for o in (ins.op0, ins.op1) if o is not None)  # type: ignore[attr-defined]
    fits = names in (("multiply", "add"), ("multiply",), ("add",)) and not ins.reverse0  # type: ignore[attr-defined]
    return has == "all" or (has == "multiply-add" and fits)


def _shared(study: Study, movable: list[tuple[int, Operation]], busiest: str, other: engine) -> Change:
    """Return the change that moves as many of them as make both engines equally busy, evenly spread."""
    if not movable:
        return Change()
    held = sum(study.held_ns(number) for number, _ in movable) / len(study.timeline.cores)
    if held < WORTH * study.timeline.work_ns:
        return Change()
    apart = (study.active[busiest] - study.active.get(other.name, 0.0)) * study.timeline.work_ns
    part, owed, on = min(1.0, apart / (2 * held)), 0.0, {}
    for number, _ in movable:
        owed += part
        if owed >= 1:
            owed -= 1
            on[number] = other
    return Change(on=on)


# ---- dma-transpose -------------------------------------------------------------------------------


def dma_transpose(study: Study) -> Iterator[Advice]:
    """Yield a finding when transfers transpose data that TensorE could transpose after a plain load."""
    m, operations = study.machine, study.timeline.operations
    transposing = {
        number: transfer
        for number, transfer in study.transfers.items()
        if (ins := operations[number].instruction) is not None
        and ins.public == "dma_transpose"
        and ins.operands()[0].dtype.itemsize in (2, 4)
    }
    if not transposing:
        return
    payload = {}
    for number, transfer in transposing.items():
        rows = operations[number].instruction.operands()[1].shape[0]  # type: ignore[union-attr]
        plain = rows * m.dma_descriptor_ns + transfer.nbytes / m.dma_bytes_per_ns
        payload[number] = min(plain, transfer.packet_ns) / m.dma_engines / study.bandwidth_share
    spent = sum(t.packet_ns for t in transposing.values()) / m.dma_engines / study.bandwidth_share
    if spent - sum(payload.values()) < WORTH * 1e3 * study.total_us:
        return
    gain = study.gain_of_new_schedule(Change(payload=payload))
    if gain.worth:
        worst = max(transposing, key=lambda number: transposing[number].packet_ns)
        yield Advice(
            "dma-transpose",
            f"{count(len(transposing), 'transfer')} transpose data: TensorE would do it sooner",
            f"{site_of(operations[worst])} moves {count(transposing[worst].descriptors, 'piece')}. "
            f"{gain.text('Loaded as it is and transposed by TensorE')} Load the tile with dma_copy, then "
            "nisa.nc_transpose(engine=nisa.engine.tensor) into PSUM.",
            lines((operations[number].site, t.packet_ns) for number, t in transposing.items()),
            gain.us,
            "dma",
        )
