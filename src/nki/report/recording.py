"""A run as steps: what each instruction reads and writes, where, in which iteration, with its values.

`before` takes an instruction that is about to run, `after` one that has run, `fail` the error of one that
raised. What a page shows of a run is in the columns of the recording: one row for each step, operand, tile or
heat map. The steps of two cores are in the order in which they ran.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import Site
from ..ir.effects import effects
from ..ir.instruction import Instruction, ProgramPosition, State
from ..ir.iterations import IterationTable
from ..ir.storage import Storage
from ..ir.tensor import whole
from ..ir.view import View
from ..ir.writers import Writers, elements, has_own_elements
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF
from .heatmaps import BUDGET, HeatMaps
from .packed import Files, Names, differences, iteration_columns, narrowest
from .placement import first_fit
from .slices import Slices

ROLES = ("reads", "adds_to", "writes", "expected", "difference")
MEMORIES = ("hbm", "sbuf", "psum")
SCALE = 65535  # of the box of an operand in its tile
NO_MAP = -1
Values = Callable[[View], tuple[np.ndarray, np.ndarray | None]]


class OperandValues(NamedTuple):
    """What an operand held: its view, its values, and which of them were never written."""

    view: View
    values: np.ndarray
    unwritten: np.ndarray | None


class Agreement(NamedTuple):
    """How a result agrees with a reference."""

    wrong: int  # elements
    elements: int


class Recording:
    """Collects the steps of a run, of all its cores.

    `values(view)` returns what a view holds now, and which elements were never written; without it nothing
    is computed.
    """

    def __init__(
        self,
        name: str,
        machine: Machine,
        values: Values | None = None,
        budget: int = BUDGET,
        steps: range | None = None,
        cores: int = 1,
    ):
        self.name, self.machine, self.values, self.cores = name, machine, values, cores
        self.budget, self.steps = budget, steps
        self.iterations = IterationTable()  # the iteration of each step
        self.begin()

    def begin(self) -> None:
        """Forget everything: a run that could not finish starts again."""
        self.maps = HeatMaps(self.budget, self.steps)
        self.files = Files()
        self.numbers: list[tuple[int, int]] = []  # of each step: its core, its number among those of the core
        self.raised = ""  # what the run raised at the last step
        self.errors: dict[int, float] = {}  # the largest of what a step wrote; 1 is allowed
        self.agreements: list[Agreement] = []
        self.writers = Writers()  # of HBM, where results are
        self._kinds, self._shapes, self._operands = Names(), Names(), Names()
        self._kind = array("L")
        self._rows: array[int] = array("q")  # of each operand: step, tile, role, name, shape, begin, map
        self._boxes = array("H")
        self._slices = Slices()
        self._last: dict[int, int] = {}  # the number of the last step of each core
        # on each core, the instruction that has not ended yet, and what it reads: view, role, map
        self._begun: dict[int, tuple[Instruction, list[tuple[View, int, int]]]] = {}
        self._tiles: dict[Storage, int] = {}
        self._core_of: list[int] = []  # of each tile, the core that used it first
        self._lives: list[list[int]] = []  # of each tile: first and last step
        self._known: dict[Storage, dict[tuple, int]] = {}  # maps of what a storage holds now

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.numbers)

    def summary(self) -> str:
        """Return what was recorded, in a line."""
        parts = [f"{self.count:,} steps"]
        if self.cores > 1:
            parts.append(f"{self.cores} cores")
        if self.raised:
            parts.append("raises an error")
        if self.values is None:
            parts.append("no values")
        elif self.steps is not None:
            parts.append(f"values of steps {self.steps.start + 1:,} to {min(self.steps.stop, self.count):,}")
        if self.maps.every > 1:
            parts.append(f"values of one step in {self.maps.every}")
        return " · ".join(parts)

    # ---- the run ---------------------------------------------------------------------------------

    def before(self, instruction: Instruction, core: int = 0) -> None:
        """Take the values that an instruction is about to read."""
        if _number(instruction) <= self._last.get(core, 0):
            self.begin()
        read = [(view, role) for role in (0, 1) for view in read_by(instruction)[role]]
        found = [(view, role, self._map_of(view, self.count, always=role == 1)) for view, role in read]
        self._begun[core] = (instruction, found)

    def after(self, instruction: Instruction, core: int = 0) -> None:
        """Add the step of an instruction that has run."""
        _, found = self._begun.pop(core)
        done = effects(instruction)
        step = self.count
        for view in done.written:
            if view.storage.address is not None:  # other storages may share its bytes
                self._known.clear()
            self._known.pop(view.storage, None)
            if not view.storage.on_chip:
                self.writers.note(step + 1, view.bare())
        found += [(view, 2, self._map_of(view, step, always=True)) for view in done.written]
        self._end_step(instruction, core, found)

    def fail(self, text: str, site: Site | None) -> None:
        """Add the step that raised an error; its instruction did not run, or the line issued none."""
        self.raised = text
        for core, (instruction, read) in self._begun.items():
            if site is None or instruction.site == site:
                written = [(view, 2, NO_MAP) for view in effects(instruction).written]
                return self._end_step(instruction, core, [*read, *written])
        self._kind.append(self._kinds(("", "", *self.files.place(site))))
        self.numbers.append((self.numbers[-1][0] if self.numbers else 0, 0))

    def _end_step(self, instruction: Instruction, core: int, operands: list[tuple[View, int, int]]) -> None:
        step, number = self.count, _number(instruction)
        name = instruction.public or type(instruction).__name__
        self._kind.append(self._kinds((name, instruction.engine_name(), *self.files.place(instruction.site))))
        self._last[core] = number
        self.numbers.append((core, number))
        for view, role, map in operands:
            self._add(step, view, role, _operand_name(instruction, view, role > 0), map)

    def _known_map(self, view: View) -> int:
        return self._known.get(view.storage, {}).get(_key(view), NO_MAP)

    def _map_of(self, view: View, step: int, always: bool) -> int:
        """Return the map of what a view holds now.

        What is only read has one at steps with maps, or where a part of it was never written.
        """
        maps, number = self.maps, self._known_map(view)
        sampled = maps.sampled(step)
        if self.values is None:
            return NO_MAP
        if number != NO_MAP and (not sampled or maps.cells[number] is not None):
            maps.use(number, step)
            return number
        held = OperandValues(view, *self.values(shown(view)))
        if not (always or sampled or held.unwritten is not None):
            return NO_MAP
        matrix, mask = as_matrix(held)
        if number != NO_MAP:
            maps.store(number, step, matrix, mask)
            return number
        number = maps.add(step, matrix, mask)
        self._known.setdefault(view.storage, {})[_key(view)] = number
        return number

    def _add(self, step: int, view: View, role: int, name: str, number: int) -> None:
        storage = view.storage
        tile = self._tiles.get(storage)
        if tile is None:
            tile = self._tiles[storage] = len(self._lives)
            self._lives.append([step, step])
            self._core_of.append(self.numbers[step][0])
        self._lives[tile][1] = step
        indirect = view.indirection is not None
        shape = (str(view.dtype), view.shape, None if indirect else self._slices(view), indirect)
        place = (step, tile, role, self._operands(name), self._shapes(shape), view.offset, number)
        self._rows.extend(place)
        self._boxes.extend(box(view))

    # ---- a reference -----------------------------------------------------------------------------

    def compare(self, view: View, got: np.ndarray, expected: np.ndarray, ratio: np.ndarray) -> None:
        """Note how a result agrees with a reference; `ratio` is the error of each element, 1 is allowed."""
        self.agreements.append(Agreement(int(np.count_nonzero(ratio > 1)), ratio.size))
        writers = self.writers.of(view).ravel()
        order = np.argsort(writers, kind="stable")
        steps, starts = np.unique(writers[order], return_index=True)
        for step, worst in zip(steps, np.maximum.reduceat(ratio.ravel()[order], starts), strict=True):
            if step:
                self.errors[int(step) - 1] = max(self.errors.get(int(step) - 1, 0.0), float(worst))
        with np.errstate(invalid="ignore"):
            self._add_parts(view, expected, ROLES.index("expected"))
            self._add_parts(view, got.astype(np.float64) - expected, ROLES.index("difference"))

    def _add_parts(self, view: View, values: np.ndarray, role: int) -> None:
        """Add the parts of an array like a result to the steps that wrote these parts."""
        size = view.storage.nbytes // view.storage.dtype.itemsize
        flat, known = np.zeros(size, np.float32), np.zeros(size, bool)
        elements(flat, view)[...] = values
        elements(known, view)[...] = True
        for number, written in self.writers.writes.get(view.storage, ()):
            if has_own_elements(written) and self.maps.sampled(number - 1):
                matrix = _matrix(elements(flat, written), written)
                missing = ~_matrix(elements(known, written), written)
                added = self.maps.add(number - 1, matrix, missing if missing.any() else None)
                self._add(number - 1, written, role, "", added)

    # ---- columns ---------------------------------------------------------------------------------

    def packed(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the columns of steps, operands, tiles and maps, and what they refer to."""
        rows = np.array(self._rows, np.int64).reshape(-1, 7)
        order = np.argsort(rows[:, 0], kind="stable")
        step, tile, role, name, shape, begin, number = rows[order].T
        boxes = np.array(self._boxes, np.uint16).reshape(-1, 4)[order]
        errors = np.zeros(self.count, np.float32)
        errors[list(self.errors)] = list(self.errors.values())
        loops, iterations = iteration_columns([self._iteration(*number) for number in self.numbers])
        names, tiles = self._tile_columns()
        table = {
            "kinds": [list(kind) for kind in self._kinds],
            "shapes": [list(shape) for shape in self._shapes],
            "operands": list(self._operands),
            "roles": ROLES,
            **names,
            **loops,
        }
        return table, {
            "kind": narrowest(np.array(self._kind), len(self._kinds.numbers)),
            "core": np.array([core for core, _ in self.numbers], np.uint8),
            "views": np.bincount(step, minlength=self.count).astype(np.uint16),
            "error": errors,
            **iterations,
            "tile": differences(tile),
            "role": role.astype(np.uint8),
            "operand": narrowest(name, len(self._operands.numbers)),
            "shape": narrowest(shape, len(self._shapes.numbers)),
            "begin": differences(begin),
            "map": differences(number),
            **{f"box{side}": boxes[:, side] for side in range(4)},
            **tiles,
            **self.maps.columns(),
        }

    def _iteration(self, core: int, number: int) -> tuple[tuple[str, Any], ...]:
        """Return where the loops around a step stood; of several cores, the core comes first."""
        iteration = self.iterations.of(core, number)
        return (("core", core), *iteration) if self.cores > 1 else iteration

    def _tile_columns(self) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
        labels, types, rows = Names(), Names(), []
        for storage, (first, last), core in zip(self._tiles, self._lives, self._core_of, strict=True):
            memory = 1 if storage.buffer is SBUF else 2 if storage.buffer is PSUM else 0
            down, across = sizes(storage)
            rows.append(
                (
                    memory,
                    labels(self.files.tile_name(storage) or MEMORIES[memory]),
                    types(f"{storage.dtype}{list(storage.shape)}"),
                    first,
                    self.count - 1 if memory == 0 else last,
                    down,
                    across * storage.dtype.itemsize,
                    storage.address[0] if storage.address else 0,
                    core,
                )
            )
        names = ("memory", "label", "type", "first", "last", "rows", "width", "partition", "core")
        columns = dict(zip(names, np.array(rows, np.int64).reshape(-1, len(names)).T, strict=True))
        columns["at"] = self._addresses()
        table = {"labels": list(labels), "types": list(types)}
        return table, {f"tile_{name}": column.astype(np.uint32) for name, column in columns.items()}

    def _addresses(self) -> np.ndarray:
        """Return the byte of its partitions at which each tile is drawn: the user's, or in the first gap."""
        found = np.zeros(len(self._lives), np.int64)
        for buffer, core in product((SBUF, PSUM), range(self.cores)):
            chosen = [
                (tile, s)
                for s, tile in self._tiles.items()
                if s.buffer is buffer and self._core_of[tile] == core
            ]
            lives = []
            for tile, storage in chosen:
                first, last = self._lives[tile]
                size = max(storage.pitch, storage.taken(self.machine))
                lives.append((first, last, size, storage.address[1] if storage.address else None))
            for (tile, _), at in zip(chosen, first_fit(lives), strict=True):
                found[tile] = at
        return found


def _operand_name(instruction: Instruction, view: View, written: bool) -> str:
    """Return the parameter that a view was given for; "" for a part of one, or an index tile."""
    names = instruction.operand_names
    places = instruction.write_at if written else instruction.read_at
    return next((names[i] for i in places if getattr(instruction, names[i]) is view), "")


def _number(instruction: Instruction) -> int:
    handle = instruction.handle
    return handle.order if isinstance(handle, ProgramPosition) else int(handle)


def _key(view: View) -> tuple:
    return view.offset, view.shape, view.strides, view.dtype, view.indirection is None


def read_by(instruction: Instruction) -> tuple[Sequence[View], Sequence[View]]:
    """Return what an instruction reads, and what it adds to; a barrier reads nothing of its tensor."""
    done = effects(instruction)
    is_barrier = State.peer in done.state and not done.written
    return () if is_barrier else done.reads, done.adds_to


def shown(view: View) -> View:
    """Return the view whose values stand for an operand: of run-time addresses, all of its storage."""
    return view if view.indirection is None else whole(view.storage, None)


def as_matrix(held: OperandValues) -> tuple[np.ndarray, np.ndarray | None]:
    """Return values as a matrix of float32 (wide integers: float64), and which were never written."""
    view, values, unwritten = shown(held.view), held.values, held.unwritten
    dtype = view.dtype
    if not dtype.castable:  # packed lanes: their bits
        values, wide = np.ascontiguousarray(values).view(dtype.bits), dtype.itemsize > 2
    else:
        wide = dtype.is_integer and dtype.itemsize > 2
    numbers = values.astype(np.float64) if wide or not dtype.castable else f32(values, dtype)
    matrix = _matrix(numbers, view)
    return matrix, None if unwritten is None else unwritten.reshape(matrix.shape)


def _matrix(values: np.ndarray, view: View) -> np.ndarray:
    """Return values of the shape of a view as rows and columns."""
    return values.reshape(view.shape[0] if view.storage.on_chip else prod(view.shape[:-1]), -1)


def sizes(storage: Storage) -> tuple[int, int]:
    """Return rows and columns, in elements, as the page shows a storage."""
    if storage.on_chip:
        return storage.partitions, max(1, storage.pitch // storage.dtype.itemsize)
    columns = storage.shape[-1] if storage.shape else 1
    return prod(storage.shape) // columns, columns


def box(view: View) -> Sequence[int]:
    """Return the part of its tile that a view lies in, of 65535: top, bottom, left, right."""
    storage = view.storage
    if view.indirection is not None:  # a run-time address: anywhere
        return 0, SCALE, 0, SCALE
    rows, columns = sizes(storage)
    row = max(1, columns * storage.dtype.itemsize // view.dtype.itemsize)  # in elements of the view
    steps = [(n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)]
    first = view.offset + sum(min(0, s) for s in steps)
    last = view.offset + sum(max(0, s) for s in steps)
    (top, left), (bottom, right) = divmod(first, row), divmod(last, row)
    if top != bottom and (right < left or not storage.on_chip and last - first >= row):
        width = max((abs(s) for s in steps if abs(s) < row), default=row - 1)
        left, right = (left, left + width) if left + width < row else (0, row - 1)
    parts = (top / rows, (bottom + 1) / rows, left / row, (right + 1) / row)
    return [round(min(1.0, max(0.0, part)) * SCALE) for part in parts]
