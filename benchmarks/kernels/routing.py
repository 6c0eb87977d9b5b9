"""Routed tokens on their way to experts on other ranks and back, for decode and for prefill."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.moe_block.build_all2all_dispatch_metadata import build_all2all_dispatch_metadata
from nkilib.experimental.subkernels import (
    argsort_unstable,
    build_all_to_all_v_metadata,
    permute_routed_tokens,
    topk_reduce,
)

from . import Case


def permute(tokens: int, k: int, hidden: int, experts: int) -> Case:
    return Case(
        "permute_routed_tokens",
        f"{tokens} tokens x {hidden}, {k} of {experts} experts bf16",
        permute_routed_tokens,
        (
            TensorSpec((tokens, hidden), "bfloat16"),
            TensorSpec((tokens, k), "int32"),
            TensorSpec((tokens, experts), "bfloat16"),
        ),
        hbm_bytes=2 * tokens * (hidden + experts + 2 * k + k * (hidden + 3)),
        lnc=2,
    )


def reduce(tokens: int, k: int, hidden: int) -> Case:
    return Case(
        "topk_reduce",
        f"{tokens} tokens x {hidden}, {k} rows each bf16",
        topk_reduce,
        (TensorSpec((tokens * k, hidden + 2), "bfloat16"), tokens, k),
        hbm_bytes=2 * tokens * (hidden + k * (hidden + 2)),
        lnc=2,
    )


def deduplicated(tokens: int, k: int, ranks: int, experts: int) -> Case:
    return Case(
        "build_all2all_dispatch_metadata",
        f"{tokens} tokens, {k} of {experts} experts on {ranks} ranks",
        build_all2all_dispatch_metadata,
        (TensorSpec((tokens, k), "int32"), experts, 1024, ranks),
        hbm_bytes=4 * tokens * k + 16 * ranks,
    )


def argsort(size: int) -> Case:
    row = TensorSpec((1, size), "int32")
    return Case("argsort_unstable", f"{size}", argsort_unstable, (row,), hbm_bytes=8 * size)


def metadata(tokens: int, k: int, ranks: int, experts: int) -> Case:
    return Case(
        "build_all_to_all_v_metadata",
        f"{tokens} tokens, {k} of {experts} experts on {ranks} ranks",
        build_all_to_all_v_metadata,
        (TensorSpec((tokens, k), "int32"), ranks, experts),
        hbm_bytes=4 * tokens * k + 12 * ranks,
    )


CASES = [
    argsort(128),
    argsort(512),
    deduplicated(128, 8, 16, 256),
    deduplicated(1024, 4, 8, 128),
    metadata(32, 4, 2, 32),
    metadata(128, 8, 16, 256),
    permute(16, 8, 2880, 128),
    permute(4096, 8, 4096, 128),
    reduce(128, 8, 4096),
    reduce(4096, 8, 4096),
]
