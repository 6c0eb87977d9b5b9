"""Findings in machine-readable forms: JSON, SARIF 2.1.0, annotations of GitHub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..version import __version__
from .findings import CheckFinding, relative
from .pages import PAGES

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def as_json(found: Sequence[CheckFinding], known: int, kernels: Sequence[str]) -> dict[str, Any]:
    """Return what `nki check --json` prints."""
    errors = sum(one.level == "error" for one in found)
    return {
        "kernels": list(kernels),
        "errors": errors,
        "warnings": len(found) - errors,
        "in_baseline": known,
        "findings": [{**one.to_dict(), "file": relative(one.file)} for one in found],
    }


def sarif(found: Sequence[CheckFinding]) -> dict[str, Any]:
    """Return a SARIF log of one run (OASIS, Static Analysis Results Interchange Format 2.1.0)."""
    kinds = sorted({one.kind for one in found})
    driver = {"name": "nki check", "version": __version__, "rules": [_rule(kind) for kind in kinds]}
    results = [_result(one, kinds.index(one.kind)) for one in found]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(kind: str) -> dict[str, Any]:
    meaning = PAGES[kind].meaning if kind in PAGES else kind
    return {"id": kind, "shortDescription": {"text": meaning}, "help": {"text": f"nki explain {kind}"}}


def _result(one: CheckFinding, rule: int) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(1, one.line), "startColumn": max(1, one.column)}
    if one.text:
        region["snippet"] = {"text": one.text}
    location = {"artifactLocation": {"uri": _uri(one.file)}, "region": region}
    return {
        "ruleId": one.kind,
        "ruleIndex": rule,
        "level": one.level,
        "message": {"text": full_text(one)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"lineText/v1": one.fingerprint},
        "properties": {"kernel": one.kernel, "targets": list(one.targets)},
    }


def _uri(file: str) -> str:
    path = relative(file)
    return Path(path).as_uri() if Path(path).is_absolute() else quote(path)


def full_text(one: CheckFinding) -> str:
    """Return message, platforms, notes and help as one text."""
    on = f" (on {', '.join(one.targets)})" if one.targets else ""
    return "\n".join([one.message + on, *one.notes, *([f"help: {one.help}"] if one.help else [])])


def annotation(one: CheckFinding) -> str:
    """Return a workflow command of GitHub, which shows the finding at its line of a pull request."""
    place = {
        "file": relative(one.file),
        "line": str(one.line),
        "col": str(one.column),
        "title": f"nki {one.kind}",
    }
    properties = ",".join(f"{key}={_property(value)}" for key, value in place.items())
    return f"::{one.level} {properties}::{_data(full_text(one))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
