"""Findings about DMA: data that is loaded again, transfers too small, transfers that wait to be started."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from statistics import median_low
from typing import NamedTuple

from ...ir.effects import effects
from ...ir.instruction import Instruction
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.machine import Machine
from ...machine.memories import SBUF
from ..change import Change, Payload
from ..dma_transfer import DmaTransfer
from ..operation import Operation
from ..operation_plan import OperationPlan
from .formatting import NAMES, amount, count, duration, joined, lines, percent, place_of, tensor_name
from .sbuf import sbuf_peak_bytes, sbuf_usable_bytes
from .study import Advice, Study, TransferGroup

# ---- reloaded-data -------------------------------------------------------------------------------


class TensorLoads:
    """The loads of one HBM tensor into the SBUF of the cores."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.name = tensor_name(storage)
        self.nbytes = 0
        self.bytes_repeated = 0
        self.repeated: dict[int, int] = {}  # a load -> an earlier one of the same bytes
        self.between: list[int] = []  # bytes of the tensor loaded between two loads of the same bytes

    @property
    def bytes_once(self) -> int:
        return self.nbytes - self.bytes_repeated


class LoadKind(NamedTuple):
    """What loads of one signature have in common."""

    source: Callable[[Instruction], View]
    nbytes: int
    key: tuple  # equal for loads that read the same bytes in the same way, if they read at the same offset


class LoadHistory:
    """What one core has loaded and written so far."""

    def __init__(self, begun: list[int]) -> None:
        self.begun = begun  # the order of all operations
        self.versions: Counter[int] = Counter()  # of each storage: a write makes new data
        self.loaded: Counter[int] = Counter()  # bytes of each storage
        self.seen: dict[tuple, tuple[int, int]] = {}  # -> (first load, bytes loaded before the last)

    def load(self, tensor: TensorLoads, number: int, offset: int, kind: LoadKind) -> None:
        key, nbytes = id(tensor.storage), kind.nbytes
        region = (key, self.versions[key], offset, kind.key)
        loaded = self.loaded[key]
        first, before = self.seen.get(region, (number, 0))
        if first != number:
            if self.begun[number] < self.begun[first]:
                first, number = number, first
            tensor.repeated[number] = first
            tensor.bytes_repeated += nbytes
            tensor.between.append(loaded - before)
        self.seen[region] = (first, loaded)
        self.loaded[key] = loaded + nbytes
        tensor.nbytes += nbytes


def loads(study: Study) -> list[TensorLoads]:
    """Return the loads of every HBM tensor, the most repeated first."""
    found: dict[int, TensorLoads] = {}
    for plan in study.timeline.plans:
        history = LoadHistory(study.replay.at)
        first = study.replay.first[plan.core]
        kind_of = study.of_signature(partial(_load_kind, plan))
        moves = [op for op in plan.operations if op.kind == "dma"]
        for op in sorted(moves, key=attrgetter("position")):
            kind = kind_of(op)
            if kind is None:
                for view in plan.accesses(op.position).writes:
                    if not view.storage.on_chip:
                        history.versions[id(view.storage)] += 1
                continue
            source = kind.source(op.instruction)  # type: ignore[arg-type]
            tensor = found.get(id(source.storage))
            if tensor is None:
                tensor = found[id(source.storage)] = TensorLoads(source.storage)
            history.load(tensor, first + op.index, source.offset, kind)
    return sorted(found.values(), key=lambda tensor: -tensor.bytes_repeated)


def _load_kind(plan: OperationPlan, op: Operation) -> LoadKind | None:
    """Return None for all but copies from one known place of HBM to SBUF."""
    reads, writes = plan.accesses(op.position)
    if len(reads) != 1 or len(writes) != 1 or op.instruction is None:
        return None
    source, target = reads[0], writes[0]
    if source.on_chip or source.indirection is not None or target.buffer is not SBUF:
        return None
    operands = op.instruction.operands()
    names = [name for name, one in zip(op.instruction.operand_names, operands, strict=True) if one is source]
    fetch = attrgetter(names[0]) if names else lambda instruction: effects(instruction).reads[0]
    return LoadKind(fetch, source.nbytes, (op.instruction.public, target.dtype, source.sig))


def reloaded_data(study: Study) -> Iterator[Advice]:
    """Yield a finding when the same bytes are loaded more than once."""
    tensors = [tensor for tensor in loads(study) if tensor.repeated]
    if not tensors:
        return
    repeated = {number: first for tensor in tensors for number, first in tensor.repeated.items()}
    gain = max(study.gain_of_moving_less(Change(removed=repeated)), study.hoisted_loads.gain)
    if not gain.worth:
        return
    often = [f"{t.name} {'' if i else 'is loaded '}{_times(t)}" for i, t in enumerate(tensors[:3])]
    yield Advice(
        "reloaded-data",
        f"{joined(often)}: {_who_waits(study)}",
        " ".join([gain.text("Loaded once"), *(_how_to_load_once(study, t) for t in tensors[:3])]),
        _longest(study, _among(study.transfer_groups, repeated)),
        gain.us,
        "dma",
    )


def _among(groups: Iterable[TransferGroup], numbers: Container[int]) -> Iterator[TransferGroup]:
    """Yield the groups, with some of their transfers only."""
    for group in groups:
        if left := [number for number in group.numbers if number in numbers]:
            yield group._replace(numbers=left)


def _longest(study: Study, groups: Iterable[TransferGroup]) -> tuple[str, ...]:
    """Return the lines of transfers, those with most DMA engine and trigger time first."""
    share, engines = study.bandwidth_share, study.machine.dma_engines
    return lines(
        (op.site, len(numbers) * max(moved.issue_ns, moved.packet_ns / engines / share))
        for moved, op, numbers in groups
    )


def _times(tensor: TensorLoads) -> str:
    times = tensor.nbytes / tensor.bytes_once
    return "twice" if times == 2 else f"{times:.3g} times"


def _who_waits(study: Study) -> str:
    engine, dma = study.busiest, study.active["dma"]
    if engine is None or study.active[engine] >= min(dma, 0.95):
        return f"DMA is busy {percent(dma)} of the time"
    return f"{NAMES[engine]} waits for DMA"


def _how_to_load_once(study: Study, tensor: TensorLoads) -> str:
    """Return what it takes to load a tensor once."""
    needed, usable = median_low(tensor.between), sbuf_usable_bytes(study)
    travel = f"Of {tensor.name} {amount(tensor.nbytes)} travel instead of {amount(tensor.bytes_once)}"
    passes = f"{amount(needed)} of it come between two loads of the same tile"
    if needed + sbuf_peak_bytes(study) <= usable:
        return f"{travel}: {passes}, which fits into SBUF, so hoist the load out of the loop that repeats it."
    return (
        f"{travel}: {passes}, and SBUF holds {amount(usable)} in all, so work in blocks, where each load "
        "serves several tiles of the result."
    )


# ---- small-dma -----------------------------------------------------------------------------------


def small_dma(study: Study) -> Iterator[Advice]:
    """Yield a finding about transfers that are too short for the DMA engines, or leave some idle."""
    m, share = study.machine, study.bandwidth_share
    small = [group for group in study.transfer_groups if _is_small(group.transfer, m)]
    if not small:
        return
    equal: Counter[tuple] = Counter()  # could be moved together
    for transfer, op, numbers in small:
        equal[place_of(op), transfer.nbytes] += len(numbers)
    issue: dict[int, float] = {}
    payload: dict[int, Payload] = {}
    for transfer, op, numbers in small:
        part = transfer.nbytes / (m.dma_efficient_bytes * m.partitions)  # of one that is large enough
        many = equal[place_of(op), transfer.nbytes]
        issue |= dict.fromkeys(numbers, min(1.0, math.ceil(many * part) / many) * transfer.issue_ns)
        moving = min(part * _large_ns(m), transfer.packet_ns / m.dma_engines) / share
        payload |= dict.fromkeys(numbers, moving)
    gain = study.gain_of_moving_less(Change(issue=issue, payload=payload))
    if gain.worth:
        yield Advice(
            "small-dma",
            f"{count(len(issue), 'transfer')} are too small for DMA",
            f"{_most_common(small, m)} {amount(m.dma_efficient_bytes)} in each of {m.partitions} "
            f"partitions keep {m.dma_engines} DMA engines moving; with less they mostly start and stop. "
            f"{gain.text('Moved in transfers of that size')} Bring several tiles with one dma_copy, side by "
            "side in the free dimension.",
            _longest(study, small),
            gain.us,
            "dma",
        )


def _is_small(transfer: DmaTransfer, m: Machine) -> bool:
    short = transfer.nbytes < m.dma_efficient_bytes * transfer.descriptors
    return bool(transfer.payload_ns) and (short or len(transfer.payload_ns) < m.dma_engines)


def _large_ns(m: Machine) -> float:
    """Return the time of each DMA engine for a transfer of `dma_efficient_bytes` in every partition."""
    return m.dma_partitions_per_engine * (m.dma_descriptor_ns + m.dma_efficient_bytes / m.dma_bytes_per_ns)


def _most_common(small: Sequence[TransferGroup], m: Machine) -> str:
    shapes: Counter[tuple[int, int]] = Counter()
    for t, _, numbers in small:
        shapes[t.nbytes // t.descriptors, len(t.payload_ns)] += len(numbers)
    (piece, engines), many = shapes.most_common(1)[0]
    which = f"All {many:,}" if many == shapes.total() else f"{many:,} of them"
    on = f" on {engines} of {m.dma_engines} DMA engines" if engines < m.dma_engines else ""
    return f"{which} move pieces of {amount(piece)}{on}."


# ---- dma-issue -----------------------------------------------------------------------------------

STARTERS = {"software": "Software DGE", "hardware": "Hardware DGE", "static": "A queue"}


def dma_issue(study: Study) -> Iterator[Advice]:
    """Yield findings when transfers wait to be started."""
    for mode, starter in STARTERS.items():
        started = {number: t.issue_ns for number, t in study.transfers.items() if t.mode == mode}
        held = sum(started.values()) / len(study.timeline.cores) / 1e3
        if held < 0.5 * study.total_us:  # others decide
            continue
        gain = study.gain_of_moving_less(Change(issue=dict.fromkeys(started, 0.0)))
        if gain.worth:
            each = duration(max(started.values()) / 1e3)
            yield Advice(
                "dma-issue",
                f"Starting {count(len(started), 'transfer')} takes {duration(held)}",
                f"{starter} needs {each} for each, however little it moves. {gain.text('Started at once')} "
                f"{_start_less(study, mode)}",
                _longest(study, (group for group in study.transfer_groups if group.transfer.mode == mode)),
                gain.us,
                "dma",
            )


def _start_less(study: Study, mode: str) -> str:
    fewer = "Move more with each dma_copy"
    if mode == "software" and study.machine.has_hwdge:
        return f"{fewer}, or start some with dge_mode.hwdge, which has a queue of its own."
    return f"{fewer}."
