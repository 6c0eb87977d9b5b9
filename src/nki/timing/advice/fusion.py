"""Findings about passes over data: two that one instruction can do, and many that are too short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ...ir.storage import Storage
from ...ir.view import View
from ...machine.memories import SBUF
from ..change import Change
from ..operation import Operation
from ..operation_plan import OperationPlan
from .formatting import NAMES, count, duration, lines, place_of, site_of
from .study import WORTH, Advice, Study

# ---- two-passes ----------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Two instructions of which one could do the work of both."""

    how: str
    gone: Operation
    stays: Operation


class TileUsers:
    """The operations that write and read each storage that some operations read."""

    def __init__(self, study: Study, plan: OperationPlan, by: Iterable[Operation]):
        read = {view.storage for op in by for view in plan.accesses(op.position).reads}
        forms = {_form(storage) for storage in read}

        @study.of_signature
        def may_use(op: Operation) -> bool:
            return any(_form(v.storage) in forms for views in plan.accesses(op.position) for v in views)

        self.writers: dict[int, list[Operation]] = defaultdict(list)
        self.readers: dict[int, list[Operation]] = defaultdict(list)
        for op in plan.operations if read else ():
            if op.instruction is None or not may_use(op):
                continue
            reads, writes = plan.accesses(op.position)
            for view in writes:
                if view.storage in read:
                    self.writers[id(view.storage)].append(op)
            for view in reads:
                if view.storage in read:
                    self.readers[id(view.storage)].append(op)

    def made_for(self, view: View, reader: Operation) -> tuple[Operation | None, Any]:
        """Return the only operation that writes this tile and its instruction, if only `reader` uses it."""
        key = id(view.storage)
        alone = view.buffer is SBUF and view.storage.address is None
        if alone and len(self.writers[key]) == 1 and self.readers[key] == [reader]:
            return self.writers[key][0], self.writers[key][0].instruction
        return None, None

    def last_writer(self, view: View, reader: Operation) -> Operation | None:
        """Return the operation that wrote this tile before the reader, in program order."""
        before = [op for op in self.writers[id(view.storage)] if op.position < reader.position]
        return max(before, key=lambda op: op.position, default=None)


def _form(storage: Storage) -> tuple:
    """Return what the storages of instructions of one signature have in common."""
    return storage.buffer, storage.partitions, storage.pitch


def _scale_into_activation(op: Operation, tiles: TileUsers) -> Pair | None:
    act: Any = op.instruction
    gone, made = tiles.made_for(act.data, op)
    plain = act.bias is None and isinstance(act.scale, (int, float)) and act.scale == 1
    if gone is None or made.public != "tensor_scalar" or not plain or made.reverse0 or made.reverse1:
        return None
    steps = tuple(o.name for o in (made.op0, made.op1) if o is not None)
    if steps not in (("multiply",), ("add",), ("multiply", "add")):
        return None
    return Pair("nisa.activation(scale=, bias=) scales and shifts its input on the way", gone, op)


def _sum_into_activation(op: Operation, tiles: TileUsers) -> Pair | None:
    reduce: Any = op.instruction
    source = tiles.last_writer(reduce.data, op)
    act: Any = None if source is None else source.instruction
    if act is None or act.public != "activation" or act.reduce_res is not None:
        return None
    whole = reduce.data.offset == act.dst.offset and reduce.data.free_elements == act.dst.free_elements
    if reduce.op.name != "add" or reduce.negate or reduce.dst.free_elements != 1 or not whole:
        return None
    assert source is not None
    return Pair("nisa.activation(reduce_op=nl.add, reduce_res=) adds up what it writes", op, source)


def _cast_at_the_source(op: Operation, tiles: TileUsers) -> Pair | None:
    copy: Any = op.instruction
    source, made = tiles.made_for(copy.src, op)
    if copy.src.dtype == copy.dst.dtype or source is None or made.engine_name() not in ENGINES:
        return None
    return Pair("every engine casts what it writes: give the first one a dst of the dtype wanted", op, source)


def _scale_into_sum(op: Operation, tiles: TileUsers) -> Pair | None:
    total: Any = op.instruction
    if total.op.name not in ("add", "subtract", "multiply", "maximum", "minimum"):
        return None
    for view in (total.data1, total.data2):
        gone, made = tiles.made_for(view, op)
        if gone is not None and made.public == "tensor_scalar" and made.op1 is None and made.op0 is not None:
            return Pair("nisa.scalar_tensor_tensor does both steps in one pass", gone, op)
    return None


ENGINES = ("vector", "scalar", "gpsimd")
RULES: dict[str, Callable[[Operation, TileUsers], Pair | None]] = {
    "activation": _scale_into_activation,
    "tensor_reduce": _sum_into_activation,
    "tensor_copy": _cast_at_the_source,
    "tensor_tensor": _scale_into_sum,
}


def pairs(study: Study) -> dict[str, list[Pair]]:
    """Return the pairs of instructions that one can do, by how."""
    found: dict[str, list[Pair]] = defaultdict(list)
    for plan in study.timeline.plans:
        on_engines = [op for op in plan.operations if op.kind in ENGINES and op.instruction is not None]
        fusible = [(op, RULES[name]) for op in on_engines if (name := op.instruction.public) in RULES]  # type: ignore[union-attr]
        tiles = TileUsers(study, plan, (op for op, _ in fusible))
        for op, rule in fusible:
            pair = rule(op, tiles)
            if pair is not None:
                found[pair.how].append(pair)
    return found


def two_passes(study: Study) -> Iterator[Advice]:
    """Yield a finding for each way in which one instruction could do the work of two."""
    for how, group in pairs(study).items():
        gone = {study.replay.number(pair.gone): pair for pair in group}
        held = sum(map(study.held_ns, gone))
        if held < WORTH * 1e3 * study.total_us:
            continue
        gain = study.gain_of_new_schedule(_without(study, group))
        if gain.worth:
            worst = max(gone, key=study.held_ns)
            first, second = sorted(
                (site_of(gone[worst].gone), site_of(gone[worst].stays)), key=lambda s: s.lineno if s else 0
            )
            yield Advice(
                "two-passes",
                f"{count(len(group), 'instruction')} could be part of another one",
                f"{first} and {second} go over the same data: {how}. {gain.text('In one pass')}",
                lines((pair.gone.site, study.held_ns(number)) for number, pair in gone.items()),
                gain.us,
                study.decisive if study.decisive == gone[worst].stays.kind else gone[worst].gone.kind,
            )


def _without(study: Study, group: list[Pair]) -> Change:
    """Return the change to one instruction per pair; a sum is read from the accumulator, which takes time."""
    gone, work = {}, {}
    for pair in group:
        number = study.replay.number(pair.gone)
        gone[number] = number
        left = study.replay.number(pair.stays)
        if pair.gone.instruction is not None and pair.gone.instruction.public == "tensor_reduce":
            held = study.held_ns(left)
            work[left] = (held + study.machine.accumulator_read_ns) / held
    return Change(removed=gone, work=work)


# ---- short-instructions --------------------------------------------------------------------------

SHORT = 0.5  # of the time an instruction takes at the least


def short_instructions(study: Study) -> Iterator[Advice]:
    """Yield findings about instructions whose fixed cost is most of their time."""
    for engine in ("vector", "scalar"):
        groups: dict[tuple, list[int]] = defaultdict(list)
        for number, op in study.on(engine):
            cost = study.timeline.plans[op.core].cost_of(op)
            if cost.cycles < SHORT * cost.shortest:
                groups[op.core, place_of(op)].append(number)
        many = {numbers[0]: numbers for numbers in groups.values() if len(numbers) > 3}
        wasted = {first: sum(map(study.held_ns, numbers)) for first, numbers in many.items()}
        if sum(wasted.values()) < WORTH * 1e3 * study.total_us:
            continue
        gain = study.gain_of_new_schedule(_together(study, many.values()))
        if gain.worth:
            operations = study.timeline.operations
            worst = max(wasted, key=wasted.__getitem__)
            view = next(v for v in operations[worst].instruction.operands() if isinstance(v, View))  # type: ignore[union-attr]
            least = duration(study.held_ns(worst) / 1e3)
            yield Advice(
                "short-instructions",
                f"{count(sum(map(len, many.values())), 'instruction')} of {NAMES[engine]} are too short",
                f"{site_of(operations[worst])} works on {count(view.free_elements, 'element')} of a "
                f"partition; however few, an instruction takes {least} and its result later still. "
                f"{gain.text('Done together')} Lay the tiles side by side in the free dimension, and go over "
                "them with one instruction.",
                lines((operations[first].site, ns) for first, ns in wasted.items()),
                gain.us,
                engine,
            )


def _together(study: Study, groups: Any) -> Change:
    """Return the change in which one instruction of each group does the work of all."""
    gone, work = {}, {}
    for numbers in groups:
        op = study.timeline.operations[numbers[0]]
        cost = study.timeline.plans[op.core].cost_of(op)
        gone.update({number: number for number in numbers[1:]})
        work[numbers[0]] = max(1.0, len(numbers) * cost.cycles / cost.shortest)
    return Change(removed=gone, work=work)
