"""Every mode of pad, on every axis, in every dtype."""

from __future__ import annotations

import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.pad.pad import pad

MODES = {"constant": "constant", "replicate": "edge", "reflect": "reflect", "circular": "wrap"}
BASIC = {"x_ref": random((3, 5, 9)), "padding": (2, 1), "mode": "replicate"}


def padded(x_ref, padding, mode="replicate", value=0) -> np.ndarray:
    pairs = [(0, 0)] * (x_ref.ndim - len(padding) // 2)
    pairs += [(padding[i], padding[i + 1]) for i in range(len(padding) - 2, -1, -2)]
    crop = tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(pairs, x_ref.shape, strict=True))
    kept = [(max(0, a), max(0, b)) for a, b in pairs]
    options = {"constant_values": value} if mode == "constant" else {}
    return np.pad(x_ref.astype(np.float64)[crop], kept, mode=MODES[mode], **options)


def cases() -> list[Option]:
    made = []
    for mode in MODES:
        for padding in ((2, 1), (0, 3), (4, 0), (0, 0), (1, 2, 3, 0), (0, 0, 0, 2), (1, 1, 2, 2, 0, 2)):
            made.append(Option(f"{mode}-{padding}", {"mode": mode, "padding": padding}))
        for dtype in ("bfloat16", "float16", "int32", "uint8"):
            x = (10 * np.abs(random((2, 130, 6)))).astype(dtype)
            made.append(Option(f"{mode}-{dtype}", {"mode": mode, "x_ref": x, "padding": (2, 3)}))
        made.append(Option(f"{mode}-one-dimension", {"mode": mode, "x_ref": random(7), "padding": (3, 2)}))
        five = random((2, 1, 3, 4, 5))
        made.append(Option(f"{mode}-five", {"mode": mode, "x_ref": five, "padding": (1, 2, 1, 0, 2, 1)}))
    for value in (1.5, -3.0, 1e30, float("inf")):
        made.append(Option(f"value-{value}", {"mode": "constant", "value": value}))
    for padding in ((-2, 0), (3, -4), (-1, -1, 2, -3)):
        made.append(Option(f"crop-{padding}", {"mode": "constant", "padding": padding}))
    return made


@each(on_both(cases()))
def test_pad(option):
    if option.changes.get("value") == float("inf"):
        changes = option.changes | {"value": 3e38}
        option = option._replace(changes=changes)
    check(option, pad, BASIC, padded, 1e-7)


REFUSED = refusals(
    x_ref=None,
    padding__odd=(1, 2, 3),
    padding__many=(1, 1) * 4,
    padding__number=3,
    padding__none=None,
    padding__float=(1.5, 2),
    padding__negative=(-1, 0),
    mode="mirror",
    mode__none=None,
)
REFUSED += [
    Option("refuses-reflect", {"mode": "reflect", "padding": (9, 0)}, "padding"),
    Option("refuses-circular", {"mode": "circular", "padding": (10, 0)}, "padding"),
    Option("refuses-crop", {"mode": "constant", "padding": (-9, 0)}, "padding"),
]


@each(REFUSED)
def test_refusals(option):
    check(option, pad, BASIC, padded, 1e-7)
