"""The steps of a program on a device (`device_plan_of`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...ir.caches import per_program
from ...ir.program import Loop
from ...ir.storage import Storage
from ..fused.fusion import fuse
from ..fused.planner import share_nothing
from ..fused.products import Gemm
from ..fused.storages import Storages
from ..fused.tiles import Untrackable
from ..fused.tracking import Node, Tracker
from ..fused.values import SSAValue
from ..lowered import UNPLANNED, Lowered
from ..reference.collector import no_collections
from .batches import Batch, DeviceStep
from .gemms import BatchedGemm, share_factors
from .indirect import with_indices
from .placement import place
from .schedule import LevelScheduler, Refused, groups

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
    for items in lowered.items:
        for item in items:
            if lowered.is_fence(item):
                what = "a dynamic loop" if isinstance(item, Loop) else item.public
                raise Refused(f"{what} depends on values at run time")
    if not lowered.states.isdisjoint(UNPLANNED):
        raise Refused("it prints, generates random numbers or communicates with other ranks")
    storages = Storages(lowered)
    if len(lowered.items) > 1 and (lowered.diagnostics or not share_nothing(lowered, storages)):
        raise Refused("its two cores depend on each other")
    return _steps(lowered, storages, [_nodes(lowered, storages, core) for core in range(len(lowered.items))])


def _nodes(lowered: Lowered, storages: Storages, core: int) -> list[Node]:
    """Return the nodes of a core."""
    tracker = Tracker(storages)
    try:
        tracker.track(lowered.items[core], lowered.kinds[core])
    except Untrackable as problem:
        raise Refused(f"a tile is not tracked value by value: {problem.why}") from None
    return fuse(tracker.nodes, tracker.fused)


def _steps(lowered: Lowered, storages: Storages, cores: Sequence[Sequence[Node]]) -> DevicePlan:
    order = LevelScheduler(storages)
    steps: list[DeviceStep] = []
    open_nodes: list[Any] = []
    held = 0

    def close() -> None:
        nonlocal open_nodes, held
        for depth, group in groups(open_nodes):
            kind = BatchedGemm if group[0].__class__ is Gemm else Batch
            steps.append(kind(group, (order.window, depth)))
        open_nodes, held = [], 0
        order.next_window()

    for core, node in ((core, node) for core, nodes in enumerate(cores) for node in nodes):
        order.core = core
        if node.kind == "memory":
            raise Refused(f"{node.instruction.public} is not supported there")
        new = sum(v.nbytes for _, v, _ in node.outputs if v.__class__ is SSAValue and v.stored_at is None)
        if held + new > WINDOW and open_nodes:
            close()
        held += new
        open_nodes.append(order.elements(node))
    close()
    written = sorted(storages.written, key=lambda storage: storage.number)
    arena = place(steps)
    steps = [final for step in steps for final in step.finish()]
    share_factors(steps)
    partly = {s for s in written if not order.is_complete(s) or (s.parameter and s in storages.read)}
    return DevicePlan(lowered, steps, arena, written, partly)
