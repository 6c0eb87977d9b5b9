"""The tables of `releases.md`: what each public release of AWS's NKI lacks, refuses or does differently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..options import RELEASES

PREFIX = "aws-"
NAMES = tuple(PREFIX + release for release in RELEASES)
TABLE = Path(__file__).with_name("releases.md")
ERRORS = ("missing", "removed", "extension", "refused")
WARNINGS = ("differs", "defect", "simulator", "deprecated", "undocumented")
SILENT = ("same", "unseen")
SECTIONS = (*reversed(RELEASES), "Open NKI")


@dataclass(frozen=True)
class ReleaseChange:
    """One row. `section` is the release that made the change; `subjects` is empty if no check can see it."""

    section: str
    subjects: tuple[str, ...]
    releases: str
    how: str
    what: str
    instead: str
    source: str

    @property
    def kind(self) -> str:
        return f"release-{self.how}"

    @property
    def level(self) -> str:
        return "error" if self.how in ERRORS else "warning"

    def holds_in(self, release: str) -> bool:
        """Return whether the row is true of a release."""
        if self.releases == "all":
            return True
        sign, named = re.fullmatch(r"(<|>=|)(\d\.\d)", self.releases).groups()  # type: ignore[union-attr]
        one, other = RELEASES.index(release), RELEASES.index(named)
        return one < other if sign == "<" else one >= other if sign else one == other

    def message(self, subject: str, release: str) -> str:
        """Return the message of a finding about one of the subjects."""
        shown = _shown(subject)
        if self.how == "missing":
            return f"{shown} is not in NKI {release}; {self.section} has it"
        if self.how == "removed":
            return f"{shown} was removed: NKI {release} does not have it"
        if self.how == "undocumented":
            return f"{shown} is in no public documentation of NKI {release}"
        if self.how == "extension":
            return f"{shown} is Open NKI's own: NKI {release} does not have it"
        name = re.match(r"[\w.]+", subject)
        return f"{name[0]}: {self.what} (NKI {release})" if name else f"{self.what} (NKI {release})"

    @property
    def help(self) -> str:
        return f"use {self.instead}" if self.instead.startswith("`") else self.instead

    @property
    def notes(self) -> tuple[str, ...]:
        told = self.what if self.how in ("missing", "removed", "extension") else ""
        return (*([told] if told else []), f"source: {self.source}")


def _shown(subject: str) -> str:
    """`argument priority of nki.isa.dma_copy` for `nki.isa.dma_copy(priority)`."""
    match = re.fullmatch(r"([\w.]+)\((\w+).*\)", subject)
    return f"argument {match[2]} of {match[1]}" if match else subject.strip("[]")


class ErrorCode(NamedTuple):
    """What AWS's compiler prints where a finding of this kind has these words in its message."""

    kind: str
    words: str
    code: str
    source: str


def _tables() -> dict[str, list[list[str]]]:
    """The rows of each section of the file."""
    _, *parts = re.split(r"^## (.+)\n", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return {title: list(_rows(text)) for title, text in sections}


def _rows(text: str) -> Iterator[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


@cache
def changes() -> tuple[ReleaseChange, ...]:
    """Return every row, the newest release first."""
    tables = _tables()
    return tuple(
        ReleaseChange(section, tuple(re.findall(r"`(.+?)`", subject)), *rest)
        for section in SECTIONS
        for subject, *rest in tables[section]
    )


@cache
def error_codes() -> tuple[ErrorCode, ...]:
    return tuple(ErrorCode(*row) for row in _tables()["Error codes"])


@cache
def by_subject(release: str) -> dict[str, list[ReleaseChange]]:
    """Return the rows that a check of one release can report, by subject."""
    found: dict[str, list[ReleaseChange]] = {}
    for change in changes():
        if change.how not in SILENT and change.holds_in(release):
            for subject in change.subjects:
                found.setdefault(subject, []).append(change)
    return found
