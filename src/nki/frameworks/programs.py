"""The programs that compiled code of this process refers to by name."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

from ..errors import error
from ..kernel.staged import Staged
from ..version import __version__

DIGEST_LENGTH = 32


class Programs:
    """Staged calls by a key that equal programs share in every process. As compiled code does, they stay."""

    def __init__(self) -> None:
        self.staged: dict[str, Any] = {}
        self.lock = threading.Lock()

    def add(self, staged: Staged) -> str:
        """The key of a staged call."""
        text = "\n".join([__version__, staged.describe()])
        with self.lock:
            for number in range(len(self.staged) + 1):
                key = hashlib.sha256(f"{text}\n{number}".encode()).hexdigest()[:DIGEST_LENGTH]
                if self.staged.setdefault(key, staged).is_same(staged):
                    return key
        raise AssertionError("one of the keys is free")

    def find(self, key: str) -> Any:
        if key not in self.staged:
            raise error(
                "framework",
                f"the program table of this process has no {key}",
                help="compiled code of another process was loaded: call the kernel once first, "
                "with the same shapes",
            )
        return self.staged[key]


programs = Programs()


def _after_fork() -> None:
    programs.lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
