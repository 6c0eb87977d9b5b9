"""Plans in a folder, for other processes, if somebody asks for it.

A file is data, under the content of its program. Its name depends on the source of this package, so that no
other version reads it. It is written beside and then put in its place: whoever reads sees all of it or none,
and processes that make the same plan write the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...errors import emit_warning, user_site
from ...version import __version__
from . import writing
from .steps import Plan

FORMAT = "open-nki plan 1"
DAMAGE = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


def read(key: bytes, folder: str) -> Plan | None:
    """The plan that a folder has under a key. A damaged file is told of, and counts as none."""
    file = _file(key, folder)
    try:
        head, _, content = file.read_text(encoding="utf-8").partition("\n")
        if head != _head(content):
            raise ValueError("its content is not what was written")
        return writing.parsed(content)
    except FileNotFoundError:
        return None
    except DAMAGE as problem:
        _tell(f"the plan in {file} cannot be used: {problem}", "it is made and written again")
        _remove(file)
        return None


def has(key: bytes, folder: str) -> bool:
    """Whether there is a file under a key."""
    return _file(key, folder).exists()


def write(key: bytes, plan: Plan, folder: str) -> None:
    """Put a plan into a folder, whole or not at all."""
    file = _file(key, folder)
    content = writing.text(plan)
    new = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(f"{_head(content)}\n{content}")
        os.replace(new, file)
    except OSError as problem:
        if new is not None:
            _remove(Path(new))
        _tell(
            f"the plan cannot be written to {file.parent}: {problem}",
            "OPEN_NKI_PLAN_CACHE names a folder that can be written to",
        )


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


def _head(content: str) -> str:
    return f"{FORMAT} {hashlib.sha256(content.encode()).hexdigest()}"


def _file(key: bytes, folder: str) -> Path:
    name = hashlib.sha256(_software().encode() + key).hexdigest()
    return Path(folder).expanduser() / f"{name}.plan"


@cache
def _software() -> str:
    """A digest of all that makes plans: this package, its version, and the format."""
    found = hashlib.sha256(f"{FORMAT} {__version__}\n".encode())
    package = Path(__file__).parents[1]
    for source in sorted(package.rglob("*.py")):
        found.update(source.relative_to(package).as_posix().encode())
        found.update(hashlib.sha256(source.read_bytes()).digest())
    return found.hexdigest()


def _tell(message: str, help: str) -> None:
    emit_warning("plan-cache", message, user_site(3), help=help)


__all__ = ["has", "read", "write"]
