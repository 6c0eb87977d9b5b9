"""A run as steps: what each instruction reads and writes, where, in which iteration, with its values.

`before` takes an instruction that is about to run, `after` one that has run. What a page shows of a run is in
the columns of the recording: one row for each step, operand, tile or heat map.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..ir.effects import effects
from ..ir.instruction import Instruction, ProgramPosition
from ..ir.storage import Storage
from ..ir.tensor import whole
from ..ir.view import View
from ..ir.writers import Writers, elements, has_own_elements
from ..machine.dtypes import f32
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF
from .heatmaps import BUDGET, HeatMaps
from .packed import Files, Names, differences, narrowest, turn_columns
from .placement import first_fit
from .slices import Slices

ROLES = ("reads", "adds_to", "writes", "expected", "difference")
MEMORIES = ("hbm", "sbuf", "psum")
SCALE = 65535  # of the box of an operand in its tile
NO_MAP = -1
Values = Callable[[View], tuple[np.ndarray, np.ndarray | None]]


class Agreement(NamedTuple):
    """How a result agrees with a reference."""

    wrong: int  # elements
    elements: int


class Recording:
    """Collects the steps of a run on core 0.

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
    ):
        self.name, self.machine, self.values = name, machine, values
        self.cores = 1
        self.budget, self.steps = budget, steps
        self.turns: Mapping[tuple[int, int], Any] = {}  # the iteration of each step, by core and handle
        self.begin()

    def begin(self) -> None:
        """Forget everything: a run that could not finish starts again."""
        self.maps = HeatMaps(self.budget, self.steps)
        self.files = Files()
        self.handles: list[int] = []  # of each step, its number among those of its core
        self.errors: dict[int, float] = {}  # the largest of what a step wrote; 1 is allowed
        self.agreements: list[Agreement] = []
        self.writers = Writers()  # of HBM, where results are
        self._kinds, self._shapes, self._operands = Names(), Names(), Names()
        self._kind = array("L")
        self._rows: array[int] = array("q")  # of each operand: step, tile, role, name, shape, begin, map
        self._boxes = array("H")
        self._slices = Slices()
        self._tiles: dict[Storage, int] = {}
        self._lives: list[list[int]] = []  # of each tile: first and last step
        self._known: dict[Storage, dict[tuple, int]] = {}  # maps of what a storage holds now

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.handles)

    def summary(self) -> str:
        """Return what was recorded, in a line."""
        parts = [f"{self.count:,} steps"]
        if self.cores > 1:
            parts.append(f"core 0 of {self.cores}")
        if self.values is None:
            parts.append("no values")
        elif self.steps is not None:
            parts.append(f"values of steps {self.steps.start + 1:,} to {min(self.steps.stop, self.count):,}")
        if self.maps.every > 1:
            parts.append(f"values of one step in {self.maps.every}")
        return " · ".join(parts)

    # ---- the run ---------------------------------------------------------------------------------

    def before(self, instruction: Instruction) -> None:
        """Take the values that an instruction is about to read."""
        if self.handles and _number(instruction) <= self.handles[-1]:
            self.begin()
        done = effects(instruction)
        step = self.count
        for role, views in enumerate((done.reads, done.adds_to)):
            for view in views:
                self._map_of(view, step, always=role == 1)

    def after(self, instruction: Instruction) -> None:
        """Add the step of an instruction that has run."""
        done = effects(instruction)
        step, site = self.count, instruction.site
        engine = instruction.engine_name()
        kind = (instruction.public or type(instruction).__name__, engine, *self.files.place(site))
        rows = [(view, role) for role in (0, 1) for view in (done.reads, done.adds_to)[role]]
        found = [(view, role, self._known_map(view)) for view, role in rows]
        for view in done.written:
            if view.storage.address is not None:  # other storages may share its bytes
                self._known.clear()
            self._known.pop(view.storage, None)
            if not view.storage.on_chip:
                self.writers.note(step + 1, view.bare())
        found += [(view, 2, self._map_of(view, step, always=True)) for view in done.written]
        for view, role, number in found:
            self._add(step, view, role, _operand_name(instruction, view, role > 0), number)
        self._kind.append(self._kinds(kind))
        self.handles.append(_number(instruction))

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
        shown = view if view.indirection is None else whole(view.storage, None)
        values, unwritten = self.values(shown)
        if not (always or sampled or unwritten is not None):
            return NO_MAP
        matrix = _numbers(values, shown)
        mask = None if unwritten is None else unwritten.reshape(matrix.shape)
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
        loops, turns = turn_columns([self.turns.get((0, handle), ()) for handle in self.handles])
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
            "views": np.bincount(step, minlength=self.count).astype(np.uint16),
            "error": errors,
            **turns,
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

    def _tile_columns(self) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
        labels, types, rows = Names(), Names(), []
        for storage, (first, last) in zip(self._tiles, self._lives, strict=True):
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
                )
            )
        names = ("memory", "label", "type", "first", "last", "rows", "width", "partition")
        columns = dict(zip(names, np.array(rows, np.int64).reshape(-1, len(names)).T, strict=True))
        columns["at"] = self._addresses()
        table = {"labels": list(labels), "types": list(types)}
        return table, {f"tile_{name}": column.astype(np.uint32) for name, column in columns.items()}

    def _addresses(self) -> np.ndarray:
        """Return the byte of its partitions at which each tile is drawn: the user's, or in the first gap."""
        found = np.zeros(len(self._lives), np.int64)
        for buffer in (SBUF, PSUM):
            chosen = [(tile, s) for s, tile in self._tiles.items() if s.buffer is buffer]
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


def _numbers(values: np.ndarray, view: View) -> np.ndarray:
    """Return values as a matrix of float32; of float64, for integers that need it."""
    dtype = view.dtype
    if not dtype.castable:  # packed lanes: their bits
        values, wide = np.ascontiguousarray(values).view(dtype.bits), dtype.itemsize > 2
    else:
        wide = dtype.is_integer and dtype.itemsize > 2
    numbers = values.astype(np.float64) if wide or not dtype.castable else f32(values, dtype)
    return _matrix(numbers, view)


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
