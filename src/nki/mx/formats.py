"""The element formats of MX, and the two rules that choose a block's scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import ml_dtypes
import numpy as np

from ..machine import dtypes

BLOCK = 32  # elements that share a scale
BIAS, LARGEST_CODE, NAN_CODE = 127, 254, 255  # of a scale: code c means 2^(c - 127), 255 is NaN

# How many binades below the end of the range the largest element of a block lands. "ocp": the sample
# algorithm of the OCP specification, whose last binade saturates. "hardware": as nisa.quantize_mx has it.
RULES = {"ocp": 0, "hardware": 1}


@dataclass(frozen=True)
class Format:
    """Elements of one kind: `largest` is the largest finite number, 2^`exponent` the largest power of two."""

    name: str
    dtype: np.dtype  # one element in a byte
    packed: dtypes.DType  # four elements in a word
    exponent: int
    largest: float


FormatLike: TypeAlias = Format | dtypes.DTypeLike

FORMATS = {
    f.name: f
    for f in (
        Format("float8_e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), dtypes.float8_e4m3fn_x4, 8, 448.0),
        Format("float8_e5m2", np.dtype(ml_dtypes.float8_e5m2), dtypes.float8_e5m2_x4, 15, 57344.0),
        Format("float4_e2m1fn", np.dtype(ml_dtypes.float4_e2m1fn), dtypes.float4_e2m1fn_x4, 2, 6.0),
    )
}
_SPELLINGS = {
    "mxfp8": "float8_e4m3fn",
    "mxfp8_e4m3": "float8_e4m3fn",
    "mxfp8_e5m2": "float8_e5m2",
    "mxfp4": "float4_e2m1fn",
    "float4_e2m1fn_x2": "float4_e2m1fn",
}


def find_format(name: FormatLike) -> Format:
    """Return the format of a name ("float8_e4m3fn", "mxfp4", ...) or a dtype of elements, packed or not."""
    if isinstance(name, Format):
        return name
    text = name if isinstance(name, str) else getattr(name, "__name__", str(name))
    text = text.removeprefix("torch.").removesuffix("_x4")
    found = FORMATS.get(_SPELLINGS.get(text, text))
    if found is None:
        raise ValueError(
            f"format: {text} is not an MX format, use one of {', '.join([*FORMATS, *_SPELLINGS])}"
        )
    return found


def format_of(array: np.ndarray, name: FormatLike | None) -> Format:
    """Return the format of an array of elements; codes in plain bytes need its name."""
    if name is not None:
        return find_format(name)
    for known in FORMATS.values():
        if array.dtype == known.dtype:
            return known
    raise ValueError(f"format: elements of dtype {array.dtype} could be of any format: pass format=")


def values(elements: np.ndarray, form: Format) -> np.ndarray:
    """Return elements, or their codes in bytes, as float32."""
    if elements.itemsize != 1:
        raise ValueError(f"elements: got dtype {elements.dtype}, expected {form.name}, one element in a byte")
    return np.ascontiguousarray(elements).view(form.dtype).astype(np.float32)


def rounded(numbers: np.ndarray, form: Format, rule: str) -> np.ndarray:
    """Return float32 numbers as elements: nearest, ties to even.

    "ocp" saturates; "hardware" has nothing to saturate but infinities, which FP8 casts to its own or to NaN.
    """
    has_nan = form.name != "float4_e2m1fn"
    if rule == "ocp" or not has_nan:
        numbers = np.clip(numbers, -form.largest, form.largest)
    return (numbers if has_nan else np.nan_to_num(numbers, nan=0.0)).astype(form.dtype)


def scale_codes(largest: np.ndarray, form: Format, rule: str) -> np.ndarray:
    """Return the codes of the scales of blocks with these largest magnitudes."""
    if rule not in RULES:
        raise ValueError(f"rule: {rule!r} is none of {', '.join(RULES)}")
    _, exponent = np.frexp(largest)
    exponent = np.where(np.isfinite(largest), exponent - 1, BIAS + 1)
    codes = np.clip(exponent - form.exponent + RULES[rule] + BIAS, 0, LARGEST_CODE)
    codes = np.where(largest == 0, 0, codes)
    if rule == "ocp":
        codes = np.where(np.isnan(largest), NAN_CODE, codes)
    return codes.astype(np.uint8)


def scale_values(codes: np.ndarray) -> np.ndarray:
    """2^(code - 127) in float64, NaN for 255. Codes are uint8 or float8_e8m0fnu."""
    codes = np.ascontiguousarray(codes).view(np.uint8)
    return np.where(codes == NAN_CODE, np.nan, np.ldexp(1.0, codes.astype(np.int32) - BIAS))
