"""What swa_fused_cte accepts, and the sizes of a call."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.attention.attention_checks import MAX_HEAD_DIM, check_window, is_number
from nkilib.core.utils.kernel_assert import (
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
)
from nkilib.core.utils.kernel_helpers import div_ceil
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

DTYPES = (nl.bfloat16, nl.float16)


@dataclass
class BlockShape(nl.NKIObject):
    """The sizes of a call."""

    batch: int
    tokens: int
    hidden: int
    q_heads: int
    kv_heads: int
    depth: int
    window: int
    block_size: int

    def __post_init__(self) -> None:
        self.queries = self.q_heads * self.depth  # columns
        self.keys = self.kv_heads * self.depth
        self.columns = self.queries + 2 * self.keys
        self.before = div_ceil(self.window, PMAX) * PMAX  # keys of the window, in whole tiles


def check_tensors(
    hidden: Tensor,
    qkv_weight: Tensor,
    op_weight: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> None:
    assert_tensors(
        (
            ("hidden_states", hidden),
            ("qkv_weight", qkv_weight),
            ("op_weight", op_weight),
            ("k_cache", k_cache),
            ("v_cache", v_cache),
            ("block_tables", tables),
            ("cos_cache", cos),
            ("sin_cache", sin),
        )
    )
    kernel_assert(
        len(hidden.shape) == 3, f"hidden_states: got shape {tuple(hidden.shape)}, expected (B, S, H)"
    )
    kernel_assert(
        hidden.dtype in DTYPES, f"hidden_states: got {hidden.dtype}, allowed are bfloat16 and float16"
    )


def check_sizes(n: BlockShape, scale: float, cores: int) -> None:
    kernel_assert(is_number(scale) and scale > 0, f"scale: got {scale!r}, allowed are positive numbers")
    check_window(n.window)
    kernel_assert(n.window > 0, f"sliding_window: got {n.window}, allowed are positive ones")
    kernel_assert(n.block_size > 0, f"block_size: got {n.block_size}, allowed are positive ones")
    kernel_assert(
        n.kv_heads > 0 and n.q_heads > 0 and n.q_heads % n.kv_heads == 0,
        f"num_q_heads: got {n.q_heads}, allowed are multiples of num_kv_heads = {n.kv_heads}",
    )
    kernel_assert(
        0 < n.depth <= MAX_HEAD_DIM and n.depth % 2 == 0,
        f"d_head: got {n.depth}, allowed are even numbers up to {MAX_HEAD_DIM}",
    )
    kernel_assert(
        n.hidden % cores == 0, f"hidden_states: got H = {n.hidden}, expected a multiple of {cores} cores"
    )


def check_weights(
    n: BlockShape,
    hidden: Tensor,
    qkv_weight: Tensor,
    op_weight: Tensor,
    qkv_bias: Tensor | None,
    op_bias: Tensor | None,
    sink: Tensor | None,
) -> None:
    assert_shape(qkv_weight, (n.hidden, n.columns), "qkv_weight")
    assert_shape(op_weight, (n.queries, n.hidden), "op_weight")
    for pair in (("qkv_weight", qkv_weight), ("op_weight", op_weight)):
        kernel_assert(
            pair[1].dtype == hidden.dtype,
            f"{pair[0]}: got {pair[1].dtype}, expected {hidden.dtype} like hidden_states",
        )
    assert_tensors((), (("qkv_bias", qkv_bias), ("op_bias", op_bias), ("sink", sink)))
    for vector in (
        ("qkv_bias", qkv_bias, n.columns),
        ("op_bias", op_bias, n.hidden),
        ("sink", sink, n.q_heads),
    ):
        if vector[1] is not None:
            kernel_assert(
                vector[1].size == vector[2],
                f"{vector[0]}: got shape {tuple(vector[1].shape)}, expected {vector[2]} elements",
            )


def check_angles(n: BlockShape, cos: Tensor, sin: Tensor) -> None:
    shapes = ((n.batch, n.tokens, n.depth), (n.batch, n.tokens, n.depth // 2))
    kernel_assert(
        tuple(cos.shape) in shapes, f"cos_cache: got shape {tuple(cos.shape)}, allowed are {shapes}"
    )
    assert_shape(sin, tuple(cos.shape), "sin_cache")


def check_cache(
    n: BlockShape,
    hidden: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    quantized = v_cache.dtype in FP8
    blocks = v_cache.shape[0]
    assert_shape(v_cache, (blocks, n.kv_heads, n.block_size, n.depth), "v_cache")
    shape: tuple = (blocks, n.kv_heads, n.block_size, n.depth)
    if quantized:
        kernel_assert(
            n.block_size % 2 == 0, f"block_size: got {n.block_size}, FP8 keys in pairs need an even one"
        )
        shape = (blocks, n.kv_heads, n.block_size // 2, n.depth, 2)
    for pair in (("k_cache", k_cache), ("v_cache", v_cache)):
        kernel_assert(
            pair[1].dtype == (v_cache.dtype if quantized else hidden.dtype),
            f"{pair[0]}: got {pair[1].dtype}, allowed are {hidden.dtype} like hidden_states, or FP8 for both",
        )
    assert_shape(k_cache, shape, "k_cache")
    assert_tensors((), (("k_scale", k_scale), ("v_scale", v_scale)))
    refuse_without_effect(quantized, "FP8 caches", (("k_scale", k_scale), ("v_scale", v_scale)))
    for scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale[1] is not None:
            kernel_assert(
                scale[1].size in (1, PMAX),
                f"{scale[0]}: got shape {tuple(scale[1].shape)}, expected one number or (128, 1)",
            )


def check_places(n: BlockShape, tables: Tensor, prior_tokens: Tensor) -> None:
    kernel_assert(
        len(tables.shape) == 2 and tables.shape[0] == n.batch,
        f"block_tables: got shape {tuple(tables.shape)}, expected ({n.batch}, blocks)",
    )
    assert_tensors((("prior_tokens", prior_tokens),))
    for pair in (("block_tables", tables), ("prior_tokens", prior_tokens)):
        kernel_assert(
            pair[1].dtype in (nl.int32, nl.uint32), f"{pair[0]}: got {pair[1].dtype}, allowed is int32"
        )
    kernel_assert(
        prior_tokens.size in (1, n.batch),
        f"prior_tokens: got shape {tuple(prior_tokens.shape)}, expected one number, or {n.batch}",
    )
