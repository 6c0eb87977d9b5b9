"""A finding about slices of one tensor that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.effects import effects
from ...ir.storage import Storage
from ..change import Change
from ..operation import Operation
from .formatting import joined, lines
from .study import Advice, Study


def shared_tensor(study: Study) -> Iterator[Advice]:
    """Yield a finding when instructions wait for others that touch another slice of their tensor."""
    dropped, sites = {}, []
    for first, plan in zip(study.replay.first, study.timeline.plans, strict=True):
        for index, others in plan.apart.items():
            dropped[first + index] = tuple(first + other for other in others)
            tiles = {
                tile for other in others for tile in _shared(plan.operations[index], plan.operations[other])
            }
            sites += [(tile.site, 1.0) for tile in tiles]
    gain = study.gain(Change(dropped=dropped)) if dropped else None
    if gain is None or not gain.worth:
        return
    where = lines(sites)
    yield Advice(
        "shared-tensor",
        "Slices of one tensor wait for each other",
        f"The compiler tracks the tensor from {joined(list(where[:2]))} as a whole: no slot of it is written "
        "while another is read. Allocate one tensor per slot, in a list. "
        f"{gain.text('With a tensor for each')}",
        where,
        gain.us,
    )


def _shared(one: Operation, other: Operation) -> set[Storage]:
    """Return the tensors on chip that both touch."""
    if one.instruction is None or other.instruction is None:
        return set()
    first, second = effects(one.instruction), effects(other.instruction)
    return {v.storage for v in (*first.reads, *first.written) if v.on_chip} & {
        v.storage for v in (*second.reads, *second.written)
    }
