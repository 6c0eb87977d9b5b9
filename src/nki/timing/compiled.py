"""What the compiler makes of a core's instructions before they are scheduled, where it has a choice.

Three rules, each from a document or a published profile:

repeated work: an instruction that computes again what a tile already holds is left out. The zoomed profile
of the fused Mamba tutorial (v2, 8K) shows four VectorE instructions a state, of the five that its loop asks
for: delta * u does not depend on the state. Loads are not merged; the profiles show them again.

broadcasts: what TensorE spread over the partitions for one nl call is read in PSUM where its readers can. In
the tutorial's profiles of 512 columns PSUM stays full while ScalarE copies little or nothing; of 8,192, which
no bank holds, it copies all.

engine=unknown: the manual of tensor_copy says that the compiler selects the best engine "based on engine
workload". A copy goes to ScalarE when VectorE is the busiest engine and ScalarE has room. Of other
instructions the manual says "based on the input tile shape": they stay where they are.

What a no_reorder block or a declared edge names stays as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from ..hardware.engines import engine
from ..hardware.machine import Machine
from ..hardware.memories import PSUM, SBUF
from ..program.effects import Effects, effects
from ..program.instruction import Instruction
from ..program.passes.renaming import with_storages
from ..tensors import View
from ..tensors.storage import Storage
from .operations import engine_clocks

Placed = tuple[Instruction, int]  # with its position in the program


def compiled(machine: Machine, items: Sequence[Placed], kept: Collection[int]) -> list[Placed]:
    """The instructions that run, on the engines that run them. `kept`: positions to leave as they are."""
    items = without_repeats(items, kept)
    items = with_broadcasts_in_psum(machine, items, kept)
    return with_shared_copies(machine, items, kept)


# ---- repeated work -------------------------------------------------------------------------------


class _Uses:
    """Who writes and who reads each automatic on-chip storage."""

    def __init__(self, items: Sequence[Placed]):
        self.effects: list[Effects] = [effects(i) for i, _ in items]
        self.writers: dict[Storage, list[int]] = defaultdict(list)
        self.readers: dict[Storage, list[int]] = defaultdict(list)
        for number, done in enumerate(self.effects):
            for view in done.written:
                if view.on_chip:
                    self.writers[view.storage].append(number)
            for view in done.seen:
                if view.on_chip:
                    self.readers[view.storage].append(number)

    def written_once(self, view: View) -> bool:
        """The view is all of an automatic tile, and nobody else writes there."""
        s = view.storage
        return s.address is None and len(self.writers[s]) == 1 and view.covers_storage()


def without_repeats(items: Sequence[Placed], kept: Collection[int] = ()) -> Sequence[Placed]:
    """Without instructions that compute what a tile holds that nobody has changed; somebody reads both."""
    uses = _Uses(items)
    now: dict[Storage, Storage] = {}  # a tile that is computed no more -> the one that holds the same
    versions: Counter[Storage] = Counter()
    known: dict[tuple, Storage] = {}
    left: list[Placed] = []
    for number, (instruction, at) in enumerate(items):
        done = uses.effects[number]
        if _is_pure(instruction, done, uses) and at not in kept:
            seen = tuple((now.get(v.storage, v.storage), versions[v.storage]) for v in done.reads)
            holder = known.setdefault((instruction.key(), instruction.runs_on, seen), done.writes[0].storage)
            if holder is not done.writes[0].storage:
                now[done.writes[0].storage] = holder
                continue
        for view in done.written:
            versions[view.storage] += 1
        if now and any(view.storage in now for view in done.seen):
            instruction = with_storages(instruction, now)
        left.append((instruction, at))
    return left


def _is_pure(instruction: Instruction, done: Effects, uses: _Uses) -> bool:
    """It writes one whole SBUF tile from on-chip tiles, and touches nothing else."""
    if not instruction.on_chip or instruction.accumulates or len(done.writes) != 1:
        return False
    out = done.writes[0]
    return (
        out.buffer is SBUF
        and uses.written_once(out)
        and bool(uses.readers[out.storage])
        and instruction.writes_all()
        and not (done.state or done.registers_read or done.registers_written)
        and all(v.on_chip and v.storage.address is None and v.indirection is None for v in done.reads)
    )


# ---- broadcasts ----------------------------------------------------------------------------------


def with_broadcasts_in_psum(
    machine: Machine, items: Sequence[Placed], kept: Collection[int] = ()
) -> Sequence[Placed]:
    """Without copies of broadcasts whose readers can all take them from PSUM, as far as it has banks."""
    if not any(_is_broadcast(i) for i, _ in items):
        return items
    uses = _Uses(items)
    banks = _Banks(machine, uses, len(items))
    now: dict[Storage, Storage] = {}
    gone: set[int] = set()
    for number, (instruction, at) in enumerate(items):
        if at in kept or not instruction.copies_bits() or not _copies_broadcast(items, uses, number):
            continue
        copy, bank = uses.effects[number].writes[0].storage, uses.effects[number].reads[0].storage
        readers = uses.readers[copy]
        direct = all(_takes_psum(items[r], uses.effects[r], copy, kept) for r in readers)
        if direct and banks.take(number, readers[-1]):
            now[copy] = bank
            gone.add(number)
    return [
        (with_storages(i, now) if any(v.storage in now for v in done.reads) else i, at)
        for number, ((i, at), done) in enumerate(zip(items, uses.effects, strict=True))
        if number not in gone
    ]


def _is_broadcast(instruction: Instruction) -> bool:
    """A matmul of one row with ones."""
    return instruction.is_onezero() and instruction.array_rows() == 1


def _copies_broadcast(items: Sequence[Placed], uses: _Uses, number: int) -> bool:
    """One nl call made both: TensorE's product in a bank, and this copy of all of it."""
    instruction, done = items[number][0], uses.effects[number]
    source, out = done.reads[0], done.writes[0]
    if source.buffer is not PSUM or out.buffer is not SBUF or not source.covers_storage():
        return False
    made = uses.writers[source.storage]
    if len(made) != 1 or not uses.written_once(out) or not uses.readers[out.storage]:
        return False
    product = items[made[0]][0]
    return _is_broadcast(product) and _same_call(product, instruction)


def _same_call(one: Instruction, other: Instruction) -> bool:
    a, b = one.site, other.site
    return a is not None and b is not None and a.key == b.key


def _takes_psum(item: Placed, done: Effects, tile: Storage, kept: Collection[int]) -> bool:
    """VectorE or ScalarE reads the tile, once, beside nothing else in PSUM."""
    instruction, at = item
    views = [v for v in instruction.operands() if isinstance(v, View)]
    return (
        at not in kept
        and instruction.engine_name() in ("vector", "scalar")
        and sum(v.storage is tile for v in views) == 1
        and all(v.indirection is None for v in views)
        and not any(v.buffer is PSUM for v in done.seen)
    )


class _Banks:
    """How many PSUM banks the program keeps at each instruction."""

    def __init__(self, machine: Machine, uses: _Uses, length: int):
        self.most = machine.psum_banks
        self.taken = np.zeros(length + 1, np.int64)
        bank = machine.psum_bank_bytes
        for storage in {*uses.writers, *uses.readers}:
            if storage.buffer is PSUM:
                where = [*uses.writers.get(storage, ()), *uses.readers.get(storage, ())]
                self.taken[min(where) : max(where) + 1] += -(-storage.pitch // bank)

    def take(self, first: int, last: int) -> bool:
        """Keep one bank from `first` to `last`, if there is one."""
        if self.taken[first : last + 1].max() > self.most - 1:
            return False
        self.taken[first + 1 : last + 1] += 1
        return True


# ---- engine=unknown ------------------------------------------------------------------------------


def with_shared_copies(machine: Machine, items: Sequence[Placed], kept: Collection[int] = ()) -> list[Placed]:
    """With some copies on another engine, where the one that has them is the busiest of the kernel."""
    movable = [n for n, (i, at) in enumerate(items) if at not in kept and i.other_engine() is not None]
    if not movable:
        return list(items)
    work = _work(machine, items)
    found = list(items)
    groups: dict[tuple[engine, engine], list[int]] = defaultdict(list)
    for number in movable:
        i = items[number][0]
        assert i.runs_on is not None and (other := i.other_engine()) is not None
        groups[i.runs_on, other].append(number)
    for (default, other), numbers in groups.items():
        if work[default.name] < max(work.values()):
            continue  # something else decides
        here = sum(_held(machine, items[n][0]) for n in numbers)
        there = sum(_held(machine, on_engine(items[n][0], other)) for n in numbers)
        part = min(1.0, (work[default.name] - work[other.name]) / (here + there))
        owed = 0.0  # spread evenly, so that both engines have some of it all the time
        for number in numbers:
            owed += part
            if owed >= 1:
                owed -= 1
                found[number] = (on_engine(items[number][0], other), items[number][1])
    return found


def _work(machine: Machine, items: Sequence[Placed]) -> Counter[str]:
    """ns that each engine is held, all in all; of DMA, what its bytes and its triggers take at the least."""
    work: Counter[str] = Counter()
    issued: Counter[str] = Counter()
    rate = machine.dma_engines * machine.dma_bytes_per_ns
    known: dict[tuple, float] = {}
    for instruction, _ in items:
        if instruction.engine_name() == "dma":
            moved = max((v.nbytes for v in instruction.operands() if isinstance(v, View)), default=0)
            work["dma"] += moved / rate  # type: ignore[assignment]
            if machine.dma_default_mode == "software":
                issued["dma"] += machine.swdge_spacing_ns  # type: ignore[assignment]
            continue
        key = (instruction.key(), instruction.runs_on)
        if key not in known:
            known[key] = _held(machine, instruction)
        work[instruction.engine_name()] += known[key]  # type: ignore[assignment]
    return work | issued


def _held(machine: Machine, instruction: Instruction) -> float:
    clock = engine_clocks(machine).get(instruction.engine_name())
    return 0.0 if clock is None else instruction.cost(machine).interval / clock


def on_engine(instruction: Instruction, other: engine) -> Instruction:
    """A copy of an instruction that runs elsewhere."""
    copy = with_storages(instruction, {})
    copy.runs_on = other
    return copy
