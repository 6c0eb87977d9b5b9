"""Plans that were made before: in memory, and in a folder if somebody asks for it.

Both are kept under the content of the program (`content`), so a kernel whose Python runs at every call is
planned once. A file is data. Its name depends on the source of this package, so that no other version reads
it. It is written beside and then put in its place: whoever reads sees all of it or none, and processes that
make the same plan write the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path

from ..errors import emit_warning, user_site
from ..version import __version__
from . import writing
from .steps import CorePlan, Plan, Product

FORMAT = "open-nki plan 1"
PLANS = 256
WEIGHT = 100_000  # operands of all plans; about 400 bytes each
DAMAGE = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class PlanCache:
    """Plans by key, the least recently used forgotten first. Safe under threads and after a fork."""

    def __init__(self, plans: int = PLANS, weight: int = WEIGHT):
        self.plans, self.limit = plans, weight
        self.kept: OrderedDict[bytes, tuple[Plan, int]] = OrderedDict()
        self.weight = 0
        self.hits = self.misses = 0
        self.lock = threading.Lock()

    def find(self, key: bytes) -> Plan | None:
        with self.lock:
            found = self.kept.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self.kept.move_to_end(key)
            return found[0]

    def keep(self, key: bytes, plan: Plan) -> None:
        weight = sum(map(_weight, plan.cores))
        with self.lock:
            if weight > self.limit or key in self.kept:
                return
            self.kept[key] = plan, weight
            self.weight += weight
            while self.weight > self.limit or len(self.kept) > self.plans:
                self.weight -= self.kept.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget every plan."""
        with self.lock:
            self.kept.clear()
            self.weight = 0


def _weight(core: CorePlan) -> int:
    """The operands that a core's part of a plan names."""
    found = 0
    for step in core.steps:
        if isinstance(step, Product):
            found += 4 + len(step.left.tiles) + len(step.right.tiles) + len(step.copies)
        else:
            found += 1 + len(step.reads) + len(step.outs) + 2 * len(step.parts)
    return found


plans = PlanCache()


# ---- files ---------------------------------------------------------------------------------------


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
        return None


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
            Path(new).unlink(missing_ok=True)
        _tell(
            f"the plan cannot be written to {file.parent}: {problem}",
            "OPEN_NKI_PLAN_CACHE names a folder that can be written to",
        )


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


def _after_fork() -> None:
    plans.lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


__all__ = ["PlanCache", "plans", "read", "write"]
