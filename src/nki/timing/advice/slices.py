"""A finding about slices of one tensor that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.storage import Storage
from ..change import Change
from ..operation_plan import OperationPlan
from .formatting import joined, lines
from .study import Advice, Study


def shared_tensor(study: Study) -> Iterator[Advice]:
    """Yield a finding when instructions wait for others that touch another slice of their tensor."""
    dropped = {
        first + index: {first + other for other in others}
        for first, plan in zip(study.replay.first, study.timeline.plans, strict=True)
        for index, others in plan.apart.items()
    }
    gain = study.gain(Change(dropped=dropped)) if dropped else None
    if gain is None or not gain.worth:
        return
    where = lines((tile.site, 1.0) for plan in study.timeline.plans for tile in _shared(plan))
    yield Advice(
        "shared-tensor",
        "Slices of one tensor wait for each other",
        f"The compiler tracks the tensor from {joined(list(where[:2]))} as a whole: no slot of it is written "
        "while another is read. Allocate one tensor per slot, in a list. "
        f"{gain.text('With a tensor for each')}",
        where,
        gain.us,
    )


def _shared(plan: OperationPlan) -> Iterator[Storage]:
    """Yield the tensors on chip that an instruction shares with such others, for each that waits for some."""
    position = plan.table.positions
    positions = range(len(plan.instructions))
    touched = [{v.storage for views in plan.accesses(at) for v in views if v.on_chip} for at in positions]
    for index, others in plan.apart.items():
        if position[index] >= 0:
            mine = touched[position[index]]
            yield from {tile for i in others if position[i] >= 0 for tile in mine & touched[position[i]]}
