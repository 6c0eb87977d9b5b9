"""Heat maps: cells are elements or means of blocks, figures are exact, and the budget holds."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest

from nki.report.heatmaps import CELLS, Cells, HeatMaps, coarsened, grid

RANDOM = np.random.default_rng(0)


def unpacked(maps, number):
    """The cells of a map, read as the page reads them: numbers, and which were never written."""
    columns = maps.columns()
    raw = zlib.decompress(base64.b64decode(list(maps.chunks())[columns["map_chunk"][number] - 1]))
    width, start = int(columns["map_width"][number]), int(columns["map_start"][number])
    shape = int(columns["map_down"][number]), int(columns["map_across"][number])
    bits = np.frombuffer(raw, f"<u{width}", shape[0] * shape[1], start).reshape(shape)
    never = bits == (1 << 8 * width) - 1
    wide = bits.astype(np.uint32) << np.uint32(16) if width == 2 else bits
    return wide.view("<f8" if width == 8 else "<f4"), never


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_map_holds_every_element(dtype):
    values = RANDOM.standard_normal((16, 100)).astype(dtype)
    unwritten = np.zeros(values.shape, bool)
    unwritten[3, 5:9] = True
    values[0, 0] = np.nan
    maps = HeatMaps()
    cells, never = unpacked(maps, maps.add(0, values, unwritten))
    assert np.array_equal(never, unwritten)
    assert np.array_equal(cells[~never], values[~never], equal_nan=True)


@pytest.mark.parametrize("shape", [(128, 512), (100, 333), (3, 9000), (20000, 3), (1, 5000)])
@pytest.mark.parametrize("hole", [False, True])
def test_a_large_map_holds_the_means_of_blocks(shape, hole):
    values = RANDOM.standard_normal(shape).astype(np.float32)
    unwritten = np.zeros(shape, bool)
    unwritten[-1, -1] = hole
    found = coarsened(Cells(values, unwritten if hole else None, True), CELLS[0])
    rows, columns = found.values.shape
    assert rows * columns <= CELLS[0] and not found.exact
    tops = [row * shape[0] // rows for row in range(rows + 1)]
    lefts = [column * shape[1] // columns for column in range(columns + 1)]
    for row, column in [(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 3)]:
        block = values[tops[row] : tops[row + 1], lefts[column] : lefts[column + 1]]
        assert found.values[row, column] == pytest.approx(block.astype(float).mean(), rel=1e-4, abs=1e-5)
    assert (found.unwritten is not None and found.unwritten.sum() == 1) == hole


def test_a_block_with_a_nan_is_nan_and_others_are_not():
    values = np.ones((128, 512), np.float32)
    values[64, 256] = np.nan
    maps = HeatMaps()
    cells, _ = unpacked(maps, maps.add(0, values, None))
    assert np.isnan(cells).sum() == 1 and np.nanmin(cells) == np.nanmax(cells) == 1
    assert maps.figures[0].nans == 1


def test_figures_are_of_all_written_elements():
    values = RANDOM.standard_normal((128, 700)).astype(np.float32)
    unwritten = np.zeros(values.shape, bool)
    unwritten[:, 600:] = True
    values[:, 600:] = 1e30
    values[2, 3] = np.nan
    maps = HeatMaps()
    maps.add(0, values, unwritten)
    figures, known = maps.figures[0], values[:, :600].astype(float)
    assert (figures.low, figures.high) == (np.nanmin(known), np.nanmax(known))
    assert figures.mean == pytest.approx(np.nanmean(known))
    assert (figures.nans, figures.unwritten) == (1, 128 * 100)


@pytest.mark.parametrize("rows", [1, 5, 64, 128, 5000])
@pytest.mark.parametrize("columns", [1, 7, 512, 100_000])
@pytest.mark.parametrize("most", CELLS)
def test_a_grid_fits_its_matrix_and_its_limit(rows, columns, most):
    down, across = grid(rows, columns, most)
    assert 1 <= down <= rows and 1 <= across <= columns and down * across <= max(most, 1)


def test_maps_become_coarser_then_fewer_within_the_budget():
    budget = 40_000
    maps = HeatMaps(budget)
    seen = []
    for step in range(400):
        maps.add(step, RANDOM.standard_normal((64, 64)).astype(np.float32), None)
        assert maps.nbytes <= budget
        seen.append((maps.level, maps.every))
    assert seen[0] == (0, 1) and seen[-1][0] == len(CELLS) - 1 and seen[-1][1] > 1
    with_cells = [step for step, cells in enumerate(maps.cells) if cells is not None]
    assert with_cells == list(range(0, 400, maps.every))
    assert len(maps.figures) == 400
    assert maps.nbytes == sum(cells.nbytes for cells in maps.cells if cells is not None)


def test_a_map_that_a_later_sampled_step_shows_stays():
    maps = HeatMaps(3 * 2 * CELLS[-1])
    maps.level = len(CELLS) - 1
    one = np.ones((32, 32), np.float32)
    shown = maps.add(1, one, None)
    maps.use(shown, 8)
    maps.use(shown, 9)
    for step in range(10, 14):
        maps.add(step, one, None)
    assert maps.every > 1 and maps.cells[shown] is not None
