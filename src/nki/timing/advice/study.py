"""A Study: a timeline, its what-ifs, and what several findings need of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from ...ir.instruction import MatmulInstruction
from ...ir.transfer_instruction import TransferInstruction
from ...machine.memories import SBUF
from ..change import Change
from ..dma_transfer import DmaTransfer
from ..hoisting import Hoisting
from ..measures import is_transpose, path_shares
from ..operation import SPACE, Operation
from ..timeline import Timeline
from ..timing_rules import ENGINES
from ..what_if import WhatIf
from .formatting import duration, place_of

BUSY = 0.9  # of the time: an engine that cannot do more
SIMULATED = 80_000  # operations, in all new schedules together
PART = 10_000  # instructions of a core: of a longer kernel, what repeats is studied in the first part
WORTH = 0.01  # of the time: a smaller gain is not reported

T = TypeVar("T")


def _is_float32(op: Operation) -> bool:
    matmul = op.instruction if isinstance(op.instruction, MatmulInstruction) else None
    return matmul is not None and matmul.array_operand().dtype == "float32"


@dataclass(frozen=True)
class Advice:
    """One thing to change."""

    kind: str  # a stable name
    title: str
    detail: str
    lines: tuple[str, ...]  # `kernels.py:72`, those that matter most first
    gain_us: float  # of the kernel's time; if another limit hides it, the gain once that one is gone
    resource: str = ""  # the engine, or "dma", that the change relieves


class Gain(NamedTuple):
    """The gain of a change, by timing again."""

    us: float  # to report
    alone_us: float
    total_us: float  # of the kernel as it is

    @property
    def worth(self) -> bool:
        return self.us >= WORTH * self.total_us

    def text(self, condition: str) -> str:
        """Return `Loaded once, the kernel would take 28.27 ms instead of 39.64 ms.`"""
        if self.us > self.alone_us:
            alone = f"only {duration(self.alone_us)}" if self.alone_us >= 0.05 else "nothing"
            return (
                f"{condition}, the kernel gains {duration(self.us)} where its matmuls are in bfloat16, and "
                f"{alone} while TensorE multiplies float32 all the time."
            )
        left = duration(self.total_us - self.us)
        return f"{condition}, the kernel would take {left} instead of {duration(self.total_us)}."


class TransferGroup(NamedTuple):
    """Transfers of one signature and one source line."""

    transfer: DmaTransfer  # which they share
    op: Operation  # one of them
    numbers: list[int]


class Hoisted(NamedTuple):
    """A kernel that loads, or computes, each value once."""

    edit: Hoisting
    gain: Gain


class Study:
    """What the findings about one timeline share."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.machine = timeline.machine
        self.total_us = timeline.total_us
        self.what_if = WhatIf(timeline)
        self.replay = self.what_if.replay
        self.simulated = 0  # operations in new schedules

    # ---- engines ---------------------------------------------------------------------------------

    @cached_property
    def active(self) -> dict[str, float]:
        """Share of the time of the work (without the start and end of any kernel), on the core where an
        engine is active longest; engines in use only.
        """
        used = {"dma" if op.is_dma else op.kind for op in self.timeline.operations}
        cores = range(len(self.timeline.cores))
        return {
            engine: max(self.timeline.active_ns(engine, core) for core in cores) / self.timeline.work_ns
            for engine in (*ENGINES, "dma")
            if engine in used
        }

    @cached_property
    def busiest(self) -> str | None:
        """The compute engine that is active longest."""
        engines = [engine for engine in self.active if engine not in ("sync", "dma")]
        return max(engines, key=self.active.__getitem__, default=None)

    def is_busy(self, engine: str | None) -> bool:
        return self.active.get(engine or "", 0.0) >= BUSY

    def on(self, engine: str) -> Sequence[tuple[int, Operation]]:
        """Return the instructions of an engine, each with its number."""
        return self._by_kind.get(engine, ())

    @cached_property
    def _by_kind(self) -> dict[str, list[tuple[int, Operation]]]:
        found: dict[str, list[tuple[int, Operation]]] = {}
        for number, op in enumerate(self.timeline.operations):
            if not op.is_dma:
                found.setdefault(op.kind, []).append((number, op))
        return found

    @cached_property
    def transfers(self) -> dict[int, DmaTransfer]:
        """Every DMA by its number, spills included."""
        if len(self.timeline.cores) == 1:  # there, numbers are indices
            return self.timeline.cores[0].transfers
        cores = zip(self.replay.first, self.timeline.cores, strict=True)
        return {first + index: moved for first, core in cores for index, moved in core.transfers.items()}

    @cached_property
    def transfer_groups(self) -> list[TransferGroup]:
        """The DMAs of instructions; those of one signature and one source line are a group."""
        operations = self.timeline.operations
        found: dict[tuple, TransferGroup] = {}
        by_site: dict[tuple[int, int], TransferGroup] = {}  # most of one line share the site
        for number, transfer in self.transfers.items():
            op = operations[number]
            if op.instruction is None:
                continue
            shared = (id(transfer), id(op.instruction.site))
            group = by_site.get(shared)
            if group is None:
                new = TransferGroup(transfer, op, [])
                group = by_site[shared] = found.setdefault((id(transfer), place_of(op)), new)
            group.numbers.append(number)
        return list(found.values())

    def of_signature(self, fact: Callable[[Operation], T]) -> Callable[[Operation], T]:
        """Return a fact about instructions that is computed once for all of one signature and engine."""
        signatures = [plan.signatures for plan in self.timeline.plans]
        known: dict[tuple, T] = {}

        def find(op: Operation) -> T:
            key = (op.core, signatures[op.core][op.position], op.kind)
            if key not in known:
                known[key] = fact(op)
            return known[key]

        return find

    @property
    def bandwidth_share(self) -> float:
        """The share of the DMA engines' rate, where cores share HBM."""
        return self.timeline.cores[0].bandwidth_share

    def held_ns(self, number: int) -> float:
        """Return how long an instruction holds its engine."""
        op = self.timeline.operations[number]
        core = self.timeline.cores[op.core]
        return core.free[op.index] - core.start[op.index]

    @cached_property
    def decisive(self) -> str | None:
        """The engine, or "dma", that has more than half of the critical path."""
        share = path_shares(self.timeline)
        longest = max(share, key=share.__getitem__, default=None)
        return longest if longest is not None and share[longest] > 0.5 else None

    # ---- what-ifs --------------------------------------------------------------------------------

    def gain_us(self, change: Change) -> float:
        return max(0.0, self.what_if.unchanged_ns - self.what_if.same_order_ns(change)) / 1e3

    def gain(self, change: Change) -> Gain:
        us = self.gain_us(change)
        return Gain(us, us, self.total_us)

    def gain_of_new_schedule(self, change: Change) -> Gain:
        """Return the gain when everything may take another order, if another simulation is affordable."""
        return self._gain_of_new_schedule(change) if self.may_simulate() else self.gain(change)

    def _gain_of_new_schedule(self, change: Change) -> Gain:
        us = max(0.0, self.timeline.work_ns - self.what_if.new_order_ns(change)) / 1e3
        return Gain(us, us, self.total_us)

    @cached_property
    def hoisted(self) -> Hoisted:
        """Each value loaded and computed once."""
        return self._hoisted(loads_only=False)

    @cached_property
    def hoisted_loads(self) -> Hoisted:
        """Each value loaded once."""
        everything = self.hoisted
        if all(isinstance(item.instruction, TransferInstruction) for item in everything.edit.again):
            return everything
        return self._hoisted(loads_only=True)

    def _hoisted(self, loads_only: bool) -> Hoisted:
        edit, us = Hoisting(loads_only), 0.0
        if self._may_repeat():
            part = 1 - self.what_if.replanned_ns(edit, PART) / self._first_part_ns
            us = max(0.0, part * self.timeline.work_ns) / 1e3
        return Hoisted(edit, Gain(us, us, self.total_us))

    @cached_property
    def _first_part_ns(self) -> float:
        """The time of the instructions that `hoisted` studies."""
        if max(len(plan.instructions) for plan in self.timeline.plans) <= PART:
            return self.timeline.work_ns
        return self.what_if.replanned_ns(None, PART)

    def _may_repeat(self) -> bool:
        """True when two instructions of one signature read the same tiles, or the same bytes of HBM."""
        for plan in self.timeline.plans:
            seen = set()
            for op in plan.operations:
                if op.instruction is not None and (reads := plan.accesses(op.position).reads):
                    key = (plan.signatures[op.position], *((id(v.storage), v.offset) for v in reads))
                    if key in seen:
                        return True
                    seen.add(key)
        return False

    def may_simulate(self) -> bool:
        """True while another new schedule is affordable."""
        self.simulated += len(self.timeline.operations)
        return self.simulated <= SIMULATED

    def gain_of_moving_less(self, change: Change) -> Gain:
        """Return the gain of a change in data movement.

        Where DMA and TensorE are both busy all the time, neither gains anything alone. float32 matmuls could
        be faster, so the gain is reported for the kernel in which they are.
        """
        gain = self.gain(change)
        if gain.worth and self.may_simulate():  # with transfers gone or shorter, another order is better
            gain = max(gain, self._gain_of_new_schedule(change))
        if not (self.is_busy("dma") and self.is_busy("tensor") and self.float32_matmuls):
            return gain
        beyond = self.with_faster_matmuls_ns - self.what_if.same_order_ns(self.faster_matmuls | change)
        return gain._replace(us=max(gain.us, beyond / 1e3))

    @cached_property
    def float32_matmuls(self) -> dict[int, Operation]:
        is_product = self.of_signature(lambda op: not is_transpose(op) and _is_float32(op))
        return {n: op for n, op in self.on("tensor") if is_product(op)}

    @cached_property
    def faster_matmuls(self) -> Change:
        """float32 matmuls at the speed of bfloat16."""
        bf16 = replace(self.machine, fp32_matmul_factor=1, fp32_onezero_factor=1, fp32_matmul_pairs=1)

        @self.of_signature
        def ratio(op: Operation) -> float:
            cost = self.timeline.plans[op.core].cost_of(op)
            return op.instruction.cost(bf16).cycles / cost.cycles  # type: ignore[union-attr]

        return Change(work={n: ratio(op) for n, op in self.float32_matmuls.items()})

    @cached_property
    def with_faster_matmuls_ns(self) -> float:
        return self.what_if.same_order_ns(self.faster_matmuls)

    @cached_property
    def without_spills(self) -> Change:
        """Unlimited SBUF: nothing is spilled, nothing waits for space."""
        removed, dropped = {}, {}
        for number, op in enumerate(self.timeline.operations):
            if op.instruction is None:
                removed[number] = number
            if SPACE in op.waits.values() and self._writes_sbuf(op):
                base = self.replay.first[op.core]
                dropped[number] = tuple(base + other for other, why in op.waits.items() if why == SPACE)
        return Change(removed=removed, dropped=dropped)

    def _writes_sbuf(self, op: Operation) -> bool:
        if op.instruction is None:
            return True
        writes = self.timeline.plans[op.core].accesses(op.position).writes
        return any(view.buffer is SBUF for view in writes)
