"""Access patterns and run-time addresses (spec/tensor.md 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..errors import error
from ..machine import dtypes
from ..machine.memories import SBUF
from .indexing import check_index_tile, is_dynamic_index
from .layout import Indirection, Int, KnownLayout, Layout, Register, Shape, is_int, shown
from .reshape import Reshaped

V = TypeVar("V", bound="View")  # jedi knows it, but not typing.Self


class View(Reshaped):
    """A strided view of a storage. Instructions hold plain Views; users hold `NkiTensor`s."""

    __slots__ = ()

    def bare(self) -> View:
        """Return the same view without a lease on its storage."""
        ind = self.indirection
        if ind is None:
            return self
        view = View(self.storage, self.offset, self.shape, self.strides, self.dtype, ind.bare())
        view._sig = self.sig
        return view

    def __reduce__(self) -> tuple[type, tuple]:
        """Pickle it without its signature, which is a number of this process."""
        return View, (self.storage, self.offset, self.shape, self.strides, self.dtype, self.indirection)

    def _make(
        self: V,
        offset: int,
        shape: Iterable[int],
        strides: Iterable[int],
        dtype: dtypes.DType,
        indirection: Indirection | None,
    ) -> V:
        return View(self.storage, offset, Shape(shape), tuple(strides), dtype, indirection)  # type: ignore[return-value]

    def _sliced(self: V, view: Layout, offset: int, layout: KnownLayout) -> V:
        shape, strides, sig = layout
        made = View(view.storage, offset, shape, strides, view.dtype)
        made._sig = sig
        return made  # type: ignore[return-value]

    def ap(
        self: V,
        pattern: Sequence[Sequence[Int]],
        offset: Int | None = None,
        scalar_offset: Int | Register | Layout | None = None,
        vector_offset: View | None = None,
        indirect_dim: Int = 0,
        dtype: dtypes.DTypeLike | None = None,
    ) -> V:
        """Replace shape and strides by [[step, count], ...]; optionally index at run time."""
        steps, counts = self._pattern(pattern)
        if self.on_chip and counts[0] > 1 and steps[0] != self.row_pitch and steps[0] == self.free_elements:
            steps[0] = self.row_pitch  # the row length of a slice stands for one partition
        if scalar_offset is not None and vector_offset is not None:
            self._fail("indirect-twice", "ap: give scalar_offset or vector_offset, not both")
        extra = 0 if offset is None else offset
        if not is_int(extra) or extra < 0:
            self._fail("pattern", f"ap: offset must be an int >= 0, got {shown(offset)}")
        target = self.dtype if dtype is None else dtypes.resolve(dtype)
        byte_offset = self.offset * self.dtype.itemsize
        if byte_offset % target.itemsize or self.storage.pitch % target.itemsize and self.on_chip:
            self._fail("alignment", f"ap: the tensor does not start or repeat at a multiple of {target}")
        start = byte_offset // target.itemsize + int(extra)
        ind = None
        if scalar_offset is not None or vector_offset is not None:
            self._not_indirect_yet("ap")
            dim = self._dim(indirect_dim, "ap")
            stride_bytes = self.strides[dim] * self.dtype.itemsize
            if stride_bytes % target.itemsize:
                self._fail(
                    "alignment", f"ap: dimension {dim} steps {stride_bytes} bytes, not whole {target}s"
                )
            if is_int(scalar_offset):
                start += int(scalar_offset) * stride_bytes // target.itemsize
            else:
                ind = self._ap_indirection(scalar_offset, vector_offset, dim, stride_bytes, counts)
        elif self.indirection is not None:
            from .context import warn

            warn("ap-drops-indirection", "ap: the run-time index of this view is dropped by a new pattern")
        view = self._make(start, counts, steps, target, ind)
        # A loop may make a pattern that starts too far along and skip its use: on chip `rules` checks that.
        late = self.on_chip and extra > 0
        (self._make(start - int(extra), counts, steps, target, ind) if late else view)._check_reach()
        return view

    def _pattern(self, pattern: Sequence[Sequence[Int]]) -> tuple[list[int], list[int]]:
        if not isinstance(pattern, (list, tuple)) or not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pattern
        ):
            self._fail("pattern", f"ap: the pattern is a list of [step, count] pairs, got {shown(pattern)}")
        if not pattern or (self.on_chip and not 2 <= len(pattern) <= 5):
            least = "2 to 5 on chip" if self.on_chip else "at least 1"
            self._fail("pattern", f"ap: the pattern holds {len(pattern)} pairs, it must hold {least}")
        for step, count in pattern:
            if not is_int(step) or not is_int(count) or step < 0 or count < 1:
                self._fail("pattern", f"ap: [{step!r}, {count!r}]: a step is >= 0 and a count >= 1")
        return [int(step) for step, _ in pattern], [int(count) for _, count in pattern]

    def _ap_indirection(
        self,
        scalar: Int | Register | Layout | None,
        vector: View | None,
        dim: int,
        stride_bytes: int,
        counts: Sequence[int],
    ) -> Indirection:
        if vector is not None:
            if self.on_chip:
                self._fail(
                    "buffer", "ap: vector_offset needs an HBM tensor", help="gather on chip with nc_n_gather"
                )
            if dim != 0:
                self._fail("indirect-dim", f"ap: vector_offset indexes dimension 0, got indirect_dim={dim}")
            if not isinstance(vector, View):
                raise error("argument", f"ap: vector_offset must be a tile of indices, got {shown(vector)}")
            _check_index_rows(vector, counts[0], "ap")
            return Indirection("vector", vector, stride_bytes, 0)
        if not is_dynamic_index(scalar):
            raise error(
                "argument", f"ap: scalar_offset must be an int, register or tile, got {shown(scalar)}"
            )
        if self.on_chip and dim == 0 and self.shape[0] != 1:
            self._fail("partition-dynamic", "ap: on chip indirect_dim must be a free dimension, not 0")
        self._check_index(scalar, "ap")
        return Indirection("scalar", scalar, stride_bytes, None)

    def _check_reach(self) -> None:
        """Check that the pattern stays inside its storage and, on chip, inside its partitions."""
        if self.offset < 0:
            self._fail("index", f"ap: begins {-self.offset} elements before the tensor")
        spans = [(count - 1) * step for step, count in zip(self.strides, self.shape, strict=True)]
        if not self.on_chip:
            vector = self.indirection is not None and self.indirection.kind == "vector"
            last = self.offset + sum(spans[1:] if vector else spans)
            limit = self.storage.nbytes // self.dtype.itemsize
            if last >= limit:
                self._fail("index", f"ap: reaches element {last}, the tensor has {limit}")
            return
        pitch = self.row_pitch
        if self.shape[0] > 1 and self.strides[0] != pitch:
            self._fail(
                "index",
                f"ap: the first step must be {pitch}, the elements of a partition, got {self.strides[0]}",
                help="one operand addresses consecutive partitions; none can be skipped",
            )
        beyond = self.beyond_partitions()
        if beyond:
            self._fail("index", f"ap: {beyond}")

    def beyond_partitions(self) -> str:
        """Describe what an on-chip view reaches outside its partitions; return "" if it stays inside."""
        pitch = self.row_pitch
        first, free = divmod(self.offset, pitch)
        if first + self.shape[0] > self.storage.partitions:
            return f"reaches partition {first + self.shape[0] - 1} of {self.storage.partitions}"
        free += sum((n - 1) * step for n, step in zip(self.shape[1:], self.strides[1:], strict=True))
        return f"reaches element {free} of a partition that holds {pitch}" if free >= pitch else ""

    def vector_select(self: V, dim: Int, vector_offset: View) -> V:
        """Return the rows of an HBM tensor selected by a tile of indices, one per partition."""
        if self._dim(dim, "vector_select") != 0:
            self._fail(
                "indirect-dim", "vector_select: only dimension 0 can be selected by a vector of indices"
            )
        self._not_indirect_yet("vector_select")
        if self.strides[0] == 0 or any(s > self.strides[0] for s in self.strides[1:]):
            self._fail(
                "layout",
                "vector_select: dimension 0 must have the largest stride",
                help="apply vector_select before permute or broadcast",
            )
        if not isinstance(vector_offset, View):
            raise error(
                "argument", f"vector_select: expected an SBUF tile of indices, got {shown(vector_offset)}"
            )
        _check_index_rows(vector_offset, vector_offset.shape[0], "vector_select")
        pattern = [[self.strides[0], vector_offset.size], *self.get_pattern()[1:]]
        return self.ap(pattern, vector_offset=vector_offset)

    def indirect(self: V, index: View, num_elem: Int | None = None) -> V:
        """Return columns gathered (or scattered) by an index tile shared by groups of partitions (trn3)."""
        from .context import current_machine

        machine = current_machine()
        if machine.generation < 4:
            raise error("generation", f"indirect: needs trn3, this kernel targets {machine.name}")
        self._not_indirect_yet("indirect")
        if not self.on_chip:
            self._fail("buffer", "indirect: the tensor must be on chip", help="HBM rows: vector_select")
        if not isinstance(index, View) or index.buffer is not SBUF:
            raise error("buffer", f"indirect: index must be an SBUF tile, got {shown(index)}")
        if index.dtype not in ("int16", "uint16", "int32", "uint32"):
            raise error(
                "dtype",
                f"indirect: index has dtype {index.dtype}, offsets are 16- or 32-bit integers",
                notes=[index.describe()],
            )
        count = index.size if num_elem is None else num_elem
        if not is_int(count) or count < 1:
            raise error("shape", f"indirect: num_elem must be a positive int, got {shown(num_elem)}")
        ind = Indirection("tensor", index, self.dtype.itemsize, 1, base=self)
        return self._make(self.offset, (self.shape[0], int(count)), (self.strides[0], 1), self.dtype, ind)


class TracedView(View):
    """A view whose maker sets its slots. Python makes objects without an initialiser in half the time."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__


def _check_index_rows(index: View, rows: int, method: str) -> None:
    """Check that there is one index per row; dma_transpose reads the first of a larger tile."""
    check_index_tile(index, method)
    if index.size < rows if method == "ap" else index.size != rows:
        raise error(
            "shape",
            f"{method}: {index.size} indices for {rows} rows",
            notes=[index.describe()],
            help="pass an SBUF tile of shape (rows, 1)",
        )
