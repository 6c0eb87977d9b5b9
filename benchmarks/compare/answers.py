"""What a probe says when nothing stopped it."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def numbers(out: object) -> str:
    """A result of [128, 256] in a few words: the mistakes leave their marks in its last quarter."""
    array = np.asarray(out, np.float32)
    last = array.reshape(-1)[-1]
    shown = "NaN" if np.isnan(last) else "inf" if np.isinf(last) else f"{last:g}"
    return f"returns; its last element is {shown}"


def exchanged(out: object, x: np.ndarray) -> str:
    """Whether two cores got each other's half."""
    same = np.array_equal(np.asarray(out), np.roll(x, x.shape[0] // 2, axis=0))
    return "two halves exchanged" if same else "but what arrived is wrong"


class rounded:
    """float32 to bfloat16: ties to even, subnormal numbers, infinities and NaN as ml_dtypes has them."""

    SHAPE = (128, 512)

    @classmethod
    def inputs(cls) -> np.ndarray:
        random = np.random.default_rng(1)
        bits = random.integers(0, 2**32, cls.SHAPE, dtype=np.uint32)
        bits[0] = (np.arange(512, dtype=np.uint32) << 16) + 0x3F800000 + 0x8000  # ties
        return bits.view(np.float32)

    @classmethod
    def room(cls) -> np.ndarray:
        return np.zeros(cls.SHAPE, ml_dtypes.bfloat16)

    @classmethod
    def outcome(cls, out: object) -> str:
        got = np.asarray(out).astype(np.float32)
        with np.errstate(all="ignore"):
            wanted = cls.inputs().astype(ml_dtypes.bfloat16).astype(np.float32)
        wrong = int(np.sum(~((got == wanted) | (np.isnan(got) & np.isnan(wanted)))))
        return f"yes: all of {wanted.size:,}" if not wrong else f"no: {wrong:,} of {wanted.size:,} differ"
