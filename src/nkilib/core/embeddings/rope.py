"""Rotary position embedding.

A pair of elements (lower, upper) is rotated by an angle: lower' = lower cos - upper sin, upper' = upper cos +
lower sin. In SBUF lower and upper elements lie side by side in the same partitions, so only DMA distinguishes
the contiguous layout (element i pairs with i + d/2) from the interleaved one (2i with 2i + 1). As d/2 is 64
or 32, two or four parts of the tokens share the 128 partitions.

Six products and sums per pair in float32 take longer on VectorE alone than the data takes to travel. So
products are shared with GpSimd, and sums with TensorE, which adds two tiles by multiplying with the identity;
and 16-bit pairs are rotated with three products instead of four.

>>> x = np.ones((64, 1, 1, 2), np.float32)
>>> quarter_turn = np.zeros((32, 1, 2), np.float32), np.ones((32, 1, 2), np.float32)  # cos, sin
>>> RoPE(x, *quarter_turn)[[0, 32], 0, 0, 0].tolist()
[-1.0, 1.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.embeddings.rope_rotation import (
    Loads,
    angle_factors,
    load_angles,
    load_below,
    rotate,
)
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import Tensor

from ..utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from ..utils.kernel_helpers import get_program_sharding_info
from ..utils.tensor_view import TensorView
from ..utils.tiled_range import TiledRange

if TYPE_CHECKING:
    from nkilib.core.utils.tensor_view import TensorView

TILE_COLUMNS = 2048  # pairs per partition that are loaded and stored together

MAX_BATCH = 64
MAX_HEADS = 16
MAX_SEQUENCE = 512
MAX_RELAYOUT = 512  # columns of one permutation matmul
HEAD_DIMS = (64, 128)
DTYPES = (nl.bfloat16, nl.float16, nl.float32)


@nki.jit
def RoPE(
    x_in: Tensor,
    cos: Tensor,
    sin: Tensor,
    lnc_shard: bool = False,
    contiguous_layout: bool = True,
    relayout_in_sbuf: bool = False,
):
    """Rotate every pair of elements of x_in [d_head, B, n_heads, S] by the angle of its position.

    cos and sin are [d_head/2, B, S]; the result is like x_in. With h = d_head/2, i < h, in float32 and
    rounded once:

        out[i] = x[i] cos[i] - x[i+h] sin[i]        out[i+h] = x[i+h] cos[i] + x[i] sin[i]

    With contiguous_layout=False the same holds for the pairs (x[2i], x[2i+1]). relayout_in_sbuf brings that
    layout about by matmuls with a permutation instead of strided DMA, which small tensors prefer. With
    lnc_shard two cores share the tokens; else the first does all.

    >>> x = np.random.default_rng(0).standard_normal((64, 2, 3, 16)).astype(np.float32)
    >>> angle = np.arange(32, dtype=np.float32)[:, None, None] * np.ones((1, 2, 16), np.float32)
    >>> out = RoPE(x, np.cos(angle), np.sin(angle))
    >>> bool(np.allclose(out, RoPE_ref(x, np.cos(angle), np.sin(angle)), atol=1e-6))
    True
    """
    check_arguments(x_in, cos, sin, "x_in")
    d_head, batch, heads, sequence = x_in.shape
    n_prgs, prg_id = get_program_sharding_info()[1:]
    kernel_assert(
        not lnc_shard or sequence % n_prgs == 0,
        f"lnc_shard: got {sequence} positions for {n_prgs} cores, allowed are multiples",
    )
    if relayout_in_sbuf:
        check_relayout(batch * heads * sequence, "relayout_in_sbuf")
    x_out = nl.ndarray(x_in.shape, x_in.dtype, buffer=nl.shared_hbm)
    own = TokenBox(0, batch, 0, heads, 0, sequence)
    if lnc_shard:
        own = own.part(n_prgs, split_tokens(own, n_prgs)[1], prg_id)
    if lnc_shard or prg_id == 0:
        if relayout_in_sbuf and not contiguous_layout:
            rotate_with_relayout(x_in, cos, sin, x_out, own)
        else:
            rotate_in_hbm(x_in, cos, sin, x_out, own, contiguous_layout)
    return x_out


@nki.jit
def RoPE_sbuf(
    x_in_sb: Tensor, cos_sb: Tensor, sin_sb: Tensor, x_out_sb: Tensor, convert_from_interleaved: bool = False
):
    """RoPE of SBUF tiles, written to x_out_sb, which is returned and may be x_in_sb.

    Shapes are those of RoPE; cos and sin may be TensorViews.
    convert_from_interleaved: pairs are (x[2i], x[2i+1]) in x_in_sb and (out[i], out[i+h]) in x_out_sb.
    """
    cos, sin = tile_of(cos_sb), tile_of(sin_sb)
    check_arguments(x_in_sb, cos, sin, "x_in_sb")
    assert_shape(x_out_sb, x_in_sb.shape, "x_out_sb")
    kernel_assert(
        x_out_sb.dtype == x_in_sb.dtype,
        f"x_out_sb: got dtype {x_out_sb.dtype}, expected {x_in_sb.dtype} like x_in_sb",
    )
    half = x_in_sb.shape[0] // 2
    pairs = x_in_sb
    if convert_from_interleaved:
        check_relayout(x_in_sb.size // x_in_sb.shape[0], "convert_from_interleaved")
        pairs = permuted(x_in_sb, [[-1, 2], [-2, half]])
    upper, rotated = like(pairs[0:half]), like(pairs[0:half])
    nisa.tensor_copy(upper, pairs[half : 2 * half])  # both halves in the same partitions
    factors = angle_factors(cos, sin, False)
    rotate((pairs[0:half], upper), factors, (x_out_sb[0:half], rotated), False, Loads())
    nisa.tensor_copy(x_out_sb[half : 2 * half], rotated)
    return x_out_sb


# ---- arguments -----------------------------------------------------------------------------------


def check_arguments(x: Tensor, cos: Tensor, sin: Tensor, name: str) -> None:
    assert_tensors(((name, x), ("cos", cos), ("sin", sin)))
    kernel_assert(len(x.shape) == 4, f"{name}: got shape {tuple(x.shape)}, expected (d_head, B, n_heads, S)")
    kernel_assert(
        x.dtype in DTYPES, f"{name}: got dtype {x.dtype}, allowed are bfloat16, float16 and float32"
    )
    d_head, batch, heads, sequence = x.shape
    kernel_assert(d_head in HEAD_DIMS, f"{name}: got d_head {d_head}, allowed are 64 and 128")
    kernel_assert(batch <= MAX_BATCH, f"{name}: got batch size {batch}, allowed are 1 to {MAX_BATCH}")
    kernel_assert(heads <= MAX_HEADS, f"{name}: got {heads} heads, allowed are 1 to {MAX_HEADS}")
    kernel_assert(
        sequence <= MAX_SEQUENCE, f"{name}: got sequence length {sequence}, allowed are 1 to {MAX_SEQUENCE}"
    )
    assert_shape(cos, (d_head // 2, batch, sequence), "cos")
    assert_shape(sin, (d_head // 2, batch, sequence), "sin")


def check_relayout(columns: int, option: str) -> None:
    kernel_assert(
        columns <= MAX_RELAYOUT,
        f"{option}: got B * n_heads * S = {columns}, allowed are at most {MAX_RELAYOUT}",
    )


# ---- HBM to HBM ----------------------------------------------------------------------------------


@dataclass
class TokenBox(nl.NKIObject):
    """A box of tokens: batches, heads and positions from a start on."""

    batch: int
    batches: int
    head: int
    heads: int
    position: int
    positions: int

    def of(self, x: Tensor) -> Any:
        """The block in [..., B, n_heads, S]."""
        axis = len(x.shape) - 3
        x = x.slice(axis, self.batch, self.batch + self.batches)
        x = x.slice(axis + 1, self.head, self.head + self.heads)
        return x.slice(axis + 2, self.position, self.position + self.positions)

    def angles_of(self, cos: Tensor) -> Any:
        """The block in [d_head/2, B, S]."""
        cos = cos.slice(1, self.batch, self.batch + self.batches)
        return cos.slice(2, self.position, self.position + self.positions)

    def part(self, groups: int, axis: int, group: int) -> TokenBox:
        """One of `groups` equal parts along batches (0), heads (1) or positions (2)."""
        sizes = [self.batches, self.heads, self.positions]
        starts = [self.batch, self.head, self.position]
        sizes[axis] = sizes[axis] // groups
        starts[axis] = starts[axis] + sizes[axis] * group
        return TokenBox(starts[0], sizes[0], starts[1], sizes[1], starts[2], sizes[2])

    def tiles(self) -> list:
        """The block in pieces of at most TILE_COLUMNS columns: some heads of a batch, or whole batches."""
        heads = min(self.heads, max(1, TILE_COLUMNS // self.positions))
        batches = max(1, TILE_COLUMNS // (self.heads * self.positions))
        blocks = []
        for batch in TiledRange(self.batches, batches):
            for head in TiledRange(self.heads, heads):
                first = (self.batch + batch.start_offset, self.head + head.start_offset)
                blocks.append(
                    TokenBox(first[0], batch.size, first[1], head.size, self.position, self.positions)
                )
        return blocks


def rotate_in_hbm(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, own: TokenBox, contiguous: bool) -> None:
    """Tile by tile: equal blocks from each part of the tokens, one below the other in the partitions."""
    x, out = pairs_of(x, contiguous), pairs_of(out, contiguous)
    groups, axis = split_tokens(own, PMAX // cos.shape[0])
    tiles = []
    for group in range(groups):
        tiles.append(own.part(groups, axis, group).tiles())
    shared = x.dtype != nl.float32
    loads = Loads()
    factors: Any = None
    for index in range(len(tiles[0])):
        sources, targets, blocks = [], [], []
        for group in range(groups):
            blocks.append(tiles[group][index])
            sources.append(blocks[group].of(x))
            targets.append(blocks[group].of(out))
        if blocks[0].head == tiles[0][0].head:  # other heads of the same batches have the same angles
            angles = load_angles(cos, sin, blocks)
            factors = angle_factors(angles[0], angles[1], shared)
        pairs = load_below(sources)
        rotated = like(pairs)
        rotate((pairs[:, 0], pairs[:, 1]), factors, (rotated[:, 0], rotated[:, 1]), shared, loads)
        store_from(targets, rotated)


def split_tokens(own: TokenBox, most: int) -> tuple[int, int]:
    """(groups, axis): into how many equal parts, and along which axis, the tokens can be cut."""
    sizes = (own.batches, own.heads, own.positions)
    groups = most
    while groups > 1:
        for axis in range(3):  # positions last: they are what DMA moves in one piece
            if sizes[axis] % groups == 0:
                return groups, axis
        groups = groups // 2
    return 1, 1


def pairs_of(x: Tensor, contiguous: bool) -> Any:
    """x [d_head, ...] as [d_head/2, 2, ...]: pair by pair, the lower element first."""
    if contiguous:
        return x.reshape_dim(0, (2, x.shape[0] // 2)).permute((1, 0, 2, 3, 4))
    return x.reshape_dim(0, (x.shape[0] // 2, 2))


def store_from(blocks: list, tile: Tensor) -> None:
    """The other way, and with the other trigger, so that loads do not queue behind stores."""
    rows = blocks[0].shape[0]
    for index in range(len(blocks)):
        part = tile[index * rows : (index + 1) * rows]
        nisa.dma_copy(blocks[index], part, dge_mode=nisa.dge_mode.hwdge)


# ---- interleaved pairs, brought together by matmuls ----------------------------------------------


def rotate_with_relayout(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, own: TokenBox) -> None:
    """Interleaved to interleaved: the permutation before, its inverse after."""
    half = x.shape[0] // 2
    tile = load_below([own.of(x)])
    rotated = like(tile)
    RoPE_sbuf(tile, load_below([own.angles_of(cos)]), load_below([own.angles_of(sin)]), rotated, True)
    store_from([own.of(out)], permuted(rotated, [[-1, half], [-half, 2]]))


def permuted(x: Tensor, pattern: list) -> Any:
    """The partitions of x in another order: column j of the pattern is minus the row that comes j-th."""
    rows = x.shape[0]
    permutation = nl.ndarray((rows, rows), x.dtype, buffer=nl.sbuf)
    nisa.memset(permutation, 1.0)
    nisa.affine_select(permutation, pattern, 1, permutation, 0.0, cmp_op=nl.equal)
    psum = nl.ndarray(x.shape, nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, permutation, x, is_stationary_onezero=True)
    moved = like(x)
    nisa.tensor_copy(moved, psum)
    return moved


def tile_of(tensor: Tensor | TensorView) -> Any:
    """The tensor below a TensorView, or itself."""
    return tensor.get_view() if isinstance(tensor, TensorView) else tensor


def RoPE_ref(
    x_in: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    lnc_shard: bool = False,
    contiguous_layout: bool = True,
    relayout_in_sbuf: bool = False,
) -> np.ndarray:
    """RoPE in numpy: pairs as complex numbers, times e^(i angle)."""
    d_head = x_in.shape[0]
    pair_axis = 0 if contiguous_layout else 1
    shape = (2, d_head // 2) if contiguous_layout else (d_head // 2, 2)
    pairs = np.moveaxis(x_in.astype(np.float64).reshape(shape + x_in.shape[1:]), pair_axis, 0)
    rotation = (cos.astype(np.float64) + 1j * sin.astype(np.float64))[:, :, None, :]
    rotated = (pairs[0] + 1j * pairs[1]) * rotation
    parts = np.stack([rotated.real, rotated.imag], axis=pair_axis)
    return parts.reshape(x_in.shape).astype(x_in.dtype)
