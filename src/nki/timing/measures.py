"""Measures of a Timeline that several reports share: work, bounds, the critical path, assumptions.

Definitions are those of spec/machine.md 12. Everything here is a pure function of a Timeline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..ir.dependences import RAW
from ..ir.effects import effects
from ..ir.instruction import MatmulInstruction
from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..machine.machine import Machine
from ..machine.memories import PRIVATE_HBM
from .dma_transfer import address_ns
from .operation import Operation
from .timeline import Timeline
from .timing_rules import ENGINES

# ---- work ----------------------------------------------------------------------------------------


def is_transpose(op: Operation) -> bool:
    """Return True for what the PE array only transposes."""
    return (
        op.kind == "tensor" and isinstance(op.instruction, MatmulInstruction) and op.instruction.is_transpose
    )


def array_flops(op: Operation) -> int:
    """Return 2 x MACs of the PE array, transposes included."""
    return op.instruction.array_flops() if isinstance(op.instruction, MatmulInstruction) else 0


def hfu_percent(timeline: Timeline) -> float:
    """Return MFU with transposes included."""
    done = sum(array_flops(op) for op in timeline.operations if op.kind == "tensor")
    peak = timeline.machine.peak_flops() * len(timeline.cores)
    return 100 * done / (peak * timeline.total_ns * 1e-9) if timeline.total_ns else 0.0


def adjusted_flops(timeline: Timeline, transposes: bool = True) -> float:
    """Return FLOPs in bf16 equivalents: the cost of each at the best rate of its dtype."""
    wanted = (
        op for op in timeline.operations if op.kind == "tensor" and (transposes or not is_transpose(op))
    )
    return sum(array_flops(op) * bf16_equivalents(op, timeline.machine) for op in wanted)


def bf16_equivalents(op: Operation, m: Machine) -> float:
    """Return how many bf16 FLOPs take as long as one of this instruction's."""
    ins = op.instruction
    if not isinstance(ins, MatmulInstruction):
        return 1.0
    dtype = ins.array_operand().dtype
    if is_transpose(op):
        return m.fp32_transpose_factor if dtype.itemsize == 4 else 1.0
    if dtype.is_packed:
        return 1 / m.mx_multiplier
    if dtype == "float32":
        hinted = ins.is_onezero()
        return m.fp32_onezero_factor if hinted else m.fp32_matmul_factor
    return 1 / m.double_row_multiplier if dtype.itemsize == 1 and m.double_row_multiplier else 1.0


def hbm_traffic(timeline: Timeline) -> list[tuple[Storage, int, int]]:
    """Return every HBM tensor with the bytes that transfers read and wrote, without spills."""
    read: Counter[int] = Counter()
    written: Counter[int] = Counter()
    storages: dict[int, Storage] = {}
    for op in timeline.operations:
        if not op.is_dma or op.instruction is None:
            continue
        done = effects(op.instruction)
        for views, count in ((done.reads, read), (done.written, written)):
            for view in views:
                if not view.on_chip:
                    storages[id(view.storage)] = view.storage
                    count[id(view.storage)] += view.nbytes
    return [(storage, read[key], written[key]) for key, storage in storages.items()]


def necessary_bytes(timeline: Timeline) -> int:
    """Return the HBM bytes that must move: each input once, each result once, scratch not at all."""
    total = 0
    for storage, read, written in hbm_traffic(timeline):
        if storage.parameter:
            total += min(read, storage.nbytes) + min(written, storage.nbytes)
        elif not (read and written and storage.buffer is PRIVATE_HBM):
            total += min(written, storage.nbytes)
    return total


def instruction_ns(timeline: Timeline, engine: str, core: int) -> float:
    """Return the sum of an engine's bars; overlapping ones count twice."""
    bars = timeline.intervals(engine, core)
    return float((bars[:, 1] - bars[:, 0]).sum())


# ---- bounds --------------------------------------------------------------------------------------


class TimeBounds(NamedTuple):
    """The ladders of spec/machine.md 12, in ns: each step is a lower bound of the one before it."""

    memory: tuple[float, float, float]  # DMA active, all bytes at full rate, necessary bytes at full rate
    compute: tuple[float, float, float]  # TensorE active, its flops at full rate, without transposes
    pipeline: float  # the busiest engine


def bounds(timeline: Timeline) -> TimeBounds:
    m, cores = timeline.machine, range(len(timeline.cores))
    rate = m.dma_profiler_gbs * len(cores)
    peak = m.peak_flops() * 1e-9 * len(cores)
    moved = sum(t.nbytes for core in timeline.cores for t in core.transfers.values())
    active = {engine: max(timeline.active_ns(engine, c) for c in cores) for engine in (*ENGINES, "dma")}
    return TimeBounds(
        (active["dma"], moved / rate, min(moved, necessary_bytes(timeline)) / rate),
        (active["tensor"], adjusted_flops(timeline) / peak, adjusted_flops(timeline, False) / peak),
        max(active.values()),
    )


class Ceiling(NamedTuple):
    """A resource and the least time that the kernel's work takes on it, in ns."""

    name: str
    ns: float


def ceilings(timeline: Timeline) -> list[Ceiling]:
    """Return the least time for the work of each engine, a core's DMA engines and HBM, the longest first.

    An engine's work is its cycles, without latencies and gaps; of several cores, that of the busiest.
    """
    m = timeline.machine
    peak = m.peak_flops() * 1e-9 * len(timeline.cores)
    found = {"TensorE": adjusted_flops(timeline) / peak, "HBM": sum(timeline.hbm_bytes) / m.hbm_gbs}
    for core in timeline.cores:
        work: Counter[str] = Counter()
        for op in core.operations:
            if op.kind in LANES and op.instruction is not None:
                work[LANES[op.kind]] += core.plan.cost_of(op).cycles / core.clocks[op.kind]
        moved = sum(t.nbytes for t in core.transfers.values())
        work["DMA"] = moved / (m.dma_engines * m.dma_bytes_per_ns)  # type: ignore[assignment]
        for name, ns in work.items():
            found[name] = max(found.get(name, 0.0), ns)
    return sorted((Ceiling(name, ns) for name, ns in found.items()), key=lambda c: (-c.ns, c.name))


LANES = {"vector": "VectorE", "scalar": "ScalarE", "gpsimd": "GpSimdE"}


# ---- the critical path ---------------------------------------------------------------------------


class PathStep(NamedTuple):
    """An operation on the critical path and the time it alone decides."""

    core: int
    operation: int
    ns: float


def critical_path(timeline: Timeline) -> list[PathStep]:
    """Return the chain of operations that ends with the kernel, each waiting for the one before it.

    The times of the steps add up to `work_ns`: from the moment an operation is begun (for a transfer: is
    triggered) to the moment the next one is.
    """
    if not timeline.operations:
        return []
    number = max(range(len(timeline.cores)), key=lambda c: max(timeline.cores[c].done, default=0.0))
    core = timeline.cores[number]
    index = max(range(len(core.done)), key=core.done.__getitem__)
    moment = core.done[index]
    steps = []
    while index >= 0:
        transfer = core.transfers.get(index)
        before = core.blocked_by[index]
        begun = core.start[index] if transfer is None else core.triggered[index]
        begun = min(moment, begun) if before >= 0 else 0.0
        steps.append(PathStep(number, index, moment - begun))
        moment, index = begun, before
    return steps[::-1]


def path_shares(timeline: Timeline) -> dict[str, float]:
    """Return the share of each engine, and of "dma", in the critical path."""
    spent: Counter[str] = Counter()
    for step in critical_path(timeline):
        op = timeline.cores[step.core].operations[step.operation]
        spent["dma" if op.is_dma else op.kind] += step.ns  # type: ignore[assignment]
    return {engine: ns / timeline.work_ns for engine, ns in spent.most_common()}


# ---- assumptions ---------------------------------------------------------------------------------


def assumptions(timeline: Timeline) -> dict[str, list[Operation]]:
    """Return the assumed Machine fields the timeline rests on, each with the operations that use it."""
    assumed = timeline.machine.assumed
    found: dict[str, list[Operation]] = defaultdict(list)
    for core in timeline.cores:
        loads = {index for _, _, index in core.table_loads}
        for op in core.operations:
            for field in {*_fields(core, op, op.index in loads)} & assumed:
                found[field].append(op)
    if "fetch_ahead_ns" in assumed and any(any(plan.loaded_early) for plan in timeline.plans):
        early = [(p, op) for p in timeline.plans for op in p.operations]
        found["fetch_ahead_ns"] = [op for p, op in early if op.position >= 0 and p.loaded_early[op.position]]
    moved = [op for op in timeline.operations if op.instruction is None]
    if "refetch_ahead_ns" in assumed and moved:
        found["refetch_ahead_ns"] = moved
    if "kernel_overhead_ns" in assumed:
        found["kernel_overhead_ns"] = []
    return dict(sorted(found.items()))


def _fields(core: Any, op: Operation, loads_table: bool) -> Iterator[str]:
    """Yield every Machine field behind the time of one operation."""
    if op.is_dma:
        yield from _transfer_fields(op, core.transfers[op.index], core.machine)
    else:
        yield from core.plan.cost_of(op).rests_on
        if op.kind == "tensor":
            yield from ("tensor_drain_ns", "matmul_after_load_ns")
        if _is_slowed(core, op):
            yield from HALF_RATE_FIELDS if op.kind == "tensor" else STRIDE_FIELDS
    if loads_table:
        yield from ("activation_table_ns", "activation_table_free")
    yield from _wait_fields(core, op)


HALF_RATE_FIELDS = ("half_rate_rule", "half_rate_window_ns", "half_rate_threshold", "half_rate_slowdown")
STRIDE_FIELDS = ("stride_full_rate_bytes", "stride_slowdown")


def _is_slowed(core: Any, op: Operation) -> bool:
    """True when it took longer than its cycles: the PE array was cold, or an operand has a long stride."""
    cost = core.plan.cost_of(op)
    tail = core.machine.tensor_drain_ns if op.kind == "tensor" else cost.fix_ns
    service = core.end[op.index] - core.start[op.index] - tail
    return cost.cycles > 0 and service > 1.001 * cost.cycles / core.clocks[op.kind]


ISSUE_FIELDS = {"software": "swdge_spacing_ns", "hardware": "hwdge_ns", "static": "static_trigger_ns"}
ISSUE_FIELDS["ranks"] = "static_trigger_ns"


def _transfer_fields(op: Operation, transfer: Any, m: Machine) -> Iterator[str]:
    load = op.kind == "reload" or (op.instruction is not None and op.instruction.operands()[0].on_chip)
    way = "load" if load else "store"
    yield from ("dma_descriptor_ns", "dma_bytes_per_ns", "dma_skew_ns")
    yield from (f"dma_dispatch_{way}_ns", f"dma_notify_{way}_ns", ISSUE_FIELDS[transfer.mode])
    if transfer.mode == "software" and not load:
        yield "swdge_wait_ns"
    if not isinstance(op.instruction, TransferInstruction) or op.instruction.uses_default_dge():
        yield "dma_default_mode"
    if op.instruction is not None and address_ns(op.instruction, m):
        yield from ("dma_address_ns", "swdge_descriptor_ns")
    tiny = (m.dma_min_descriptor_ns - m.dma_descriptor_ns) * m.dma_bytes_per_ns
    if transfer.nbytes < tiny * transfer.descriptors:
        yield "dma_min_descriptor_ns"


def _wait_fields(core: Any, op: Operation) -> Iterator[str]:
    """Yield the field of the latency between the operation that decided the start and this one."""
    before = core.blocked_by[op.index]
    if before not in op.waits or core.operations[before].is_dma:
        return
    if op.is_dma:
        yield "compute_to_dma_ns"
    elif core.operations[before].kind != op.kind:
        yield "semaphore_ns"
    elif op.waits[before] == RAW:
        yield "same_engine_gap_ns"
