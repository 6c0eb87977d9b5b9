"""What all collectives share: operand rules, and meeting the rank's other core (collectives.md 1.2, 3)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..context import warn
from ..errors import error
from ..execute.memories import memory_of
from ..hardware import operators
from ..hardware.machine import Machine
from ..hardware.memories import PRIVATE_HBM, SBUF, SHARED_HBM
from ..hardware.operators import Operator
from ..isa import rules
from ..isa.dma import DmaInstruction, transfer
from ..isa.sync import refuse_overlap
from ..program.instruction import Cost, State
from ..run.core import Core
from ..tensors import View

HBM = (PRIVATE_HBM, SHARED_HBM)
REDUCTIONS = ("add", "minimum", "maximum")


class Collective(DmaInstruction):
    """Operands are read and written when all who take part have come, so `perform` fetches the bytes."""

    state = (State.peer, State.ranks)
    partial: ClassVar[tuple[int, ...]] = (0, 1)
    cost_formula = "collective_hop_ns"
    cost_source = "machine.md 11"

    def parts(self, index: int) -> list[View]:
        return []

    def touches(self: Any) -> tuple[State, ...]:
        """The rank's other core takes part where both share dst."""
        return self.state if self.dst.buffer is SHARED_HBM else (State.ranks,)

    def meeting(self: Any, core: int) -> Any:
        return (self.public, self.dst.storage) if State.peer in self.touches() else None

    def check_operands(self: Any, machine: Machine, *names: str) -> None:
        """The rules of every collective: one memory, no run-time addresses, equal dtypes."""
        self.check_transfer(machine)
        for name in names:
            view = getattr(self, name)
            if (view.buffer is SBUF) != (self.dst.buffer is SBUF):
                raise rules.fail(
                    self, "buffer", f"dst and {name} must both be in HBM or both in SBUF", ["dst", name]
                )
            if view.buffer is SBUF and view.ndim != 2:
                raise rules.fail(
                    self, "shape", f"{name} must be 2-D in SBUF, it has {view.ndim} dimensions", [name]
                )
            if view.is_indirect():
                raise rules.fail(
                    self, "indirect-view", f"{name} has a run-time index", [name], "copy the selection first"
                )
            rules.same_dtype(self, "dst", name)
        if self.priority is not None:
            if self.priority not in (0, 1, 2, 3):
                raise rules.fail(self, "priority", f"priority must be None or 0 to 3, got {self.priority!r}")
            if machine.dma_priorities == 1:
                warn("priority-ignored", f"{self.public}: {machine.name} has no DMA priorities")

    def equal_shapes(self: Any, *names: str) -> None:
        for name in names:
            view = getattr(self, name)
            if tuple(view.shape) != tuple(self.dst.shape):
                raise rules.fail(
                    self,
                    "shape",
                    f"dst is {list(self.dst.shape)}, {name} is {list(view.shape)}",
                    ["dst", name],
                )

    def in_hbm(self, *names: str) -> None:
        for name in names:
            rules.buffers(self, name, HBM, "copy it to a shared_hbm tensor first (nisa.dma_copy)")

    def along(self: Any, dim: Any, allowed: tuple[int, ...]) -> None:
        """collective_dim is one the instruction can split or join."""
        if dim not in allowed or isinstance(dim, bool):
            where = "SBUF" if self.dst.buffer is SBUF else "HBM"
            shown = " or ".join(map(str, allowed))
            raise rules.fail(
                self, "axis", f"collective_dim is {dim!r}, in {where} it must be {shown}", ["dst"]
            )

    def compute(self: Any, core: Core, *arrays: np.ndarray) -> None:
        """Shared tensors: once per rank, when both cores have come. Others: each core by itself."""
        if core.launch.degree == 1 or self.dst.buffer is not SHARED_HBM:
            self.perform()
            return
        point = (self.public, id(self.dst.storage))
        what = (
            f"{self.public} into {self.dst.storage.name or 'a tensor'} {self.dst.dtype}{list(self.dst.shape)}"
        )
        came = core.launch.meet(core, point, what, act=lambda offers: self.perform(), alone=True)
        if len(came) < core.launch.degree:
            warn(
                "lnc-one-sided",
                f"{self.public}: only core {core.index} calls it, on tensors both cores share",
            )

    def perform(self: Any) -> None:
        """One rank: the result is what the rank sent."""
        transfer(writing(self.dst), reading(self.src), self.src.dtype, self.dst.dtype)

    def generated_by(self, machine: Machine) -> str:
        return machine.dma_default_mode

    def cost(self, machine: Machine) -> Cost:
        return Cost(0, machine.collective_hop_ns, ("collective_hop_ns",))


def reading(view: View) -> np.ndarray:
    return memory_of(view).read(view)


def writing(view: View) -> np.ndarray:
    return memory_of(view).write(view)


# ---- arguments -----------------------------------------------------------------------------------


def paired(function: str, srcs: Any, dsts: Any, several: bool = False) -> list[tuple[View, View]]:
    """(dst, src) pairs of the two lists of a call; several only in HBM, and where the function takes them."""
    check_tensors(function, "srcs", srcs)
    check_tensors(function, "dsts", dsts)
    if len(srcs) != len(dsts):
        raise error("argument", f"{function}: {len(srcs)} srcs and {len(dsts)} dsts")
    if len(srcs) > 1 and not several:
        raise error("argument", f"{function}: takes one tensor per list, got {len(srcs)}")
    if len(srcs) > 1 and any(view.buffer is SBUF for view in (*srcs, *dsts)):
        raise error(
            "buffer",
            f"{function}: several tensors in one call must be in HBM",
            notes=[view.describe() for view in (*srcs, *dsts) if view.buffer is SBUF],
            help="make one call per SBUF tensor",
        )
    for dst in dsts:
        for src in srcs:
            refuse_overlap(function, "collective-overlap", ("srcs", src), ("dsts", dst))
    for view in (*srcs, *dsts):
        _hint(function, view)
    return list(zip(dsts, srcs, strict=True))


def check_tensors(function: str, argument: str, views: Any) -> None:
    if not isinstance(views, (list, tuple)) or not views or not all(isinstance(v, View) for v in views):
        got = type(views).__name__ if isinstance(views, View) else f"{views!r}"
        raise error(
            "argument", f"{function}: {argument} must be a list of tensors, got {got}", help="write [tensor]"
        )


def _hint(function: str, view: View) -> None:
    """What hardware asks of HBM operands beyond this simulator; about identity, so said at each call."""
    if view.on_chip:
        return
    if view.storage.parameter:
        warn(
            "collective-io-tensor",
            f"{function}: '{view.name}' is an argument of the kernel, which hardware refuses here",
            help="nisa.dma_copy it to a named shared_hbm tensor first",
        )
    elif not view.name:
        warn(
            "collective-unnamed",
            f"{function}: an HBM tensor without a name; real compilers fail to place it",
            notes=[view.describe()],
            help="allocate it with name=",
        )


def reduction(op: Any, function: str) -> Operator:
    resolved = operators.resolve(op, function)
    if resolved.name not in REDUCTIONS:
        raise error("operator", f"{function}: op={resolved!r}", help="use nl.add, nl.minimum or nl.maximum")
    return resolved
