"""Shared parts of collectives: operand rules, rendezvous of cores and ranks (spec/collectives.md 1.2, 3)."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.reference.memories import memory_of
from ..errors import error
from ..ir.context import RunningCore, current, warn
from ..ir.instruction import InstructionCost, State
from ..ir.transfer_instruction import Wire
from ..ir.view import View
from ..isa import rules
from ..isa.dma import DmaInstruction, transfer
from ..isa.sync import refuse_overlap
from ..launch.scheduler import GivesUp, table
from ..launch.world import Parts
from ..machine import operators
from ..machine.machine import Machine
from ..machine.memories import PRIVATE_HBM, SBUF, SHARED_HBM
from ..machine.operators import Operator
from ..typing import OperatorLike
from .groups import ReplicaGroup
from .messages import message, unpack
from .prices import wire

JOINT = -1  # the lane of calls that both cores of a rank make together
HBM = (PRIVATE_HBM, SHARED_HBM)
REDUCTIONS = ("add", "minimum", "maximum")


class Collective(DmaInstruction):
    """Operands are read and written when all members have arrived, so `perform` reads the bytes."""

    state = (State.peer, State.ranks)
    cost_formula = "hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands"
    cost_source = "spec/machine.md 11"
    fixed_sizes = True  # every member sends as many bytes

    if TYPE_CHECKING:
        replica_group: ReplicaGroup

    def parts(self, index: int) -> list[View]:
        return []

    def touches(self) -> tuple[State, ...]:
        """The rank's other core takes part where both share dst."""
        return self.state if self.dst.buffer is SHARED_HBM else (State.ranks,)

    def rendezvous_of(self, core: int) -> Hashable | None:
        return (self.public, self.dst.storage) if State.peer in self.touches() else None

    def check_operands(self, machine: Machine, *names: str) -> None:
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

    def equal_shapes(self, *names: str) -> None:
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

    def along(self, dim: object, allowed: tuple[int, ...]) -> None:
        """collective_dim is one the instruction can split or join."""
        if dim not in allowed or isinstance(dim, bool):
            where = "SBUF" if self.dst.buffer is SBUF else "HBM"
            shown = " or ".join(map(str, allowed))
            raise rules.fail(
                self, "axis", f"collective_dim is {dim!r}, in {where} it must be {shown}", ["dst"]
            )

    def scaled(self, dim: int, count: int, larger: str, smaller: str) -> None:
        """One operand is `count` times as long as the other along `dim`, and like it otherwise."""
        view = getattr(self, smaller)
        wanted = [n * count if i == dim else n for i, n in enumerate(view.shape)]
        if list(getattr(self, larger).shape) != wanted:
            raise rules.fail(
                self,
                "shape",
                f"{larger} is {list(getattr(self, larger).shape)}, {smaller} {list(view.shape)} of "
                f"{count} rank{'s' if count > 1 else ''} makes {wanted}",
                ["dst", smaller if smaller != "dst" else larger],
            )

    # ---- the exchange ----------------------------------------------------------------------------

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks that take part with this one, in index order; none: it takes no part."""
        return self.replica_group.members(rank)

    def compute(self, *arrays: np.ndarray) -> None:
        """Exchange shared tensors once per rank, when both cores have arrived; others on each core."""
        core = current()
        rank = core.execution.world.rank
        if not self.members(rank):
            self.left_out(rank)
        elif core.execution.degree == 1 or self.dst.buffer is not SHARED_HBM:
            self.perform(core, core.index)
        else:
            self._perform_jointly(core)

    def left_out(self, rank: int) -> None:
        warn("not-a-member", f"{self.public}: rank {rank} is in no list of the group; nothing happens there")

    def _perform_jointly(self, core: RunningCore) -> None:
        point = (self.public, id(self.dst.storage))
        act = partial(self.perform, core, JOINT)
        came = core.execution.barriers.meet(
            core, point, self.shown(), act=lambda offers: act(), gives_up=GivesUp.LAST
        )
        if len(came) < core.execution.degree:
            warn(
                "lnc-one-sided",
                f"{self.public}: only core {core.index} calls it, on tensors both cores share",
            )

    def perform(self, core: RunningCore, lane: int) -> None:
        """Send what this rank has, and store what comes of all that was sent."""
        world = core.execution.world
        members = self.members(world.rank)
        sent = self.sources(world.rank, members)
        if len(members) == 1:
            self.receive(world.rank, members, Received(Parts(), [0], [sent]))
            return
        core.execution.side_effects.sent = True
        head = {"same": self.agreement(), "rank": world.rank, "core": core.index, "line": str(self.site)}
        shown = f"{self.shown()} of ranks {', '.join(map(str, members))}"
        data = message(head, sent, world.in_process)
        parts = world.meet(members, lane, shown, str(self.site), data)
        ascending = sorted(members)
        received = parts.once("unpacked", lambda: list(map(self._unpacked, parts, ascending)))
        parts.once("agreed", lambda: self._check_agreement([h for h, _ in received]))
        for (_, arrays), member in zip(received, ascending, strict=True):
            self._check_arrays(arrays, sent, member)
        arrays = [received[ascending.index(member)][1] for member in members]
        self.receive(world.rank, members, Received(parts, [a.dtype for a in sent], arrays))

    def _unpacked(self, part: np.ndarray, member: int) -> tuple[dict[str, Any], list[np.ndarray]]:
        try:
            return unpack(part)
        except ValueError as problem:
            raise self._wrong_message(member, str(problem)) from None

    def _check_arrays(self, arrays: list[np.ndarray], sent: list[np.ndarray], member: int) -> None:
        """Check that a member sent as many arrays as this rank, of equal sizes unless counts decide it."""
        got, own = [array.nbytes for array in arrays], [array.nbytes for array in sent]
        fixed = 0 if self.fixed_sizes else 1
        if len(got) != len(own) or got[fixed:] != own[fixed:] or got[0] % sent[0].itemsize:
            raise self._wrong_message(member, f"arrays of {got} bytes, not {own}")

    def _wrong_message(self, member: int, why: str) -> Exception:
        problem = error(
            "rank-lost",
            f"{self.public}: a rank sent what is no message of this call: {why}",
            help="use one version of Open NKI on all ranks",
            site=self.site,
        )
        problem.rank = member
        return problem

    def shown(self) -> str:
        name = self.dst.storage.name or "a tensor"
        return f"{self.public} into {name} {self.dst.dtype}{list(self.dst.shape)}"

    def agreement(self) -> str:
        """Return what must be the same for all members."""
        parts = []
        for name in self.fields:
            value = getattr(self, name)
            if isinstance(value, View):
                parts.append(
                    f"{name} {value.dtype}{list(value.shape)} in {'sbuf' if value.on_chip else 'hbm'}"
                )
            elif isinstance(value, Operator):
                parts.append(f"op {value.name}")
            elif name != "priority":
                parts.append(f"{name} {list(map(list, value)) if name == 'replica_group' else value}")
        return f"{self.public}: {', '.join(parts)}"

    def _check_agreement(self, heads: list[dict[str, Any]]) -> bool:
        if len({head["same"] for head in heads}) > 1:
            rows = [(str(head["rank"]), str(head["core"]), head["line"], head["same"]) for head in heads]
            problem = error(
                "collective-mismatch",
                f"{self.public}: the ranks do not call the same collective here",
                notes=table(("rank", "core", "line", "calls"), rows),
                help="all members make the same calls, in one order, with equal shapes, dtypes and options",
                site=self.site,
            )
            problem.rank = min(head["rank"] for head in heads)  # the same on every rank
            raise problem
        return True

    def sources(self, rank: int, members: tuple[int, ...]) -> list[np.ndarray]:
        """What this rank sends."""
        return [reading(self.src)]

    def receive(self, rank: int, members: tuple[int, ...], received: Received) -> None:
        """Store what comes of what the members sent."""
        raise NotImplementedError

    def land(self, target: View, array: np.ndarray) -> None:
        """Store a member's elements as they are."""
        transfer(writing(target), array.reshape(target.shape), self.dst.dtype, self.dst.dtype)

    def generated_by(self, machine: Machine) -> str:
        return machine.dma_default_mode

    # ---- for the timing model --------------------------------------------------------------

    def groups(self) -> Any:
        """All lists of ranks that exchange among themselves."""
        return self.replica_group

    def traffic(self) -> tuple[float, float, int]:
        """(bytes that are exchanged, bytes that a rank's link carries, rounds over the members)."""
        return self.src.nbytes, self.src.nbytes, 0

    def transfers(self) -> list[tuple[View, View]]:
        """Beside the link: the larger operand is read or written at this rank."""
        larger = self.dst if self.dst.size >= self.src.size else self.src
        return [(self.dst, self.src)] if self.dst.size == self.src.size else [(larger, larger)]

    def wire(self, machine: Machine, cores: int) -> Wire | None:
        groups = self.groups()
        if len(groups[0]) == 1:
            return None
        nbytes, sent, rounds = self.traffic()
        found = wire(groups, nbytes, sent, rounds, machine, cores)
        # each core has its part of the link; what both call together, each carries half of
        return found if State.peer in self.touches() else found._replace(busy_ns=found.busy_ns * cores)

    def cost(self, machine: Machine) -> InstructionCost:
        """Time on the link is the timing model's business; no engine is held here."""
        found = self.wire(machine, 1)
        return InstructionCost(0, 0.0, found.rests_on if found is not None else ())


class Received:
    """What the members sent, by index; `array(j)` is what the j-th of them did."""

    def __init__(self, parts: Parts, dtypes: list[Any], sent: list[list[np.ndarray]]):
        self.parts, self.dtypes, self.sent = parts, dtypes, sent

    def __len__(self) -> int:
        return len(self.sent)

    def array(self, index: int, operand: int = 0) -> np.ndarray:
        found = self.sent[index][operand]
        return found if len(self.sent) == 1 else found.view(self.dtypes[operand])


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


def check_tensors(function: str, argument: str, views: object) -> None:
    if not isinstance(views, (list, tuple)) or not views or not all(isinstance(v, View) for v in views):
        got = type(views).__name__ if isinstance(views, View) else f"{views!r}"
        raise error(
            "argument", f"{function}: {argument} must be a list of tensors, got {got}", help="write [tensor]"
        )


def _hint(function: str, view: View) -> None:
    """Warn of HBM operands that hardware would refuse. Checked at each call: it depends on identity."""
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


def reduction(op: OperatorLike, function: str) -> Operator:
    resolved = operators.resolve(op, function)
    if resolved.name not in REDUCTIONS:
        raise error("operator", f"{function}: op={resolved!r}", help="use nl.add, nl.minimum or nl.maximum")
    return resolved
