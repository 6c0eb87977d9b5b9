"""The way of one argument from Kernel.__call__ to the backend: how many functions and files it passes."""

from __future__ import annotations

import os
import sys

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl

HOME = os.path.dirname(nki.__file__)
HOLDERS = ("Arguments", "Call", "Transfer", "TensorArgument", "Lent", "BoundArguments", "_Flattening")


def holds(value, x, depth=0):
    """Whether an object is the array, shares its memory, or is a container or a holder of such an object."""
    if isinstance(value, np.ndarray):
        return np.shares_memory(value, x)
    if depth == 4:
        return False
    if isinstance(value, (tuple, list)):
        return any(holds(part, x, depth + 1) for part in value)
    if isinstance(value, dict) and "__name__" not in value:  # not a namespace
        return any(holds(part, x, depth + 1) for part in value.values())
    if type(value).__name__ in HOLDERS:
        parts = vars(value) if hasattr(value, "__dict__") else {n: getattr(value, n) for n in value.__slots__}
        return any(holds(part, x, depth + 1) for part in parts.values())
    return False


def route(kernel, x):
    """The functions of nki, with their files, that get the argument before the backend runs."""
    found, is_running = [], []

    def note(frame, event, _):
        code = frame.f_code
        if event != "call" or is_running or not code.co_filename.startswith(HOME):
            return
        if code.co_name == "run" and os.sep + "backends" + os.sep in code.co_filename:
            is_running.append(True)
        elif any(holds(value, x) for value in list(frame.f_locals.values())):
            found.append((code.co_filename, code.co_name))

    sys.setprofile(note)
    try:
        kernel(x)
    finally:
        sys.setprofile(None)
    assert is_running
    return found


def test_an_argument_passes_few_functions_and_files_on_its_way_to_the_backend():
    @nki.jit
    def kernel(x):
        out, tile = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(out, tile)
        return out

    x = np.ones((4, 8), np.float32)
    kernel(x)
    calls = route(kernel, x)
    files = [file for i, (file, _) in enumerate(calls) if i == 0 or calls[i - 1][0] != file]
    assert len(calls) <= 20, calls
    assert len(set(files)) <= 10, files
    assert len(files) - len(set(files)) <= 6, files
