"""Staged calls: what a call will do, known from shapes alone (frameworks.md 1).

A compiler asks for the results of a kernel before there is data. The kernel is traced once on
descriptions of its tensors; the recorded program then runs on data, as often as the compiled code does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import dtypes
from .arguments import is_record, is_whole, record_fields
from .dtypes import DType
from .program import Instruction
from .storage import Storage
from .view import View


class Returned(NamedTuple):
    """A tensor among the results."""

    shape: tuple[int, ...]
    dtype: DType
    name: str
    argument: int | None  # the position of the tensor argument that it is, as a whole


@dataclass(frozen=True)
class Outline:
    """What a call does. `result` has the structure the caller receives, with `Returned`s for tensors."""

    result: Any
    arguments: tuple[str, ...]  # names of the tensors, in order
    written: tuple[int, ...]  # positions of those the kernel writes
    draws_random: bool  # the results depend on the random state of the core
    prints: bool  # device_print
    has_collectives: bool
    constants: tuple[np.ndarray, ...]  # of nl.shared_constant and its kind, in order of use


@dataclass
class Effects:
    """A sink: what instructions do beside computing results."""

    written: set[int] = field(default_factory=set)  # ids of storages
    modules: set[str] = field(default_factory=set)  # where the instructions are defined
    prints: bool = False

    def __call__(self, instruction: Instruction) -> None:
        operands = instruction.operands()
        self.written.update(id(operands[i].storage) for i in instruction.write_at if operands[i] is not None)
        self.modules.add(type(instruction).__module__)
        self.prints = self.prints or instruction.public == "device_print"

    def outline(
        self,
        parameters: list[tuple[str, Storage]],
        result: Any,
        constants: Iterable[tuple[Storage, np.ndarray]],
        relabelled: bool,
    ) -> Outline:
        """Of a call that received `parameters` and returned `result`.

        `relabelled`: float8_e4m3fn arguments arrived as float8_e4m3, and leave as what they were.
        """
        storages = [storage for _, storage in parameters]

        def returned(view: View) -> Returned:
            is_argument = view.storage in storages and is_whole(view)
            dtype = dtypes.float8_e4m3fn if relabelled and view.dtype == dtypes.float8_e4m3 else view.dtype
            position = storages.index(view.storage) if is_argument else None
            return Returned(tuple(view.shape), dtype, view.name, position)

        return Outline(
            replaced(result, View, returned),
            tuple(name for name, _ in parameters),
            tuple(i for i, storage in enumerate(storages) if id(storage) in self.written),
            "nki.isa.random" in self.modules,
            self.prints,
            any(module.startswith("nki.collectives") for module in self.modules),
            tuple(raw.view(s.dtype.storage).reshape(s.shape) for s, raw in constants),
        )


def replaced(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """A value with every leaf of a kind changed; containers and records are rebuilt around them."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [replaced(v, kind, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        twin = copy.copy(value)
        twin.update({k: replaced(v, kind, change) for k, v in value.items()})
        return twin
    if is_record(value):
        twin = copy.copy(value)
        for name in record_fields(value):
            object.__setattr__(twin, name, replaced(getattr(value, name), kind, change))
        return twin
    return value


def leaves(value: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """All leaves of a kind, in order."""
    found: list[Any] = []
    replaced(value, kind, found.append)
    return found
