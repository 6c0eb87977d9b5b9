"""Rotary position embedding in the layout of Hugging Face models, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.embeddings.rope import DTYPES
from nkilib.core.embeddings.rope_rotation import STEP_COLUMNS, Loads, add, product
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor

from ..utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from ..utils.kernel_helpers import get_program_sharding_info
from ..utils.tiled_range import TiledRange

NEIGHBOURS = 8  # positions in a partition: 2 KiB in one piece for 128 bf16 elements each
TILE_HEADS = 4  # heads that are loaded and stored together


@nki.jit
def rope_hf(
    q: Tensor,
    k: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    cos: Tensor = None,
    sin: Tensor = None,
    rope_cache: Tensor | None = None,
    backward: bool = False,
):
    """Write x cos + R(x) sin of q and k to q_out and k_out, and return the two.

    q is [B, Hq, S, d], k [B, Hk, S, d]; cos and sin are [B, S, d], or both are in rope_cache [S, 2 d],
    cosines first. R(x) is (-x2, x1) of the halves x1 and x2 of d. backward: x cos + R^T(x sin), the way back
    of gradients, where R^T(z) is (z2, -z1). In float32, rounded once. Two cores share the positions.

    >>> x = np.random.default_rng(0).standard_normal((1, 2, 16, 64)).astype(np.float32)
    >>> cos, sin = np.zeros((1, 16, 64), np.float32), np.ones((1, 16, 64), np.float32)  # a quarter turn
    >>> q, k = rope_hf(x, x, np.empty_like(x), np.empty_like(x), cos, sin)
    >>> bool((q[..., :32] == -x[..., 32:]).all() and (k[..., 32:] == x[..., :32]).all())
    True
    """
    check_arguments(q, k, q_out, k_out, cos, sin, rope_cache)
    d_head = q.shape[3]
    loads = Loads()
    for index in range(q.shape[0]):
        for run in own_runs(q.shape[2], index, min(NEIGHBOURS, STEP_COLUMNS // (d_head // 2))):
            if rope_cache is not None:
                angles = run.of(rope_cache)
                factors = factors_of(load(angles[:, :, 0:d_head]), load(angles[:, :, d_head:]), backward)
            else:
                factors = factors_of(load(run.of(cos[index])), load(run.of(sin[index])), backward)
            rotate_heads(q[index], q_out[index], run, factors, loads)
            rotate_heads(k[index], k_out[index], run, factors, loads)
    return q_out, k_out


@dataclass
class PositionRun(nl.NKIObject):
    """Positions from a start on, some neighbours in each partition: they travel in one piece."""

    start: int
    rows: int
    neighbours: int

    def of(self, x: Tensor) -> Any:
        """[rows, neighbours, ...] of [S, ...]."""
        positions = x[self.start : self.start + self.rows * self.neighbours]
        return positions.reshape_dim(0, (self.rows, self.neighbours))


def own_runs(sequence: int, batch: int, neighbours: int) -> list:
    """Return the runs of a sequence that this core rotates; positions that fill no partition are a run."""
    n_prgs, prg_id = get_program_sharding_info()[1:]
    runs = []
    for tile in TiledRange(sequence, PMAX * neighbours):
        if (tile.index + batch) % n_prgs == prg_id:
            rows, rest = tile.size // neighbours, tile.size % neighbours
            if rows > 0:
                runs.append(PositionRun(tile.start_offset, rows, neighbours))
            if rest > 0:
                runs.append(PositionRun(tile.end_offset - rest, rest, 1))
    return runs


def check_arguments(
    q: Tensor,
    k: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    rope_cache: Tensor | None,
) -> None:
    tensors = (("q", q), ("k", k), ("q_out", q_out), ("k_out", k_out))
    assert_tensors(tensors, (("cos", cos), ("sin", sin), ("rope_cache", rope_cache)))
    kernel_assert(len(q.shape) == 4, f"q: got shape {tuple(q.shape)}, expected (B, heads, S, d)")
    kernel_assert(len(k.shape) == 4, f"k: got shape {tuple(k.shape)}, expected (B, heads, S, d)")
    batch, heads, sequence, d_head = q.shape
    most = 2 * STEP_COLUMNS
    kernel_assert(
        d_head % 2 == 0 and d_head <= most,
        f"q: got head dimension {d_head}, allowed are even numbers up to {most}",
    )
    assert_shape(k, (batch, k.shape[1], sequence, d_head), "k")
    assert_shape(q_out, q.shape, "q_out")
    assert_shape(k_out, k.shape, "k_out")
    for operand in ((q, "q"), (k, "k")):
        kernel_assert(
            operand[0].dtype in DTYPES,
            f"{operand[1]}: got dtype {operand[0].dtype}, allowed are bfloat16, float16 and float32",
        )
    given = (cos is not None, sin is not None, rope_cache is not None)
    kernel_assert(
        given in ((True, True, False), (False, False, True)),
        f"cos, sin, rope_cache: got {given} (True: given), allowed are cos and sin, or rope_cache",
    )
    if rope_cache is not None:
        assert_shape(rope_cache, (sequence, 2 * d_head), "rope_cache")
    else:
        assert_shape(cos, (batch, sequence, d_head), "cos")
        assert_shape(sin, (batch, sequence, d_head), "sin")


def load(hbm: Tensor) -> Tensor:
    tile = nl.ndarray(hbm.shape, hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, hbm)
    return tile


def factors_of(cos: Tensor, sin: Tensor, backward: bool) -> tuple:
    """What x1 and x2 are multiplied by for the first half of the result, then for the second."""
    half = cos.shape[2] // 2
    neg_sin = like(sin[:, :, 0:half])
    nisa.activation(neg_sin, nl.copy, sin[:, :, 0:half], scale=-1.0)
    rest = sin[:, :, half : 2 * half]
    crossed = (rest, neg_sin) if backward else (neg_sin, rest)
    return cos[:, :, 0:half], crossed[0], crossed[1], cos[:, :, half : 2 * half]


def rotate_heads(x: Tensor, out: Tensor, run: PositionRun, factors: tuple, loads: Loads) -> None:
    """All heads of x [heads, S, d] in a run."""
    for heads in TiledRange(x.shape[0], TILE_HEADS):
        sources = x[heads.start_offset : heads.end_offset].permute((1, 0, 2))
        targets = out[heads.start_offset : heads.end_offset].permute((1, 0, 2))
        tile = load(run.of(sources).permute((0, 2, 1, 3)))  # [rows, heads, neighbours, d]
        rotated = nl.ndarray(tile.shape, out.dtype, buffer=nl.sbuf)
        step = max(1, STEP_COLUMNS // (run.neighbours * tile.shape[3] // 2))
        for some in TiledRange(heads.size, step):
            span = slice(some.start_offset, some.end_offset)
            rotate_tile(tile[:, span], rotated[:, span], factors, loads)
        nisa.dma_copy(run.of(targets).permute((0, 2, 1, 3)), rotated, dge_mode=nisa.dge_mode.hwdge)


def rotate_tile(x: Tensor, out: Tensor, factors: tuple, loads: Loads) -> None:
    """Some heads at once, which share the factors."""
    half = x.shape[3] // 2
    wide = []
    for factor in factors:
        wide.append(factor.expand_dim(1).broadcast(1, x.shape[1]))
    first, second = x[:, :, :, 0:half], x[:, :, :, half : 2 * half]
    add(out[:, :, :, 0:half], product(first, wide[0], loads), product(second, wide[1], loads), loads)
    add(out[:, :, :, half : 2 * half], product(first, wide[2], loads), product(second, wide[3], loads), loads)


def rope_hf_ref(
    q: np.ndarray,
    k: np.ndarray,
    cos: Any = None,
    sin: Any = None,
    rope_cache: np.ndarray | None = None,
    backward: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """rope_hf in numpy: R as a matrix, in float64."""
    d_head = q.shape[3]
    if rope_cache is not None:
        cos, sin = (part[None] for part in np.split(rope_cache, 2, axis=1))
    cos, sin = (x.astype(np.float64)[:, None] for x in (cos, sin))
    rotation = np.kron([[0, -1], [1, 0]], np.eye(d_head // 2))

    def rotated(x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        crossed = (wide * sin) @ rotation if backward else (wide @ rotation.T) * sin
        return (wide * cos + crossed).astype(x.dtype)

    return rotated(q), rotated(k)
