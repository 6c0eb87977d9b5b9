import ml_dtypes
import numpy as np
from kernel_support import random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_io import load, piece, store
from nkilib.core.utils.tiled_range import TiledRange


@nki.jit
def copied(x, dtype):
    out = nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
    for rows in TiledRange(x.shape[0], 128):
        for columns in TiledRange(x.shape[1], 100):
            store(piece(out, rows, columns), load(piece(x, rows, columns)))
    return out


@nki.jit
def through_psum(x):
    tile = load(x, nl.float32)
    psum = nl.ndarray(x.shape, nl.float32, buffer=nl.psum)
    nisa.tensor_copy(psum, tile)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    store(out, psum)
    return out


def test_pieces_cover_a_matrix_with_ragged_edges():
    x = random((300, 250))
    np.testing.assert_array_equal(run(copied, x, nl.float32), x)


def test_a_store_casts_to_the_dtype_in_memory():
    x = random((130, 30))
    np.testing.assert_array_equal(run(copied, x, nl.bfloat16), x.astype(ml_dtypes.bfloat16))


def test_loads_cast_and_stores_drain_psum():
    x = random((20, 30), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(through_psum, x), x)
