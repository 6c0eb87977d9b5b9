"""Calls whose tensors are on a GPU: run there, where every instruction can."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import NkiError
from ..ir.caches import per_program
from ..ir.program import Program
from ..ir.storage import Storage
from ..ir.tree import leaves, replace_leaves
from ..ir.view import View
from ..launch.diagnostics import SideEffects, show
from ..launch.execution import Execution, execution_of, has_races
from ..launch.world import current_world
from ..machine.dtypes import DType
from ..options import Options
from .cache import programs
from .results import report_unwritten
from .run import Call
from .staged import Staged, stage_anew
from .transfer import is_whole

if TYPE_CHECKING:
    from ..backends.torch.graphs import Pending
    from ..backends.torch.steps import DevicePlan

TORCH_NAMES = {"tfloat32": "float32", "float8_e4m3": "float8_e4m3fn"}  # dtypes that torch does not have


def run_on_device(call: Call, tensors: Sequence[Any]) -> list[Any] | str:
    """Return what a call returns, in a list; or why it does not run on the device of its tensors."""
    options = call.options
    if options.executor == "reference" or options.strict or not options.precise_fp:
        return "the reference backend is asked for"  # which reports everything at its line
    home = tensors[0].device
    if any(tensor.device != home or tensor.is_neg() for tensor in tensors):
        return "its tensors are not all on one device, without a flag to negate them"
    program, found = _run_cached(call, tensors, home)
    if program is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shown below, or by the call itself if it runs on the host
            staged = stage_anew(replace(call, arguments=call.arguments.described()))
        program, found = staged.program, run_staged(staged, tensors, home)
    if isinstance(found, str):
        return found
    for diagnostic in program.diagnostics:  # about shapes; the host reports what depends on values
        show(diagnostic)
    return found


def _run_cached(call: Call, tensors: Sequence[Any], home: Any) -> tuple[Program | None, list[Any] | str]:
    """Run the program of an equal call, if nothing that its Python read has changed; else None.

    The device works while the host looks for changes. What it has computed is given up if there are any.
    """
    entry = None if call.key is None else programs.get(call.key)
    started: Started | str | None = None
    if entry is not None and entry.program is not None:
        call.repeats = call.early is not None and call.early.is_of(entry.program, tensors)
        started = (
            call.early if call.repeats else start(entry.program, tensors, home, call.options, entry.verified)
        )
    if call.key is None or programs.checked(call.key, entry) is None or entry is None or started is None:
        return None, ""
    return entry.program, started if isinstance(started, str) else started.finish(call.kernel.returns)


def run_staged(staged: Staged, tensors: Sequence[Any], device: Any) -> list[Any] | str:
    """Run a staged call on tensors of a device, in the order of its parameters. Written ones are changed.

    Returns the result in a list, or why the call does not run there; then nothing was done.
    """
    if not staged.is_fixed:
        return "its Python reads values"
    started = start(staged.program, tensors, device, staged.call.options, staged.verified)
    return started if isinstance(started, str) else started.finish(staged.kernel.returns)


@per_program
def _plan(program: Program) -> DevicePlan | None:
    """Return the plan of a program on a device; None: it runs in order."""
    from ..backends.lowered import lower
    from ..backends.torch.backend import complete_plan
    from ..backends.torch.schedule import Refused

    plan = complete_plan(lower(program))
    return None if isinstance(plan, Refused) else plan


@dataclass(frozen=True)
class InOrder:
    """A run in order. It begins when it must end: what it prints and sends cannot be taken back."""

    program: Program
    given: dict[Storage, Any]
    where: Any
    options: Options
    verified: dict[int, int]

    def finish(self) -> dict[Storage, Any] | None:
        """Run; return the tensors of what is written and returned. None: run it on the host."""
        side_effects, program = SideEffects(), self.program
        # those of the program itself are shown where it is called
        execution = execution_of(program, self.options, side_effects, program.diagnostics, self.verified)
        try:
            with execution:
                return self._run(execution)
        except Exception as problem:
            if side_effects.sent or (side_effects.prints and isinstance(problem, NkiError)):
                raise
            return None

    def _run(self, execution: Execution) -> dict[Storage, Any]:
        from ..backends.lowered import lower
        from ..backends.torch.in_order import run_in_order

        memories = run_in_order(lower(self.program), execution, self.given, self.where)
        execution.memories = memories
        returned = leaves(self.program.result, View)
        for view in returned:
            report_unwritten(view, execution, None)
        storages = {view.storage for view in returned} | (self.given.keys() & self.program.written)
        found = {storage: memories[storage].raw for storage in storages}
        if execution.world.keeps_random_state:
            execution.generators.keep()
        execution.diagnostics.show()
        return found


class Started(NamedTuple):
    """A program that a device was asked to run. What it writes is new; the arguments are as they were."""

    program: Program
    originals: dict[Storage, Any]
    changed: list[Storage]  # of these, those that are written
    constants: dict[Storage, Any]
    pending: Pending | InOrder

    def is_of(self, program: Program, tensors: Sequence[Any]) -> bool:
        """Return whether this is a run of a program on these tensors."""
        own = self.originals.values()
        return self.program is program and all(a is b for a, b in zip(own, tensors, strict=True))

    def finish(self, returns: bool) -> list[Any] | str:
        """Change the arguments that are written and return the result; or say why there is none."""
        found = self.pending.finish()
        if found is None:
            return "an instruction reports something about its values"
        for storage in self.changed:
            target = self.originals[storage]
            new = _as_dtype(found[storage], storage.dtype).reshape(target.shape)
            target.copy_(new if new.dtype == target.dtype else new.view(target.dtype))
        if not returns:
            return [None]
        result = self.program.result
        if isinstance(result, View):  # as most often: there is no structure to go through
            return [self._returned(result, found)]
        return [replace_leaves(result, View, lambda view: self._returned(view, found))]

    def _returned(self, view: View, found: Mapping[Storage, Any]) -> Any:
        own = self.originals.get(view.storage)
        if own is None:
            memory = found[view.storage] if view.storage in found else self.constants[view.storage]
            part = part_of(_as_dtype(memory, view.dtype), view)
            return part if view.storage in found else part.clone()
        if is_whole(view) and tuple(view.shape) == tuple(own.shape):
            return own
        if is_whole(view) and own.is_contiguous():
            return own.reshape(tuple(view.shape))
        return part_of(own.contiguous().reshape(-1), view).clone()


def start(
    program: Program, tensors: Sequence[Any], device: Any, options: Options, verified: dict[int, int]
) -> Started | str:
    """Ask a device to run a program on tensors, in the order of its parameters; or say why it cannot."""
    plan = _plan(program)
    if plan is None and (why := _bound_to_host(program, options, verified)):
        return why
    written = program.written if plan is None else plan.written
    operands = _operands(program, tensors, device, written)
    if operands is None:
        return "it writes an argument that may not be written"
    originals, changed, given = operands
    if plan is None:
        return Started(program, originals, changed, {}, InOrder(program, given, device, options, verified))
    torch, graphs = _loaded()
    pending = graphs.start(plan, given, device)
    return Started(program, originals, changed, plan.constants_on(torch, device), pending)


def replay(program: Program, tensors: Sequence[Any]) -> Started | None:
    """Ask a GPU for what was captured of a program, on other tensors; None if nothing was, for these."""
    plan, device = _plan(program), tensors[0].device
    torch, graphs = _loaded()
    if plan is None or torch._C._len_torch_dispatch_stack():  # with these the call becomes an operator
        return None
    operands = _operands(program, tensors, device, plan.written)
    if operands is None:
        return None
    originals, changed, given = operands
    pending = graphs.replay(plan, given, device)
    if pending is None:
        return None
    return Started(program, originals, changed, plan.constants_on(torch, device), pending)


Operands = tuple[dict[Storage, Any], list[Storage], dict[Storage, Any]]


def _operands(
    program: Program, tensors: Sequence[Any], device: Any, written: Collection[Storage]
) -> Operands | None:
    """Return the tensors of the parameters, which are written, and what the device reads of each.

    None: one is written that may not be.
    """
    originals = {s: tensor for (_, s), tensor in zip(program.parameters, tensors, strict=True)}
    changed = [storage for storage in originals if storage in written]
    if not _may_change([originals[s] for s in changed], tensors):
        return None
    return originals, changed, {s: _plain(t, device) for s, t in originals.items()}


@cache
def _loaded() -> tuple[Any, Any]:
    """Return torch and what runs plans: to import them anew costs a warm call some microseconds."""
    import torch

    from ..backends.torch import graphs

    return torch, graphs


def _bound_to_host(program: Program, options: Options, verified: dict[int, int]) -> str:
    """Return why a program without a plan does not run in order on a device; "" if it does."""
    if has_races(program, options):
        return "its cores race"
    if program.loops and (not verified or current_world().size > 1):
        return "the iterations of its dynamic loops are compared at the first call"
    return ""


def _plain(tensor: Any, device: Any) -> Any:
    """Return a tensor on a device, dense and without a gradient; itself where it is such already."""
    if tensor.device == device and tensor.is_contiguous() and not tensor.requires_grad:
        return tensor
    return tensor.detach().contiguous().to(device)


def _may_change(written: Sequence[Any], tensors: Sequence[Any]) -> bool:
    """The tensors may be written: no gradient is asked of them, and no other shares their memory."""
    for tensor in written:
        if tensor.requires_grad or tensor.is_inference() or 0 in tensor.stride():
            return False
        memory = tensor.untyped_storage().data_ptr()
        if sum(other.untyped_storage().data_ptr() == memory for other in tensors) > 1:
            return False
    return True


def _as_dtype(tensor: Any, dtype: DType) -> Any:
    """Return a tensor that holds elements as one of their dtype."""
    wanted = _torch_dtype(dtype)
    return tensor if tensor.dtype == wanted else tensor.view(wanted)


@cache
def _torch_dtype(dtype: DType) -> Any:
    return getattr(_loaded()[0], torch_name(dtype))


def part_of(tensor: Any, view: View) -> Any:
    """Return the tensor of a view of a storage."""
    start = tensor.storage_offset() + view.offset
    return tensor.as_strided(tuple(view.shape), tuple(view.strides), start)


def torch_name(dtype: DType) -> str:
    """Return the name of a dtype in torch."""
    return TORCH_NAMES.get(dtype, str(dtype))  # type: ignore[call-overload]
