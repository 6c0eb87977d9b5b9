"""python -m benchmarks.compare: asks every system, and writes docs/comparison.md. --help says the rest."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import platform
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmarks.compare import page
from benchmarks.compare.problems import problems

ROOT = Path(__file__).parents[2]
ANSWERS, PAGE = ROOT / "build" / "compare-answers", ROOT / "docs" / "comparison.md"
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}
ROUNDS = 3


def module(system: str):
    return importlib.import_module(f"benchmarks.compare.with_{system}")


# ---- in a process of its own ---------------------------------------------------------------------


def times(system: str) -> dict:
    """The first call and the fastest later one over NumPy, in CPU time, and whether the answer is right."""
    with_it, found = module(system), {}
    for name, problem in problems().items():
        call = with_it.prepared(name, problem)
        first, answer = timed(call)
        again = min(timed(call)[0] for _ in range(ROUNDS))
        bare = min(timed(lambda p=problem: p.in_numpy(*p.inputs))[0] for _ in range(ROUNDS))
        found[name] = {"first": first / bare, "again": again / bare, "right": problem.close(answer)}
    return {"version": with_it.VERSION, "times": found}


def timed(call):
    start = time.process_time()
    answer = call()
    return time.process_time() - start, answer


def probe(system: str, name: str) -> dict:
    """What comes of a probe: an error, a warning or an answer; and whether the wrong line is named."""
    with_it = module(system)
    if name not in with_it.PROBES:
        return {"outcome": "none"}
    log, out = io.StringIO(), io.StringIO()  # JAX logs where a callback failed, and prints races
    with (
        logged(log),
        warnings.catch_warnings(record=True) as said,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        warnings.simplefilter("always")
        try:
            answer = with_it.PROBES[name]()
        except BaseException as error:
            text = "".join(traceback.format_exception(error)) + log.getvalue() + out.getvalue()
            what = printed(out.getvalue()) if isinstance(error, SystemExit) else shown(error)
            return {"outcome": "error", "text": what, "line": names_line(with_it.FILES, name, text)}
    if "RACE" in out.getvalue():
        text = " ".join(out.getvalue().split("\n")[:2])
        return {
            "outcome": "warning",
            "text": text[:160],
            "line": names_line(with_it.FILES, name, out.getvalue()),
        }
    for warning in said:
        if type(warning.message).__name__.startswith("NkiWarning"):
            text = str(warning.message)
            line = names_line(with_it.FILES, name, text)
            return {"outcome": "warning", "text": shown(warning.message), "line": line}
    return {"outcome": "answer", "text": answer}


@contextlib.contextmanager
def logged(stream: io.StringIO) -> Iterator[None]:
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def shown(error: BaseException | Warning) -> str:
    """The line of a message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if "Traceback" in lines[0]:  # of a callback: what it raised comes last
        lines = lines[-1:]
    name = type(error).__name__
    first = lines[0] if name in lines[0] else f"{name}: {lines[0]}"
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", re.sub(r"\S*/(\w+\.py)", r"\1", first))[:160]


def printed(report: str) -> str:
    """The line of a printed report that says what is wrong."""
    lines = [re.sub(r"\x1b\[[0-9;]*m|[^ -~]", "", line).strip(" -=*|") for line in report.splitlines()]
    return next(
        (line for line in lines if re.search("illegal|bound|race|error", line, re.IGNORECASE)), "exit"
    )[:160]


def names_line(files: tuple[str, ...], name: str, text: str) -> bool:
    """Whether a text names the line that is marked as the wrong one."""
    for file in files:
        for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
            if line.endswith(f"# wrong: {name}"):
                place = rf"{re.escape(Path(file).name)}(:|\", line ){number}\b"
                return bool(re.search(place, text))
    return False


# ---- asking --------------------------------------------------------------------------------------


def ask(python: str, *words: str) -> list[dict]:
    """The lines that a process printed, and one more for how it ended if it did not end well."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    command = [python, "-m", "benchmarks.compare", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"compare": ')]
    if done.returncode < 0:
        found.append({"outcome": "crash", "text": f"the process died of signal {-done.returncode}"})
    elif done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return found


def ask_system(python: str, system: str) -> dict:
    """Its answers, all in one process; those after a probe that ended the process, in another."""
    found: dict[str, dict] = {}
    names = ["times", *page.QUESTIONS]
    while left := [name for name in names if name not in found]:
        found.update(zip(left, ask(python, "--ask", system, *left), strict=False))
    return {**found.pop("times"), "python": platform.python_version(), "probes": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "systems", nargs="*", metavar="system", help=f"those to ask: {', '.join(page.SYSTEMS)}"
    )
    parser.add_argument("--viz-python", help="the interpreter with triton-viz and its Triton")
    parser.add_argument("--ask", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        system, *names = options.ask
        for name in names:
            answer = times(system) if name == "times" else probe(system, name)
            print(json.dumps({"compare": 1, **answer}), flush=True)
        return 0
    ANSWERS.mkdir(parents=True, exist_ok=True)
    for system in options.systems or page.SYSTEMS:
        python = options.viz_python if "viz" in system else sys.executable
        if python:
            print(f"asking {system}", file=sys.stderr)
            answers = json.dumps(ask_system(python, system), indent=1)
            (ANSWERS / f"{system}.json").write_text(answers + "\n", encoding="utf-8")
    PAGE.write_text(page.written(answered()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def answered() -> dict[str, dict]:
    """What every system said last."""
    files = {system: ANSWERS / f"{system}.json" for system in page.SYSTEMS}
    return {s: json.loads(f.read_text(encoding="utf-8")) for s, f in files.items() if f.exists()}


if __name__ == "__main__":
    sys.exit(main())
