"""Tensors in and out: the caller's arrays behind the storages of a Program, and results for the caller.

Arrays become HBM tensors without a copy. The caller's arrays are written only after the kernel has finished
(spec/language.md 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.reference.memories import Memories
from ..errors import error
from ..ir import tree
from ..ir.storage import Storage
from ..ir.tensor import whole
from ..ir.view import View
from ..launch.launch import Launch
from ..machine import dtypes
from ..machine.machine import Machine
from ..machine.memories import PRIVATE_HBM, SHARED_HBM
from ..options import Options
from .arguments import TensorArgument
from .arrays import NumpyFramework


class Lent(NamedTuple):
    """A tensor of the caller behind a storage."""

    name: str
    value: Any
    framework: Any
    storage: Storage


class Transfer:
    """The tensors of one call, on their way in and out."""

    def __init__(
        self,
        tensors: Sequence[TensorArgument],
        storages: Sequence[Storage],
        machine: Machine,
        options: Options,
        has_data: bool = True,
    ):
        self.machine = machine
        self.options = options
        self.storages = storages
        self.tensors: list[Lent] = []
        self.inputs: dict[Storage, np.ndarray] = {}  # the bytes of each
        self.framework: Any = NumpyFramework
        self.like: Any = None  # a tensor of that framework: results go to its device
        self.relabelled: set[Storage] = set()  # whose e4m3fn bits are labelled e4m3
        self.packed: dict[dtypes.DType, np.dtype] = {}  # the caller's own packed types
        self.given: set[Storage] = set()  # storages whose bytes the caller received as a result
        frameworks: set[str] = set()  # names of the frameworks
        for (name, value, framework), storage in zip(tensors, storages, strict=True):
            if framework is not None:
                if framework is not NumpyFramework or frameworks - {"numpy"}:
                    self._check_framework(value, framework, name, frameworks)
                frameworks.add(framework.name)
                self._lend(value, framework, storage)
            elif has_data:
                raise error(
                    "argument",
                    f"argument '{name}' is a TensorSpec, which has no data",
                    help="pass an array; nki.profile(kernel) and kernel.trace take TensorSpecs",
                )

    # ---- in --------------------------------------------------------------------------------------

    def _lend(self, value: Any, framework: Any, storage: Storage) -> None:
        array = framework.to_numpy(value)
        if storage.dtype.is_packed:
            self.packed[storage.dtype] = array.dtype
        if framework is not NumpyFramework:
            self.framework, self.like = framework, value
        if array.dtype == dtypes.float8_e4m3fn.storage and self.machine.generation < 4:
            array = self._relabel(array, storage)
        self.inputs[storage] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.tensors.append(Lent(storage.name, value, framework, storage))

    def _check_framework(self, value: Any, framework: Any, name: str, frameworks: set[str]) -> None:
        """One framework and one device per call; numpy arrays may stand beside JAX ones."""
        others = frameworks - {framework.name}
        if others and "torch" in (framework.name, *others):
            raise error(
                "framework-mix",
                f"argument '{name}' is a {framework.name} array, beside {' and '.join(sorted(others))} ones",
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

    def _relabel(self, array: np.ndarray, storage: Storage) -> np.ndarray:
        """Return the bits of e4m3fn under the name of e4m3, which the platform has instead."""
        self.relabelled.add(storage)
        if not self.options.unsafe_fp8:
            codes = np.ascontiguousarray(array).view(np.uint8)
            if ((codes & 0x78) == 0x78).any():
                raise error(
                    "fp8-range",
                    f"argument '{storage.name}' is float8_e4m3fn with values beyond 240 (or NaN), "
                    f"which {self.machine.name} would read as inf or NaN",
                    help="clip it to +-240 first, or set UNSAFE_FP8FNCAST=1",
                )
        return array.view(dtypes.float8_e4m3.storage)

    def lent_for(self, returned: Sequence[View], into: Sequence[np.ndarray]) -> dict[Storage, np.ndarray]:
        """Return the caller's memory for tensors that will be returned as a whole."""
        storages = [view.storage for view in returned]
        lent = {}
        for view, target in zip(returned, into, strict=True):
            storage = view.storage
            is_own = not (storage.parameter or storage.constant) and storages.count(storage) == 1
            if is_own and is_whole(view) and self.options.precise_fp:
                lent[storage] = target.reshape(-1).view(np.uint8)
        return lent

    # ---- out -------------------------------------------------------------------------------------

    def result(self, value: object, memories: Memories, kernel: str) -> Any:
        """Return what the caller receives for a returned value."""
        returned = tree.replace_leaves(value, View, lambda view: self._array(view, memories))
        if not hasattr(self.framework, "connect"):
            return returned
        return self.framework.connect(returned, [lent.value for lent in self.tensors], kernel)

    def _array(self, view: View, memories: Memories) -> Any:
        """Return a returned tensor: the caller's own object for an argument, else a new array."""
        for _, value, framework, storage in self.tensors:
            if storage is view.storage and hasattr(framework, "write_back"):
                if is_whole(view) and tuple(view.shape) == tuple(value.shape):
                    return value
                if is_whole(view) and _is_dense(value):
                    return value.reshape(tuple(view.shape))
        array = self._labelled(memories.array(view), view.dtype, bool(self.relabelled))
        shared = view.storage.parameter or view.storage.constant or view.storage in self.given
        self.given.add(view.storage)
        array = array.copy() if shared else np.ascontiguousarray(array)
        return self.framework.from_numpy(array, self.like)

    def _labelled(self, array: np.ndarray, dtype: dtypes.DType, relabelled: bool) -> np.ndarray:
        """Return an array under the dtype that the caller knows."""
        if array.dtype != dtype.storage:  # NKI_PRECISE_FP=0
            array = dtypes.cast(np.ascontiguousarray(array), dtype)
        if relabelled and dtype == dtypes.float8_e4m3:
            array = array.view(dtypes.float8_e4m3fn.storage)
        return array.view(self.packed[dtype]) if dtype in self.packed else array

    def written(self, memories: Memories) -> list[Lent]:
        """Return the arguments that the kernel wrote."""
        return [lent for lent in self.tensors if memories.changed(lent.storage)]

    def check_write_back(self, memories: Memories) -> None:
        """Check that the caller's arrays can be written: after this nothing can fail."""
        for name, value, framework, _ in self._returned_to(memories):
            framework.check_writable(value, name)
            self._check_apart(name, value, framework)

    def write_back(self, memories: Memories, kernel: str) -> list[Any]:
        """Copy the new contents of written arguments to the caller; returns the caller's objects."""
        changed = self._returned_to(memories)
        for _, value, framework, storage in changed:
            values = memories.array(whole(storage, None))
            array = self._labelled(values, storage.dtype, storage in self.relabelled)
            framework.write_back(value, array, [lent.value for lent in self.tensors], kernel)
        return [lent.value for lent in changed]

    def _returned_to(self, memories: Memories) -> list[Lent]:
        return [lent for lent in self.written(memories) if hasattr(lent.framework, "write_back")]

    def _check_apart(self, name: str, value: Any, framework: Any) -> None:
        array = framework.to_numpy(value)
        for other, another, of, _ in self.tensors:
            if other != name and _overlap(of.to_numpy(another), array):
                raise error(
                    "read-only-input",
                    f"the kernel wrote argument '{name}', which overlaps argument '{other}'",
                    help="pass a copy of one of them",
                )


# ---- storages of the parameters ------------------------------------------------------------------


def parameter_storages(tensors: Sequence[TensorArgument], launch: Launch) -> list[Storage]:
    """Return a storage for each tensor among the arguments."""
    return [_storage(tensor, number, launch) for number, tensor in enumerate(tensors)]


def _storage(tensor: TensorArgument, number: int, launch: Launch) -> Storage:
    name, value, framework = tensor
    shape = tuple(map(int, value.shape))
    if framework is not None and not shape:
        raise error(
            "scalar-argument",
            f"argument '{name}' is a 0-d array",
            help="pass a Python number, or reshape it to (1,)",
        )
    if framework is not None and 0 in shape:
        raise error("shape", f"argument '{name}' has shape {shape}, which holds no element")
    dtype = _dtype_of(value.dtype, name) if framework is not None else dtypes.resolve(value.dtype)
    # trn1 and trn2 have only float8_e4m3: e4m3fn bits arrive under that name (spec/language.md 6.3)
    relabelled = dtype == dtypes.float8_e4m3fn and launch.machine.generation < 4
    storage = Storage(
        SHARED_HBM if launch.degree > 1 else PRIVATE_HBM,
        shape,
        dtypes.float8_e4m3 if relabelled else dtype,
        name,
        number=-number - 1,
        parameter=True,
        call=launch.call,
    )
    limit = launch.machine.hbm_bytes_per_core
    if storage.nbytes > limit:
        raise error(
            "memory",
            f"argument '{name}' takes {storage.nbytes} bytes, "
            f"a core of {launch.machine.name} reaches {limit} bytes of HBM",
        )
    return storage


def is_whole(view: View) -> bool:
    """Return True for all of a tensor, in its order and dtype; the shape may differ."""
    return view.dtype == view.storage.dtype and view.covers_storage()


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.shares_memory(a, b, max_work=1 << 20)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:  # strides that are hard to compare: assume an overlap
        return True


def _is_dense(value: Any) -> bool:
    """Return True when a reshape shares the caller's memory."""
    return value.flags.c_contiguous if isinstance(value, np.ndarray) else value.is_contiguous()


def _dtype_of(dtype: object, name: str) -> dtypes.DType:
    try:
        return dtypes.resolve(dtype)
    except TypeError as problem:
        help = getattr(problem, "help", None)
        raise error("dtype", f"argument '{name}' has dtype {dtype}", help=help) from None
