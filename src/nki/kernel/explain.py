"""Errors for wrong arguments of a call, with the user's line and the accepted names."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..errors import NkiError, Site, error, is_ours, nearest
from ..ir.tensor import NkiTensor
from ..machine import operators
from ..tracebacks import frames_of

_CALL_PROBLEM = re.compile(
    r"^(?:[\w.<>]*\.)?(\w+)\(\) "
    r"(got an unexpected keyword argument '(\w+)'|missing \d+ required|takes|got multiple)"
)

REPLACED_KEYWORDS = {
    "mask": "there are no masks: bound the slice with min()",
    "dst_rmw_op": "use nisa.dma_compute for read-modify-write",
    "unique_indices": "use nisa.dma_compute",
}

P = ParamSpec("P")
R = TypeVar("R")


def explains_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate what runs a kernel's Python: a wrong call in it is an NkiError at its line."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError) as problem:
            better = explain_call(problem) if isinstance(problem, TypeError) else explain_attribute(problem)
            if better is None:
                raise
            raise better.with_traceback(problem.__traceback__) from None

    return called


def explain_call(problem: TypeError) -> NkiError | None:
    """Return the error of a wrong call of an nl, nisa or ncc function; None for other problems."""
    match = _CALL_PROBLEM.match(str(problem))
    frames = frames_of(problem.__traceback__)
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
    return error(
        "argument",
        str(problem),
        notes=[f"accepted: {', '.join(accepted)}"],
        help=suggest(keyword, accepted) if keyword else _required(name, function),
        site=Site(user[-1].tb_frame.f_code, user[-1].tb_lasti),
    )


def explain_attribute(problem: AttributeError) -> NkiError | None:
    """Return the error of a parameter that is used as a tensor and is none; None for other problems."""
    frames, value = frames_of(problem.__traceback__), problem.obj
    frame = frames[-1].tb_frame
    code = frame.f_code
    names = [n for n in code.co_varnames[: code.co_argcount] if frame.f_locals.get(n) is value]
    is_plain = isinstance(value, (list, tuple, int, float, str, type(None)))
    is_users = not is_ours(frame.f_globals.get("__name__"))
    if not (names and is_plain and is_users and hasattr(NkiTensor, problem.name or "")):
        return None
    help = f"pass an array: np.array({names[0]}, dtype=np.float32)"
    if value is None:
        help = f"test an argument that may be None first: if {names[0]} is not None: ..."
    return error(
        "argument",
        f"{code.co_name}: '{names[0]}' is {_a(value)}, not a tensor: it has no .{problem.name}",
        help=help,
        site=Site(code, frames[-1].tb_lasti),
    )


def _a(value: object) -> str:
    return "None" if value is None else f"a Python {type(value).__name__}"


def _required(name: str, function: Callable[..., Any]) -> str:
    """Return how to call a function with the arguments that it needs."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    result = "; the result goes to dst, instructions return no tile" if needed[:1] == ["dst"] else ""
    return f"write {name}({', '.join(needed)}, ...){result}"


def suggest(keyword: str, accepted: list[str]) -> str | None:
    """Return what to write instead of an unknown keyword."""
    close = nearest(keyword, accepted)
    return f"did you mean {close}?" if close else REPLACED_KEYWORDS.get(keyword)


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
