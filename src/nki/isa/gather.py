"""Gathers on GpSimdE (spec/isa_gpsimd.md)."""

from __future__ import annotations

import numpy as np

from ..ir.context import warn
from ..ir.instruction import In, InstructionCost, Out
from ..ir.layout import Int, is_int
from ..machine.machine import Machine
from . import rules
from .gpsimd import GROUP, GpsimdInstruction, snake, whole_groups
from .numerics import all_hold, flat
from .public import public

# ---- gathers -------------------------------------------------------------------------------------


class LocalGather(GpsimdInstruction):
    """Gather runs of elements by offsets that the 16 partitions of a processor share.

    Offsets are read down the 16 partitions of a group, column by column.
    """

    public = "local_gather"
    cost_formula = "150 + n e ((28 + 4e) / 4e) / min(4 / itemsize, e)"

    dst: Out
    src_buffer: In
    index: In
    num_elem_per_idx: Int = 1
    num_valid_indices: Int | None = None

    def check(self, machine: Machine) -> None:
        self.check_tiles()
        rules.same_dtype(self, "dst", "src_buffer")
        rules.castable(self, "src_buffer")
        rules.dtype_in(self, "index", ("uint16",), "convert it with nisa.tensor_copy into a uint16 tile")
        rules.same_partitions(self, "src_buffer", "index", "dst")
        whole_groups(self, "src_buffer")
        run = self.num_elem_per_idx
        if run not in (1, 2, 4, 8, 16, 32):
            raise rules.fail(self, "shape", f"num_elem_per_idx must be 1, 2, 4, 8, 16 or 32, got {run!r}")
        self._check_count()
        if self.dst.free_elements != self.indices * run:
            raise rules.fail(
                self,
                "shape",
                f"dst has {self.dst.free_elements} elements per partition, "
                f"{self.indices} indices x {run} elements make {self.indices * run}",
                ["dst", "index"],
            )

    def _check_count(self) -> None:
        held = GROUP * self.index.free_elements
        if self.num_valid_indices is not None and not is_int(self.num_valid_indices):
            raise rules.fail(
                self, "argument", f"num_valid_indices must be an int, got {self.num_valid_indices!r}"
            )
        if not 1 <= self.indices <= held:
            raise rules.fail(
                self, "shape", f"num_valid_indices is {self.indices}, index holds {held} per group", ["index"]
            )
        rules.at_most(self, "index", self.indices, 4096, "indices per group of 16 partitions")

    @property
    def indices(self) -> int:
        """How many offsets each group uses."""
        given = self.num_valid_indices
        return GROUP * self.index.free_elements if given is None else int(given)

    def compute(self, dst: np.ndarray, src: np.ndarray, index: np.ndarray) -> None:
        run = self.num_elem_per_idx
        starts = snake(index)[:, : self.indices].astype(np.int64)
        src = flat(src)
        outside = starts + run > src.shape[1]
        if not all_hold(~outside):
            raise rules.fail(
                self,
                "index",
                f"offset {int(starts[outside][0])} and {run} elements reach outside "
                f"the {src.shape[1]} elements of a partition",
                ["src_buffer", "index"],
            )
        offsets = (starts[:, :, None] + np.arange(run)).reshape(len(starts), 1, -1)
        groups = src.reshape(len(starts), GROUP, -1)
        dst[...] = np.take_along_axis(groups, offsets, axis=2).reshape(dst.shape)

    def cost(self, m: Machine) -> InstructionCost:
        e, t = int(self.num_elem_per_idx), m.local_gather_threads
        slowdown = (m.local_gather_latency + t * e) / (t * e) / min(4 / self.src_buffer.dtype.itemsize, e)
        cycles = m.gpsimd_overhead_cycles + self.indices * e * slowdown
        return InstructionCost(cycles, m.fix_gpsimd_ns, ("local_gather_latency", "local_gather_threads"))


class NcNGather(GpsimdInstruction):
    """dst[p, k] = data[p, indices[p, k]], free dimensions flattened."""

    public = "nc_n_gather"
    cost_formula = "150 + 4 N (assumed)"

    dst: Out
    data: In
    indices: In

    def check(self, machine: Machine) -> None:
        self.check_tiles()
        rules.same_dtype(self, "dst", "data")
        rules.castable(self, "data")
        rules.dtype_in(
            self, "indices", ("uint32", "int32"), "convert it with nisa.tensor_copy into a uint32 tile"
        )
        rules.matching(self, "dst", "indices")
        rules.same_partitions(self, "dst", "data")
        if self.indices.dtype == "int32":
            warn(
                "operand-dtype",
                "nc_n_gather: indices is int32, the engine reads uint32",
                notes=[f"indices: {self.indices.describe()}"],
                help="allocate it as nl.uint32, or pass indices.view(nl.uint32)",
            )

    def compute(self, dst: np.ndarray, data: np.ndarray, indices: np.ndarray) -> None:
        data, offsets = flat(data), flat(indices).astype(np.int64)
        outside = (offsets < 0) | (offsets >= data.shape[1])
        if not all_hold(~outside):
            partition, position = np.argwhere(outside)[0]
            raise rules.fail(
                self,
                "index",
                f"index {offsets[partition, position]} at [{partition}, {position}] is outside "
                f"the {data.shape[1]} elements of a partition",
                ["data", "indices"],
            )
        dst[...] = np.take_along_axis(data, offsets, axis=1).reshape(dst.shape)

    def cost(self, m: Machine) -> InstructionCost:
        return self.cost_of(m, "gpsimd_gather", self.dst.free_elements, ("gpsimd_gather",))


local_gather = public(LocalGather)
nc_n_gather = public(NcNGather)
