"""Tracebacks for users: they end at the user's line, without the frames of `nki`.

`OPEN_NKI_FULL_TRACEBACK=1` shows all frames. An error that is neither an NkiError nor the user's own is a
fault of ours and keeps its frames.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .errors import NkiError, is_ours

P = ParamSpec("P")
R = TypeVar("R")


def hides_our_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: errors that leave it have none of our frames."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as problem:
            hide_our_frames(problem)
            raise  # a bare raise adds no frame, from Python 3.11 on

    return called


def hide_our_frames(problem: BaseException) -> None:
    """Remove our frames from an error and from those that caused it."""
    if os.environ.get("OPEN_NKI_FULL_TRACEBACK", "") not in ("", "0"):
        return
    seen: set[int] = set()
    ahead: list[BaseException | None] = [problem]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        ahead += [one.__cause__, one.__context__]
        frames = frames_of(one.__traceback__)
        if isinstance(one, NkiError) or not all(map(_is_of_ours, _asking(one, frames)[-1:])):
            one.__traceback__ = _linked([tb for tb in frames if not _is_of_ours(tb)])


def frames_of(traceback: types.TracebackType | None) -> list[types.TracebackType]:
    """Return the frames of a traceback, outermost first."""
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _asking(problem: BaseException, frames: list[types.TracebackType]) -> list[types.TracebackType]:
    """Return the frames down to the one that named a missing attribute, or all."""
    if isinstance(problem, AttributeError) and frames and frames[-1].tb_frame.f_code.co_name == "__getattr__":
        return frames[:-1]
    return frames


def _is_of_ours(traceback: types.TracebackType) -> bool:
    return is_ours(traceback.tb_frame.f_globals.get("__name__"))


def _linked(frames: list[types.TracebackType]) -> types.TracebackType | None:
    shown: types.TracebackType | None = None
    for tb in reversed(frames):
        shown = types.TracebackType(shown, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return shown


# ---- errors that no decorated function handles: nl.zeros outside of a kernel ------------------------


def install() -> None:
    """Hide our frames where Python or IPython shows an error that ended a program or a cell."""
    before = sys.excepthook

    def excepthook(
        kind: type[BaseException], problem: BaseException, traceback: types.TracebackType | None
    ) -> None:
        hide_our_frames(problem)
        before(kind, problem, problem.__traceback__)

    sys.excepthook = excepthook
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((NkiError,), _show_in_notebook)


def _show_in_notebook(
    shell: Any, kind: type, problem: BaseException, traceback: object, tb_offset: int | None = None
) -> None:
    hide_our_frames(problem)
    shell.showtraceback((kind, problem, problem.__traceback__), tb_offset=tb_offset)


__all__ = ["frames_of", "hide_our_frames", "hides_our_frames", "install"]
