"""Autotuned against hand-chosen tiles of ten kernels, two of them the tutorial's: modelled times."""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from nki import TensorSpec
from nki.tune import tune
from nkilib.core.subkernels.find_nonzero_indices import find_nonzero_indices
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.experimental.matmul_mxfp8 import matmul_mxfp8
from nkilib.experimental.mlp_mxfp8.mlp_fwd_mxfp8 import mlp_forward_mxfp8_nki
from trnblas.nki.gemm import batched_gemm_kernel, gemm_kernel, syrk_kernel

OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"
MATMUL = Path(__file__).parent.parent / "examples" / "matmul" / "kernels.py"


class Question(NamedTuple):
    """A kernel, the arguments of a call, what is varied, and what a person chose for it."""

    kernel: Any
    arguments: dict[str, Any]
    vary: dict[str, list[Any]]
    chosen: dict[str, Any]
    target: str = "trn2"


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


def blocked(name: str) -> Any:
    """A kernel of the tutorial."""
    spec = importlib.util.spec_from_file_location("matmul_kernels", MATMUL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def questions() -> list[Question]:
    blocks = {"block_m": [512, 1024], "block_n": [512, 1024]}
    hand = {"block_m": 512, "block_n": 512}
    chunks = [2048, 4096, 8192, 16384, 32768]
    logits = {"logits_hbm": bf16(128, 32768), "targets_hbm": TensorSpec((128,), "int32")}
    lse = {"lse_state_hbm": bf16(128)}
    orders = ["mnk", "nmk"]
    mlp = [bf16(512, 1024), bf16(2048, 1024), bf16(1024, 1024), bf16(512, 1024)]
    names = list(mlp_forward_mxfp8_nki.__signature__.parameters)
    return [
        Question(gemm_kernel, {"a": bf16(1024, 1024), "b": bf16(1024, 1024)}, blocks, hand),
        Question(batched_gemm_kernel, {"a": bf16(2, 1024, 512), "b": bf16(2, 512, 1024)}, blocks, hand),
        Question(syrk_kernel, {"a": bf16(1024, 512)}, blocks, hand),
        Question(
            blocked("blocked_mnk"),
            {"lhsT": bf16(1024, 1024), "rhs": bf16(1024, 1024)},
            {"tiles_m": [2, 4, 8, 16], "tiles_n": [1, 2], "tiles_k": [4, 8]},
            {"tiles_m": 16, "tiles_n": 2, "tiles_k": 8},
        ),
        Question(cross_entropy_forward, logits, {"chunk_size": chunks}, {"chunk_size": 32768}),
        Question(cross_entropy_backward, {**logits, **lse}, {"chunk_size": chunks}, {"chunk_size": 32768}),
        Question(
            blocked("blocked_mn"),
            {"lhsT": bf16(1024, 1024), "rhs": bf16(1024, 1024)},
            {"tiles_m": [1, 2, 4, 8], "tiles_n": [1, 2]},
            {"tiles_m": 2, "tiles_n": 2},
        ),
        Question(
            find_nonzero_indices,
            {"input_tensor": TensorSpec((4096, 8), "float32")},
            {"chunk_size": [None, 512, 1024, 2048, 4096]},
            {"chunk_size": None},
        ),
        Question(
            matmul_mxfp8,
            {
                "lhs": bf16(512, 1024),
                "rhs": bf16(1024, 1024),
                "float8_dtype": "float8_e4m3fn",
                "lhs_is_swizzled": False,
                "rhs_is_swizzled": False,
                "lhs_is_f_by_k": True,
                "rhs_is_f_by_k": True,
            },
            {"block_loop_order": orders, "tile_loop_order": orders},
            {"block_loop_order": "mnk", "tile_loop_order": "mnk"},
            "trn3",
        ),
        Question(
            mlp_forward_mxfp8_nki,
            dict(zip(names, mlp, strict=False)),
            {"gate_up_tiles_m": [2, 4, 8], "gate_up_tiles_k": [4, 8], "down_tiles_k": [4, 8]},
            {"gate_up_tiles_m": 8, "gate_up_tiles_k": 8, "down_tiles_k": 8},
            "trn3",
        ),
    ]


def gain(question: Question) -> float:
    """How many times faster the tuned configuration is than the one that was chosen by hand."""
    before = os.environ.get(OVERRIDE)
    os.environ[OVERRIDE] = question.target
    try:
        found = tune(
            question.kernel, (), question.arguments, vary=question.vary, target=question.target, cache=False
        )
        named = {**question.arguments, **question.chosen}
        return question.kernel.profile(**named).total_us / found.us
    finally:
        os.environ.pop(OVERRIDE, None)
        if before is not None:
            os.environ[OVERRIDE] = before


def run():
    gains = {question.kernel.__name__: gain(question) for question in questions()}
    rows = [
        (f"{name}: tuned against chosen by hand", f"{value:.3f}x", ">= 1") for name, value in gains.items()
    ]
    mean = math.exp(sum(map(math.log, gains.values())) / len(gains))
    return [*rows, (f"geometric mean of {len(gains)} kernels", f"{mean:.3f}x", ">= 1")]


if __name__ == "__main__":
    for row in run():
        print(*row, sep="  ")
