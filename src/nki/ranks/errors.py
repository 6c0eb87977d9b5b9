"""Errors of ranks: which one it was, and how they travel between processes."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from ..errors import NkiError, SourceLine, error_class


def raised_on(problem: Exception, rank: int) -> Exception:
    """Return the same error, with the rank on which it was raised."""
    if isinstance(problem, NkiError):
        if problem.rank is None:
            problem.rank = rank
    elif hasattr(problem, "add_note"):
        problem.add_note(f"raised on rank {rank}")
    return problem


def packed(problem: BaseException) -> dict[str, Any]:
    """An error as data for another process."""
    if isinstance(problem, NkiError):
        site = problem.site
        line = None if site is None else (site.filename, site.lineno, site.text, site.function)
        return {
            "kind": problem.key,
            "message": problem.message,
            "notes": list(problem.notes),
            "help": problem.help,
            "line": line,
            "rank": problem.rank,
        }
    shown = "".join(traceback.format_exception(problem))
    try:
        return {"pickled": pickle.dumps(problem), "shown": shown}
    except Exception:
        return {"shown": shown}


def unpacked(data: dict[str, Any], rank: int) -> Exception:
    """The error of another process."""
    if "kind" in data:
        site: Any = SourceLine(*data["line"]) if data["line"] else None
        found = error_class(data["kind"])(data["message"], notes=data["notes"], help=data["help"], site=site)
        found.rank = rank if data["rank"] is None else data["rank"]
        return found
    try:
        problem = pickle.loads(data["pickled"])
        assert isinstance(problem, Exception)
    except Exception:
        problem = RuntimeError(data["shown"].strip().splitlines()[-1])
    if hasattr(problem, "add_note"):
        problem.add_note(f"raised on rank {rank}:\n{data['shown']}")
    return problem


def first_of(problems: dict[int, Exception]) -> Exception:
    """The error of the lowest rank, with those of the others as notes."""
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
