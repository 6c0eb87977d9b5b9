"""nki grade: verdicts on submissions, as text, JSON or pages."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from nki.cli.command import WRONG_KERNEL, Command, add_json
from nki.cli.script import UsageError
from nki.files import parse_json


def command_grade(options: argparse.Namespace) -> int:
    """nki grade"""
    from .grade import leaderboard
    from .pages import leaderboard_page, page
    from .task import TaskError, load_task

    try:
        task = load_task(options.task)
    except TaskError as problem:
        raise UsageError(str(problem)) from None
    if not options.submissions:
        print(json.dumps(task.to_dict(), indent=2) if options.json else task.describe())
        return 0
    files = _files(options.submissions)
    verdicts = _graded(task, files, options)
    if options.html:
        folder = Path(options.html)
        folder.mkdir(parents=True, exist_ok=True)
        for number, verdict in enumerate(verdicts):
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(verdict.submission).stem)
            (folder / f"{number:04d}_{name}.html").write_text(page(verdict), encoding="utf-8")
        board = leaderboard_page(task.name, leaderboard(verdicts))
        (folder / "index.html").write_text(board, encoding="utf-8")
    if options.json:
        found: Any = [verdict.to_dict() for verdict in verdicts]
        print(json.dumps(found[0] if len(found) == 1 else found, indent=2))
    else:
        print("\n".join(verdict.summary() for verdict in verdicts))
    return 0 if all(verdict.passed for verdict in verdicts) else WRONG_KERNEL


def _files(places: list[str]) -> list[Path]:
    """Return the submissions: files, and the Python files of folders."""
    files: list[Path] = []
    for place in map(Path, places):
        files += sorted(place.glob("*.py")) if place.is_dir() else [place]
    if not files:
        raise UsageError(f"there is no Python file in {', '.join(places)}")
    return files


def _graded(task: Any, files: list[Path], options: argparse.Namespace) -> list[Any]:
    """Grade what the results file does not have yet, and append to it."""
    from .grade import grade_all
    from .verdict import Verdict

    store = Path(options.results) if options.results else None
    known = _known(store, task.name)
    keys = {str(file): _key(file) for file in files}
    done = {name: Verdict.from_dict(known[key]) for name, key in keys.items() if key in known}
    missing = [file for file in files if str(file) not in done]
    with ExitStack() as stack:
        append = stack.enter_context(store.open("a", encoding="utf-8")) if store else None
        count = len(files) - len(missing)

        def graded(verdict: Any) -> None:
            nonlocal count
            count += 1
            done[verdict.submission] = verdict
            if append is not None:
                append.write(json.dumps({"key": keys[verdict.submission], **verdict.to_dict()}) + "\n")
                append.flush()
            if len(files) > 1 and not options.json:
                print(f"{count} of {len(files)}: {verdict.submission}", file=sys.stderr)

        grade_all(task, missing, jobs=options.jobs, secret=options.secret, ray=options.ray, graded=graded)
    return [done[str(file)] for file in files]


def _key(file: Path) -> str:
    try:
        return f"{file}:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    except OSError:
        return f"{file}:"


def _known(store: Path | None, task: str) -> dict[str, Any]:
    """Return the verdicts of an earlier run by key; a line that was cut off counts as missing."""
    found: dict[str, Any] = {}
    if store is not None and store.exists():
        for line in store.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                entry = parse_json(line.encode())
                if entry.get("task") == task:
                    found[entry.pop("key")] = entry
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help="a file or folder with a TASK, or the name of one of ours")
    parser.add_argument(
        "submissions", nargs="*", metavar="submission.py", help="files, or folders; none: print the task"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once")
    parser.add_argument("--ray", nargs="?", const=True, metavar="ADDRESS", help="grade on a Ray cluster")
    parser.add_argument("--secret", type=int, metavar="N", help="chooses the hidden inputs (default: random)")
    parser.add_argument("--results", metavar="FILE", help="append verdicts; a later run skips what it has")
    parser.add_argument(
        "--html", metavar="FOLDER", help="write a page for each submission, and a leaderboard"
    )
    add_json(parser)


COMMAND = Command(
    "grade",
    "grade submissions for a task",
    """\
Grade kernels that others wrote. A submission runs in a process with limits and without data;
its Programs are validated and run on visible and hidden inputs, their results compared with
the reference, and their times modelled.
Exit code 0: all pass, 1: one fails, 2: the command or the task is wrong.""",
    command_grade,
    add_arguments,
    """\
examples:
  nki grade tasks/softmax submission.py
  nki grade cs149-conv2d submissions/ --jobs 4 --results verdicts.jsonl --html report
  nki grade tasks/softmax submission.py --json""",
)
