"""A program by its plan and one instruction at a time: everything that a caller can see of both."""

from __future__ import annotations

import contextlib
import io
import warnings

import numpy as np
import pytest

import nki
from nki.backends.fused.planner import NoPlan, plan_of
from nki.backends.reference import random as random_state


def outcome(program, arrays, executor, **environment):
    """Results, arguments, printed text, warnings, random state; or the error."""
    random_state.reset()
    arrays = [a.copy() for a in arrays]
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(printed),
    ):
        patch.setenv("OPEN_NKI_EXECUTOR", executor)
        for name, value in environment.items():
            patch.setenv(name, value)
        warnings.simplefilter("always")
        try:
            values = [program.run(*arrays), arrays]
        except nki.NkiError as problem:
            values = [problem.kind, problem.message]
    said = [str(w.message) for w in caught]
    state = {key: words.tobytes() for key, words in sorted(random_state._left.items())}
    return values, [printed.getvalue(), said, state]


def assert_same(program, arrays, exact=False):
    """The plan gives what the numpy executor gives; False where there is no plan.

    Sums of products may differ in the last places, if they are not of small integers.
    """
    plan = plan_of(program, forced=True)
    if isinstance(plan, NoPlan):
        return False
    (wanted, beside), (found, too) = (outcome(program, arrays, how) for how in ("reference", "plan"))
    assert beside == too
    sums = not exact and any(True for _ in plan.products)
    for one, other in zip(leaves(wanted), leaves(found), strict=True):
        if isinstance(one, np.ndarray) and one.tobytes() != other.tobytes():
            assert sums, "no sum of products, and other bits"
            tolerance = 2e-2 if one.dtype.itemsize < 4 else 1e-4
            a, b = one.astype(np.float64), other.astype(np.float64)
            finite = np.abs(a[np.isfinite(a)])
            scale = finite.max() if finite.size else 1.0
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale)
        elif not isinstance(one, np.ndarray):
            assert one == other
    return True


def leaves(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value
