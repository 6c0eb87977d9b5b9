"""Transfers that compute on their way (spec/isa_dma.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import error
from ..ir.context import warn
from ..ir.descriptors import kind
from ..ir.instruction import In, NkiInstruction, OptionalIn, Out
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..launch.core import issue
from ..machine import dtypes, operators
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.memories import SBUF
from ..machine.operators import Operator
from ..typing import Number, OperatorLike
from . import enums, rules
from .deprecated import deprecated_order
from .dma import SKIP, DmaInstruction, deliver, fetch
from .enums import member, oob_mode

MAX_SOURCES = 16


def _is_old_dma_compute(args: tuple) -> bool:
    """NKI 0.2 had scales before reduce_op."""
    return len(args) > 2 and isinstance(args[2], (list, tuple)) and all(map(rules.is_number, args[2]))


@deprecated_order(("dst", "srcs", "scales", "reduce_op"), _is_old_dma_compute)
def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: OperatorLike,
    scales: Sequence[Number] | None = None,
    unique_indices: bool = True,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = the sum of up to 16 sources, in float32; with a vector of indices, add to or from HBM rows."""
    oob_mode = member(oob_mode, enums.oob_mode, "dma_compute", "oob_mode")
    reduce_op = operators.resolve(reduce_op, "dma_compute", "reduce_op")
    scales = tuple(scales) if isinstance(scales, list) else scales
    sources = _sources(srcs)
    own = next((i for i, source in enumerate(sources) if same_place(source, dst)), None)
    missing = (None,) * (MAX_SOURCES - len(sources))
    return issue(DmaCompute(dst, *sources, *missing, reduce_op, scales, unique_indices, own, oob_mode, name))


def _sources(srcs: object) -> tuple[View, ...]:
    if not isinstance(srcs, (list, tuple)) or not all(isinstance(source, View) for source in srcs):
        raise error("argument", f"dma_compute: srcs must be a list of tensors, got {srcs!r}")
    if not 1 <= len(srcs) <= MAX_SOURCES:
        raise error("shape", f"dma_compute: takes 1 to {MAX_SOURCES} sources, got {len(srcs)}")
    return tuple(srcs)


def same_place(a: object, b: object) -> bool:
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
    """`own_source` is the number of the source that is dst itself: a read-modify-write."""

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
