"""Content that an attacker would write: used by the tests of everything that reads files and messages."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JSON: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"import os; os.abort()",
    "cut off": b'{"format": "open-nki',
    "pickle": b"cos\nsystem\n(S'true'\ntR.",
    "null": b"null",
    "list": b"[1, 2]",
    "number": b"12",
    "text": b'"format"',
    "empty object": b"{}",
    "nested lists": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "closed nested lists": b"[" * 900 + b"]" * 900,
    "deep in a key": b'{"format": ' + b"[" * 200 + b"]" * 200 + b"}",
    "nan": b'{"format": NaN}',
    "infinity": b'{"us": -Infinity}',
    "beyond floats": b'{"us": 1e999}',
    "many digits": b'{"us": ' + b"9" * 5000 + b"}",
    "key twice": b'{"format": "a", "format": "b"}',
    "control characters": rb'{"kernel": "\u001b]0;title\u0007"}',
    "half a surrogate": rb'{"kernel": "\ud800"}',
    "latin-1": b'{"kernel": "\xe9"}',
    "utf-16": '{"format": 1}'.encode("utf-16"),
    "zeros": bytes(1000),
}


def not_files(folder: Path) -> dict[str, Path]:
    """Names of what is no regular file: opening some of these would block, reading others would not end."""
    (folder / "directory").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    return {name: folder / name for name in ("directory", "pipe", "link", "loop")} | {
        "endless": Path("/dev/zero"),
        "terminal": Path("/dev/tty"),
    }


WRONG = (None, True, -1, 0, 1e300, 10**30, "", "<script>", [], {}, [[]], {"a": 1})


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path to every part of plain data."""
    if path:
        yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def mutated(content: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a copy of plain data with up to three parts removed or replaced by something else."""
    chosen, content = random.Random(seed), copy.deepcopy(content)
    for _ in range(chosen.randint(1, 3)):
        *path, last = chosen.choice(list(places(content)) or [("format",)])
        part: Any = content
        for key in path:
            part = part[key]
        if isinstance(part, dict) and chosen.random() < 0.3:
            del part[last]
        else:
            part[last] = copy.deepcopy(chosen.choice(WRONG))
    return content
