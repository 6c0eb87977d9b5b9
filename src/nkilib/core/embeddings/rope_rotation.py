"""The rotation of pairs by their angles, divided among the engines."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import like
from nkilib.core.utils.types import DTypeLike, Tensor

STEP_COLUMNS = nl.tile_size.gemm_moving_fmax  # 512 columns of one instruction: a PSUM bank of float32 sums

# Nanoseconds per column, by which work is shared: a product or sum of float32 tiles.
VECTOR_NS, GPSIMD_NS, TENSOR_NS = 1.04, 1.92, 1.7


def load_below(blocks: list, dge_mode: Any = nisa.dge_mode.unknown) -> Tensor:
    """HBM blocks of equal shape one below the other: [blocks * rows, ...]."""
    rows, shape = blocks[0].shape[0], blocks[0].shape
    tile = nl.ndarray((rows * len(blocks),) + tuple(shape[1:]), blocks[0].dtype, buffer=nl.sbuf)
    for index in range(len(blocks)):
        nisa.dma_copy(tile[index * rows : (index + 1) * rows], blocks[index], dge_mode=dge_mode)
    return tile


# ---- the rotation --------------------------------------------------------------------------------


class Loads(nl.NKIObject):
    """Nanoseconds of work given to each engine so far; the next piece goes where it ends first."""

    def __init__(self):
        self.vector = 0.0
        self.gpsimd = 0.0
        self.tensor = 0.0
        self.identities = {}  # by dtype, made for the first sum of TensorE

    def product_engine(self, columns: int) -> Any:
        if self.vector + VECTOR_NS * columns <= self.gpsimd + GPSIMD_NS * columns:
            self.vector += VECTOR_NS * columns
            return nisa.vector_engine
        self.gpsimd += GPSIMD_NS * columns
        return nisa.gpsimd_engine

    def tensor_sums(self, columns: int) -> bool:
        """True when TensorE is to do the next sum, else VectorE."""
        if self.vector + VECTOR_NS * columns <= self.tensor + TENSOR_NS * columns:
            self.vector += VECTOR_NS * columns
            return False
        self.tensor += TENSOR_NS * columns
        return True


def load_angles(cos: Tensor, sin: Tensor, blocks: list) -> tuple[Any, Any]:
    cosines, sines = [], []
    for block in blocks:
        cosines.append(block.angles_of(cos))
        sines.append(block.angles_of(sin))
    return load_below(cosines, nisa.dge_mode.hwdge), load_below(sines, nisa.dge_mode.hwdge)


def angle_factors(cos: Tensor, sin: Tensor, shared: bool) -> tuple[Any, Any, Any]:
    """What `rotate_step` (cos, sin, -sin) or `rotate_sharing` (cos, sin - cos, -cos - sin) multiplies by."""
    if not shared:
        neg_sin = like(sin)
        nisa.activation(neg_sin, nl.copy, sin, scale=-1.0)
        return cos, sin, neg_sin
    difference = nl.ndarray(cos.shape, nl.float32, buffer=nl.sbuf)
    neg_sum = nl.ndarray(cos.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(difference, sin, cos, nl.subtract)
    nisa.scalar_tensor_tensor(neg_sum, cos, nl.multiply, -1.0, nl.subtract, sin)
    return cos, difference, neg_sum


class Step(nl.NKIObject):
    """Some batches and heads of a tile: what one instruction works on."""

    def __init__(
        self, pairs: tuple, factors: tuple, out: tuple, batch: TiledRangeIterator, head: TiledRangeIterator
    ):
        self.lower = part_of(pairs[0], batch, head)
        self.upper = part_of(pairs[1], batch, head)
        self.out_lower = part_of(out[0], batch, head)
        self.out_upper = part_of(out[1], batch, head)
        self.factors = []
        for factor in factors:
            self.factors.append(broadcast(factor, batch, head.size))


def rotate(pairs: tuple, factors: tuple, out: tuple, shared: bool, loads: Loads) -> None:
    """Rotate the (lower, upper) tiles [partitions, batches, heads, positions] of pairs into those of out."""
    batches, heads, positions = pairs[0].shape[1:]
    head_step = min(heads, max(1, STEP_COLUMNS // positions))
    batch_step = max(1, STEP_COLUMNS // (heads * positions))
    for batch in TiledRange(batches, batch_step):
        for head in TiledRange(heads, head_step):
            step = Step(pairs, factors, out, batch, head)
            if shared:
                rotate_sharing(step, loads)
            else:
                rotate_step(step, loads)


def part_of(tile: Tensor, batch: TiledRangeIterator, head: TiledRangeIterator) -> Any:
    return tile[:, batch.start_offset : batch.end_offset, head.start_offset : head.end_offset, :]


def broadcast(factor: Tensor, batch: TiledRangeIterator, heads: int) -> Any:
    """Factors of some batches, the same for all heads."""
    return factor[:, batch.start_offset : batch.end_offset, :].expand_dim(2).broadcast(2, heads)


def rotate_step(step: Step, loads: Loads) -> None:
    """The formula as it stands. The result may lie over the lower elements."""
    cos, sin, neg_sin = step.factors
    add(step.out_upper, product(step.upper, cos, loads), product(step.lower, sin, loads), loads)
    add(step.out_lower, product(step.lower, cos, loads), product(step.upper, neg_sin, loads), loads)


def rotate_sharing(step: Step, loads: Loads) -> None:
    """The same with three products instead of four: cos * (lower + upper) is part of both results.

    Errors are a few units in the last float32 place of the larger element, far below those of 16-bit results.
    """
    cos, difference, neg_sum = step.factors
    loads.tensor += TENSOR_NS / 2 * (cos.size // cos.shape[0])  # a sum of 16-bit tiles takes half of the time
    both = product(tensor_sum(step.lower, step.upper, loads), cos, loads)
    add(step.out_upper, both, product(step.lower, difference, loads), loads)
    add(step.out_lower, both, product(step.upper, neg_sum, loads), loads)


def product(x: Tensor, factor: Tensor, loads: Loads) -> Tensor:
    """x * factor in float32. GpSimd cannot read PSUM."""
    result = nl.ndarray(factor.shape, nl.float32, buffer=nl.sbuf)
    columns = factor.size // factor.shape[0]
    if x.buffer == nl.psum:
        loads.vector += VECTOR_NS * columns
        engine = nisa.vector_engine
    else:
        engine = loads.product_engine(columns)
    nisa.tensor_tensor(result, x, factor, nl.multiply, engine=engine)
    return result


def add(out: Tensor, first: Tensor, second: Tensor, loads: Loads) -> None:
    if loads.tensor_sums(out.size // out.shape[0]):
        nisa.activation(out, nl.copy, tensor_sum(first, second, loads))
    else:
        nisa.tensor_tensor(out, first, second, nl.add)


def tensor_sum(first: Tensor, second: Tensor, loads: Loads) -> Tensor:
    """first + second in PSUM: both times the identity, which is exact."""
    identity = identity_of(first.shape[0], first.dtype, loads)
    psum = nl.ndarray(first.shape, nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, identity, first, is_stationary_onezero=True)
    nisa.nc_matmul(psum, identity, second, is_stationary_onezero=True)
    return psum


def identity_of(rows: int, dtype: DTypeLike, loads: Loads) -> Any:
    if str(dtype) not in loads.identities:
        identity = nl.ndarray((PMAX, PMAX), dtype, buffer=nl.sbuf)
        nisa.memset(identity, 1.0)
        nisa.affine_select(identity, [[-1, PMAX]], 1, identity, 0.0, cmp_op=nl.equal)
        loads.identities[str(dtype)] = identity
    return loads.identities[str(dtype)][0:rows, 0:rows]
