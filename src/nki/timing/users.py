"""Who waits for which moment of each operation."""

from __future__ import annotations

from collections.abc import Sequence

from ..machine.machine import Machine
from .operation import Operation
from .timing_rules import BEGUN, FREE, release_table


class Users:
    """The operations that wait for each one, in program order, by the moment they wait for."""

    def __init__(self, machine: Machine, operations: Sequence[Operation]):
        self.operations = operations
        self.kinds = [op.kind for op in operations]
        self.of_result: list[Sequence[int]] = [()] * len(operations)  # they wait until it is done
        self.of_begin: dict[int, list[int]] = {}
        self.of_engine: dict[int, list[int]] = {}  # they wait until its engine is free
        rules = release_table(machine)
        for op in operations:
            for other, why in op.waits.items():
                self._add(op.index, other, rules[self.kinds[other]][op.kind][why].moment)

    def _add(self, user: int, other: int, moment: int) -> None:
        if moment == BEGUN:
            self.of_begin.setdefault(other, []).append(user)
        elif moment == FREE:
            self.of_engine.setdefault(other, []).append(user)
        elif self.of_result[other]:
            self.of_result[other].append(user)  # type: ignore[attr-defined]
        else:
            self.of_result[other] = [user]

    def priorities(self) -> list[int]:
        """Return priorities: program order; a transfer has that of the first one that waits for it."""
        found = list(range(len(self.operations)))
        for op in reversed(self.operations):
            if op.is_dma:
                users = (*self.of_result[op.index], *self.of_begin.get(op.index, ()))
                if users:
                    found[op.index] = min([found[user] for user in users])
        return found
