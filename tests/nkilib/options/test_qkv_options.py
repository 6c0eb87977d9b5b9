"""Every documented option of `qkv`, `qkv_cte` and `qkv_tkg`, one at a time, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from options.common import Option, check, each, on_both
from options.qkv_cases import (
    BASIC,
    COLUMNS,
    HEADS,
    NONE_AT_ALL,
    NQ,
    PLAIN,
    PREFILL,
    PREFILL_REFUSALS,
    RESIDUALS,
    WIDTH,
    B,
    D,
    S,
    norm_of,
)
from options.qkv_reference import projection, qkv_in_float64, wide

from nkilib.core.qkv.qkv import qkv, qkv_cte, qkv_tkg
from nkilib.core.utils.common_types import NormType

TOLERANCE = 1e-2


@each(on_both(PLAIN) + on_both(PREFILL, slow=True) + PREFILL_REFUSALS)
def test_prefill(option: Option) -> None:
    check(option, qkv_cte, BASIC, qkv_in_float64, TOLERANCE)


@each(
    on_both(PLAIN, slow=True)
    + [case for case in PREFILL if case.name.startswith(("rope", "qk_norm"))]
    + PREFILL_REFUSALS
)
def test_the_kernel_that_chooses(option: Option) -> None:
    check(option, qkv, BASIC, qkv_in_float64, TOLERANCE)


def test_prefill_adds_residuals() -> None:
    check(Option("residuals", RESIDUALS), qkv_cte, BASIC, qkv_in_float64, TOLERANCE)


def with_sums(**o: Any) -> Any:
    return qkv_in_float64(**o), projection(o)[1]


@each(
    on_both(
        [
            Option("residuals", RESIDUALS),
            Option("residuals-with-norm", RESIDUALS | norm_of(NormType.RMS_NORM)),
        ]
    )
)
def test_decode_returns_the_sum_of_residuals(option: Option) -> None:
    check(option, qkv, BASIC, with_sums, TOLERANCE)


def test_sums_of_squares_of_each_section() -> None:
    parts = np.split(projection(BASIC)[0], [NQ * D, NQ * D + WIDTH], -1)
    for i, name in enumerate("qkv"):
        out = np.zeros((B, S), np.float32)
        qkv_cte(**BASIC, **HEADS, **{f"{name}_squared_sum_out": out})
        np.testing.assert_allclose(out, np.square(parts[i]).sum(-1), rtol=1e-2)


def test_a_given_output_is_written() -> None:
    for kernel in (qkv, qkv_cte):
        out = np.zeros((B, S, COLUMNS), np.float32)
        kernel(**BASIC, output_hbm=out)
        np.testing.assert_allclose(out, projection(BASIC)[0], atol=TOLERANCE * 4)


def test_a_number_of_columns_without_a_norm_is_reported() -> None:
    for kernel in (qkv, qkv_cte):
        with pytest.warns(UserWarning, match="hidden_actual has no effect.*a norm"):
            out = kernel(**BASIC, hidden_actual=100)
        np.testing.assert_allclose(out.astype(np.float64), projection(BASIC)[0], atol=TOLERANCE * 4)


# ---- decode by its own names ---------------------------------------------------------------------

RENAMED = {
    "input": "hidden",
    "fused_qkv_weights": "qkv_w",
    "bias": "qkv_bias",
    "fused_residual_add": "fused_add",
    "attention_prev": "attn_prev",
    "fused_norm_type": "norm_type",
    "gamma_norm_weights": "norm_w",
    "layer_norm_bias": "norm_bias",
    "norm_eps": "eps",
}
ONLY_PREFILL = ("use_auto_allocation", "load_input_with_DMA_transpose", "transpose_k_cache", "fp8_packed")
ONLY_PREFILL += ("cos_cache", "sin_cache", "k_cos_cache", "k_sin_cache", "fp8_max", "fp8_min", "kv_dtype")
ONLY_PREFILL += ("block_size", "slot_mapping")


def for_decode(case: Option) -> Option:
    changes = {"fused_norm_type": NormType.NO_NORM} | case.changes
    changes = {RENAMED.get(name, name): value for name, value in changes.items()}
    return case._replace(changes=changes, refused=RENAMED.get(case.refused, case.refused))


def decoded(**o: Any) -> Any:
    back = {new: old for old, new in RENAMED.items()}
    return qkv_in_float64(**{back.get(name, name): value for name, value in o.items()})


DECODE = [
    for_decode(case)
    for case in on_both(PLAIN) + NONE_AT_ALL
    if not any(name in case.changes for name in ONLY_PREFILL)
]


@each(DECODE)
def test_decode(option: Option) -> None:
    check(option, qkv_tkg, {RENAMED[name]: value for name, value in BASIC.items()}, decoded, TOLERANCE)


def test_the_reference_is_linear_in_the_tokens() -> None:
    """A reference that is wrong in the same way as the kernel would pass: this one is checked by itself."""
    doubled = BASIC | {"input": 2 * wide(BASIC["input"])}
    np.testing.assert_allclose(qkv_in_float64(**doubled), 2 * qkv_in_float64(**BASIC))
