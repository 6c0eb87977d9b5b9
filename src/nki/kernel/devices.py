"""Calls whose tensors are on a GPU: run there, where every instruction can."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..ir.storage import Storage
from ..ir.tree import leaves, replace_leaves
from ..ir.view import View
from ..launch.diagnostics import show
from ..machine.dtypes import DType
from .run import Call
from .staged import Staged, stage_call
from .transfer import is_whole

TORCH_NAMES = {"tfloat32": "float32", "float8_e4m3": "float8_e4m3fn"}  # dtypes that torch does not have


def run_on_device(call: Call, tensors: Sequence[Any]) -> list[Any] | str:
    """Return what a call returns, in a list; or why it does not run on the device of its tensors."""
    options = call.options
    if options.executor == "reference" or options.strict or not options.precise_fp:
        return "the reference backend is asked for"  # which reports everything at its line
    home = tensors[0].device
    if any(tensor.device != home for tensor in tensors) or not all(map(_is_dense, tensors)):
        return "its tensors are not all dense, on one device"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shown below, or by the call itself if it runs on the host
        staged = stage_call(replace(call, arguments=call.arguments.described()))
    found = run_staged(staged, tensors, home)
    if isinstance(found, str):
        return found
    for diagnostic in staged.program.diagnostics:  # about shapes; the host reports what depends on values
        show(diagnostic)
    return found


def _is_dense(tensor: Any) -> bool:
    import torch

    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.is_neg())


def run_staged(staged: Staged, tensors: Sequence[Any], device: Any) -> list[Any] | str:
    """Run a staged call on tensors of a device, in the order of its parameters. Written ones are changed.

    Returns the result in a list, or why the call does not run there; then nothing was done.
    """
    import torch

    from ..backends.lowered import lower
    from ..backends.torch.graphs import run
    from ..backends.torch.runner import part_of
    from ..backends.torch.schedule import Refused
    from ..backends.torch.steps import device_plan_of

    program, kernel = staged.program, staged.kernel
    if not staged.is_fixed:
        return "its Python reads values"
    plan = device_plan_of(lower(program))
    if isinstance(plan, Refused):
        return str(plan)
    originals = {s: tensor for (_, s), tensor in zip(program.parameters, tensors, strict=True)}
    given: dict[Storage, Any] = {s: t.detach().contiguous().to(device) for s, t in originals.items()}
    constants = plan.constants_on(torch, device)
    changed = [storage for storage in plan.written if storage in originals]
    views = leaves(program.result, View)
    partly = {s for s in plan.partly if s not in originals}
    if any(v.storage in partly or v.storage not in {*plan.written, *given, *constants} for v in views):
        return "it returns a tensor of which a part was never written"
    if not _may_change([originals[s] for s in changed], tensors):
        return "it writes an argument that may not be written"
    found = run(plan, given, device)
    if found is None:
        return "an instruction reports something about its values"
    for storage in changed:
        target = originals[storage]
        new = _as_dtype(found[storage], storage.dtype).reshape(target.shape)
        target.copy_(new if new.dtype == target.dtype else new.view(target.dtype))

    def returned(view: View) -> Any:
        own = originals.get(view.storage)
        if own is None:
            memory = found[view.storage] if view.storage in found else constants[view.storage]
            part = part_of(_as_dtype(memory, view.dtype), view)
            return part if view.storage in found else part.clone()
        if is_whole(view) and tuple(view.shape) == tuple(own.shape):
            return own
        if is_whole(view) and own.is_contiguous():
            return own.reshape(tuple(view.shape))
        return part_of(own.contiguous().reshape(-1), view).clone()

    return [replace_leaves(program.result, View, returned) if kernel.returns else None]


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
    import torch

    wanted = getattr(torch, torch_name(dtype))
    return tensor if tensor.dtype == wanted else tensor.view(wanted)


def torch_name(dtype: DType) -> str:
    """Return the name of a dtype in torch."""
    return TORCH_NAMES.get(dtype, str(dtype))  # type: ignore[call-overload]
