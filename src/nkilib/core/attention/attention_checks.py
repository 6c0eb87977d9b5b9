"""What attention_cte accepts. Every check names the argument, what it got and what is allowed."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor

from ..utils.kernel_assert import assert_shape, assert_tensors, kernel_assert

MAX_HEAD_DIM = 128
MAX_HEADS = 512
MAX_SEQUENCE = 131072
DTYPES = (nl.bfloat16, nl.float16, nl.float32)
SCORE_DTYPES = (nl.float32, nl.bfloat16)


def check_operands(q: Tensor, k: Tensor, v: Tensor, tp_q: bool, tp_k: bool) -> None:
    assert_tensors((("q", q), ("k", k), ("v", v)))
    check_tensor(q, "q", q)
    check_tensor(k, "k", q)
    check_tensor(v, "v", q)
    heads, key_heads, keys, head_dim = q.shape[0], v.shape[0], v.shape[1], v.shape[2]
    queries = q.shape[1] if tp_q else q.shape[2]
    kernel_assert(
        head_dim <= MAX_HEAD_DIM, f"v: got head dimension {head_dim}, allowed are 1 to {MAX_HEAD_DIM}"
    )
    kernel_assert(heads <= MAX_HEADS, f"q: got batch size {heads}, allowed are at most {MAX_HEADS}")
    kernel_assert(
        heads % key_heads == 0,
        f"q: got batch size {heads}, allowed are multiples of that of k and v, {key_heads}",
    )
    check_length(queries, "q")
    check_length(keys, "v")
    assert_shape(q, (heads, queries, head_dim) if tp_q else (heads, head_dim, queries), "q")
    assert_shape(k, (key_heads, keys, head_dim) if tp_k else (key_heads, head_dim, keys), "k")


def check_tensor(tensor: Tensor, name: str, like: Tensor) -> None:
    kernel_assert(len(tensor.shape) == 3, f"{name}: got shape {tuple(tensor.shape)}, expected 3 dimensions")
    kernel_assert(
        tensor.dtype in DTYPES,
        f"{name}: got dtype {tensor.dtype}, allowed are bfloat16, float16 and float32",
    )
    kernel_assert(
        tensor.dtype == like.dtype, f"{name}: got dtype {tensor.dtype}, expected {like.dtype} like q"
    )


def check_length(length: int, name: str) -> None:
    kernel_assert(
        length <= MAX_SEQUENCE, f"{name}: got sequence length {length}, allowed are at most {MAX_SEQUENCE}"
    )


def check_prior(
    v: Tensor, k_prior: Tensor | None, v_prior: Tensor | None, prior_used_len: Tensor | None, tp_k: bool
) -> None:
    given = (k_prior is not None, v_prior is not None, prior_used_len is not None)
    kernel_assert(
        given in ((True, True, True), (False, False, False)),
        f"k_prior, v_prior, prior_used_len: got {given} (True: given), allowed are all three or none",
    )
    if k_prior is not None and v_prior is not None:
        assert_tensors((("k_prior", k_prior), ("v_prior", v_prior)))
        check_tensor(k_prior, "k_prior", v)
        check_tensor(v_prior, "v_prior", v)
        heads, keys, head_dim = v.shape[0], v_prior.shape[1], v.shape[2]
        assert_shape(v_prior, (heads, keys, head_dim), "v_prior")
        assert_shape(k_prior, (heads, keys, head_dim) if tp_k else (heads, head_dim, keys), "k_prior")
        check_number(prior_used_len, "prior_used_len")


def check_number(tensor: Tensor, name: str) -> None:
    """A run-time int32."""
    assert_tensors(((name, tensor),))
    kernel_assert(
        tensor.size == 1 and tensor.dtype in (nl.int32, nl.uint32),
        f"{name}: got {tensor.dtype} of shape {tuple(tensor.shape)}, expected one int32",
    )


def check_scale(scale: float, window: int, parallel: bool, k_prior: Tensor | None) -> None:
    check_window(window)
    kernel_assert(is_number(scale) and scale > 0, f"scale: got {scale!r}, allowed are positive numbers")
    for use in (
        (window > 0, "sliding_window"),
        (parallel, "context parallelism"),
        (k_prior is not None, "k_prior"),
    ):
        kernel_assert(
            scale == 1.0 or not use[0],
            f"scale: got {scale}, allowed with {use[1]} is 1.0 (scale q beforehand)",
        )


def check_mask(
    causal_mask: bool,
    window: int,
    heads: int,
    queries: int,
    bound_min: Tensor | None,
    bound_max: Tensor | None,
) -> None:
    kernel_assert(
        causal_mask or window == 0,
        f"sliding_window: got {window} without causal_mask, allowed are None and 0",
    )
    kernel_assert(
        (bound_min is None) == (bound_max is None),
        "bound_min, bound_max: got one of them, allowed are both or none",
    )
    if bound_min is not None:
        check_bound(bound_min, "bound_min", heads, queries)
        check_bound(bound_max, "bound_max", heads, queries)


def is_number(value: object) -> bool:
    return value is not None and not isinstance(value, (str, bool))


def check_window(window: int) -> None:
    kernel_assert(
        is_number(window) and window >= 0,
        f"sliding_window: got {window!r}, allowed are None, 0 and positive numbers",
    )


def check_bound(bound: Tensor, name: str, heads: int, queries: int) -> None:
    assert_tensors(((name, bound),))
    allowed = ((heads, queries), (1, queries), (queries,), (queries, 1))
    kernel_assert(
        tuple(bound.shape) in allowed, f"{name}: got shape {tuple(bound.shape)}, allowed are {allowed}"
    )


def check_context_parallel(
    parallel: bool,
    causal_mask: bool,
    window: int,
    k_prior: Tensor | None,
    cp_offset: Tensor | None,
    degree: int | None,
    strided: bool,
    striped: bool,
) -> None:
    kernel_assert(
        causal_mask or not parallel,
        "causal_mask: got False, allowed with cp_offset, cp_strided_q_slicing and cp_striped_input is True",
    )
    kernel_assert(
        degree is None or degree > 0, f"global_cp_deg: got {degree}, allowed are None and positive numbers"
    )
    kernel_assert(
        degree is None or parallel, f"global_cp_deg: got {degree} without cp_offset, allowed is None"
    )
    kernel_assert(
        degree is not None or not strided,
        "global_cp_deg: got None, cp_strided_q_slicing needs a positive number",
    )
    kernel_assert(
        not striped or (window == 0 and k_prior is None and not strided),
        "cp_striped_input: got True, allowed without sliding_window, k_prior and cp_strided_q_slicing",
    )
    if cp_offset is not None:
        check_number(cp_offset, "cp_offset")


def check_softmax(
    heads: int,
    queries: int,
    sink: Tensor | None,
    cached: bool,
    dtype: DTypeLike,
    scores_dtype: DTypeLike,
    unnormalized: bool,
) -> None:
    assert_tensors((), (("sink", sink),))
    if sink is not None:
        assert_shape(sink, (heads, 1), "sink")
    kernel_assert(
        not cached or queries % PMAX == 0,
        f"cache_softmax: got True with {queries} queries, allowed are multiples of {PMAX}",
    )
    kernel_assert(
        cached or not unnormalized,
        "skip_output_normalization: got True without cache_softmax, allowed is False",
    )
    kernel_assert(dtype in DTYPES, f"softmax_dtype: got {dtype}, allowed are bfloat16, float16 and float32")
    kernel_assert(
        scores_dtype in SCORE_DTYPES, f"mm_out_dtype: got {scores_dtype}, allowed are float32 and bfloat16"
    )


def check_bias(
    heads: int,
    queries: int,
    keys: int,
    k_prior: Tensor | None,
    bias: Tensor | None,
    layout: str,
    band_params: Any,
) -> None:
    kernel_assert(
        layout in ("dense", "banded"), f"bias_layout: got {layout!r}, allowed are 'dense' and 'banded'"
    )
    assert_tensors((), (("position_bias", bias),))
    columns = keys
    if layout == "dense":
        kernel_assert(
            band_params is None, f"bias_band_params: got {band_params}, allowed with 'dense' is None"
        )
    else:
        kernel_assert(bias is not None, "position_bias: got None, bias_layout='banded' needs a tensor")
        columns = check_band(band_params)
    if bias is not None:
        allowed = ((heads, queries, columns), (1, queries, columns))
        kernel_assert(
            tuple(bias.shape) in allowed,
            f"position_bias: got shape {tuple(bias.shape)}, allowed are {allowed}",
        )
        kernel_assert(k_prior is None, "position_bias: got a tensor together with k_prior, allowed is None")


def check_band(params: Any) -> int:
    """The width of a band of these parameters."""
    right = isinstance(params, dict) and len(params) == 2 and "lower" in params and "upper" in params
    if right:
        for number in (params["lower"], params["upper"]):
            right = right and isinstance(number, int) and number >= 0
    kernel_assert(
        right, f"bias_band_params: got {params}, allowed is {{'lower': n, 'upper': m}} of numbers from 0"
    )
    return params["lower"] + 1 + params["upper"]
