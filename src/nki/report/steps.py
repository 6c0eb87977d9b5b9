"""A kernel as steps on a page: tiles in HBM, SBUF and PSUM, and what each instruction reads and writes.

One file without references outside. `Steps` is a sink: give it the instructions in the order in which they
run, with `values` to look at what was written.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..ir.effects import effects
from ..ir.instruction import Instruction
from ..ir.storage import Storage
from ..ir.view import View
from ..machine.memories import PSUM, SBUF
from ..markup import escape, fill, frame, policy, script_data
from .html import asset

MOST_STEPS = 2000  # of a page; the rest is counted
MOST_VALUES = 1024  # elements of a view whose values are shown
_ASSIGNED = re.compile(r"^\s*(\w+)\s*(?::[^=]+)?=[^=]")


class Steps:
    """Collects what a page shows. `values(view)` is what a view holds, or None if nothing is computed."""

    def __init__(self, name: str, values: Callable[[View], np.ndarray] | None = None):
        self.name = name
        self.values = values
        self.count = 0
        self.steps: list[dict[str, Any]] = []
        self.tiles: list[dict[str, Any]] = []
        self._numbers: dict[Storage, int] = {}
        self._lines: dict[str, set[int]] = {}

    def __call__(self, instruction: Instruction) -> None:
        self.count += 1
        if self.count > MOST_STEPS:
            return
        done = effects(instruction)
        parts = [(view, role) for role in ("reads", "adds_to", "writes") for view in getattr(done, role)]
        site = instruction.site
        step: dict[str, Any] = {
            "name": instruction.public or type(instruction).__name__,
            "engine": _engine(instruction),
            "file": site.filename if site else "",
            "line": site.lineno if site else 0,
            "views": [self._view(view, role) for view, role in parts],
        }
        self._lines.setdefault(step["file"], set()).add(step["line"])
        self.steps.append(step)

    def _view(self, view: View, role: str) -> dict[str, Any]:
        storage = view.storage
        if storage not in self._numbers:
            self._numbers[storage] = len(self.tiles)
            self.tiles.append(_tile(storage))
        found = {"tile": self._numbers[storage], "role": role, "shape": list(view.shape), **_box(view)}
        if self.values is not None and role != "reads" and prod(view.shape) <= MOST_VALUES:
            found["values"] = _numbers(self.values(view))
        return found

    def html(self) -> str:
        """Return the page."""
        data = {
            "kernel": self.name,
            "left_out": max(0, self.count - MOST_STEPS),
            "tiles": self.tiles,
            "steps": self.steps,
            "sources": {name: _source(name, lines) for name, lines in self._lines.items() if name},
        }
        script = asset("steps.js")
        parts = {"kernel": escape(self.name), "data": script_data(data), "script": script}
        return fill(asset("steps.html"), policy=policy(script), **parts)

    def _repr_html_(self) -> str:
        return frame(f"{self.name}, step by step", self.html(), "width:100%;height:640px;border:0")


def _engine(instruction: Instruction) -> str:
    chosen = getattr(instruction, "engine", None)
    if chosen is not None and chosen.name != "unknown":
        return chosen.name
    return (
        instruction.engines[0].name
        if instruction.engines
        else "sequencer"
        if instruction.registers
        else "dma"
    )


def _tile(storage: Storage) -> dict[str, Any]:
    memory = "sbuf" if storage.buffer is SBUF else "psum" if storage.buffer is PSUM else "hbm"
    site = storage.site
    match = _ASSIGNED.match(site.text) if site else None
    label = storage.name or (match[1] if match else memory)
    rows, columns = _sizes(storage)
    return {
        "memory": memory,
        "label": label,
        "shape": list(storage.shape),
        "dtype": str(storage.dtype),
        "rows": rows,
        "columns": columns,
        "resident": bool(storage.parameter or storage.constant),
    }


def _sizes(storage: Storage) -> tuple[int, int]:
    """Rows and columns, in elements, as the page shows the storage."""
    if storage.on_chip:
        return storage.partitions, max(1, storage.pitch // storage.dtype.itemsize)
    columns = storage.shape[-1]
    return prod(storage.shape) // columns, columns


def _box(view: View) -> dict[str, Any]:
    """The rectangle of the drawing that a view lies in, ends included; fractions where dtypes differ."""
    storage = view.storage
    scale = view.dtype.itemsize / storage.dtype.itemsize
    rows, columns = _sizes(storage)
    row = max(1, round(columns / scale))  # of a row, in elements of the view
    first = view.offset + sum(min(0, (n - 1) * s) for n, s in zip(view.shape, view.strides, strict=True))
    last = view.offset + sum(max(0, (n - 1) * s) for n, s in zip(view.shape, view.strides, strict=True))
    top, bottom = first // row, last // row
    left, right = first % row, last % row
    if top != bottom and right < left:
        left, right = 0, row - 1
    whole = view.indirection is not None  # a run-time address: anywhere
    if whole:
        top, bottom, left, right = 0, rows - 1, 0, row - 1
    box = [top / rows, (bottom + 1) / rows, left / row, (right + 1) / row]
    return {"box": [round(min(1.0, max(0.0, x)), 5) for x in box], "anywhere": whole}


def _numbers(values: np.ndarray) -> list[str]:
    return [f"{float(v):.6g}" for v in np.asarray(values, dtype=np.float64).reshape(-1)]


def _source(name: str, lines: set[int]) -> dict[str, Any]:
    """Return the lines from a little before the first to a little after the last instruction."""
    text = linecache.getlines(name)
    first, last = max(1, min(lines) - 8), min(len(text), max(lines) + 4)
    return {"first": first, "lines": [line.rstrip("\n") for line in text[first - 1 : last]]}
