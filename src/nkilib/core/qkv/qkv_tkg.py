"""QKV projection of decode, in HBM or from SBUF to SBUF."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.language as nl
from nkilib.core.qkv.qkv_arguments import InputNorm, Projection, Quantization, projection_parameters
from nkilib.core.qkv.qkv_checks import MOST_DECODED, check
from nkilib.core.qkv.qkv_decode import all_columns, decode, decode_whole
from nkilib.core.qkv.qkv_mx import as_mx, decode_mx
from nkilib.core.qkv.qkv_outputs import transpose_heads
from nkilib.core.qkv.qkv_parameters import (
    QKVParameters,
    batch_shape,
    columns_of,
    hidden_size,
    output_shape,
    result_dtype,
    token_count,
)
from nkilib.core.qkv.qkv_ref import qkv_ref
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
)
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


@nki.jit
def qkv_tkg(
    hidden: Tensor,
    qkv_w: Tensor,
    norm_w: Tensor | None = None,
    fused_add: bool = False,
    mlp_prev: Tensor | None = None,
    attn_prev: Tensor | None = None,
    d_head: int | None = None,
    num_kv_heads: int | None = None,
    num_q_heads: int | None = None,
    output_layout: QKVOutputLayout = QKVOutputLayout.BSD,
    eps: float = 1e-6,
    norm_type: NormType = NormType.RMS_NORM,
    quantization_type: QuantizationType = QuantizationType.NONE,
    is_h_dim_4h_transposed: bool = False,
    qkv_w_scale: Tensor | None = None,
    qkv_in_scale: Tensor | None = None,
    output_in_sbuf: bool = False,
    qkv_bias: Tensor | None = None,
    norm_bias: Tensor | None = None,
    hidden_actual: int | None = None,
    sbm: BufferManager | None = None,
    weight_layout: QKVWeightLayout = QKVWeightLayout.CONTIGUOUS,
    dtype_mode: DtypeMode = DtypeMode.NON_OCP,
    output_hbm: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """QKV projection of decode: y = norm(hidden + mlp_prev + attn_prev) W + bias.

    hidden [B, S, H] in HBM, or [128, T, H / 128] in SBUF; W [H, I]; up to 512 tokens. y is [B, S, I], [N, B,
    S, d] or [N, B, d, S] by `output_layout`. With fused_add it returns (y, hidden + mlp_prev + attn_prev).
    output_in_sbuf: [T, I] in every core, [d, N, T] with NBdS, of up to 128 tokens.

    Cores share the columns, or a long hidden dimension; H is a multiple of 128 for each. Other options are
    those of `qkv`. The compiler places all tiles, beside those of a manager `sbm`.

    >>> x, w = np.ones((4, 1, 256), np.float16), np.full((256, 384), 0.5, np.float16)
    >>> qkv_tkg(x, w, norm_type=NormType.NO_NORM)[3, 0, :2]
    array([128., 128.], dtype=float16)
    """
    p = projection_parameters(
        Projection(hidden, qkv_w, qkv_bias, output_layout, output_hbm),
        Quantization(quantization_type, qkv_w_scale, qkv_in_scale, dtype_mode),
        InputNorm(norm_type, norm_w, norm_bias, eps, hidden_actual),
        (mlp_prev, attn_prev) if fused_add else (),
        (d_head, num_q_heads, num_kv_heads),
    )
    p.output_in_sbuf = output_in_sbuf
    as_mx(p, is_h_dim_4h_transposed, weight_layout)
    return run_decode(p)


def run_decode(p: QKVParameters) -> Tensor | tuple[Tensor, ...]:
    """Check, allocate the results, and compute them."""
    sharding = get_verified_program_sharding_info("qkv_tkg", (0, 1), 2)
    n_prgs, core = sharding[1], sharding[2]
    check(p)
    check_decode(p, n_prgs)
    added = None
    if len(p.residuals) > 0:
        shape = batch_shape(p) + (hidden_size(p),)
        added = nl.ndarray(shape, p.input.dtype, buffer=nl.shared_hbm)
    sums = None
    if added is not None and core == 0:
        sums = added.reshape((token_count(p), hidden_size(p)))
    project = decode if p.mx_map is None else decode_mx
    if p.output_in_sbuf:
        if p.mx_map is None:
            out = decode_whole(p, n_prgs, core, sums)[0]
        else:
            out = all_columns(p, n_prgs, core, decode_mx(p, n_prgs, core, None, sums)[0])
        if p.layout == QKVOutputLayout.NBdS:
            out = transpose_heads(out.reshape_dim(1, (columns_of(p) // p.d_head, p.d_head)))
    else:
        out = p.output_hbm
        if out is None:
            out = nl.ndarray(output_shape(p), result_dtype(p), buffer=nl.shared_hbm)
        project(p, n_prgs, core, out, sums)
    return out if added is None else (out, added)


def check_decode(p: QKVParameters, n_prgs: int) -> None:
    tokens = token_count(p)
    most = PMAX if p.output_in_sbuf else MOST_DECODED
    kernel_assert(tokens <= most, f"hidden: got {tokens} tokens, allowed are at most {most}")
    kernel_assert(
        hidden_size(p) % (PMAX * n_prgs) == 0,
        f"hidden: got H = {hidden_size(p)}, {n_prgs} cores take multiples of {PMAX * n_prgs}",
    )


def qkv_tkg_ref(hidden: np.ndarray, qkv_w: np.ndarray, **options: Any) -> Any:
    """`qkv_ref` with the names of `qkv_tkg`: (y, hidden + mlp_prev + attn_prev)."""
    names = {
        "norm_w": "gamma_norm_weights",
        "fused_add": "fused_residual_add",
        "attn_prev": "attention_prev",
        "eps": "norm_eps",
        "norm_type": "fused_norm_type",
        "qkv_bias": "bias",
        "norm_bias": "layer_norm_bias",
    }
    renamed = {names.get(name, name): value for name, value in options.items()}
    renamed.setdefault("fused_norm_type", NormType.RMS_NORM)
    result = qkv_ref(hidden, qkv_w, **renamed)
    return result.out, result.added
