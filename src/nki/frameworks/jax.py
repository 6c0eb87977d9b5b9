"""JAX: kernels on arrays, and inside jit, vmap, scan, shard_map and custom_vjp (spec/frameworks.md 4).

A call with arrays runs at once. A call with tracers becomes one primitive, `nki_call`, which is lowered to
a custom call with the documented name and configuration. XLA calls it back with pointers.

Inside shard_map the devices of the mesh are ranks, numbered along its axes. A kernel with collectives gets
its rank as one more operand, and all devices wait for each other before they run (nki.ranks.rendezvous).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..errors import NkiError, emit_warning, error, user_site
from ..ir.tree import leaves
from ..ir.tree import replace_leaves as replaced
from ..kernel.attempts import run_call
from ..kernel.kernel import Kernel
from ..kernel.run import Call
from ..kernel.staged import Returned, Staged, stage_call
from ..ranks.rendezvous import described, thread_rendezvous
from .custom_call import PRIMITIVE, TARGET, backend_config, debug_dumps, program_key, read_config
from .gradients import library_gradient
from .programs import programs

try:
    import jax
    import jax.extend
    import jax.numpy as jnp
    from jax.experimental import io_callback
    from jax.extend import source_info_util
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    from .jax_gradients import differentiable, gradient_of
except ImportError as problem:
    raise error("missing-package", "nki.frameworks.jax needs JAX", help="pip install jax") from problem

name = "jax"
Tracer = jax.core.Tracer

# the line shown for a kernel call is the user's
source_info_util.register_exclusion(os.path.dirname(os.path.dirname(__file__)))


# ---- arrays (what nki.arguments asks of a framework) ---------------------------------------------


def is_tensor(value: object) -> bool:
    return isinstance(value, (jax.Array, Tracer))


def device_of(value: jax.Array) -> Any:
    return ", ".join(sorted(str(device) for device in value.devices()))


def to_numpy(value: jax.Array) -> np.ndarray:
    """The array's own memory, read-only."""
    if isinstance(value, Tracer):
        raise error(
            "framework",
            f"a kernel cannot run on a traced array, {value.aval.str_short()}: it has no values yet",
            help="call the kernel itself inside jax.jit, not nki.simulate(kernel)",
        )
    platform = next(iter(value.devices())).platform
    if platform != "cpu":
        raise error(
            "device",
            f"this kernel runs on the CPU, the array is on {device_of(value)}",
            notes=["JAX arrays run on a GPU through PyTorch, where every instruction has a form there"],
            help='x = jax.device_put(x, jax.devices("cpu")[0]), or install PyTorch with CUDA',
        )
    return np.asarray(value)


def from_numpy(array: np.ndarray, like: jax.Array | None = None) -> jax.Array:
    """A JAX array on the device of `like`; without a copy where the memory is aligned for XLA."""
    devices = [] if like is None else list(like.devices())
    return jax.device_put(array, devices[0] if len(devices) == 1 else None)


# ---- calls ---------------------------------------------------------------------------------------


def call(kernel: Kernel, call: Call, args: tuple, kwargs: dict) -> Any:
    """Call a kernel with arrays: at once, or as a primitive if some are traced."""
    values = [value for _, value, _ in call.arguments.tensors]
    if kernel.simulated or not any(isinstance(value, Tracer) for value in values):
        if debug_dumps.wanted() and not kernel.simulated:
            debug_dumps.write(_stage(kernel, call))
        found = [] if kernel.simulated or not _is_on_gpu(values) else through_torch(kernel, call, values)
        return found[0] if found else run_call(call).result
    axes, world = _mesh()
    with described(world):  # the key of a call depends on the world
        staged = _stage(kernel, kernel.prepare(args, kwargs))
    if debug_dumps.wanted():
        debug_dumps.write(staged)
    _warn_lost_writes(staged)
    with jax.named_scope(kernel.__name__):
        results = iter(_bind(staged, values, axes if staged.outline.has_collectives else (), world))
    return replaced(staged.outline.result, Returned, lambda returned: next(results))


def _is_on_gpu(values: Sequence[object]) -> bool:
    arrays = [value for value in values if isinstance(value, jax.Array)]
    return bool(arrays) and all(d.platform in ("gpu", "cuda") for array in arrays for d in array.devices())


def through_torch(kernel: Kernel, call: Call, values: Sequence[object]) -> list[Any]:
    """Return what a call returns, computed by PyTorch on the same memory, in a list; [] if it cannot."""
    try:
        import torch

        from ..kernel.devices import run_staged
        from .torch_devices import warn_host
    except (ImportError, NkiError):
        return []
    try:
        tensors = [torch.from_dlpack(value) for value in values]
    except (TypeError, RuntimeError, BufferError):  # a dtype that cannot be shared
        return []
    staged = stage_call(replace(call, arguments=call.arguments.described()))
    if staged.outline.written:
        return []  # arrays never change
    found = run_staged(staged, tensors, tensors[0].device)
    if isinstance(found, str):
        warn_host(kernel.__name__, tensors[0].device, found)
        return []
    return [replaced(found[0], torch.Tensor, lambda t: jnp.from_dlpack(t.contiguous()))]


def _mesh() -> tuple[tuple[str, ...], int]:
    """The axes of the mesh that a call inside shard_map is spread over, and how many devices that is."""
    mesh = jax.sharding.get_abstract_mesh()
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    return tuple(mesh.manual_axes), prod(sizes[axis] for axis in mesh.manual_axes)


def _stage(kernel: Kernel, call: Call) -> Staged:
    """Trace a call on shapes."""
    for name, value, _ in call.arguments.tensors:
        if isinstance(value, Tracer) and not value.shape:
            raise jax.errors.ConcretizationTypeError(
                value,
                f"argument {name!r} of kernel {kernel.__name__} is a traced "
                "scalar, and a kernel needs its value while it is traced; make it a static argument with "
                "static_argnums or static_argnames of jax.jit, or pass an array of shape (1,)",
            )
    return stage_call(replace(call, arguments=call.arguments.described()))


def _warn_lost_writes(staged: Staged) -> None:
    outline = staged.outline
    returned = {r.argument for r in leaves(outline.result, Returned)}
    for place in outline.written:
        if place not in returned and outline.arguments[place] not in staged.call.arguments.aliased:
            emit_warning(
                "lost-write",
                f"{staged.kernel.__name__} wrote argument '{outline.arguments[place]}', "
                "but jax arrays cannot change",
                user_site(1),
                help="return the tensor from the kernel",
            )


# ---- the primitive -------------------------------------------------------------------------------

nki_call_p = Primitive(PRIMITIVE)
nki_call_p.multiple_results = True


_sites = itertools.count(1)


def _bind(staged: Staged, values: Sequence[Any], axes: tuple[str, ...], world: int) -> Sequence[Any]:
    """The primitive; `axes` of a mesh if its devices call the kernel together."""
    key, operands = programs.add(staged), [*values, *staged.outline.constants]
    if not axes:
        return nki_call_p.bind(*operands, key=key, kernel=staged.kernel.__name__, world=0, site=0)
    rank = jax.lax.axis_index(axes).reshape(1)
    return nki_call_p.bind(
        *operands, rank, key=key, kernel=staged.kernel.__name__, world=world, site=next(_sites)
    )


@nki_call_p.def_impl
def _run_now(*operands: Any, key: str, world: int, site: int, **params: Any) -> list[jax.Array]:
    rank = int(operands[-1][0]) if world else 0
    target = _Target(programs.find(key), key, world, site)
    arrays = [to_numpy(value) for value in operands[: len(target.inputs)]]
    return [from_numpy(result, operands[0]) for result in target.run(arrays, rank)]


@nki_call_p.def_abstract_eval
def _shapes(*operands: object, key: str, **params: object) -> list[Any]:
    returned = leaves(programs.find(key).outline.result, Returned)
    return [_varying(jax.core.ShapedArray(r.shape, r.dtype.storage), operands) for r in returned]


def _varying(result: Any, operands: Sequence[Any]) -> Any:
    """The result differs between the devices of a mesh where some operand does."""
    differ = [x for x in operands if getattr(x, "manual_axis_type", None) and x.manual_axis_type.varying]
    if not differ:
        return result
    axes = frozenset().union(*(x.manual_axis_type.varying for x in differ))
    everywhere = jax.sharding.PartitionSpec(*[None] * len(result.shape))
    return result.update(
        sharding=jax.sharding.NamedSharding(differ[0].sharding.mesh, everywhere),
        manual_axis_type=type(differ[0].manual_axis_type)(varying=axes),
    )


def _has_effects(staged: Staged, world: int) -> bool:
    """Return whether a kernel has side effects, so that XLA must neither drop nor merge its calls."""
    return staged.outline.draws_random or staged.outline.prints or world > 0


def _lower(ctx: object, *operands: object, key: str, world: int, site: int, **params: object) -> Any:
    staged = programs.find(key)
    outline = staged.outline
    returned = leaves(outline.result, Returned)
    aliases = {r.argument: i for i, r in reversed(list(enumerate(returned))) if r.argument is not None}
    rule = jax.ffi.ffi_lowering(
        TARGET,
        backend_config=backend_config(staged, key, world, site),
        api_version=3,
        has_side_effect=_has_effects(staged, world),
        operand_output_aliases=aliases,
    )
    return rule(ctx, *operands)


def _batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    """jax.vmap: run the kernel once per element of the batch."""
    moved = tuple(jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True) if d is not None)

    def one(batched: tuple) -> list[Any]:
        rest = iter(batched)
        chosen = [x if d is None else next(rest) for x, d in zip(operands, dims, strict=True)]
        return nki_call_p.bind(*chosen, **params)

    results = jax.lax.map(one, moved)
    return results, [0] * len(results)


def _fallback(kernel: str) -> str:
    known = library_gradient(kernel)
    return f"{known}. Without a kernel" if known else "Without a kernel"


def _no_derivative(primals: object, tangents: object, *, kernel: str, **params: object) -> Any:
    raise NotImplementedError(
        f"kernel {kernel} has no derivative: give it one with jax.custom_vjp, or in one line, "
        f"{kernel} = nki.frameworks.jax.differentiable({kernel}, backward), "
        "where backward(gradient, *arguments) returns the gradients of the arguments. "
        f"{_fallback(kernel)}: backward = nki.frameworks.jax.gradient_of(reference), "
        "where reference is the same function in JAX"
    )


batching.primitive_batchers[nki_call_p] = _batch
ad.primitive_jvps[nki_call_p] = _no_derivative


# ---- what XLA calls ------------------------------------------------------------------------------


class _Target:
    """A staged call as XLA calls it: with pointers. Devices of a world wait for each other before it runs."""

    def __init__(self, staged: Staged, key: str, world: int, site: int):
        self.staged, self.place, self.world = staged, (key, site), world
        specs = [spec for _, spec in staged.described]
        self.inputs = [(tuple(spec.shape), np.dtype(spec.dtype)) for spec in specs]
        returned = leaves(staged.outline.result, Returned)
        self.outputs = [(r.shape, r.dtype.storage) for r in returned]
        self.rank_at = len(specs) + len(staged.outline.constants)

    def __call__(self, out: int, inputs: Any) -> None:
        arrays = [_array(inputs[i], *spec) for i, spec in enumerate(self.inputs)]
        pointers = [out] if len(self.outputs) == 1 else ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))
        targets = [_array(pointers[i], *spec) for i, spec in enumerate(self.outputs)]  # type: ignore[arg-type]
        rank = int(_array(inputs[self.rank_at], (1,), np.dtype(np.int32))[0]) if self.world else 0
        for target, result in zip(targets, self.run(arrays, rank, targets), strict=True):
            if target.ctypes.data != result.ctypes.data:
                target[...] = result

    def run(
        self, arrays: Sequence[np.ndarray], rank: int, into: Sequence[np.ndarray] = ()
    ) -> list[np.ndarray]:
        """Run on arrays that must not change."""
        given = [x.copy() if i in self.staged.outline.written else x for i, x in enumerate(arrays)]

        def part() -> list[np.ndarray]:
            return leaves(self.staged.run(given, into).result, np.ndarray)

        return thread_rendezvous.run(self.place, rank, self.world, part) if self.world else part()


def _array(pointer: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    memory: Any = (ctypes.c_uint8 * (prod(shape) * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(memory, dtype).reshape(shape)


_targets: dict[bytes, _Target] = {}


@ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
)
def _called_by_xla(out: int, inputs: object, opaque: int, length: int, status: int) -> None:
    try:
        config = ctypes.string_at(opaque, length)
        target = _targets.get(config)
        if target is None:
            key, ours = program_key(config), read_config(config)["open_nki"]
            target = _Target(programs.find(key), key, ours.get("world", 0), ours.get("site", 0))
            _targets[config] = target
        target(out, inputs)
    except BaseException as problem:  # nothing above this frame is Python
        kind = getattr(problem, "kind", None)
        _fail(status, f"NkiError[{kind}]: {problem}" if kind else f"{type(problem).__name__}: {problem}")


def _fail(status: int, text: str) -> None:
    """Put an error message into XLA's status, a std::optional<std::string>.

    No function of jaxlib that does it is exported. The layout is that of libstdc++: pointer, length,
    capacity, and after 32 bytes whether there is a value. The bytes must come from operator new.
    """
    data = text.encode()
    buffer = _operator_new()(len(data) + 1)
    ctypes.memmove(buffer, data + b"\0", len(data) + 1)
    words = (ctypes.c_size_t * 3).from_address(status)
    words[0], words[1], words[2] = buffer, len(data), len(data)
    ctypes.c_bool.from_address(status + 32).value = True


@functools.cache
def _operator_new() -> Any:
    """operator new of the libstdc++ that jaxlib has loaded; raises OSError where it uses another library."""
    function = ctypes.CDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)._Znwm
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return function


def _register() -> str:
    """Make the custom call known to XLA; returns how kernels are called inside jit on a CPU."""
    mlir.register_lowering(nki_call_p, _lower_call_back)
    try:
        _operator_new()
        address = ctypes.cast(_called_by_xla, ctypes.c_void_p).value
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype = ctypes.py_object
        new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule = new_capsule(address, b"xla._CUSTOM_CALL_TARGET", None)
        jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu", api_version=0)
        mlir.register_lowering(nki_call_p, _lower, platform="cpu")
    except (OSError, AttributeError, TypeError, ValueError):
        return "jax.pure_callback"
    return "custom call"


def _lower_call_back(ctx: Any, *operands: object, kernel: str, **params: object) -> Any:
    """The lowering where the custom call cannot be had: slower, and without its text in the HLO."""
    platforms = [*ctx.module_context.platforms]
    if platforms != ["cpu"] and kernel not in _on_host:
        _on_host.add(kernel)
        emit_warning(
            "device-copy",
            f"{kernel} inside jax.jit runs on the CPU: what is on {', '.join(platforms)} is copied there, "
            "and the results back; a call outside of jit runs on a GPU",
            user_site(2),
        )
    return mlir.lower_fun(_call_back, multiple_results=True)(ctx, *operands, **params)


_on_host: set[str] = set()  # kernels of which this was said


def _call_back(*operands: object, key: str, world: int = 0, site: int = 0, **params: object) -> Any:
    """Call a kernel on the host with copies of its operands."""
    staged = programs.find(key)
    target = _Target(staged, key, world, site)
    shapes = [jax.ShapeDtypeStruct(*spec) for spec in target.outputs]
    ranks = operands[target.rank_at :]

    def run(*values: object) -> list[np.ndarray]:
        arrays = [np.asarray(value) for value in values[: len(target.inputs)]]
        return target.run(arrays, int(np.asarray(values[-1])[0]) if world else 0)

    given = [*operands[: len(target.inputs)], *ranks]
    return (io_callback if _has_effects(staged, world) else jax.pure_callback)(run, shapes, *given)


LOWERING = _register()


# ---- for users -----------------------------------------------------------------------------------


def hlo(function: Callable, *args: object, **kwargs: object) -> str:
    """The compiled HLO text of a function for these arguments, in which each kernel is one custom call."""
    compiled = jax.jit(function).lower(*args, **kwargs).compile()
    return compiled.runtime_executable().hlo_modules()[0].to_string()  # type: ignore[union-attr]


__all__ = ["differentiable", "gradient_of", "hlo", "nki_call_p"]
