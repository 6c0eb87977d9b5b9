"""What every tile of rmsnorm_quant shares: tensors as rows, constants in SBUF, and choices made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.kernel_helpers import get_max_positive_value_for_dtype
from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import DTypeLike, Tensor

if TYPE_CHECKING:
    from nkilib.core.rmsnorm.rmsnorm_quant_arguments import RmsNormQuantKernelArgs

ROWS = nl.tile_size.pmax  # rows of a tile, one in each partition
COLUMNS = 4096  # that an instruction and a load take; the rest of the row may still be under way
FEW_TILES = 4  # so many tiles do not keep the engines busy by themselves ...
FEW_TILES_COLUMNS = 2048  # ... but parts of them do
RESIDENT_BYTES = 144 * 1024  # per partition, with a tile: larger gammas are loaded again for every tile
AHEAD_BYTES = 160 * 1024  # per partition, with gammas: of two tiles, for one to be prepared during the other
SCALE_BYTES = 4  # a float32 behind each row


# ---- what is the same for every tile


class QuantizeJob(nl.NKIObject):
    """Tensors as rows, constants in SBUF and the choices made once."""

    def __init__(
        self, hidden: Tensor, kargs: RmsNormQuantKernelArgs, fp8_dtype: DTypeLike, residual: Tensor | None
    ):
        self.kargs = kargs
        self.is_row = kargs.quantization_type == QuantizationType.ROW
        self.fp8 = fp8_dtype
        self.largest = get_max_positive_value_for_dtype(fp8_dtype)
        self.width = hidden.shape[-1]
        out_width = self.width + SCALE_BYTES if self.is_row else self.width
        self.out = nl.ndarray(with_last_size(hidden.shape, out_width), fp8_dtype, buffer=nl.shared_hbm)
        self.hidden = as_rows(hidden)
        self.out_rows = as_rows(self.out)
        self.residual: Any = None if residual is None else as_rows(residual)
        self.residual_out: Any = None
        if residual is not None:
            self.residual_out = nl.ndarray(hidden.shape, hidden.dtype, buffer=nl.shared_hbm)

    def plan(
        self, ln_w: Tensor | None, pre_norm_gamma: Tensor | None, input_dequant_scale: Tensor | None
    ) -> None:
        """Choose what stays in SBUF."""
        self._choose_sizes(pre_norm_gamma)
        self.gamma: Any = ln_w if self.kargs.needs_rms_normalization() else None
        self.pre_gamma: Any = pre_norm_gamma
        gammas, tile = self._gamma_bytes(), self._tile_bytes()
        resident = gammas + tile <= RESIDENT_BYTES
        self.ahead = 1 if (gammas if resident else 0) + 2 * tile <= AHEAD_BYTES else 0
        if self.gamma is not None:
            self.gamma = Gamma(self.gamma, resident)
        if self.pre_gamma is not None:
            self.pre_gamma = Gamma(self.pre_gamma, resident)
        self.quant_scale: Any = None if self.is_row else reciprocal_of_first(input_dequant_scale)

    def _choose_sizes(self, pre_norm_gamma: Tensor | None) -> None:
        """The dtype of the work, and how many columns instructions and transfers take."""
        is_plain = pre_norm_gamma is None and self.residual is None
        narrow = self.hidden.dtype == nl.bfloat16 and is_plain  # a scale stands one rounding, not two
        self.work = nl.bfloat16 if narrow else nl.float32
        few = self.hidden.shape[0] <= FEW_TILES * ROWS * nl.num_programs(0)
        self.columns = min(self.width, FEW_TILES_COLUMNS if few else COLUMNS)
        self.parts = TiledRange(self.width, self.columns)
        self.stores_parts = few
        self.squares = nl.ndarray((ROWS, self.columns), nl.bfloat16, buffer=nl.sbuf)
        self.magnitudes = nl.ndarray((ROWS, self.columns), nl.bfloat16, buffer=nl.sbuf)

    def results(self) -> Any:
        return self.out if self.residual_out is None else (self.out, self.residual_out)

    def _gamma_bytes(self) -> int:
        total = 0
        for gamma in (self.gamma, self.pre_gamma):
            if gamma is not None:
                total = total + self.width * element_bytes(gamma.dtype)
        return total

    def _tile_bytes(self) -> int:
        """Per partition: the row as loaded, as worked on if that differs, and as quantised."""
        tiles = element_bytes(self.hidden.dtype) + 1
        return self.width * (tiles if self.work == self.hidden.dtype else tiles + element_bytes(self.work))


class Gamma(nl.NKIObject):
    """A vector of HBM in every partition. Parts are loaded when first needed, so behind the first rows."""

    def __init__(self, vector: Tensor, resident: bool):
        self.row = vector.reshape((1, vector.shape[-1]))
        self.resident = resident
        self.tiles: list[Any] = []

    def columns(self, part: TiledRangeIterator, rows: int) -> Any:
        """A part on so many partitions; no tile of rows is higher than the first."""
        if part.index < len(self.tiles):
            return self.tiles[part.index][0:rows]
        tile = nl.ndarray((rows, part.size), self.row.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, self.row[:, part.start_offset : part.end_offset].broadcast(0, rows))
        if self.resident:
            self.tiles.append(tile)
        return tile


def element_bytes(dtype: DTypeLike) -> int:
    return 4 if dtype == nl.float32 else 2


def with_last_size(shape: tuple, size: int) -> tuple[int, ...]:
    return tuple(list(shape[:-1]) + [size])


def as_rows(tensor: Tensor) -> Any:
    """[..., H] as [R, H]."""
    return tensor.reshape((row_count(tensor), tensor.shape[-1]))


def row_count(tensor: Tensor) -> int:
    rows = 1
    for size in tensor.shape[:-1]:
        rows = rows * size
    return rows


def reciprocal_of_first(tensor: Tensor) -> Tensor:
    """1 / the first element of an HBM tensor, in all partitions."""
    scale = new_column(ROWS)
    nisa.dma_copy(scale, as_rows(tensor)[0:1, 0:1].broadcast(0, ROWS))
    inverse = new_column(ROWS)
    nisa.reciprocal(inverse, scale)
    return inverse
