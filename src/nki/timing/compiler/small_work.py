"""Small instructions of several iterations, done as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from ...ir.rewriting import replace_views
from ...ir.storage import Storage
from ...ir.view import View
from ...machine.memories import SBUF
from ..entries import Entry
from .broadcasts import live_banks, live_sbuf
from .compilation import Compilation, waits
from .placement import Placement

MOST_TOGETHER = 8  # iterations


def merge_small_work(core: Compilation) -> int:
    """Do small instructions of several iterations as one, on tiles that lie side by side.

    In the traces of attention the last step of each row maximum and row sum, and the reciprocal, is one
    instruction for eight blocks of rows; the steps that need it wait for all eight. Where a block holds a
    bank of PSUM meanwhile it is four, half of the banks. Small is what costs no more than the shortest
    interval. Where tiles exceed SBUF, more of them at one time would cost more spills: nothing is merged.
    """
    if any(item.done.state or item.done.registers_read or item.done.registers_written for item in core.items):
        return 0
    placement = Placement(core)
    groups = [
        group
        for group in _groups(core)
        if all(placement.join(tiles) for tiles in zip(*(_tiles(core.items[n]) for n in group), strict=True))
    ]
    if not groups:
        return 0
    last = {group[-1]: group for group in groups}
    gone = {number for group in groups for number in group[:-1]}
    changed = [
        _merged(core, last[number], placement) if number in last else placement.moved(item)
        for number, item in enumerate(core.items)
        if number not in gone
    ]
    ordered = _in_order(core.items, changed, [n for n in range(len(core.items)) if n not in gone], last)
    if ordered is None:
        return 0
    core.items = ordered
    return len(gone)


def _groups(core: Compilation) -> Iterator[list[int]]:
    """Yield the instructions of one line that may be done together."""
    lines: dict[tuple, list[int]] = defaultdict(list)
    for number, item in enumerate(core.items):
        if _is_small(core, item):
            lines[item.instruction.site.key, item.signature].append(number)  # type: ignore[union-attr]
    banks = live_banks(core.machine, core.uses, len(core.items)) if lines else ()
    taken = live_sbuf(core.machine, core.uses, len(core.items)) if lines else ()
    for loop in _loops(sorted(lines.values())):
        if any(taken[number] > core.machine.sbuf_usable_bytes for numbers in loop for number in numbers):
            continue
        held = max((int(banks[number]) for numbers in loop for number in numbers), default=0)
        most = MOST_TOGETHER if held == 0 else max(1, core.machine.psum_banks // 2 // held)
        for numbers in loop:
            groups = (numbers[i : i + most] for i in range(0, len(numbers), most))
            yield from (group for group in groups if len(group) > 1)


def _loops(lines: list[list[int]]) -> Iterator[list[list[int]]]:
    """Yield the lines that alternate: those of one loop."""
    loop: list[list[int]] = []
    for numbers in lines:
        if loop and numbers[0] > max(other[-1] for other in loop):
            yield loop
            loop = []
        loop.append(numbers)
    if loop:
        yield loop


def _is_small(core: Compilation, item: Entry) -> bool:
    done, instruction = item.done, item.instruction
    if len(done.reads) != 1 or len(done.writes) != 1 or done.adds_to or instruction.site is None:
        return False
    data, out = done.reads[0], done.writes[0]
    return (
        core.is_free(item)
        and data.free_elements <= core.machine.min_ii_cycles
        and all(_is_whole(view) for view in (data, out))
        and core.uses.written_once(out)
        and instruction.grouped() is not None
    )


def _is_whole(view: View) -> bool:
    tile = view.storage
    return view.buffer is SBUF and tile.address is None and view.covers_storage() and view.dtype == tile.dtype


def _merged(core: Compilation, group: Sequence[int], placement: Placement) -> Entry:
    """Return the one instruction of a group: its operands have the iterations as second dimension."""
    item = core.items[group[-1]]
    firsts = {v.storage: u.storage for v, u in zip(_both(item), _both(core.items[group[0]]), strict=True)}
    grouped = item.instruction.grouped()
    assert grouped is not None
    together = replace_views(grouped, lambda v: placement.together(firsts[v.storage], v, len(group)))
    return core.numbers.replaced(item, together)


def _both(item: Entry) -> tuple[View, View]:
    return item.done.reads[0], item.done.writes[0]


def _tiles(item: Entry) -> list[Storage]:
    return [view.storage for view in _both(item)]


# ---- order ---------------------------------------------------------------------------------------


def _in_order(
    before: Sequence[Entry],
    items: list[Entry],
    numbers: list[int],
    last: dict[int, list[int]],
) -> list[Entry] | None:
    """Return the items with each after what it needs, else as before; None if that is impossible."""
    at = {number: i for i, number in enumerate(numbers)}
    for group in last.values():
        at.update(dict.fromkeys(group, at[group[-1]]))
    after: list[set[int]] = [set() for _ in items]
    for number, earlier in enumerate(waits(before)):
        after[at[number]].update(at[other] for other in earlier)
    users: list[list[int]] = [[] for _ in items]
    for i, needed in enumerate(after):
        needed.discard(i)
        for other in needed:
            users[other].append(i)
    missing = [len(needed) for needed in after]
    ready = [i for i, count in enumerate(missing) if not count]
    heapify(ready)
    found: list[Entry] = []
    while ready:
        i = heappop(ready)
        found.append(items[i])
        for user in users[i]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, user)
    return found if len(found) == len(items) else None
