"""Running a Program by itself: no kernel, no Python of one; only its instructions on new data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..backends.reference.blas import one_blas_thread
from ..errors import error
from ..ir.program import Program
from ..ir.tree import leaves
from ..ir.view import View
from ..launch.diagnostics import as_error
from ..launch.execution import execute
from ..machine import dtypes
from ..options import from_environment
from .arguments import TensorArgument
from .arrays import framework_of
from .results import report_unwritten
from .transfer import Transfer


def run(program: Program, arrays: Sequence[object]) -> Any:
    """Return what the kernel returns for these values of its tensor parameters, in their order.

    Arrays that the program writes are written. Errors and diagnostics are those of its instructions.
    """
    _check(program, arrays)
    options = from_environment()
    lenient = replace(options, strict=False)  # there is no Python that could catch an error on the way
    tensors = [
        TensorArgument(name, value, framework_of(value))
        for value, (name, _) in zip(arrays, program.parameters, strict=True)
    ]
    storages = [storage for _, storage in program.parameters]
    transfer = Transfer(tensors, storages, program.machine, lenient)
    with one_blas_thread(), execute(program, lenient, transfer.inputs) as execution:
        for view in leaves(program.result, View):
            report_unwritten(view, execution, None)
        result = transfer.result(program.result, execution.memories, program.name)
        transfer.check_write_back(execution.memories)
        if options.strict and execution.diagnostics.found:
            raise as_error(execution.diagnostics.found[0])
        execution.diagnostics.show()
        transfer.write_back(execution.memories, program.name)
        execution.generators.keep()
    return result


def _check(program: Program, arrays: Sequence[Any]) -> None:
    """Check that there is an array of the right shape and dtype for each parameter."""
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
