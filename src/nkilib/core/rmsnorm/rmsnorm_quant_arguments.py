"""What rmsnorm_quant_kernel takes, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.utils.common_types import NormType, QuantizationType
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, refuse_without_effect
from nkilib.core.utils.types import Tensor

MAX_BATCH, MAX_SEQUENCE, MAX_HIDDEN = 32, 32768, 16384
_FLOATS = (nl.bfloat16, nl.float16, nl.float32)


@dataclass
class RmsNormQuantKernelArgs(nl.NKIObject):
    """Options of rmsnorm_quant_kernel. lower_bound > 0 bounds |n| from above, in spite of its name."""

    lower_bound: float  # bound of |n|, 0: none
    norm_type: NormType = NormType.RMS_NORM  # or NO_NORM
    quantization_type: QuantizationType = QuantizationType.ROW  # or STATIC
    eps: float = 1e-6  # added to the mean of squares

    def __post_init__(self):
        kernel_assert(
            self.norm_type in (NormType.RMS_NORM, NormType.NO_NORM),
            f"norm_type: got {self.norm_type}, allowed are RMS_NORM and NO_NORM",
        )
        kernel_assert(
            self.quantization_type in (QuantizationType.ROW, QuantizationType.STATIC),
            f"quantization_type: got {self.quantization_type}, allowed are ROW and STATIC",
        )
        kernel_assert(
            self.lower_bound is not None and self.lower_bound >= 0,
            f"lower_bound: got {self.lower_bound}, allowed are numbers >= 0",
        )
        kernel_assert(self.eps > 0, f"eps: got {self.eps}, allowed are numbers > 0")

    def needs_rms_normalization(self):
        return self.norm_type == NormType.RMS_NORM

    def has_lower_bound(self):
        return self.lower_bound > 0


def check_arguments(
    hidden: Tensor,
    ln_w: Tensor,
    kargs: RmsNormQuantKernelArgs,
    input_dequant_scale: Tensor,
    pre_norm_gamma: Tensor,
    residual: Tensor,
) -> None:
    """Refuse what is not documented, before any instruction."""
    kernel_assert(
        isinstance(kargs, RmsNormQuantKernelArgs), f"kargs: got {kargs}, expected RmsNormQuantKernelArgs"
    )
    scale = (("input_dequant_scale", input_dequant_scale),)
    optional = (("ln_w", ln_w), ("pre_norm_gamma", pre_norm_gamma), ("residual", residual))
    assert_tensors((("hidden", hidden),), optional + scale)
    static = kargs.quantization_type == QuantizationType.STATIC
    refuse_without_effect(static, "QuantizationType.STATIC", scale)
    kernel_assert(
        hidden.dtype in _FLOATS, f"hidden: got {hidden.dtype}, allowed are bfloat16, float16, float32"
    )
    _check_sizes(tuple(hidden.shape))
    width = hidden.shape[-1]
    if kargs.needs_rms_normalization():
        kernel_assert(ln_w is not None, "ln_w: got None, gamma is required for RMS_NORM")
        _check_gamma("ln_w", ln_w, width)
    if pre_norm_gamma is not None:
        _check_gamma("pre_norm_gamma", pre_norm_gamma, width)
    if residual is not None:
        assert_shape(residual, hidden.shape, "residual")
    kernel_assert(
        not static or input_dequant_scale is not None,
        "input_dequant_scale: got None, a tensor is required for STATIC",
    )


def _check_sizes(shape: tuple[int, ...]) -> None:
    kernel_assert(len(shape) >= 2, f"hidden: got shape {shape}, at least 2 dimensions are needed")
    kernel_assert(shape[-1] <= MAX_HIDDEN, f"hidden: got H={shape[-1]}, allowed are at most {MAX_HIDDEN}")
    if len(shape) == 3:
        kernel_assert(shape[0] <= MAX_BATCH, f"hidden: got B={shape[0]}, allowed are at most {MAX_BATCH}")
        kernel_assert(
            shape[1] <= MAX_SEQUENCE, f"hidden: got S={shape[1]}, allowed are at most {MAX_SEQUENCE}"
        )
    rows = 1
    for size in shape[:-1]:
        rows = rows * size
    limit = MAX_BATCH * MAX_SEQUENCE
    kernel_assert(rows <= limit, f"hidden: got {rows} rows, allowed are at most {limit}")


def _check_gamma(name: str, gamma: Tensor, width: int) -> None:
    kernel_assert(
        tuple(gamma.shape) in ((width,), (1, width)),
        f"{name}: got shape {tuple(gamma.shape)}, expected ({width},) or (1, {width})",
    )
