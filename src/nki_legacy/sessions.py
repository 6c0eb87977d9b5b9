"""Placeholders for the `file.neff` and `profile.ntff` of a device: kernels, and their modelled runs.

Scripts move such files and pass them to `neuron-profile`. Ours are JSON; the first key marks them. Each
kernel is stored as its Program, so that a report can be made from the file alone.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nki.files import as_object, load_json
from nki.ir.program import Program
from nki.kernel.kernel import Kernel
from nki.kernel.listeners import listening
from nki.kernel.profile import Profile, profile_program
from nki.kernel.specs import as_specs

MARK = "open_nki_placeholder"


class Calls:
    """Records the kernels called between `start` and `stop`, once for each shape of their arguments."""

    def __init__(self) -> None:
        self.found: dict[tuple, tuple[Kernel, tuple, dict]] = {}
        self._listening: AbstractContextManager[None] | None = None

    def start(self) -> None:
        self._listening = listening(self._note)
        self._listening.__enter__()

    def stop(self) -> list[Program]:
        """Return the programs of the calls, from shapes alone."""
        if self._listening is None:
            return []
        self._listening.__exit__(None, None, None)
        self._listening = None
        return [kernel.trace(*args, **kwargs) for kernel, args, kwargs in self.found.values()]

    def _note(self, kernel: Kernel, args: tuple, kwargs: dict) -> None:
        specs, named = as_specs(args), as_specs(kwargs)
        key = (kernel.__name__, kernel.grid, repr([specs, named]))
        self.found.setdefault(key, (kernel, specs, named))


@dataclass(frozen=True)
class Artifacts:
    """The files that `save_neff_name=` and `save_trace_name=` ask for."""

    neff: str | None = None
    trace: str | None = None

    def write(self, program: Callable[[], Program]) -> None:
        """Write them; the program is traced only if one is asked for."""
        if self.neff is None and self.trace is None:
            return
        traced = program()
        for path in (self.neff, self.trace):
            if path is not None:
                write(path, traced.name, [traced])


def recorded(run: Callable[[], Any]) -> tuple[Any, list[Program]]:
    """Return what a function returns, and the programs of the kernels that it called."""
    calls = Calls()
    calls.start()
    try:
        result = run()
    finally:
        programs = calls.stop()
    return result, programs


def write(path: str | os.PathLike, name: str, programs: Sequence[Program]) -> None:
    """Write kernels as their programs; reports model them again."""
    kernels = [{"name": program.name, "program": _packed(program)} for program in programs]
    content = {MARK: name, "modelled": True, "kernels": kernels}
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Return what `write` wrote; ValueError for other files."""
    try:
        content = load_json(path, {MARK: str, "kernels": list})
        for kernel in content["kernels"]:
            as_object(kernel, {"program": str})
        return content
    except ValueError as problem:
        why = f"{path} is no file of Open NKI ({problem})"
        raise ValueError(f"{why}; there is no device to profile: use nki profile") from None


def programs_of(content: dict[str, Any]) -> list[Program]:
    return [_unpacked(kernel["program"]) for kernel in content["kernels"]]


def profiles_of(content: dict[str, Any]) -> list[Profile]:
    return [profile_program(program) for program in programs_of(content)]


def _packed(program: Program) -> str:
    content = io.BytesIO()
    program.save(content)
    return base64.b64encode(content.getvalue()).decode("ascii")


def _unpacked(text: str) -> Program:
    return Program.load(io.BytesIO(base64.b64decode(text, validate=True)))
