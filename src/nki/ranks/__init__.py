"""nki.ranks: kernels on many ranks, in one process, in several or across machines (spec/collectives.md 6)."""

from ..launch.world import Rendezvous as Meeting
from ..launch.world import World
from .attached import attach
from .inputs import per_rank
from .launching import run_ranks
from .shards import join, split

__all__ = ["Meeting", "World", "attach", "join", "per_rank", "run_ranks", "split"]


def __dir__() -> list[str]:
    return __all__
