"""`neuronxcc.nki.compiler`: the placement of tiles, and decorators, which have no effect here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from nki.errors import error
from nki.ir.context import current_machine
from nki.machine.memories import PSUM, SBUF, MemoryRegion

Place = Callable[[tuple[int, ...], int, int], tuple[int, ...]]  # of a block index, partitions and bytes


class PlacedBuffer:
    """`ncc.sbuf` and `ncc.psum`, and what their allocators return: a memory, and where its tiles lie.

    Tiles at the same address share their bytes.
    """

    def __init__(self, region: MemoryRegion, place: Place | None = None):
        self.region, self._place = region, place

    def alloc(self, func: Place) -> PlacedBuffer:
        """Place the tile of each block where `func` says; in PSUM that begins with a bank."""
        return PlacedBuffer(self.region, func)

    def mod_alloc(
        self,
        *,
        base_addr: int = 0,
        base_partition: int = 0,
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
        base_bank: int = 0,
        num_bank_tiles: Sequence[int] = (),
    ) -> PlacedBuffer:
        """Place blocks in turn on as many tiles as there are; a block dimension without a number has one."""

        def place(block: tuple[int, ...], partitions: int, nbytes: int) -> tuple[int, ...]:
            bank = base_bank + _in_turn(block, num_bank_tiles)
            partition = base_partition + partitions * _in_turn(block, num_par_tiles)
            byte = base_addr + nbytes * _in_turn(block, num_free_tiles)
            return (bank, partition, byte) if self.region is PSUM else (partition, byte)

        return PlacedBuffer(self.region, place)

    def auto_alloc(self) -> PlacedBuffer:
        return PlacedBuffer(self.region)

    def address(self, block: tuple[int, ...], partitions: int, nbytes: int) -> tuple[int, int] | None:
        """Return (partition, byte) of a block's tile; None leaves it to the allocator."""
        if self._place is None:
            return None
        *bank, partition, byte = self._place(block, partitions, nbytes)
        return partition, byte + sum(bank) * current_machine().psum_bank_bytes

    def __eq__(self, other: object) -> bool:
        return getattr(other, "region", other) is self.region

    def __hash__(self) -> int:
        return hash(self.region)


def _in_turn(block: tuple[int, ...], tiles: Sequence[int]) -> int:
    """Return the number of a block's tile among `tiles` in each block dimension."""
    if not tiles:
        return 0
    if len(tiles) != len(block):
        raise error(
            "address",
            f"mod_alloc: {tuple(tiles)} has {len(tiles)} entries, the tensor {len(block)} block dimensions",
        )
    return int(np.ravel_multi_index([i % n for i, n in zip(block, tiles, strict=True)], tuple(tiles)))


sbuf, psum = PlacedBuffer(SBUF), PlacedBuffer(PSUM)


def _unchanged(func: Any = None, **_: object) -> Any:
    """A decorator for the compiler: the function itself."""
    return (lambda function: function) if func is None else func


enable_stack_allocator = force_auto_alloc = _unchanged

_skipping: WeakSet[Any] = WeakSet()


def skip_middle_end_transformations(func: Any = None, **_: object) -> Any:
    """A decorator for the compiler: only its back end changes the function, in the timing model too."""
    if func is None:
        return skip_middle_end_transformations
    _skipping.add(getattr(func, "user", func))
    return func


def skips_middle_end(function: Any) -> bool:
    """Return True if a kernel was decorated with `skip_middle_end_transformations`."""
    return function in _skipping


@contextlib.contextmanager
def _scope(*_: object, **__: object) -> Iterator[None]:
    yield


no_reorder = multi_buffer = allocation_scope = _scope
