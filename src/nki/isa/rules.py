"""The rules that an instruction's `check` is made of.

Each names its operand, what it got, what is allowed and how to fix it. The rules of every instruction are in
`nki.ir.validation`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..errors import error
from ..ir.context import warn
from ..ir.instruction import Instruction
from ..ir.validation import fail as fail
from ..ir.validation import generation as generation
from ..ir.validation import is_gathered as is_gathered
from ..ir.validation import not_a_tensor as not_a_tensor
from ..ir.validation import start_partition as start_partition
from ..ir.view import View
from ..machine.memories import PSUM, SBUF, MemoryRegion

_BUFFER_NAMES = {"sbuf": "SBUF", "psum": "PSUM", "private_hbm": "HBM", "shared_hbm": "HBM"}


def buffers(ins: Instruction, name: str, allowed: Collection[MemoryRegion], help: str | None = None) -> None:
    """The operand is in one of the allowed memories."""
    view = getattr(ins, name)
    if isinstance(view, View) and view.buffer not in allowed:
        wanted = " or ".join(dict.fromkeys(_BUFFER_NAMES[b.value] for b in allowed))
        got = _BUFFER_NAMES[view.buffer.value]
        raise fail(ins, "buffer", f"{name} must be in {wanted}, it is in {got}", [name], help)


def in_sbuf(ins: Instruction, *names: str) -> None:
    for name in names:
        buffers(ins, name, (SBUF,), "copy it to SBUF first (nisa.tensor_copy)")


def in_psum(ins: Instruction, *names: str) -> None:
    for name in names:
        buffers(ins, name, (PSUM,), "allocate it with buffer=nl.psum")


def not_both_psum(ins: Instruction, first: str, second: str) -> None:
    a, b = getattr(ins, first), getattr(ins, second)
    if isinstance(a, View) and isinstance(b, View) and a.buffer is PSUM and b.buffer is PSUM:
        raise fail(
            ins,
            "psum-both",
            f"{first} and {second} are both in PSUM, the engine reads one PSUM operand",
            [first, second],
            "copy one of them to SBUF first",
        )


def dtype_in(ins: Instruction, name: str, allowed: Collection[str], help: str | None = None) -> None:
    view = getattr(ins, name)
    if isinstance(view, View) and view.dtype not in allowed:
        raise fail(
            ins, "dtype", f"{name} has dtype {view.dtype}, allowed: {', '.join(allowed)}", [name], help
        )


def castable(ins: Instruction, *names: str) -> None:
    """The operand's dtype takes part in arithmetic (packed and scale types do not)."""
    for name in names:
        view = getattr(ins, name)
        if isinstance(view, View) and not view.dtype.castable:
            raise fail(
                ins,
                "dtype",
                f"{name} has dtype {view.dtype}, which no engine can convert",
                [name],
                "only copies between equal dtypes, quantize_mx and nc_matmul_mx take it",
            )


def integers(ins: Instruction, *names: str) -> None:
    for name in names:
        view = getattr(ins, name)
        if isinstance(view, View) and not (view.dtype.is_integer or view.dtype.is_bool):
            raise fail(
                ins,
                "dtype",
                f"{name} has dtype {view.dtype}, a bitwise operator needs integers",
                [name],
                "reinterpret the bits with t.view(nl.int32)",
            )


def same_dtype(ins: Instruction, first: str, second: str) -> None:
    a, b = getattr(ins, first), getattr(ins, second)
    if isinstance(a, View) and isinstance(b, View) and a.dtype != b.dtype:
        raise fail(
            ins,
            "dtype",
            f"{first} is {a.dtype} and {second} is {b.dtype}; they must be equal",
            [first, second],
            "convert one of them with nisa.tensor_copy",
        )


def matching(ins: Instruction, *names: str) -> None:
    """Equal partitions and equal elements per partition; ranks may differ."""
    first = getattr(ins, names[0])
    for name in names[1:]:
        view = getattr(ins, name)
        if not isinstance(view, View):
            continue
        if view.shape[0] != first.shape[0]:
            raise fail(
                ins,
                "shape",
                f"{names[0]} has {first.shape[0]} partitions, {name} has {view.shape[0]}",
                [names[0], name],
                _equal_partitions(first, view),
            )
        if view.free_elements != first.free_elements:
            raise fail(
                ins,
                "shape",
                f"{names[0]} has {first.free_elements} elements per partition, "
                f"{name} has {view.free_elements}",
                [names[0], name],
                "tiles are not broadcast; use a zero-stride view (t.broadcast) or a [P, 1] operand",
            )


def matching_values(ins: Instruction, *names: str) -> None:
    """Matching operands whose dtypes take part in arithmetic."""
    matching(ins, *names)
    castable(ins, *names)


def _equal_partitions(first: View, second: View) -> str:
    if 1 in (first.shape[0], second.shape[0]):
        rows = max(first.shape[0], second.shape[0])
        return (
            f"give each partition the row: nl.broadcast_to(row, ({rows}, n)), or dma_copy it to all of them"
        )
    return "operands must have equal partitions; slice the larger one"


def same_partitions(ins: Instruction, first: str, *names: str) -> None:
    """Equal partitions; the elements per partition are another rule's business."""
    rows = getattr(ins, first).shape[0]
    for name in names:
        view = getattr(ins, name)
        if isinstance(view, View) and view.shape[0] != rows:
            raise fail(
                ins,
                "shape",
                f"{first} has {rows} partitions, {name} has {view.shape[0]}",
                [first, name],
                _equal_partitions(getattr(ins, first), view),
            )


def partition_multiple(ins: Instruction, name: str, step: int, wanted: str, help: str) -> None:
    partitions = getattr(ins, name).shape[0]
    if partitions % step:
        raise fail(ins, "shape", f"{name} has {partitions} partitions, {wanted}", [name], help)


def column(ins: Instruction, name: str, like: str) -> None:
    """A [P, 1] operand: one value per partition of `like`. Numbers and None pass."""
    view = getattr(ins, name)
    if view is None or is_number(view):
        return
    if not isinstance(view, View):
        raise error(
            "argument", f"{ins.public}: {name} must be a number or a [P, 1] tile, got {view!r}", site=ins.site
        )
    data = getattr(ins, like)
    if view.free_elements != 1:
        raise fail(
            ins,
            "shape",
            f"{name} must have one element per partition, it has {view.free_elements}",
            [name],
            "pass a [P, 1] tile, for example t[:, 0:1]",
        )
    if view.shape[0] != data.shape[0]:
        raise fail(
            ins,
            "shape",
            f"{name} has {view.shape[0]} partitions, {like} has {data.shape[0]}",
            [name, like],
            "give one value for each partition",
        )


def float32_column(ins: Instruction, name: str, like: str) -> None:
    """A [P, 1] operand that hardware reads as float32; other dtypes are converted, with a warning."""
    column(ins, name, like)
    view = getattr(ins, name)
    if isinstance(view, View) and view.dtype != "float32":
        warn(
            "operand-dtype",
            f"{ins.public}: {name} is {view.dtype}, the engine reads float32",
            notes=[f"{name}: {view.describe()}"],
            help="convert it once with nisa.tensor_copy into a float32 tile",
        )


def elements(ins: Instruction, name: str, count: int, why: str = "") -> None:
    """The operand has exactly `count` elements per partition."""
    view = getattr(ins, name)
    if isinstance(view, View) and view.free_elements != count:
        raise fail(
            ins,
            "shape",
            f"{name} must have {count} elements per partition{why}, it has {view.free_elements}",
            [name],
        )


def at_most(ins: Instruction, name: str, count: int, limit: int, what: str, help: str | None = None) -> None:
    if count > limit:
        raise fail(ins, "free-limit", f"{name} has {count} {what}, the limit is {limit}", [name], help)


def operator(ins: Instruction, name: str, allowed: Collection[str]) -> None:
    """The option is one of these nl operators."""
    op = getattr(ins, name)
    if op.name not in allowed:
        raise fail(ins, "op", f"{name}={op!r} is not possible here", [], f"allowed: {', '.join(allowed)}")


def is_number(value: object) -> bool:
    text_or_complex = isinstance(value, (np.flexible, np.complexfloating))
    return isinstance(value, (bool, int, float, np.generic)) and not text_or_complex
