"""Kernels of the library with their backward, as differentiable functions of PyTorch.

>>> import torch
>>> table = torch.ones(3, 2, requires_grad=True)
>>> gather(table, 0, torch.tensor([2, 0, 2], dtype=torch.int32)).sum().backward()
>>> table.grad.tolist()
[[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
"""

from __future__ import annotations

from typing import Any

from nki.frameworks.torch import differentiable
from nkilib.autograd.experts import blockwise_mm_fwd_mxfp8, mlp_forward_mxfp8_nki, moe_cte
from nkilib.autograd.first_result import with_gradients
from nkilib.autograd.ring import ring_attention_spmd_fwd
from nkilib.core.attention.attention_bwd import attention_bwd
from nkilib.core.attention.attention_cte import attention_cte as forward_attention
from nkilib.core.embeddings.rope import RoPE as forward_rope
from nkilib.core.mlp.mlp import mlp as forward_mlp
from nkilib.core.utils.common_types import NormType
from nkilib.experimental import loss, misc, pooling
from nkilib.experimental.batch_norm import batch_norm as forward_batch_norm
from nkilib.experimental.batch_norm import batch_norm_bwd
from nkilib.experimental.conv import conv1d as forward_conv1d
from nkilib.experimental.conv import conv3d as forward_conv3d
from nkilib.experimental.conv import depthwise_conv1d_implicit_gemm as forward_depthwise
from nkilib.experimental.conv.conv3d_bwd import conv3d_bwd
from nkilib.experimental.conv.conv3d_transpose import conv3d_transpose as forward_transpose
from nkilib.experimental.conv.conv_gradients import conv1d_bwd, conv3d_transpose_bwd
from nkilib.experimental.conv.depthwise_conv1d_bwd import depthwise_conv1d_bwd
from nkilib.experimental.deformable_attention import ms_deformable_attention as forward_deformable
from nkilib.experimental.deformable_attention import ms_deformable_attention_bwd
from nkilib.experimental.gdn import gdn_conv1d_prefill as forward_gdn_conv
from nkilib.experimental.gdn import gdn_conv1d_prefill_bwd, gdn_cte_bwd
from nkilib.experimental.gdn import gdn_cte as forward_gdn
from nkilib.experimental.matmul_mxfp8 import matmul_mxfp8 as forward_matmul_mxfp8
from nkilib.experimental.matmul_mxfp8 import matmul_mxfp8_backward
from nkilib.experimental.mlp_train import mlp_bwd
from nkilib.experimental.norm import layer_norm as forward_layer_norm
from nkilib.experimental.norm import layer_norm_bwd, rms_norm_bwd
from nkilib.experimental.norm import rms_norm as forward_rms_norm

__all__ = [
    "RoPE",
    "attention_cte",
    "avg_pooling_3d",
    "batch_norm",
    "blockwise_mm_fwd_mxfp8",
    "conv1d",
    "conv3d",
    "conv3d_temporal_unroll",
    "conv3d_transpose",
    "cross_entropy_forward",
    "depthwise_conv1d_implicit_gemm",
    "flash_attention_2",
    "gather",
    "gdn_conv1d_prefill",
    "gdn_cte",
    "layer_norm",
    "matmul_mxfp8",
    "max_pooling_3d",
    "mlp",
    "mlp_forward_mxfp8_nki",
    "moe_cte",
    "ms_deformable_attention",
    "ring_attention_spmd_fwd",
    "rms_norm",
    "scatter_add",
]


def _gather_backward(dy: Any, input: Any, dim: int, index: Any) -> tuple:
    return misc.gather_bwd(dy, input, dim, index), None


def _scatter_add(input: Any, dim: int, index: Any, src: Any) -> Any:
    return misc.scatter_add(input.clone(), dim, index, src)  # autograd needs the old values


def _scatter_add_backward(dy: Any, input: Any, dim: int, index: Any, src: Any) -> tuple:
    return dy, None, misc.scatter_add_bwd(dy, dim, index)


def _avg_pooling_backward(dy: Any, x: Any, *options: Any, **named: Any) -> Any:
    return pooling.avg_pooling_3d_backward(dy, x, *options, **named)


def _max_pooling_backward(dy: Any, x: Any, *rest: Any, **named: Any) -> Any:
    *options, y = rest  # the forward result stands last
    return pooling.max_pooling_3d_backward(dy, x, y, *options, **named)


def _batch_norm_backward(
    dy: Any,
    _means: Any,
    _variances: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    eps: float,
    fuse_relu: bool,
    _y: Any,
    means: Any,
    variances: Any,
) -> tuple:
    dx, dgamma, dbeta = batch_norm_bwd(dy.contiguous(), x, means, variances, gamma, beta, eps, fuse_relu)
    return dx, dgamma.to(gamma.dtype), dbeta.to(beta.dtype)


_differentiable_batch_norm = differentiable(forward_batch_norm, _batch_norm_backward, outputs=True)


def batch_norm(x_in: Any, gamma: Any, beta: Any, eps: float = 1e-5, fuse_relu: bool = False) -> tuple:
    """batch_norm: the result, which is differentiable, and the moments of the batch, which are not."""
    y, means, variances = _differentiable_batch_norm(x_in, gamma, beta, eps, fuse_relu)
    return y, means.detach(), variances.detach()


def _conv3d(
    x_in: Any,
    filters: Any,
    bias: Any,
    stride: tuple = (1, 1, 1),
    padding: tuple = (0,) * 6,
    dilation: tuple = (1, 1, 1),
) -> Any:
    """conv3d without an activation."""
    return forward_conv3d(x_in, filters, bias, stride, padding, dilation)


def _conv3d_backward(dy: Any, x_in: Any, filters: Any, bias: Any, *options: Any, **named: Any) -> Any:
    """dx and dw, and db where there is a bias."""
    named["compute_db"] = bias is not None
    return conv3d_bwd(dy, x_in, filters, *options, **named)


def _conv1d(
    x_in: Any, filters: Any, bias: Any, stride: int = 1, padding: tuple = (0, 0), dilation: int = 1
) -> Any:
    """conv1d without an activation."""
    return forward_conv1d(x_in, filters, bias, stride, padding, dilation)


def _conv1d_backward(dy: Any, x_in: Any, filters: Any, bias: Any, *options: Any, **named: Any) -> Any:
    """dx and dw, and db where there is a bias."""
    named["compute_db"] = bias is not None
    return conv1d_bwd(dy, x_in, filters, *options, **named)


def _conv3d_transpose(
    x_in: Any,
    filters: Any,
    bias: Any,
    stride: tuple = (1, 1, 1),
    padding: tuple = (0, 0, 0),
    dilation: tuple = (1, 1, 1),
) -> Any:
    """conv3d_transpose without an activation."""
    return forward_transpose(x_in, filters, bias, stride, padding, dilation)


def _conv3d_transpose_backward(dy: Any, x_in: Any, filters: Any, bias: Any, *options: Any) -> Any:
    """dx and dw, and db where there is a bias."""
    found: Any = conv3d_transpose_bwd(dy, x_in, filters, *options)
    return found[: 2 + (bias is not None)]


def _depthwise(
    img_ref: Any, filter_ref: Any, padding: tuple = ((0, 0), (0, 0)), stride: tuple = (1, 1)
) -> Any:
    """depthwise_conv1d_implicit_gemm with the options that it computes."""
    return forward_depthwise(img_ref, filter_ref, padding, stride)


def _cross_entropy_backward(
    d_loss: Any, d_lse: Any, logits: Any, targets: Any, *rest: Any, **named: Any
) -> tuple:
    *options, _, lse = rest  # the forward results stand last
    named = dict(zip(("positions_per_batch", "chunk_size", "dtype"), options, strict=False)) | named
    found = loss.cross_entropy_backward(logits, targets, lse, reduction="sum", inplace=False, **named)
    found = found * (d_loss + d_lse)[:, None].to(found.dtype)  # the kernel's is softmax minus the target
    return found.scatter_add(1, targets[:, None].long(), d_lse[:, None].to(found.dtype)), None


def _deformable_backward(dy: Any, value: Any, shapes: Any, starts: Any, *rest: Any, **named: Any) -> tuple:
    """The gradients of value, sampling_locations and attention_weights."""
    return ms_deformable_attention_bwd(dy, value, shapes, starts, *rest, **named)


def _attention_backward(
    dy: Any,
    _max: Any,
    _sum: Any,
    q: Any,
    k: Any,
    v: Any,
    scale: float,
    causal_mask: bool,
    sink: Any,
    sliding_window: int | None,
    out: Any,
    negative_max: Any,
    inverse_sum: Any,
) -> tuple:
    lse = -negative_max - inverse_sum.log()
    q, v, out, dy = (x.transpose(1, 2).contiguous() for x in (q, v, out, dy))
    sinks = None if sink is None else sink[None]
    found: Any = attention_bwd(
        q[None],
        k[None],
        v[None],
        out[None],
        dy[None],
        lse[None],
        sinks,
        use_causal_mask=causal_mask,
        softmax_scale=scale,
        sliding_window=sliding_window or None,
    )
    dq, dk, dv = found[0][0].transpose(1, 2), found[1][0], found[2][0].transpose(1, 2)
    return (dq, dk, dv) if sink is None else (dq, dk, dv, found[3][0])


@with_gradients(_attention_backward)
def attention_cte(
    q: Any,
    k: Any,
    v: Any,
    scale: float = 1.0,
    causal_mask: bool = True,
    sink: Any = None,
    sliding_window: int | None = None,
) -> Any:
    """attention_cte of q (bs, S, d), k (bs_kv, d, S) and v (bs_kv, S, d), S a multiple of 128."""
    options = {"sink": sink, "sliding_window": sliding_window, "cache_softmax": True}
    return forward_attention(q, k, v, scale, causal_mask, **options)


def flash_attention_2(q: Any, k: Any, v: Any, scale: float) -> Any:
    """flash_attention_2: attention_cte without a mask."""
    return attention_cte(q, k, v, scale, causal_mask=False)


def _gdn_conv_backward(dy: Any, _dstate: Any, mixed: Any, conv_weight: Any) -> Any:
    return gdn_conv1d_prefill_bwd(dy.contiguous(), mixed, conv_weight)


_differentiable_gdn_conv = differentiable(forward_gdn_conv, _gdn_conv_backward)


def gdn_conv1d_prefill(mixed: Any, conv_weight: Any) -> tuple:
    """gdn_conv1d_prefill: the result, which is differentiable, and the last tokens, which are not."""
    y, state = _differentiable_gdn_conv(mixed, conv_weight)
    return y, state.detach()


def _gdn_cte(
    query: Any,
    key: Any,
    value: Any,
    g_log: Any,
    beta: Any,
    scale: float = 1.0,
    recurrent_state: Any = None,
) -> tuple:
    """The result of gdn_cte and its last state."""
    return forward_gdn(query, key, value, g_log, beta, scale, recurrent_state=recurrent_state)


def _gdn_cte_backward(
    dy: Any,
    dstate: Any,
    query: Any,
    key: Any,
    value: Any,
    g_log: Any,
    beta: Any,
    scale: float = 1.0,
    recurrent_state: Any = None,
) -> tuple:
    found = gdn_cte_bwd(dy, query, key, value, g_log, beta, scale, recurrent_state, dstate)
    return found if recurrent_state is not None else found[:5]


def _matmul_mxfp8(x: Any, weights: Any, float8_dtype: str = "float8_e5m2") -> Any:
    """matmul_mxfp8 of x [M, K] and weights [N, K], bfloat16."""
    return forward_matmul_mxfp8(
        x, weights, float8_dtype=float8_dtype, lhs_is_swizzled=False, rhs_is_swizzled=False
    )


def _matmul_mxfp8_backward(dy: Any, x: Any, weights: Any, float8_dtype: str = "float8_e5m2") -> tuple:
    return matmul_mxfp8_backward(dy, weights, x, float8_dtype=float8_dtype)


def _mlp(
    hidden: Any,
    gate_weight: Any,
    up_weight: Any,
    down_weight: Any,
    norm_weight: Any = None,
    norm_bias: Any = None,
    gate_bias: Any = None,
    up_bias: Any = None,
    down_bias: Any = None,
    normalization_type: NormType = NormType.NO_NORM,
    eps: float = 1e-6,
) -> Any:
    """mlp of hidden [B, S, H] with SiLU, without quantization."""
    return forward_mlp(
        hidden,
        gate_weight,
        up_weight,
        down_weight,
        norm_weight,
        gate_bias,
        up_bias,
        down_bias,
        norm_bias,
        normalization_type=normalization_type,
        eps=eps,
    )[0]


def _mlp_backward(dy: Any, hidden: Any, *weights: Any, **options: Any) -> tuple:
    """The gradients of the tensors that are given."""
    size = hidden.shape[-1]
    found = mlp_bwd(dy.reshape(-1, size), hidden.reshape(-1, size), *weights, **options)
    return found[0].reshape(hidden.shape), *found[1:]


def _rope_backward(dy: Any, x_in: Any, cos: Any, sin: Any, *options: Any, **named: Any) -> tuple:
    """The rotation back; angles have no gradient."""
    return forward_rope(dy, cos, -sin, *options, **named), None, None


def _layer_norm_backward(dy: Any, x: Any, gamma: Any, beta: Any, *rest: Any, **named: Any) -> Any:
    return layer_norm_bwd(dy, x, gamma, *rest, **named)


RoPE = differentiable(forward_rope, _rope_backward)
avg_pooling_3d = differentiable(pooling.avg_pooling_3d, _avg_pooling_backward)
conv1d = differentiable(_conv1d, _conv1d_backward)
conv3d = differentiable(_conv3d, _conv3d_backward)
conv3d_temporal_unroll = conv3d  # another order of the same products
conv3d_transpose = differentiable(_conv3d_transpose, _conv3d_transpose_backward)
depthwise_conv1d_implicit_gemm = differentiable(_depthwise, depthwise_conv1d_bwd)
cross_entropy_forward = differentiable(loss.cross_entropy_forward, _cross_entropy_backward, outputs=True)
gather = differentiable(misc.gather, _gather_backward)
gdn_cte = differentiable(_gdn_cte, _gdn_cte_backward)
layer_norm = differentiable(forward_layer_norm, _layer_norm_backward)
matmul_mxfp8 = differentiable(_matmul_mxfp8, _matmul_mxfp8_backward)
max_pooling_3d = differentiable(pooling.max_pooling_3d, _max_pooling_backward, outputs=True)
mlp = differentiable(_mlp, _mlp_backward)
ms_deformable_attention = differentiable(forward_deformable, _deformable_backward)
rms_norm = differentiable(forward_rms_norm, rms_norm_bwd)
scatter_add = differentiable(_scatter_add, _scatter_add_backward)
