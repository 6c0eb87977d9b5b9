"""What the compiler changes in a core's instructions before they are scheduled.

Three rules, each from a document or a published profile:

repeated work: an instruction that computes again what a tile already holds is left out. The zoomed profile
of the fused Mamba tutorial (v2, 8K) shows four VectorE instructions a state, of the five that its loop asks
for: delta * u does not depend on the state. Loads are not merged; the profiles show them again.

broadcasts: what TensorE spread over the partitions for one nl call is read in PSUM where its readers can. In
the tutorial's profiles of 512 columns PSUM stays full while ScalarE copies little or nothing; of 8,192, which
no bank holds, it copies all.

engine=unknown: the manual of tensor_copy says that the compiler selects the best engine "based on engine
workload". A copy goes to ScalarE when VectorE is the busiest engine and ScalarE has time. Of other
instructions the manual says "based on the input tile shape": they stay where they are.

What a no_reorder block or a declared edge names stays as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from ..ir.effects import Effects
from ..ir.instruction import Instruction, MatmulInstruction
from ..ir.liveness import Lifetime, live_bytes
from ..ir.rewriting import replace_engine, replace_storages
from ..ir.storage import Storage
from ..ir.transfer_instruction import TransferInstruction
from ..ir.view import View
from ..machine.engines import engine
from ..machine.machine import Machine
from ..machine.memories import PSUM, SBUF
from .entries import Entry, SignatureNumbers
from .operation_plan import engine_clocks


def compiled(
    machine: Machine, items: Sequence[Entry], numbers: SignatureNumbers, pinned: Collection[int]
) -> Sequence[Entry]:
    """Return the instructions that run, on the engines that run them; positions in `pinned` do not change."""
    if _may_repeat(items):
        items = without_repeats(items, numbers, pinned)
    items = with_broadcasts_in_psum(machine, items, numbers, pinned)
    return with_shared_copies(machine, items, numbers, pinned)


# ---- repeated work -------------------------------------------------------------------------------


class _Uses:
    """Which items write and read each automatic on-chip storage."""

    def __init__(self, items: Sequence[Entry]):
        self.writers: dict[Storage, list[int]] = defaultdict(list)
        self.readers: dict[Storage, list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            for view in item.done.written:
                if view.storage.on_chip:
                    self.writers[view.storage].append(number)
            for view in item.done.seen:
                if view.storage.on_chip:
                    self.readers[view.storage].append(number)

    def written_once(self, view: View) -> bool:
        """True when the view is all of an automatic tile that has no other writer."""
        s = view.storage
        return s.address is None and len(self.writers[s]) == 1 and view.covers_storage()


def _may_repeat(items: Sequence[Entry]) -> bool:
    """True when two instructions of one signature read the same tiles; otherwise nothing is repeated."""
    seen: set[tuple] = set()
    for instruction, _, done, signature in items:
        if (
            not isinstance(instruction, TransferInstruction)
            and not instruction.accumulates
            and len(done.writes) == 1
        ):
            asked = (signature, instruction.runs_on, *[view.storage for view in done.reads])
            if asked in seen:
                return True
            seen.add(asked)
    return False


def without_repeats(
    items: Sequence[Entry], numbers: SignatureNumbers, pinned: Collection[int] = ()
) -> Sequence[Entry]:
    """Leave out instructions that compute again what an unchanged tile holds."""
    uses = _Uses(items)
    now: dict[Storage, Storage] = {}  # a tile that is computed no more -> the one that holds the same
    versions: Counter[Storage] = Counter()
    known: dict[tuple, Storage] = {}
    left: list[Entry] = []
    for item in items:
        instruction, done = item.instruction, item.done
        if _is_pure(instruction, done, uses) and item.at not in pinned:
            seen = tuple((now.get(v.storage, v.storage), versions[v.storage]) for v in done.reads)
            holder = known.setdefault((item.signature, instruction.runs_on, seen), done.writes[0].storage)
            if holder is not done.writes[0].storage:
                now[done.writes[0].storage] = holder
                continue
        for view in done.written:
            versions[view.storage] += 1
        if now and any(view.storage in now for view in done.seen):
            item = numbers.replaced(item, replace_storages(instruction, now))
        left.append(item)
    return left


def _is_pure(instruction: Instruction, done: Effects, uses: _Uses) -> bool:
    """True when it writes one whole SBUF tile from on-chip tiles, and touches nothing else."""
    if isinstance(instruction, TransferInstruction) or instruction.accumulates or len(done.writes) != 1:
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
    machine: Machine, items: Sequence[Entry], numbers: SignatureNumbers, pinned: Collection[int] = ()
) -> Sequence[Entry]:
    """Leave out copies of broadcasts whose readers can all read PSUM, as far as it has banks."""
    if not any(_is_broadcast(item.instruction) for item in items):
        return items
    uses = _Uses(items)
    banks = _Banks(machine, uses, len(items))
    now: dict[Storage, Storage] = {}
    gone: set[int] = set()
    for number, item in enumerate(items):
        if (
            item.at in pinned
            or not item.instruction.copies_bits()
            or not _copies_broadcast(items, uses, item)
        ):
            continue
        copy, bank = item.done.writes[0].storage, item.done.reads[0].storage
        readers = uses.readers[copy]
        direct = all(_takes_psum(items[r], copy, pinned) for r in readers)
        if direct and banks.take(number, readers[-1]):
            now[copy] = bank
            gone.add(number)
    return [
        numbers.replaced(item, replace_storages(item.instruction, now))
        if any(v.storage in now for v in item.done.reads)
        else item
        for number, item in enumerate(items)
        if number not in gone
    ]


def _is_broadcast(instruction: Instruction) -> bool:
    """True for a matmul of one row with ones."""
    return (
        isinstance(instruction, MatmulInstruction)
        and instruction.is_onezero()
        and instruction.array_rows() == 1
    )


def _copies_broadcast(items: Sequence[Entry], uses: _Uses, item: Entry) -> bool:
    """True when one nl call issued both: TensorE's product in a bank, and this copy of all of it."""
    instruction, done = item.instruction, item.done
    source, out = done.reads[0], done.writes[0]
    if source.buffer is not PSUM or out.buffer is not SBUF or not source.covers_storage():
        return False
    made = uses.writers[source.storage]
    if len(made) != 1 or not uses.written_once(out) or not uses.readers[out.storage]:
        return False
    product = items[made[0]].instruction
    return _is_broadcast(product) and _same_call(product, instruction)


def _same_call(one: Instruction, other: Instruction) -> bool:
    a, b = one.site, other.site
    return a is not None and b is not None and a.key == b.key


def _takes_psum(item: Entry, tile: Storage, pinned: Collection[int]) -> bool:
    """True when VectorE or ScalarE reads the tile once, and nothing else in PSUM."""
    instruction = item.instruction
    views = [v for v in instruction.operands() if isinstance(v, View)]
    return (
        item.at not in pinned
        and instruction.engine_name() in ("vector", "scalar")
        and sum(v.storage is tile for v in views) == 1
        and all(v.indirection is None for v in views)
        and not any(v.buffer is PSUM for v in item.done.seen)
    )


class _Banks:
    """The PSUM banks that are live at each instruction."""

    def __init__(self, machine: Machine, uses: _Uses, length: int):
        self.most = machine.psum_banks
        bank = machine.psum_bank_bytes
        lives = []
        for storage in {*uses.writers, *uses.readers}:
            if storage.buffer is PSUM:
                where = [*uses.writers.get(storage, ()), *uses.readers.get(storage, ())]
                lives.append((Lifetime(min(where), max(where)), -(-storage.pitch // bank)))
        self.taken = live_bytes(lives, length + 1)

    def take(self, first: int, last: int) -> bool:
        """Take one bank from `first` to `last`; False if none is free."""
        if self.taken[first : last + 1].max() > self.most - 1:
            return False
        self.taken[first + 1 : last + 1] += 1
        return True


# ---- engine=unknown ------------------------------------------------------------------------------


def with_shared_copies(
    machine: Machine, items: Sequence[Entry], numbers: SignatureNumbers, pinned: Collection[int] = ()
) -> Sequence[Entry]:
    """Move some copies to another engine, if theirs is the busiest of the kernel."""
    movable = [
        number
        for number, item in enumerate(items)
        if item.instruction.other_engine() is not None and item.at not in pinned
    ]
    if not movable:
        return items
    work = _work(machine, items)
    found = list(items)
    groups: dict[tuple[engine, engine], list[int]] = defaultdict(list)
    for number in movable:
        i = items[number].instruction
        assert i.runs_on is not None and (other := i.other_engine()) is not None
        groups[i.runs_on, other].append(number)
    for (default, other), copies in groups.items():
        if work[default.name] < max(work.values()):
            continue  # something else decides
        here = sum(_held(machine, items[n].instruction) for n in copies)
        there = sum(_held(machine, replace_engine(items[n].instruction, other)) for n in copies)
        part = min(1.0, (work[default.name] - work[other.name]) / (here + there))
        owed = 0.0  # spread evenly, so that both engines have some of it all the time
        for number in copies:
            owed += part
            if owed >= 1:
                owed -= 1
                item = items[number]
                found[number] = numbers.moved(item, replace_engine(item.instruction, other))
    return found


def _work(machine: Machine, items: Sequence[Entry]) -> Counter[str]:
    """Return ns that each engine is held; for DMA, the least that its bytes and triggers take."""
    work: Counter[str] = Counter()
    issued: Counter[str] = Counter()
    rate = machine.dma_engines * machine.dma_bytes_per_ns
    known: dict[tuple, tuple[str, float]] = {}
    by_software = machine.dma_default_mode == "software"
    for instruction, _, _, signature in items:
        key = (signature, instruction.runs_on)
        if key not in known:
            known[key] = _work_of(machine, instruction, rate)
        name, ns = known[key]
        work[name] += ns  # type: ignore[assignment]
        if by_software and name == "dma":
            issued["dma"] += machine.swdge_spacing_ns  # type: ignore[assignment]
    return work | issued


def _work_of(machine: Machine, instruction: Instruction, rate: float) -> tuple[str, float]:
    """Return the engine and ns of its work; of a transfer, the time of its bytes."""
    name = instruction.engine_name()
    if name != "dma":
        return name, _held(machine, instruction)
    return name, max((v.nbytes for v in instruction.operands() if isinstance(v, View)), default=0) / rate


def _held(machine: Machine, instruction: Instruction) -> float:
    clock = engine_clocks(machine).get(instruction.engine_name())
    return 0.0 if clock is None else instruction.cost(machine).interval / clock
