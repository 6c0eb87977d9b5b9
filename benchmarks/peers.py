"""Other interpreters of kernels, and PyTorch, beside this one: each over NumPy doing the same.

Each runs in a process of its own on one thread. `make compare` makes the environment of triton-viz; without
it, its rows say so. `python -m benchmarks gpu` compares with cuBLAS and with PyTorch's flash attention.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from .compare.__main__ import ROOT, ask
from .compare.page import SYSTEMS
from .compare.problems import problems

PEERS = {**SYSTEMS, "torch": "PyTorch"}
PACKAGES = {"nki": "nki", "torch": "torch", "triton": "triton", "pallas": "jax", "pallas_tpu": "jax"}


def interpreter(system: str) -> str | None:
    """Return the Python that has a system's packages, if there is one."""
    if "viz" in system:
        return _existing(ROOT / "build" / "compare-viz" / "bin" / "python")
    if importlib.util.find_spec(PACKAGES[system]):
        return sys.executable
    return _existing(ROOT / "build" / "compare" / "bin" / "python")


def _existing(python: Path) -> str | None:
    return str(python) if python.exists() else None


def rows(system: str, title: str) -> Iterator[tuple[str, str, str]]:
    python = interpreter(system)
    if python is None:
        yield title, "not installed: make compare", ""
        return
    (answer,) = ask(python, "--ask", system, "times")
    for name, problem in problems().items():
        found = answer["times"][name]
        wrong = "" if found["right"] else " (result differs)"
        ratios = f"{found['first']:.1f}x, {found['again']:.1f}x{wrong}"
        yield f"{title}: {problem.title}, first and warm / numpy", ratios, ""


def run():
    return [row for system, title in PEERS.items() for row in rows(system, title)]
