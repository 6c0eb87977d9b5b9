"""What a rank sends: a header that describes its call, and the bytes of its arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGNED = 64  # bytes: where each array begins


def pack(head: Mapping[str, object], arrays: list[np.ndarray]) -> np.ndarray:
    """A flat uint8 array; the arrays are copied, so that their owner may go on."""
    text = json.dumps({**head, "sizes": [array.nbytes for array in arrays]}).encode()
    starts = [_up(8 + len(text))]
    for array in arrays:
        starts.append(_up(starts[-1] + array.nbytes))
    packed = np.empty(starts[-1], np.uint8)
    packed[:8].view(np.uint64)[0] = len(text)
    packed[8 : 8 + len(text)] = np.frombuffer(text, np.uint8)
    for start, array in zip(starts, arrays, strict=False):
        room = packed[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        if array.dtype.kind == "V":  # of ml_dtypes and packed types numpy copies the bytes faster
            width = np.dtype(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array.dtype
            np.copyto(room.view(width), array.view(width))
        else:
            np.copyto(room, array)
    return packed


def unpack(packed: np.ndarray) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The head and the bytes of each array, not copied."""
    length = int(packed[:8].view(np.uint64)[0])
    head = json.loads(packed[8 : 8 + length].tobytes())
    arrays, start = [], _up(8 + length)
    for size in head["sizes"]:
        arrays.append(packed[start : start + size])
        start = _up(start + size)
    return head, arrays


def _up(position: int) -> int:
    return -(-position // ALIGNED) * ALIGNED
