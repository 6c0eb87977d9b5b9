"""The puzzles: every solution passes, no start does, and the command leads from one to the next."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nki.cli import main
from nki.cli.script import UsageError
from nki_grading import grade, load_task
from nki_grading.puzzles import puzzles
from nki_grading.puzzles.command import COMMAND, explanation

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows passes no pipes to children")

SOLUTIONS = Path(__file__).with_name("puzzle_solutions.py")
FAULTS = {  # what the explanation of each start says
    "copy": "nothing wrote this element",
    "scale": "the result is wrong",
    "add": "data2 is in HBM",
    "rows": "512 partitions, sbuf has 128",
    "edges": "bound it yourself: min(384, 300)",
    "row_sums": "the result is wrong",
    "center": "the result is wrong",
    "bias": "data2 has 1",
    "transpose": "nothing wrote this element",
    "matmul": "contraction dimension in their partitions",
    "accumulate": "the result is wrong",
    "tiled_matmul": "nothing wrote this element",
    "blocked_matmul": "too slow",
    "softmax": "infinity",
    "layer_norm": "the result is wrong",
    "mask": "got -30000",
    "gather": "the result is wrong",
    "log_sum_exp": "a tile of 4 x 65536 takes",
    "attention": "nothing wrote this element",
    "flash_attention": "nothing wrote this element",
}


def run(*words):
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args([str(word) for word in words]))


@pytest.mark.parametrize("puzzle", puzzles(), ids=lambda puzzle: puzzle.task.entry)
def test_a_solution_passes_and_the_start_does_not(tmp_path, puzzle):
    verdict = grade(replace(puzzle.task, release=None), SOLUTIONS)  # the next test checks for a release
    assert verdict.passed, verdict.summary()
    start = tmp_path / puzzle.file
    start.write_text(puzzle.source)
    first = replace(puzzle.task, visible_seeds=(0,), hidden_seeds=0)
    words = "\n".join(explanation(grade(first, start)))
    assert FAULTS[puzzle.task.entry] in words


def test_the_solutions_pass_the_check_for_the_release_of_the_puzzles(capsys):
    assert main(["check", str(SOLUTIONS), "--for", "aws-0.6"]) == 0, capsys.readouterr().out


def test_the_command_leads_through_the_puzzles(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="nki puzzles start"):
        run()
    assert run("start") == 0 and "Puzzle 1: Copy a tile" in capsys.readouterr().out
    folder = tmp_path / "nki-puzzles"
    assert len(list(folder.glob("*.py"))) == 20
    assert run("check") == 1
    assert "nothing wrote this element" in (shown := capsys.readouterr().out) and "hint 1" in shown
    assert run("hint", 1) == 0 and "nisa.dma_copy(tile, x)" in capsys.readouterr().out
    (folder / "01_copy.py").write_text(SOLUTIONS.read_text())
    assert run("check") == 0
    assert "solved (modelled:" in (shown := capsys.readouterr().out) and "Puzzle 2" in shown
    assert run("start") == 0 and "wrote 0 of 20" in capsys.readouterr().out  # nothing is overwritten
    monkeypatch.chdir(folder)
    assert run() == 0 and capsys.readouterr().out.startswith("solved   1  Copy a tile\n         2")
    with pytest.raises(UsageError, match="1 to 20"):
        run("check", 21)
    (folder / "solved.json").write_text("[]")
    with pytest.raises(UsageError, match="damaged"):
        run()


def test_puzzles_are_tasks_for_a_class():
    assert load_task("puzzle-4") is puzzles()[3].task
