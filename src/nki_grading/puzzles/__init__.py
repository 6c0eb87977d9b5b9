"""Twenty puzzles that lead from copying a tile to a causal flash attention: `nki puzzles`.

A puzzle is a task (`tasks.py`) and a page beside this file: its text, the kernel to start from, and a hint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..task import Task
from .tasks import TASKS

PAGE = re.compile(r"# (?P<title>.+?)\n\n(?P<text>.+?)\n\n```python\n(?P<start>.+?)```\n\n## Hint\n\n(?P<hint>.+)", re.S)  # fmt: skip  # noqa: E501


@dataclass(frozen=True)
class Puzzle:
    """A task with a text for students, a kernel to start from, and a hint."""

    number: int
    task: Task
    title: str
    text: str
    start: str
    hint: str

    @property
    def file(self) -> str:
        return f"{self.number:02d}_{self.task.entry}.py"

    @property
    def source(self) -> str:
        """Return the file that a student starts from: the text, and a kernel that is wrong or empty."""
        return f'"""Puzzle {self.number}: {self.title}\n\n{self.text}\n"""\n\n{self.start}'


@cache
def puzzles() -> tuple[Puzzle, ...]:
    """Return all puzzles in their order."""
    return tuple(_puzzle(number, task) for number, task in enumerate(TASKS, 1))


def _puzzle(number: int, task: Task) -> Puzzle:
    page = Path(__file__).parent / f"{number:02d}_{task.entry}.md"
    found = PAGE.fullmatch(page.read_text(encoding="utf-8"))
    assert found is not None, page
    parts = {name: text.strip() for name, text in found.groupdict().items()}
    return Puzzle(number, task, parts["title"], parts["text"], parts["start"] + "\n", parts["hint"])
