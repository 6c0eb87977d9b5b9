"""Findings about values that are computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...ir.instruction import Instruction
from ...ir.transfer_instruction import TransferInstruction
from ..compiler.engines import held_ns
from ..entries import Entry
from .formatting import count, joined, lines
from .study import WORTH, Advice, Study


def repeated_work(study: Study) -> Iterator[Advice]:
    """Yield a finding when instructions compute again what a tile has held before."""
    hoisted = study.hoisted
    again = [item.instruction for item in hoisted.edit.again if _computes(item)]
    if not again or hoisted.gain.us < study.hoisted_loads.gain.us + WORTH * study.total_us:
        return
    held: Counter[tuple] = Counter()
    for instruction in again:
        held[_line(instruction)] += held_ns(study.machine, instruction)  # type: ignore[assignment]
    worst = [line for line, _ in held.most_common(2)]
    made = Counter(_line(item.instruction) for item in hoisted.edit.first)
    times = Counter(map(_line, again))[worst[0]] / made[worst[0]] + 1
    names = joined(list(dict.fromkeys(name for name, _ in worst)))
    loads = len(hoisted.edit.again) - len(again)
    also = f" and {count(loads, 'load')}" if loads else ""
    yield Advice(
        "repeated-work",
        f"The same results of {names} are computed {times:.3g} times",
        f"{count(len(again), 'instruction')}{also} make what a tile has held before. "
        f"{hoisted.gain.text('Done once')} Move them out of the loop, and keep their tiles.",
        lines((i.site, held_ns(study.machine, i)) for i in again),
        hoisted.gain.us,
        "dma" if loads and study.decisive == "dma" else again[0].engine_name(),
    )


def _computes(item: Entry) -> bool:
    return not isinstance(item.instruction, TransferInstruction)


def _line(instruction: Instruction) -> tuple:
    return instruction.public, instruction.site.key if instruction.site is not None else ()
