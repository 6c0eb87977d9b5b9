"""What follows the sums of a QKV projection: the scales that undo FP8, and the bias."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_parameters import QKVParameters, pieces
from nkilib.core.qkv.qkv_tokens import in_scale_of
from nkilib.core.utils.common_types import QuantizationType
from nkilib.core.utils.projection_results import ColumnTerms, broadcast_row
from nkilib.core.utils.types import Tensor


def load_terms(p: QKVParameters, column: int, columns: int, partitions: int) -> ColumnTerms:
    """Scales and bias of columns column ..., in so many partitions; None where there is none."""
    terms = ColumnTerms(column)
    if p.quantization in (QuantizationType.ROW, QuantizationType.ROW_MX):
        terms.column_scale = broadcast_row(p.w_scale, column, columns, partitions)
    elif p.quantization in (QuantizationType.STATIC, QuantizationType.STATIC_MX):
        terms.column_scale = static_scales(p, column, columns, partitions)
    if p.bias is not None:
        terms.bias = broadcast_row(p.bias.reshape((1, p.bias.size)), column, columns, partitions)
    return terms


def static_scales(p: QKVParameters, column: int, columns: int, partitions: int) -> Tensor:
    """in_scale * w_scale of its section for every column, [partitions, columns]."""
    by_section = broadcast_row(p.w_scale, 0, p.w_scale.shape[1], partitions)
    products = nl.ndarray(by_section.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(products, by_section, nl.multiply, in_scale_of(p)[0:partitions])
    tile = nl.ndarray((partitions, columns), nl.float32, buffer=nl.sbuf)
    for piece in pieces(p, column, columns):
        at = piece.column - column
        section = min(piece.section, p.w_scale.shape[1] - 1)
        scale = products[:, section : section + 1].broadcast(1, piece.columns)
        nisa.tensor_copy(tile[:, at : at + piece.columns], scale)
    return tile
