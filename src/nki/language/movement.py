"""Selecting, reshaping and moving data; matmul and transpose (spec/language.md 14.4-14.7, 15)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import isa
from ..errors import error
from ..ir.context import current, warn
from ..ir.layout import Int, is_int, without_ones
from ..ir.tensor import NkiTensor
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import DType, DTypeLike
from ..machine.memories import PSUM, SBUF
from ..machine.operators import OPERATORS
from ..typing import TileOrNumber
from .allocation import allocate
from .operands import (
    cast,
    check_operand,
    check_tile,
    common_shape,
    in_sbuf,
    is_number,
    result_dtype,
    spread,
    stretch,
    wrong_argument,
)

_PREDICATES = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.bool_)
_TRANSPOSED_BY_DMA = (2, 4)  # bytes of the elements dma_transpose takes


# ---- selection -----------------------------------------------------------------------------------


def where(
    condition: NkiTensor, x: TileOrNumber, y: TileOrNumber, dtype: DTypeLike | None = None
) -> NkiTensor:
    """x where condition is non-zero, else y; x and y are tiles or numbers."""
    condition = check_tile("where", "condition", condition)
    x, y = check_operand("where", "x", x), check_operand("where", "y", y)
    tiles = {name: value for name, value in (("x", x), ("y", y)) if not is_number(value)}
    target = result_dtype("where", dtype, *(tiles.values() or [condition]))
    shape = common_shape("where", condition=condition, **tiles)
    out = allocate("where", shape, target)
    if is_number(y):
        isa.memset(out, _as_constant(y, target))
    else:
        isa.tensor_copy(out, _fitted(y, shape))
    predicate = condition
    if condition.dtype not in _PREDICATES or condition.buffer is PSUM:
        predicate = allocate("where", condition.shape, dtypes.uint8)
        isa.tensor_scalar(predicate, condition, OPERATORS["not_equal"], 0)
    source = _as_constant(x, target) if is_number(x) else _with_dtype(x, target)
    isa.tensor_copy_predicated(
        out, source if is_number(source) else _fitted(source, shape), _fitted(predicate, shape)
    )
    return out


def _as_constant(number: int | float, dtype: DType) -> int | float:
    """Return a number as memset takes it: rounded to an int for integer dtypes."""
    if dtype.is_bool:
        return int(number != 0)
    if isinstance(number, float) and dtype.is_integer:
        if not number.is_integer():
            warn("weak-scalar", f"where: {number} is rounded to {dtype}", help="pass dtype=nl.float32")
        return int(dtypes.scalar(number, dtype))
    return number


def _fitted(tile: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    return stretch(spread(tile, shape[0]), shape)


def _with_dtype(tile: NkiTensor, dtype: DType) -> NkiTensor:
    return tile if tile.dtype == dtype else cast(tile, dtype)


def dropout(x: NkiTensor, rate: TileOrNumber, dtype: DTypeLike | None = None) -> NkiTensor:
    """Each element of x becomes 0 with probability `rate`: a number in [0, 1], or a (P, 1) tile."""
    x = check_tile("dropout", "x", x)
    rate = check_operand("dropout", "rate", rate)
    if is_number(rate) and not 0 <= rate <= 1:
        raise wrong_argument(f"dropout: rate must lie in [0, 1], got {rate}")
    target = result_dtype("dropout", dtype, x)
    out = allocate("dropout", x.shape, x.dtype)
    isa.dropout(out, x, rate)
    return _with_dtype(out, target)


def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: Int = 0, dtype: DTypeLike | None = None
) -> NkiTensor:
    """out[p, j] = data[p] flattened, at indices[p, j]; the shape is that of the indices."""
    data = check_tile("gather_flattened", "data", data)
    indices = check_tile("gather_flattened", "indices", indices)
    if not is_int(axis) or axis != 0:
        raise error(
            "axis",
            f"gather_flattened: axis={axis!r}: only axis 0 is possible",
            help="indices count the flattened free elements of each partition",
        )
    if indices.dtype not in (dtypes.int32, dtypes.uint32, dtypes.uint16):
        raise error(
            "dtype",
            f"gather_flattened: indices are {indices.dtype}, allowed: int32, uint32, uint16",
            notes=[f"indices: {indices.describe()}"],
            help="convert them with nl.copy(indices, dtype=nl.uint32)",
        )
    target = result_dtype("gather_flattened", dtype, data)
    out = allocate("gather_flattened", indices.shape, data.dtype)
    isa.nc_n_gather(out, in_sbuf(data), _as_uint32(in_sbuf(indices)))
    return _with_dtype(out, target)


def _as_uint32(indices: NkiTensor) -> NkiTensor:
    """Return the same bits where that is the same number; a negative index stays out of range."""
    if indices.dtype == dtypes.int32 and (indices.strides[-1] == 1 or indices.shape[-1] == 1):
        return indices.view(dtypes.uint32)
    return _with_dtype(indices, dtypes.uint32)


# ---- shape ---------------------------------------------------------------------------------------


def expand_dims(x: NkiTensor, axis: Int) -> NkiTensor:
    """A view of x with a dimension of size 1 at `axis`."""
    if not isinstance(x, View):
        raise wrong_argument(f"expand_dims: x must be a tensor, got {type(x).__name__}")
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Int | Sequence[Int], dtype: DTypeLike | None = None) -> NkiTensor:
    """x with its size-1 dimensions repeated, in a new SBUF tile; x itself if nothing changes."""
    x = check_tile("broadcast_to", "x", x)
    target = result_dtype("broadcast_to", dtype, x)
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if len(sizes) != x.ndim or any(n not in (1, size) for n, size in zip(x.shape, sizes, strict=False)):
        raise error(
            "shape",
            f"broadcast_to: {tuple(x.shape)} cannot be broadcast to {sizes}",
            notes=[f"x: {x.describe()}"],
            help="ranks must be equal, and each dimension equal or 1",
        )
    if x.shape == sizes and x.dtype == target:
        return x
    if x.shape[1:] == sizes[1:] and x.shape[0] != sizes[0]:
        return _with_dtype(spread(x, sizes[0]), target)
    out = allocate("broadcast_to", sizes, target)
    isa.tensor_copy(out, _fitted(x, sizes))
    return out


# ---- TensorE -------------------------------------------------------------------------------------


def transpose(x: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """The transpose of a 2-D tile of at most 128 x 128, in PSUM."""
    x = _matrix("transpose", "x", check_tile("transpose", "x", x))
    _check_columns("transpose", "x", x, current().machine.matmul_stationary_max)
    target = result_dtype("transpose", dtype, x)
    source = in_sbuf(x) if x.dtype.itemsize > 1 else cast(x, dtypes.bfloat16)
    exact = current().machine.transpose_exact
    out = allocate("transpose", (x.shape[1], x.shape[0]), source.dtype if exact else dtypes.float32, PSUM)
    isa.nc_transpose(out, source, engine=isa.engine.tensor)
    if out.dtype == target:
        return out
    result = allocate("transpose", out.shape, target, PSUM)
    isa.tensor_copy(result, out)
    return result


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x @ y, or x.T @ y with transpose_x, as float32 in PSUM; x and y are 2-D tiles in SBUF."""
    x, y = (_matrix("matmul", name, check_tile("matmul", name, v)) for name, v in (("x", x), ("y", y)))
    for name, tile in (("x", x), ("y", y)):
        if tile.buffer is not SBUF:
            raise error(
                "buffer",
                f"matmul: {name} is in PSUM, TensorE reads SBUF",
                notes=[f"{name}: {tile.describe()}"],
                help="copy it to SBUF first (nl.copy)",
            )
    inner = x.shape[0] if transpose_x else x.shape[1]
    if inner != y.shape[0]:
        raise error(
            "shape",
            f"matmul: x contracts {inner} elements, y has {y.shape[0]} rows",
            notes=[f"x: {x.describe()}", f"y: {y.describe()}"],
            help="x is (M, K), or (K, M) with transpose_x=True; y is (K, N)",
        )
    _check_columns("matmul", "x", x, current().machine.matmul_stationary_max)
    _check_columns("matmul", "y", y, current().machine.gemm_moving_fmax)
    if not transpose_x:
        warn(
            "matmul-transpose",
            "matmul: x is transposed first, which some compilers refuse",
            notes=[f"x: {x.describe()}"],
            help="keep x as (K, M) and pass transpose_x=True",
        )
        x = in_sbuf(transpose(x))
    out = allocate("matmul", (x.shape[1], y.shape[1]), dtypes.float32, PSUM)
    isa.nc_matmul(out, x, y)
    return out


def _matrix(function: str, name: str, tile: NkiTensor) -> NkiTensor:
    """Return the tensor with two dimensions; trailing ones of size 1 are left out, with a warning."""
    if tile.ndim > 2 and all(size == 1 for size in tile.shape[2:]):
        warn(
            "rank",
            f"{function}: {name} has shape {tuple(tile.shape)}, its trailing dimensions are left out",
            notes=[f"{name}: {tile.describe()}"],
            help=f"pass t.reshape({tuple(tile.shape[:2])})",
        )
        first = (slice(None), slice(None)) + (0,) * (tile.ndim - 2)
        return tile[first]
    if tile.ndim != 2:
        raise error(
            "shape",
            f"{function}: {name} must have two dimensions, it has {tile.ndim}",
            notes=[f"{name}: {tile.describe()}"],
            help="t.reshape((P, F)) makes one free dimension",
        )
    return tile


def _check_columns(function: str, name: str, tile: NkiTensor, limit: int) -> None:
    if tile.shape[1] > limit:
        raise error(
            "free-limit",
            f"{function}: {name} has {tile.shape[1]} columns, the limit is {limit}",
            notes=[f"{name}: {tile.describe()}"],
            help=f"tile its free dimension by {limit}",
        )


# ---- HBM -----------------------------------------------------------------------------------------


def load(src: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """A new SBUF tile with the contents of an HBM tensor."""
    src = _check_hbm("load", "src", src)
    shape = src.shape if src.ndim > 1 else (*src.shape, 1)
    out = allocate("load", shape, result_dtype("load", dtype, src))
    isa.dma_copy(out, src)
    return out


def load_transpose2d(src: NkiTensor, dtype: DTypeLike | None = None) -> NkiTensor:
    """A new SBUF tile with the transpose of a 2-D HBM tensor."""
    src = _matrix("load_transpose2d", "src", _check_hbm("load_transpose2d", "src", src))
    target = result_dtype("load_transpose2d", dtype, src)
    shape = (src.shape[1], src.shape[0])
    if src.dtype.itemsize in _TRANSPOSED_BY_DMA:
        out = allocate("load_transpose2d", shape, src.dtype)
        isa.dma_transpose(out, src)
        return _with_dtype(out, target)
    out = allocate("load_transpose2d", shape, target)
    isa.dma_copy(out, src.permute((1, 0)))
    return out


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write an SBUF tile to an HBM tensor."""
    dst = _check_hbm("store", "dst", dst)
    value = check_tile("store", "value", value)
    if value.buffer is PSUM:
        raise error(
            "buffer",
            "store: value is in PSUM, which DMA cannot reach",
            notes=[f"value: {value.describe()}"],
            help="copy it to SBUF first: nl.store(dst, nl.copy(value))",
        )
    if without_ones(dst.shape) != without_ones(value.shape):
        raise error(
            "shape",
            f"store: value {tuple(value.shape)} does not fit dst {tuple(dst.shape)}",
            notes=[f"dst: {dst.describe()}", f"value: {value.describe()}"],
            help="slice both sides to the same shape",
        )
    isa.dma_copy(dst, value)


def _check_hbm(function: str, name: str, tensor: object) -> NkiTensor:
    if not isinstance(tensor, NkiTensor):
        raise wrong_argument(f"{function}: {name} must be an HBM tensor, got {type(tensor).__name__}")
    if tensor.on_chip:
        raise error(
            "buffer",
            f"{function}: {name} must be in HBM, it is in {tensor.buffer.value}",
            notes=[f"{name}: {tensor.describe()}"],
            help="nl.copy copies between tiles",
        )
    return tensor


# ---- random numbers ------------------------------------------------------------------------------


def random_seed(seed: NkiTensor) -> None:
    """Seed the generator behind nl.rand and nl.dropout with a (1, 1) tile of a 32-bit dtype."""
    if is_number(seed):
        raise wrong_argument(
            f"random_seed: seed must be a (1, 1) tile, got the number {seed!r}",
            f"nl.random_seed(nl.full((1, 1), {seed!r}, dtype=nl.int32))",
        )
    seed = check_tile("random_seed", "seed", seed)
    if current().machine.generation < 4:
        warn(
            "seed-engine",
            f"random_seed: on {current().machine.name} the seed may not reach the engine nl.rand uses",
            help="use nisa.rand_set_state and nisa.rng(engine=nisa.engine.gpsimd) for reproducible bits",
        )
    isa.set_rng_seed(seed)
