"""nki.collectives (ncc): what ranks exchange. A plain call is a world of one rank (spec/collectives.md 4)."""

from ..reference import document as _document
from .groups import ReplicaGroup
from .operations import (
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    collective_permute_implicit,
    collective_permute_implicit_reduce,
    reduce_scatter,
)
from .ranks import collective_permute_implicit_current_processing_rank_id, rank_id
from .varying import all_gather_v, all_to_all_v

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]
_document(globals())
del _document  # what a kernel can read of this module is followed


def __dir__() -> list[str]:
    return __all__
