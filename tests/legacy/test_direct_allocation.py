"""Direct allocation of the old API: tiles lie where a kernel puts them, and share bytes there."""

from __future__ import annotations

import numpy as np
import pytest

import nki_legacy.old_api as nki
import nki_legacy.old_api.isa as nisa
import nki_legacy.old_api.language as nl
from nki.errors import NkiError, NkiWarning
from nki_legacy.old_api import compiler as ncc

BLOCKS, ROWS, COLUMNS = 4, 128, 32
TILE = COLUMNS * 4  # bytes of a partition


def numbers(seed):
    return np.random.default_rng(seed).standard_normal((BLOCKS, ROWS, COLUMNS)).astype(np.float32)


def add_with(buffers):
    """A kernel that adds blocks through tiles in the three buffers."""

    @nki.jit
    def add(a, b):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        shape = (BLOCKS, nl.par_dim(ROWS), COLUMNS)
        left, right, total = (nl.ndarray(shape, dtype=a.dtype, buffer=buffer) for buffer in buffers)
        for i in nl.affine_range(BLOCKS):
            left[i], right[i] = nl.load(a[i]), nl.load(b[i])
            total[i] = nisa.tensor_tensor(left[i], right[i], op=nl.add)
            nl.store(out[i], total[i])
        return out

    return add


def modulo(number, tiles=2):
    return ncc.sbuf.mod_alloc(base_addr=number * tiles * TILE, num_free_tiles=(tiles,))


def places(kernel, *args):
    """The distinct addresses of a kernel's tiles."""
    program = kernel.trace(*args)
    tiles = {view.storage for i in program.walk() for view in i.views() if view.storage.address is not None}
    return sorted({tile.address for tile in tiles})


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_blocks_take_turns_on_their_tiles(tiles):
    a, b = numbers(0), numbers(1)
    kernel = add_with([modulo(n, tiles) for n in range(3)])
    np.testing.assert_array_equal(kernel(a, b), a + b)
    assert places(kernel, a, b) == [(0, n * TILE) for n in range(3 * tiles)]


def test_tiles_at_one_address_share_their_bytes():
    a, b = numbers(0), numbers(1)
    kernel = add_with([modulo(0), modulo(0), modulo(1)])
    with pytest.warns(NkiWarning, match="at the same address"):
        np.testing.assert_array_equal(kernel(a, b), b + b)


def test_a_function_places_blocks():
    asked = []

    def place(block, partitions, nbytes):
        asked.append((block, partitions, nbytes))
        return 0, (BLOCKS - 1 - block[0]) * nbytes

    a, b = numbers(0), numbers(1)
    others = [ncc.sbuf.mod_alloc(base_addr=n * BLOCKS * TILE, num_free_tiles=(BLOCKS,)) for n in (1, 2)]
    kernel = add_with([ncc.sbuf.alloc(place), *others])
    np.testing.assert_array_equal(kernel(a, b), a + b)
    assert asked[:BLOCKS] == [((i,), ROWS, TILE) for i in range(BLOCKS)]


def test_a_tile_is_found_by_two_block_dimensions_and_a_partition():
    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        buffer = ncc.sbuf.mod_alloc(base_addr=TILE, num_par_tiles=(1, 2), num_free_tiles=(2, 1))
        tiles = nl.ndarray((2, 2, nl.par_dim(64), COLUMNS), dtype=a.dtype, buffer=buffer)
        for i in range(2):
            for j in range(2):
                tiles[i, j] = nl.load(a[i, j])
        for i in range(2):
            for j in range(2):
                nl.store(out[i, j], tiles[i, j])
        return out

    a = numbers(0).reshape(2, 2, 128, COLUMNS)[:, :, :64].copy()
    np.testing.assert_array_equal(kernel(a), a)
    assert places(kernel, a) == [(0, TILE), (0, 2 * TILE), (64, TILE), (64, 2 * TILE)]


def test_products_are_placed_in_banks():
    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((BLOCKS, COLUMNS, COLUMNS), dtype=a.dtype, buffer=nl.shared_hbm)
        buffer = ncc.psum.mod_alloc(base_bank=3, num_bank_tiles=(2,))
        products = nl.ndarray((BLOCKS, nl.par_dim(COLUMNS), COLUMNS), dtype=nl.float32, buffer=buffer)
        for i in range(BLOCKS):
            products[i] = nisa.nc_matmul(nl.load(a[i]), nl.load(b[i]))
            nl.store(out[i], nl.copy(products[i]))
        return out

    a, b = numbers(0), numbers(1)
    expected = np.einsum("bkm,bkn->bmn", a.astype(np.float64), b)
    np.testing.assert_allclose(kernel(a, b), expected, rtol=1e-4, atol=1e-4)
    assert places(kernel, a, b) == [(0, 3 * 2048), (0, 4 * 2048)]


def test_tiles_for_other_block_dimensions_are_refused():
    a = numbers(0)
    with pytest.raises(NkiError, match=r"mod_alloc: \(2, 2\) has 2 entries, the tensor 1 block dimensions"):
        add_with([ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2, 2))] * 3)(a, a)


@pytest.mark.parametrize("loop", [nl.affine_range, nl.sequential_range])
def test_a_later_iteration_takes_the_addresses_of_the_first(loop):
    """The compiler traces the body of such a loop once: what its Python counts does not grow."""
    a, b = numbers(0), numbers(1)

    @nki.jit
    def add(a, b):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        byte = 0
        for i in loop(2):
            for j in loop(2):
                tiles = []
                for tensor in (a, b):
                    buffer = ncc.sbuf.mod_alloc(base_addr=byte)
                    tile = nl.ndarray((nl.par_dim(ROWS), COLUMNS), dtype=a.dtype, buffer=buffer)
                    tile[...] = nl.load(tensor[2 * i + j])
                    tiles.append(tile)
                    byte += TILE
                nl.store(out[2 * i + j], tiles[0] + tiles[1])
                if j == 1:
                    break
        return out

    np.testing.assert_array_equal(add(a, b), a + b)
    assert places(add, a, b) == [(0, 0), (0, TILE)]


def test_loops_that_are_unrolled_have_addresses_of_their_own():
    a = numbers(0)

    @nki.jit
    def copy(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        byte = 0
        for i in nl.static_range(2):
            for j in nl.affine_range(2):
                buffer = ncc.sbuf.mod_alloc(base_addr=byte)
                tile = nl.ndarray((nl.par_dim(ROWS), COLUMNS), dtype=a.dtype, buffer=buffer)
                tile[...] = nl.load(a[2 * i + j])
                nl.store(out[2 * i + j], tile)
            byte += TILE
        return out

    np.testing.assert_array_equal(copy(a), a)
    assert places(copy, a) == [(0, 0), (0, TILE)]
    assert repr(nl.affine_range(1, 4)) == "range(1, 4)" and len(nl.affine_range(3)) == 3
    assert list(nl.sequential_range(1, 7, 2)) == [1, 3, 5] and nl.affine_range(5)[-1] == 4
