"""The findings of all checks in one form, and which of them a comment or a baseline suppresses."""

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
from ..files import Form, read_json
from ..ir.program import Diagnostic
from .python import Finding

MILD = frozenset(
    ["legacy", "deprecated", "dtype-ignored", "loop-trips", "weak-scalar", "broadcast", "priority-ignored"]
    + ["untested-on-hardware", "matmul-transpose", "lnc-config", "device-copy", "cache-size", "int-precision"]
    + ["psum-reuse", "device-graph"]
)  # compilers and hardware accept these, or it is unknown: warnings


@dataclass(frozen=True)
class CheckFinding:
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
        """Stays the same when lines move within the file."""
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


def of_lint(finding: Finding, kernel: str) -> CheckFinding:
    """Return a finding of the supported-Python lint."""
    level = "error" if finding.level == "E" else "warning"
    place = (finding.filename, finding.line, finding.column, finding.text)
    return CheckFinding(finding.code, level, finding.message, *place, help=finding.help, kernel=kernel)


def of_diagnostic(diagnostic: Diagnostic, kernel: str, at: tuple[str, int], target: str) -> CheckFinding:
    """Return a diagnostic of a traced program; `at` is the line of the kernel, for one without a line."""
    file, line = (diagnostic.site.filename, diagnostic.site.lineno) if diagnostic.site is not None else at
    level = "warning" if diagnostic.kind in MILD else "error"
    text = linecache.getline(file, line).rstrip("\n")
    notes = tuple(diagnostic.notes)
    return CheckFinding(
        diagnostic.kind,
        level,
        diagnostic.message,
        file,
        line,
        1,
        text,
        notes,
        diagnostic.help or "",
        kernel,
        (target,),
    )


def of_error(problem: NkiError, kernel: str, at: tuple[str, int], target: str) -> CheckFinding:
    """Return the error that ended a trace."""
    diagnostic = Diagnostic(problem.kind, problem.message, problem.notes, problem.help, problem.site)
    return replace(of_diagnostic(diagnostic, kernel, at, target), level="error")


def merged(found: Iterable[CheckFinding]) -> list[CheckFinding]:
    """Return each finding once, with all platforms on which it holds, in the order of files and lines."""
    by_place: dict[tuple, CheckFinding] = {}
    for one in found:
        known = by_place.get(one.place)
        targets = tuple(dict.fromkeys([*(known.targets if known else ()), *one.targets]))
        by_place[one.place] = replace(known or one, targets=targets)
    return [by_place[place] for place in sorted(by_place)]


def grouped(found: Iterable[CheckFinding]) -> list[tuple[CheckFinding, list[str]]]:
    """Return the findings that say different things, each with the other places of which it is true."""
    groups: dict[tuple, list[CheckFinding]] = {}
    for one in found:
        groups.setdefault((one.kind, one.level, one.message, one.help, one.targets), []).append(one)
    return [(same[0], [f"{relative(one.file)}:{one.line}" for one in same[1:]]) for same in groups.values()]


# ---- suppression ---------------------------------------------------------------------------------

_IGNORE = re.compile(r"#\s*nki:\s*ignore(?:\[([\w\s,-]*)\])?")


def ignored(found: CheckFinding) -> bool:
    """True when the line has `# nki: ignore[kind, other]`, or `# nki: ignore` for all kinds."""
    match = _IGNORE.search(found.text)
    if match is None:
        return False
    kinds = match.group(1)
    return kinds is None or found.kind in {kind.strip() for kind in kinds.split(",")}


FORMAT = "open-nki baseline 1"


class Baseline:
    """Findings that existed when it was written: they are counted, not reported."""

    def __init__(self, known: Iterable[str] = ()):
        self.known = Counter(known)

    @staticmethod
    def load(path: str | os.PathLike) -> Baseline:
        help = "write one with nki check ... --baseline FILE --update-baseline"
        form: Form = {"format": FORMAT, "findings": list}
        known = read_json(path, form, kind="baseline-file", what="a baseline", help=help)["findings"]
        if not all(isinstance(entry, str) for entry in known):
            raise error("baseline-file", f"{os.fspath(path)} has findings that are no texts", help=help)
        return Baseline(known)

    @staticmethod
    def save(path: str | os.PathLike, found: Iterable[CheckFinding]) -> None:
        content = {"format": FORMAT, "findings": sorted(one.fingerprint for one in found)}
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def new(self, found: Iterable[CheckFinding]) -> list[CheckFinding]:
        """Return the findings that are not in the baseline; of several equal ones, the surplus."""
        left = Counter(self.known)
        new = []
        for one in found:
            if left[one.fingerprint] > 0:
                left[one.fingerprint] -= 1
            else:
                new.append(one)
        return new


def relative(file: str) -> str:
    """Return a path relative to the current directory, with slashes: equal on all machines."""
    path = Path(file)
    with contextlib.suppress(ValueError):
        path = path.resolve().relative_to(Path.cwd().resolve())
    return path.as_posix()


__all__ = [
    "Baseline",
    "CheckFinding",
    "ignored",
    "merged",
    "of_diagnostic",
    "of_error",
    "of_lint",
    "relative",
]
