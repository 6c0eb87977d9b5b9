"""The programs of a launch, dynamic slices and printing from the device (spec/language.md 11, 12, 15)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import numpy as np

from ..errors import error
from ..ir.context import RunningCore, current, warn
from ..ir.indexing import DynamicSlice
from ..ir.instruction import In, Instruction, InstructionCost, State
from ..ir.layout import Int, Layout, Register, is_int
from ..ir.tensor import NkiTensor, summary
from ..launch.core import issue
from ..machine import dtypes
from ..machine.machine import Machine
from ..machine.memories import PSUM

# ---- which program is this -----------------------------------------------------------------------


def program_id(axis: Int = 0) -> int:
    """The number of this program in the launch grid: 0 or 1."""
    core = current()
    _check_axis("program_id", "axis", axis)
    return core.index


def num_programs(axes: Int | Sequence[Int] | None = 0) -> int:
    """How many programs run: the launch degree, 1 without brackets. `None` or several axes: all of them."""
    core = current()
    for axis in () if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,):
        _check_axis("num_programs", "axes", axis)
    return core.execution.degree


def program_ndim() -> int:
    """Dimensions of the launch grid: 0 for kernel(...), 1 for kernel[n](...)."""
    return int(bool(current().launch.grid))


def _check_axis(function: str, argument: str, axis: object) -> None:
    if not is_int(axis):
        raise error("launch-grid-type", f"{function}: {argument} must be 0, got {axis!r}")
    if axis != 0:
        raise error(
            "launch-grid",
            f"{function}: {argument}={axis}, but a launch grid has one axis",
            help=f"nl.{function}(0)",
        )


# ---- ds ------------------------------------------------------------------------------------------


def ds(start: Int | Register | Layout, size: Int) -> DynamicSlice:
    """The index range start : start + size; start may be an int, a register or a one-element tile."""
    return DynamicSlice(start, size)


# ---- device_print --------------------------------------------------------------------------------


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor's values from the device, when the program gets there."""
    if not isinstance(print_prefix, str):
        raise error(
            "argument",
            f"device_print: print_prefix must be a str, got {type(print_prefix).__name__}",
            help="device_print(text, tensor): the text comes first",
        )
    issue(DevicePrint(print_prefix, tensor))


class DevicePrint(Instruction):
    public = "device_print"
    reaches_hbm = True
    state = (State.output,)

    print_prefix: str
    tensor: In

    def check(self, machine: Machine) -> None:
        if self.tensor.buffer is PSUM:
            warn(
                "device-print-psum",
                "device_print: the tensor is in PSUM, which hardware cannot print",
                notes=[f"tensor: {self.tensor.describe()}"],
                help="copy it to SBUF first (nl.copy)",
            )

    def compute(self, tensor: np.ndarray) -> None:
        core = current()
        execution = core.execution
        if not execution.side_effects.count_print():
            return
        view = self.tensor
        who = f"[core {core.index}] " if execution.degree > 1 else ""
        headline = f"{who}{self.print_prefix} {view.dtype}{list(view.shape)} {view.buffer.value}"
        sys.stdout.write(f"{headline}\n{summary(np.asarray(tensor))}\n")
        directory = execution.options.debug_output_dir
        if directory:
            self._save(core, directory, tensor)

    def _save(self, core: RunningCore, directory: str, tensor: np.ndarray) -> None:
        """<directory>/<prefix>/core_<k>/<n>/tensor.npy, n counting this prefix's prints on this core."""
        files = core.execution.side_effects.files
        count = files.get((core.index, self.print_prefix), 0)
        files[core.index, self.print_prefix] = count + 1
        name = re.sub(r"[/\\\0]|^\.*$", "_", self.print_prefix)  # the file stays inside the directory
        folder = os.path.join(directory, name, f"core_{core.index}", str(count))
        os.makedirs(folder, exist_ok=True)
        exotic = tensor.dtype.kind == "V" and self.tensor.dtype.castable  # .npy cannot name bfloat16 and fp8
        np.save(
            os.path.join(folder, "tensor.npy"), dtypes.f32(tensor, self.tensor.dtype) if exotic else tensor
        )

    def cost(self, machine: Machine) -> InstructionCost:
        return InstructionCost(0, 0.0)
