"""Rows by number: the embedding of tokens, and its gradient."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.misc import gather, gather_bwd, scatter_add

from . import Case

ROWS = 32000


def lookup(tokens: int, hidden: int, lnc: int) -> Case:
    arguments = (TensorSpec((ROWS, hidden), "bfloat16"), 0, TensorSpec((tokens,), "int32"))
    label = f"{tokens} of {ROWS} rows x {hidden} bf16"
    return Case(
        "gather", label, gather, arguments, hbm_bytes=tokens * (2 * hidden + 4), lnc=lnc
    )  # HBM to HBM: moved once


def update(tokens: int, hidden: int, lnc: int) -> Case:
    table, rows = TensorSpec((ROWS, hidden), "bfloat16"), TensorSpec((tokens, hidden), "bfloat16")
    arguments = (table, 0, TensorSpec((tokens,), "int32"), rows)
    label = f"{tokens} of {ROWS} rows x {hidden} bf16"
    return Case("scatter_add", label, scatter_add, arguments, hbm_bytes=tokens * (6 * hidden + 4), lnc=lnc)


def gradient(tokens: int, hidden: int) -> Case:
    table, rows = TensorSpec((ROWS, hidden), "bfloat16"), TensorSpec((tokens, hidden), "bfloat16")
    arguments = (rows, table, 0, TensorSpec((tokens,), "int32"))
    label = f"{tokens} of {ROWS} rows x {hidden} bf16"
    size = tokens * (6 * hidden + 4) + 2 * ROWS * hidden
    return Case("gather_bwd", label, gather_bwd, arguments, hbm_bytes=size, lnc=2)


CASES = [lookup(4096, 1024, 1), lookup(4096, 4096, 2), update(4096, 1024, 1), update(4096, 4096, 2)]
CASES += [gradient(4096, 1024), gradient(4096, 4096)]
