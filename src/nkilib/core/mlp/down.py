"""The down projection: rows of the result, some columns at a time."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.gate_up import StaticScales, column_scale
from nkilib.core.mlp.mlp_parameters import MLPParameters, result_dtype
from nkilib.core.utils.projection import PARTITIONS, Terms, finish, load_terms, pick, project_parts
from nkilib.core.utils.tiled_range import TiledRange


def down_terms(p: MLPParameters, scales: StaticScales, column: int, columns: int) -> Terms:
    return load_terms(scales.down, column_scale(p, p.down), p.down.bias, column, columns)


def result_rows(p: MLPParameters, tokens: int, columns: int) -> list:
    """Tiles for rows of the result, [tokens <= 128, columns] each."""
    rows = []
    for token in TiledRange(tokens, PARTITIONS):
        rows.append(nl.ndarray((token.size, columns), result_dtype(p), buffer=nl.sbuf))
    return rows


def project_down(
    p: MLPParameters,
    parts: list,
    terms: Terms,
    rows: list,
    at: int,
    column: int,
    columns: int,
    spread: int = 0,
) -> None:
    """y = m Wd + bias for columns column ... of the weights, into columns `at` ... of the rows."""
    for block in project_parts(parts, p.down.weight, column, columns, feature_major=False):
        dst = pick(rows[block.token // PARTITIONS], 0, block.tokens, at + block.column, block.columns, spread)
        finish(dst, block, terms, column, parts[0].scales, spread)


def store_rows(out: Any, rows: list, at: int, first: int, column: int, columns: int) -> None:
    """Columns of the rows into tokens first ... of out [T, H]."""
    for i in range(len(rows)):
        token, count = first + i * PARTITIONS, rows[i].shape[0]
        place = out[token : token + count, column : column + columns]
        nisa.dma_copy(place, rows[i][:, at : at + columns])
