"""Which step of a run wrote each element of a storage."""

from __future__ import annotations

import numpy as np

from .storage import Storage
from .view import View


class Writers:
    """The writes of a run; steps count from 1."""

    def __init__(self) -> None:
        self.writes: dict[Storage, list[tuple[int, View]]] = {}

    def note(self, step: int, view: View) -> None:
        """Note that a step wrote a view."""
        self.writes.setdefault(view.storage, []).append((step, view))

    def of(self, view: View) -> np.ndarray:
        """Return the step that wrote each element of a view last; 0 where none has."""
        storage = view.storage
        steps = np.zeros(storage.nbytes // storage.dtype.itemsize, np.int64)
        for step, written in self.writes.get(storage, ()):
            if has_own_elements(written):
                elements(steps, written)[...] = step
            else:  # its addresses are known at run time, or its elements are of another size
                steps[:] = step
        return elements(steps, view).copy()


def has_own_elements(view: View) -> bool:
    """Return True if the elements of a view are some of its storage's, and it is known which."""
    return view.indirection is None and view.dtype.itemsize == view.storage.dtype.itemsize


def elements(flat: np.ndarray, view: View) -> np.ndarray:
    """Return the elements of a view in an array with one for each element of its storage."""
    strides = [stride * flat.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)
