"""Divide work between two cores."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.utils.kernel_helpers import program_share


def core_share(size: int, multiple: int, run_with_lnc2: bool) -> tuple[int, int]:
    """Return (start, end) of this core's part of `size`; core 0 has all of it without run_with_lnc2."""
    if run_with_lnc2:
        return program_share(size, multiple)
    return 0, size if nl.program_id(0) == 0 else 0
