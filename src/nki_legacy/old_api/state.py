"""The state of a run of an old kernel: its grid, the tensors its programs share, and the pending value."""

from __future__ import annotations

import bisect
import dis
import threading
from functools import lru_cache
from types import CodeType
from typing import Any

from nki.errors import user_site

from .failures import failure


class RunState:
    """One run of a kernel."""

    def __init__(self, grid: tuple[int, ...]):
        self.grid = grid
        self.place: tuple[int, ...] = (0,) * len(grid)
        self.shared: list[Any] = []  # the shared_hbm tensors of the first program, in order
        self.allocated = 0  # by the program that runs
        self.pending: Any = None  # the value of an expression that is about to be assigned

    def enter(self, place: tuple[int, ...]) -> None:
        """The program at this place of the grid begins."""
        self.flush()
        self.place, self.allocated = place, 0

    def flush(self) -> None:
        """Compute the pending value before another operation runs."""
        if self.pending is not None:
            value, self.pending = self.pending, None
            value.compute()


class _Local(threading.local):
    state: RunState | None = None


_local = _Local()


def running() -> RunState | None:
    return _local.state


def state() -> RunState:
    """Return the run on this thread, for an operation; the pending value is computed first."""
    found = _local.state
    if found is None:
        raise failure("err_nki_api_outside_of_nki_kernel", "this works only inside a kernel")
    found.flush()
    return found


def activate(new: RunState | None) -> RunState | None:
    before, _local.state = _local.state, new
    return before


# ---- whether a value is about to be assigned -----------------------------------------------------

_PASSED = (  # on the way from an expression to its target, by the beginnings of their names
    *("LOAD", "BUILD", "BINARY", "COPY", "SWAP", "PUSH", "CACHE", "PRECALL", "CALL", "KW", "RESUME", "ROT"),
    *("DUP", "UNARY", "EXTENDED", "NOP", "FORMAT", "COMPARE", "INPLACE", "TO_BOOL", "NOT_TAKEN"),
)


@lru_cache(maxsize=4096)
def _instructions(code: CodeType) -> tuple[list[int], list[dis.Instruction]]:
    found = list(dis.get_instructions(code))
    return [i.offset for i in found], found


@lru_cache(maxsize=65536)
def _is_assigned(code: CodeType, lasti: int) -> bool:
    """Whether what the instruction at `lasti` gives goes into `t[key] = ...` or `... += ...`."""
    offsets, found = _instructions(code)
    following = found[bisect.bisect_right(offsets, lasti) :]  # lasti may lie in the call's own caches
    for position, instruction in enumerate(following):
        name = instruction.opname
        if name in ("STORE_SUBSCR", "STORE_SLICE"):
            return True
        inplace = name.startswith("INPLACE_") or (name == "BINARY_OP" and instruction.argrepr.endswith("="))
        if inplace and all(i.opname in ("CACHE", "NOP") for i in following[:position]):
            return True
        if not name.startswith(_PASSED):
            return False
    return False


def about_to_be_assigned() -> bool:
    """True if the user's expression is the right side of an assignment into a tensor."""
    site = user_site(2)
    return site is not None and _is_assigned(site.code, site.lasti)
