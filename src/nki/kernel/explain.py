"""Errors for wrong arguments of a call, with the user's line and the accepted names."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from typing import Any

from ..errors import NkiError, Site, error, is_ours, nearest
from ..machine import operators

_CALL_PROBLEM = re.compile(
    r"^(?:[\w.<>]*\.)?(\w+)\(\) "
    r"(got an unexpected keyword argument '(\w+)'|missing \d+ required|takes|got multiple)"
)

REPLACED_KEYWORDS = {
    "mask": "there are no masks: bound the slice with min()",
    "dst_rmw_op": "use nisa.dma_compute for read-modify-write",
    "unique_indices": "use nisa.dma_compute",
}

NO_RESULT = "instructions return no tile: allocate the result with nl.ndarray and pass it first, as dst="


def explain_call(problem: TypeError) -> NkiError | None:
    """Return the error of a wrong call of an nl, nisa or ncc function; None for other problems."""
    match = _CALL_PROBLEM.match(str(problem))
    frames = _frames(problem.__traceback__)
    from .. import language

    if match is None or not frames:
        return None
    user = [tb for tb in frames if not is_ours(tb.tb_frame.f_globals.get("__name__"))]
    if not user:
        return None
    # the last frame is the caller's: Python refuses before it enters the function
    name, keyword = match.group(1), match.group(3)
    # nl.reciprocal is called through its operator; nisa has a function of that name too
    is_operator = frames[-1].tb_frame.f_globals.get("__name__") == operators.__name__
    function = getattr(language, name) if is_operator else _public_function(name, user[-1].tb_frame)
    if function is None or frames[-1].tb_frame.f_code is getattr(inspect.unwrap(function), "__code__", None):
        return None
    accepted = list(inspect.signature(function).parameters)
    is_short = match.group(2).startswith("missing") and accepted[0] == "dst"
    return error(
        "argument",
        str(problem),
        notes=[f"accepted: {', '.join(accepted)}"],
        help=suggest(keyword, accepted) if keyword else NO_RESULT if is_short else None,
        site=Site(user[-1].tb_frame.f_code, user[-1].tb_lasti),
    )


def suggest(keyword: str, accepted: list[str]) -> str | None:
    """Return what to write instead of an unknown keyword."""
    close = nearest(keyword, accepted)
    return f"did you mean {close}?" if close else REPLACED_KEYWORDS.get(keyword)


def _frames(traceback: types.TracebackType | None) -> list[types.TracebackType]:
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _public_function(name: str, caller: types.FrameType) -> Callable[..., Any] | None:
    """Return the nisa, nl or ncc function of a name, unless the caller has one of that name."""
    own = caller.f_locals.get(name, caller.f_globals.get(name))
    if own is not None and not is_ours(getattr(own, "__module__", None)):
        return None
    from .. import collectives, isa, language

    for home in (isa, language, collectives):
        if name in getattr(home, "__all__", ()) or name in vars(home):
            return getattr(home, name)
    return None
