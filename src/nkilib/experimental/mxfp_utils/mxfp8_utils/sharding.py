"""What a core does of work that two may share."""

from __future__ import annotations

import nki.language as nl
from nkilib.core.utils.kernel_helpers import program_share


def core_share(size: int, multiple: int, run_with_lnc2: bool) -> tuple[int, int]:
    """(start, end) of this core's part of `size`, in multiples; without run_with_lnc2 the first does all."""
    if run_with_lnc2:
        return program_share(size, multiple)
    return 0, size if nl.program_id(0) == 0 else 0
