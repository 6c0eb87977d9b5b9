"""Kernels of several ranks: the slowest rank of a world, against its own roofline and that of its link."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.attention.attention_kv_parallel_segmented_cte import attention_kv_parallel_segmented_cte
from nkilib.experimental.attention.ring_attention_bwd import ring_attention_spmd_bwd
from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd
from nkilib.experimental.collectives.a2av_train import permute_a2av, unpermute_a2av
from nkilib.experimental.collectives.batch_shard import attn_q_batch_shard
from nkilib.experimental.collectives.fg_allgather import fine_grained_allgather
from nkilib.experimental.collectives.fgcc import allgather_compute_matmul
from nkilib.experimental.collectives.sb2sb_allgather import allgather_sb2sb, allgather_sb2sb_tiled

from . import Case
from .transformer import block_of_ranks

D = 128
BF16 = 2  # bytes


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(shape, dtype)


def group(ranks: int) -> tuple:
    return (tuple(range(ranks)),)


def dispatched(ranks: int, tokens: int, width: int) -> list[Case]:
    """Every slot is packed, sent, received and moved again, as if all tokens went everywhere."""
    slots, indices = tensor(ranks * tokens, width), tensor(tokens, ranks, dtype="int32")
    counts, size = tensor(1, ranks, dtype="int32"), ranks * tokens * width * BF16
    label = f"{tokens} tokens x {width} bf16"
    given = (indices, counts, group(ranks))
    options = {"ranks": ranks, "link_bytes": (ranks - 1) * tokens * width * BF16, "lnc": 2}
    return [
        Case("permute_a2av", label, permute_a2av, (tensor(tokens, width), *given), 4 * size, **options),
        Case("unpermute_a2av", label, unpermute_a2av, (slots, *given), 5 * size, **options),
    ]


def batches(ranks: int, heads: int, count: int) -> Case:
    """The queries of all other ranks arrive; a part of them is the result."""
    rows, part = (heads, count, 1, D), heads * count * D * BF16
    table, space = tensor(1, ranks, dtype="int32"), tensor(ranks * heads, count, 1, D)
    return Case(
        "attn_q_batch_shard",
        f"{heads} heads, {count} batches each, d {D} bf16",
        attn_q_batch_shard,
        (tensor(*rows), table, space, ranks, group(ranks)),
        hbm_bytes=3 * part,
        ranks=ranks,
        link_bytes=(ranks - 1) * part,
    )


def ring(ranks: int, heads: int, tokens: int) -> Case:
    """Keys and values of all other ranks arrive in order; every query attends to every key."""
    rows = (1, heads, tokens, D)
    part = heads * tokens * D * BF16
    return Case(
        "ring_attention_spmd_fwd",
        f"{heads} heads, {tokens} tokens each, d {D} bf16",
        ring_attention_spmd_fwd,
        {"q": tensor(*rows), "k": tensor(*rows), "v": tensor(*rows), "num_workers": ranks}
        | {"tp_q": True, "tp_k": True},
        hbm_bytes=(2 + 2 * ranks) * part,
        flops={"bfloat16": 4 * heads * tokens * ranks * tokens * D},
        ranks=ranks,
        link_bytes=2 * (ranks - 1) * part,
    )


def ring_backward(ranks: int, heads: int, tokens: int) -> Case:
    """Compute five products; keys, values and their float32 gradients move around the ring."""
    columns = (1, heads, D, tokens)
    part = heads * tokens * D * BF16
    names = ("q_ref", "k_ref", "v_ref", "o_ref", "dy_ref")
    return Case(
        "ring_attention_spmd_bwd",
        f"{heads} heads, {tokens} tokens each, d {D} bf16",
        ring_attention_spmd_bwd,
        {name: tensor(*columns) for name in names}
        | {"lse_ref": tensor(1, heads, 128, tokens // 128, dtype="float32"), "num_workers": ranks},
        hbm_bytes=(3 + 6 * ranks) * part,
        flops={"bfloat16": 10 * heads * tokens * ranks * tokens * D},
        ranks=ranks,
        link_bytes=(2 * (ranks - 1) + 4 * ranks) * part,
    )


def gathered(ranks: int, rows: int, columns: int) -> Case:
    part = rows * columns * BF16
    return Case(
        "fine_grained_allgather",
        f"{rows}x{columns} each bf16",
        fine_grained_allgather,
        (tensor(rows, columns), ranks, 1),
        hbm_bytes=(1 + ranks) * part,
        ranks=ranks,
        link_bytes=(ranks - 1) * part,
    )


def gathered_matmul(ranks: int, rows: int, inner: int, columns: int) -> Case:
    part = rows * inner * BF16
    return Case(
        "allgather_compute_matmul",
        f"{rows}x{inner} each, times {inner}x{columns} bf16",
        allgather_compute_matmul,
        (tensor(rows, inner), tensor(inner, columns), ranks, 1),
        hbm_bytes=part + BF16 * (inner * columns + ranks * rows * columns),
        flops={"bfloat16": 2 * ranks * rows * inner * columns},
        ranks=ranks,
        link_bytes=(ranks - 1) * part,
    )


def on_chip(kernel, ranks: int, rows: int, columns: int, lnc: int = 1) -> Case:
    part = rows * columns * BF16
    return Case(
        kernel.__name__,
        f"{rows}x{columns} each bf16",
        kernel,
        (tensor(rows, columns), group(ranks), ranks),
        hbm_bytes=(1 + ranks) * part,
        ranks=ranks,
        lnc=lnc,
        link_bytes=(ranks - 1) * part,
    )


def prefill(ranks: int, queries: int, prior: int, block: int = 32) -> Case:
    """Each rank has one head over the keys of all ranks; queries and float32 results are exchanged."""
    blocks = (prior + queries) // block // ranks
    cache, number = tensor(blocks, 1, block, D), tensor(1, 1, dtype="int32")
    keys = blocks * block
    sent = queries * D * (BF16 + 4)
    return Case(
        "attention_kv_parallel_segmented_cte",
        f"{queries} queries behind {prior} tokens, d {D} bf16",
        attention_kv_parallel_segmented_cte,
        (tensor(1, queries, D), cache, cache, tensor(1, blocks, dtype="int32"), number)
        + (group(ranks), ranks, block, 2048, 0.125, prior),
        hbm_bytes=2 * keys * D * BF16 + 2 * ranks * sent,
        flops={"bfloat16": 4 * ranks * queries * keys * D},
        ranks=ranks,
        link_bytes=(ranks - 1) * sent,
    )


CASES = [
    *dispatched(4, 512, 1024),
    *dispatched(4, 1024, 2048),
    batches(8, 1, 32),
    batches(4, 2, 256),
    ring(4, 1, 2048),
    ring(8, 1, 1024),
    ring_backward(2, 1, 1024),
    ring_backward(4, 1, 512),
    gathered(8, 512, 4096),
    gathered(16, 128, 8192),
    gathered_matmul(8, 512, 8192, 1024),
    gathered_matmul(4, 128, 4096, 512),
    on_chip(allgather_sb2sb, 8, 128, 1024),
    on_chip(allgather_sb2sb, 4, 64, 4096),
    on_chip(allgather_sb2sb_tiled, 8, 1024, 1024),
    on_chip(allgather_sb2sb_tiled, 8, 1024, 1024, 2),
    prefill(4, 512, 3584),
    prefill(8, 512, 7680),
    block_of_ranks("KVDP", 4, 16, 4096, 2, 2048),
    block_of_ranks("CP", 4, 4, 8192, 2, 8192),
]
