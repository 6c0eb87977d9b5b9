"""nki.tune: the best configuration of a kernel by the timing model (docs/tuning.md)."""

from .decorator import Tuned, autotune
from .space import Space
from .tuning import Tuning, tune

__all__ = ["Space", "Tuned", "Tuning", "autotune", "tune"]


def __dir__() -> list[str]:
    return __all__
