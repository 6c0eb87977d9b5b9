"""The rules every instruction obeys, and the vocabulary in which its own rules are written.

`judge` runs the universal checks of isa.md 1.2 and then the instruction's own `check`. The functions
below it are that check's vocabulary: each names its operand, what it got, what is allowed and the mend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from ..core import running, warn
from ..errors import NkiError, error
from ..machine import Machine
from ..program import Instruction
from ..storage import PSUM, SBUF, MemoryRegion
from ..view import View
from .enums import GPSIMD, SCALAR, UNKNOWN, engine, reduce_cmd

GENERATION_NAMES = {2: "trn1", 3: "trn2", 4: "trn3"}
_BUFFER_NAMES = {"sbuf": "SBUF", "psum": "PSUM", "private_hbm": "HBM", "shared_hbm": "HBM"}


def judge(instruction: Instruction, machine: Machine) -> engine | None:
    """Check an instruction against every rule; returns the engine that runs it."""
    generation(instruction, instruction.since, machine)
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


def _check_operand(ins: Instruction, name: str, view: View, machine: Machine) -> None:
    storage = view.storage
    core = running()
    if storage.memory is None and core is not None and core.launch.executes:
        raise fail(ins, "placeholder", f"{name} has no data behind it", [name], "allocate it with nl.ndarray")
    if storage.loop is not None and core is not None and storage.loop not in core.loops:
        raise fail(
            ins,
            "loop-local-tensor",
            f"{name} was allocated inside a dynamic loop and is used after it",
            [name],
            "allocate it before the loop",
        )
    if not ins.on_chip or ins.anywhere:
        _check_reach(ins, name, view)
        return
    if not storage.on_chip:
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
    parts = {name: view}
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
    if len(_coalesced(view)) > machine.access_max_dims:
        warn(
            "ap-dims",
            f"{ins.public}: {name} needs more than {machine.access_max_dims} free dimensions to address",
            notes=[f"{name}: {view.describe_layout()}"],
        )
    if name in ins.places:
        return
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


def _coalesced(view: View) -> list[tuple[int, int]]:
    """The free dims of a view as the fewest (count, stride) pairs."""
    dims: list[tuple[int, int]] = []
    for count, stride in zip(view.shape[1:], view.strides[1:], strict=True):
        if count == 1:
            continue
        if dims and dims[-1][1] == stride * count:
            dims[-1] = (dims[-1][0] * count, stride)
        else:
            dims.append((count, stride))
    return dims


def _check_writable(ins: Instruction, name: str, view: View) -> None:
    if view.storage.constant:
        raise fail(
            ins,
            "constant-write",
            f"{name} is a shared constant and cannot be written",
            [name],
            "copy it into a tensor of your own first",
        )
    if name == "dst" and _reduces(ins):  # a by-product: kernels save space by writing it to one column
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


def _reduces(ins: Any) -> bool:
    """The instruction's reduction goes to the accumulator registers or to reduce_res."""
    command = getattr(ins, "reduce_cmd", None)
    return getattr(ins, "reduce_res", None) is not None or command not in (None, reduce_cmd.idle)


def _resolve_engine(ins: Instruction, machine: Machine) -> engine | None:
    asked = getattr(ins, "engine", UNKNOWN)
    if not ins.engines:
        return None
    if asked.__class__ is not engine:
        names = ", ".join(f"nisa.engine.{e.name}" for e in ins.engines)
        raise error("enum", f"{ins.public}: engine must be one of {names}, got {asked!r}", site=ins.site)
    chosen = ins.choose_engine(machine) if asked is UNKNOWN else asked
    if chosen not in ins.engines:
        names = ", ".join(f"nisa.engine.{e.name}" for e in ins.engines)
        raise fail(ins, "engine", f"cannot run on the {chosen.name} engine", [], f"use {names}")
    if chosen is GPSIMD and ins.on_chip:
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
    """Which operands an index tile may gather or scatter, and where the index must lie (isa.md 1.7)."""
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


# ---- vocabulary ----------------------------------------------------------------------------------


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


def not_a_tensor(ins: Instruction, name: str, value: Any) -> NkiError:
    if value is None:
        text, help = f"{name} is missing", f"{name} must be a tile allocated with nl.ndarray"
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
                "operands must have equal partitions; slice the larger one",
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
                "operands must have equal partitions; slice the larger one",
            )


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


def is_gathered(view: Any) -> bool:
    """Addressed by an index tile (`.indirect`)."""
    return isinstance(view, View) and view.indirection is not None and view.indirection.kind == "tensor"


def is_number(value: Any) -> bool:
    text_or_complex = isinstance(value, (np.flexible, np.complexfloating))
    return isinstance(value, (bool, int, float, np.generic)) and not text_or_complex
