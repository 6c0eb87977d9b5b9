"""Running a Program by itself: no kernel, no Python of one; only its instructions on new data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..backends.reference.blas import one_blas_thread
from ..backends.reference.memory import uninitialised
from ..errors import error, error_class
from ..ir.context import provides
from ..ir.program import Diagnostic, Program
from ..launch.launch import Launch, speak
from ..machine import dtypes
from ..options import from_environment
from .arguments import Arguments
from .bridges import framework_of
from .results import tensors


@provides("program.run")
def run(program: Program, arrays: Sequence[Any]) -> Any:
    """What the kernel returns for these values of its tensor parameters, in their order.

    Arrays that the program writes are written. Errors and diagnostics are those of its instructions.
    """
    _check(program, arrays)
    options, degree = from_environment(), len(program.cores)
    later = replace(options, strict=False)  # there is no Python that could catch an error on the way
    with (
        one_blas_thread(),
        Launch(program.machine, later, degree, bracketed=degree > 1, mode="replay") as launch,
    ):
        arguments = Arguments(launch)
        for value, (_, storage) in zip(arrays, program.parameters, strict=True):
            arguments.attach(value, framework_of(value), storage)
        launch.replay(program)
        for view in tensors(program.result):
            if not launch.backend.is_written(view):
                launch.diagnose(*uninitialised(view), None)
        result = arguments.result(program.result)
        arguments.check_write_back()
        result = arguments.connect(result, program.name)
        _speak(launch.diagnostics, options.strict)
        arguments.write_back(program.name)
        launch.generators.keep()
    return result


def _speak(diagnostics: list[Diagnostic], strict: bool) -> None:
    """Say what was noticed; in strict mode the first is an error, and nothing of the caller's is changed."""
    for diagnostic in diagnostics:
        if strict:
            d = diagnostic
            raise error_class(d.kind)(d.message, notes=d.notes, help=d.help, site=d.site)
        speak(diagnostic)


def _check(program: Program, arrays: Sequence[Any]) -> None:
    """There is an array of the right shape and dtype for each parameter."""
    if len(arrays) != len(program.parameters):
        names = ", ".join(name for name, _ in program.parameters) or "none"
        raise error("argument", f"{program.name}: {len(arrays)} arrays for the parameters {names}")
    for value, (name, storage) in zip(arrays, program.parameters, strict=True):
        if framework_of(value) is None:
            raise error("argument", f"argument '{name}' must be an array, got {type(value).__name__}")
        given = dtypes.resolve(value.dtype)
        if given == dtypes.float8_e4m3fn and program.machine.generation < 4:
            given = dtypes.float8_e4m3
        if tuple(value.shape) != tuple(storage.shape) or given != storage.dtype:
            raise error(
                "argument",
                f"argument '{name}' is {given}{list(value.shape)}, "
                f"the program was traced for {storage.dtype}{list(storage.shape)}",
                help="trace the kernel again for these shapes",
            )
