"""Products: tile products of one stage that make up a large one.

Every sum of products has a column of stationary tiles and a column of moving ones. Where all pairs of some
stationary and some moving columns are asked for, they are one product: side by side the stationary tiles make
M, the moving ones N, and the terms make K. A factor whose tiles lie so in memory is used where it is; others
are packed first, and widened to float32 on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from ...machine.dtypes import FLOAT32
from .tracking import Task
from .values import Place, Value, as_matrix, reshaped

PACKED = 96 << 20  # bytes of one packed factor; larger products are cut


class Buffer:
    """Memory for a large product, or for a packed factor."""

    __slots__ = ("nbytes", "at")

    def __init__(self, nbytes: int):
        self.nbytes, self.at = nbytes, -1


class Tile(NamedTuple):
    """Part of a factor: rows and columns of it, and where they come from; None: as its shape says."""

    row: int
    rows: int
    column: int
    columns: int
    place: Place
    strides: tuple[int, int] | None


class Factor(NamedTuple):
    """[K, M]: a strided view of memory that is there, or tiles to be packed."""

    rows: int
    columns: int
    there: Place | None
    tiles: list[Tile]
    terms: int  # packed with the terms of a partition side by side: so many; 1: one behind the other

    @property
    def nbytes(self) -> int:
        return 0 if self.there is not None else 4 * self.rows * self.columns

    def packed(self) -> Iterator[tuple[Tile, int, Place]]:
        """Each tile, the row it begins in when it is packed, and where it comes from."""
        term = 0
        for tile in self.tiles:
            if tile.column == 0 and tile.row > 0:
                term += 1
            place = tile.place
            if tile.strides is not None:
                place = place._replace(shape=(tile.rows, tile.columns), strides=tile.strides)
            yield tile, term if self.terms > 1 else tile.row, place


class Gemm(NamedTuple):
    """left.T @ right, for the products of many tasks."""

    tasks: list[Task]
    left: Factor
    right: Factor
    target: Place | None  # where the result goes, if it is one matrix there
    result: Buffer | None  # else its memory
    copies: list[tuple[Value, int, int]]  # values that are stored elsewhere: row and column
    products: int  # of tiles


class Column(tuple):
    """The tiles that one side of a sum of products takes its terms from. Equal ones are one object."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class _Columns:
    """Finds equal columns. Tiles are numbered first: most are met many times, as the same object."""

    def __init__(self) -> None:
        self.by_object: dict[int, int] = {}
        self.by_place: dict[Place, int] = {}
        self.columns: dict[tuple[int, ...], Column] = {}

    def _number(self, place: Place) -> int:
        found = self.by_object.get(id(place))
        if found is None:
            found = self.by_place.setdefault(place, len(self.by_place))
            self.by_object[id(place)] = found
        return found

    def of(self, places: list[Place]) -> Column:
        known, number = self.by_object, self._number
        key = tuple([known[id(p)] if id(p) in known else number(p) for p in places])
        found = self.columns.get(key)
        if found is None:
            found = self.columns[key] = Column(places)
        return found


def merged(tasks: Sequence[Task]) -> list[Gemm]:
    """The products of a stage as large ones."""
    families: dict[Any, dict[tuple, Task]] = {}
    columns = _Columns()
    extra: list[Task] = []
    for task in tasks:
        terms = task.outs[0][1].terms
        left, right = columns.of([a for a, _ in terms]), columns.of([b for _, b in terms])
        family = families.setdefault(tuple([a.shape[0] for a in left]), {})
        if (left, right) in family:
            extra.append(task)
        else:
            family[left, right] = task
    found = [gemm for family in families.values() for gemm in _cover(family)]
    return found + (merged(extra) if extra else [])


def single(task: Task) -> Gemm:
    """The product of one task, by itself."""
    value = task.outs[0][1]
    value.placed = None
    left, right = (tuple([term[side] for term in value.terms]) for side in (0, 1))
    (gemm,) = _gemms([left], [right], {(left, right): task})
    return gemm


def _cover(family: dict[tuple, Task]) -> list[Gemm]:
    """Groups of products in which every stationary column meets every moving one."""
    rows: dict[Any, dict[Any, None]] = {}
    columns: dict[Any, dict[Any, None]] = {}
    for left, right in family:
        rows.setdefault(left, {})[right] = None
        columns.setdefault(right, {})[left] = None
    by_row = _classes(rows)
    by_column = _classes(columns)
    groups = by_row if len(by_row) <= len(by_column) else [(left, right) for right, left in by_column]
    return [
        gemm
        for left, right in groups
        for gemm in _gemms(sorted_by_place(left), sorted_by_place(right), family)
    ]


def _classes(met: dict[Any, dict[Any, None]]) -> list[tuple[list, list]]:
    """Those that meet the same others, with these others; everything in the order in which it was met."""
    found: dict[frozenset, tuple[list, list]] = {}
    for one, others in met.items():
        found.setdefault(frozenset(others), ([], list(others)))[0].append(one)
    return list(found.values())


def sorted_by_place(columns: list[tuple[Place, ...]]) -> list[tuple[Place, ...]]:
    """By base, in the order in which they are met, and then by offset."""
    bases: dict[Any, int] = {}
    for column in columns:
        bases.setdefault(column[0].base, len(bases))
    return sorted(columns, key=lambda column: (bases[column[0].base], column[0].offset))


def _gemms(left: list[tuple], right: list[tuple], family: dict[tuple, Task]) -> list[Gemm]:
    ways = _modes(left), _modes(right)
    modes = ways[0].keys() & ways[1].keys() or ways[0] or ways[1] or {"outer"}
    mode = "outer" if "outer" in modes else "inner"
    a, b = _factor(left, mode, ways[0].get(mode)), _factor(right, mode, ways[1].get(mode))
    for factor, columns, cut in ((a, left, 0), (b, right, 1)):
        if factor.nbytes > PACKED and len(columns) > 1:
            half = len(columns) // 2
            parts = (columns[:half], columns[half:])
            pairs = [(part, right) for part in parts] if cut == 0 else [(left, part) for part in parts]
            return [gemm for one, other in pairs for gemm in _gemms(one, other, family)]
    return [_gemm(left, right, a, b, family)]


# ---- factors -------------------------------------------------------------------------------------


def _strided(columns: Sequence[tuple[Place, ...]]) -> tuple[int, int] | None:
    """The strides that all tiles share, as matrices [K, M] of float32 of one base; None: they differ."""
    base = columns[0][0].base
    layouts: dict[tuple, None] = {}
    for column in columns:
        for place in column:
            if place.base is not base or place.dtype.storage != FLOAT32:
                return None
            layouts[place.shape, place.strides] = None
    shared = None
    for shape, own in layouts:
        rows, width = shape[0], prod(shape) // shape[0]
        found = reshaped(shape, own, (rows, width))
        if found is None:
            return None
        strides = (found[0] if rows > 1 else 0, found[1] if width > 1 else 1)
        if shared is None or (shared[0] == 0 and strides[1] == shared[1]):
            shared = strides
        elif strides != shared and not (strides[0] == 0 and strides[1] == shared[1]):
            return None
    return shared


def _width(column: tuple[Place, ...]) -> int:
    return prod(column[0].shape) // column[0].shape[0]


def _modes(columns: Sequence[tuple[Place, ...]]) -> dict[str, tuple[int, int]]:
    """How the terms of a factor may follow each other without being moved, and its strides then."""
    strides = _strided(columns)
    if strides is None:
        return {}
    rs, cs = strides
    for before, after in zip(columns, columns[1:], strict=False):
        step = _width(before) * cs
        if any(b.offset - a.offset != step for a, b in zip(before, after, strict=True)):
            return {}
    first = columns[0]
    depth, width = sum(p.shape[0] for p in first), sum(map(_width, columns))
    steps = [b.offset - a.offset for a, b in zip(first, first[1:], strict=False)]
    # the other columns lie as far from the first at every term, so their terms follow as its own do
    found = {}
    if all(step == p.shape[0] * rs for p, step in zip(first, steps, strict=False)) and _is_blas(
        rs, cs, depth, width
    ):
        found["outer"] = (rs or width, cs)
    uniform = len({p.shape[0] for p in first}) == 1 and len(set(steps)) <= 1
    step = steps[0] if steps else rs
    if uniform and (not steps or rs == len(first) * step) and _is_blas(step, cs, depth, width):
        found["inner"] = (step or (width if not steps else 0), cs)
    return found


def _is_blas(rs: int, cs: int, depth: int, width: int) -> bool:
    """A matrix that BLAS takes as it is: one of its strides is 1."""
    if depth == 1:
        return cs == 1
    return (cs == 1 and rs >= width) or (rs == 1 and cs >= depth)


def _factor(columns: Sequence[tuple[Place, ...]], mode: str, strides: tuple[int, int] | None) -> Factor:
    """With strides it lies so in memory; without, its tiles are packed."""
    first = columns[0]
    depth, width = sum(p.shape[0] for p in first), sum(map(_width, columns))
    if strides is not None:
        there = Place(first[0].base, first[0].offset, (depth, width), strides, first[0].dtype)
        return Factor(depth, width, there, [], 1)
    inner = mode == "inner" and len({p.shape[0] for p in first}) == 1
    return Factor(depth, width, None, _tiles(columns), len(first) if inner else 1)


def _tiles(columns: Sequence[tuple[Place, ...]]) -> list[Tile]:
    """What is packed: neighbours in memory together."""
    found: list[Tile] = []
    row = 0
    for term in range(len(columns[0])):
        rows = columns[0][term].shape[0]
        begin = column = following = 0
        first: Place | None = None
        strides: tuple[int, int] | None = None
        for places in columns:
            place = places[term]
            own = as_matrix(place, rows)
            if (
                first is None
                or own is None
                or own != strides
                or place.offset != following
                or place.base is not first.base
                or place.dtype is not first.dtype
            ):
                if first is not None:
                    found.append(_tile(row, rows, begin, column, first, strides))
                first, strides, begin = place, own, column
            column += prod(place.shape) // rows
            if strides is not None:
                following = first.offset + (column - begin) * strides[1]
        assert first is not None
        found.append(_tile(row, rows, begin, column, first, strides))
        row += rows
    return found


def _tile(row: int, rows: int, begin: int, end: int, first: Place, strides: tuple[int, int] | None) -> Tile:
    if strides is not None and prod(first.shape) != rows * (end - begin):  # several in a row
        first = first._replace(shape=(rows, end - begin), strides=strides)
    return Tile(row, rows, begin, end - begin, first, strides)


# ---- the result ----------------------------------------------------------------------------------


def _gemm(left: list[tuple], right: list[tuple], a: Factor, b: Factor, family: dict[tuple, Task]) -> Gemm:
    tasks: list[Task] = []
    spots: list[tuple[Value, int, int, int, int]] = []
    row = 0
    for one in left:
        rows, column = _width(one), 0
        for other in right:
            columns = _width(other)
            task = family[one, other]
            tasks.append(task)
            spots.append((task.outs[0][1], row, column, rows, columns))
            column += columns
        row += rows
    count = len(tasks) * len(left[0])
    target = _target(spots, a.columns, b.columns)
    if target is not None:
        return Gemm(tasks, a, b, target, None, [], count)
    result = Buffer(4 * a.columns * b.columns)
    copies = []
    for value, row, column, _, _ in spots:
        value.placed = (result, row * b.columns + column, b.columns)
        if value.sunk is not None:
            copies.append((value, row, column))
    return Gemm(tasks, a, b, None, result, copies, count)


def _target(spots: list[tuple[Value, int, int, int, int]], rows: int, columns: int) -> Place | None:
    """One matrix in HBM that all values of a product are stored in."""
    first = spots[0][0].sunk
    if first is None:
        return None
    strides = reshaped(first.shape, first.strides, (spots[0][3], spots[0][4]))
    if strides is None:
        return None
    rs, cs = strides
    if spots[0][3] == 1:  # a single row has no stride
        if rows > 1:
            return None
        rs = columns
    for value, row, column, height, width in spots:
        if value.sunk is None or value.sunk.base is not first.base:
            return None
        own = reshaped(value.sunk.shape, value.sunk.strides, (height, width))
        if own is None or value.sunk.offset != first.offset + row * rs + column:
            return None
        if (own[0] != rs and height > 1) or (own[1] != 1 and width > 1):
            return None
    if rs < columns or (cs != 1 and spots[0][4] > 1):
        return None
    return Place(first.base, first.offset, (rows, columns), (rs, 1), first.dtype)
