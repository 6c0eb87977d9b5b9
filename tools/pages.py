"""Run the code of pages, write its output into them, and convert them to notebooks.

python tools/pages.py [--check] page.md ...     write what the blocks print below them, or report differences
python tools/pages.py --notebooks DIR page.md ...

A block ```output shows what the ```python block before it prints. The blocks of a page are one program.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TARGET = {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}  # independent of the reader's environment
MOST_RUNS = 4  # outputs move the lines below them, and a page may print its own lines
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    kind: str  # "python", "output", another language, or "" for text between blocks
    text: str
    line: int  # of its first line of text


def blocks(page: str) -> Iterator[Block]:
    """Split a page at its fences."""
    end = 0
    for match in _FENCE.finditer(page):
        yield Block("", page[end : match.start()], page.count("\n", 0, end) + 1)
        yield Block(match[1] or "text", match[2], page.count("\n", 0, match.start(2)) + 1)
        end = match.end()
    yield Block("", page[end:], page.count("\n", 0, end) + 1)


def outputs(path: Path) -> Iterator[str]:
    """Return what each Python block prints. Line numbers of errors are those of the page."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before = {name: os.environ.get(name) for name in TARGET}
    os.environ.update(TARGET)
    try:
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.kind != "python":
                continue
            printed = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(code, names)
            yield printed.getvalue()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def written(path: Path) -> str:
    """Return the page with the outputs of a run."""
    printed, last, parts = outputs(path), "", []
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.kind == "python":
            last = next(printed)
        text = last if block.kind == "output" else block.text
        parts.append(f"```{block.kind}\n{text}```\n" if block.kind else text)
    return "".join(parts)


def notebook(page: str) -> dict[str, Any]:
    """Return the page as a Jupyter notebook with its outputs."""
    cells: list[dict[str, Any]] = []
    for number, block in enumerate(blocks(page)):
        if block.kind == "output":
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": block.text}]
        elif block.kind == "python":
            cells.append(_cell("code", number, block.text.rstrip("\n"), execution_count=None, outputs=[]))
        elif block.text.strip():
            shown = block.text if not block.kind else f"```{block.kind}\n{block.text}```"
            cells.append(_cell("markdown", number, shown.strip()))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


def _cell(kind: str, number: int, source: str, **more: Any) -> dict[str, Any]:
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source, **more}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page differs")
    parser.add_argument("--notebooks", type=Path, metavar="DIR", help="write the pages as notebooks there")
    options = parser.parse_args(arguments)
    if options.notebooks:
        options.notebooks.mkdir(parents=True, exist_ok=True)
        for path in options.pages:
            made = json.dumps(notebook(path.read_text(encoding="utf-8")), indent=1)
            (options.notebooks / f"{path.stem}.ipynb").write_text(made + "\n", encoding="utf-8")
        return 0
    differing: list[str] = []
    for path in options.pages:
        for _ in range(MOST_RUNS):
            new = written(path)
            if new == path.read_text(encoding="utf-8"):
                break
            differing = [*differing, str(path)]
            if options.check:
                break
            path.write_text(new, encoding="utf-8")
        else:
            print(f"{path} prints different text in every run", file=sys.stderr)
            return 1
    differing = list(dict.fromkeys(differing))
    print(f"{'differing' if options.check else 'written'}: {', '.join(differing) or 'none'}")
    return 1 if options.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
