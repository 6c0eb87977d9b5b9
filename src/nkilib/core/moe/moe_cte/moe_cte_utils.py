"""Options that the blockwise expert kernels share, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.utils.common_types import Enum


class BlockShardStrategy(Enum):
    """Which blocks a core would take: the first half or the second, or every other one."""

    HI_LO = 0
    PING_PONG = 1


@dataclass
class SkipMode(nl.NKIObject):
    """What is not transferred: tokens of padding (id -1, there is no padding row), repeated weights."""

    skip_token: bool = False
    skip_weight: bool = False
