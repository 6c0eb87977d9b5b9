"""Findings about work that could be done in less time: float32 matmuls, engines used in part."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from ...ir.effects import effects
from ...ir.instruction import MatmulInstruction
from ...ir.view import View
from ...machine.machine import Machine
from ..change import Change, Payload
from ..dma_transfer import DmaTransfer
from ..measures import is_transpose
from ..operation import Operation
from .formatting import NAMES, count, duration, lines, lines_of, place_of, site_of
from .sbuf import operand_tiles, sbuf_peak
from .study import WORTH, Advice, Study

# ---- fp32-matmul ---------------------------------------------------------------------------------


def fp32_matmul(study: Study) -> Iterator[Advice]:
    """Yield a finding about float32 matmuls, which take four times as long as bfloat16."""
    matmuls, total = study.float32_matmuls, study.total_us
    if not matmuls:
        return
    faster = (study.what_if.unchanged_ns - study.with_faster_matmuls_ns) / 1e3
    beside_dma = study.is_busy("dma")  # then the loads decide what faster matmuls gain
    if beside_dma and faster < WORTH * total:
        return
    smaller = study.gain_us(study.faster_matmuls | half_as_large(study))
    gain = faster if beside_dma else smaller
    if gain >= WORTH * total:
        left = total - smaller
        ratio = sum(study.faster_matmuls.work.values()) / len(matmuls)
        part = "a quarter" if ratio < 0.35 else "half"  # with a hint that one operand is ones and zeros
        alone = f" While the loads stay as they are, it gains {duration(faster)}." if beside_dma else ""
        yield Advice(
            "fp32-matmul",
            f"{count(len(matmuls), 'matmul')} in float32: bfloat16 takes {part} of the time",
            f"With operands in bfloat16 the kernel would take {duration(left)} instead of {duration(total)}, "
            f"{total / left:.1f} times as fast: for float32 TensorE needs "
            f"{study.machine.fp32_matmul_factor} times the cycles, and tiles and loads are twice as large."
            f"{alone} Sums stay float32 in PSUM; operands keep 8 of their 24 bits of precision, so check the "
            "results.",
            lines_of(matmuls.values()),
            gain,
            "tensor",
        )


def half_as_large(study: Study) -> Change:
    """Return the change to operands of half the bytes, in transfers and in SBUF."""
    operations = study.timeline.operations
    operands = operand_tiles(study.float32_matmuls.values())
    halves: dict[tuple[int, int], Payload] = {}
    payload = {}
    for number, transfer in study.transfers.items():
        op = operations[number]
        tile = op.tile if op.instruction is None else op.instruction.operands()[0].storage
        if tile in operands and transfer.payload_ns:
            whole = study.replay.payload(number)
            key = (id(whole), transfer.nbytes)
            if key not in halves:
                halves[key] = _halved(whole, transfer, study)
            payload[number] = halves[key]
    change = Change(payload=payload)
    if study.timeline.spill_bytes:
        fits = all(sbuf_peak(p, operands).nbytes <= p.sbuf.capacity for p in study.timeline.plans)
        return study.without_spills | change if fits else change
    return change


def _halved(whole: Payload, transfer: DmaTransfer, study: Study) -> Payload:
    """Return the work of the DMA engines for half the bytes."""
    moving = transfer.nbytes / study.machine.dma_bytes_per_ns / study.bandwidth_share
    saved = moving / 2 / len(transfer.payload_ns)
    if isinstance(whole, float):
        return max(0.0, whole - saved)
    return [(engine, max(0.0, ns - saved)) for engine, ns in whole]


# ---- unused-partitions ---------------------------------------------------------------------------


def unused_partitions(study: Study) -> Iterator[Advice]:
    """Yield findings about instructions that leave lanes of their engine idle."""
    for engine in ("tensor", "vector", "scalar", "gpsimd"):
        if study.active.get(engine, 0.0) >= WORTH:
            yield from _unused(study, engine)


def _unused(study: Study, engine: str) -> Iterator[Advice]:
    groups: dict[tuple, list[int]] = defaultdict(list)  # instructions of one line and size
    used_by = study.of_signature(lambda op: _used(op, study.machine))
    for number, op in study.on(engine):
        used = used_by(op)
        if used < 1:
            groups[place_of(op), used].append(number)
    work: dict[int, float] = {}
    wasted: dict[int, float] = {}  # ns, by the first instruction of a group
    for (_, used), numbers in groups.items():
        needed = math.ceil(len(numbers) * used) / len(numbers)  # of the instructions, if they were full
        work.update(dict.fromkeys(numbers, needed))
        wasted[numbers[0]] = (1 - needed) * sum(map(study.held_ns, numbers))
    if sum(wasted.values()) < WORTH * 1e3 * study.total_us:
        return
    gain = study.gain(Change(work=work))
    if gain.worth:
        operations = study.timeline.operations
        worst = operations[max(wasted, key=wasted.__getitem__)]
        yield Advice(
            "unused-partitions",
            f"{count(len(work), 'instruction')} use a part of {NAMES[engine]}",
            f"{site_of(worst)} works on {_lanes(worst, study.machine)}, and takes as long as on all of them. "
            f"{gain.text('With as few full instructions as can do this work')} {FILL[engine == 'tensor']}",
            lines((operations[number].site, ns) for number, ns in wasted.items()),
            gain.us,
            engine,
        )


FILL = {
    True: "Contract more rows at once, keep the wider operand stationary, or let tile_position run several "
    "products side by side.",
    False: "Lay several tiles into the partitions, one below the other, and work on them with one "
    "instruction.",
}


def _used(op: Operation, m: Machine) -> float:
    """Return the part of the lanes, or of the PE array, that an instruction uses."""
    if op.kind == "tensor":
        rows, columns = _array(op, m)
        return rows * columns / (m.partitions * m.matmul_stationary_max)
    operands = op.instruction.operands()  # type: ignore[union-attr]
    lanes = [view.shape[0] for view in operands if isinstance(view, View) and view.on_chip]
    return max(lanes, default=m.partitions) / m.partitions


def _array(op: Operation, m: Machine) -> tuple[int, int]:
    """Return (rows, columns) of the PE array that a matmul uses; a transpose counts as full."""
    instruction = op.instruction
    if is_transpose(op) or not isinstance(instruction, MatmulInstruction):
        return m.partitions, m.matmul_stationary_max
    return instruction.array_rows(), effects(instruction).written[0].shape[0]


def _lanes(op: Operation, m: Machine) -> str:
    if op.kind == "tensor":
        rows, columns = _array(op, m)
        array = f"{columns} of {m.matmul_stationary_max} columns of the PE array"
        return f"{rows} of {m.partitions} rows and {array}"
    return f"{round(_used(op, m) * m.partitions)} of {m.partitions} partitions"
