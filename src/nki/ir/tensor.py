"""NkiTensor: the tensor a kernel holds, a view that keeps its storage alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import error
from ..machine import dtypes
from ..machine.memories import SBUF, MemoryRegion
from . import foreign
from .context import running
from .hooks import hooks
from .indexing import Key
from .layout import Indirection, Int, KnownLayout, Layout, Shape, row_major
from .operator_names import ARITHMETIC, COMPARISONS, OF_NUMPY
from .storage import Lease, Storage
from .view import TracedView, View

if TYPE_CHECKING:
    from numpy.typing import DTypeLike as NumpyDTypeLike

_set = object.__setattr__
_FIXED = ("shape", "strides", "offset", "dtype")  # what users cannot set

_MOST_ROWS = 16  # that a summary shows all
_DEFAULT = 1000  # numpy's threshold, unless the user has set another


def summary(values: np.ndarray) -> str:
    """Return the values of a tensor as numpy prints them; of many rows the corners."""
    threshold = np.get_printoptions()["threshold"]
    is_long = values.ndim > 1 and len(values) > _MOST_ROWS
    with np.printoptions(threshold=0 if is_long and threshold == _DEFAULT else threshold):
        return str(values)


class UnfinishedTensor(View):
    """A tensor whose slots are being set: it becomes an NkiTensor, which guards them, afterwards."""

    __slots__ = ("lease", "is_comparison", "plain")
    lease: Lease | None
    is_comparison: bool
    plain: View | None  # the same without a lease, for recordings; None if a run-time index moves it

    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__  # as of a TracedView


class NkiTensor(UnfinishedTensor):
    """A tensor in HBM, SBUF or PSUM. Made by `nl.ndarray` and friends; views share its bytes.

    A view of memory: a start, a shape and a step for each dimension. Slices and the methods below give new
    views of the same bytes; nothing is copied.
    An access pattern `t.ap([[step, count], ...])` has a pair for each dimension of the view, the outermost
    first: element (i, j) is at offset + i * step_0 + j * step_1. Steps count elements. On chip the first pair
    walks over partitions, and its step is the elements per partition of the tile.

    Members:

    - `shape`, `dtype`, `buffer`, `name`: what it was made with; slices change the shape.
    - `ndim`, `size`: number of dimensions, number of elements.
    - `strides`, `offset`: steps and start, in elements.
    - `ap`: `t.ap(pattern, offset=, scalar_offset=, vector_offset=, indirect_dim=, dtype=)` replaces shape and
      steps; offsets may come from a register or a tile of row numbers.
    - `slice`, `select`: `t.slice(dim, start, end, step)` is `t[..., start:end:step, ...]`; `t.select(dim, i)`
      drops a dimension.
    - `vector_select`: `t.vector_select(0, rows)` takes the rows of an HBM tensor that a tile names.
    - `permute`: `t.permute(dims)` reorders dimensions; a tile keeps its partitions first.
    - `reshape`: `t.reshape(shape)` has the same elements in the same order.
    - `broadcast`: `t.broadcast(dim, size)` repeats a dimension of size 1 with step 0.
    - `expand_dim`, `squeeze_dim`: add or remove a dimension of size 1.
    - `view`: `t.view(dtype)` reinterprets the bytes.
    - `get_pattern`: the [[step, count], ...] of the view.

    Example:

    ```python
    @nki.jit
    def example(x):
        tile = nl.load(x)
        every_second = tile.ap([[6, 2], [2, 3]])
        nl.device_print("columns 0, 2, 4", every_second)

    example(np.arange(12, dtype=np.float32).reshape(2, 6))
    ```

    ```output
    columns 0, 2, 4 float32[2, 3] sbuf
    [[ 0.  2.  4.]
     [ 6.  8. 10.]]
    ```

    See also: `ndarray`, `ds`, `nisa.iota`, `nisa.dma_copy`.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: Sequence[Int],
        dtype: dtypes.DTypeLike,
        storage: Storage | View | None,
        buffer: MemoryRegion = SBUF,
        name: str = "",
    ):
        """Bind an existing storage, or None for a placeholder without data."""
        dtype = dtypes.resolve(dtype)
        shape = Shape(int(s) for s in shape)
        if not shape or min(shape) < 1:
            raise error("shape", f"NkiTensor: sizes must be positive, got {tuple(shape)}")
        lease: Lease | None = None
        if storage is None:
            storage = Storage(buffer, shape, dtype, name)  # belongs to no call: using it is an error
        elif isinstance(storage, View):
            storage, lease = storage.storage, getattr(storage, "lease", None)
        strides = row_major(shape)
        if storage.on_chip:  # partitions lie one pitch of the storage apart
            strides = (storage.pitch // dtype.itemsize, *strides[1:])
        rows = shape[0] if storage.on_chip else 1
        row = prod(shape) // rows * dtype.itemsize
        if rows > storage.partitions or row > storage.pitch:
            raise error("shape", f"NkiTensor: {dtype}{list(shape)} does not fit {storage!r}")
        made = tensor_of(storage, lease, 0, shape, strides, dtype)
        for slot in (*Layout.__slots__, *UnfinishedTensor.__slots__):
            _set(self, slot, getattr(made, slot))

    if not TYPE_CHECKING:  # checkers know which names can be set

        def __setattr__(self, name: str, value: object) -> None:
            if name in _FIXED:
                raise AttributeError(f"the {name} of a tensor cannot be set", name=name, obj=self)
            _set(self, name, value)

    def _make(
        self,
        offset: int,
        shape: Iterable[int],
        strides: Iterable[int],
        dtype: dtypes.DType,
        indirection: Indirection | None,
    ) -> NkiTensor:
        made = tensor_of(self.storage, self.lease, offset, Shape(shape), tuple(strides), dtype)
        if indirection is not None:
            made.indirection = indirection
            made.plain = None
        return made

    def _sliced(self, view: Layout, offset: int, layout: KnownLayout) -> NkiTensor:
        shape, strides, sig = layout
        return tensor_of(view.storage, self.lease, offset, shape, strides, view.dtype, sig)

    def bare(self) -> View:
        return self.plain or super().bare()

    @property
    def base_tensor(self) -> NkiTensor:
        """The whole tensor of which this is a view; public code passes tensors where it takes TensorViews."""
        return whole(self.storage, self.lease)

    # ---- Python protocols (spec/tensor.md 2) ------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same tensor (`t == None`); a comparison with a number is refused."""
        if isinstance(other, (int, float, np.generic, np.ndarray)):
            self._refuse("a Python comparison", f"nl.equal compares on the engine; {_STEER}")
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """Return whether an nl comparison holds everywhere; True for HBM, where `if bias:` tests presence."""
        if self.is_comparison:
            return bool(np.asarray(self).all())
        if self.on_chip:
            self._refuse("`if`, `while` or `not`", f"`is not None` tests presence; {_STEER}")
        return True

    def __repr__(self) -> str:
        """Describe the tensor and, while a kernel runs, show its values."""
        label = f" '{self.name}'" if self.name else ""
        text = f"NkiTensor {self.dtype}{list(self.shape)} {self.buffer.value}{label}"
        core = running()
        if core is None or self.indirection is not None or not core.read_back(self.storage):
            return text
        return f"{text}\n{summary(core.values(self))}"

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse_number(f"the format {spec!r}")
        return str(self)

    def _repr_html_(self) -> str:
        from ..markup import escape

        return f"<pre>{escape(repr(self))}</pre>"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> Any:
        if ufunc.__name__ in OF_NUMPY:  # array + tensor
            return getattr(self, f"__{OF_NUMPY[ufunc.__name__]}__")(None)
        return foreign.numpy_function(f"np.{ufunc.__name__}", _tensors([*inputs, *_outputs(kwargs)]))

    def __array_function__(self, function: Any, types: object, args: Any, kwargs: Any) -> Any:
        name = f"{function.__module__}.{function.__name__}".replace("numpy", "np", 1)
        return foreign.numpy_function(name, _tensors([*args, *kwargs.values()]) or [self])

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        tensors = _tensors([*args, *(kwargs or {}).values()])
        foreign.torch_function(function.__name__, tensors[0])

    if not TYPE_CHECKING:  # checkers know the names that there are

        def __getattr__(self, name: str) -> Any:
            raise foreign.missing_attribute(self, name)

    def item(self) -> NoReturn:
        """Refuse to make a number of a tensor."""
        self._refuse_number(".item()")

    def tolist(self) -> NoReturn:
        """Refuse to make numbers of a tensor."""
        self._refuse_number(".tolist()")

    def __array__(self, dtype: NumpyDTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return a copy of the values, for debugging inside a run."""
        core = running()
        if self.storage.call is None:
            raise error(
                "placeholder",
                "this tensor is a placeholder, it has no data behind it",
                notes=[self.describe()],
                help="allocate it with nl.ndarray",
            )
        if core is None or not core.read_back(self.storage):
            raise error("abstract-value", "only shapes are known here, not values", notes=[self.describe()])
        if self.indirection is not None:
            self._refuse("np.asarray()", "copy the selection to a tile first")
        if copy is False:
            raise ValueError("the values of a tensor cannot be seen without a copy")
        return np.array(core.values(self), dtype=dtype)

    def __setitem__(self, key: Key, value: object) -> None:
        hooks.assign(self[key], value)

    def __copy__(self) -> NoReturn:
        raise error(
            "operator", "a tensor cannot be copied by copy.copy", notes=[self.describe()], help="use nl.copy"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise error(
            "operator",
            "a tensor cannot be pickled",
            notes=[self.describe()],
            help="return it from the kernel",
        )

    def _refuse(self, what: str, help: str, *notes: str) -> NoReturn:
        raise error(
            "tensor-value",
            f"{what} on a tensor: values are not known while the kernel is traced",
            notes=[self.describe(), *notes],
            help=help,
        )

    def __len__(self) -> int:
        self._refuse("len()", "use t.shape[0]")

    def __iter__(self) -> NoReturn:
        self._refuse("iteration", "loop over range(t.shape[d]) and slice")

    def __contains__(self, item: object) -> NoReturn:
        self._refuse("`in`", "compare with nl.equal and reduce")

    def _refuse_number(self, what: str) -> NoReturn:
        self._refuse(
            what,
            "keep it in a tile, or nisa.register_load it; nl.device_print shows values",
            "print(t) can show values, since it only displays them; a number in Python would be a constant "
            "of the compiled kernel, whatever the data is",
        )

    def __float__(self) -> float:
        self._refuse_number("float()")

    def __int__(self) -> int:
        self._refuse_number("int()")

    def __complex__(self) -> complex:
        self._refuse_number("complex()")

    def __index__(self) -> int:
        self._refuse_number("an index, a size or range()")


def tensor_of(
    storage: Storage,
    lease: Lease | None,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: dtypes.DType,
    sig: int | None = None,
) -> NkiTensor:
    """Return a tensor with its slots set: a kernel makes one for every tile and every slice."""
    plain = TracedView()
    plain.storage = storage
    plain.offset = offset
    plain.shape = shape
    plain.strides = strides
    plain.dtype = dtype
    plain.indirection = None
    plain._sig = sig
    tensor = UnfinishedTensor()
    tensor.storage = storage
    tensor.lease = lease
    tensor.offset = offset
    tensor.shape = shape
    tensor.strides = strides
    tensor.dtype = dtype
    tensor.indirection = None
    tensor._sig = sig
    tensor.is_comparison = False
    tensor.plain = plain
    tensor.__class__ = NkiTensor
    return tensor  # type: ignore[return-value]


def whole(storage: Storage, lease: Lease | None) -> NkiTensor:
    """Return the tensor that covers a storage, row-major."""
    sizes = Shape(storage.shape)
    return tensor_of(storage, lease, 0, sizes, row_major(sizes), storage.dtype)


def _tensors(values: Iterable[object]) -> list[View]:
    """Return the tensors among the arguments of a function, also those in lists."""
    nested = [v for value in values for v in (value if isinstance(value, (list, tuple)) else (value,))]
    return [value for value in nested if isinstance(value, NkiTensor)]


def _outputs(kwargs: Mapping[str, Any]) -> Sequence[Any]:
    return kwargs.get("out") or ()


_STEER = "a register (nisa.register_load) can steer a loop"


def _refuse_operator(method: str, symbol: str, nl_name: str, isa_name: str) -> None:
    def refuse(self: NkiTensor, *others: object) -> NoReturn:
        raise error(
            "operator",
            f"unsupported operand: tensors have no operator {symbol}",
            notes=[self.describe()],
            help=f"use {nl_name} or nisa.{isa_name}",
        )

    refuse.__name__ = method
    setattr(NkiTensor, method, refuse)


def _refuse_comparison(method: str, name: str) -> None:
    def refuse(self: NkiTensor, other: object) -> NoReturn:
        self._refuse(
            "a Python comparison",
            f"nl.{name} compares on the engine; {_STEER}",
        )

    refuse.__name__ = method
    setattr(NkiTensor, method, refuse)


for _method, _name in COMPARISONS.items():
    _refuse_comparison(_method, _name)
for _name, (_symbol, _nl, _isa) in ARITHMETIC.items():
    unary = _name in ("neg", "pos", "invert", "abs")
    for _method in [f"__{_name}__"] if unary else [f"__{_name}__", f"__r{_name}__"]:
        _refuse_operator(_method, _symbol, _nl, _isa)
