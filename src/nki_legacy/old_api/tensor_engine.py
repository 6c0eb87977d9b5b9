"""Products and transposes of the old `nisa`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki import isa as new
from nki.ir.context import current_machine
from nki.ir.tensor import NkiTensor
from nki.isa.enums import engine, matmul_perf_mode
from nki.machine import dtypes
from nki.machine.memories import PSUM, SBUF

from . import state as run
from .failures import failure
from .indices import Box, IndexMask
from .masks import MaskLike
from .masks import where as mask_of
from .operands import cast, in_sbuf, tile_of
from .reductions import boxed
from .regions import empty_of
from .tensor import Whole, value
from .types import DTypeLike, new_dtype

tensor_engine, vector_engine = engine.tensor, engine.vector


def nc_matmul(
    stationary: Any,
    moving: Any,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: object = None,
    mask: MaskLike = None,
    **_: object,
) -> Any:
    """stationary.T @ moving, in PSUM."""
    run.state()
    a, b = (in_sbuf(tile_of(t, "nc_matmul", n)) for t, n in ((stationary, "stationary"), (moving, "moving")))
    mode = matmul_perf_mode.double_row if perf_mode == "double_row_gen3" else matmul_perf_mode.none
    columns = None
    if mask is not None:
        masked = _matmul_mask(mask, a, b)
        if masked is None:
            return value(
                (a.shape[-1], b.free_elements), dtypes.float32, lambda out, box: None, False, buffer=PSUM
            )
        a, b, columns = masked
    place, size = tuple(int(n) for n in tile_position), tuple(int(n) for n in tile_size)

    def product(out: NkiTensor, accumulate: Any) -> None:
        new.nc_matmul(
            out,
            a,
            b,
            is_stationary_onezero,
            is_moving_onezero,
            is_transpose,
            accumulate,
            place,
            size,
            mode,
        )

    shape = _product_shape(a, b, mode)
    if columns is not None:
        whole = (shape[0], columns[1])
        return boxed_psum(whole, product, (slice(0, shape[0]), columns[0]))
    kind = a.dtype if is_transpose and current_machine().transpose_exact else dtypes.float32
    return value(shape, kind, lambda out, box: product(out, False), buffer=PSUM, product=product)


def _product_shape(a: NkiTensor, b: NkiTensor, mode: matmul_perf_mode) -> tuple[int, ...]:
    """Return the shape of a product: moving keeps its free dimensions, stationary's are one."""
    if mode is matmul_perf_mode.none:
        return (a.free_elements, *b.shape[1:])
    return (a.shape[-1], b.shape[-1])


def boxed_psum(shape: Any, product: Any, cuts: Any) -> Any:
    out = empty_of(shape, dtypes.float32, PSUM)
    new.memset(out, 0.0)
    product(out[cuts], False)
    return Whole(out)


def _matmul_mask(mask: MaskLike, a: NkiTensor, b: NkiTensor) -> Any:
    """Operands under a mask: its partition part is the contraction, its other part columns of moving."""
    if isinstance(mask, (bool, np.bool_)):
        return (a, b, None) if mask else None
    fits = [t for t in (b, a) if isinstance(mask, IndexMask) and _broadcasts(mask.shape, t.shape)]
    tile = fits[0] if fits else b
    masked = mask_of(mask, tile.shape)
    if masked.box is None:
        return None
    if masked.array is not None:
        raise failure("err_unsupported_memory", "nc_matmul: mask= must be a box")
    rows, *rest = masked.box
    a, b = a[rows], b[rows]
    if tile.shape[1:] != tuple(cut_.stop - cut_.start for cut_ in rest) and len(rest) == 1:
        total = tile.shape[1]
        return a, b[:, rest[0]], (rest[0], total)
    return a, b, None


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(n in (1, m) for n, m in zip(shape, wanted, strict=True))


def nc_transpose(
    data: object,
    *,
    engine: Any = engine.unknown,
    mask: MaskLike = None,
    dtype: DTypeLike | None = None,
    **_: object,
) -> Any:
    """Return the transpose of a tile, its free dimensions taken as one."""
    run.state()
    tile = tile_of(data, "nc_transpose", "data")
    tile = tile if tile.ndim == 2 else tile.reshape((tile.shape[0], tile.free_elements))
    rows, columns = tile.shape
    target = tile.dtype if dtype is None else new_dtype(dtype)
    masked = mask_of(mask, tile.shape)
    small = rows <= 32 and columns <= 32
    if engine is vector_engine and small:
        chosen, buffer = vector_engine, SBUF
    else:
        chosen, buffer = tensor_engine, PSUM

    def emit(out: NkiTensor, box: Box | None) -> None:
        part = tile if masked.box is None or masked.covers(tile.shape) else tile[masked.box]
        _transpose_into(out, part, chosen)

    if masked.box is None:
        return value((columns, rows), target, emit, False, buffer=buffer)
    if not masked.covers(tile.shape):
        return boxed((columns, rows), target, emit, (masked.box[1], masked.box[0]))
    return value((columns, rows), target, emit, buffer=buffer)


def _transpose_into(out: NkiTensor, tile: NkiTensor, chosen: Any) -> None:
    """By TensorE through PSUM, whatever the dtype."""
    source = in_sbuf(tile) if chosen is tensor_engine else tile
    if chosen is vector_engine and out.dtype == source.dtype:
        new.nc_transpose(out, source, engine=chosen)
        return
    if source.dtype.itemsize == 1 or source.dtype.is_integer and source.dtype.itemsize == 2:
        source = cast(source, dtypes.float32)
    bits = source.dtype.is_integer
    source = source.view(dtypes.float32) if bits else source
    exact = current_machine().transpose_exact
    kind = source.dtype if exact else dtypes.float32
    if out.buffer is PSUM and out.dtype == kind and not bits:
        new.nc_transpose(out, source, engine=tensor_engine)
        return
    middle = empty_of((tile.shape[1], tile.shape[0]), kind, PSUM)
    new.nc_transpose(middle, source, engine=tensor_engine)
    new.tensor_copy(out, middle.view(tile.dtype) if bits else middle)
