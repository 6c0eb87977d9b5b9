"""What a rank sends: a header that describes its call, and the bytes of its arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..files import Form, as_object, parse_json

HEAD: Form = {"same": str, "rank": int, "core": int, "line": str, "sizes": list}
ALIGNED = 64  # bytes: where each array begins


class Message(NamedTuple):
    """The same for ranks of this process, where the arrays may stay on a device."""

    head: dict[str, Any]
    arrays: list[Any]


def message(head: dict[str, Any], arrays: list[Any], in_process: bool) -> Any:
    """Return what a rank sends; the arrays are copied, so that their owner may go on."""
    if in_process and not all(isinstance(array, np.ndarray) for array in arrays):
        return Message(head, [array.copy().reshape(-1) for array in arrays])
    return pack(head, [np.asarray(array) for array in arrays])


def pack(head: Mapping[str, object], arrays: list[np.ndarray]) -> np.ndarray:
    """Return a head and arrays as a flat uint8 array."""
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


def unpack(packed: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the head and the bytes of each array, not copied; ValueError if they are not there."""
    if isinstance(packed, Message):
        return packed
    if packed.nbytes < 8:
        raise ValueError(f"a message of {packed.nbytes} bytes")
    length = int(packed[:8].view(np.uint64)[0])
    if length > packed.nbytes - 8:
        raise ValueError(f"a head of {length} bytes")
    head = as_object(parse_json(packed[8 : 8 + length].tobytes()), HEAD)
    arrays, start = [], _up(8 + length)
    for size in head["sizes"]:
        if type(size) is not int or not 0 <= size <= packed.nbytes - start:
            raise ValueError(f"an array of {size} bytes")
        arrays.append(packed[start : start + size])
        start = _up(start + size)
    return head, arrays


def _up(position: int) -> int:
    return -(-position // ALIGNED) * ALIGNED
