"""Calls whose tensors are on a device: run there, where every instruction can."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..backends.torch.runner import part_of, run
from ..backends.torch.schedule import Refused
from ..backends.torch.steps import device_plan_of
from ..ir.tree import leaves, replace_leaves
from ..ir.view import View
from ..launch.launch import speak
from ..machine.dtypes import DType
from ..options import from_environment
from .arguments import is_whole
from .bridges import TensorSpec
from .staged import Staged

SEEN_AS = {"tfloat32": "float32", "float8_e4m3": "float8_e4m3fn"}  # dtypes that torch does not have


def on_device(kernel: Any, args: tuple, kwargs: dict, tensors: Sequence[Any], where: Any) -> list[Any] | str:
    """What a call returns, in a list; or why it does not run there, and nothing was done.

    `args` and `kwargs` have descriptions in place of the torch tensors, which are given beside them.
    """
    options = from_environment()
    if options.executor == "reference" or options.strict or not options.precise_fp:
        return "the reference executor is asked for"  # in which everything is said at its line
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below, or by the call itself if it runs on the host
        staged: Staged = kernel.stage(*args, **kwargs)
    by_spec = {id(s): t for s, t in zip(leaves((args, kwargs), TensorSpec), tensors, strict=True)}
    found = run_there(staged, [by_spec[id(spec)] for _, spec in staged.described], where)
    if isinstance(found, list):
        for diagnostic in staged.program.said:  # about shapes: what is said about values, the host says
            speak(diagnostic)
    return found


def run_there(staged: Staged, tensors: Sequence[Any], where: Any) -> list[Any] | str:
    """The same for a staged call, with its tensors in order. Arguments that it writes are changed."""
    program, kernel = staged.program, staged.kernel
    if not staged.fixed:
        return "its Python looks at values"
    plan = device_plan_of(program)
    if isinstance(plan, Refused):
        return str(plan)
    import torch

    given: dict[Any, Any] = {}
    originals: dict[Any, Any] = {}
    for (_, storage), tensor in zip(program.parameters, tensors, strict=True):
        originals[storage] = tensor
        given[storage] = tensor.detach().contiguous().to(where)
    for storage, raw in program.constants:
        given[storage] = torch.from_numpy(raw.copy()).to(where)
    changed = [storage for storage in plan.written if storage in originals]
    views = leaves(program.result, View)
    partly = {s for s in plan.partly if s not in originals}
    if any(v.storage in partly or v.storage not in {*plan.written, *given} for v in views):
        return "it returns a tensor of which a part was never written"
    if not _may_change([originals[s] for s in changed], tensors):
        return "it writes an argument that may not be written"
    found = run(plan, given, where)
    if found is None:
        return "there is something to say about its values"
    for storage in changed:
        target = originals[storage]
        new = _seen(torch, found[storage], storage.dtype).reshape(target.shape)
        target.copy_(new if new.dtype == target.dtype else new.view(target.dtype))

    def returned(view: View) -> Any:
        own = originals.get(view.storage)
        if own is None:
            memory = found.get(view.storage, given.get(view.storage))
            part = part_of(_seen(torch, memory, view.dtype), view)
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


def _seen(torch: Any, tensor: Any, dtype: DType) -> Any:
    """A tensor that holds elements, as one of their dtype."""
    wanted = getattr(torch, torch_name(dtype))
    return tensor if tensor.dtype == wanted else tensor.view(wanted)


def torch_name(dtype: DType) -> str:
    return SEEN_AS.get(dtype, str(dtype))
