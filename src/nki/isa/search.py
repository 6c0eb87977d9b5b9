"""VectorE: the eight largest, where values are, and moves between partitions (spec/isa_vector.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from ..ir.context import warn
from ..ir.instruction import In, Instruction, InstructionCost, NkiInstruction, OptionalOut, Out
from ..ir.layout import Int, is_int
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes
from ..machine.dtypes import bits, f32
from ..machine.machine import Machine
from ..typing import Number
from . import rules
from .costs import VectorInstruction
from .numerics import flat, moves_bits, shaped
from .public import public

EIGHT = 8  # values the engine finds, matches or replaces at once
LONGEST = 16384  # elements per partition it searches
INDEX_TYPES = ("uint32", "uint16")
KEEP = 255  # a shuffle_mask entry that leaves its partition alone


class SearchInstruction(VectorInstruction):
    """One pass over the first input."""

    cost_formula = "max(64, N)"

    def cost(self, m: Machine) -> InstructionCost:
        cycles = m.vector_one_input * self.operands()[1].free_elements
        return InstructionCost(cycles, m.fix_vector_ns, ("fix_vector_ns",), m.min_ii_cycles)


def _searchable(ins: Instruction, name: str, least: int = EIGHT) -> None:
    """The operand has 8 to 16384 elements per partition."""
    count = getattr(ins, name).free_elements
    if count < least:
        raise rules.fail(
            ins,
            "shape",
            f"{name} must have at least {least} elements per partition, it has {count}",
            [name],
            "pad it with the smallest value of its dtype",
        )
    rules.at_most(ins, name, count, LONGEST, "elements per partition", f"search it in pieces of {LONGEST}")


class Max8(SearchInstruction):
    """dst[P, 8] = the 8 largest elements of each partition of src, largest first."""

    public = "max8"

    dst: Out
    src: In

    def check(self, machine: Machine) -> None:
        rules.same_partitions(self, "src", "dst")
        _searchable(self, "src")
        rules.elements(self, "dst", EIGHT)
        rules.castable(self, "dst", "src")

    def compute(self, dst: np.ndarray, src: np.ndarray) -> None:
        negated = np.negative(flat(f32(src, self.src.dtype)))  # numpy sorts NaN last: the lowest of all
        smallest = np.partition(negated, EIGHT - 1, axis=1)[:, :EIGHT]
        smallest.sort(axis=1)
        dtypes.store(dst, shaped(np.negative(smallest), dst), self.dst.dtype)


class NcFindIndex8(SearchInstruction):
    """dst[P, 8] = where in data each of the 8 vals first occurs; a value given again takes its next place."""

    public = "nc_find_index8"

    dst: Out
    data: In
    vals: In

    def check(self, machine: Machine) -> None:
        _searchable(self, "data")
        rules.elements(self, "vals", EIGHT)
        rules.elements(self, "dst", EIGHT)
        rules.castable(self, "data", "vals")
        rules.dtype_in(self, "dst", INDEX_TYPES, "allocate it as nl.uint32")
        rules.same_partitions(self, "data", "dst")
        if self.vals.shape[0] < self.data.shape[0]:
            rules.same_partitions(self, "data", "vals")
        if self.vals.shape[0] > self.data.shape[0]:
            warn(
                "extra-partitions",
                f"nc_find_index8: vals has {self.vals.shape[0]} partitions, data has {self.data.shape[0]}; "
                "the others are ignored",
                notes=[f"vals: {self.vals.describe()}", f"data: {self.data.describe()}"],
                help="slice vals to the partitions of data",
            )

    def compute(self, dst: np.ndarray, data: np.ndarray, vals: np.ndarray) -> None:
        wanted = flat(f32(vals, self.vals.dtype))[: data.shape[0]]
        positions, _ = find_positions(flat(f32(data, self.data.dtype)), wanted, range(EIGHT))
        dst[...] = shaped(positions, dst).astype(dst.dtype)


def find_positions(data: np.ndarray, vals: np.ndarray, order: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Where each column of `vals` occurs first in `data`, and a mask of those places.

    The columns take turns in `order`; a place serves one of them. A value that is not there gets -1,
    which is all ones in any unsigned dtype.
    """
    positions = np.empty_like(vals, np.int64)
    taken = np.zeros_like(data, np.bool_)
    for j in order:
        match = data == vals[:, j, None]
        match &= ~taken
        first, found = match.argmax(axis=1), match.any(axis=1)
        positions[:, j] = np.where(found, first, np.int64(-1))
        place = first[:, None]
        np.put_along_axis(taken, place, np.take_along_axis(taken, place, axis=1) | found[:, None], axis=1)
    return positions, taken


class NcMatchReplace8(SearchInstruction):
    """dst = data with imm in the place of the 8 vals; dst_idx[P, 8] = where they were.

    The columns of vals take turns from 7 down to 0, so of equal ones the last gets the first place.
    """

    public = "nc_match_replace8"

    dst: Out
    data: In
    vals: In
    imm: Number
    dst_idx: OptionalOut = None

    def check(self, machine: Machine) -> None:
        rules.matching(self, "data", "dst")
        rules.same_partitions(self, "data", "vals", "dst_idx")
        _searchable(self, "data", least=1)
        rules.elements(self, "vals", EIGHT)
        rules.elements(self, "dst_idx", EIGHT)
        rules.castable(self, "dst", "data", "vals")
        rules.dtype_in(self, "dst_idx", INDEX_TYPES, "allocate it as nl.uint32")
        if not rules.is_number(self.imm):
            raise rules.fail(self, "argument", f"imm must be a number, got {self.imm!r}")
        if self.dst_idx is not None and not isinstance(self.dst_idx, View):
            raise rules.not_a_tensor(self, "dst_idx", self.dst_idx)

    def compute(
        self, dst: np.ndarray, data: np.ndarray, vals: np.ndarray, dst_idx: np.ndarray | None
    ) -> None:
        original, wanted = flat(f32(data, self.data.dtype)), flat(f32(vals, self.vals.dtype))
        positions, matched = find_positions(original, wanted, reversed(range(EIGHT)))
        self._replace(dst, shaped(data, dst), shaped(matched, dst))
        if dst_idx is not None:
            dst_idx[...] = shaped(positions, dst_idx).astype(dst_idx.dtype)

    def _replace(self, dst: np.ndarray, data: np.ndarray, matched: np.ndarray) -> None:
        imm = np.array([self.imm], np.float32)
        if moves_bits(dst, self.dst.dtype, data, self.data.dtype):
            fill = np.empty(1, dst.dtype)
            dtypes.store(fill, imm, self.dst.dtype)
            bits(dst)[...] = np.where(matched, bits(fill), bits(data))
        else:
            dtypes.store(dst, np.where(matched, imm, f32(data, self.data.dtype)), self.dst.dtype)


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[Int] | np.ndarray, name: str | None = None
) -> NkiInstruction:
    """Partition i of a quadrant of dst = partition shuffle_mask[i] of that quadrant of src; 255 keeps it."""
    mask = tuple(shuffle_mask) if isinstance(shuffle_mask, (list, tuple, np.ndarray, range)) else shuffle_mask
    return issue(NcStreamShuffle(dst, src, mask, name))


class NcStreamShuffle(SearchInstruction):
    public = "nc_stream_shuffle"

    dst: Out
    src: In
    shuffle_mask: tuple

    def check(self, machine: Machine) -> None:
        self._check_mask(machine.quadrant_partitions)
        rules.same_dtype(self, "dst", "src")
        if self.dst.free_elements != self.src.free_elements:
            raise rules.fail(
                self,
                "shape",
                f"dst has {self.dst.free_elements} elements per partition, src has {self.src.free_elements}",
                ["dst", "src"],
                "slice both to the same free size",
            )
        self._check_sources()
        self._check_start(machine.quadrant_partitions)

    def _check_mask(self, quadrant: int) -> None:
        mask = self.shuffle_mask
        if not isinstance(mask, tuple) or not all(is_int(entry) for entry in mask):
            raise rules.fail(self, "argument", f"shuffle_mask must be a list of ints, got {mask!r}")
        if len(mask) != quadrant:
            raise rules.fail(
                self,
                "shape",
                f"shuffle_mask has {len(mask)} entries, a quadrant has {quadrant} partitions",
                [],
                f"give {quadrant} entries; {KEEP} leaves a partition as it is",
            )
        for i, entry in enumerate(mask):
            if entry != KEEP and not 0 <= entry < quadrant:
                raise rules.fail(
                    self,
                    "shuffle-source",
                    f"shuffle_mask[{i}] is {entry}, it must be 0 to {quadrant - 1}, or {KEEP}",
                )

    def _check_sources(self) -> None:
        to, source = self.moves()
        outside = np.flatnonzero(source >= self.src.shape[0])
        if len(outside):
            i, j = int(to[outside[0]]), int(source[outside[0]])
            raise rules.fail(
                self,
                "shuffle-source",
                f"partition {i} of dst comes from partition {j} of src, which has {self.src.shape[0]}",
                ["dst", "src"],
                f"quadrants do not mix; {KEEP} in the mask leaves a partition of dst as it is",
            )

    def _check_start(self, quadrant: int) -> None:
        """The larger operand decides how many quadrants are active, and so where both may start."""
        active = -(-max(self.dst.shape[0], self.src.shape[0]) // quadrant) * quadrant
        step = 128 if active > 64 else active
        for name in ("dst", "src"):
            view = getattr(self, name)
            if view.start_partition % step:
                allowed = ", ".join(str(start) for start in range(0, 128, step))
                warn(
                    "start-partition",
                    f"nc_stream_shuffle: {name} starts at partition {view.start_partition}; "
                    f"with {active} active partitions it may start at {allowed}",
                    notes=[f"{name}: {view.describe()}"],
                    help="move the data to a partition range the engines can address",
                )

    def moves(self) -> tuple[np.ndarray, np.ndarray]:
        """The partitions of dst that are written, and where in src each comes from."""
        return _moves(self.shuffle_mask, self.dst.shape[0])

    def parts(self, index: int) -> list[View]:
        view = self.operands()[index]
        runs = _touched(self.shuffle_mask, self.dst.shape[0], index)
        return [view] if runs == ((0, view.shape[0]),) else [view[first:stop] for first, stop in runs]

    def compute(self, dst: np.ndarray, src: np.ndarray) -> None:
        to, source = self.moves()
        values = src[source].reshape(len(to), *dst.shape[1:])  # a copy: dst may be src
        if moves_bits(dst, self.dst.dtype, src, self.src.dtype):
            bits(dst)[to] = bits(values)
        else:
            dst[to] = values.astype(dst.dtype)


@lru_cache(maxsize=1024)
def _moves(shuffle_mask: tuple[int, ...], partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """See `NcStreamShuffle.moves`; a kernel has few masks and many shuffles."""
    mask = np.array(shuffle_mask)
    to = np.arange(partitions)
    source = mask[to % len(mask)]
    moved = source != KEEP
    return to[moved], (to // len(mask) * len(mask) + source)[moved]


@lru_cache(maxsize=1024)
def _touched(shuffle_mask: tuple[int, ...], partitions: int, operand: int) -> tuple[tuple[int, int], ...]:
    """The partitions of dst, or those of src, as [first, stop) ranges."""
    numbers = np.unique(_moves(shuffle_mask, partitions)[operand])
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks) if len(run))


max8 = public(Max8)
nc_find_index8 = public(NcFindIndex8)
nc_match_replace8 = public(NcMatchReplace8)
