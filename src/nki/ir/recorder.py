"""The recorder: a sink that turns the instructions of a core into the items of a Program."""

from __future__ import annotations

import sys
from collections.abc import Callable

from .instruction import Instruction
from .items import Item, Loop
from .storage import Storage
from .view import View


class Recorder:
    """Records the instructions of a core in order, without keeping its tiles alive.

    `admit` is called with each storage before its first use. After `limit` instructions `full` is called.
    """

    def __init__(
        self,
        admit: Callable[[Storage], None],
        limit: int | None = None,
        full: Callable[[], None] | None = None,
    ):
        self.admit = admit
        self.limit = sys.maxsize if limit is None or full is None else limit
        self.full = full or (lambda: None)
        self.count = 0
        self.items: list[Item] = []
        self.open: list[list[Item]] = []  # the items around each open loop
        self.known: set[Storage] = set()  # storages that were admitted
        self.used: dict[Storage, None] = {}  # the same in order of first use

    def record(self, instruction: Instruction) -> None:
        """Add an instruction, whose views claim no bytes (`Instruction.bare_key`). A sink."""
        known = self.known
        for name in instruction.access.views:
            view = getattr(instruction, name)
            if view.storage not in known or view.indirection is not None:
                self._use(view)
        self.items.append(instruction)
        self.count += 1
        if self.count > self.limit:
            self.full()

    def _use(self, view: View) -> None:
        storage = view.storage
        if storage not in self.known:
            self.admit(storage)
            self.known.add(storage)
            self.used[storage] = None
        if view.indirection is not None:
            for part in (view.indirection.base, view.indirection.index):
                if isinstance(part, View):
                    self._use(part)

    # ---- dynamic loops ---------------------------------------------------------------------------

    def begin_loop(self) -> None:
        """Record what follows as the body of a loop."""
        self.open.append(self.items)
        self.items = []

    def end_loop(self, loop: Loop | None) -> None:
        """Add the loop whose body is complete; None: drop the body."""
        self.items = self.open.pop()
        if loop is not None:
            self.items.append(loop)
