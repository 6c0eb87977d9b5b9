"""Synchronising with the other core: core_barrier and sendrecv (spec/isa_registers_sync.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ..errors import error
from ..ir.boxes import addresses
from ..ir.context import RunningCore, current, warn
from ..ir.instruction import In, Instruction, InstructionCost, NkiInstruction, Out, State
from ..ir.layout import Int, is_int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine.machine import Machine
from ..machine.memories import SHARED_HBM
from . import rules
from .deprecated import P, R
from .dma import DmaInstruction, transfer
from .enums import GPSIMD, SCALAR, SYNC, TENSOR, VECTOR, dma_engine, engine, member

CORES = (0, 1)


def _need_two_cores(function: str, what: str) -> None:
    """Checked at each call: the degree of a launch is no part of an instruction's signature."""
    degree = current().execution.degree
    if degree < 2:
        raise error(
            "lnc",
            f"{function}: {what} waits for another core, but the kernel runs on one",
            help="launch it on two cores: kernel[2](...)",
        )


def core_barrier(
    data: NkiTensor, cores: Int | Sequence[Int], engine: engine = engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Wait until all listed cores are here; then what each wrote to `data` is visible to all."""
    cores = _as_cores(cores)
    barrier = CoreBarrier(data, cores, engine, name)
    if len(cores) > 1 and current().machine.generation >= CoreBarrier.since:
        _need_two_cores("core_barrier", f"cores={cores}")
    return issue(barrier)


def _as_cores(cores: object) -> tuple[int, ...]:
    listed = tuple(cores) if isinstance(cores, (tuple, list)) else (cores,)
    if not all(is_int(core) for core in listed):
        raise error("argument", f"core_barrier: cores must be a tuple of core numbers, got {cores!r}")
    found = tuple(sorted({int(core) for core in listed}))
    if not found or len(found) != len(listed) or not set(found) <= set(CORES):
        raise error(
            "lnc", f"core_barrier: cores={cores!r}: a launch has the cores 0 and 1", help="write (0, 1)"
        )
    return found


class CoreBarrier(Instruction):
    public = "core_barrier"
    engines = (GPSIMD, TENSOR, VECTOR, SCALAR, SYNC)
    since = 3
    reaches_hbm = True
    state = (State.peer,)
    cost_formula = "core_barrier_ns"
    cost_source = "spec/machine.md 8"

    data: In
    cores: tuple[int, ...]
    engine: engine

    def check(self, machine: Machine) -> None:
        if self.data.buffer is not SHARED_HBM:
            warn(
                "barrier-buffer",
                f"core_barrier: data is in {self.data.buffer.value}, which the cores do not share",
                notes=[f"data: {self.data.describe()}"],
                help="pass the shared_hbm tensor that is handed over",
            )

    def parts(self, index: int) -> list[View]:
        """Return none: a barrier names the tensor and reads nothing of it."""
        return []

    def touches(self) -> tuple[State, ...]:
        return self.state if len(self.cores) > 1 else ()

    def rendezvous(self) -> Hashable | None:
        return ("core_barrier", None) if len(self.cores) > 1 else None

    def compute(self, data: np.ndarray) -> None:
        if len(self.cores) == 1:
            return
        core = current()
        storage = self.data.storage
        tensor = id(storage) if storage.buffer is SHARED_HBM else storage.name
        what = f"core_barrier on {storage.name or 'a tensor'} {self.data.dtype}{list(self.data.shape)}"
        core.execution.barriers.meet(core, ("core_barrier", tensor, self.cores), what)

    def cost(self, machine: Machine) -> InstructionCost:
        if len(self.cores) == 1:
            return InstructionCost(0, 0.0)
        return InstructionCost(0, machine.core_barrier_ns, ("core_barrier_ns",))


def _accepts_use_gpsimd_dma(function: Callable[P, R]) -> Callable[P, R]:
    """The old keyword `use_gpsimd_dma` of sendrecv."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if "use_gpsimd_dma" in kwargs:
            chosen = dma_engine.gpsimd_dma if kwargs.pop("use_gpsimd_dma") else dma_engine.dma
            warn(
                "legacy",
                "sendrecv: use_gpsimd_dma= is an old form",
                help=f"write dma_engine=nisa.dma_engine.{chosen.name}",
            )
            kwargs["dma_engine"] = chosen
        return function(*args, **kwargs)

    return wrapper


@_accepts_use_gpsimd_dma
def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: Int,
    recv_from_rank: Int,
    pipe_id: Int,
    dma_engine: dma_engine = dma_engine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """Send my `src` to a core and store in my `dst` what a core sent to me."""
    instruction = SendRecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine, name)
    if current().machine.generation >= SendRecv.since:
        _need_two_cores("sendrecv", f"pipe {pipe_id!r}")
    refuse_overlap("sendrecv", "overlap", ("src", src), ("dst", dst))
    return issue(instruction)


class SendRecv(DmaInstruction):
    """Both cores' n-th call with one pipe_id belong together; src is read before dst is written."""

    public = "sendrecv"
    since = 3
    state = (State.peer,)
    lazy_output = False
    cost_formula = "sendrecv_ns + bytes / gpsimd_dma_gbs"
    cost_source = "spec/machine.md 9.5"

    src: In
    dst: Out
    send_to_rank: int
    recv_from_rank: int
    pipe_id: int
    dma_engine: dma_engine

    def check(self, machine: Machine) -> None:
        rules.in_sbuf(self, "src", "dst")
        rules.same_dtype(self, "src", "dst")
        rules.matching(self, "src", "dst")
        member(self.dma_engine, dma_engine, self.public, "dma_engine")
        for name in ("send_to_rank", "recv_from_rank", "pipe_id"):
            if not is_int(getattr(self, name)):
                raise error("argument", f"sendrecv: {name} must be an int, got {getattr(self, name)!r}")
        for name in ("send_to_rank", "recv_from_rank"):
            if getattr(self, name) not in CORES:
                raise rules.fail(self, "lnc", f"{name} is {getattr(self, name)}, the cores are 0 and 1")
        if self.dma_engine is dma_engine.gpsimd_dma:
            limit = machine.sendrecv_max_elements
            help = (
                f"send at most {limit * self.src.dtype.itemsize} bytes per partition, or use dma_engine.dma"
            )
            rules.at_most(self, "src", self.src.free_elements, limit, "elements per partition", help)

    def compute(self, src: np.ndarray, dst: np.ndarray) -> None:
        core = current()
        dtype = self.src.dtype
        if self.send_to_rank == self.recv_from_rank == core.index:
            transfer(dst, src.copy(), dtype, dtype)
            return
        what = f"core {self.recv_from_rank} to send on pipe {self.pipe_id} of sendrecv"
        offers = core.execution.barriers.meet(core, ("sendrecv", self.pipe_id), what, (self, src.copy()))
        sender, data = offers[self.recv_from_rank]
        self._check_pair(core, sender)
        transfer(dst, data, dtype, dtype)

    def _check_pair(self, core: RunningCore, sender: SendRecv) -> None:
        """What arrives must be meant for this core and fit its dst."""
        if sender.send_to_rank != core.index:
            raise rules.fail(
                self,
                "lnc",
                f"core {core.index} receives from core {self.recv_from_rank}, "
                f"which sends to core {sender.send_to_rank}",
                [],
                "each core sends to the other: send_to_rank = recv_from_rank = 1 - nl.program_id(0)",
            )
        if sender.src.dtype != self.dst.dtype:
            raise self._mismatch("dtype", sender)
        if (sender.src.shape[0], sender.src.free_elements) != (self.dst.shape[0], self.dst.free_elements):
            raise self._mismatch("shape", sender)

    def _mismatch(self, kind: str, sender: SendRecv) -> Exception:
        return error(
            kind,
            f"sendrecv: core {self.recv_from_rank} sends {sender.src.dtype}{list(sender.src.shape)}, "
            f"dst is {self.dst.dtype}{list(self.dst.shape)}",
            notes=[f"dst: {self.dst.describe()}", f"sent at {sender.site}: {sender.src.describe()}"],
            help="both cores must exchange tiles of one shape and dtype",
            site=self.site,
        )

    def engine_name(self) -> str:
        """GpSimdE's own DMA is none of the sixteen engines."""
        return "gpsimd" if self.dma_engine is dma_engine.gpsimd_dma else "dma"

    def rendezvous(self) -> Hashable:
        return ("sendrecv", self.pipe_id)

    def rendezvous_of(self, core: int) -> Hashable | None:
        return None if self.send_to_rank == self.recv_from_rank == core else self.rendezvous()

    def generated_by(self, machine: Machine) -> str:
        return machine.dma_default_mode

    def cost(self, machine: Machine) -> InstructionCost:
        wire = self.src.nbytes / machine.gpsimd_dma_gbs
        return InstructionCost(0, machine.sendrecv_ns + wire, ("sendrecv_ns", "gpsimd_dma_gbs"))


def refuse_overlap(function: str, kind: str, first: tuple[str, object], second: tuple[str, object]) -> None:
    """Refuse operands of one exchange that share bytes. Checked at each call: it depends on identity."""
    (name, a), (other, b) = first, second
    if isinstance(a, View) and isinstance(b, View) and _overlap(a, b):
        raise error(
            kind,
            f"{function}: {name} and {other} share bytes",
            notes=[f"{name}: {a.describe_layout()}", f"{other}: {b.describe_layout()}"],
            help="receive into a tensor of its own",
        )


def _overlap(a: View, b: View) -> bool:
    """Return True if two views share bytes, run-time addresses aside."""
    if a.is_indirect() or b.is_indirect() or a.buffer is not b.buffer:
        return False
    if a.storage is not b.storage and (a.storage.address is None or b.storage.address is None):
        return False
    return np.shares_memory(_addresses(a), _addresses(b))


def _addresses(view: View) -> np.ndarray:
    width, storage = view.dtype.itemsize, view.storage
    partition, byte = storage.address or (0, 0)
    pitch = storage.pitch if storage.address is None else 1 << 20
    first, free = divmod(view.offset, view.row_pitch) if storage.on_chip else (0, view.offset)
    strides = [step * width for step in view.strides]
    if storage.on_chip:
        strides[0] = pitch
    start = (partition + first) * pitch + byte + free * width
    return addresses(start, tuple(view.shape), tuple(strides), width)
