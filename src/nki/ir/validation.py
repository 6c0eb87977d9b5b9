"""The rules of every instruction (spec/isa.md 1.2), checked before its own.

`fail`, `not_a_tensor` and `generation` make the errors. The rules that instructions choose from are in
`nki.isa.rules`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import NkiError, error
from ..machine.engines import GPSIMD, SCALAR, UNKNOWN, engine
from ..machine.machine import Machine
from ..machine.memories import PSUM
from .context import warn
from .instruction import Instruction, NkiInstruction
from .layout import coalesced
from .view import View

GENERATION_NAMES = {2: "trn1", 3: "trn2", 4: "trn3"}


def validate(instruction: Instruction, machine: Machine) -> engine | None:
    """Check an instruction against every rule; returns the engine that runs it."""
    generation(instruction, instruction.since, machine)
    _check_options(instruction)
    for name, value in zip(instruction.operand_names, instruction.operands(), strict=True):
        if isinstance(value, View):
            _check_operand(instruction, name, value, machine)
        elif name in instruction.required:
            raise not_a_tensor(instruction, name, value)
    for i in instruction.write_at:
        view = instruction.operands()[i]
        if isinstance(view, View):
            _check_writable(instruction, instruction.operand_names[i], view)
    instruction.check(machine)
    chosen = _resolve_engine(instruction, machine)
    _check_indirection(instruction, chosen)
    return chosen


def _check_options(ins: Instruction) -> None:
    """Options are compile-time values: an array would be compared element by element."""
    for name in ins.fields:
        value = getattr(ins, name)
        if isinstance(value, np.ndarray) and name not in ins.operand_names:
            raise error(
                "argument",
                f"{ins.public}: {name} is an array of shape {value.shape}, it takes a compile-time value",
                help="options are Python numbers, bools and tuples; only tiles have values at run time",
                site=ins.site,
            )


def shifted_pairs(ins: Instruction) -> tuple[tuple[str, str], ...]:
    """(output, input) that lie differently and would overlap if they belonged to one tile."""
    operands = ins.operands()
    return tuple(
        (ins.operand_names[i], ins.operand_names[j])
        for i in ins.write_at
        for j in ins.read_at
        if i != j and _overlap_shifted(operands[i], operands[j])
    )


def _overlap_shifted(written: object, read: object) -> bool:
    if not (isinstance(written, View) and isinstance(read, View)) or not written.on_chip:
        return False
    one, other = written.storage, read.storage
    if (one.buffer, one.shape, one.dtype) != (other.buffer, other.shape, other.dtype):
        return False
    if written.indirection is not None or read.indirection is not None or written.sig == read.sig:
        return False
    rows, columns = _partitions(written), _free_bytes(written)
    other_rows, other_columns = _partitions(read), _free_bytes(read)
    if rows == other_rows and np.array_equal(columns, other_columns):
        return False  # the same elements in the same order
    apart = rows.stop <= other_rows.start or other_rows.stop <= rows.start
    return not apart and np.intersect1d(columns, other_columns).size > 0


def _partitions(view: View) -> range:
    start = view.offset // view.row_pitch
    return range(start, start + view.shape[0])


def _free_bytes(view: View) -> np.ndarray:
    """The bytes of a partition that a view touches, in the order of its elements."""
    width = view.dtype.itemsize
    places = np.array([view.free_offset * width])
    for size, stride in zip(view.shape[1:], view.strides[1:], strict=True):
        places = np.add.outer(places, np.arange(size) * stride * width).ravel()
    return np.add.outer(places, np.arange(width)).ravel()


def _check_operand(ins: Instruction, name: str, view: View, machine: Machine) -> None:
    if 0 in view.shape:
        raise fail(
            ins,
            "index",
            f"{name} is empty, its shape is {tuple(view.shape)}",
            [name],
            "a slice holds at least one element; leave the instruction out when there is none",
        )
    if ins.reaches_hbm:
        _check_reach(ins, name, view)
        return
    if not view.on_chip:
        raise fail(
            ins,
            "buffer",
            f"{name} is in HBM, {ins.public} works on tiles in SBUF or PSUM",
            [name],
            "load it first: nisa.dma_copy into an SBUF tile, or nl.load",
        )
    if view.shape[0] > machine.partitions:
        raise fail(
            ins,
            "partition-limit",
            f"{name} has {view.shape[0]} partitions, the engine has {machine.partitions}",
            [name],
            f"tile the first dimension by nl.tile_size.pmax ({machine.partitions})",
        )
    _check_reach(ins, name, view)
    _check_access(ins, name, view, machine)


def _check_reach(ins: Instruction, name: str, view: View) -> None:
    """Access patterns stay inside their partitions; one that does not may exist, but not be used."""
    ind = view.indirection
    parts: dict[str, Any] = {name: view}
    if ind is not None:
        gathered = ind.kind == "tensor"  # the shape is that of the index, the reach that of the data
        parts = {name: ind.base if gathered else view, f"the index of {name}": ind.index}
    for what, part in parts.items():
        beyond = part.beyond_partitions() if isinstance(part, View) and part.on_chip else ""
        if beyond:
            raise error(
                "index",
                f"{ins.public}: {what} {beyond}",
                notes=[f"{what}: {part.describe_layout()}"],
                help="bound the offset of the access pattern",
                site=ins.site,
            )


def _check_access(ins: Instruction, name: str, view: View, machine: Machine) -> None:
    """Start partitions and access patterns: what hardware addresses, as warnings."""
    if len(coalesced(view.shape[1:], view.strides[1:])) > machine.access_max_dims:
        warn(
            "ap-dims",
            f"{ins.public}: {name} needs more than {machine.access_max_dims} free dimensions to address",
            notes=[f"{name}: {view.describe_layout()}"],
        )
    if not ins.partial:  # else only `check` knows which partitions count
        start_partition(ins, machine, name)


def start_partition(ins: Instruction, machine: Machine, *names: str) -> None:
    """Warn of operands that start at a partition where the engines cannot address so many."""
    for name in names:
        _check_start(ins, name, getattr(ins, name), machine)


def _check_start(ins: Instruction, name: str, view: View, machine: Machine) -> None:
    start, count = view.start_partition, view.shape[0]
    step = 128 if count > 64 else 64 if count > 32 else 32
    if start % step:
        allowed = ", ".join(str(s) for s in range(0, 128, step))
        warn(
            "start-partition",
            f"{ins.public}: {name} starts at partition {start}; {count} partitions may start at {allowed}",
            notes=[f"{name}: {view.describe()}"],
            help="move the data to a partition range the engines can address",
        )


def _check_writable(ins: Instruction, name: str, view: View) -> None:
    if view.storage.constant:
        raise fail(
            ins,
            "constant-write",
            f"{name} is a shared constant and cannot be written",
            [name],
            "copy it into a tensor of your own first",
        )
    if name == "dst" and ins.dst_is_byproduct():  # kernels save space by writing it to one column
        return
    replaced = view.indirection is not None and view.indirection.kind == "vector"
    for d, (count, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if stride == 0 and count > 1 and not (replaced and d == 0):  # indices stand for the step of dim 0
            raise fail(
                ins,
                "write-broadcast",
                f"{name} repeats dimension {d} (stride 0): a write would hit the same element {count} times",
                [name],
                "write to the tensor before it is broadcast",
            )


def _resolve_engine(ins: Instruction, machine: Machine) -> engine | None:
    asked = getattr(ins, "engine", UNKNOWN)
    if not ins.engines:
        return None
    if asked.__class__ is not engine:
        names = ", ".join(f"nisa.engine.{e.name}" for e in ins.engines)
        raise error("enum", f"{ins.public}: engine must be one of {names}, got {asked!r}", site=ins.site)
    chosen = ins.choose_engine(machine) if asked is UNKNOWN else asked
    if chosen is None or chosen not in ins.engines:
        names = ", ".join(f"nisa.engine.{e.name}" for e in ins.engines)
        shown = "unknown" if chosen is None else chosen.name
        raise fail(ins, "engine", f"cannot run on the {shown} engine", [], f"use {names}")
    if chosen is GPSIMD:
        for name, value in zip(ins.operand_names, ins.operands(), strict=True):
            if isinstance(value, View) and value.buffer is PSUM:
                raise fail(
                    ins,
                    "buffer",
                    f"{name} is in PSUM, which the gpsimd engine cannot reach",
                    [name],
                    "copy it to SBUF first (nisa.tensor_copy), or use engine=nisa.engine.vector",
                )
    return chosen


def _check_indirection(ins: Instruction, chosen: engine | None) -> None:
    """Which operands an index tile may gather or scatter, and where the index must lie (spec/isa.md 1.7)."""
    found = {
        name: view for name, view in zip(ins.operand_names, ins.operands(), strict=True) if is_gathered(view)
    }
    if not found:
        return
    written = {ins.operand_names[i] for i in ins.write_at}
    for name, view in found.items():
        if name not in ins.indirect:
            allowed = " and ".join(ins.indirect)
            raise fail(
                ins,
                "indirect-view",
                f"{name} cannot be addressed by an index tile",
                [name],
                f"only {allowed} can; copy the selection first" if allowed else "copy the selection first",
            )
        if name in written and chosen is SCALAR and view.buffer is PSUM:
            raise fail(ins, "buffer", f"the scalar engine cannot scatter {name} into PSUM", [name])
        _check_index_start(ins, name, view, written)


def _check_index_start(ins: Instruction, name: str, view: View, written: set[str]) -> None:
    assert view.indirection is not None
    index: View = view.indirection.index
    if index.start_partition % 32:
        _misaligned(ins, name, index, view, f"the index of {name} must start at a multiple of 32")
    partner: Any = view
    if name in written:
        partner = getattr(ins, next((n for n in ins.indirect if n not in written), name))
        if not isinstance(partner, View):
            return
        if partner.buffer is PSUM and is_gathered(partner):
            partner = partner.indirection.index  # type: ignore[union-attr]
    if index.start_partition != partner.start_partition:
        _misaligned(
            ins,
            name,
            index,
            partner,
            f"the index of {name} starts at partition {index.start_partition}, "
            f"it must start where its data does, at {partner.start_partition}",
        )


def _misaligned(ins: Instruction, name: str, index: View, partner: View, message: str) -> None:
    """An error where the user chose the addresses, else the compiler can still place the tiles."""
    if index.storage.address is not None and partner.storage.address is not None:
        raise fail(ins, "alignment", message, [name])
    warn("indirect-align", f"{ins.public}: {message}", notes=[f"index: {index.describe()}"])


# ---- the error of a broken rule ------------------------------------------------------------------


def fail(
    ins: Instruction, kind: str, message: str, operands: Iterable[str] = (), help: str | None = None
) -> NkiError:
    """The error of a broken rule, with the operands it is about described in the notes."""
    notes = []
    for name in operands:
        value = getattr(ins, name)
        shown = value.describe() if isinstance(value, View) else repr(value)
        notes.append(f"{name}: {shown}")
    return error(kind, f"{ins.public}: {message}", notes=notes, help=help, site=ins.site)


def not_a_tensor(ins: Instruction, name: str, value: object) -> NkiError:
    if value is None:
        text = f"{name} is missing: it is None"
        help = f"{name} must be a tile; an argument that may be None is tested first: if w is not None: ..."
    elif isinstance(value, NkiInstruction):
        text = f"{name} is what {getattr(value, 'public', 'an instruction')} returned, which is no tile"
        help = "pass the tile that it wrote: instructions write into their dst and return a handle"
    elif isinstance(value, (bool, int, float, np.generic)):
        text, help = f"{name} must be a tile, got the number {value!r}", "fill a tile with nisa.memset first"
    else:
        text = f"{name} must be a tile, got {type(value).__name__}"
        help = "pass arrays to the kernel as arguments; inside it they are HBM tensors"
    return error("argument", f"{ins.public}: {text}", help=help, site=ins.site)


def generation(ins: Instruction, since: int, machine: Machine, what: str = "") -> None:
    """`what` (or the instruction itself) exists from generation `since` on."""
    if machine.generation < since:
        subject = f"{what} needs" if what else "needs"
        raise fail(
            ins,
            "generation",
            f"{subject} {GENERATION_NAMES[since]}, this kernel targets {machine.name}",
            [],
            "choose the platform with NEURON_PLATFORM_TARGET_OVERRIDE",
        )


def is_gathered(view: object) -> bool:
    """Addressed by an index tile (`.indirect`)."""
    return isinstance(view, View) and view.indirection is not None and view.indirection.kind == "tensor"
