"""nki puzzles: write the puzzles, grade a solution, show a hint, list what is solved."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from nki.cli.command import WRONG_KERNEL, Command
from nki.cli.script import UsageError
from nki.files import load_json

from ..verdict import CaseVerdict, Verdict
from . import Puzzle, puzzles

FOLDER = "nki-puzzles"
SOLVED = "solved.json"
NAN = "not a number: nothing wrote this element, or it comes from infinity or from memory that nothing wrote"


def command_puzzles(options: argparse.Namespace) -> int:
    """nki puzzles"""
    if options.verb == "start":
        return start(Path(options.what or FOLDER))
    if options.verb == "hint":
        print(_numbered(options.what).hint)
        return 0
    folder = _folder(options.folder)
    if options.verb == "check":
        return check(folder, options.what)
    return listing(folder)


def start(folder: Path) -> int:
    """Write the file of each puzzle that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    new = [puzzle for puzzle in puzzles() if not (folder / puzzle.file).exists()]
    for puzzle in new:
        (folder / puzzle.file).write_text(puzzle.source, encoding="utf-8")
    print(f"wrote {len(new)} of {len(puzzles())} files to {folder}")
    _open(folder, _next(folder))
    return 0


def listing(folder: Path) -> int:
    """Print which puzzles are solved."""
    solved = _solved(folder)
    for puzzle in puzzles():
        print(f"{'solved' if puzzle.file in solved else '      '}  {puzzle.number:2d}  {puzzle.title}")
    _open(folder, _next(folder))
    return 0


def check(folder: Path, number: str | None) -> int:
    """Grade a puzzle, by default the first that is not solved, and say what is wrong or what comes next."""
    from ..grade import grade

    puzzle = _numbered(number) if number else _next(folder)
    if puzzle is None:
        return listing(folder)
    file = folder / puzzle.file
    verdict = grade(puzzle.task, file)
    if not verdict.passed:
        print(f"{file}: not solved yet")
        print("\n".join(f"  {line}" for line in explanation(verdict)))
        print(f"nki puzzles hint {puzzle.number} shows a hint")
        return WRONG_KERNEL
    solved = sorted({*_solved(folder), puzzle.file})
    (folder / SOLVED).write_text(json.dumps({"solved": solved}), encoding="utf-8")
    times = ", ".join(f"{case.us:.1f} us" for case in verdict.cases if case.us is not None)
    print(f"{file}: solved (modelled: {times})")
    _open(folder, _next(folder))
    return 0


def explanation(verdict: Verdict) -> Iterator[str]:
    """Yield what is wrong, in words; of the cases, the first that fails."""
    if verdict.problem:
        yield verdict.problem
        yield from verdict.detail.splitlines()
        return
    for text in verdict.check:
        yield from text.splitlines()
    wrong = next((case for case in verdict.cases if not case.correct), None)
    if wrong is not None:
        yield from _explain_case(wrong)


def _explain_case(case: CaseVerdict) -> Iterator[str]:
    worst = case.mismatch
    if case.detail:
        yield f"{case.name}: the kernel stops with an error ({case.problem})"
        yield from case.detail.splitlines()
    elif worst is None:
        yield from (f"{case.name}: {text}" for text in (case.problem, *case.findings) if text)
    elif not worst.index:
        yield f"{case.name}: {worst.message}"
    else:
        yield f"{case.name}: the result is wrong, most at {worst.index}"
        yield f"expected {worst.expected:g}, got {worst.got:g}"
        if worst.got is not None and not isfinite(worst.got):
            yield NAN
    if case.problem.startswith("too slow"):
        yield from (f"advice: {piece['title']}" for piece in case.advice)


# ---- the folder ----------------------------------------------------------------------------------


def _folder(named: str | None) -> Path:
    """Return the folder of the puzzles: as named, this one, or the one that `start` writes by default."""
    places = [Path(named)] if named else [Path(), Path(FOLDER)]
    for place in places:
        if (place / puzzles()[0].file).exists():
            return place
    raise UsageError("there are no puzzles here; nki puzzles start writes them")


def _solved(folder: Path) -> list[str]:
    """Return the files that have passed."""
    try:
        return load_json(folder / SOLVED, {"solved": list})["solved"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as problem:
        raise UsageError(f"{folder / SOLVED} is damaged: {problem}") from None


def _next(folder: Path) -> Puzzle | None:
    solved = _solved(folder)
    return next((puzzle for puzzle in puzzles() if puzzle.file not in solved), None)


def _numbered(number: str | None) -> Puzzle:
    for puzzle in puzzles():
        if number is not None and number in (str(puzzle.number), puzzle.task.entry, puzzle.file):
            return puzzle
    raise UsageError(f"give the number of a puzzle, 1 to {len(puzzles())}")


def _open(folder: Path, puzzle: Puzzle | None) -> None:
    """Show the text of the next puzzle, and the file to edit."""
    if puzzle is None:
        print("\nAll puzzles are solved.")
        return
    print(f"\nPuzzle {puzzle.number}: {puzzle.title}\n\n{puzzle.text}\n")
    print(f"edit {folder / puzzle.file}, then: nki puzzles check")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "verb", nargs="?", default="list", choices=["list", "start", "check", "hint"], help="default: list"
    )
    parser.add_argument("what", nargs="?", help="start: a folder; check and hint: the number of a puzzle")
    parser.add_argument("--folder", help=f"where the puzzles are (default: here, or {FOLDER})")


COMMAND = Command(
    "puzzles",
    "learn NKI with 20 puzzles",
    """\
Twenty puzzles from copying a tile to a causal flash attention. Each is a file with a text and a
kernel that is wrong or empty. `check` grades the next one, says what is wrong, or shows the one
after it.""",
    command_puzzles,
    add_arguments,
    """\
examples:
  nki puzzles start
  nki puzzles check
  nki puzzles hint 4
  nki puzzles""",
)
