"""`make test-versions`: the suite with the oldest and the newest of everything that pyproject.toml declares.

Each environment has its own folder (below build/versions, or --at), made with uv, which takes the Pythons it
finds here and downloads others where it can. PyTorch comes without CUDA where its own registry is reached.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
EXTRAS = "test,torch,jax"
SHOWN = ("numpy", "torch", "jax", "ml_dtypes", "threadpoolctl", "rich", "scipy")
COUNTED = ("passed", "failed", "errors", "skipped", "xfailed", "xpassed")


def lowest(package: str) -> str:
    """`package==` the lowest version that pyproject.toml allows."""
    found = re.search(rf'"{package}>=([\d.]+)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found, f"pyproject.toml has no minimum for {package}"
    return f"{package}=={found[1]}"


@dataclass(frozen=True)
class Environment:
    """A Python and what differs from the newest packages for it."""

    name: str
    python: str
    pins: tuple[str, ...] = ()
    is_oldest: bool = False  # everything pyproject.toml names at its minimum

    @property
    def what(self) -> str:
        return "the lowest of everything" if self.is_oldest else ", ".join((*self.pins, "the newest else"))


ENVIRONMENTS = (
    Environment("oldest", "3.10", is_oldest=True),  # jax needs 3.11
    Environment("middle", "3.12", ("torch==2.9.*", lowest("jax"))),
    Environment("newest", "3.13"),
)


class Failed(Exception):
    """A step did not work; the last line that it printed."""


class NoPython(Exception):
    """There is no such Python, neither here nor to be downloaded."""


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Failed(said[-1] if said else f"{command[0]} failed")
    return done.stdout


def uv(*words: object) -> str:
    return run(sys.executable, "-m", "uv", *words)


# ---- making --------------------------------------------------------------------------------------


def interpreter(version: str) -> str:
    """A Python of this version: on the path, among pyenv's, or whatever uv finds or downloads."""
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (f"python{version}", *managed):
        try:
            if run(candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == version:
                return str(candidate)
        except (OSError, Failed):
            continue  # such as pyenv's shims of versions that are not active
    return version


def make(environment: Environment, folder: Path) -> Path:
    """The environment's Python, with open-nki from this working tree."""
    python = folder / "bin" / "python"
    if not python.exists():
        try:
            uv("venv", "--quiet", "--python", interpreter(environment.python), folder)
        except Failed:
            raise NoPython(f"skipped: no Python {environment.python} here") from None
    what = ["--editable", f".[{EXTRAS}]", *environment.pins]
    resolution = "lowest-direct" if environment.is_oldest else "highest"
    install = ("pip", "install", "--python", python, "--resolution", resolution, *what)
    try:
        uv(*install, "--torch-backend", "cpu")
    except Failed:
        uv(*install)
    return python


# ---- running -------------------------------------------------------------------------------------


def versions(python: Path) -> dict[str, str]:
    code = "import sys, importlib.metadata as m\nprint('python', '%d.%d.%d' % sys.version_info[:3])\n"
    code += "for d in m.distributions(): print(d.name.replace('-', '_').lower(), d.version)"
    return dict(line.split() for line in run(python, "-c", code).splitlines())


def test(python: Path, log: Path, arguments: list[str]) -> dict[str, str]:
    """Run pytest; what its last line counts."""
    command = [python, "-m", "pytest", "-m", "not slow", *arguments]
    plain = os.environ | {"COLUMNS": "120", "NO_COLOR": "1"}
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=plain).returncode
    last = log.read_text(encoding="utf-8").splitlines()[-1:]
    found = {what.rstrip("s"): number for number, what in re.findall(r"(\d+) (\w+)", " ".join(last))}
    counts = {what: found[what.rstrip("s")] for what in COUNTED if what.rstrip("s") in found}
    return counts if code in (0, 1) and counts else {"errors": f"pytest ended with {code}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other arguments go to pytest.")
    names = [environment.name for environment in ENVIRONMENTS]
    parser.add_argument("--only", action="append", choices=names, help="this environment; may be repeated")
    parser.add_argument("--at", type=Path, default=ROOT / "build" / "versions", help="where they are made")
    options, arguments = parser.parse_known_args()
    at = options.at.resolve()
    at.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("environment", "Python", "with", "tests", "minutes", title="The suite on every version")
    bad = []
    for environment in ENVIRONMENTS:
        if options.only and environment.name not in options.only:
            continue
        row = [environment.name, environment.python]
        log, begun = at / f"{environment.name}.log", time.monotonic()
        try:
            console.print(f"{environment.name}: Python {environment.python}, {environment.what}")
            python = make(environment, at / environment.name)
            have = versions(python)
            console.print(f"  made; pytest writes to {log}")
            counts = test(python, log, arguments)
        except (Failed, NoPython) as problem:
            table.add_row(*row, environment.what, str(problem), "")
            bad += [environment.name] * isinstance(problem, Failed)
            continue
        if "failed" in counts or "errors" in counts:
            bad.append(environment.name)
        row[1] = have["python"]
        shown = ", ".join(f"{name} {have[name]}" for name in SHOWN if name in have)
        told = ", ".join(f"{number} {what}" for what, number in counts.items())
        table.add_row(*row, shown, told, f"{(time.monotonic() - begun) / 60:.0f}")
    console.print(table)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
