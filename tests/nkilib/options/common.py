"""One documented option at a time: a basic call of a kernel, what a case changes in it, and what must follow.

A family has a file with its basic call, its cases and a reference in float64 that shares nothing with the
kernel. Each case is right, or it is refused by an error that names the argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
from kernel_support import run


class Option(NamedTuple):
    """A case: what it changes in the basic call, or which argument its refusal names."""

    name: str
    changes: dict[str, Any] = {}
    refused: str = ""  # the argument that the error names; "" if the result must be right
    lnc: int = 1
    on: str = "trn2"
    tolerance: float | None = None  # instead of the family's
    slow: bool = False  # not in the usual suite


def each(cases: Iterable[Option]) -> Any:
    """Parametrise a test by cases; every name occurs once."""
    cases = list(cases)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
    marked = [pytest.param(case, marks=pytest.mark.slow if case.slow else (), id=case.name) for case in cases]
    return pytest.mark.parametrize("option", marked)


def on_both(cases: Iterable[Option], slow: bool = False) -> list[Option]:
    """The cases on one core and on two, where they may be `slow`."""
    return [
        case._replace(name=f"{case.name}-lnc{lnc}", lnc=lnc, slow=slow and lnc == 2)
        for case in cases
        for lnc in (1, 2)
    ]


def refusals(**changes: Any) -> list[Option]:
    """Cases of one changed argument each, which the error names: NAME=value, or NAME__why=value."""
    return [
        Option(f"refuses-{name}", {name.partition("__")[0]: value}, name.partition("__")[0])
        for name, value in changes.items()
    ]


def check(
    option: Option, kernel: Any, basic: dict[str, Any], reference: Callable[..., Any], tolerance: float
) -> None:
    """Call the kernel with the basic arguments and the option's; compare with the reference, or the error."""
    arguments = basic | option.changes
    expected = None if option.refused else reference(**fresh(arguments))
    given = fresh(arguments)
    if option.refused:
        with pytest.raises((AssertionError, ValueError, NotImplementedError), match=refusal(option.refused)):
            run(kernel, **given, lnc=option.lnc, on=option.on)
        return
    got = run(kernel, **given, lnc=option.lnc, on=option.on)
    tolerance = tolerance if option.tolerance is None else option.tolerance
    got, expected = listed(got), listed(expected)
    assert len(got) == len(expected), f"{len(got)} results instead of {len(expected)}"
    for one, wanted in zip(got, expected, strict=True):
        near(one, wanted, tolerance)


def refusal(argument: str) -> str:
    """A pattern of errors that name an argument: it is wrong, or an option that is not built."""
    name = re.escape(argument)
    wrong = rf"Kernel validation exception: ([\w., \[\]]*, )?{name}\b.*: "
    return rf"({wrong})|(not-implemented-yet: \w+ option {name}\b)"


def listed(value: Any) -> list:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def fresh(value: Any) -> Any:
    """A copy whose arrays a kernel may write to."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: fresh(item) for key, item in value.items()}
    return type(value)(fresh(item) for item in value) if type(value) in (list, tuple) else value


def near(got: Any, expected: Any, tolerance: float) -> None:
    """Same shape, no NaN, and no farther apart than a part of the largest expected value."""
    got, expected = np.asarray(got), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, f"shape {got.shape} instead of {expected.shape}"
    largest = max(float(np.abs(expected).max(initial=0.0)), 1e-30)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=tolerance * largest)
