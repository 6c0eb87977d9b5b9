"""Copies of instructions with something replaced. Instructions of a Program never change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, TypeVar

from ..machine.engines import engine
from ..machine.machine import Machine
from .instruction import Instruction
from .layout import Indirection
from .operand_access import OperandAccess
from .storage import Storage
from .validation import validate
from .view import View

New = TypeVar("New", bound=Instruction)


def replace_storages(instruction: Instruction, storages: Mapping[Storage, Storage]) -> Instruction:
    """Return a copy whose views are of other storages of the same shape and dtype."""
    return replace_views(instruction, lambda view: _replaced(view, storages))


def replace_views(instruction: Instruction, change: Callable[[View], View]) -> Instruction:
    """Return a copy with changed operands; its `access` is still that of the instruction."""
    new = copy(instruction)
    for name in instruction.operand_names:
        value = getattr(new, name)
        if isinstance(value, View):
            setattr(new, name, change(value))
    return new


def moved_columns(view: View, to: Storage, column: int, begin: int = 0) -> View:
    """Return the view of a tile whose columns from `begin` on lie in another storage, from `column` on."""
    partition, at = divmod(view.offset, view.row_pitch)
    pitch = to.pitch // view.dtype.itemsize
    strides = (pitch, *view.strides[1:])
    return View(to, partition * pitch + at - begin + column, view.shape, strides, view.dtype, None)


def _replaced(view: View, storages: Mapping[Storage, Storage]) -> View:
    storage, ind = storages.get(view.storage, view.storage), view.indirection
    if ind is not None:
        index: Any = _replaced(ind.index, storages) if isinstance(ind.index, View) else ind.index
        base = None if ind.base is None else _replaced(ind.base, storages)
        ind = Indirection(ind.kind, index, ind.scale, ind.dim, base)
    return View(storage, view.offset, view.shape, view.strides, view.dtype, ind)


def replace_engine(instruction: Instruction, other: engine) -> Instruction:
    """Return a copy that runs on another engine."""
    new = copy(instruction)
    new.runs_on = other
    return new


def in_place_of(instruction: New, other: Instruction, machine: Machine) -> New:
    """Return a new instruction as one that the kernel has at the line of another."""
    instruction.site, instruction.handle = other.site, other.handle
    instruction.runs_on = validate(instruction, machine)
    instruction.access = OperandAccess.of(instruction)
    return instruction
