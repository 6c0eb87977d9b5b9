"""The documented arguments of `qkv` and `qkv_cte`, and the QKVParameters that they become."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.qkv.qkv_parameters import ArgumentNames, Cache, HeadNorm, QKVParameters, RopeTables
from nkilib.core.utils.common_types import (
    DtypeMode,
    NormType,
    QKNormConfig,
    QKVOutputLayout,
    QuantizationType,
    check_strided_input,
)
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
    value_assert,
)
from nkilib.core.utils.kernel_helpers import largest_value, resolve_dtype_to_nki
from nkilib.core.utils.types import Tensor


@dataclass
class Projection(nl.NKIObject):
    """y = x W + bias: its operands, and where y goes."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    layout: QKVOutputLayout
    output_hbm: Tensor | None = None
    transposed_in: bool = False


@dataclass
class Quantization(nl.NKIObject):
    kind: QuantizationType
    w_scale: Tensor | None
    in_scale: Tensor | None
    dtype_mode: DtypeMode


@dataclass
class TokenNorm(nl.NKIObject):
    """The norm of the tokens."""

    kind: NormType
    gamma: Tensor | None
    beta: Tensor | None
    eps: float
    hidden_actual: int | None


@dataclass
class Residuals(nl.NKIObject):
    """What is added to the tokens first."""

    added: bool
    mlp_prev: Tensor | None
    attention_prev: Tensor | None


def check_unsupported(strided_input_config: object, store_output_in_sbuf: bool) -> None:
    """Raise for options that are documented but not built."""
    check_strided_input(strided_input_config)
    kernel_assert(not store_output_in_sbuf, "store_output_in_sbuf: got True, allowed is False")


def projection_parameters(
    projection: Projection,
    quantization: Quantization,
    norm: TokenNorm,
    residuals: Residuals,
    heads: tuple,
    names: ArgumentNames,
) -> QKVParameters:
    """Return the parameters of a projection. `heads`: (d_head, query heads, key and value heads)."""
    unused = (
        (names.residuals[0], residuals.mlp_prev),
        (names.residuals[1], residuals.attention_prev),
    )
    refuse_without_effect(residuals.added, names.residual, unused)
    assert_tensors(((names.input, projection.input), (names.weight, projection.weight)))
    assert_members((names.quantization, quantization.kind, QuantizationType))
    return QKVParameters(
        projection.input,
        projection.weight,
        projection.layout,
        projection.bias,
        quantization.kind,
        quantization.w_scale,
        quantization.in_scale,
        (residuals.mlp_prev, residuals.attention_prev) if residuals.added else (),
        norm.kind,
        norm.gamma,
        norm.beta,
        norm.eps,
        norm.hidden_actual,
        d_head=heads[0],
        q_heads=heads[1],
        kv_heads=heads[2],
        transposed_in=projection.transposed_in,
        output_hbm=projection.output_hbm,
        dtype_mode=quantization.dtype_mode,
        names=names,
    )


def rope_of(fused: bool, q_tables: tuple, k_tables: tuple) -> RopeTables | None:
    """Return the tables of RoPE, (cos, sin) each; keys that have none use those of queries."""
    unused = (
        ("cos_cache", q_tables[0]),
        ("sin_cache", q_tables[1]),
        ("k_cos_cache", k_tables[0]),
        ("k_sin_cache", k_tables[1]),
    )
    refuse_without_effect(fused, "fused_rope", unused)
    if not fused:
        return None
    k_cos = q_tables[0] if k_tables[0] is None else k_tables[0]
    k_sin = q_tables[1] if k_tables[1] is None else k_tables[1]
    return RopeTables((q_tables[0], k_cos), (q_tables[1], k_sin))


def head_norm(name: str, config: QKNormConfig | None, gammas: tuple, betas: tuple) -> HeadNorm | None:
    """Return the norm of the QKNormConfig `name`; gammas given beside it win over those in it."""
    unused = (
        (f"{name}_q_gamma", gammas[0]),
        (f"{name}_k_gamma", gammas[1]),
        (f"{name}_q_beta", betas[0]),
        (f"{name}_k_beta", betas[1]),
    )
    refuse_without_effect(config is not None, name, unused)
    if config is None:
        return None
    kernel_assert(isinstance(config, QKNormConfig), f"{name}: got {config!r}, expected a QKNormConfig")
    q_gamma = config.q_gamma_norm_weights if gammas[0] is None else gammas[0]
    k_gamma = config.k_gamma_norm_weights if gammas[1] is None else gammas[1]
    return HeadNorm((config.q_norm, config.k_norm), (q_gamma, k_gamma), betas, config.eps)


def cache_of(caches: tuple, scales: tuple, limits: tuple, layout: tuple, paging: tuple) -> Cache | None:
    """Return where keys and values go, or None if they are part of the result.

    `limits`: (fp8_max, fp8_min, kv_dtype). `layout`: (transpose_k_cache, fp8_packed).
    `paging`: (use_block_kv, block_size, slot_mapping).
    """
    paged, block_size = paging[0], paging[1]
    check_companions(caches, scales, paged, block_size)
    check_cache_options(caches, scales, limits, layout, paging)
    if caches[0] is None:
        return None
    largest, smallest = cache_limits(caches[0], scales[0], limits)
    return Cache(
        caches, scales, largest, smallest, layout[0], layout[1], block_size if paged else 0, paging[2]
    )


def check_companions(caches: tuple, scales: tuple, paged: bool, block_size: int | None) -> None:
    """Raise where one of several arguments that are only allowed together is missing."""
    k_cache, k_scale = caches[0], scales[0]
    value_assert(
        (k_cache is None) == (caches[1] is None),
        "k_cache, v_cache: got one of them, both or none are allowed",
    )
    value_assert(
        (k_scale is None) == (scales[1] is None),
        "k_scale, v_scale: got one of them, both or none are allowed",
    )
    value_assert(k_scale is None or k_cache is not None, "k_scale: got one without k_cache and v_cache")
    kernel_assert(not paged or k_cache is not None, "k_cache: got None, needed by use_block_kv")
    kernel_assert(not paged or block_size is not None, "block_size: got None, needed by use_block_kv")


def check_cache_options(caches: tuple, scales: tuple, limits: tuple, layout: tuple, paging: tuple) -> None:
    """Raise for options of a cache that this call does not have."""
    tensors = (("k_scale", scales[0]), ("v_scale", scales[1]), ("slot_mapping", paging[2]))
    assert_tensors((), (("k_cache", caches[0]), ("v_cache", caches[1])) + tensors)
    stored = (("transpose_k_cache", layout[0]), ("fp8_packed", layout[1]))
    refuse_without_effect(caches[0] is not None, "k_cache and v_cache", stored)
    scaled = (("fp8_max", limits[0]), ("fp8_min", limits[1]), ("kv_dtype", limits[2]))
    refuse_without_effect(scales[0] is not None, "k_scale and v_scale", scaled)
    refuse_without_effect(paging[0], "use_block_kv", (("block_size", paging[1]), ("slot_mapping", paging[2])))


def cache_limits(cache: Tensor, scale: Tensor | None, limits: tuple) -> tuple[float, float]:
    """Return the (largest, smallest) value to store, where keys and values are quantised."""
    if scale is None:
        return (0.0, 0.0)
    largest, smallest, kv_dtype = limits
    kernel_assert(
        kv_dtype is None or resolve_dtype_to_nki(kv_dtype) == cache.dtype,
        f"kv_dtype: got {kv_dtype}, allowed is that of k_cache, {cache.dtype}",
    )
    if largest is None:
        largest = largest_value(cache.dtype)
    return (float(largest), float(-largest if smallest is None else smallest))
