"""How several ranks share the attention block of decode."""

from __future__ import annotations

from nkilib.core.utils.common_types import Enum


class KVDPCollectiveMode(Enum):
    """How queries reach the rank that has the cache of their batch."""

    ALL_TO_ALL = 0
    ALL_GATHER_SLICE = 1


class CPCollectiveMode(Enum):
    """How the results of ranks that share the keys are joined."""

    ALL_TO_ALL = 0
    REDUCE_SCATTER = 1
