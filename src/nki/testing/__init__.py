"""nki.testing: kernels against references, random sizes, gradients, budgets (docs/testing.md)."""

from .budgets import Cost, measured
from .close import assert_close, sum_length, tolerance
from .debug import Difference, first_difference
from .gradients import gradcheck
from .random_sizes import check_kernel

__all__ = [
    "Cost",
    "Difference",
    "assert_close",
    "check_kernel",
    "first_difference",
    "gradcheck",
    "measured",
    "sum_length",
    "tolerance",
]


def __dir__() -> list[str]:
    return __all__
