"""The texts of public names: Markdown files in a folder per package, a section for each name.

The first lines of a text are the docstring in the code; the section has parameters, operation, example and
facts. `help`, the stubs that editors read and the site show the same text. `make docs` writes the outputs of
the examples and the facts (tools/texts.py), the stubs, and the docstrings of classes (tools/signatures.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def sections(file: Path) -> dict[str, str]:
    """Return the text of each name in a file."""
    _, *parts = file.read_text(encoding="utf-8").split("\n## ")
    found = (part.partition("\n") for part in parts)
    return {name: text.strip("\n") for name, _, text in found}


def document(package: Mapping[str, Any]) -> None:
    """Add the texts of names in a package, given by its globals, to their docstrings; classes have theirs."""
    for file in (Path(__file__).parent / package["__name__"].rpartition(".")[2]).glob("*.md"):
        for name, text in sections(file).items():
            if isinstance(package[name], type):
                continue
            summary = inspect.cleandoc(package[name].__doc__ or "")
            package[name].__doc__ = f"{summary}\n\n{text}\n"
