"""The state of a run of an old kernel: its grid, the tensors its programs share, and the pending value."""

from __future__ import annotations

import bisect
import dis
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from functools import lru_cache
from types import CodeType
from typing import Any

from nki.errors import Site, user_site
from nki.ir.caches import LRUCache

from .failures import failure

Addresses = dict[tuple[int, ...], tuple[int, int] | None]  # of the tiles of an allocation, by block


class LoopBody:
    """The addresses that the first iteration gave, and the loops inside, in the order of their appearance."""

    def __init__(self) -> None:
        self.addresses: dict[tuple[Hashable, int], Addresses] = {}
        self.inner: list[LoopBody] = []
        self.begin()

    def begin(self) -> None:
        """Begin an iteration."""
        self.seen: Counter[Hashable] = Counter()
        self.entered = 0

    def enter(self) -> LoopBody:
        """Return the body of the next loop inside."""
        if self.entered == len(self.inner):
            self.inner.append(LoopBody())
        self.entered += 1
        return self.inner[self.entered - 1]

    def first(self, place: Hashable, compute: Callable[[], Addresses]) -> Addresses:
        """Return what the first iteration computed at a place in the code."""
        key = (place, self.seen[place])
        self.seen[place] += 1
        if key not in self.addresses:
            self.addresses[key] = compute()
        return self.addresses[key]


class RunState:
    """One run of a kernel."""

    def __init__(self, grid: tuple[int, ...]):
        self.grid = grid
        self.place: tuple[int, ...] = (0,) * len(grid)
        self.shared: list[Any] = []  # the shared_hbm tensors of the first program, in order
        self.allocated = 0  # by the program that runs
        self.loop_starts: dict[Any, tuple[int, ...]] = {}  # of nl.loop_reduce: its first iteration, by target
        self.pending: Any = None  # the value of an expression that is about to be assigned
        self.body = LoopBody()  # of the loop that runs; outside of all, of the program

    def enter(self, place: tuple[int, ...]) -> None:
        """The program at this place of the grid begins."""
        self.flush()
        self.place, self.allocated, self.body = place, 0, LoopBody()

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


def _is_assigned(code: CodeType, lasti: int) -> bool:
    """Whether the result of the instruction at `lasti` goes into `t[key] = ...` or `... += ...`."""
    offsets, found = _instructions(code)
    following = found[bisect.bisect_right(offsets, lasti) :]  # lasti may lie in the call's own caches
    following = [i for i in following if i.opname not in ("CACHE", "NOP")]
    return _ends_in_target(following) or _ends_in_target(_after_name(found, following))


def _ends_in_target(following: list[dis.Instruction]) -> bool:
    """Whether the value on the stack is stored into a tensor or added to one, before a call can take it."""
    depth = 1
    for position, instruction in enumerate(following):
        name = instruction.opname
        if name in ("STORE_SUBSCR", "STORE_SLICE"):
            return True
        inplace = name.startswith("INPLACE_") or (name == "BINARY_OP" and instruction.argrepr.endswith("="))
        if inplace and position == 0:
            return True
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        taken = depth <= 1 and name.startswith(("CALL", "KW"))
        if taken or instruction.is_jump_target or not name.startswith(_PASSED):
            return False
    return False


def _after_name(found: list[dis.Instruction], following: list[dis.Instruction]) -> list[dis.Instruction]:
    """Return what follows the only read of `c` in `c = value; t += c`, if nothing is in between."""
    if not following or following[0].opname not in ("STORE_FAST", "STORE_FAST_LOAD_FAST"):
        return []
    name = _variables(following[0])[0]
    if sum(name in _loaded(i) for i in found) != 1:
        return []
    for position, instruction in enumerate(following):
        if name in _loaded(instruction):
            return following[position + 1 :] if _loaded(instruction)[-1] == name else []
        if position and (instruction.is_jump_target or not instruction.opname.startswith("LOAD")):
            return []
    return []


def _variables(instruction: dis.Instruction) -> tuple[str, ...]:
    """Return the variables that an instruction names; those of newer Pythons may name two."""
    return instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)


def _loaded(instruction: dis.Instruction) -> tuple[str, ...]:
    """Return the local variables that an instruction puts on the stack."""
    if "LOAD_FAST" not in instruction.opname:
        return ()
    return _variables(instruction)[instruction.opname.startswith("STORE") :]


def about_to_be_assigned() -> bool:
    """Whether the user's expression is the right side of an assignment into a tensor."""
    site = user_site(2)
    if site is None:
        return False
    known = _ASSIGNED.get(site.key)
    if known is None:
        known = (_is_assigned(site.code, site.lasti), site)
        _ASSIGNED.put(site.key, known)
    return known[0]


_ASSIGNED: LRUCache[tuple, tuple[bool, Site]] = LRUCache(1 << 16)  # a site holds its code
