"""nki.testing: kernels against references, random sizes, gradients, budgets (docs/testing.md)."""

from .budgets import Cost, measured
from .close import assert_close, sum_length, tolerance
from .gradients import gradcheck
from .random_sizes import check_kernel

__all__ = ["Cost", "assert_close", "check_kernel", "gradcheck", "measured", "sum_length", "tolerance"]


def __dir__() -> list[str]:
    return __all__
