"""DMA: moving data between HBM and SBUF (isa_dma.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import warn
from ..errors import error
from ..execute.indirect import Rows, scalar_shift
from ..execute.memories import memory_of
from ..hardware import dtypes, operators
from ..hardware.dtypes import DType, f32
from ..hardware.machine import Machine
from ..hardware.memories import PSUM, SBUF
from ..hardware.operators import Operator
from ..program.instruction import Cost, In, Instruction, OptionalIn, Out
from ..run.core import issue
from ..tensors import View, is_int
from . import enums, rules
from .descriptors import Descriptors, contiguous_run, kind, pieces
from .enums import SCALAR, SYNC, UNKNOWN, dge_mode, engine, member, oob_mode
from .legacy import old_order
from .numerics import moves_bits, shaped

SKIP = oob_mode.skip
DGE = {dge_mode.swdge: "software", dge_mode.hwdge: "hardware", dge_mode.none: "static"}


class DmaInstruction(Instruction):
    """What all transfers share: HBM or SBUF on each side, never PSUM."""

    on_chip = False
    opens = True
    dge_mode = dge_mode.unknown  # of transfers that leave no choice
    cost_source = "machine.md 9"

    def check_transfer(self, machine: Machine) -> None:
        for name, value in zip(self.operand_names, self.operands(), strict=True):
            if isinstance(value, View) and value.buffer is PSUM:
                raise rules.fail(
                    self,
                    "buffer",
                    f"{name} is in PSUM, which DMA cannot reach",
                    [name],
                    "copy it to an SBUF tile first (nisa.tensor_copy)",
                )
            if isinstance(value, View) and value.on_chip and value.shape[0] > machine.partitions:
                raise rules.fail(
                    self,
                    "partition-limit",
                    f"{name} has {value.shape[0]} partitions, SBUF has {machine.partitions}",
                    [name],
                )

    def check_priority(self: Any, machine: Machine) -> None:
        if self.priority is None:
            return
        if not is_int(self.priority) or not 0 <= self.priority <= 3:
            raise rules.fail(self, "priority", f"priority must be None or 0 to 3, got {self.priority!r}")
        if machine.dma_priorities == 1:
            warn("priority", f"{self.public}: {machine.name} has no DMA priorities; it is ignored")

    def check_count(self: Any, name: str) -> None:
        """The operand has as many elements as dst."""
        view = getattr(self, name)
        if self.dst.size != view.size:
            raise rules.fail(
                self,
                "shape",
                f"dst has {self.dst.size} elements, {name} has {view.size}",
                ["dst", name],
                "slice both sides to the same shape",
            )

    def check_indices(self, name: str) -> None:
        """A vector of indices holds one for each row: [n, 1]."""
        view = getattr(self, name)
        if kind(view) != "vector":
            return
        index = view.indirection.index
        if index.shape[0] != view.shape[0] or index.free_elements != 1:
            raise rules.fail(
                self,
                "shape",
                f"{name} has {view.shape[0]} rows, its indices have shape {tuple(index.shape)}",
                [name],
                f"pass one index per partition, a tile of shape ({view.shape[0]}, 1)",
            )

    # ---- what a timing model asks ----------------------------------------------------------------

    def engine_name(self) -> str:
        return "dma"

    def uses_default_dge(self) -> bool:
        return self.dge_mode is dge_mode.unknown

    def transfers(self: Any) -> list[tuple[View, View]]:
        """(destination, source) of every stream of elements."""
        return [(self.dst, self.src)]

    def descriptors(self, machine: Machine) -> list[Descriptors]:
        """The contiguous pieces it is cut into (machine.md 9.1)."""
        return [piece for dst, src in self.transfers() for piece in pieces(dst, src)]

    def rate_fraction(self, machine: Machine) -> float:
        """Of the throughput of a plain copy (machine.md 9.5)."""
        return 1.0

    def generated_by(self: Any, machine: Machine) -> str:
        """Who makes the descriptors: "software", "hardware" or "static" (machine.md 9.3)."""
        if "vector" in (kind(self.dst), kind(self.src)):
            return "software"
        return DGE.get(self.dge_mode, machine.dma_default_mode)

    def cost(self, machine: Machine) -> Cost:
        """Time on a queue is the timing model's business (machine.md 9); no engine is held here."""
        return Cost(0, 0.0)


# ---- moving elements -----------------------------------------------------------------------------


def deliver(ins: Instruction, dst: View, values: np.ndarray, source: DType, where: Any = None) -> None:
    """Write values of dtype `source` through a view, all of them or those under the mask `where`."""
    memory = memory_of(dst)
    if kind(dst) == "vector":
        rows = Rows(dst, ins)
        if rows.has_duplicates():
            warn("scatter-dup", f"{ins.public}: equal indices in a scatter; the last one wins here")
        rows.store(dtypes.convert(values, source, dst.dtype))
        return
    shift = scalar_shift(dst, ins) if dst.indirection is not None else 0
    if shift is None:  # skipped: the run-time index was out of bounds
        return
    if where is None:
        transfer(memory.write(dst, shift), values, source, dst.dtype)
    else:
        where = where.reshape(dst.shape)
        picked = values.reshape(dst.shape)[where]
        memory.write(dst, shift, where=where)[where] = dtypes.convert(picked, source, dst.dtype)


def transfer(dst: np.ndarray, src: np.ndarray, source: DType, target: DType) -> None:
    """Equal dtypes move bytes; others go through float32. numpy copies where the two overlap."""
    src = shaped(src, dst)
    if not moves_bits(dst, target, src, source):
        dtypes.store(dst, f32(src, source), target)
    elif dst.dtype.kind == "V":
        dtypes.bits(dst)[...] = dtypes.bits(src)
    else:  # numpy copies its own types fast
        dst[...] = src


def fetch(src: Any) -> tuple[np.ndarray, Any]:
    """The elements of a source, and a mask of those in bounds if some are not."""
    if not isinstance(src, Rows):
        return src, None
    valid = src.valid.reshape(-1, *(1,) * (len(src.shape) - 1))
    return src.load(), None if src.complete else np.broadcast_to(valid, src.shape)


# ---- dma_copy ------------------------------------------------------------------------------------


def dma_copy(
    dst,
    src,
    priority=None,
    oob_mode=oob_mode.error,
    dge_mode=dge_mode.unknown,
    engine=engine.unknown,
    name=None,
):
    """dst = src between HBM and SBUF, in any combination; casts when the dtypes differ."""
    if oob_mode.__class__ is not enums.oob_mode:
        oob_mode = member(oob_mode, enums.oob_mode, "dma_copy", "oob_mode")
    if dge_mode.__class__ is not enums.dge_mode:
        dge_mode = member(dge_mode, enums.dge_mode, "dma_copy", "dge_mode")
    if engine.__class__ is not enums.engine:
        engine = member(engine, enums.engine, "dma_copy", "engine")
    return issue(DmaCopy(dst, src, priority, oob_mode, dge_mode, engine, name))


class DmaCopy(DmaInstruction):
    public = "dma_copy"
    cost_formula = "descriptors x (9 ns + bytes / rate) per engine, + issue and latency"

    dst: Out
    src: In
    priority: Any
    oob_mode: oob_mode
    dge_mode: dge_mode
    engine: engine

    def check(self, machine: Machine) -> None:
        self.check_transfer(machine)
        self.check_priority(machine)
        self.check_count("src")
        if _without_ones(self.dst) != _without_ones(self.src):
            warn(
                "dma-shape",
                "dma_copy: the shapes differ; elements are paired in row-major order",
                notes=[f"dst: {self.dst.describe()}", f"src: {self.src.describe()}"],
                help="the real compiler rejects some of these; reshape one side",
            )
        if self.dst.dtype != self.src.dtype:
            rules.castable(self, "dst", "src")
        self._check_mode(machine)
        self._check_engine()
        if self.oob_mode is SKIP and not (self.dst.is_indirect() or self.src.is_indirect()):
            warn("oob-skip", "dma_copy: oob_mode.skip has no effect without a run-time index")

    def _check_mode(self, machine: Machine) -> None:
        kinds = (kind(self.dst), kind(self.src))
        self.check_indices("dst")
        self.check_indices("src")
        if kinds == ("vector", "vector"):
            raise rules.fail(
                self,
                "indirect-twice",
                "dst and src both have a vector of indices",
                ["dst", "src"],
                "use two copies",
            )
        if "vector" in kinds:
            check_mode(self, "a vector of indices", dge_mode.swdge)
        if self.dge_mode is dge_mode.hwdge:
            rules.generation(self, 3, machine, "dge_mode.hwdge")
            if self.dst.dtype != self.src.dtype:
                raise rules.fail(
                    self,
                    "dtype",
                    f"dge_mode.hwdge moves bytes as they are: dst is {self.dst.dtype}, src {self.src.dtype}",
                    ["dst", "src"],
                    "leave dge_mode out, or copy to a tile of that dtype and convert with nisa.tensor_copy",
                )
        if self.dge_mode is dge_mode.none and "scalar" in kinds:
            warn("static-dma-offset", "dma_copy: a run-time offset with dge_mode.none")

    def _check_engine(self) -> None:
        if self.engine is UNKNOWN:
            return
        if self.engine not in (SYNC, SCALAR):
            raise rules.fail(
                self,
                "engine",
                f"engine={self.engine!r} cannot start a DMA",
                [],
                "use nisa.engine.sync or scalar",
            )
        if self.dge_mode is dge_mode.hwdge:
            return
        if self.engine is SYNC:
            raise rules.fail(
                self,
                "engine",
                "engine= is for hardware DGE only",
                [],
                "pass dge_mode=nisa.dge_mode.hwdge, or leave engine out",
            )
        warn("dma-engine", "dma_copy: engine=nisa.engine.scalar has no effect without dge_mode.hwdge")

    def compute(self, dst: View, src: Any) -> None:
        if self.access.fixed:
            transfer(memory_of(dst).write(dst), src, self.src.dtype, dst.dtype)
        elif src is not None:  # else skipped: the run-time index was out of bounds
            values, where = fetch(src)
            deliver(self, dst, values, self.src.dtype, where)


def check_mode(ins: Any, what: str, *allowed: dge_mode) -> None:
    """The descriptor generation asked for can do this; `unknown` always can."""
    if ins.dge_mode not in (dge_mode.unknown, *allowed):
        names = " or ".join(f"nisa.dge_mode.{mode.name}" for mode in allowed)
        raise rules.fail(
            ins,
            "dge-mode",
            f"{what} cannot use {ins.dge_mode!r}",
            [],
            f"leave dge_mode out, or pass {names}",
        )


def _without_ones(view: View) -> tuple[int, ...]:
    return tuple(s for s in view.shape if s != 1)


# ---- dma_transpose -------------------------------------------------------------------------------

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def dma_transpose(
    dst,
    src,
    axes=None,
    priority=None,
    dge_mode=dge_mode.unknown,
    oob_mode=oob_mode.error,
    name=None,
):
    """dst = src with its first and last dimensions exchanged."""
    dge_mode = member(dge_mode, enums.dge_mode, "dma_transpose", "dge_mode")
    oob_mode = member(oob_mode, enums.oob_mode, "dma_transpose", "oob_mode")
    axes = tuple(axes) if isinstance(axes, (list, tuple)) else axes
    return issue(DmaTranspose(dst, src, axes, priority, dge_mode, oob_mode, name))


class DmaTranspose(DmaInstruction):
    """Bits move. With a vector of indices, the rows of src are gathered first."""

    public = "dma_transpose"
    cost_formula = (
        "as a copy at 90 % (from HBM) or 50 % (from SBUF) of its rate; trn1: one descriptor per element"
    )

    dst: Out
    src: In
    axes: Any
    priority: Any
    dge_mode: dge_mode
    oob_mode: oob_mode

    def check(self, machine: Machine) -> None:
        self.check_transfer(machine)
        self.check_priority(machine)
        self._check_shape(machine)
        rules.same_dtype(self, "dst", "src")
        if self.src.dtype.itemsize == 1:
            raise rules.fail(
                self,
                "dtype",
                f"src is {self.src.dtype}, a transpose moves elements of 2 or 4 bytes",
                ["src"],
                "view pairs of bytes as a 2-byte dtype, or cast first",
            )
        if kind(self.dst) == "vector":
            raise rules.fail(self, "indirect-view", "dst cannot have a vector of indices", ["dst"])
        if self.oob_mode is SKIP and not self.src.is_indirect():
            raise rules.fail(self, "oob-skip", "oob_mode.skip needs a src with a run-time index", ["src"])
        if not self.dst.on_chip:
            warn(
                "transpose-hbm",
                "dma_transpose: dst is in HBM, it is documented for SBUF",
                notes=[f"dst: {self.dst.describe()}"],
            )
        if kind(self.src) == "vector":
            self._check_gather(machine)
        else:
            check_mode(self, "a transpose without indices", dge_mode.hwdge, dge_mode.none)
        if self.dge_mode is dge_mode.hwdge:
            self._check_hwdge(machine)

    def _check_shape(self, machine: Machine) -> None:
        src = self.src
        if src.ndim not in AXES:
            raise rules.fail(self, "rank", f"src must have 2, 3 or 4 dimensions, it has {src.ndim}", ["src"])
        if self.order != AXES[src.ndim]:
            raise rules.fail(
                self,
                "axis",
                f"axes={self.axes!r} is not possible for {src.ndim} dimensions",
                ["src"],
                f"only {AXES[src.ndim]}: leave axes out",
            )
        indexed = kind(src) == "vector"
        if (self.dst.on_chip or indexed) and src.shape[-1] > machine.partitions:
            raise rules.fail(
                self,
                "partition-limit",
                f"src ends in {src.shape[-1]} elements, which become at most {machine.partitions} partitions",
                ["src"],
            )
        wanted = tuple(src.shape[a] for a in self.order)
        if tuple(self.dst.shape) != wanted:
            raise rules.fail(
                self,
                "shape",
                f"dst has shape {tuple(self.dst.shape)}, the transpose has {wanted}",
                ["dst", "src"],
                "the rank must be equal too: reshape or .ap() one side",
            )

    def _check_hwdge(self, machine: Machine) -> None:
        rules.generation(self, 3, machine, "dge_mode.hwdge")
        shape, dtype = self.src.shape, self.src.dtype
        if dtype.itemsize != 2:
            raise rules.fail(self, "dtype", f"hardware DGE transposes 2-byte dtypes, src is {dtype}", ["src"])
        rows, columns = machine.hwdge_transpose_rows, machine.hwdge_transpose_columns
        if shape[-1] > columns:
            raise rules.fail(
                self, "shape", f"hardware DGE takes up to {columns} columns, src has {shape[-1]}", ["src"]
            )
        if len(shape) == 2 and shape[0] != rows:
            raise rules.fail(
                self, "shape", f"hardware DGE transposes {rows} rows at a time, src has {shape[0]}", ["src"]
            )
        if len(shape) > 2 and (rows % shape[0] or shape[0] * shape[-2] % rows):
            raise rules.fail(
                self,
                "shape",
                f"hardware DGE takes 1, 2, 4, 8 or {rows} in the first dimension of src, and multiples of "
                f"{rows} in first x last but one; src has {shape[0]} and {shape[0] * shape[-2]}",
                ["src"],
            )

    def _check_gather(self, machine: Machine) -> None:
        rules.generation(self, 3, machine, "a vector of indices")
        check_mode(self, "a vector of indices", dge_mode.swdge)
        src = self.src
        index: View = src.indirection.index  # type: ignore[union-attr]
        if src.dtype.itemsize != 2:
            raise rules.fail(
                self, "dtype", f"gathered rows must be of a 2-byte dtype, src is {src.dtype}", ["src"]
            )
        if index.dtype != "uint32":
            raise rules.fail(self, "dtype", f"the indices must be uint32, they are {index.dtype}", ["src"])
        for wrong, what in self._gather_faults(index):
            if wrong:
                notes = ", ".join(map(str, index.shape))
                raise rules.fail(self, "shape", f"{what}; the indices have shape ({notes})", ["src"])

    def _gather_faults(self, index: View) -> list[tuple[bool, str]]:
        shape, rows = self.src.shape, self.src.shape[0]
        partitions = index.shape[0]
        return [
            (index.ndim != 2, "the indices must have two dimensions"),
            (rows % 16 != 0, f"src has {rows} rows, a multiple of 16 is needed"),
            (index.size < rows, f"src has {rows} rows, there are {index.size} indices"),
            (
                not 16 <= partitions <= 128 or partitions % 16 != 0,
                "16, 32, ... 128 partitions of indices are needed",
            ),
            (index.shape[-1] > 1 and partitions != 128, "several columns of indices need 128 partitions"),
            (len(shape) == 4 and 1 not in shape[1:3], f"src is {tuple(shape)}: dimension 1 or 2 must be 1"),
        ]

    @property
    def order(self) -> Any:
        return AXES.get(self.src.ndim) if self.axes is None else self.axes

    def compute(self, dst: View, src: Any) -> None:
        if src is None:  # skipped: the run-time index was out of bounds
            return
        values, where = fetch(src)
        where = None if where is None else where.transpose(self.order)
        deliver(self, dst, values.transpose(self.order), self.src.dtype, where)

    def descriptors(self, machine: Machine) -> list[Descriptors]:
        dst = self.dst
        rows = dst.shape[0]
        row = dst.size // rows
        run = min(contiguous_run(dst), row) if machine.dma_transpose_hbm_fraction else 1
        first = dst.start_partition if dst.on_chip else 0
        return [Descriptors(first, rows, run * dst.dtype.itemsize, row // run)]

    def rate_fraction(self, machine: Machine) -> float:
        inside = self.dst.on_chip and self.src.on_chip
        fraction = machine.dma_transpose_sbuf_fraction if inside else machine.dma_transpose_hbm_fraction
        return fraction or 1.0  # element by element on trn1: the descriptors say it all


# ---- dma_compute ---------------------------------------------------------------------------------

MAX_SOURCES = 16


def _is_old_dma_compute(args: tuple) -> bool:
    """NKI 0.2 had scales before reduce_op."""
    return len(args) > 2 and isinstance(args[2], (list, tuple)) and all(map(rules.is_number, args[2]))


@old_order(("dst", "srcs", "scales", "reduce_op"), _is_old_dma_compute)
def dma_compute(
    dst,
    srcs,
    reduce_op,
    scales=None,
    unique_indices=True,
    oob_mode=oob_mode.error,
    name=None,
):
    """dst = the sum of up to 16 sources, in float32; with a vector of indices, add to or from HBM rows."""
    oob_mode = member(oob_mode, enums.oob_mode, "dma_compute", "oob_mode")
    reduce_op = operators.resolve(reduce_op, "dma_compute", "reduce_op")
    scales = tuple(scales) if isinstance(scales, list) else scales
    sources = _sources(srcs)
    own = next((i for i, source in enumerate(sources) if same_place(source, dst)), None)
    missing = (None,) * (MAX_SOURCES - len(sources))
    return issue(DmaCompute(dst, *sources, *missing, reduce_op, scales, unique_indices, own, oob_mode, name))


def _sources(srcs: Any) -> tuple[View, ...]:
    if not isinstance(srcs, (list, tuple)) or not all(isinstance(source, View) for source in srcs):
        raise error("argument", f"dma_compute: srcs must be a list of tensors, got {srcs!r}")
    if not 1 <= len(srcs) <= MAX_SOURCES:
        raise error("shape", f"dma_compute: takes 1 to {MAX_SOURCES} sources, got {len(srcs)}")
    return tuple(srcs)


def same_place(a: Any, b: Any) -> bool:
    """True when two views address the same elements in the same order, run-time index included."""
    if a is b or not (isinstance(a, View) and isinstance(b, View)):
        return a is b
    if a.storage is not b.storage or a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.offset != b.offset or a.strides != b.strides or kind(a) != kind(b):
        return False
    if a.indirection is None or b.indirection is None:
        return True
    return a.indirection.scale == b.indirection.scale and same_place(a.indirection.index, b.indirection.index)


class DmaCompute(DmaInstruction):
    """`own_source` tells which source is dst itself: the form of a read-modify-write."""

    public = "dma_compute"
    cost_formula = "as a copy of every source, at 50 % of its rate before trn3"

    dst: Out
    src0: In
    src1: OptionalIn
    src2: OptionalIn
    src3: OptionalIn
    src4: OptionalIn
    src5: OptionalIn
    src6: OptionalIn
    src7: OptionalIn
    src8: OptionalIn
    src9: OptionalIn
    src10: OptionalIn
    src11: OptionalIn
    src12: OptionalIn
    src13: OptionalIn
    src14: OptionalIn
    src15: OptionalIn
    reduce_op: Operator
    scales: Any
    unique_indices: Any
    own_source: Any
    oob_mode: oob_mode

    @property
    def sources(self) -> list[View]:
        return [view for view in self.operands()[1:] if view is not None]

    def check(self, machine: Machine) -> None:
        self.check_transfer(machine)
        rules.operator(self, "reduce_op", ("add",))
        names = self.operand_names[1 : len(self.sources) + 1]
        for name in names:
            self.check_count(name)
            self.check_indices(name)
        self.check_indices("dst")
        self._check_scales()
        if len(names) > 1 or self.src0.dtype != self.dst.dtype:
            rules.castable(self, "dst", *names)
        if any(view.is_indirect() for view in (self.dst, *self.sources)):
            self._check_indirect()
            return
        if self.oob_mode is SKIP:
            raise rules.fail(self, "oob-skip", "oob_mode.skip needs an operand with a vector of indices")
        if len(names) == 1:
            warn(
                "dma-compute-single",
                "dma_compute: one source is copied, it is not added to dst",
                help="list dst among srcs to accumulate",
            )

    def _check_scales(self) -> None:
        scales = self.scales
        if scales is None:
            return
        if not isinstance(scales, tuple) or not all(map(rules.is_number, scales)):
            raise rules.fail(self, "argument", f"scales must be None or a list of numbers, got {scales!r}")
        if len(scales) != len(self.sources):
            raise rules.fail(self, "shape", f"{len(scales)} scales for {len(self.sources)} sources")
        if any(scale != 1 for scale in scales):
            raise rules.fail(
                self,
                "op",
                f"scales must all be 1.0, got {scales}",
                [],
                "scale a tile first with nisa.tensor_scalar",
            )

    def _check_indirect(self) -> None:
        """Scatter add and gather add: dst is one of two sources, and one side is HBM with indices."""
        views = {"dst": self.dst, "src0": self.src0, "src1": self.src1}
        if len(self.sources) != 2:
            raise rules.fail(self, "shape", f"a vector of indices needs two sources, got {len(self.sources)}")
        for name, view in views.items():
            if kind(view) not in (None, "vector"):
                raise rules.fail(
                    self, "indirect-view", f"{name} has a run-time offset, addresses are static", [name]
                )
        if self.unique_indices is not True:
            raise rules.fail(self, "op", f"unique_indices must be True, got {self.unique_indices!r}")
        if self.own_source is None:
            raise rules.fail(
                self,
                "indirect-view",
                "with a vector of indices, one of srcs must be dst itself",
                list(views),
                "scatter: srcs=[dst, tile]; gather: srcs=[rows, dst], each with the same view as dst",
            )
        if self.dst.is_indirect():
            rules.buffers(self, f"src{1 - self.own_source}", (SBUF,), "load it into an SBUF tile first")
        else:
            rules.buffers(self, "dst", (SBUF,), "gather into an SBUF tile")

    def compute(self, dst: View, *arrays: Any) -> None:
        loaded = [fetch(array) for array in arrays[: len(self.sources)]]
        where = next((mask for _, mask in loaded if mask is not None), None)
        first = self.src0.dtype
        if len(loaded) == 1:
            deliver(self, dst, loaded[0][0], first, where)
            return
        total = f32(loaded[0][0], first).reshape(dst.shape).copy()
        for (values, _), view in zip(loaded[1:], self.sources[1:], strict=True):
            total += f32(values, view.dtype).reshape(dst.shape)
        deliver(self, dst, total, dtypes.float32, where)

    def transfers(self) -> list[tuple[View, View]]:
        return [(self.dst, source) for source in self.sources]

    def rate_fraction(self, machine: Machine) -> float:
        return machine.dma_compute_fraction

    def generated_by(self, machine: Machine) -> str:
        indexed = any(kind(view) == "vector" for view in (self.dst, *self.sources))
        return "software" if indexed else "static"


__all__ = ["dma_compute", "dma_copy", "dma_transpose"]
