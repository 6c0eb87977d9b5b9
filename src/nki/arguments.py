"""Arguments in, results out: what a kernel receives for each Python value, and what the caller gets back.

Arrays become HBM tensors without a copy; containers and dataclasses are rebuilt around them. Nothing
is written to the caller's arrays before the kernel has finished (language.md 3).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import dtypes
from .errors import error
from .launch import Launch
from .storage import PRIVATE_HBM, SHARED_HBM, Lease, Storage
from .tensor import NkiTensor, whole
from .view import View

# packages whose tensors a module of nki.frameworks converts; the module is imported when one is met
FRAMEWORKS = {"torch": "nki.frameworks.torch", "jax": "nki.frameworks.jax", "jaxlib": "nki.frameworks.jax"}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor described by shape and dtype, to profile or stage a kernel without data."""

    shape: tuple[int, ...]
    dtype: Any

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """`float32[8192,4096]`"""
        match = re.fullmatch(r"\s*(\w+)\s*\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]\s*", text)
        if match is None:
            raise error("argument", f"{text!r} is not a tensor", help="write it like float32[8192,4096]")
        return cls(tuple(int(n) for n in match.group(2).split(",")), dtypes.resolve(match.group(1)))


class NumpyFramework:
    """Converts numpy arrays: they are already what a Memory needs."""

    name = "numpy"

    @staticmethod
    def to_numpy(value: np.ndarray) -> np.ndarray:
        if isinstance(value, np.ma.MaskedArray):
            raise error(
                "argument",
                "masked arrays are no kernel arguments",
                help="x.filled(value) makes a plain array",
            )
        return np.asarray(value)

    @staticmethod
    def from_numpy(array: np.ndarray, like: Any = None) -> np.ndarray:
        return array

    @staticmethod
    def check_writable(value: np.ndarray, name: str) -> None:
        if not value.flags.writeable:
            raise error(
                "read-only-input",
                f"the kernel wrote argument '{name}', whose array is read-only",
                help="pass a writable array, or write to a tensor the kernel allocates",
            )

    @staticmethod
    def write_back(value: np.ndarray, array: np.ndarray, inputs: list[Any], kernel: str) -> None:
        value[...] = array


def framework_of(value: Any) -> Any:
    """The converter of an array-like argument, or None for anything else."""
    if isinstance(value, np.ndarray):
        return NumpyFramework
    kind: Any = type(value)
    framework = _bridge(kind)
    return framework if framework is not None and framework.is_tensor(value) else None


@functools.lru_cache(maxsize=4096)
def _bridge(kind: type) -> Any:
    """The module for values of a type, if one of its bases belongs to a framework."""
    roots = (base.__module__.partition(".")[0] for base in kind.__mro__)
    module = next((FRAMEWORKS[root] for root in roots if root in FRAMEWORKS), None)
    return None if module is None else importlib.import_module(module)


def bridge_of(value: Any) -> Any:
    """The framework, other than numpy, that a call with these arguments belongs to; None for numpy."""
    if value is None or value.__class__ in (int, float, bool, str, np.ndarray):
        return None
    framework = framework_of(value)
    if framework is not None:
        return None if framework is NumpyFramework else framework
    if isinstance(value, dict):
        value = list(value.values())
    elif is_record(value):
        value = [getattr(value, field) for field in record_fields(value)]
    if not isinstance(value, (tuple, list)):
        return None
    return next((bridge for bridge in map(bridge_of, value) if bridge is not None), None)


class Arguments:
    """The tensors of one call: made from the caller's values, handed to each core, written back."""

    def __init__(self, launch: Launch):
        self.launch = launch
        self.tensors: list[tuple[str, Any, Any, Storage, Lease | None]] = []  # name, value, framework
        self.by_name: dict[str, NkiTensor] = {}
        self.framework: Any = NumpyFramework
        self.like: Any = None  # a tensor of that framework: results go to its device
        self.relabelled: set[int] = set()  # storages whose e4m3fn bits are labelled e4m3
        self.packed: dict[dtypes.DType, np.dtype] = {}  # the caller's own packed types
        self.met: set[str] = set()  # names of the frameworks of its tensors
        self.described: list[tuple[str, Any]] = []  # tensors known by description alone
        self.given: set[Storage] = set()  # storages whose bytes the caller received as a result

    # ---- in --------------------------------------------------------------------------------------

    def convert(self, value: Any, name: str) -> Any:
        """What the kernel receives for `value`."""
        if value is None or value.__class__ in (int, float, bool, str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        framework = framework_of(value)
        if framework is not None:
            return self._tensor(value, framework, name)
        if is_description(value):
            return self._described(value, name)
        if is_dtype(value):
            return dtypes.resolve(value, f"argument '{name}'")
        if isinstance(value, tuple):
            items = [self.convert(v, f"{name}[{i}]") for i, v in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, list):
            return [self.convert(v, f"{name}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, dict):
            twin = copy.copy(value)
            twin.update({k: self.convert(v, f"{name}[{k!r}]") for k, v in value.items()})
            return twin
        if is_record(value):
            return self._record(value, name)
        return value

    def _described(self, value: Any, name: str) -> NkiTensor:
        """A tensor known by shape and dtype alone: enough to trace, not to run."""
        if self.launch.executes:
            raise error(
                "argument",
                f"argument '{name}' is a description without data",
                help="pass an array to run the kernel; descriptions serve nki.profile",
            )
        if name not in self.by_name:
            buffer = SHARED_HBM if self.launch.degree > 1 else PRIVATE_HBM
            shape, dtype = tuple(map(int, value.shape)), dtypes.resolve(value.dtype)
            storage = Storage(buffer, shape, dtype, name, number=-len(self.by_name) - 1, parameter=True)
            self._check_fits(storage)
            if dtype == dtypes.float8_e4m3fn:
                self._rename(storage)
            self.described.append((name, value))
            self.by_name[name] = whole(storage, Lease(storage))
        return self.by_name[name]

    def _record(self, value: Any, name: str) -> Any:
        """A copy of a dataclass or NKIObject with its fields converted."""
        twin = copy.copy(value)
        for field in record_fields(value):
            object.__setattr__(twin, field, self.convert(getattr(value, field), f"{name}.{field}"))
        return twin

    def _tensor(self, value: Any, framework: Any, name: str) -> NkiTensor:
        if name in self.by_name:  # the second core receives the same tensors
            return self.by_name[name]
        if value.ndim == 0:
            raise error(
                "scalar-argument",
                f"argument '{name}' is a 0-d array",
                help="pass a Python number, or reshape it to (1,)",
            )
        if 0 in value.shape:
            raise error("shape", f"argument '{name}' has shape {tuple(value.shape)}, which holds no element")
        dtype = _dtype_of(value.dtype, name)
        storage = Storage(
            SHARED_HBM if self.launch.degree > 1 else PRIVATE_HBM,
            tuple(value.shape),
            dtype,
            name,
            number=-len(self.tensors) - 1,
            parameter=True,
        )
        self._check_fits(storage)
        return self.attach(value, framework, storage, Lease(storage))

    def attach(self, value: Any, framework: Any, storage: Storage, lease: Lease | None) -> NkiTensor:
        """Put the caller's bytes behind a storage. A replay owns its storages: then nobody leases them."""
        self._join(value, framework, storage.name)
        array = framework.to_numpy(value)
        if storage.dtype.is_packed:
            self.packed[storage.dtype] = array.dtype
        if framework is not NumpyFramework:
            self.framework, self.like = framework, value
        array = self._relabel(array, storage)
        if self.launch.executes:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            storage.memory = self.launch.borrow(storage, raw)
        self.tensors.append((storage.name, value, framework, storage, lease))
        self.by_name[storage.name] = whole(storage, lease)
        return self.by_name[storage.name]

    def place(self, returned: Sequence[View], into: Sequence[np.ndarray]) -> None:
        """Let tensors that will be returned as a whole have their bytes in the caller's memory."""
        storages = [view.storage for view in returned]
        for view, target in zip(returned, into, strict=True):
            storage = view.storage
            is_own = not (storage.parameter or storage.constant) and storages.count(storage) == 1
            if is_own and is_whole(view) and self.launch.options.precise_fp:
                storage.memory = self.launch.fill(storage, target.reshape(-1).view(np.uint8))

    def _join(self, value: Any, framework: Any, name: str) -> None:
        """One framework and one device per call; numpy arrays may stand beside JAX ones."""
        self.met.add(framework.name)
        if "torch" in self.met and len(self.met) > 1:
            raise error(
                "framework-mix",
                f"argument '{name}' is a {framework.name} array, beside {_others(self.met, framework)}",
                help="torch.from_numpy(array) makes a tensor of an array",
            )
        if self.like is None or framework is NumpyFramework:
            return
        device, first = framework.device_of(value), framework.device_of(self.like)
        if device != first:
            raise error(
                "device",
                f"argument '{name}' is on {device}, another one on {first}",
                help=f"move it: x.to('{first}')",
            )

    def _check_fits(self, storage: Storage) -> None:
        limit = self.launch.machine.hbm_bytes_per_core
        if storage.nbytes > limit:
            raise error(
                "memory",
                f"argument '{storage.name}' takes {storage.nbytes} bytes, "
                f"a core of {self.launch.machine.name} reaches {limit} bytes of HBM",
            )

    def _relabel(self, array: np.ndarray, storage: Storage) -> np.ndarray:
        """trn1 and trn2 know only float8_e4m3: e4m3fn bits arrive under that name (language.md 6.3)."""
        if array.dtype != dtypes.float8_e4m3fn.storage or not self._rename(storage):
            return array
        if not self.launch.options.unsafe_fp8:
            codes = np.ascontiguousarray(array).view(np.uint8)
            if ((codes & 0x78) == 0x78).any():
                raise error(
                    "fp8-range",
                    f"argument '{storage.name}' is float8_e4m3fn with values beyond 240 (or NaN), "
                    f"which {self.launch.machine.name} would read as inf or NaN",
                    help="clip it to +-240 first, or set UNSAFE_FP8FNCAST=1",
                )
        return array.view(dtypes.float8_e4m3.storage)

    def _rename(self, storage: Storage) -> bool:
        """Note that a storage holds e4m3fn bits under the name e4m3, if this platform has it so."""
        if self.launch.machine.generation >= 4:
            return False
        storage.dtype = dtypes.float8_e4m3
        self.relabelled.add(storage.number)
        return True

    # ---- out -------------------------------------------------------------------------------------

    def result(self, value: Any) -> Any:
        """What the caller receives for a returned value."""
        if isinstance(value, View):
            return self._array(value)
        if isinstance(value, tuple):
            items = [self.result(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, list):
            return [self.result(v) for v in value]
        if isinstance(value, dict):
            twin = copy.copy(value)
            twin.update({k: self.result(v) for k, v in value.items()})
            return twin
        return value

    def _array(self, view: View) -> Any:
        """A returned tensor: the caller's own object for an argument, else a new array."""
        memory = view.storage.memory
        assert memory is not None
        for _, value, framework, storage, _lease in self.tensors:
            if storage is view.storage and hasattr(framework, "write_back"):
                if is_whole(view) and tuple(view.shape) == tuple(value.shape):
                    return value
                if is_whole(view) and _is_dense(value):
                    return value.reshape(tuple(view.shape))
        array = memory.array(view)
        if array.dtype != view.dtype.storage:  # NKI_PRECISE_FP=0
            array = dtypes.cast(np.ascontiguousarray(array), view.dtype)
        if view.dtype == dtypes.float8_e4m3 and self.relabelled:
            array = array.view(dtypes.float8_e4m3fn.storage)
        if view.dtype in self.packed:
            array = array.view(self.packed[view.dtype])
        kept = view.storage.parameter or view.storage.constant or view.storage in self.given
        self.given.add(view.storage)
        array = array.copy() if kept else np.ascontiguousarray(array)
        return self.framework.from_numpy(array, self.like)

    def parameters(self) -> list[tuple[str, Storage]]:
        """The tensors the kernel received, with their names."""
        return [(name, tensor.storage) for name, tensor in self.by_name.items()]

    def written(self) -> list[tuple[str, Any, Any, Storage]]:
        """The arguments the kernel wrote."""
        return [
            (name, value, framework, storage)
            for name, value, framework, storage, _ in self.tensors
            if storage.memory is not None and storage.memory.changed
        ]

    def connect(self, returned: Any, kernel: str) -> Any:
        """What the caller receives, tied to the arguments as the framework needs it."""
        if not hasattr(self.framework, "connect"):
            return returned
        return self.framework.connect(returned, [value for _, value, _, _, _ in self.tensors], kernel)

    def write_back(self, kernel: str) -> None:
        """Give the new contents of written arguments to the caller; all or nothing."""
        changed = [item for item in self.written() if hasattr(item[2], "write_back")]
        for name, value, framework, _ in changed:
            framework.check_writable(value, name)
            self._check_apart(name, value, framework)
        for name, value, framework, storage in changed:
            array = storage.memory.array(self.by_name[name])  # type: ignore[union-attr]
            if array.dtype != storage.dtype.storage:  # NKI_PRECISE_FP=0
                array = dtypes.cast(array, storage.dtype)
            if storage.number in self.relabelled:
                array = array.view(dtypes.float8_e4m3fn.storage)
            if storage.dtype in self.packed:
                array = array.view(self.packed[storage.dtype])
            framework.write_back(value, array, [v for _, v, _, _, _ in self.tensors], kernel)

    def _check_apart(self, name: str, value: Any, framework: Any) -> None:
        array = framework.to_numpy(value)
        for other, another, of, _, _ in self.tensors:
            if other != name and _overlap(of.to_numpy(another), array):
                raise error(
                    "read-only-input",
                    f"the kernel wrote argument '{name}', which overlaps argument '{other}'",
                    help="pass a copy of one of them",
                )


def _others(met: set[str], framework: Any) -> str:
    return " and ".join(sorted(f"{name} ones" for name in met - {framework.name}))


def is_description(value: Any) -> bool:
    """nki.TensorSpec, jax.ShapeDtypeStruct and their like."""
    return type(value).__name__ in ("TensorSpec", "ShapeDtypeStruct") and hasattr(value, "shape")


def is_dtype(value: Any) -> bool:
    """A dtype object of nki, numpy, ml_dtypes, torch or JAX."""
    if isinstance(value, (dtypes.DType, np.dtype)):
        return True
    if isinstance(value, type):  # np.float32, or jnp.float32, which knows its numpy dtype
        return issubclass(value, np.generic) or isinstance(getattr(value, "dtype", None), np.dtype)
    return type(value).__name__ == "dtype" and type(value).__module__.startswith("torch")


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.shares_memory(a, b, max_work=1 << 20)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:  # strides that are hard to compare: better safe
        return True


def is_whole(view: View) -> bool:
    """True for all of a tensor, in its order and dtype; the shape may differ."""
    return view.dtype == view.storage.dtype and view.covers_storage()


def _is_dense(value: Any) -> bool:
    """True when a reshape shares the caller's memory."""
    return value.flags.c_contiguous if isinstance(value, np.ndarray) else value.is_contiguous()


def is_record(value: Any) -> bool:
    """An instance of a dataclass or NKIObject."""
    if isinstance(value, type):
        return False
    return dataclasses.is_dataclass(value) or getattr(value, "is_nki_object", False) is True


def record_fields(value: Any) -> list[str]:
    """The names of the fields a record has."""
    return [name for name in possible_fields(value) if hasattr(value, name)]


def possible_fields(value: Any) -> dict[str, Any]:
    """Those and, as keys, the names of fields of its dataclass that it lacks."""
    slots = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return {**dict.fromkeys(slots), **getattr(value, "__dict__", {})}


def _dtype_of(dtype: Any, name: str) -> dtypes.DType:
    try:
        return dtypes.resolve(dtype)
    except TypeError as problem:
        help = getattr(problem, "help", None)
        raise error("dtype", f"argument '{name}' has dtype {dtype}", help=help) from None
