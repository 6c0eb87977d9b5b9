"""The seam for executors: what runs a Program and holds its values.

numpy, one instruction at a time, is the definition; others are held to it by random programs. A launch
hands its backend the caller's bytes, lets it run a Program on the cores of the launch, and reads values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..ir.program import Program
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.machine import Machine
from .reference.memories import Memories
from .reference.prepared import Prepared, prepare


class Backend(Protocol):
    """What a launch asks of an executor. Arrays are numpy's; where the bytes live is its own business."""

    def borrow(self, storage: Storage, raw: np.ndarray) -> None:
        """Put the caller's bytes behind a storage. They must not change: the first write copies them."""

    def fill(self, storage: Storage, raw: np.ndarray) -> None:
        """Put bytes behind a storage that the caller lends for its results."""

    def run(self, program: Program, core: Any) -> None:
        """Run one core's part of a program; `core` has its registers, state and meetings."""

    def values(self, view: View) -> np.ndarray:
        """What a view holds. What nobody wrote is poison."""

    def is_written(self, view: View) -> bool:
        """Somebody wrote all of it."""

    def changed(self, storage: Storage) -> bool:
        """Somebody wrote to it since it was lent."""


class NumpyBackend:
    """The definition: instructions one by one, in program order, on numpy arrays."""

    def __init__(
        self, machine: Machine, precise: bool, call: object, released: Callable[[Storage], None] | None
    ):
        self.memories = Memories(machine, precise, call, released)
        self.borrow = self.memories.borrow
        self.fill = self.memories.fill

    def run(self, program: Program, core: Any) -> None:
        self.prepared(program).run(core, core.index)

    def prepared(self, program: Program) -> Prepared:
        """What was made of the program before, or now; it is kept with the program."""
        return prepare(program)

    def values(self, view: View) -> np.ndarray:
        return self.memories[view.storage].array(view)

    def is_written(self, view: View) -> bool:
        return self.memories[view.storage].is_written(view)

    def changed(self, storage: Storage) -> bool:
        return storage in self.memories and self.memories[storage].changed
