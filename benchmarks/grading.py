"""What grading costs: submissions per minute, and the overhead over running the kernel in this process.

`python -m benchmarks.grading --many 1000` grades that many, is killed halfway, and goes on.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nki import options
from nki.cli.script import find_kernel, loaded
from nki_grading import grade, grade_all, load_task
from nki_grading.grade import References
from nki_grading.task import Samples

HOME = Path(__file__).parents[1]
SOLUTIONS = {
    "cs149-conv2d-small": HOME / "tests/grading/conv2d_solution.py",
    "puzzle-1": HOME / "tests/grading/puzzle_solutions.py",
}
COMMAND = "from nki.cli import main; raise SystemExit(main())"


def run():
    """Return the figures of grading on two workers."""
    rows = []
    for name, solution in SOLUTIONS.items():
        rows += [*_overhead(name, solution), (f"{name}: submissions a minute", *_rate(name, solution))]
    return rows


def _overhead(name, solution):
    task = load_task(name)
    references = References(task, 0)
    for case in task.cases:
        for seed in references.seeds:
            references.of(case, seed)
    grade(task, solution, references=references)  # starts the server
    begin = time.perf_counter()
    assert grade(task, solution, references=references).passed
    graded = time.perf_counter() - begin
    begin = time.perf_counter()
    _run_here(task, solution, references)
    here = time.perf_counter() - begin
    yield f"{name}: one submission", f"{graded:.2f} s", "5 s"
    yield f"{name}: the same work in this process", f"{here:.2f} s", ""
    yield f"{name}: more than 1.5 times that", f"{graded - 1.5 * here:.2f} s", "1 s"


def _run_here(task, solution, references):
    """Import a submission, trace, run and profile its kernel as the grader does, without processes."""
    with loaded(solution) as module, options(target=task.target):
        kernel = find_kernel(module, str(solution), task.entry)
        for case in task.cases:
            arguments = {n: v.spec if isinstance(v, Samples) else v for n, v in case.arguments.items()}
            program = kernel.trace(**arguments)
            _ = program.profile().findings
            for seed in references.seeds:
                program.run(*references.of(case, seed)[0])


def _rate(name, solution, count=24):
    """Return how many submissions two workers grade in a minute, and how many it should be."""
    with tempfile.TemporaryDirectory() as folder:
        files = _copies(solution, Path(folder), count)
        begin = time.perf_counter()
        assert all(verdict.passed for verdict in grade_all(name, files, jobs=2))
        return f"{60 * count / (time.perf_counter() - begin):.0f}", "at least 60"


def _copies(solution, folder, count):
    files = [folder / f"{number:04d}.py" for number in range(count)]
    for file in files:
        file.write_text(f"# {file.name}\n{solution.read_text()}")
    return files


def many(count, name="puzzle-1"):
    """Grade many submissions with `nki grade`, kill it halfway, start it again, and print what it did."""
    with tempfile.TemporaryDirectory() as folder:
        _copies(SOLUTIONS[name], Path(folder), count)
        results = Path(folder) / "verdicts.jsonl"
        command = [sys.executable, "-c", COMMAND, "grade", name, folder, "--jobs", "2", "--results", results]
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
            while _lines(results) < count // 2:
                time.sleep(0.2)
            first.send_signal(signal.SIGKILL)
        before = _lines(results)
        code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        seconds = time.perf_counter() - begin
        print(f"killed after {before} of {count}; then exit code {code}, {_lines(results) - before} graded")
        print(f"{seconds:.0f} s, {60 * count / seconds:.0f} submissions a minute")


def _lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--many", type=int, metavar="N")
    chosen = parser.parse_args()
    if chosen.many:
        many(chosen.many)
    else:
        print("\n".join("  ".join(row) for row in run()))
