"""`nki doctor`: what is wrong with the installation, and the commands that repair it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TextIO

from .installation import OPEN_NKI, Package, Share, packages

PAGE = "docs/with-aws-packages.md"
AWS = ("nki", "nki-library", "neuronx-cc")
AWS_INDEX = "--extra-index-url=https://pip.repos.neuron.amazonaws.com"
SHOWN = 3  # names of files in a line


@dataclass(frozen=True)
class Problem:
    """A package that does not work as a distribution installed it."""

    kind: str  # mixed, damaged or hidden
    package: str
    text: str
    distributions: tuple[Share, ...]


@dataclass(frozen=True)
class Repair:
    """Commands that leave one of the distributions installed and whole."""

    keeps: str
    commands: list[list[str]]


def problems(found: Sequence[Package]) -> list[Problem]:
    """Return what is wrong with these packages."""
    return [problem for package in found for problem in _problems(package)]


def _problems(package: Package) -> Iterator[Problem]:
    for folder in {share.folder: None for share in package.shares}:
        shares = tuple(share for share in package.shares if share.folder == folder)
        if len(shares) > 1:
            names = " and ".join(map(str, shares))
            states = "; ".join(f"{share}: {_state(share)}" for share in shares)
            text = f"{names} have installed their files into one folder, {folder / package.name} ({states})"
            yield Problem("mixed", package.name, text, shares)
        elif shares[0].missing or shares[0].changed:
            text = f"{shares[0]} in {folder} is not as it was installed: {_state(shares[0])}"
            yield Problem("damaged", package.name, text, shares)
    ours = tuple(share for share in package.hidden if share.distribution == OPEN_NKI)
    others = tuple(share for share in package.imported if share.distribution != OPEN_NKI)
    if ours and others:
        text = f"Python imports that of {others[0]} in {others[0].folder}, not that in {ours[0].folder}"
        yield Problem("hidden", package.name, text, ours + others)


def _state(share: Share) -> str:
    """Describe how much of a share is there."""
    parts = [f"{share.files} files"]
    for what, paths in (("missing", share.missing), ("overwritten", share.changed)):
        if paths:
            more = ", ..." if len(paths) > SHOWN else ""
            parts.append(f"{len(paths)} {what} ({', '.join(paths[:SHOWN])}{more})")
    return ", ".join(parts)


def repairs(found: Sequence[Problem]) -> list[Repair]:
    """Return one repair for each distribution that can stay."""
    shares = {share.distribution: share for problem in found for share in problem.distributions}
    has_pip = find_spec("pip") is not None
    pip = [sys.executable, "-m", "pip"] if has_pip else ["pip", "--python", sys.executable]
    remove = [*pip, "uninstall", "-y", *sorted(shares)]
    ours = [share for name, share in shares.items() if name == OPEN_NKI]
    others = [share for name, share in shares.items() if name != OPEN_NKI]
    made = []
    for keeps, kept in (("Open NKI", ours), (" and ".join(map(str, others)), others)):
        if kept:
            made.append(Repair(keeps, [remove, [*pip, "install", *_requirements(kept)]]))
    return made


def _requirements(shares: Sequence[Share]) -> list[str]:
    """Return what pip installs these distributions from."""
    needed = []
    for share in shares:
        if share.source is not None:
            needed += ["-e", share.source] if share.editable else [share.source]
        elif share.distribution == OPEN_NKI:
            needed.append("PATH_OF_OPEN_NKI")  # a checkout or a wheel: no index has it
        else:
            needed.append(f"{share.distribution}=={share.version}")
    from_index = any(share.source is None and share.distribution in AWS for share in shares)
    return [*needed, AWS_INDEX] if from_index else needed


# ---- texts ---------------------------------------------------------------------------------------


def providers(found: Sequence[Package]) -> dict[str, str]:
    """Return who provides each package, in words."""
    return {package.name: _provider(package) for package in found}


def _provider(package: Package) -> str:
    if package.found is None:
        return f"cannot be imported; installed by {', '.join(map(str, package.shares))}"
    by = " and ".join(map(str, package.imported)) or "no distribution"
    how = " (editable)" if any(share.editable for share in package.imported) else ""
    other = {str(share): None for share in package.hidden}
    also = f"; also installed, not imported: {', '.join(other)}" if other else ""
    return f"{by}{how}, in {package.found}{also}"


def explanation(found: Sequence[Problem]) -> str:
    """Return the problems and the commands that repair them; empty if there are none."""
    if not found:
        return ""
    lines = [f"{problem.kind}: {problem.package}: {problem.text}" for problem in found]
    for repair in repairs(found):
        lines += ["", f"to keep {repair.keeps} in this environment:"]
        lines += [f"  {shlex.join(command)}" for command in repair.commands]
    lines += ["", f"To have both, use two environments: {PAGE}"]
    return "\n".join(lines)


def mixed(names: Sequence[str]) -> str:
    """Return the explanation of mixed packages among these, for an ImportError; empty if there are none."""
    return explanation([p for p in problems(packages()) if p.kind == "mixed" and p.package in names])


def explain(stream: TextIO) -> bool:
    """Print what is wrong with the installation; return whether something is."""
    text = explanation(problems(packages()))
    if text:
        print(f"Open NKI is not installed as a whole\n\n{text}", file=stream)
    return bool(text)


# ---- the command ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nki doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def main(arguments: Sequence[str]) -> int:
    """Run `nki doctor` without importing nki; returns the exit code."""
    parser = argparse.ArgumentParser(prog="nki doctor", description=TEXT)
    add_arguments(parser)
    return run(parser.parse_args(arguments))


TEXT = """\
Say which distribution provides nki, nkilib, neuronxcc and trnblas in this environment.
Exit code 1: files of two distributions are mixed, files are missing or overwritten, or
another distribution's package hides that of Open NKI; with the commands that repair it."""


def run(options: argparse.Namespace) -> int:
    """Print who provides what, what is wrong and how to repair it; 1 if something is wrong."""
    found = packages()
    wrong = problems(found)
    if options.json:
        print(json.dumps(facts(found, wrong), indent=2))
    else:
        for name, text in providers(found).items():
            print(f"{name}: {text}")
        print(f"\n{explanation(wrong)}" if wrong else "nothing is wrong")
    return 1 if wrong else 0


def facts(found: Sequence[Package], wrong: Sequence[Problem]) -> dict[str, Any]:
    """Return the report as data."""
    return {
        "packages": providers(found),
        "problems": [{"kind": p.kind, "package": p.package, "text": p.text} for p in wrong],
        "repairs": [{"keeps": r.keeps, "commands": r.commands} for r in repairs(wrong)],
    }
