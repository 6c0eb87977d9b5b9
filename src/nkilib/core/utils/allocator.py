"""Placing tiles in SBUF by hand: a stack that grows up, a heap that grows down."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.logging import Logger
from nkilib.core.utils.types import DTypeLike, Tensor

_SIZES = (
    (1, (nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2, nl.float8_e8m0fnu, nl.int8, nl.uint8, nl.bool_)),
    (2, (nl.bfloat16, nl.float16, nl.int16, nl.uint16, nl.float4_e2m1fn_x4)),
    (4, (nl.float32, nl.tfloat32, nl.int32, nl.uint32, nl.float8_e4m3fn_x4, nl.float8_e5m2_x4)),
)


def sizeinbytes(dtype: DTypeLike) -> Any:
    """Bytes of an element; of a packed one, of its four lanes together."""
    for known in _SIZES:
        if dtype in known[1]:
            return known[0]
    kernel_assert(False, f"sizeinbytes: got {dtype}, expected a dtype of nki.language")


def bytes_per_partition(shape: tuple, dtype: DTypeLike) -> int:
    """What a tile of this shape takes in each of its partitions."""
    size = sizeinbytes(dtype)
    for dim in range(1, len(shape)):
        size = size * shape[dim]
    return size


class _Scope(nl.NKIObject):
    """A part of the stack that is freed at once, cut into `degree` sections of equal size."""

    def __init__(self, start: int, degree: int, name: str):
        self.start = start
        self.degree = degree
        self.name = name
        self.section = 0
        self.section_start = start
        self.section_size = -1  # unknown until the first section is full
        self.top = start  # the highest address used


class BufferManager(nl.NKIObject):
    """Manages the bytes [sb_lower_bound, sb_upper_bound) of every SBUF partition.

    With `use_auto_alloc` tiles are left to the compiler and scopes mean nothing.
    """

    def __init__(
        self,
        sb_lower_bound: int,
        sb_upper_bound: int,
        logger: Logger | None = None,
        use_auto_alloc: bool = False,
        default_stack_alloc: bool = True,
    ):
        kernel_assert(
            0 <= sb_lower_bound <= sb_upper_bound,
            f"bounds: got {sb_lower_bound} to {sb_upper_bound}, expected 0 <= lower <= upper",
        )
        self.lower = sb_lower_bound
        self.upper = sb_upper_bound
        self.logger = logger if logger is not None else Logger("nkilib.allocator")
        self.auto = use_auto_alloc
        self.default_stack_alloc = default_stack_alloc
        self.stack = sb_lower_bound
        self.heap = sb_upper_bound
        self.scopes: list[_Scope] = []
        self.heap_tops: list[int] = []  # heap address before each allocation
        self.prefix = ""
        self.names: list[str] = []
        self.history: list[str] = []

    # ---- scopes

    def open_scope(self, interleave_degree: int = 1, name: str = "") -> None:
        """Remember the stack address; what is allocated from now on is freed by close_scope."""
        kernel_assert(
            interleave_degree >= 1, f"interleave_degree: got {interleave_degree}, expected at least 1"
        )
        self._note(f"scope {name} from {self.stack}, {interleave_degree} sections")
        self.scopes.append(_Scope(self.stack, interleave_degree, name))

    def close_scope(self) -> None:
        """Free what was allocated on the stack since open_scope."""
        kernel_assert(len(self.scopes) > 0, "close_scope: no scope is open")
        scope = self.scopes.pop()
        self.stack = scope.start

    def increment_section(self) -> None:
        """Go on in the next section of the scope; after the last one, in the first again."""
        if self.auto:
            return
        kernel_assert(len(self.scopes) > 0, "increment_section: no scope is open")
        scope = self.scopes[-1]
        size = self.stack - scope.section_start
        kernel_assert(
            scope.section_size in (-1, size),
            f"increment_section: section {scope.section} of scope {scope.name} has {size} bytes, "
            f"expected {scope.section_size} like the ones before",
        )
        scope.section_size = size
        scope.section = (scope.section + 1) % scope.degree
        scope.section_start = scope.start + scope.section * size
        self.stack = scope.section_start

    # ---- tiles

    def alloc_stack(
        self,
        shape: tuple,
        dtype: DTypeLike,
        buffer: Any = nl.sbuf,
        name: str | None = None,
        base_partition: int = 0,
        align: int | None = None,
    ) -> Any:
        """A tile at the stack's address, which moves up behind it."""
        self._check_buffer(buffer)
        if self.auto:
            return nl.ndarray(shape, dtype, buffer=nl.sbuf, name=self._named(name))
        size = bytes_per_partition(shape, dtype)
        start = _aligned_up(self.stack, align or sizeinbytes(dtype))
        self._check_room(name, size, start + size, self.heap)
        self.stack = start + size
        for scope in self.scopes:
            scope.top = max(scope.top, self.stack)
        return self._place(shape, dtype, name, base_partition, start, "stack")

    def alloc_heap(
        self,
        shape: tuple,
        dtype: DTypeLike,
        buffer: Any = nl.sbuf,
        name: str | None = None,
        base_partition: int = 0,
        align: int | None = None,
    ) -> Any:
        """A tile below the heap's address, which moves down to it."""
        self._check_buffer(buffer)
        if self.auto:
            return nl.ndarray(shape, dtype, buffer=nl.sbuf, name=self._named(name))
        size = bytes_per_partition(shape, dtype)
        unit = align or sizeinbytes(dtype)
        start = (self.heap - size) // unit * unit
        self._check_room(name, size, self._stack_top(), start)
        self.heap_tops.append(self.heap)
        self.heap = start
        return self._place(shape, dtype, name, base_partition, start, "heap")

    def alloc(
        self,
        shape: tuple,
        dtype: DTypeLike,
        buffer: Any = nl.sbuf,
        name: str | None = None,
        base_partition: int = 0,
        align: int | None = None,
    ) -> Any:
        """alloc_stack or alloc_heap, by default_stack_alloc."""
        if self.default_stack_alloc:
            return self.alloc_stack(shape, dtype, buffer, name, base_partition, align)
        return self.alloc_heap(shape, dtype, buffer, name, base_partition, align)

    def pop_heap(self) -> None:
        """Free the newest tile of the heap."""
        if self.auto:
            return
        kernel_assert(len(self.heap_tops) > 0, "pop_heap: the heap is empty")
        self.heap = self.heap_tops.pop()

    # ---- what is where

    def get_total_space(self) -> int:
        return self.upper - self.lower

    def get_free_space(self) -> int:
        return self.heap - self.stack

    def get_used_space(self) -> int:
        return self.get_total_space() - self.get_free_space()

    def get_stack_curr_addr(self) -> int:
        self._check_manual("get_stack_curr_addr")
        return self.stack

    def get_heap_curr_addr(self) -> int:
        self._check_manual("get_heap_curr_addr")
        return self.heap

    def align_stack_curr_addr(self, align: int = 32) -> None:
        self._check_manual("align_stack_curr_addr")
        self.stack = _aligned_up(self.stack, align)

    def is_auto_alloc(self) -> bool:
        return self.auto

    def set_name_prefix(self, prefix: str) -> None:
        self.prefix = prefix

    def get_name_prefix(self) -> str:
        return self.prefix

    def flush_logs(self) -> None:
        """Write the tree of scopes and tiles to the logger."""
        for line in self.history:
            self.logger.info(line)
        self.history.clear()

    # ---- helpers

    def _stack_top(self) -> int:
        """The highest byte that is in use: sections of open scopes that were left still hold tiles."""
        top = self.stack
        for scope in self.scopes:
            top = max(top, scope.top)
        return top

    def _place(
        self, shape: tuple, dtype: DTypeLike, name: str | None, base_partition: int, start: int, kind: str
    ) -> Tensor:
        full = self._named(name)
        self._note(f"{kind} {start}: {full} {shape} {dtype}")
        return nl.ndarray(shape, dtype, buffer=nl.sbuf, name=full, address=(base_partition, start))

    def _named(self, name: str | None) -> str:
        if not name:
            return ""
        full = f"{self.prefix}{name}"
        kernel_assert(full not in self.names, f"name: {full} is already in use, names must be unique")
        self.names.append(full)
        return full

    def _note(self, line: str) -> None:
        self.history.append("  " * len(self.scopes) + line)

    def _check_buffer(self, buffer: Any) -> None:
        kernel_assert(buffer == nl.sbuf, f"buffer: got {buffer}, only nl.sbuf is managed")

    def _check_manual(self, method: str) -> None:
        kernel_assert(not self.auto, f"{method}: there are no addresses with use_auto_alloc=True")

    def _check_room(self, name: str | None, size: int, stack: int, heap: int) -> None:
        kernel_assert(
            stack <= heap,
            f"SBUF is full: tile {name} needs {size} bytes per partition, {self.get_free_space()} of "
            f"{self.get_total_space()} are free (stack at {self.stack}, heap at {self.heap})",
        )


SbufManager = BufferManager


def _aligned_up(address: int, align: int) -> int:
    return -(-address // align) * align


def create_auto_alloc_manager(logger: Logger | None = None) -> BufferManager:
    """A manager that leaves placement to the compiler."""
    return BufferManager(0, 0, logger, use_auto_alloc=True)
