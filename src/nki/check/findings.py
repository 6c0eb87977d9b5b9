"""Found: one thing that a check found, whoever found it; what a line or a baseline says to leave out."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import NkiError, error
from ..ir.program import Diagnostic
from .python import Finding

MILD = frozenset(
    ["legacy", "deprecated", "dtype-ignored", "loop-trips", "weak-scalar", "broadcast", "priority-ignored"]
    + ["untested-on-hardware", "matmul-transpose", "lnc-config", "device-copy", "int-precision"]
)  # compilers and hardware take these, or nobody can know: warnings


@dataclass(frozen=True)
class Found:
    """One finding. `line` and `column` count from 1; `targets` are the platforms on which it holds."""

    kind: str
    level: str  # "error" or "warning"
    message: str
    file: str
    line: int
    column: int = 1
    text: str = ""  # of the line
    notes: tuple[str, ...] = ()
    help: str = ""
    kernel: str = ""
    targets: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, int, int, str, str]:
        return self.file, self.line, self.column, self.kind, self.message

    @property
    def fingerprint(self) -> str:
        """The same after lines were moved about in the file."""
        return "\t".join([relative(self.file), self.kind, self.text.strip()])

    def __str__(self) -> str:
        name = "NkiError" if self.level == "error" else "NkiWarning"
        on = f" (on {', '.join(self.targets)})" if self.targets else ""
        source = self.text.strip()
        lines = [f"{name}[{self.kind}]: {self.message}{on}", f"  --> {self.file}:{self.line}"]
        if source:
            lines.append(f"   |     {source}")
        if source and self.column > 1:
            before = self.text[: self.column - 1].lstrip()
            lines.append("   |     " + "".join("\t" if c == "\t" else " " for c in before) + "^")
        lines += [f"  = {note}" for note in self.notes]
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "notes": list(self.notes), "targets": list(self.targets)}


def of_lint(finding: Finding, kernel: str) -> Found:
    """What the supported-Python lint found."""
    level = "error" if finding.level == "E" else "warning"
    place = (finding.filename, finding.line, finding.column, finding.text)
    return Found(finding.code, level, finding.message, *place, help=finding.help, kernel=kernel)


def of_diagnostic(said: Diagnostic, kernel: str, at: tuple[str, int], target: str) -> Found:
    """What a traced program says; `at` is the line of the kernel, for what has none of its own."""
    file, line = (said.site.filename, said.site.lineno) if said.site is not None else at
    level = "warning" if said.kind in MILD else "error"
    text = linecache.getline(file, line).rstrip("\n")
    notes = tuple(said.notes)
    return Found(
        said.kind, level, said.message, file, line, 1, text, notes, said.help or "", kernel, (target,)
    )


def of_error(problem: NkiError, kernel: str, at: tuple[str, int], target: str) -> Found:
    """An error that ended the trace."""
    said = Diagnostic(problem.kind, problem.message, problem.notes, problem.help, problem.site)
    return replace(of_diagnostic(said, kernel, at, target), level="error")


def merged(found: Iterable[Found]) -> list[Found]:
    """Each once, with all the platforms on which it was found, in the order of files and lines."""
    by_place: dict[tuple, Found] = {}
    for one in found:
        known = by_place.get(one.place)
        targets = tuple(dict.fromkeys([*(known.targets if known else ()), *one.targets]))
        by_place[one.place] = replace(known or one, targets=targets)
    return [by_place[place] for place in sorted(by_place)]


# ---- what is left out ----------------------------------------------------------------------------

_IGNORE = re.compile(r"#\s*nki:\s*ignore(?:\[([\w\s,-]*)\])?")


def ignored(found: Found) -> bool:
    """The line says `# nki: ignore[kind, other]`, or `# nki: ignore` for all kinds."""
    match = _IGNORE.search(found.text)
    if match is None:
        return False
    kinds = match.group(1)
    return kinds is None or found.kind in {kind.strip() for kind in kinds.split(",")}


FORMAT = "open-nki baseline 1"


class Baseline:
    """Findings that were there when it was written: they are counted, not reported."""

    def __init__(self, known: Iterable[str] = ()):
        self.known = Counter(known)

    @staticmethod
    def load(path: str | os.PathLike) -> Baseline:
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            known = content["findings"]
            if content["format"] != FORMAT or not all(isinstance(entry, str) for entry in known):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise error(
                "baseline-file",
                f"{os.fspath(path)} is no baseline",
                help="write one with nki check ... --baseline FILE --update-baseline",
            ) from None
        return Baseline(known)

    @staticmethod
    def save(path: str | os.PathLike, found: Iterable[Found]) -> None:
        content = {"format": FORMAT, "findings": sorted(one.fingerprint for one in found)}
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def new(self, found: Iterable[Found]) -> list[Found]:
        """Those that were not there; of several equal ones, as many as there are more."""
        left = Counter(self.known)
        kept = []
        for one in found:
            if left[one.fingerprint] > 0:
                left[one.fingerprint] -= 1
            else:
                kept.append(one)
        return kept


def relative(file: str) -> str:
    """As seen from here, with slashes: the same on every machine that checks the same tree."""
    path = Path(file)
    with contextlib.suppress(ValueError):
        path = path.resolve().relative_to(Path.cwd().resolve())
    return path.as_posix()


__all__ = ["Baseline", "Found", "ignored", "merged", "of_diagnostic", "of_error", "of_lint", "relative"]
