"""The enums of nki.isa (spec/isa.md 1.9), which `nki.isa.constants` has too."""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

from ..errors import error
from ..ir.context import warn
from ..machine.engines import (  # noqa: F401  public names of nki.isa
    DMA,
    GPSIMD,
    SCALAR,
    SYNC,
    TENSOR,
    UNKNOWN,
    VECTOR,
    FastEnum,
    engine,
)


class reduce_cmd(FastEnum):
    """What an instruction does with its accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


IDLE, REDUCE = reduce_cmd.idle, reduce_cmd.reduce
RESET_REDUCE, LOAD_REDUCE = reduce_cmd.reset_reduce, reduce_cmd.load_reduce


class dge_mode(FastEnum):
    """How DMA descriptors are generated."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(FastEnum):
    """What an out-of-bounds run-time index does."""

    error = 0
    skip = 1


class matmul_perf_mode(FastEnum):
    """Fast modes of nc_matmul."""

    none = "none"
    double_row = "double_row"


class dma_engine(FastEnum):
    """Who moves the data of sendrecv."""

    dma = 1
    gpsimd_dma = 2


@functools.total_ordering
class nc_version(FastEnum):
    """NeuronCore generations; compare with each other and with ints."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, nc_version) else other)

    def __lt__(self, other: Any) -> bool:
        return self.value < (other.value if isinstance(other, nc_version) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __int__(self) -> int:
        return self.value


_LEGACY_VALUES = (dge_mode, matmul_perf_mode)  # AWS's own library passes their plain values


def member(value: object, cls: type[Enum], function: str, argument: str) -> Any:
    """`value` as a member of `cls`; the plain value is accepted where public code passes it."""
    if value.__class__ is cls:
        return value
    if cls in _LEGACY_VALUES and not isinstance(value, bool):
        for candidate in cls:
            if candidate.value == value and type(candidate.value) is type(value):
                warn(
                    "legacy",
                    f"{function}: {argument}={value!r} is an old form",
                    help=f"write nisa.{cls.__name__}.{candidate.name}",
                )
                return candidate
    names = ", ".join(f"nisa.{cls.__name__}.{m.name}" for m in cls)
    raise error("enum", f"{function}: {argument} must be one of {names}, got {value!r}")
