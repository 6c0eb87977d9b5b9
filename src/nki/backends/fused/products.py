"""Products: merges the tile products of one stage into large ones.

Every sum of products has a column of stationary tiles and a column of moving ones. Where all pairs of some
stationary and some moving columns occur, they are one product: the stationary tiles side by side are M, the
moving ones N, and the terms K. A factor whose tiles already lie so in memory is used as it is; others are
packed first, and widened to float32 on the way. With `narrow`, for devices that multiply
narrow floats as they are, so are factors of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from ...machine.dtypes import FLOAT32
from .steps import BLOCK
from .tracking import Node
from .values import Elements, SSAValue, matrix_strides, reshape_strides

PACKED = 96 << 20  # bytes of one packed factor; larger products are split
NARROW = ("bfloat16", "float16")  # that devices multiply as they are, with float32 sums
ALIGNED = 8  # columns; products of other widths are up to four times slower on a GPU


class ProductBuffer:
    """Memory for a large product, with rows of `pitch` float32 numbers."""

    __slots__ = ("nbytes", "pitch", "at")

    def __init__(self, rows: int, pitch: int):
        self.nbytes, self.pitch, self.at = 4 * rows * pitch, pitch, -1


class FactorTile(NamedTuple):
    """A block of a factor, and the elements it is packed from; `strides` None: in their own shape."""

    row: int
    rows: int
    column: int
    columns: int
    elements: Elements
    strides: tuple[int, int] | None


class Factor(NamedTuple):
    """A matrix [K, M]: a strided view of existing memory, or tiles to be packed."""

    rows: int
    columns: int
    view: Elements | None
    tiles: list[FactorTile]
    terms: int  # that are interleaved row by row when packed; 1: one after the other

    @property
    def nbytes(self) -> int:
        return 0 if self.view is not None else 4 * self.rows * self.columns

    def packed(self) -> Iterator[tuple[FactorTile, int, Elements]]:
        """Iterate over the tiles: each with its first row when packed, and its source."""
        term = 0
        for tile in self.tiles:
            if tile.column == 0 and tile.row > 0:
                term += 1
            elements = tile.elements
            if tile.strides is not None:
                elements = elements._replace(shape=(tile.rows, tile.columns), strides=tile.strides)
            yield tile, term if self.terms > 1 else tile.row, elements


class Gemm(NamedTuple):
    """left.T @ right, for the products of many nodes."""

    nodes: list[Node]
    left: Factor
    right: Factor
    target: Elements | None  # the result in HBM, if it is one matrix there
    result: ProductBuffer | None  # else its buffer
    copies: list[tuple[SSAValue, int, int]]  # values that are stored elsewhere: row and column
    products: int  # of tiles

    @property
    def packed_bytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def is_one_block(self) -> bool:
        """Whether one thread computes it: the blocks of a product depend on its size alone."""
        return max(self.left.columns, self.right.columns) <= BLOCK


class Pack(NamedTuple):
    """A factor that is packed into a value, for products of later steps."""

    factor: Factor
    value: SSAValue


class Column(tuple):
    """The tiles of one side of a sum of products, term by term. Equal columns are one object."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class _Columns:
    """Finds equal columns. Tiles are numbered first: most occur many times, as the same object."""

    def __init__(self) -> None:
        self.by_object: dict[int, int] = {}
        self.by_elements: dict[Elements, int] = {}
        self.columns: dict[tuple[int, ...], Column] = {}

    def _number(self, elements: Elements) -> int:
        found = self.by_object.get(id(elements))
        if found is None:
            found = self.by_elements.setdefault(elements, len(self.by_elements))
            self.by_object[id(elements)] = found
        return found

    def of(self, places: tuple[Elements, ...]) -> Column:
        key: Any = tuple(map(self.by_object.get, map(id, places)))
        if None in key:
            key = tuple(map(self._number, places))
        found = self.columns.get(key)
        if found is None:
            found = self.columns[key] = Column(places)
        return found


def merge_products(nodes: Sequence[Node], narrow: bool = False) -> list[Gemm]:
    """Return the products of a stage as large ones."""
    families: dict[Any, dict[tuple, Node]] = {}
    columns = _Columns()
    extra: list[Node] = []
    for node in nodes:
        terms = node.outputs[0][1].terms
        left, right = map(columns.of, zip(*terms, strict=True))
        family = families.setdefault(tuple([a.shape[0] for a in left]), {})
        if (left, right) in family:
            extra.append(node)
        else:
            family[left, right] = node
    found = [gemm for family in families.values() for gemm in _cover(family, narrow)]
    return found + (merge_products(extra, narrow) if extra else [])


def single_product(node: Node, narrow: bool = False) -> Gemm:
    """Return the product of one node by itself."""
    value = node.outputs[0][1]
    value.in_product = None
    left, right = (tuple([term[side] for term in value.terms]) for side in (0, 1))
    (gemm,) = _gemms([left], [right], {(left, right): node}, narrow)
    return gemm


def _cover(family: dict[tuple, Node], narrow: bool) -> list[Gemm]:
    """Return groups of products that contain every pair of their stationary and moving columns."""
    rows: dict[Any, dict[Any, None]] = {}
    columns: dict[Any, dict[Any, None]] = {}
    for left, right in family:
        rows.setdefault(left, {})[right] = None
        columns.setdefault(right, {})[left] = None
    by_row = _group(rows)
    by_column = _group(columns)
    # with one moving column, the tiles of the result are contiguous: steps on a device read them as they are
    fewer = len(by_row) < len(by_column) if narrow else len(by_row) <= len(by_column)
    groups = by_row if fewer else [(left, right) for right, left in by_column]
    return [
        gemm
        for left, right in groups
        for gemm in _gemms(sorted_by_offset(left), sorted_by_offset(right), family, narrow)
    ]


def _group(paired: dict[Any, dict[Any, None]]) -> list[tuple[list, list]]:
    """Group columns that are paired with the same others, in order of occurrence."""
    found: dict[frozenset, tuple[list, list]] = {}
    for one, others in paired.items():
        found.setdefault(frozenset(others), ([], list(others)))[0].append(one)
    return list(found.values())


def sorted_by_offset(columns: list[tuple[Elements, ...]]) -> list[tuple[Elements, ...]]:
    """Sort columns by base, in order of occurrence, and then by offset."""
    bases: dict[Any, int] = {}
    for column in columns:
        bases.setdefault(column[0].base, len(bases))
    return sorted(columns, key=lambda column: (bases[column[0].base], column[0].offset))


def _gemms(left: list[tuple], right: list[tuple], family: dict[tuple, Node], narrow: bool) -> list[Gemm]:
    ways = _modes(left, narrow), _modes(right, narrow)
    modes = ways[0].keys() & ways[1].keys() or ways[0] or ways[1] or {"outer"}
    mode = "outer" if "outer" in modes else "inner"
    a, b = _factor(left, mode, ways[0].get(mode)), _factor(right, mode, ways[1].get(mode))
    for factor, columns, cut in ((a, left, 0), (b, right, 1)):
        if factor.nbytes > PACKED and len(columns) > 1:
            half = len(columns) // 2
            parts = (columns[:half], columns[half:])
            pairs = [(part, right) for part in parts] if cut == 0 else [(left, part) for part in parts]
            return [gemm for one, other in pairs for gemm in _gemms(one, other, family, narrow)]
    return [_gemm(left, right, a, b, family, narrow)]


# ---- factors -------------------------------------------------------------------------------------


def _strided(columns: Sequence[tuple[Elements, ...]], narrow: bool) -> tuple[int, int] | None:
    """Return the strides of all tiles as matrices [K, M] of one dtype in one base; None: they differ."""
    base, dtype = columns[0][0].base, columns[0][0].dtype
    if dtype.storage != FLOAT32 and not (narrow and dtype in NARROW):
        return None
    layouts: dict[tuple, None] = {}
    for column in columns:
        for elements in column:
            if elements.base is not base or elements.dtype.storage != dtype.storage:
                return None
            layouts[elements.shape, elements.strides] = None
    shared = None
    for shape, own in layouts:
        rows, width = shape[0], prod(shape) // shape[0]
        found = reshape_strides(shape, own, (rows, width))
        if found is None:
            return None
        strides = (found[0] if rows > 1 else 0, found[1] if width > 1 else 1)
        if shared is None or (shared[0] == 0 and strides[1] == shared[1]):
            shared = strides
        elif strides != shared and not (strides[0] == 0 and strides[1] == shared[1]):
            return None
    return shared


def _width(column: tuple[Elements, ...]) -> int:
    return prod(column[0].shape) // column[0].shape[0]


def _modes(columns: Sequence[tuple[Elements, ...]], narrow: bool) -> dict[str, tuple[int, int]]:
    """Return the orders of terms in which a factor needs no packing, and its strides in each."""
    strides = _strided(columns, narrow)
    if strides is None:
        return {}
    rs, cs = strides
    if columns[0][0].dtype in NARROW and any(step > 1 and step % ALIGNED for step in strides):
        return {}
    for before, after in zip(columns, columns[1:], strict=False):
        step = _width(before) * cs
        if any(b.offset - a.offset != step for a, b in zip(before, after, strict=True)):
            return {}
    first = columns[0]
    depth, width = sum(p.shape[0] for p in first), sum(map(_width, columns))
    steps = [b.offset - a.offset for a, b in zip(first, first[1:], strict=False)]
    # other columns have the same distance to the first at every term, so their terms follow as its own do
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
    """Return whether BLAS takes a matrix as it is: one of its strides is 1."""
    if depth == 1:
        return cs == 1
    return (cs == 1 and rs >= width) or (rs == 1 and cs >= depth)


def _factor(columns: Sequence[tuple[Elements, ...]], mode: str, strides: tuple[int, int] | None) -> Factor:
    """Return a factor: a view of memory with these strides; None: its tiles are packed."""
    first = columns[0]
    depth, width = sum(p.shape[0] for p in first), sum(map(_width, columns))
    if strides is not None:
        view = Elements(first[0].base, first[0].offset, (depth, width), strides, first[0].dtype)
        return Factor(depth, width, view, [], 1)
    inner = mode == "inner" and len({p.shape[0] for p in first}) == 1
    return Factor(depth, width, None, _tiles(columns), len(first) if inner else 1)


def _tiles(columns: Sequence[tuple[Elements, ...]]) -> list[FactorTile]:
    """Return the tiles to pack; adjacent ones are merged."""
    found: list[FactorTile] = []
    layouts: dict[tuple, tuple[int, tuple[int, int] | None]] = {}  # width and strides as a matrix
    row = 0
    for term in range(len(columns[0])):
        rows = columns[0][term].shape[0]
        begin = column = following = 0
        first: Elements | None = None
        strides: tuple[int, int] | None = None
        for places in columns:
            elements = places[term]
            layout = rows, elements.shape, elements.strides
            if layout not in layouts:
                layouts[layout] = prod(elements.shape) // rows, matrix_strides(elements, rows)
            width, own = layouts[layout]
            if (
                first is None
                or own is None
                or own != strides
                or elements.offset != following
                or elements.base is not first.base
                or elements.dtype is not first.dtype
            ):
                if first is not None:
                    found.append(_tile(row, rows, begin, column, first, strides))
                first, strides, begin = elements, own, column
            column += width
            if strides is not None:
                following = first.offset + (column - begin) * strides[1]
        assert first is not None
        found.append(_tile(row, rows, begin, column, first, strides))
        row += rows
    return found


def _tile(
    row: int, rows: int, begin: int, end: int, first: Elements, strides: tuple[int, int] | None
) -> FactorTile:
    if strides is not None and prod(first.shape) != rows * (end - begin):  # several merged
        first = first._replace(shape=(rows, end - begin), strides=strides)
    return FactorTile(row, rows, begin, end - begin, first, strides)


# ---- the result ----------------------------------------------------------------------------------


def _gemm(
    left: list[tuple], right: list[tuple], a: Factor, b: Factor, family: dict[tuple, Node], narrow: bool
) -> Gemm:
    nodes: list[Node] = []
    blocks: list[tuple[SSAValue, int, int, int, int]] = []
    row = 0
    for one in left:
        rows, column = _width(one), 0
        for other in right:
            columns = _width(other)
            node = family[one, other]
            nodes.append(node)
            blocks.append((node.outputs[0][1], row, column, rows, columns))
            column += columns
        row += rows
    count = len(nodes) * len(left[0])
    target = matrix_of([(block[0].stored_at, *block[1:]) for block in blocks], a.columns, b.columns)
    if target is not None:
        return Gemm(nodes, a, b, target, None, [], count)
    result = ProductBuffer(a.columns, -(-b.columns // ALIGNED) * ALIGNED if narrow else b.columns)
    copies = []
    for value, row, column, _, _ in blocks:
        value.in_product = (result, row * result.pitch + column, result.pitch)
        if value.stored_at is not None:
            copies.append((value, row, column))
    return Gemm(nodes, a, b, None, result, copies, count)


def matrix_of(
    blocks: Sequence[tuple[Elements | None, int, int, int, int]], rows: int, columns: int
) -> Elements | None:
    """Return the matrix in HBM that has all these blocks at their row and column, or None."""
    first, _, _, *size = blocks[0]
    strides = None if first is None else reshape_strides(first.shape, first.strides, tuple(size))
    if first is None or strides is None:
        return None
    rs, cs = strides
    if size[0] == 1:  # a single row has no stride
        if rows > 1:
            return None
        rs = columns
    for stored_at, row, column, height, width in blocks:
        if stored_at is None or stored_at.base is not first.base:
            return None
        own = reshape_strides(stored_at.shape, stored_at.strides, (height, width))
        if own is None or stored_at.offset != first.offset + row * rs + column:
            return None
        if (own[0] != rs and height > 1) or (own[1] != 1 and width > 1):
            return None
    if rs < columns or (cs != 1 and size[1] > 1):
        return None
    return Elements(first.base, first.offset, (rows, columns), (rs, 1), first.dtype)
