"""The k largest logits of each token: greedy and top-k sampling."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.core.max import cascaded_max
from nkilib.core.topk import create_rotational_topk_config, rotational_topk
from nkilib.experimental.gpt_oss_tail import gpt_oss_tail_chunked_megakernel
from nkilib.experimental.topk import (
    chunked_topk,
    create_chunked_topk_config,
    create_gpsimd_topk_config,
    gpsimd_topk,
)

from . import Case

VECTOR_GHZ = 0.96
GPSIMD_GHZ = 1.4


def vector_us(rows: int, columns: int, k: int, lnc: int) -> float:
    """max8 and nc_find_index8 read all logits for every eight that are found."""
    return rows * columns / 128 * 2 * -(-k // 8) / VECTOR_GHZ / 1e3 / lnc


def rotational(rows: int, columns: int, k: int, lnc: int) -> Case:
    config = create_rotational_topk_config((rows, columns), None, k)
    return Case(
        "rotational_topk",
        f"{k} of {rows} x {columns} bf16",
        rotational_topk,
        (TensorSpec((rows, columns), "bfloat16"), config),
        hbm_bytes=2 * rows * columns,
        other=("Vector", vector_us(rows, columns, k, lnc)),
        lnc=lnc,
    )


def gpsimd(rows: int, columns: int, k: int, lnc: int) -> Case:
    config = create_gpsimd_topk_config((rows, columns), None, k, num_programs=lnc)
    cycles = -(-rows // 8 // lnc) * (4 * columns + k)
    return Case(
        "gpsimd_topk",
        f"{k} of {rows} x {columns} bf16",
        gpsimd_topk,
        (TensorSpec((rows, columns), "bfloat16"), config),
        hbm_bytes=2 * rows * columns,
        other=("GpSimd", cycles / GPSIMD_GHZ / 1e3),
        lnc=lnc,
    )


def chunked(rows: int, columns: int, k: int, lnc: int) -> Case:
    config = create_chunked_topk_config((rows, columns), None, k, num_programs=lnc)
    cycles = -(-rows // 8 // lnc) * (4 * columns + config.chunks * k)
    return Case(
        "chunked_topk",
        f"{k} of {rows} x {columns} bf16",
        chunked_topk,
        (TensorSpec((rows, columns), "bfloat16"), config),
        hbm_bytes=2 * rows * columns,
        other=("GpSimd", cycles / GPSIMD_GHZ / 1e3),
        lnc=lnc,
    )


def tail(rows: int, hidden: int, columns: int, k: int) -> Case:
    """The head of one rank; GpSimdE then searches what it gives."""
    cycles = -(-rows // 8 // 2) * (4 * columns + k)
    bytes_of_head = 2 * hidden * columns
    return Case(
        "gpt_oss_tail_chunked_megakernel",
        f"{rows} tokens, {hidden} x {columns} bf16, {k} candidates",
        gpt_oss_tail_chunked_megakernel,
        {
            "hidden_states": TensorSpec((rows, hidden), "bfloat16"),
            "gamma": TensorSpec((hidden,), "float32"),
            "lm_head_weight_t": TensorSpec((hidden, columns), "bfloat16"),
            "k": k,
            "sampling_params": TensorSpec((rows, 3), "float32"),
        },
        hbm_bytes=bytes_of_head + 4 * rows * columns,
        flops={"bfloat16": 2.0 * rows * hidden * columns},
        other=("GpSimd", cycles / GPSIMD_GHZ / 1e3),
        lnc=2,
    )


def greedy(rows: int, columns: int, lnc: int) -> Case:
    return Case(
        "cascaded_max",
        f"{rows} x {columns} bf16",
        cascaded_max,
        (TensorSpec((rows, columns), "bfloat16"),),
        hbm_bytes=2 * rows * columns,
        other=("Vector", vector_us(rows, columns, 1, lnc)),
        lnc=lnc,
    )


CASES = [
    greedy(16, 128256, 1),
    greedy(64, 32000, 2),
    rotational(16, 128256, 64, 1),
    rotational(64, 32000, 8, 2),
]
CASES += [chunked(16, 201088, 64, 1), chunked(64, 201088, 256, 2)]
CASES += [tail(16, 2880, 25136, 256), tail(64, 2880, 50272, 64)]
CASES += [gpsimd(16, 64000, 64, 1), gpsimd(64, 32000, 256, 2)]
