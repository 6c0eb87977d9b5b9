"""Prefill and decode of the QKV projection, once the arguments are in one object."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.mlp.mlp_parameters import TKG_BS_SEQLEN_THRESHOLD
from nkilib.core.qkv.qkv_checks import MOST_DECODED, check
from nkilib.core.qkv.qkv_decode import all_columns, decode, decode_whole
from nkilib.core.qkv.qkv_mx import decode_mx
from nkilib.core.qkv.qkv_outputs import transpose_heads
from nkilib.core.qkv.qkv_parameters import (
    QKVParameters,
    arrives_quantized,
    batch_shape,
    columns_of,
    hidden_size,
    input_in_sbuf,
    output_columns,
    output_shape,
    result_dtype,
    token_count,
    touches_heads,
)
from nkilib.core.qkv.qkv_prefill import prefill
from nkilib.core.utils.common_types import QKVOutputLayout
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor


def needs_prefill(p: QKVParameters) -> bool:
    """Return whether decode lacks an option that is asked for, or there are too many tokens for it."""
    few = input_in_sbuf(p) or token_count(p) <= TKG_BS_SEQLEN_THRESHOLD
    return arrives_quantized(p) or p.transposed_in or touches_heads(p) or not few


def run_prefill(p: QKVParameters) -> Tensor | tuple[Tensor, ...]:
    """Check, allocate the result, and compute it."""
    get_verified_program_sharding_info("qkv_cte", (0, 1), 2)
    check(p)
    out = p.output_hbm
    if out is None and output_columns(p) > 0:
        out = nl.ndarray(output_shape(p), result_dtype(p), buffer=nl.shared_hbm)
    prefill(p, out)
    if p.cache is None:
        return out
    keys, values = p.cache.tensors
    return (keys, values) if out is None else (out, keys, values)


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
    kernel_assert(tokens <= most, f"{p.names.input}: got {tokens} tokens, allowed are at most {most}")
    kernel_assert(
        hidden_size(p) % (PMAX * n_prgs) == 0,
        f"{p.names.input}: got H = {hidden_size(p)}, {n_prgs} cores take multiples of {PMAX * n_prgs}",
    )
