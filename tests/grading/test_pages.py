"""The pages for teachers and organisers: every command on them runs."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path

import pytest
import submissions as given

from nki_grading.command import COMMAND as GRADE
from nki_grading.puzzles.command import COMMAND as PUZZLES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows passes no pipes to children")

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = {command.name: command for command in (GRADE, PUZZLES)}
SOFTMAX = """
@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), nl.float32)
        nisa.dma_copy(tile, x[row : row + 128])
        largest, total = nl.ndarray((128, 1), nl.float32), nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(largest, nl.maximum, tile, axis=1, negate=True)
        nisa.activation(tile, nl.exp, tile, bias=largest)
        nisa.tensor_reduce(total, nl.add, tile, axis=1)
        nisa.reciprocal(total, total)
        nisa.tensor_scalar(tile, tile, nl.multiply, total)
        nisa.dma_copy(out[row : row + 128], tile)
    return out
"""


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.S)


def run(line):
    """Run a line of a shell: the exit code."""
    nki, name, *words = shlex.split(line)
    parser = argparse.ArgumentParser()
    COMMANDS[name].add_arguments(parser)
    assert nki == "nki"
    return COMMANDS[name].run(parser.parse_args(words))


@pytest.mark.parametrize(("page", "folder"), [("teachers.md", "submissions"), ("contests.md", "entries")])
def test_every_command_on_the_page_runs(page, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("softmax").mkdir()
    Path("softmax/task.py").write_text(blocks("grading.md", "python")[0])
    Path(folder).mkdir()
    Path(folder, "ada.py").write_text(given.HEAD + SOFTMAX)
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    codes = {line: run(line) for line in lines}
    wrong = {line for line, code in codes.items() if code != 0}
    assert len(lines) >= 2 and wrong <= {"nki puzzles check"}  # of a puzzle that nobody has solved yet
    html = Path("report" if folder == "submissions" else "board")
    assert {page.name for page in html.iterdir()} == {"index.html", "0000_ada.html"}
    assert len(Path("verdicts.jsonl").read_text().splitlines()) == 1
    assert ("Puzzle 1" in capsys.readouterr().out) == (page == "teachers.md")
