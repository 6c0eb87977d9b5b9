"""Early starts: a GPU repeats the last call of a kernel while the host still prepares the next one.

Most calls of a kernel are like the one before. So what was captured of that one is replayed at once, on the
tensors of this call. Then the call is prepared and looked up as any other, and uses that work if it has come
to the same program (`Started.is_of`). If not, the work does not count: it has written new memory only.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from ..ir.program import Program
from .arguments import Arguments, bind
from .cache import programs
from .devices import Started, replay
from .run import Call


class LastCall(NamedTuple):
    """The call of a kernel that a GPU ran last."""

    function: weakref.ref[Any]
    grid: tuple[int, ...]
    arguments: Any  # their key
    program: weakref.ref[Program]


_last: dict[int, LastCall] = {}  # by the id of the kernel's function


def start_early(kernel: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Arguments, Started] | None:
    """Repeat the last call of a kernel on the tensors of this one, if its arguments are equal to those.

    Returns these arguments and the run; or None.
    """
    last = _last.get(id(kernel.func))
    if last is None or last.function() is not kernel.func or last.grid != kernel.grid:
        return None
    arguments = bind(kernel.__name__, kernel.func, kernel.__signature__, args, kwargs)
    program = last.program()
    if program is None or last.arguments != arguments.key:
        return None
    try:
        started = replay(program, [value for _, value, _ in arguments.tensors])
        return None if started is None else (arguments, started)
    except RuntimeError:  # not a dense tensor, or no memory: the call itself reports it
        return None


def note_call(call: Call) -> None:
    """Note a call that a GPU ran, to repeat it."""
    entry = None if call.key is None else programs.get(call.key)
    if entry is None or entry.program is None:
        return
    kernel, number = call.kernel, id(call.kernel.func)

    def forget(_: object) -> None:
        _last.pop(number, None)

    function, program = weakref.ref(kernel.func, forget), weakref.ref(entry.program)
    _last[number] = LastCall(function, kernel.grid, call.arguments.key, program)


def forget_call(call: Call) -> None:
    """Repeat no call of a kernel: no GPU ran the last one."""
    _last.pop(id(call.kernel.func), None)
