"""Sums in PSUM that go on by mistake: a matmul adds to a product that was read already.

With `accumulate=None` a matmul adds to what matmuls wrote before. That is meant for the parts of one product.
Two products in one tile become a sum, without an error. `accumulate=True` says that a sum is wanted.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..errors import Site
from ..ir.boxes import Box, box
from ..ir.columns import Columns
from ..ir.instruction import Instruction, State
from ..ir.items import Diagnostic, Loop
from ..ir.operand_access import OperandAccess
from ..ir.program import Program
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.memories import PSUM
from .races import walked


class Product:
    """What matmuls left in a part of PSUM."""

    __slots__ = ("box", "read")

    def __init__(self, box: Box):
        self.box = box
        self.read: tuple[Site | None, str] | None = None  # by which instruction, and at which line


class PsumOperands(NamedTuple):
    """The operands in PSUM of all instructions of one signature; they share their `access`."""

    access: OperandAccess
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @staticmethod
    def of(instruction: Instruction) -> PsumOperands:
        names, operands = instruction.operand_names, instruction.operands()
        here = [i for i, v in enumerate(operands) if isinstance(v, View) and v.storage.buffer is PSUM]
        added = instruction.write_at if instruction.accumulates else ()
        reads = tuple(names[i] for i in here if i in instruction.read_at and i not in added)
        return PsumOperands(
            instruction.access, reads, tuple(names[i] for i in here if i in instruction.write_at)
        )


class PsumWatch:
    """Follows the products in the PSUM of one core.

    `products` are those of each tile, by offset, shape and strides. By default they go when their tile does.
    """

    def __init__(self, products: MutableMapping[Storage, dict[tuple, Product]] | None = None) -> None:
        self.found: dict[tuple, Diagnostic] = {}
        self.products = WeakKeyDictionary() if products is None else products
        self.operands: dict[int, PsumOperands] = {}  # by the identity of an `access`, which is in the value

    def __call__(self, instruction: Instruction) -> None:
        if instruction.state and State.loop in instruction.state:  # the body's tiles are new in each trip
            for storage in [s for s in self.products if s.loop]:
                del self.products[storage]
            return
        access = instruction.access
        known = self.operands.get(id(access))
        if known is None:
            known = self.operands[id(access)] = PsumOperands.of(instruction)
        for name in known.reads:
            view = getattr(instruction, name)
            if view.storage in self.products:
                self._read(view, instruction)
        for name in known.writes:
            view = getattr(instruction, name)
            if access.accumulates and view.indirection is None:
                self._multiply(instruction, view)
            elif view.storage in self.products:
                self._forget(view)

    def _read(self, view: View, instruction: Instruction) -> None:
        area = box(view)
        for product in self.products[view.storage].values():
            if product.box.overlaps(area):
                product.read = instruction.site, instruction.public

    def _multiply(self, instruction: Any, dst: View) -> None:
        begins = instruction.is_transpose or instruction.accumulate is False
        if begins and dst.storage in self.products:
            self._forget(dst)
        if instruction.is_transpose:
            return
        products = self.products.setdefault(dst.storage, {})
        product = products.get((dst.offset, dst.shape, dst.strides))
        if product is None:
            products[dst.offset, dst.shape, dst.strides] = Product(box(dst))
            return
        if instruction.accumulate is None and product.read is not None:
            self._report(instruction, dst, product.read)
        product.read = None

    def _forget(self, view: View) -> None:
        """Drop the products that a write has ended."""
        area, products = box(view), self.products[view.storage]
        self.products[view.storage] = {k: p for k, p in products.items() if not p.box.overlaps(area)}

    def _report(self, instruction: Any, dst: View, read: tuple[Site | None, str]) -> None:
        site, reader = read
        self.found.setdefault(
            (instruction.site, site),
            Diagnostic(
                "psum-reuse",
                f"{instruction.public} adds to a product that was read already",
                [f"read by {reader} at {site}", f"dst: {dst.describe()}"],
                "write accumulate=False to begin another product, or accumulate=True if the sum is wanted",
                instruction.site,
            ),
        )


def continued_products(program: Program) -> list[Diagnostic]:
    """Return the matmuls of a program that add to a product that was read."""
    if not any(storage.buffer is PSUM for storage in program.storages):
        return []
    found: dict[tuple, Diagnostic] = {}
    for core, items in enumerate(program.cores):
        watch = PsumWatch({})  # the program holds its tiles
        if not _may_continue(program, core, watch.operands):
            continue
        for instruction in walked(items, {}):
            known = watch.operands.get(id(instruction.access))
            if known is None or known.reads or known.writes:  # most touch no PSUM
                watch(instruction)
        found = {**watch.found, **found}
    return [*found.values()]


def _may_continue(program: Program, core: int, operands: dict[int, PsumOperands]) -> bool:
    """Return False if all matmuls into a tile come before the first read of it, as in most kernels."""
    if program.columns.pays(core) and (columns := program.columns.of(core)).is_fixed:
        return _may_continue_by_columns(columns, len(program.columns.storages))
    read: set[Storage] = set()
    for item in program.cores[core]:
        if isinstance(item, Loop):
            return True
        access = item.access
        known = operands.get(id(access))
        if known is None:
            known = operands[id(access)] = PsumOperands.of(item)
        _, reads, writes = known
        for name in reads:
            read.add(getattr(item, name).storage)
        if writes and access.accumulates and any([getattr(item, name).storage in read for name in writes]):
            return True
    return False


def _may_continue_by_columns(columns: Columns, storages: int) -> bool:
    """Return the same for a core without loops."""
    read, added = [], []  # of the views of an instruction of every signature
    for sample in columns.samples:
        access, reads, writes = PsumOperands.of(sample)
        read += [name in reads for name in access.views]
        added += [access.accumulates and name in writes for name in access.views]
    positions, operands = columns.positions(), columns.operands()
    reading = np.flatnonzero(np.array(read, np.bool_)[operands])[::-1]
    adding = np.array(added, np.bool_)[operands]
    first = np.full(storages, len(columns.signature))  # the first read of each storage
    first[columns.storage[reading]] = positions[reading]
    return bool((positions[adding] >= first[columns.storage[adding]]).any())
