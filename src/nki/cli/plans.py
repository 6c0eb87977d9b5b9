"""nki plan: what the planner makes of a kernel."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..backends.fused.describing import described, lines

TEXT = """\
Print how a kernel would run here: which of its tile products are one large product, what is
folded into them, what runs one instruction at a time, and how much memory it takes. Columns:
step, instructions in it, what it is."""
EXAMPLES = """\
examples:
  nki plan matmul.py:tiled --arg lhsT=float32[4096,2048] --arg rhs=float32[4096,4096]
  nki plan matmul.py:tiled --arg lhsT=... --arg rhs=... --json"""


def print_plan(program: Any, as_json: bool, write: Callable[[str], None] = print) -> int:
    """The plan of a program as text, or as one JSON object."""
    facts = described(program)
    write(json.dumps(facts, indent=2) if as_json else "\n".join(lines(facts)))
    return 0
