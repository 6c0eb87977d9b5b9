"""Flash decode attention over keys and values in MXFP8: all query heads share one kv head.

A unit is one new token of a sequence against a chunk of 2048 cached tokens. Scores have tokens in the
partitions, (32 i + p, 4 g + q, head), as the words of the values need them (kv_blocks.py):

    score   TensorE adds the mask and mx(q) k to PSUM
    top     VectorE and TensorE find the maximum of each head
    value   TensorE subtracts the maximum, ScalarE computes the exponentials, VectorE quantises them, TensorE
            multiplies by the values; earlier chunks are scaled down and added

The first stages of a unit are issued before the last one of the previous unit. New keys and values, in
bfloat16, start the online softmax.
"""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.attention_mxfp8.decode_state import DecodeConstants, Queries
from nkilib.experimental.attention_mxfp8.kv_blocks import (
    BLOCK,
    CHUNK,
    GROUPS,
    LANES,
    ROWS,
    TOGETHER,
    WIDTH,
    ChunkTiles,
    blocks_of,
)

MOST_HEADS = 64
BUFFERS, TOGETHER_CHUNKS = 3, 1  # tiles in SBUF, and chunks of one: DMA moves few large pieces
CHUNK_BLOCKS = CHUNK // BLOCK


@nki.jit
def attention_mxfp8_tkg(
    q: Tensor,
    k_active: Tensor,
    v_active: Tensor,
    k_prior: Tensor,
    v_prior: Tensor,
    mask: Tensor,
    identity_hbm: Tensor | None = None,
    active_blocks_table: Tensor | None = None,
    sbm: BufferManager | None = None,
) -> Tensor:
    """Return softmax(q k^T) v of new tokens over cached ones in MXFP8 and over themselves, [B, H, d].

    | argument | shape |
    |---|---|
    | q | [B, H, s, d] bfloat16, scaled by the caller; H even and at most 64, d = 128 |
    | k_active, v_active | [B, d] bfloat16, or [B, s, d]: the new tokens |
    | k_prior, v_prior | [blocks, 32, 160] float32: 128 tokens each, see kv_blocks.py |
    | mask | [B bucket / 2048, 128, 16] uint8: 1 where a cached token counts |
    | identity_hbm | [128, 128] bfloat16, the identity; None: made on the chip |
    | active_blocks_table | [B, bucket / 128] int32; None: sequence b has blocks b bucket / 128 ... |

    s = 1 is a decode step. With s > 1, for speculative decoding, new token j sees the new ones up to itself
    and all cached ones of the mask, and the result is [B, H, s, d]. The bucket is a multiple of 2048 tokens.
    Element [32 i + p, 4 g + c] of a chunk's mask is token 512 g + 128 i + 32 c + p. `chunk_masks` makes
    masks, `pack_keys` and `pack_values` make caches. Queries and probabilities are rounded to MXFP8 too.
    Cached elements must be finite, also where they do not count. Two cores share sequences, and the heads of
    the last odd one. sbm has no effect: the compiler places all tiles.

    Read of the page (2.32): signature, shapes but for the order inside a block and a mask. Of 2.33 only that
    it has speculative decoding: its layout is ours.

    >>> import ml_dtypes, os
    >>> from nkilib.experimental.attention_mxfp8 import chunk_masks, pack_keys, pack_values
    >>> os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
    >>> q, new = np.ones((1, 64, 1, 128), ml_dtypes.bfloat16), np.zeros((1, 128), ml_dtypes.bfloat16)
    >>> zeros, ones = np.zeros((2048, 128), new.dtype), np.ones((2048, 128), new.dtype)
    >>> masks = chunk_masks(np.array([3]), 2048)
    >>> attention_mxfp8_tkg(q, new, new, pack_keys(zeros), pack_values(ones), masks)[0, 0, 0]  # 3 of 4 are 1
    0.75
    """
    check(q, k_active, v_active, k_prior, v_prior, mask, identity_hbm, active_blocks_table)
    batches, heads, steps, depth = q.shape
    blocks = k_prior.shape[0] // batches if active_blocks_table is None else active_blocks_table.shape[1]
    chunks = blocks // CHUNK_BLOCKS
    out = nl.ndarray((batches, heads, steps, depth), nl.bfloat16, buffer=nl.shared_hbm)
    shared = DecodeConstants(identity_hbm)
    buffers = new_buffers(chunks)
    stages: list = []
    for job in jobs_of(batches, heads):
        batch, first, count = job
        new = (
            k_active.reshape((batches, steps, depth))[batch],
            v_active.reshape((batches, steps, depth))[batch],
        )
        queries: list = []
        for step in range(steps):
            own = slice(first, first + count)
            queries.append(Queries(shared, q[batch, own, step], new, step, out[batch, own, step]))
        keys = blocks_of(k_prior, active_blocks_table, batch, blocks)
        values = blocks_of(v_prior, active_blocks_table, batch, blocks)
        bias = mask_bias(mask[batch * chunks : (batch + 1) * chunks])
        for part in TiledRange(chunks, TOGETHER_CHUNKS):
            own = slice(part.start_offset * CHUNK_BLOCKS, part.end_offset * CHUNK_BLOCKS)
            tiles = buffers[part.index % len(buffers)]
            tiles.load(keys[own], values[own])
            for number in range(part.size):
                for some in queries:
                    stages.append(some.score(tiles.chunk(number), bias[:, part.start_offset + number, :]))
                    stages[len(stages) - 1].find_top()
                    if len(stages) > 1:
                        stages[len(stages) - 2].add()
        if len(stages) > 0:
            stages[len(stages) - 1].add()
            stages = []
        for some in queries:
            some.store()
    return out.reshape((batches, heads, depth)) if steps == 1 else out


def jobs_of(batches: int, heads: int) -> list:
    """(sequence, first head, heads) of this core."""
    cores, core = get_verified_program_sharding_info("attention_mxfp8_tkg", (0, 1), 2)[1:]
    share = batches // cores
    jobs = []
    for batch in range(core * share, (core + 1) * share):
        jobs.append((batch, 0, heads))
    if batches % cores == 1:
        first, end = program_share(heads, 2)
        if end > first:
            jobs.append((batches - 1, first, end - first))
    return jobs


def new_buffers(chunks: int) -> list:
    """Tiles for chunks, with zeros off the diagonal of the keys."""
    groups = GROUPS * min(chunks, TOGETHER_CHUNKS)
    buffers = []
    for _ in range(min(BUFFERS, div_ceil(chunks, TOGETHER_CHUNKS))):
        keys = nl.ndarray((PMAX, groups, TOGETHER, WIDTH), nl.float32, buffer=nl.sbuf)
        nisa.memset(keys, 0.0, engine=nisa.gpsimd_engine)
        buffers.append(ChunkTiles(keys, nl.ndarray((PMAX, groups, WIDTH), nl.float32, buffer=nl.sbuf)))
    return buffers


def mask_bias(mask: Tensor) -> Tensor:
    """0 where a token counts, else a large negative number: [128, chunks, 16] bfloat16."""
    shape = (PMAX, mask.shape[0], mask.shape[2])
    tile, bias = nl.ndarray(shape, mask.dtype, buffer=nl.sbuf), nl.ndarray(shape, nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(tile, mask.permute((1, 0, 2)))
    nisa.tensor_scalar(bias, tile, nl.subtract, 1.0, op1=nl.multiply, operand1=32768.0)
    return bias


def check(
    q: Tensor,
    k_active: Tensor,
    v_active: Tensor,
    k_prior: Tensor,
    v_prior: Tensor,
    mask: Tensor,
    identity: Tensor | None,
    table: Tensor | None,
) -> None:
    named = (("q", q), ("k_active", k_active), ("v_active", v_active))
    optional = (("identity_hbm", identity), ("active_blocks_table", table))
    assert_tensors(named, optional)
    assert_tensors((("k_prior", k_prior), ("v_prior", v_prior), ("mask", mask)))
    kernel_assert(len(q.shape) == 4, f"q: got shape {tuple(q.shape)}, expected (B, H, s, d)")
    batches, heads, steps, depth = q.shape
    for pair in named:
        kernel_assert(pair[1].dtype == nl.bfloat16, f"{pair[0]}: got {pair[1].dtype}, expected bfloat16")
    kernel_assert(
        heads % 2 == 0 and heads <= MOST_HEADS, f"q: got {heads} heads, allowed are even numbers up to 64"
    )
    kernel_assert(depth == BLOCK, f"q: got head dimension {depth}, allowed is {BLOCK}")
    kernel_assert(steps <= PMAX, f"q: got {steps} new tokens, allowed are at most {PMAX}")
    shapes = ((batches, steps, depth), (batches, depth)) if steps == 1 else ((batches, steps, depth),)
    for pair in (("k_active", k_active), ("v_active", v_active)):
        kernel_assert(
            tuple(pair[1].shape) in shapes,
            f"{pair[0]}: got shape {tuple(pair[1].shape)}, allowed are {shapes}",
        )
    check_cache(batches, k_prior, v_prior, mask, table)
    if identity is not None:
        assert_shape(identity, (PMAX, PMAX), "identity_hbm")


def check_cache(batches: int, k_prior: Tensor, v_prior: Tensor, mask: Tensor, table: Tensor | None) -> None:
    blocks = k_prior.shape[0]
    assert_shape(k_prior, (blocks, ROWS, WIDTH), "k_prior")
    assert_shape(v_prior, (blocks, ROWS, WIDTH), "v_prior")
    for pair in (("k_prior", k_prior), ("v_prior", v_prior)):
        kernel_assert(pair[1].dtype == nl.float32, f"{pair[0]}: got {pair[1].dtype}, expected float32")
    if table is None:
        kernel_assert(
            blocks % (batches * CHUNK_BLOCKS) == 0,
            f"k_prior: got {blocks} blocks, expected a multiple of {CHUNK_BLOCKS} for each sequence",
        )
        chunks = blocks // CHUNK_BLOCKS
    else:
        kernel_assert(
            len(table.shape) == 2 and table.shape[0] == batches and table.shape[1] % CHUNK_BLOCKS == 0,
            f"active_blocks_table: got shape {tuple(table.shape)}, expected ({batches}, a multiple of "
            f"{CHUNK_BLOCKS})",
        )
        kernel_assert(
            table.dtype in (nl.int32, nl.uint32), f"active_blocks_table: got {table.dtype}, expected int32"
        )
        chunks = batches * table.shape[1] // CHUNK_BLOCKS
    assert_shape(mask, (chunks, PMAX, GROUPS * LANES), "mask")
    kernel_assert(mask.dtype == nl.uint8, f"mask: got {mask.dtype}, expected uint8")


def attention_mxfp8_tkg_ref(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, k_active: np.ndarray, v_active: np.ndarray, length: int
) -> np.ndarray:
    """One sequence in float64, without quantisation: q [H, s, d], cached k and v [tokens, d]."""
    q, k, v, new_k, new_v = (np.float64(x) for x in (q, k, v, k_active, v_active))
    steps = q.shape[1]
    keys, values = np.concatenate([k[:length], new_k]), np.concatenate([v[:length], new_v])
    scores = q @ keys.T
    later = np.arange(len(keys)) - length > np.arange(steps)[:, None]
    scores = np.where(later, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values
