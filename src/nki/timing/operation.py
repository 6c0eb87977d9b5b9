"""An operation: one thing that an engine or a DMA queue does, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Site
from ..ir.dependences import Waits
from ..ir.instruction import Instruction
from ..ir.storage import Storage

TRANSFERS = ("dma", "spill", "reload")  # kinds of operations that DMA engines do
SPACE, ORDER = "space", "order"  # why an operation waits, beside RAW, WAR and WAW


class Operation:
    """One thing an engine or a DMA queue does."""

    __slots__ = (
        "index", "position", "instruction", "kind", "is_dma", "tile", "reloads", "core", "_waits_of"
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        instruction: Instruction | None,
        kind: str,
        core: int,
        position: int,
        waits_of: Callable[[int], Waits],
    ):
        self.index = index
        self.position = position  # in the program; -1 for spills
        self.instruction = instruction  # None for spills
        self.kind = kind  # the engine's name, "dma", "spill" or "reload"
        self.is_dma = kind in TRANSFERS
        self.tile: Storage | None = None  # spills: what is moved
        self.reloads: Instruction | None = None  # reloads: the load that is repeated
        self.core = core
        self._waits_of = waits_of

    @property
    def site(self) -> Site | None:
        """The user's line; None for spills."""
        return self.instruction.site if self.instruction is not None else None

    @property
    def waits(self) -> Waits:
        """The indices of the operations that it waits for, each with the reason; made anew each time."""
        return self._waits_of(self.index)
