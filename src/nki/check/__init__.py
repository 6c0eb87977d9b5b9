"""Would hardware and AWS's compilers forgive this kernel?"""

import typing

if typing.TYPE_CHECKING:
    from .python import RULES, Finding, Rule, lint

__all__ = ["RULES", "Finding", "Rule", "lint"]


def __getattr__(name: str) -> typing.Any:
    """The checker of Python, when it is asked for: a call needs only what looks at programs."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import python

    return getattr(python, name)
