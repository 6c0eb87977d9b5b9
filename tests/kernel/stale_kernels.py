"""Random kernels whose Python reads something that changes between calls: cached and uncached must agree."""

from __future__ import annotations

import contextlib
import io
import random
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stale_attributes import ATTRIBUTES
from stale_classes import CLASSES
from stale_sources import FORMS, MODULES, SOURCES, Source

import nki
import nki.isa as nisa
import nki.language as nl

ALL = [*SOURCES, *ATTRIBUTES, *CLASSES]
AGREES: dict[str, Any] = {
    "equal": lambda mine, expected, earlier: repr(mine) == repr(expected),
    "later": lambda mine, expected, earlier: all(mine >= value for value in (*earlier, expected)),
    "other": lambda mine, expected, earlier: mine not in (*earlier, expected),
}


def package(name: str, **values: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(values)
    return module


def execute(text: str, space: dict[str, Any]) -> None:
    exec(compile(text, "<random kernel>", "exec", dont_inherit=True), space)


KERNEL = """
def kernel(x, given):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.memset(tile, 1.0)
    nisa.dma_copy(out, tile)
    return [{values}]
"""


class Case:
    """A module with a kernel that reads some sources."""

    def __init__(self, seed: int, path: Path, sources: Sequence[Source] = ()):
        self.rng = random.Random(seed)
        self.sources = sources or self.rng.sample(ALL, self.rng.choice((1, 1, 1, 2, 2, 3)))
        self.spaces = [self._namespace(path.with_suffix(f".{i}")) for i in range(len(self.sources))]
        self._patched: list[tuple[Any, str, Any]] = []
        for source, space in zip(self.sources, self.spaces, strict=True):
            execute(source.setup, space)
            read = self.rng.choice(FORMS).format(source.read)
            execute(f"def read(given):\n    value = {read}\n    return value", space)
        names = {f"read{i}": space["read"] for i, space in enumerate(self.spaces)}
        module = {"nl": nl, "nisa": nisa, "__name__": __name__, **names}
        values = ", ".join(f"{name}(given[{i}])" for i, name in enumerate(names))
        execute(KERNEL.format(values=values), module)
        self.kernel = nki.jit(module["kernel"])
        self.seen: list[list[Any]] = []
        self._argv = sys.argv

    def _namespace(self, path: Path) -> dict[str, Any]:
        return {
            **{module.__name__: module for module in MODULES},
            **{
                "np": np,
                "nl": nl,
                "new": lambda: self.rng.randrange(1, 1000),
                "path": path,
                "package": package,
            },
            **{"patch": self.patch, "restore": self.restore, "__name__": __name__},
        }

    def new(self) -> int:
        return self.rng.randrange(1, 1000)

    def patch(self, owner: Any, name: str, value: Any) -> None:
        self._patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._patched:
            setattr(*self._patched.pop())

    def close(self) -> None:
        self.restore()
        sys.argv = self._argv

    def change(self) -> None:
        """Change something that one of the sources reads."""
        source, space = self.rng.choice(list(zip(self.sources, self.spaces, strict=True)))
        if source.changes:
            execute(self.rng.choice(source.changes), space)

    def call(self, **options: Any) -> tuple[list[Any], str]:
        """Return what a call returns, and what it prints."""
        given = [
            eval(source.arguments, space) if source.arguments else None
            for source, space in zip(self.sources, self.spaces, strict=True)
        ]
        x = np.ones((1, 1), np.float32)
        with contextlib.redirect_stdout(io.StringIO()) as printed, nki.options(**options):
            values = self.kernel(x, given)
        return values, printed.getvalue()

    def stale(self) -> str | None:
        """Change something and return how a call differs from an uncached one; None if it does not."""
        if self.rng.random() < 0.7:
            self.change()
        want, want_text = self.call(cache=False)
        got, got_text = self.call()
        if got_text != want_text:
            return f"printed {got_text!r}, expected {want_text!r}"
        for source, mine, expected in zip(self.sources, got, want, strict=True):
            earlier = [values[self.sources.index(source)] for values in self.seen]
            if not AGREES[source.kind](mine, expected, earlier):
                return f"{source.read} with {source.setup!r}: got {mine!r}, expected {expected!r}"
        self.seen.append(got)
        return None
