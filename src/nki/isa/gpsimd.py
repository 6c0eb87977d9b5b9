"""GpSimdE: reductions and searches across partitions (spec/isa_gpsimd.md)."""

from __future__ import annotations

import numpy as np

from ..ir.instruction import In, Instruction, InstructionCost, Out
from ..ir.layout import Int, is_int
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.operators import Operator
from . import rules
from .enums import GPSIMD
from .numerics import flat
from .public import public

GROUP = 16  # partitions of one GpSimd processor


class GpsimdInstruction(Instruction):
    """What they share: SBUF alone, and a cost of 150 cycles plus so many per element."""

    engines = (GPSIMD,)
    cost_source = "spec/machine.md 8"

    def check_tiles(self) -> None:
        """Every tile is in SBUF, which is all that GpSimd reaches."""
        rules.in_sbuf(self, *self.operand_names)

    @staticmethod
    def cost_of(m: Machine, field: str, elements: int, rests_on: tuple[str, ...] = ()) -> InstructionCost:
        return InstructionCost(
            m.gpsimd_overhead_cycles + getattr(m, field) * elements, m.fix_gpsimd_ns, rests_on
        )


def snake(tile: np.ndarray) -> np.ndarray:
    """One row per group of 16 partitions: its elements down the partitions, column by column."""
    groups = flat(tile).reshape(tile.shape[0] // GROUP, GROUP, -1)
    return groups.transpose(0, 2, 1).reshape(len(groups), -1)


def whole_groups(ins: Instruction, name: str) -> None:
    wanted = f"a multiple of {GROUP} is needed"
    rules.partition_multiple(ins, name, GROUP, wanted, "each GpSimd processor owns 16 partitions")


class TensorPartitionReduce(GpsimdInstruction):
    """dst[0] = the rows of data reduced by op.

    float32 sums and maxima; bit patterns for bitwise operators.
    """

    public = "tensor_partition_reduce"
    cost_formula = "150 + 16 N (assumed)"

    dst: Out
    op: Operator
    data: In

    def check(self, machine: Machine) -> None:
        self.check_tiles()
        rules.operator(self, "op", ("add", "average", "maximum", "bitwise_or", "bitwise_and"))
        rules.castable(self, "dst", "data")
        if self.op.is_bitwise:
            rules.integers(self, "dst", "data")
        if self.dst.shape[0] != 1:
            raise rules.fail(
                self,
                "shape",
                f"dst must have 1 partition, it has {self.dst.shape[0]}",
                ["dst"],
                "slice dst[0:1]",
            )
        rules.elements(self, "dst", self.data.free_elements, ", like data")

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        if self.op.is_bitwise:
            dst[...] = self.op.formula.reduce(data, axis=0).reshape(dst.shape)  # type: ignore[union-attr]
            return
        values = f32(data, self.data.dtype)
        if self.op.name == "maximum":
            result = np.maximum.reduce(values, axis=0)
        else:
            result = np.add.reduce(values, axis=0)
        if self.op.name == "average":
            result = result / np.float32(len(values))
        dtypes.store(dst, result.reshape(dst.shape), self.dst.dtype)

    def cost(self, m: Machine) -> InstructionCost:
        n = self.data.free_elements
        return self.cost_of(m, "gpsimd_partition_reduce", n, ("gpsimd_partition_reduce",))


# ---- runs, nonzeros, largest ---------------------------------------------------------------------


class SequenceBounds(GpsimdInstruction):
    """dst[0, 0] and dst[0, 1]: where the run of equal ids around each element starts and ends.

    Ends are exclusive; padding (id 0) gets (n, -1).
    """

    public = "sequence_bounds"
    cost_formula = "150 + 4 N (assumed)"

    dst: Out
    segment_ids: In

    def check(self, machine: Machine) -> None:
        self.check_tiles()
        for name in ("dst", "segment_ids"):
            rules.dtype_in(self, name, ("float32", "int32"))
            partitions = getattr(self, name).shape[0]
            if partitions != 1:
                raise rules.fail(self, "shape", f"{name} must have 1 partition, it has {partitions}", [name])
        rules.elements(self, "dst", 2 * self.segment_ids.free_elements, ", a start and an end for each id")

    def compute(self, dst: np.ndarray, segment_ids: np.ndarray) -> None:
        ids = segment_ids.reshape(-1)
        n = len(ids)
        changes, positions = ids[1:] != ids[:-1], np.arange(1, n)
        bounds = np.zeros_like(ids, np.int64, shape=(2, n))
        bounds[0, 1:] = np.where(changes, positions, 0)
        bounds[1, :-1] = np.where(changes, positions, n)
        bounds[1, -1] = n
        bounds[0] = np.maximum.accumulate(bounds[0])
        bounds[1] = np.flip(np.minimum.accumulate(np.flip(bounds[1], 0)), 0)
        dst[...] = np.where(ids == 0, np.array([[n], [-1]]), bounds).reshape(dst.shape)

    def cost(self, m: Machine) -> InstructionCost:
        return self.cost_of(m, "gpsimd_gather", self.segment_ids.free_elements, ("gpsimd_gather",))


class NonzeroWithCount(GpsimdInstruction):
    """Positions of nonzero elements, padding, and their count, in partitions 0, 16, 32, ... only."""

    public = "nonzero_with_count"
    since = 3
    cost_formula = "150 + 4 N (assumed)"

    dst: Out
    src: In
    index_offset: Int = 0
    padding_val: Int = -1

    def check(self, machine: Machine) -> None:
        rules.start_partition(self, machine, "dst", "src")
        self.check_tiles()
        rules.dtype_in(self, "dst", ("int32",))
        rules.dtype_in(self, "src", ("float32", "int32"))
        rules.same_partitions(self, "src", "dst")
        rules.elements(self, "dst", self.src.free_elements + 1, ", those of src and one for the count")
        for name in ("index_offset", "padding_val"):
            value = getattr(self, name)
            if not is_int(value) or not -(2**31) <= value < 2**31:
                raise rules.fail(self, "argument", f"{name} must be a 32-bit int, got {value!r}")

    def parts(self, index: int) -> list[View]:
        view = self.operands()[index]
        return [view[p : p + 1] for p in range(0, view.shape[0], GROUP)]

    def compute(self, dst: np.ndarray, src: np.ndarray) -> None:
        nonzero = flat(src)[::GROUP] != 0
        count = np.count_nonzero(nonzero, axis=1, keepdims=True)
        found = np.argsort(~nonzero, axis=1, kind="stable")  # positions of nonzeros first, in order
        listed = np.where(np.arange(nonzero.shape[1]) < count, found + self.index_offset, self.padding_val)
        rows = np.concatenate([listed, count], axis=1).astype(np.int32)
        dst[::GROUP] = rows.reshape(-1, *dst.shape[1:])

    def cost(self, m: Machine) -> InstructionCost:
        return self.cost_of(m, "gpsimd_gather", self.src.free_elements, ("gpsimd_gather",))


class Topk(GpsimdInstruction):
    """The K largest of the n elements in each group of 16 partitions, ascending, and where they were.

    Element e of a group is in partition e % 16, column e // 16. All 16 partitions get the result.
    """

    public = "topk"
    cost_formula = "4 n + K"

    val_dst: Out
    idx_dst: Out
    src: In
    n: Int

    def check(self, machine: Machine) -> None:
        self.check_tiles()
        rules.dtype_in(self, "src", ("bfloat16",))
        rules.dtype_in(self, "val_dst", ("bfloat16",))
        rules.dtype_in(self, "idx_dst", ("uint32",))
        rules.matching(self, "val_dst", "idx_dst")
        rules.same_partitions(self, "src", "val_dst")
        whole_groups(self, "src")
        if not is_int(self.n):
            raise rules.fail(self, "argument", f"n must be an int, got {self.n!r}")
        if not 8 <= self.n < 65536:
            raise rules.fail(self, "shape", f"n must be from 8 to 65535, got {self.n}")
        if self.n > GROUP * self.src.free_elements:
            held = GROUP * self.src.free_elements
            raise rules.fail(
                self, "shape", f"n is {self.n}, a group of 16 partitions of src holds {held}", ["src"]
            )
        rules.at_most(self, "val_dst", self.val_dst.free_elements, 32767, "elements per partition")
        if self.val_dst.free_elements > self.n:
            raise rules.fail(
                self, "shape", f"{self.val_dst.free_elements} largest of {self.n} elements", ["val_dst"]
            )

    def compute(self, val_dst: np.ndarray, idx_dst: np.ndarray, src: np.ndarray) -> None:
        elements = snake(src)[:, : self.n]
        descending = np.argsort(-f32(elements, self.src.dtype), axis=1, kind="stable")  # NaN is last
        chosen = np.flip(descending[:, : flat(val_dst).shape[1]], axis=1)
        values = np.take_along_axis(elements, chosen, axis=1)
        val_dst[...] = np.repeat(values, GROUP, axis=0).reshape(val_dst.shape)
        idx_dst[...] = np.repeat(chosen, GROUP, axis=0).reshape(idx_dst.shape)

    def cost(self, m: Machine) -> InstructionCost:
        return InstructionCost(m.gpsimd_topk * self.n + self.val_dst.free_elements, m.fix_gpsimd_ns)


tensor_partition_reduce = public(TensorPartitionReduce)
sequence_bounds = public(SequenceBounds)
nonzero_with_count = public(NonzeroWithCount)
topk = public(Topk)
