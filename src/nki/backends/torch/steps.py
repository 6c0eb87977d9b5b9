"""The steps of a program on a device (`device_plan_of`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from itertools import chain, groupby
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...ir.caches import per_program
from ...ir.program import Loop
from ...ir.storage import Storage
from ...machine.machine import Machine
from ..fused.fusion import fuse, track_units
from ..fused.planner import share_nothing
from ..fused.products import Factor, Gemm
from ..fused.storages import Storages
from ..fused.tiles import Untrackable
from ..fused.tracking import Node, Tracker
from ..fused.values import SSAValue
from ..joined import JoinedCandidate
from ..lowered import UNPLANNED, Lowered
from ..reference.collector import no_collections
from ..units import find_units
from .batches import Batch, DeviceStep
from .gemms import BatchedGemm, share_factors
from .indirect import with_indices
from .placement import place
from .repetitions import ONCE, Repetitions
from .schedule import MERGED, LevelScheduler, Refused, groups

if TYPE_CHECKING:
    from torch import device as TorchDevice

WINDOW = 8 << 30  # bytes of the values of a window


class DevicePlan:
    """A program as steps on a device. It never changes; calls share it, and what it needs on each device."""

    def __init__(
        self,
        lowered: Lowered,
        steps: list[DeviceStep],
        arena: int,
        written: list[Storage],
        partly: set[Storage],
    ):
        self.machine, self.steps, self.arena = lowered.machine, steps, arena
        self.written = written  # in HBM
        self.partly = partly  # of these, those whose old contents matter
        self.constants = lowered.constants
        self.numbers: dict[Any, dict[tuple, Any]] = defaultdict(dict)  # by device: constants of instructions
        self.kernels: dict[Any, dict[Any, Any]] = {}  # by device: steps that are one kernel each
        self._constants: dict[Any, dict[Storage, Any]] = {}

    def constants_on(self, torch: ModuleType, where: TorchDevice) -> dict[Storage, Any]:
        """Return the constants of the program as tensors of bytes on a device."""
        if where not in self._constants:
            self._constants[where] = {s: torch.from_numpy(raw.copy()).to(where) for s, raw in self.constants}
        return self._constants[where]


@per_program
def device_plan_of(lowered: Lowered) -> DevicePlan | Refused:
    """Return the steps of a program on a device, or why it has none."""
    try:
        with no_collections():
            return _planned(lowered)
    except Refused as why:
        return Refused(*why.args)  # without its traceback, which refers to the program


def _planned(lowered: Lowered) -> DevicePlan:
    lowered = with_indices(lowered)
    for items, kinds, counts in zip(lowered.items, lowered.kinds, lowered.counts, strict=True):
        if any(kind is None or kind.fence for kind in counts):
            item = next(item for item, kind in zip(items, kinds, strict=True) if kind is None or kind.fence)
            what = "a dynamic loop" if isinstance(item, Loop) else item.public
            raise Refused(f"{what} depends on values at run time")
    if not lowered.states.isdisjoint(UNPLANNED):
        raise Refused("it prints, generates random numbers or communicates with other ranks")
    storages = Storages(lowered)
    if len(lowered.items) > 1 and (lowered.diagnostics or not share_nothing(lowered, storages)):
        raise Refused("its two cores depend on each other")
    return plan_units(lowered, storages) or plan_whole(lowered, storages)


def plan_whole(lowered: Lowered, storages: Storages) -> DevicePlan:
    """Return the plan of all instructions of a program."""
    windows = _Windows(storages, lowered.machine)
    with ExitStack() as trackers:
        for core, items in enumerate(lowered.items):
            tracker = trackers.enter_context(_tracking(storages))
            tracker.track(items, lowered.kinds[core])
            windows.add(fuse(tracker.nodes, tracker.fused), core)
        windows.close()
        return _plan(lowered, windows, len(windows.steps), ONCE)


def plan_units(lowered: Lowered, storages: Storages) -> DevicePlan | None:
    """Return the plan of a program of equal units, tracked and scheduled once; None: it has none.

    Small products of units with one large factor are better merged, which needs all of their nodes. So are
    several products of each unit of which no strided view has all the results.
    """
    is_one = len(lowered.items) == 1
    whole = lowered if is_one else lowered.with_items((tuple(chain.from_iterable(lowered.items)),))
    units = find_units(whole, 0, storages.written, storages.write_once, JoinedCandidate)
    if units is None or len(units.units) > 1:
        return None
    windows, repetitions = _Windows(storages, lowered.machine), Repetitions.of(units.units[0])
    with _tracking(storages) as tracker:
        common, inside = track_units(tracker, whole, 0, units)
        for core, nodes in _by_core(lowered, common):
            windows.add(nodes, core)
        windows.close()
        first = len(windows.steps)
        windows.times = _times(inside, repetitions.number)
        windows.add(inside, 0)
        windows.close()
        gemms = [
            gemm for step in windows.steps[first:] if isinstance(step, BatchedGemm) for gemm in step.items
        ]
        if _are_better_merged(gemms, repetitions):
            return None
        plan = _plan(lowered, windows, first, repetitions)
    products = [step for step in plan.steps if isinstance(step, BatchedGemm)]
    return plan if all(step.results.regular((step.count,)) is not None for step in products) else None


def _by_core(lowered: Lowered, nodes: Sequence[Node]) -> Iterator[tuple[int, list[Node]]]:
    """Iterate over the cores and their nodes; a gather is of any."""
    if len(lowered.items) == 1:
        yield 0, list(nodes)
        return
    core_of = {id(item): core for core, items in enumerate(lowered.items) for item in items}
    for core, some in groupby(nodes, key=lambda node: core_of.get(id(node.instruction), 0)):
        yield core, list(some)


def _times(nodes: Sequence[Node], count: int) -> int:
    """Return how many of `count` repetitions fit into a window."""
    parts = -(-count * sum(map(_new_bytes, nodes)) // WINDOW) or 1
    return -(-count // min(parts, count))


def _new_bytes(node: Node) -> int:
    return sum([v.nbytes for _, v, _ in node.outputs if v.__class__ is SSAValue and v.stored_at is None])


def _are_better_merged(gemms: Sequence[Gemm], repetitions: Repetitions) -> bool:
    """Return whether products for all repetitions together read much less than those for each."""
    factors = [factor for gemm in gemms for factor in (gemm.left, gemm.right)]
    own = sum([f.rows * f.columns for f in factors if not _is_shared(f, repetitions)])
    return bool(gemms) and sum([f.rows * f.columns for f in factors]) >= MERGED * own


def _is_shared(factor: Factor, repetitions: Repetitions) -> bool:
    """Return whether a factor is the same in several repetitions."""
    parts = [tile.elements for tile in factor.tiles] if factor.view is None else [factor.view]
    return all(map(repetitions.share, parts))


@contextmanager
def _tracking(storages: Storages) -> Iterator[Tracker]:
    """Context: a tracker, whose nodes are freed at the end. Tiles that it cannot track refuse the program."""
    tracker = Tracker(storages)
    try:
        yield tracker
    except Untrackable as problem:
        raise Refused(f"a tile is not tracked value by value: {problem.why}") from None
    finally:
        for node in tracker.nodes:
            node.unlink()


class _Windows:
    """Puts nodes into steps. The values of a window fit into a budget of memory."""

    def __init__(self, storages: Storages, machine: Machine):
        self.storages, self.order, self.machine = storages, LevelScheduler(storages), machine
        self.steps: list[DeviceStep] = []
        self.times = 1  # repetitions that each step computes
        self.open: list[Any] = []
        self.held = 0

    def add(self, nodes: Sequence[Node], core: int) -> None:
        self.order.core = core
        for node in nodes:
            if node.kind == "memory":
                raise Refused(f"{node.instruction.public} is not supported there")
            new = self.times * _new_bytes(node)
            if self.held + new > WINDOW and self.open:
                self.close()
            self.held += new
            self.open.append(self.order.elements(node))

    def close(self) -> None:
        for depth, group in groups(self.open, self.machine):
            kind = BatchedGemm if group[0].__class__ is Gemm else Batch
            self.steps.append(kind(group, (self.order.window, depth), self.times))
        self.open, self.held = [], 0
        self.order.next_window()


def _plan(lowered: Lowered, windows: _Windows, first: int, repetitions: Repetitions) -> DevicePlan:
    """Return the plan of steps; from the `first` on they are repeated."""
    storages = windows.storages
    arena, own = place(windows.steps, first)
    repetitions = repetitions._replace(own=own)
    steps = _finished(windows.steps[:first], ONCE)
    for start in range(0, repetitions.number, windows.times):
        part = repetitions.part(start, start + windows.times)
        steps += _finished([copy(step) for step in windows.steps[first:]], part)
    written = sorted(storages.written, key=lambda storage: storage.number)
    is_complete = windows.order.is_complete
    partly = {s for s in written if not is_complete(s) or (s.parameter and s in storages.read)}
    return DevicePlan(lowered, steps, arena, written, partly)


def _finished(steps: Sequence[DeviceStep], repetitions: Repetitions) -> list[DeviceStep]:
    found = [final for step in steps for final in step.finish(repetitions)]
    share_factors(found)
    return found
