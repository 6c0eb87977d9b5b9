import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check import lint
from nkilib.core.utils.stream_shuffle_broadcast import stream_shuffle_broadcast
from support import run_tiles


@pytest.mark.tiny
@pytest.mark.parametrize("partitions", [1, 20, 32, 100, 128])
def test_one_row_reaches_every_partition(partitions):
    row = np.arange(5, dtype=np.float32)[None]
    (out,) = run_tiles(
        lambda dst, src: stream_shuffle_broadcast(src, dst), [row], [((partitions, 5), "float32")]
    )
    np.testing.assert_array_equal(out, np.broadcast_to(row, (partitions, 5)))


def test_a_tile_is_broadcast_in_place():
    x = np.arange(128 * 3, dtype=np.float32).reshape(128, 3)
    (out,) = run_tiles(lambda tile: stream_shuffle_broadcast(tile, tile), [], [x])
    np.testing.assert_array_equal(out, np.broadcast_to(x[:1], (128, 3)))


@nki.jit
def broadcast_kernel(x):
    tile = nl.ndarray((128, x.shape[1]), x.dtype)
    nisa.dma_copy(tile[0:1], x)
    stream_shuffle_broadcast(tile, tile)
    out = nl.ndarray(tile.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def test_it_compiles():
    assert [str(f) for f in lint(broadcast_kernel)] == []


def test_other_shapes_raise():
    x = np.zeros((4, 2, 3), np.float32)
    with pytest.raises(AssertionError, match="src: got 3 dimensions, expected 2"):
        run_tiles(lambda dst, src: stream_shuffle_broadcast(src, dst), [x], [((4, 6), "float32")])
    with pytest.raises(AssertionError, match="dst: got free size 3, expected 2 like src"):
        run_tiles(lambda dst, src: stream_shuffle_broadcast(src, dst), [x[:, :, 0]], [((4, 3), "float32")])
