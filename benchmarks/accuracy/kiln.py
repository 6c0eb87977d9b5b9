"""The published times of the MoE decode kernel of github.com/foxl-ai/kiln: nki 0.6.0, trn1, host's clock.

The kernel is run from a checkout of that repository; nothing of it is in this one. A time is that of an
execution as the host sees it, so that ours is the time on the device and a null graph.
"""

import importlib.util
from pathlib import Path

from nki.machine.generations import find

from .case import Case, spec

MS = {1: 0.207, 2: 0.241, 4: 0.298, 8: 0.422, 16: 0.672, 32: 1.191, 64: 2.204, 128: 4.141}  # by tokens
HIDDEN, EXPERTS, TOP = 4096, 256, 8


def cases(public: Path):
    """Return the rows, with the kernel of a checkout; none where there is no checkout."""
    path = public / "kiln" / "kiln" / "kernels" / "moe_decode.py"
    if not path.is_file():
        return []
    source = importlib.util.spec_from_file_location("kiln_moe_decode", path)
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return [_case(module.kiln_moe_decode_v1, tokens, ms) for tokens, ms in MS.items()]


def _case(kernel, tokens, ms):
    pairs, columns = tokens * TOP, HIDDEN + HIDDEN // 2 + HIDDEN // 16 + HIDDEN // 32
    arguments = (
        spec("bfloat16", 128, tokens, HIDDEN // 128), spec("float32", 128, pairs), spec("int32", 1, pairs),
        spec("uint8", EXPERTS, 128, columns), spec("float32", 128, 4), spec("bfloat16", 128, 2),
        spec("bfloat16", 128, 128), 64,
    )  # fmt: skip
    figures = (("total and launch", "ms", ms, lambda p: p.total_us / 1e3 + find("trn1").launch_ms),)
    name = f"MoE decode, {tokens} tokens"
    return Case(
        name, "kiln's notes", "never used", "trn1", kernel, arguments, figures, long=tokens > 16,
        family="MoE decode",
    )  # fmt: skip
