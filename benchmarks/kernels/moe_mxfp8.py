"""Blockwise experts of training in MXFP8, on trn3."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.moe_mxfp8.bwd import blockwise_mm_bwd_mxfp8
from nkilib.experimental.moe_mxfp8.fwd import blockwise_mm_fwd_mxfp8

from . import Case
from .mxfp8 import bf16


def routing(blocks: int, block: int) -> tuple[TensorSpec, TensorSpec]:
    """Tokens of all positions, and the experts of all blocks."""
    return TensorSpec((blocks * block,), "int32"), TensorSpec((blocks, 1), "int32")


def forward(tokens: int, h: int, i: int, experts: int, block: int, lnc: int = 1) -> Case:
    """Bound by TensorE: three products of every block."""
    blocks = tokens // block + experts
    return Case(
        "blockwise_mm_fwd_mxfp8",
        f"{tokens} tokens, {experts} experts {h}x{i}, blocks of {block}",
        blockwise_mm_fwd_mxfp8,
        (
            bf16(tokens, h),
            TensorSpec((tokens * experts, 1), "float32"),
            bf16(experts, 2, i, h),
            bf16(experts, h, i),
            *routing(blocks, block),
            block,
        ),
        hbm_bytes=2 * (2 * tokens * h + blocks * (3 * h * i + 3 * i * block)),
        flops={"mxfp8": 6 * blocks * block * h * i},
        lnc=lnc,
        platform="trn3",
    )


def backward(tokens: int, h: int, i: int, experts: int, block: int, lnc: int = 1) -> Case:
    """Bound by TensorE or DMA: six products of every block, and both gradients of its expert's weights."""
    blocks = tokens // block + experts
    return Case(
        "blockwise_mm_bwd_mxfp8",
        f"{tokens} tokens, {experts} experts {h}x{i}, blocks of {block}",
        blockwise_mm_bwd_mxfp8,
        (
            bf16(tokens, h),
            TensorSpec((tokens * experts, 1), "float32"),
            bf16(experts, h, 2, i),
            bf16(experts, i, h),
            *routing(blocks, block),
            bf16(tokens, h),
            block,
            bf16(blocks, 2, i, block),
        ),
        hbm_bytes=2 * (3 * tokens * h + blocks * (9 * h * i + 2 * i * block)),
        flops={"mxfp8": 12 * blocks * block * h * i},
        lnc=lnc,
        platform="trn3",
    )


CASES = [
    forward(2048, 2048, 1024, 4, 512),
    forward(2048, 2048, 1024, 4, 512, lnc=2),
    backward(1024, 2048, 1024, 2, 512),
    backward(1024, 2048, 1024, 2, 512, lnc=2),
]
