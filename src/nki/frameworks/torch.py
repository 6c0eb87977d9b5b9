"""PyTorch: tensors as arguments and results, compiled functions, gradients (spec/frameworks.md 3).

An eager call runs at once on the tensors' own memory. Inside `torch.compile` and `torch.export`, and with
tensors that have no values, a call becomes one operator: `open_nki::call`, or `open_nki::call_` when
the kernel writes its arguments. The operator names its staged call by a key.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import numpy as np

from ..errors import error
from ..ir.tree import is_record, leaves, possible_fields, record_fields
from ..kernel.arrays import TensorSpec
from ..kernel.attempts import run_call
from ..kernel.devices import run_on_device, run_staged
from ..kernel.early import forget_call, note_call
from ..kernel.kernel import Kernel
from ..kernel.run import Call
from ..kernel.staged import Returned, Staged, stage_call
from .custom_call import debug_dumps
from .programs import programs
from .torch_devices import device_of_call, warn_host
from .torch_gradients import differentiable, gradient_of, is_wrapped
from .torch_tensors import _TORCH, _check_dense, _no_backward, torch
from .torch_tensors import check_writable as check_writable  # what a call asks of a framework
from .torch_tensors import connect as connect
from .torch_tensors import device_of as device_of
from .torch_tensors import from_numpy as from_numpy
from .torch_tensors import is_tensor as is_tensor
from .torch_tensors import to_numpy as to_numpy
from .torch_tensors import write_back as write_back

name = "torch"


# ---- calls ---------------------------------------------------------------------------------------


def call(kernel: Kernel, call: Call, args: tuple, kwargs: dict) -> Any:
    """Call a kernel with tensors: at once, or as an operator where operators are traced."""
    tensors = [value for _, value, _ in call.arguments.tensors if isinstance(value, torch.Tensor)]
    if _dispatch_depth() or not all(map(_is_ordinary, tensors)):
        for tensor in tensors:
            _check_dense(tensor)
        if _dispatch_depth() or any(map(_is_symbolic, tensors)):
            return staged(kernel, args, kwargs)
    if debug_dumps.wanted():
        debug_dumps.write(stage_call(replace(call, arguments=call.arguments.described())))
    with _recorded(kernel.__name__):
        device = device_of_call(tensors)
        if device is not None:
            found = run_on_device(call, tensors)
            if isinstance(found, list):
                if not call.repeats:
                    note_call(call)
                return connect(found[0], tensors, kernel.__name__)
            warn_host(kernel.__name__, device, found)
        forget_call(call)
        return run_call(call).result


_is_profiling = torch._C._autograd._profiler_enabled
_not_recorded = contextlib.nullcontext()


def _recorded(kernel: str) -> Any:
    """torch.profiler shows the kernel by its name."""
    return torch.autograd.profiler.record_function(f"nki::{kernel}") if _is_profiling() else _not_recorded


_dispatch_depth = torch._C._len_torch_dispatch_stack
_is_functional = torch._is_functional_tensor
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """True for dense tensors with values in memory of the processor or a GPU: nothing else is to be asked."""
    return (
        type(tensor) in _PLAIN
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or _is_functional(tensor) or is_wrapped(tensor))
    )


def _is_symbolic(tensor: torch.Tensor) -> bool:
    """True for tensors without values of their own: fake, meta, functional, batched."""
    return (
        tensor.device.type == "meta"
        or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        or _is_functional(tensor)
        or is_wrapped(tensor)
    )


def launched(kernel: Kernel, degree: object) -> Any:
    """`kernel[degree]` inside torch.compile, which can call a function but not a Kernel made there."""

    def call(*args: object, **kwargs: object) -> Any:
        return staged(kernel, args, kwargs, degree)

    return call


def staged(kernel: Kernel, args: tuple, kwargs: dict, degree: object = None) -> Any:
    """A call as an operator. torch.compile traces this function itself, so it is plain Python."""
    tensors: list[Any] = []
    constants: list[Any] = []
    layout = _flatten((args, kwargs), tensors, constants)
    # len(range(size)) is the size, and makes torch.compile specialise on it
    specs = tuple([(tuple([len(range(size)) for size in t.shape]), t.dtype) for t in tensors])
    key = _stage(id(kernel), degree, layout, specs, *constants)
    written = _written(key)
    if not written:
        return _rebuild(_structure(key), torch.ops.open_nki.call(tensors, key), tensors)
    new = [torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in _new(key)]
    read = [t for i, t in enumerate(tensors) if i not in written]
    torch.ops.open_nki.call_([tensors[i] for i in written] + new, read, key)
    return _rebuild(_structure(key), new, tensors)


def _flatten(value: Any, tensors: list[Any], constants: list[Any]) -> tuple:
    """How a value is built from tensors and constants, which are appended to the lists."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", len(tensors) - 1)
    if isinstance(value, dict):
        return ("dict", tuple(value), tuple([_flatten(v, tensors, constants) for v in value.values()]))
    if isinstance(value, (tuple, list)):
        items = tuple([_flatten(v, tensors, constants) for v in value])
        if hasattr(value, "_fields"):
            constants.append(type(value))
            return ("named", len(constants) - 1, items)
        return ("list" if isinstance(value, list) else "tuple", items)
    place = len(constants)
    if type(value) in _PLAIN_CONSTANTS or isinstance(value, _NAMED_CONSTANTS):
        constants.append(value)
        return ("constant", place)
    if is_record(value):
        constants.append(type(value))
        names = _names(value)
        fields = tuple([_flatten(getattr(value, n), tensors, constants) for n in names])
        return ("record", place, names, fields)
    constants.append(id(value))
    return ("object", place)


# torch.compile before 2.12 hands nothing else to `_stage`. Other objects go by address, so that it compiles
# again for another one; the caller holds them meanwhile
_PLAIN_CONSTANTS = (NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device, np.ndarray)
_NAMED_CONSTANTS = (
    *(type, FunctionType, BuiltinFunctionType, functools.partial, enum.Enum, np.dtype),
    *(slice, range, set, frozenset),
)


def _object_at(address: int) -> Any:
    return ctypes.cast(address, ctypes.py_object).value


_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
_LISTS_ATTRIBUTES = _VERSION >= (2, 13)


def _names(value: object) -> tuple[str, ...]:
    """Return the fields of a record; before 2.13 torch.compile cannot list them, but can test for one."""
    if _LISTS_ATTRIBUTES:
        return tuple(record_fields(value))
    return tuple([name for name in _names_at(id(value)) if hasattr(value, name)])


def _names_at(address: int) -> tuple[str, ...]:
    return tuple(possible_fields(_object_at(address)))


def _unflatten(layout: tuple, specs: Sequence[TensorSpec], constants: Sequence[object]) -> Any:
    kind = layout[0]
    if kind == "tensor":
        return specs[layout[1]]
    if kind == "constant":
        return constants[layout[1]]
    if kind == "object":
        return _object_at(constants[layout[1]])
    items = [_unflatten(item, specs, constants) for item in layout[-1]]
    if kind == "dict":
        return dict(zip(layout[1], items, strict=True))
    if kind == "named":
        return constants[layout[1]](*items)
    if kind == "record":
        cls = constants[layout[1]]
        twin = cls.__new__(cls)
        for field, item in zip(layout[2], items, strict=True):
            object.__setattr__(twin, field, item)
        return twin
    return items if kind == "list" else tuple(items)


class _Operator:
    """A staged call with its place among the tensors of the operator."""

    def __init__(self, call: Staged, specs: Sequence[TensorSpec]):
        self.staged = call
        places = {id(spec): i for i, spec in enumerate(specs)}
        self.order = [places[id(spec)] for _, spec in call.described]
        self.written = tuple(sorted(self.order[i] for i in call.outline.written))
        returned = [r for r in leaves(call.outline.result, Returned) if r.argument is None]
        self.new = tuple((r.shape, _dtype(r)) for r in returned)
        self.structure = self._structure(call.outline.result, iter(range(len(self.new))))

    def _structure(self, value: object, numbers: Any) -> tuple:
        """The returned value as nested tuples, for `_rebuild`."""
        if isinstance(value, Returned):
            if value.argument is None:
                return ("new", next(numbers))
            return ("argument", self.order[value.argument], value.shape)
        if isinstance(value, dict):
            return ("dict", tuple(value), tuple([self._structure(v, numbers) for v in value.values()]))
        if isinstance(value, (tuple, list)):
            items = tuple([self._structure(v, numbers) for v in value])
            if hasattr(value, "_fields"):
                return ("named", type(value), items)
            return ("list" if isinstance(value, list) else "tuple", items)
        return ("constant", value)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ordered = [tensors[i] for i in self.order]
        device = device_of_call(ordered)
        there = "" if device is None else run_staged(self.staged, ordered, device)
        result = self.staged.run(ordered).result if isinstance(there, str) else there[0]
        arguments = {id(tensor) for tensor in tensors}
        found: list[torch.Tensor] = []
        for given, outline in zip(
            leaves(result, torch.Tensor), leaves(self.staged.outline.result, Returned), strict=True
        ):
            if outline.argument is None:
                found.append(given.clone() if id(given) in arguments else given)
        return found

    def run_in_place(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> None:
        """`written` are the arguments the kernel writes, then the tensors for its results."""
        others, own = iter(read), dict(zip(self.written, written, strict=False))
        tensors = [own[i] if i in own else next(others) for i in range(len(own) + len(read))]
        for target, result in zip(written[len(own) :], self.run(tensors), strict=True):
            target.copy_(result)

    def fake(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in self.new]


def _dtype(returned: Returned) -> Any:
    storage = returned.dtype.storage
    return _TORCH.get(storage) or getattr(torch, storage.name)


_operators: dict[str, _Operator] = {}


def _stage(address: int, degree: object, layout: tuple, specs: tuple, *constants: object) -> str:
    """Stage a call of the kernel at this address and return its key."""
    kernel = _object_at(address)
    described = [TensorSpec(shape, dtype) for shape, dtype in specs]
    for value in constants:
        if isinstance(value, np.ndarray):
            raise error(
                "framework-mix", "torch tensors and numpy arrays in one call", help="torch.from_numpy(x)"
            )
    args, kwargs = _unflatten(layout, described, constants)
    call = (kernel if degree is None else kernel[degree]).stage(*args, **kwargs)
    key = f"{kernel.__name__}:{programs.add(call)}"
    _operators.setdefault(key, _Operator(call, described))
    return key


def _written(key: str) -> tuple:
    return _operators[key].written


def _new(key: str) -> tuple:
    return _operators[key].new


def _structure(key: str) -> tuple:
    return _operators[key].structure


def _rebuild(structure: tuple, results: Sequence[object], tensors: Sequence[object]) -> Any:
    kind = structure[0]
    if kind == "new":
        return results[structure[1]]
    if kind == "argument":
        tensor = tensors[structure[1]]
        return tensor if tuple(tensor.shape) == structure[2] else tensor.reshape(structure[2])
    if kind == "constant":
        return structure[1]
    items = [_rebuild(item, results, tensors) for item in structure[-1]]
    if kind == "dict":
        return dict(zip(structure[1], items))  # noqa: B905 (torch.compile traces this: plain Python)
    if kind == "named":
        return structure[1](*items)
    return items if kind == "list" else tuple(items)


_constants: list[Any] = [_names_at, _stage, _written, _new, _structure]
for _function in _constants:
    # what torch.compiler.assume_constant_result does, without importing the compiler
    _function._dynamo_marked_constant = True


# ---- the operators -------------------------------------------------------------------------------


def _find(key: str) -> _Operator:
    if key not in _operators:
        programs.find(key.rpartition(":")[2])  # raises an error that names it
    return _operators[key]


def _run(inputs: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
    with _recorded(key.rpartition(":")[0]):
        return _find(key).run(inputs)


def _run_in_place(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], key: str) -> None:
    with _recorded(key.rpartition(":")[0]):
        _find(key).run_in_place(written, read)


def _fake(inputs: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
    return _find(key).fake(inputs)


_call = torch.library.custom_op(
    "open_nki::call", _run, mutates_args=(), schema="(Tensor[] inputs, str key) -> Tensor[]"
)
_call_ = torch.library.custom_op(
    "open_nki::call_",
    _run_in_place,
    mutates_args=("written",),
    schema="(Tensor(a!)[] written, Tensor[] read, str key) -> ()",
)
_call.register_fake(_fake)
_call_.register_fake(lambda written, read, key: None)


def _remember(ctx: Any, inputs: tuple, output: object) -> None:
    ctx.kernel = inputs[1].rpartition(":")[0]


def _refuse(ctx: Any, *gradients: object) -> Any:
    raise _no_backward(ctx.kernel)


_call.register_autograd(_refuse, setup_context=_remember)


def _one_by_one(info: Any, in_dims: tuple, inputs: Sequence[torch.Tensor], key: str) -> Any:
    """torch.vmap: run the kernel once per element of the batch."""
    results = []
    for i in range(info.batch_size):
        picked = [t if d is None else t.select(d, i) for t, d in zip(inputs, in_dims[0], strict=True)]
        results.append(torch.ops.open_nki.call(picked, key))
    stacked = [torch.stack(column) for column in zip(*results, strict=True)]
    return stacked, [0] * len(stacked)


def _refuse_vmap(info: object, in_dims: tuple, written: object, read: object, key: str) -> Any:
    kernel = key.rpartition(":")[0]
    raise error(
        "argument",
        f"torch.vmap: {kernel} writes its arguments, of which a batch has but views",
        help="return the result from the kernel instead, or loop over the batch",
    )


_call.register_vmap(_one_by_one)
_call_.register_vmap(_refuse_vmap)


def nki_op(name: str, fn: Callable | None = None, /, *, mutates_args: Iterable[str] = ()) -> Any:
    """`@nki_op("ns::name", mutates_args={})` over a typed function that calls kernels: a custom operator.

    Its fake implementation runs the function on fake tensors; `register_autograd` gives it a gradient.
    """

    def register(function: Callable) -> Any:
        operator = torch.library.custom_op(name, function, mutates_args=tuple(mutates_args))
        operator.register_fake(function)
        return operator

    return register if fn is None else register(fn)


def wrap_nki(kernel: Any) -> Kernel:
    """The kernel itself: `wrap_nki(kernel)[2](x)` is how code for AWS's package calls it."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)


__all__ = ["differentiable", "gradient_of", "nki_op", "wrap_nki"]
