"""Checks the kernels that a document runs as `nki check --for aws-0.6` does: their source and programs."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from nki.check import lint, portability
from nki.check.findings import CheckFinding, ignored, of_diagnostic, of_lint
from nki.check.python import Checked
from nki.check.whole_program import findings
from nki.ir.program import Program
from nki.kernel import attempts
from nki.kernel.cache import clear
from nki.kernel.kernel import Kernel
from nki.options import RELEASES, from_environment

_SOURCES: dict[int, Checked] = {}  # kernels of a library share their helpers


def show_source(path: str | Path, program: str) -> None:
    """Make the code blocks of a document the source of the functions that it defines."""
    linecache.cache[str(path)] = (len(program), None, program.splitlines(True), str(path))


@contextmanager
def checked(path: str | Path, allowed: Collection[str] = ()) -> Iterator[None]:
    """Check every kernel of a file or folder that the block traces; the kinds in `allowed` are intended."""
    seen: list[tuple[Kernel, Program]] = []
    trace_call = attempts.trace_call

    def recorded(call, has_data):
        traced = trace_call(call, has_data)
        seen.append((call.kernel, traced.program))
        return traced

    clear()  # a cached kernel is not traced
    with (
        mock.patch("nki.kernel.attempts.trace_call", recorded),
        mock.patch("nki.kernel.kernel.trace_call", recorded),
    ):
        yield
    mine = [(k, program) for k, program in seen if Path(k.func.__code__.co_filename).is_relative_to(path)]
    found = {
        str(one) for kernel, program in mine for one in found_in(kernel, program) if one.kind not in allowed
    }
    assert not found, "\n\n".join(sorted(found))


def found_in(kernel: Kernel, program: Program | None, release: str = RELEASES[-1]) -> Iterator[CheckFinding]:
    """Yield what `nki check --for` the release reports of a kernel and of one of its programs."""
    function, name = kernel.func, kernel.__name__
    found = [of_lint(hit, name) for hit in lint(function, checked=_SOURCES)]
    found += portability.of_source(function, release, _SOURCES)
    if program is not None:
        at, target = (function.__code__.co_filename, function.__code__.co_firstlineno), program.machine.name
        whole = findings(program, from_environment())
        found += [of_diagnostic(one, name, at, target) for one in (*program.diagnostics, *whole)]
        found += [
            of_diagnostic(one, name, at, target) for one, _ in portability.of_call(program, [], release)
        ]
    yield from (one for one in (portability.as_seen_by(release, one) for one in found) if not ignored(one))
