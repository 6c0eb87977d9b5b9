"""The parts that projections are built from: operand orders, results, transposes, FP8."""

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.fp8 import quantize_rows, quantize_static, row_maximum
from nkilib.core.utils.projection import (
    Activations,
    adjacent_tiles,
    chunk_tiles,
    project,
    span_columns,
    tapered,
    token_major_blocks,
    weight_chunks,
)
from nkilib.core.utils.projection_results import ColumnTerms, finish_into, new_rows
from nkilib.core.utils.transposes import rows_from_spread, spread_rows, transpose_rows
from support import run_tiles

RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def contraction_major(x):
    """[tokens, size] as [128, tiles, tokens], padded with NaN, which must not be read."""
    tokens, size = x.shape
    padded = np.full((tokens, -(-size // 128) * 128), np.nan, np.float32)
    padded[:, :size] = x
    return np.ascontiguousarray(padded.reshape(tokens, -1, 128).transpose(2, 1, 0))


def hbm(tile):
    """The contents of a tile in HBM, where weights come from."""
    tensor = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(tensor, tile)
    return tensor


@pytest.mark.parametrize("tokens", [4, 40, 100])
def test_both_operand_orders_give_the_same_sums(tokens):
    size, columns = 100, 300
    x, weight = numbers(tokens, size), numbers(size, columns)

    def body(by_token, by_feature, activations, weights):
        operand, matrix = Activations(activations, size), hbm(weights)
        rows = new_rows(tokens, columns, nl.float32)
        finish_into(rows, 0, project(operand, matrix, 0, columns, feature_major=False), ColumnTerms(), 0)
        nisa.tensor_copy(by_token, rows[0])
        for block in project(operand, matrix, 0, columns, feature_major=True):
            nisa.tensor_copy(by_feature[0 : block.columns, block.column // 128, :], block.sums)

    shapes = [((tokens, columns), "float32"), np.zeros((128, 3, tokens), np.float32)]
    y, yT = run_tiles(body, [contraction_major(x), weight], shapes)
    expected = x.astype(np.float64) @ weight
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        yT.transpose(2, 1, 0).reshape(tokens, -1)[:, :columns], expected, rtol=1e-4, atol=1e-4
    )


def test_few_tokens_share_a_bank():
    def body(dst):
        blocks = token_major_blocks(20, 2000, packed=True)
        assert [block.lane for block in blocks] == [0, 32, 64, 96]
        assert [block.columns for block in blocks] == [512, 512, 512, 464]
        assert [block.lane for block in token_major_blocks(20, 1000, packed=False)] == [0, 0]
        assert [(b.token, b.tokens) for b in token_major_blocks(200, 100, packed=True)] == [
            (0, 128),
            (128, 72),
        ]
        nisa.memset(dst, 0.0)

    run_tiles(body, [], [((1, 1), "float32")])


@pytest.mark.parametrize("tokens, columns", [(4, 4096), (64, 4096), (128, 2048), (200, 1024), (512, 512)])
def test_a_span_is_as_wide_as_half_of_psum_allows(tokens, columns):
    def body(dst):
        x = nl.ndarray((128, 1, tokens), nl.bfloat16)
        weight = nl.ndarray((128, 8192), nl.bfloat16, buffer=nl.shared_hbm)
        assert span_columns(Activations(x, 128), weight) == columns
        nisa.memset(dst, 0.0)

    run_tiles(body, [], [((1, 1), "float32")])


def test_weights_come_in_chunks_of_a_power_of_two_and_a_short_rest():
    def body(dst):
        x = nl.ndarray((128, 8, 4), nl.bfloat16)
        weight = nl.ndarray((1000, 2048), nl.bfloat16, buffer=nl.shared_hbm)
        chunks = weight_chunks(Activations(x, 900, row=100), 2048, weight)
        assert [(c.tile, c.row, c.tiles, c.partitions) for c in chunks] == [
            (0, 100, 2, 128),
            (2, 356, 2, 128),
            (4, 612, 2, 128),
            (6, 868, 1, 128),
            (7, 996, 1, 4),
        ]
        nisa.memset(dst, 0.0)

    assert [chunk_tiles(n) for n in (512, 1024, 3000, 9000)] == [16, 8, 2, 1]
    run_tiles(body, [], [((1, 1), "float32")])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_become_contraction_major(dtype):
    rows = numbers(70, 300).astype(np.dtype(dtype))
    (got,) = run_tiles(
        lambda dst, x: transpose_rows(dst, 0, 0, x), [rows], [(np.zeros((128, 3, 70), rows.dtype))]
    )
    assert np.array_equal(got.transpose(2, 1, 0).reshape(70, 384)[:, :300], rows)


def test_the_layout_with_adjacent_columns_in_a_partition_and_back():
    rows = numbers(70, 512)

    def body(there, back, x):
        tile = spread_rows([x])
        nisa.tensor_copy(there, tile)
        rows_from_spread(back, tile)

    there, back = run_tiles(body, [rows], [((128, 4, 70), "float32"), ((70, 512), "float32")])
    assert np.array_equal(there, rows.T.reshape(128, 4, 70))
    assert np.array_equal(back, rows)


def test_fp8_by_rows_and_by_one_scale():
    x = numbers(60, 200)
    scale = np.full((128, 1), 0.01, np.float32)

    def body(rows, scales, static, data, inverse):
        nisa.tensor_copy(scales, quantize_rows(rows, data, row_maximum(data), 240.0, bound=2.0))
        quantize_static(static, data, inverse, 240.0)

    fp8 = ml_dtypes.float8_e4m3
    shapes = [((60, 200), fp8), ((60, 1), "float32"), ((60, 200), fp8)]
    rows, scales, static = run_tiles(body, [x, 1 / scale], shapes)
    clipped = np.clip(x, -2, 2)
    expected = np.abs(clipped).max(1, keepdims=True) / 240
    np.testing.assert_allclose(scales, expected, rtol=1e-6)
    assert np.array_equal(rows, (clipped / scales).astype(fp8))
    assert np.array_equal(static, np.clip(x / scale[:60], -240, 240).astype(fp8))


def test_the_scale_of_a_row_of_zeros_is_not_zero():
    def body(rows, scales, data):
        nisa.tensor_copy(scales, quantize_rows(rows, data, row_maximum(data), 240.0))

    zeros = np.zeros((4, 8), np.float32)
    rows, scales = run_tiles(body, [zeros], [((4, 8), ml_dtypes.float8_e4m3), ((4, 1), "float32")])
    assert (scales == np.float32(1e-5)).all() and (rows.astype(np.float32) == 0).all()


@pytest.mark.parametrize("tiles, adjacent", [(4, 4), (5, 4), (3, 4), (6, 2)])
def test_partitions_may_hold_neighbouring_rows(tiles, adjacent):
    tokens, columns = 5, 200
    x, weight = numbers(tokens, 128 * tiles), numbers(128 * tiles, columns)

    def body(dst, rows, *parts):
        tile = nl.ndarray((128, tiles, tokens), nl.float32, buffer=nl.sbuf)
        transpose_rows(tile, 0, 0, rows, adjacent)
        matrix = nl.ndarray(weight.shape, nl.float32, buffer=nl.shared_hbm)
        for k in range(tiles):
            nisa.dma_copy(matrix[128 * k : 128 * (k + 1)], parts[k])
        operand = Activations(tile, 128 * tiles, adjacent=adjacent)
        results = new_rows(tokens, columns, nl.float32)
        finish_into(results, 0, project(operand, matrix, 0, columns, feature_major=False), ColumnTerms(), 0)
        nisa.tensor_copy(dst, results[0])

    (y,) = run_tiles(body, [x, *np.split(weight, tiles)], [((tokens, columns), "float32")])
    np.testing.assert_allclose(y, x.astype(np.float64) @ weight, rtol=1e-4, atol=1e-4)


class Shaped:
    """A stub of a tensor that has only a shape and a dtype."""

    def __init__(self, *shape, dtype=nl.bfloat16):
        self.shape, self.dtype = shape, dtype


def test_rows_are_neighbours_where_whole_rows_are_loaded():
    assert adjacent_tiles(4, nl.bfloat16, Shaped(4096, 1024), 1024) == 4
    assert adjacent_tiles(4, nl.bfloat16, Shaped(4096, 1024), 512) == 1  # one of two cores
    assert adjacent_tiles(4, nl.bfloat16, Shaped(4096, 8192), 8192) == 1  # several spans


def test_pieces_become_smaller_towards_the_end_and_miss_nothing():
    def pieces(columns):
        return [(s.start_offset, s.end_offset) for s in tapered(columns)]

    assert pieces(4096) == [(0, 2048), (2048, 3072), (3072, 3584), (3584, 4096)]
    assert pieces(512) == [(0, 512)]
    assert pieces(700) == [(0, 512), (512, 700)]
