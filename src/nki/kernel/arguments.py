"""Arguments in, results out: what a kernel receives for each Python value, and what the caller gets back.

Arrays become HBM tensors without a copy; containers and records are rebuilt around them. Nothing is
written to the caller's arrays before the kernel has finished (spec/language.md 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import error
from ..ir import tree
from ..ir.storage import Storage
from ..ir.tensor import NkiTensor, whole
from ..ir.view import View
from ..launch.launch import Launch
from ..machine import dtypes
from ..machine.memories import PRIVATE_HBM, SHARED_HBM
from .bridges import NumpyFramework, framework_of, is_description, is_dtype


class Given(NamedTuple):
    """A tensor among the arguments of a call."""

    name: str
    value: Any
    framework: Any
    storage: Storage


class Arguments:
    """The tensors of one call: made from the caller's values, handed to each core, written back."""

    def __init__(self, launch: Launch):
        self.launch = launch
        self.tensors: list[Given] = []
        self.by_name: dict[str, NkiTensor] = {}
        self.framework: Any = NumpyFramework
        self.like: Any = None  # a tensor of that framework: results go to its device
        self.relabelled: set[Storage] = set()  # whose e4m3fn bits are labelled e4m3
        self.packed: dict[dtypes.DType, np.dtype] = {}  # the caller's own packed types
        self.met: set[str] = set()  # names of the frameworks of its tensors
        self.described: list[tuple[str, Any]] = []  # tensors known by description alone
        self.given: set[Storage] = set()  # storages whose bytes the caller received as a result

    # ---- in --------------------------------------------------------------------------------------

    def convert(self, value: Any, name: str) -> Any:
        """What the kernel receives for `value`."""
        return tree.map_tree(self._leaf, value, name, is_leaf=_is_leaf)

    def _leaf(self, value: Any, name: str) -> Any:
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
        return value

    def _described(self, value: Any, name: str) -> NkiTensor:
        """A tensor known by shape and dtype alone: enough to trace, not to run."""
        if self.launch.has_data:
            raise error(
                "argument",
                f"argument '{name}' is a description without data",
                help="pass an array to run the kernel; descriptions serve nki.profile",
            )
        if name not in self.by_name:
            storage = self._storage(name, tuple(map(int, value.shape)), dtypes.resolve(value.dtype))
            self.described.append((name, value))
            self.by_name[name] = whole(storage, None)
        return self.by_name[name]

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
        storage = self._storage(name, tuple(value.shape), _dtype_of(value.dtype, name))
        self.attach(value, framework, storage)
        if not self.launch.has_data:
            self.described.append((name, value))
        return self.by_name[name]

    def _storage(self, name: str, shape: tuple[int, ...], dtype: dtypes.DType) -> Storage:
        """trn1 and trn2 know only float8_e4m3: e4m3fn bits arrive under that name (spec/language.md 6.3)."""
        relabelled = dtype == dtypes.float8_e4m3fn and self.launch.machine.generation < 4
        storage = Storage(
            SHARED_HBM if self.launch.degree > 1 else PRIVATE_HBM,
            shape,
            dtypes.float8_e4m3 if relabelled else dtype,
            name,
            number=-len(self.by_name) - 1,
            parameter=True,
            call=self.launch.call,
        )
        self._check_fits(storage)
        if relabelled:
            self.relabelled.add(storage)
        return storage

    def attach(self, value: Any, framework: Any, storage: Storage) -> None:
        """Put the caller's bytes behind a storage."""
        self._join(value, framework, storage.name)
        array = framework.to_numpy(value)
        if storage.dtype.is_packed:
            self.packed[storage.dtype] = array.dtype
        if framework is not NumpyFramework:
            self.framework, self.like = framework, value
        array = self._relabel(array, storage)
        if self.launch.has_data:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.launch.backend.borrow(storage, raw)
        self.tensors.append(Given(storage.name, value, framework, storage))
        self.by_name[storage.name] = whole(storage, None)

    def place(self, returned: Sequence[View], into: Sequence[np.ndarray]) -> None:
        """Let tensors that will be returned as a whole have their bytes in the caller's memory."""
        storages = [view.storage for view in returned]
        for view, target in zip(returned, into, strict=True):
            storage = view.storage
            is_own = not (storage.parameter or storage.constant) and storages.count(storage) == 1
            if is_own and is_whole(view) and self.launch.options.precise_fp:
                self.launch.backend.fill(storage, target.reshape(-1).view(np.uint8))

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
        """The bits of e4m3fn under the name of e4m3, where the platform has it so."""
        if array.dtype != dtypes.float8_e4m3fn.storage or self.launch.machine.generation >= 4:
            return array
        self.relabelled.add(storage)
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

    # ---- out -------------------------------------------------------------------------------------

    def result(self, value: Any) -> Any:
        """What the caller receives for a returned value."""
        return tree.replace_leaves(value, View, self._array)

    def _array(self, view: View) -> Any:
        """A returned tensor: the caller's own object for an argument, else a new array."""
        for _, value, framework, storage in self.tensors:
            if storage is view.storage and hasattr(framework, "write_back"):
                if is_whole(view) and tuple(view.shape) == tuple(value.shape):
                    return value
                if is_whole(view) and _is_dense(value):
                    return value.reshape(tuple(view.shape))
        array = self.launch.backend.values(view)
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

    def written(self) -> list[Given]:
        """The arguments the kernel wrote."""
        return [given for given in self.tensors if self.launch.backend.changed(given.storage)]

    def connect(self, returned: Any, kernel: str) -> Any:
        """What the caller receives, tied to the arguments as the framework needs it."""
        if not hasattr(self.framework, "connect"):
            return returned
        return self.framework.connect(returned, [given.value for given in self.tensors], kernel)

    def _returned_to(self) -> list[Given]:
        return [given for given in self.written() if hasattr(given.framework, "write_back")]

    def check_write_back(self) -> None:
        """What the kernel wrote can be given to the caller: from now on nothing can fail."""
        for name, value, framework, _ in self._returned_to():
            framework.check_writable(value, name)
            self._check_apart(name, value, framework)

    def write_back(self, kernel: str) -> list[Any]:
        """Give the new contents of written arguments to the caller; which of the caller's they are."""
        changed = self._returned_to()
        for name, value, framework, storage in changed:
            array = self.launch.backend.values(self.by_name[name])
            if array.dtype != storage.dtype.storage:  # NKI_PRECISE_FP=0
                array = dtypes.cast(array, storage.dtype)
            if storage in self.relabelled:
                array = array.view(dtypes.float8_e4m3fn.storage)
            if storage.dtype in self.packed:
                array = array.view(self.packed[storage.dtype])
            framework.write_back(value, array, [given.value for given in self.tensors], kernel)
        return [given.value for given in changed]

    def _check_apart(self, name: str, value: Any, framework: Any) -> None:
        array = framework.to_numpy(value)
        for other, another, of, _ in self.tensors:
            if other != name and _overlap(of.to_numpy(another), array):
                raise error(
                    "read-only-input",
                    f"the kernel wrote argument '{name}', which overlaps argument '{other}'",
                    help="pass a copy of one of them",
                )


def _is_leaf(value: Any) -> bool:
    """Arrays and descriptions are leaves, whatever else they are."""
    return (
        isinstance(value, (np.ndarray, np.generic))
        or is_description(value)
        or framework_of(value) is not None
    )


def _others(met: set[str], framework: Any) -> str:
    return " and ".join(sorted(f"{name} ones" for name in met - {framework.name}))


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


def _dtype_of(dtype: Any, name: str) -> dtypes.DType:
    try:
        return dtypes.resolve(dtype)
    except TypeError as problem:
        help = getattr(problem, "help", None)
        raise error("dtype", f"argument '{name}' has dtype {dtype}", help=help) from None
