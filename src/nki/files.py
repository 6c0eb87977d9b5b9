"""Reads files that someone else may have written: regular files of limited size, and JSON of known types."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from math import isfinite
from typing import Any, BinaryIO, NoReturn

from .errors import error

LARGEST = 256 << 20  # bytes of a file
DEEPEST = 64  # containers inside each other in JSON
# a terminal obeys control characters, and half of a surrogate pair cannot be printed
_UNPRINTABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; OSError for a pipe, a device or a directory, which may block."""
    path = os.fspath(path)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced meanwhile
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def read_bytes(path: str | os.PathLike[str], limit: int = LARGEST) -> bytes:
    """Return the content of a regular file; OSError if it has more bytes than `limit`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit:,} bytes", os.fspath(path))
        return file.read(size)


Form = Mapping[str, type | str]  # the type of each key that an object must have, or its only value


def read_json(path: str | os.PathLike[str], form: Form, *, kind: str, what: str, help: str) -> dict[str, Any]:
    """Return the JSON object of a file; the error, of this kind, explains why the file is not `what`."""
    try:
        return load_json(path, form)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise error(kind, f"{os.fspath(path)} is not {what}: {why}", help=help) from None


def load_json(path: str | os.PathLike[str], form: Form) -> dict[str, Any]:
    """Return the JSON object of a file; OSError or ValueError with the reason if it has not this form."""
    return as_object(parse_json(read_bytes(path)), form)


def as_object(content: object, form: Form) -> dict[str, Any]:
    """Return a value as an object of this form; ValueError if it is none."""
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not an object")
    for name, expected in form.items():
        found = content.get(name)
        if name not in content:
            raise ValueError(f"it has no {name!r}")
        if isinstance(expected, str) and found != expected:
            raise ValueError(f"its {name!r} is {str(found)[:40]!r}, not {expected!r}")
        if isinstance(expected, type) and not isinstance(found, expected):
            raise ValueError(f"its {name!r} is no {expected.__name__}")
    return content


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text; ValueError with the reason if it is not plain data."""
    import json  # `import nki` does without

    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_constant=_finite,
        )
        _check(value, 0)
        return value
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"it is not JSON: {problem}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def printable(text: str) -> str:
    """Return a text without what `parse_json` refuses: control characters are escaped as in Python."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refuse(f"{text[:20]} is no finite number")


def _check(value: object, depth: int) -> None:
    if isinstance(value, str):
        if _UNPRINTABLE.search(value):
            _refuse("a text has control characters")
    elif isinstance(value, (dict, list)):
        if depth == DEEPEST:
            _refuse("it is nested too deeply")
        for key in value if isinstance(value, dict) else ():
            _check(key, depth)
        for child in value.values() if isinstance(value, dict) else value:
            _check(child, depth + 1)


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
