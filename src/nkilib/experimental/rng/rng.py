"""The random numbers of GpSimdE: reading and setting its state, generating 32-bit words. trn2 and later.

Each of the 128 lanes has an XORWOW generator with six words of state, which advances once for every word.
The core retains the state between kernels:

>>> set_rng_state_gpsimd(np.array([[1, 2, 3, 4, 5, 6]], np.uint32))
array([[1, 2, 3, 4, 5, 6]], dtype=uint32)
>>> generate_random(np.empty((1, 3), np.int32), 3)
array([[ 362529,  726208, 1109386]], dtype=int32)
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.foreach.flat_tiles import flat_tiles

NUM_RNG_SEEDS = 6
WORDS = (nl.uint32, nl.int32)
TILE_COLUMNS = 2048  # transfers of 1 MiB keep the DMA engines busy
WEYL_STEP = 362437  # what XORWOW adds to its counter


@nki.jit
def get_rng_state_gpsimd(tensor_state: Tensor) -> Tensor:
    """Return the state of lane 0, [1, 6]. The argument, [1, 6] of uint32 or int32, only gives the dtype."""
    check_state(tensor_state)
    state = nl.ndarray((1, NUM_RNG_SEEDS), nl.uint32, buffer=nl.sbuf)
    nisa.rand_get_state(state)
    return as_result(state, tensor_state.dtype)


@nki.jit
def set_rng_state_gpsimd(tensor_state: Tensor) -> Tensor:
    """Set the state of every lane to the words of tensor_state, [1, 6] of uint32 or int32; returns them.

    Lanes with the same state generate the same words: see generate_random.
    """
    check_state(tensor_state)
    states = nl.ndarray((PMAX, NUM_RNG_SEEDS), tensor_state.dtype, buffer=nl.sbuf)
    nisa.dma_copy(states, tensor_state.broadcast(0, PMAX))
    nisa.rand_set_state(states.view(nl.uint32))
    return as_result(states[0:1], tensor_state.dtype)


@nki.jit
def generate_random(output: Tensor, n_elements: int) -> Tensor:
    """Return [1, n_elements] uniform random words in the dtype of `output`, [1, n] of int32 or uint32.

    Words are generated tile by tile and stored lane by lane: 128 lanes with w words each fill 128 w
    consecutive elements, the first w of them from lane 0, the next from lane 1; w is at most TILE_COLUMNS.
    The fewer than 128 words at the end come from lane 0. Every lane advances by the same number of words, so
    that lane 0's state stands for all after set_rng_state_gpsimd: get and set repeat the sequence from any
    point. On two cores each generates its own contiguous part; both advance equally.
    """
    check_version()
    assert_tensors((("output", output),))
    kernel_assert(output.dtype in WORDS, f"output: got dtype {output.dtype}, allowed are int32 and uint32")
    assert_shape(output, (1, n_elements), "output")
    result = nl.ndarray((1, n_elements), output.dtype, buffer=nl.shared_hbm)
    with nl.no_reorder():  # each instruction changes the state for the next
        for tile in flat_tiles(n_elements, TILE_COLUMNS):
            words = nl.ndarray((PMAX, tile.columns), output.dtype, buffer=nl.sbuf)
            nisa.rng(words, engine=nisa.engine.gpsimd)
            tile.store(result, words[0 : tile.partitions])
        start, end = program_share(n_elements, PMAX)
        behind = words_of_a_lane(n_elements - (end - start)) - words_of_a_lane(end - start)
        if behind > 0:
            nisa.rng(nl.ndarray((PMAX, behind), nl.uint32, buffer=nl.sbuf), engine=nisa.engine.gpsimd)
    return result


def words_of_a_lane(count: int) -> int:
    """Return by how many words each lane of a core advances that generates so many."""
    return count // PMAX + count % PMAX


def check_state(tensor_state: Tensor) -> None:
    check_version()
    assert_tensors((("tensor_state", tensor_state),))
    assert_shape(tensor_state, (1, NUM_RNG_SEEDS), "tensor_state")
    kernel_assert(
        tensor_state.dtype in WORDS,
        f"tensor_state: got dtype {tensor_state.dtype}, allowed are uint32 and int32",
    )


def check_version() -> None:
    version = nisa.get_nc_version()
    kernel_assert(
        version >= nisa.nc_version.gen3,
        f"platform: got {version}, allowed are NeuronCore-v3 (trn2) and later",
    )


def as_result(state: Tensor, dtype: DTypeLike) -> Tensor:
    """Store [1, 6] words to HBM; on two cores the state of core 0."""
    result = nl.ndarray((1, NUM_RNG_SEEDS), dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.dma_copy(result, state.view(dtype))
    return result


# ---- reference: one lane, in Python's integers ------------------------------------------------------


def xorwow_ref(state: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (`count` words, the state afterwards) of a generator that starts with six words of state."""
    x, y, z, w, v, d = (int(word) for word in np.asarray(state, np.uint32).ravel())
    words = []
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) ^ t ^ (t << 1)) & 0xFFFFFFFF
        d = (d + WEYL_STEP) & 0xFFFFFFFF
        words.append((v + d) & 0xFFFFFFFF)
    return np.array(words, np.uint32), np.array([x, y, z, w, v, d], np.uint32)


def generate_random_ref(state: np.ndarray, n_elements: int) -> np.ndarray:
    """Compute generate_random as uint32, on one core whose lanes all have this state."""
    columns = n_elements // PMAX
    stream = xorwow_ref(state, columns + n_elements % PMAX)[0]
    cuts = range(TILE_COLUMNS, columns, TILE_COLUMNS)
    tiles = [np.tile(tile, PMAX) for tile in np.split(stream[:columns], cuts)]
    return np.concatenate([*tiles, stream[columns:]]).reshape(1, n_elements)
