"""Running a Program by itself: no kernel, no Python of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import error
from ..execute.blas import one_blas_thread
from ..options import from_environment
from ..program.program import Program
from ..run.launch import Launch, speak
from .arguments import Arguments
from .bridges import framework_of


def run(program: Program, values: Sequence[Any]) -> Any:
    """What the program returns for these values of its tensor parameters, in order."""
    _check(program, values)
    degree = len(program.cores)
    with (
        one_blas_thread(),
        Launch(program.machine, from_environment(), degree, degree > 1, "replay") as launch,
    ):
        arguments = Arguments(launch)
        for value, (_, storage) in zip(values, program.parameters, strict=True):
            arguments.attach(value, framework_of(value), storage)
        launch.replay(program)
        result = arguments.result(program.result)
        arguments.check_write_back()
        for diagnostic in launch.diagnostics:
            speak(diagnostic)
        result = arguments.connect(result, program.name)
        arguments.write_back(program.name)
        launch.generators.keep()
    return result


def _check(program: Program, values: Sequence[Any]) -> None:
    if len(values) != len(program.parameters):
        names = ", ".join(name for name, _ in program.parameters)
        raise error(
            "argument", f"{program.name}: {len(values)} tensors for its {len(program.parameters)}: {names}"
        )
    for value, (name, storage) in zip(values, program.parameters, strict=True):
        if framework_of(value) is None or tuple(value.shape) != tuple(storage.shape):
            got = list(getattr(value, "shape", ())) or type(value).__name__
            raise error(
                "argument",
                f"{program.name}: '{name}' must be {storage.dtype}{list(storage.shape)}, got {got}",
                help="a program was traced for these shapes: trace the kernel again for others",
            )
