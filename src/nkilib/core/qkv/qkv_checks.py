"""What the QKV kernels demand of their arguments."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.qkv.qkv_parameters import (
    SCALE_BYTES,
    HeadNorm,
    K,
    Q,
    QKVParameters,
    V,
    arrives_quantized,
    batch_shape,
    columns_of,
    hidden_size,
    input_in_sbuf,
    knows_heads,
    output_shape,
    token_count,
)
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKVOutputLayout,
    QuantizationType,
)
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_shape,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
    value_assert,
    warn_without_effect,
)
from nkilib.core.utils.kernel_helpers import normalization_uses_weights
from nkilib.core.utils.projection import FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

FLOATS = (nl.bfloat16, nl.float16, nl.float32)
NORMS = (NormType.NO_NORM, NormType.RMS_NORM, NormType.LAYER_NORM, NormType.RMS_NORM_SKIP_GAMMA)
MOST_HIDDEN = 32768
MOST_DECODED = 512  # tokens of one decode: as many columns as a bank of sums has


def check(p: QKVParameters) -> None:
    """Everything that is demanded of both kernels."""
    check_kinds(p)
    check_input(p)
    check_weights(p)
    check_norm(p)
    check_scales(p)
    check_heads(p)
    if p.output_hbm is not None:
        assert_shape(p.output_hbm, output_shape(p), "output_hbm")


def check_kinds(p: QKVParameters) -> None:
    """Tensors are tensors, and options members of their enumerations."""
    n = p.names
    assert_tensors(
        ((n.input, p.input), (n.weight, p.weight)),
        (
            (n.bias, p.bias),
            (n.w_scale, p.w_scale),
            (n.in_scale, p.in_scale),
            (n.gamma, p.gamma),
            (n.beta, p.beta),
            ("output_hbm", p.output_hbm),
        ),
    )
    assert_members(
        (n.quantization, p.quantization, QuantizationType),
        (n.norm, p.norm, NormType),
        ("output_layout", p.layout, QKVOutputLayout),
        ("dtype_mode", p.dtype_mode, DtypeMode),
    )
    for pair in (("d_head", p.d_head), ("num_q_heads", p.q_heads), ("num_kv_heads", p.kv_heads)):
        least = 0 if pair[0] == "num_q_heads" else 1
        kernel_assert(
            pair[1] is None or (not isinstance(pair[1], str) and pair[1] >= least),
            f"{pair[0]}: got {pair[1]!r}, allowed are None and numbers from {least} on",
        )
    kernel_assert(p.eps > 0, f"{n.eps}: got {p.eps}, allowed are positive numbers")


def check_input(p: QKVParameters) -> None:
    shape, rows, name = tuple(p.input.shape), hidden_size(p), p.names.input
    kernel_assert(len(shape) == 3, f"{name}: got shape {shape}, expected 3 dimensions")
    if input_in_sbuf(p):
        kernel_assert(
            shape[0] == PMAX and shape[2] * PMAX == rows,
            f"{name}: got shape {shape} in SBUF, expected (128, T, {rows // PMAX})",
        )
    else:
        hidden = shape[1] if p.transposed_in else shape[2]
        if arrives_quantized(p) and hidden == rows + SCALE_BYTES:
            hidden = rows
        value_assert(
            hidden == rows, f"{name}: got H = {hidden} of shape {shape}, {p.names.weight} has {rows} rows"
        )
    kernel_assert(rows % PMAX == 0, f"{name}: got H = {rows}, allowed are multiples of 128")
    kernel_assert(rows <= MOST_HIDDEN, f"{name}: got H = {rows}, allowed are at most {MOST_HIDDEN}")
    for i in range(len(p.residuals)):
        given, argument = p.residuals[i], p.names.residuals[i]
        value_assert(given is not None, f"{argument}: got None, needed by {p.names.residual}")
        assert_tensors(((argument, given),))
        assert_shape(given, shape, argument)
    if arrives_quantized(p):
        kernel_assert(
            p.norm == NormType.NO_NORM and len(p.residuals) == 0 and not p.transposed_in,
            f"{name}: got {p.input.dtype}, allowed only without norm, residuals and transposed_in",
        )
    else:
        kernel_assert(p.input.dtype in FLOATS, f"{name}: got {p.input.dtype}, allowed are {FLOATS}")


def check_weights(p: QKVParameters) -> None:
    name = p.names.weight
    kernel_assert(
        len(p.weight.shape) == 2,
        f"{name}: got shape {tuple(p.weight.shape)}, expected (H, I)",
    )
    dtype = p.weight.dtype
    if p.quantization == QuantizationType.NONE:
        kernel_assert(
            dtype in FLOATS or dtype in FP8,
            f"{name}: got {dtype}, allowed are {FLOATS} and {FP8}",
        )
    elif p.mx_map is None:
        kernel_assert(dtype in FP8, f"{name}: got {dtype} with {p.quantization}, allowed are {FP8}")
    if p.bias is not None:
        kernel_assert(
            p.bias.size == columns_of(p),
            f"{p.names.bias}: got shape {tuple(p.bias.shape)}, expected (1, {columns_of(p)})",
        )


def check_norm(p: QKVParameters) -> None:
    size, n = hidden_size(p), p.names
    kernel_assert(
        p.norm in NORMS,
        f"{n.norm}: got {p.norm}, allowed are NO_NORM, RMS_NORM, LAYER_NORM, RMS_NORM_SKIP_GAMMA",
    )
    if normalization_uses_weights(p.norm):
        kernel_assert(p.gamma is not None, f"{n.gamma}: got None, needed by {p.norm}")
        check_vector(p.gamma, size, n.gamma)
    if p.beta is not None:
        check_vector(p.beta, size, n.beta)
    if p.hidden_actual is not None:
        kernel_assert(
            0 < p.hidden_actual <= size, f"{n.hidden_actual}: got {p.hidden_actual}, allowed are 1 to {size}"
        )
    uses_gamma = "RMS_NORM and LAYER_NORM"
    refuse_without_effect(normalization_uses_weights(p.norm), uses_gamma, ((n.gamma, p.gamma),))
    refuse_without_effect(p.norm == NormType.LAYER_NORM, "LAYER_NORM", ((n.beta, p.beta),))
    warn_without_effect(p.norm != NormType.NO_NORM, "a norm", ((n.hidden_actual, p.hidden_actual),))


def check_vector(vector: Tensor, size: int, name: str) -> None:
    kernel_assert(vector.size == size, f"{name}: got shape {tuple(vector.shape)}, expected (1, {size})")


def check_scales(p: QKVParameters) -> None:
    w_name, in_name = p.names.w_scale, p.names.in_scale
    refuse_without_effect(
        p.quantization != QuantizationType.NONE, f"a {p.names.quantization}", ((w_name, p.w_scale),)
    )
    refuse_without_effect(
        p.quantization.is_logical_static(), "STATIC and STATIC_MX", ((in_name, p.in_scale),)
    )
    if p.quantization in (QuantizationType.NONE, QuantizationType.MX):
        return
    kernel_assert(p.w_scale is not None, f"{w_name}: got None, needed by {p.quantization}")
    shape = tuple(p.w_scale.shape)
    if p.quantization in (QuantizationType.ROW, QuantizationType.ROW_MX):
        kernel_assert(
            shape in ((1, columns_of(p)), (PMAX, columns_of(p))),
            f"{w_name}: got shape {shape}, expected (1, {columns_of(p)}) or (128, {columns_of(p)})",
        )
        return
    kernel_assert(
        shape in ((1, 3), (PMAX, 3), (1, 1), (PMAX, 1)),
        f"{w_name}: got shape {shape}, expected (1, 3) or (128, 3) with STATIC",
    )
    kernel_assert(p.in_scale is not None, f"{in_name}: got None, needed by {p.quantization}")
    shape = tuple(p.in_scale.shape)
    kernel_assert(
        shape in ((1, 1), (PMAX, 1)),
        f"{in_name}: got shape {shape}, expected (1, 1) or (128, 1)",
    )
    kernel_assert(
        knows_heads(p) or p.w_scale.shape[1] == 1,
        f"d_head, num_q_heads, num_kv_heads: needed by {p.quantization}",
    )


# ---- heads ---------------------------------------------------------------------------------------


def check_heads(p: QKVParameters) -> None:
    columns = columns_of(p)
    if knows_heads(p):
        wanted = (p.q_heads + 2 * p.kv_heads) * p.d_head
        kernel_assert(
            columns == wanted,
            f"{p.names.weight}: got I = {columns}, expected (num_q_heads + 2 num_kv_heads) d_head: {wanted}",
        )
    if p.layout != QKVOutputLayout.BSD:
        kernel_assert(p.d_head is not None, f"d_head: got None, needed by {p.layout}")
        kernel_assert(
            columns % p.d_head == 0, f"d_head: got {p.d_head}, {columns} columns are not whole heads"
        )
        kernel_assert(
            p.layout == QKVOutputLayout.NBSd or p.d_head <= PMAX,
            f"d_head: got {p.d_head}, allowed with NBdS are at most 128",
        )
    if p.rope is not None:
        check_rope(p)
    if p.before_rope is not None:
        check_head_norm(p, p.before_rope, "qk_norm_pre_rope")
    if p.after_rope is not None:
        check_head_norm(p, p.after_rope, "qk_norm_post_rope")
    if p.cache is not None:
        check_cache(p)
    for section in (Q, K, V):
        total, name = p.square_sums[section], ("q", "k", "v")[section] + "_squared_sum_out"
        if total is not None:
            assert_tensors(((name, total),))
            kernel_assert(knows_heads(p), f"d_head, num_q_heads, num_kv_heads: needed by {name}")
            kernel_assert(
                total.size == token_count(p),
                f"{name}: got shape {tuple(total.shape)}, expected {token_count(p)} elements",
            )


def check_rope(p: QKVParameters) -> None:
    kernel_assert(knows_heads(p), "d_head, num_q_heads, num_kv_heads: needed by fused_rope")
    kernel_assert(p.d_head % 2 == 0, f"d_head: got {p.d_head}, fused_rope takes even ones")
    shape = batch_shape(p) + (p.d_head,)
    tables = (
        ("cos_cache", p.rope.cos[Q]),
        ("sin_cache", p.rope.sin[Q]),
        ("k_cos_cache", p.rope.cos[K]),
        ("k_sin_cache", p.rope.sin[K]),
    )
    for table in tables:
        kernel_assert(table[1] is not None, f"{table[0]}: got None, needed by fused_rope")
        assert_tensors((table,))
        assert_shape(table[1], shape, table[0])


def check_head_norm(p: QKVParameters, norm: HeadNorm, name: str) -> None:
    kernel_assert(knows_heads(p), f"d_head, num_q_heads, num_kv_heads: needed by {name}")
    for section in (Q, K):
        kind, prefix = norm.norms[section], f"{name}_{('q', 'k')[section]}"
        heads = p.q_heads if section == Q else p.kv_heads
        size = p.d_head * (heads if kind == NormType.RMS_NORM_ACROSS_HEADS else 1)
        vectors = ((f"{prefix}_gamma", norm.gammas[section]), (f"{prefix}_beta", norm.betas[section]))
        assert_tensors((), vectors)
        refuse_without_effect(kind not in (None, NormType.NO_NORM), f"a norm in {name}", vectors)
        refuse_without_effect(kind != NormType.RMS_NORM_SKIP_GAMMA, "a norm that has one", vectors[0:1])
        for vector in vectors:
            if vector[1] is not None:
                check_vector(vector[1], size, vector[0])


def check_cache(p: QKVParameters) -> None:
    kernel_assert(knows_heads(p), "d_head, num_q_heads, num_kv_heads: needed by k_cache and v_cache")
    kernel_assert(
        p.layout == QKVOutputLayout.BSD, f"output_layout: got {p.layout}, allowed with caches is BSD"
    )
    c = p.cache
    for i in range(len(c.tensors)):
        name = ("k_scale", "v_scale")[i]
        kernel_assert(
            c.scales[i] is not None or c.tensors[i].dtype not in FP8,
            f"{name}: got None, needed by a cache of {c.tensors[i].dtype}",
        )
        if c.scales[i] is not None:
            shape = tuple(c.scales[i].shape)
            kernel_assert(
                shape in ((1,), (1, 1), (PMAX, 1)),
                f"{name}: got shape {shape}, expected one number: (128, 1), (1, 1) or (1,)",
            )
    if c.block_size == 0:
        check_flat_cache(p)
        return
    kernel_assert(c.slots is not None, "slot_mapping: got None, needed by use_block_kv")
    kernel_assert(
        c.slots.size == token_count(p),
        f"slot_mapping: got shape {tuple(c.slots.shape)}, expected {token_count(p)} elements",
    )
    width, depth, size = p.kv_heads * p.d_head, p.d_head, c.block_size
    blocks = c.tensors[1].shape[0]
    assert_shape(c.tensors[1], (blocks, size, width), "v_cache")
    keys: tuple = (blocks, size, width)
    if c.transposed:
        keys = (blocks * p.kv_heads, depth, size)
    elif c.packed:
        kernel_assert(size % 2 == 0, f"block_size: got {size}, fp8_packed takes even ones")
        keys = (blocks, size // 2, width, 2)
    assert_shape(c.tensors[0], keys, "k_cache")


def check_flat_cache(p: QKVParameters) -> None:
    c = p.cache
    kernel_assert(not c.packed, "fp8_packed: got True, allowed only with use_block_kv")
    batches, sequence = batch_shape(p)
    width = p.kv_heads * p.d_head
    most = c.tensors[1].shape[1]
    assert_shape(c.tensors[1], (batches, most, width), "v_cache")
    assert_shape(c.tensors[0], (batches, width, most) if c.transposed else (batches, most, width), "k_cache")
    kernel_assert(sequence <= most, f"k_cache: got room for {most} positions, {sequence} are written")
    kernel_assert(
        not c.transposed or p.d_head <= PMAX,
        f"d_head: got {p.d_head}, allowed with transpose_k_cache are at most 128",
    )
