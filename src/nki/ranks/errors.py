"""Errors of ranks: which one it was, and how they travel between processes."""

from __future__ import annotations

import re
import traceback
from typing import Any

from ..errors import NkiError, SourceLine, error_class
from .records import Failed, built_in, plain_exception


def raised_on(problem: Exception, rank: int) -> Exception:
    """Return the same error, with the rank on which it was raised."""
    if isinstance(problem, NkiError):
        if problem.rank is None:
            problem.rank = rank
    elif hasattr(problem, "add_note"):
        problem.add_note(f"raised on rank {rank}")
    return problem


def packed(problem: Exception) -> Failed:
    """Return an error as a record for another process."""
    if isinstance(problem, NkiError):
        line = line_of(problem.site)
        rank, key = problem.rank, problem.key
        return Failed(rank, key, "", [problem.message], problem.notes, problem.help, line, "")
    shown = "".join(traceback.format_exception(problem))
    return Failed(None, "", *plain_exception(problem), [], None, None, shown)


def unpacked(failed: Failed, rank: int) -> Exception:
    """Return the error of another process; `rank` is the one that sent it."""
    if not failed.kind:
        problem = built_in(failed.type, failed.args)
        if hasattr(problem, "add_note"):
            problem.add_note(f"raised on rank {rank}:\n{failed.shown}")
        return problem
    if not re.fullmatch(r"[a-z0-9-]{1,40}", failed.kind):
        raise ValueError("no kind of error")
    message, site = " ".join(map(str, failed.args)), source_line(failed.line)
    found = error_class(failed.kind)(message, notes=failed.notes, help=failed.help, site=site)
    found.rank = rank if failed.rank is None else failed.rank
    return found


def line_of(site: Any) -> list[str | int] | None:
    """Return a place in the user's code as plain data."""
    return None if site is None else [site.filename, site.lineno, site.text, site.function]


def source_line(line: Any) -> Any:
    """Return the place that `line_of` described; ValueError if it describes none."""
    if line is None:
        return None
    if not isinstance(line, list) or [type(part) for part in line] != [str, int, str, str]:
        raise ValueError("no line of a file")
    return SourceLine(*line)


def wrong_record(rank: int, problem: object) -> Exception:
    """Return the error for a rank that sent what is no message of a rank."""
    found = error_class("rank-lost")(
        f"it sent what is no message: {problem}", help="use one version of Open NKI on all ranks"
    )
    found.rank = rank
    return found


def first_of(problems: dict[int, Exception]) -> Exception:
    """Return the error of the lowest rank, with those of the others as notes."""
    lowest = min(problems)
    first = problems[lowest]
    for rank in sorted(problems):
        if rank != lowest:
            note = f"rank {rank} also failed: {_headline(problems[rank])}"
            if isinstance(first, NkiError):
                first.notes.append(note)
            elif hasattr(first, "add_note"):
                first.add_note(note)
    return first


def _headline(problem: Exception) -> str:
    text = problem.message if isinstance(problem, NkiError) else str(problem)
    return f"{type(problem).__name__}: {text}"
