"""Checks of kernels: what hardware or AWS's compilers would refuse."""

import typing

if typing.TYPE_CHECKING:
    from .python import RULES, Finding, Rule, lint

__all__ = ["RULES", "Finding", "Rule", "lint"]


def __getattr__(name: str) -> typing.Any:
    """Import the Python lint when it is first named: calls of kernels do without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import python

    return getattr(python, name)
