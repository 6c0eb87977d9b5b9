"""The feature pyramid of a call: where the cells of a head and level are, and which a point is between.

A point is between four cells: a patch. Its first cell is kept inside the level, so that one DMA reads the
whole patch of 128 points; the weight of a cell is max(0, 1 - distance) along each axis, which is 0 for the
cells of a patch that a point outside the level has no part in.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_whole_numbers import floor_nisa_kernel
from nkilib.core.utils.clamping import clamp
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor

FLOATS = (nl.float32, nl.bfloat16, nl.float16)
MAX_CELLS = 2**24  # cell numbers are computed in float32
GROUP = 4096  # products of a tile in each partition


class Level(nl.NKIObject):
    """A feature map: its first cell, its height and width, and the part of a 2 x 2 patch that it has."""

    def __init__(self, start: int, height: int, width: int):
        self.start = start
        self.height = height
        self.width = width
        self.rows = min(2, height)
        self.columns = min(2, width)


class Pyramid(nl.NKIObject):
    """Sizes and options of a call. Its heads are those of a core."""

    def __init__(self, value: Tensor, shapes: tuple, starts: tuple, locations: Tensor, options: Options):
        options.check()
        check_sizes(value, shapes, starts, locations, options)
        self.options = options
        self.batches = value.shape[0]
        self.heads = options.head_count(value)
        self.size = value.shape[3]
        self.cells = options.cell_count(value)
        self.queries = locations.shape[1 if options.pairs_last else 2]
        self.points = locations.shape[4 if options.pairs_last else 5]
        self.levels = []
        for i in range(len(shapes)):
            self.levels.append(Level(starts[i], shapes[i][0], shapes[i][1]))
        self.samples = len(shapes) * self.points
        self.step = self.size * self.heads if options.cells_first else self.size  # from a cell to the next
        rows = self.batches * self.cells * (1 if options.cells_first else self.heads)
        self.table = value.reshape((rows, self.step))

    def first(self, batch: int, head: int, level: Level) -> int:
        """Where a level of a head begins in the table, in elements."""
        if self.options.cells_first:
            return (batch * self.cells + level.start) * self.step + head * self.size
        return ((batch * self.heads + head) * self.cells + level.start) * self.step

    def group(self) -> int:
        """How many samples are multiplied at a time."""
        return max(1, GROUP // (4 * self.size))


class Options(nl.NKIObject):
    """The documented options."""

    def __init__(self, value_layout: str, locations_layout: str, align_corners: bool, padding_mode: str):
        self.value_layout = value_layout
        self.locations_layout = locations_layout
        self.cells_first = value_layout == "BLNC"
        self.pairs_last = locations_layout == "BQHLP2"
        self.align_corners = align_corners
        self.padding_mode = padding_mode
        self.border = padding_mode == "border"

    def check(self) -> None:
        self.one_of("value_layout", self.value_layout, ("BLNC", "BNLC"))
        self.one_of("sampling_locations_layout", self.locations_layout, ("BQHLP2", "B2QHLP"))
        self.one_of("padding_mode", self.padding_mode, ("zeros", "border"))

    def one_of(self, name: str, got: str, allowed: tuple) -> None:
        kernel_assert(got in allowed, f"{name}: got {got!r}, allowed are {allowed[0]!r} and {allowed[1]!r}")

    def head_count(self, value: Tensor) -> int:
        return value.shape[2 if self.cells_first else 1]

    def cell_count(self, value: Tensor) -> int:
        return value.shape[1 if self.cells_first else 2]


def check_sizes(value: Tensor, shapes: tuple, starts: tuple, locations: Tensor, options: Options) -> None:
    """Check shapes and dtypes of the values and locations."""
    assert_tensors((("value", value), ("sampling_locations", locations)))
    kernel_assert(
        len(value.shape) == 4 and value.dtype in FLOATS and value.shape[3] <= GROUP // 4,
        f"value: got {value.dtype} of shape {tuple(value.shape)}, expected {options.value_layout} in "
        f"float32, bfloat16 or float16 with C_h <= {GROUP // 4}",
    )
    cells = 0
    kernel_assert(len(shapes) >= 1, "spatial_shapes: got no level, expected one or more")
    kernel_assert(
        len(starts) == len(shapes),
        f"level_start_index: got {len(starts)} levels, expected {len(shapes)} as spatial_shapes has",
    )
    for i in range(len(shapes)):
        kernel_assert(
            starts[i] == cells, f"level_start_index: got {starts[i]} for level {i}, expected {cells}"
        )
        cells += shapes[i][0] * shapes[i][1]
    got = options.cell_count(value)
    kernel_assert(
        cells == got and cells <= MAX_CELLS,
        f"spatial_shapes: got {cells} cells, expected {got} as in value, up to {MAX_CELLS}",
    )
    shape = tuple(locations.shape)
    heads, levels = (2, 3) if options.pairs_last else (3, 4)
    kernel_assert(
        len(shape) == 6
        and (shape[0], shape[heads], shape[levels])
        == (value.shape[0], options.head_count(value), len(shapes))
        and shape[5 if options.pairs_last else 1] == 2,
        f"sampling_locations: got shape {shape}, expected {options.locations_layout}",
    )


def check_weights(pyramid: Pyramid, weights: Tensor) -> None:
    assert_tensors((("attention_weights", weights),))
    expected = (pyramid.batches, pyramid.queries, pyramid.heads, len(pyramid.levels), pyramid.points)
    assert_shape(weights, expected, "attention_weights")


class Axis(nl.NKIObject):
    """One coordinate of the points of some queries and heads, [queries, heads * levels * points]."""

    def __init__(self, pyramid: Pyramid, located: Any, across: bool):
        queries, heads, levels, points = located.shape
        self.pyramid = pyramid
        self.across = across
        self.shape = located.shape
        self.count = heads * levels * points
        self.place = nl.ndarray(located.shape, nl.float32, buffer=nl.sbuf)
        self.base = like(self.place)
        for i in range(levels):
            self.locate(i, located[:, :, i, :])
        whole = like(self.place, nl.int32)
        flat = (queries, self.count)
        floor_nisa_kernel(self.place.reshape(flat), whole.reshape(flat), queries, self.count, None)
        for i in range(levels):
            clamp(self.base[:, :, i, :], whole[:, :, i, :], max(0, self.extent(i) - 2), 0)
        self.distance = like(self.place)
        nisa.tensor_tensor(self.distance, self.place, self.base, nl.subtract)

    def extent(self, level: int) -> int:
        """Return the width of a level, or its height."""
        return self.pyramid.levels[level].width if self.across else self.pyramid.levels[level].height

    def scale(self, level: int) -> int:
        """Return how many cells the range of a location has."""
        return self.extent(level) - 1 if self.pyramid.options.align_corners else self.extent(level)

    def locate(self, level: int, located: Any) -> None:
        """Locations in [0, 1] to cells; far outside is as good as just outside."""
        place, extent = self.place[:, :, level, :], self.extent(level)
        shift = 0.0 if self.pyramid.options.align_corners else -0.5
        nisa.tensor_scalar(place, located, nl.multiply, self.scale(level), op1=nl.add, operand1=shift)
        border = self.pyramid.options.border
        clamp(place, place, extent - 1 if border else extent + 1, 0 if border else -2)

    def weights(self) -> Tensor:
        """The parts of the two cells of a patch, [queries, samples, 2]."""
        both = nl.ndarray((self.shape[0], self.count, 2), nl.float32, buffer=nl.sbuf)
        away = new_column(self.shape[0])
        distance = self.distance.reshape((self.shape[0], self.count))
        for i in range(2):
            nisa.memset(away, -1.0 * i)
            nisa.activation(both[:, :, i], nl.abs, distance, bias=away)
            nisa.tensor_scalar(
                both[:, :, i], both[:, :, i], nl.minimum, 1.0, op1=nl.subtract, operand1=1.0, reverse1=True
            )
        return both

    def slopes(self) -> Tensor:
        """The derivatives of the weights by the location, [queries, samples, 2]."""
        both = nl.ndarray((self.shape[0], self.count, 2), nl.float32, buffer=nl.sbuf)
        distance = self.distance.reshape((self.shape[0], self.count))
        steps = []
        for i in range(4):
            step = like(distance)
            nisa.tensor_scalar(step, distance, nl.greater_equal, i - 1.0)
            steps.append(step)
        for i in range(2):  # 1 from -1 on, -1 from 0 on, 0 from 1 on: of the distance from the cell
            nisa.scalar_tensor_tensor(both[:, :, i], steps[i + 1], nl.multiply, -2.0, nl.add, steps[i])
            nisa.tensor_tensor(both[:, :, i], both[:, :, i], steps[i + 2], nl.add)
        factor = self.factors()
        nisa.tensor_tensor(both, both, factor.expand_dim(2).broadcast(2, 2), nl.multiply)
        return both

    def factors(self) -> Any:
        """How fast a place moves with its location: not at all beyond a border. [queries, samples]."""
        factor = like(self.place)
        for i in range(self.shape[2]):
            part, place = factor[:, :, i, :], self.place[:, :, i, :]
            if self.pyramid.options.border:
                nisa.tensor_scalar(part, place, nl.greater, 0.0, op1=nl.multiply, operand1=self.scale(i))
                nisa.scalar_tensor_tensor(part, place, nl.less, self.extent(i) - 1.0, nl.multiply, part)
            else:
                nisa.memset(part, self.scale(i))
        return factor.reshape((self.shape[0], self.count))


class Points(nl.NKIObject):
    """The points that some queries and heads sample: their patches and the parts of its cells."""

    def __init__(self, pyramid: Pyramid, locations: Tensor, batch: int, queries: Any, first: int, end: int):
        self.pyramid = pyramid
        axes = located(pyramid, locations, batch, queries, first, end)
        self.x = axes[0]
        self.y = axes[1]
        self.across = self.x.weights()
        self.down = self.y.weights()
        self.cell = like(self.x.base, nl.int32)
        for i in range(len(pyramid.levels)):
            width = float(pyramid.levels[i].width)
            down, across = self.y.base[:, :, i, :], self.x.base[:, :, i, :]
            nisa.scalar_tensor_tensor(self.cell[:, :, i, :], down, nl.multiply, width, nl.add, across)

    def patches(self, head: int, own: int, batch: int) -> Tensor:
        """The cells around the points of a head, [queries, samples, 2, 2, size]; `own`: its number here."""
        p = self.pyramid
        queries = self.cell.shape[0]
        tile = nl.ndarray((queries, p.samples, 2, 2, p.size), p.table.dtype, buffer=nl.sbuf)
        for i in range(len(p.levels)):
            level = p.levels[i]
            part = tile[:, i * p.points : (i + 1) * p.points]
            if level.rows * level.columns < 4:
                nisa.memset(part, 0.0)
            for k in range(p.points):
                pattern = [[p.step, queries], [level.width * p.step, level.rows]]
                pattern += [[p.step, level.columns], [1, p.size]]
                places = self.cell[:, own, i, k : k + 1]
                cells = p.table.ap(pattern, offset=p.first(batch, head, level), vector_offset=places)
                nisa.dma_copy(part[:, k, 0 : level.rows, 0 : level.columns, :], cells)
        return tile


def located(p: Pyramid, locations: Tensor, batch: int, queries: Any, first: int, end: int) -> tuple:
    """The two coordinates of the points of some queries and heads."""
    rows = (queries.start_offset, queries.end_offset)
    if p.options.pairs_last:
        both = load(locations[batch, rows[0] : rows[1], first:end])
        return Axis(p, both[:, :, :, :, 0], True), Axis(p, both[:, :, :, :, 1], False)
    across = load(locations[batch, 0, rows[0] : rows[1], first:end])
    down = load(locations[batch, 1, rows[0] : rows[1], first:end])
    return Axis(p, across, True), Axis(p, down, False)


def corner_weights(down: Tensor, across: Tensor) -> Tensor:
    """The products of the parts along both axes, [queries, samples, 2, 2]."""
    queries, samples = down.shape[0], down.shape[1]
    tile = nl.ndarray((queries, samples, 2, 2), nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        tile, down.expand_dim(3).broadcast(3, 2), across.expand_dim(2).broadcast(2, 2), nl.multiply
    )
    return tile


def weighted(weights: Tensor, parts: Tensor) -> Tensor:
    """weights [queries, samples] times parts [queries, samples, 2]."""
    tile = like(parts)
    nisa.tensor_tensor(tile, parts, weights.expand_dim(2).broadcast(2, 2), nl.multiply)
    return tile


def load_weights(weights: Tensor, batch: int, queries: Any, first: int, end: int) -> Any:
    """Attention weights of some queries and heads, [queries, samples] in float32."""
    view = weights[batch, queries.start_offset : queries.end_offset, first:end]
    tile = load(view)
    single = like(tile, nl.float32)
    nisa.activation(single, nl.copy, tile)
    return single.reshape((single.shape[0], single.shape[1] * single.shape[2] * single.shape[3]))
