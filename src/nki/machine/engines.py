"""The engines of a NeuronCore."""

from __future__ import annotations

from enum import Enum


class FastEnum(Enum):
    """An enum of nki.isa."""

    __hash__ = object.__hash__  # members are singletons; the inherited hash is a Python call

    def __repr__(self) -> str:
        return f"nisa.{self.__class__.__name__}.{self.name}"


class engine(FastEnum):
    """A NeuronCore engine."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


TENSOR, VECTOR, SCALAR = engine.tensor, engine.vector, engine.scalar
GPSIMD, SYNC, DMA, UNKNOWN = engine.gpsimd, engine.sync, engine.dma, engine.unknown
