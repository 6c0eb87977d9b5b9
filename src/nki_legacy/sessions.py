"""Placeholders for the `file.neff` and `profile.ntff` of a device: kernels, and their modelled runs.

Scripts move such files and pass them to `neuron-profile`. Ours are JSON; the first key marks them. Each
kernel is stored as its Program, so that a report can be made from the file alone.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        if self.neff is not None:
            write(self.neff, traced.name, [traced])
        if self.trace is not None:
            write(self.trace, traced.name, [traced], modelled=True)


def recorded(run: Callable[[], Any]) -> tuple[Any, list[Program]]:
    """Return what a function returns, and the programs of the kernels that it called."""
    calls = Calls()
    calls.start()
    try:
        result = run()
    finally:
        programs = calls.stop()
    return result, programs


def write(path: str | os.PathLike, name: str, programs: Sequence[Program], modelled: bool = False) -> None:
    """Write kernels; `modelled`: with the figures of their runs, as a session."""
    kernels = []
    for program in programs:
        kernel: dict[str, Any] = {"name": program.name}
        if modelled:
            kernel["figures"] = profile_program(program).to_dict()
        kernels.append({**kernel, "program": _packed(program)})
    content = {MARK: name, "modelled": True, "kernels": kernels}
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Return what `write` wrote; ValueError for other files."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict) or MARK not in content or "kernels" not in content:
        raise ValueError(f"{path} is no file of Open NKI; there is no device to profile: use nki profile")
    return content


def programs_of(content: dict[str, Any]) -> list[Program]:
    return [_unpacked(kernel["program"]) for kernel in content["kernels"]]


def profiles_of(content: dict[str, Any]) -> list[Profile]:
    return [profile_program(program) for program in programs_of(content)]


def _packed(program: Program) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        program.save(path)
        return base64.b64encode(path.read_bytes()).decode("ascii")


def _unpacked(text: str) -> Program:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        path.write_bytes(base64.b64decode(text))
        return Program.load(path)
