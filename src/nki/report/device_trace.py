"""A profile of a device beside the modelled run of the kernel: engines, opcodes and DMA.

The file is JSON of `neuron-profile view --output-format json` or of `neuron-explorer view --output-format
json`: tables of rows, one for each instruction and each DMA packet, with times in ns.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ..errors import error
from ..files import open_regular, read_json
from ..timing.measures import is_transpose
from ..timing.operation import Operation
from ..timing.timeline import Timeline, union_length
from ..timing.timing_rules import ENGINES

HELP = "write one with: neuron-profile view --output-format json (or neuron-explorer view, in the same way)"
PARQUET = b"PAR1"  # how such a file begins
LONGEST = 1e15  # ns: a time of a profile is shorter


class Event(NamedTuple):
    """An instruction, or a DMA packet. Times in ns."""

    start: float
    ns: float
    nbytes: float = 0.0


class RunEvents(NamedTuple):
    """What a device or the model did: instructions by engine and opcode, and DMA packets by queue."""

    instructions: Mapping[tuple[str, str], list[Event]]
    packets: Mapping[str, list[Event]]


# ---- the device ----------------------------------------------------------------------------------

NAMES = {"pe": "tensor", "act": "scalar", "dve": "vector", "pool": "gpsimd", "sp": "sync"}  # in some exports
# what every program has around its work: waiting for others, starting, ending
CONTROL = (
    "COMPARE_BRANCH",
    "DRAIN",
    "EVENT_SEMAPHORE",
    "EVENT_SEMAPHORE_RANGE_CLEAR",
    "NOP",
    "NOTIFY",
    "SET_ORDERING_MODE",
    "TENSOR_LOAD",
    "WRITE",
)


def load(path: str | os.PathLike[str]) -> RunEvents:
    """Return the events of a file; an error of the kind `profile-file` if it is no profile of a device."""
    if _is_parquet(path):
        raise error("profile-file", f"{os.fspath(path)} is Parquet, which is not read here", help=HELP)
    content = read_json(path, {}, kind="profile-file", what="a profile of a device", help=HELP)
    try:
        return _events(content)
    except ValueError as problem:
        raise error(
            "profile-file", f"{os.fspath(path)} is not a profile of a device: {problem}", help=HELP
        ) from None


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    """True for the other form in which Neuron Explorer exports a profile: a file, or a folder of them."""
    if os.path.isdir(path):
        return any(name.endswith(".parquet") for name in os.listdir(path))
    if not os.path.isfile(path):
        return False
    with open_regular(path) as file:
        return file.read(len(PARQUET)) == PARQUET


def _events(content: Mapping[str, Any]) -> RunEvents:
    instructions: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for row in _rows(content, "instruction", "Instruction"):
        engine = _text(row, "subgroup", "engine").lower()
        opcode = _text(row, "opcode")
        kind = _text(row, "instruction_type", "tensor_instruction_type", default="")
        if opcode not in CONTROL:
            name = "TRANSPOSE" if kind == "TRANSPOSE" and opcode == "MATMUL" else opcode
            instructions[NAMES.get(engine, engine), name].append(_event(row))
    packets: dict[str, list[Event]] = defaultdict(list)
    for row in _rows(content, "dma", "DmaPacket"):
        queue = _text(row, "queue_type", default="dma")
        if queue != "instruction":  # the engines' programs
            packets[queue].append(_event(row))
    if not instructions:
        raise ValueError("it has no instructions")
    first = min(event.start for some in (*instructions.values(), *packets.values()) for event in some)
    return RunEvents(_from(first, instructions), _from(first, packets))


def _rows(content: Mapping[str, Any], *names: str) -> Iterable[Mapping[str, Any]]:
    rows: Any = next((content[name] for name in names if name in content), [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"its {names[0]!r} is no list of objects")
    return rows


def _event(row: Mapping[str, Any]) -> Event:
    size = _number(row, "transfer_size", "transfer_size_bytes", default=0.0)
    return Event(_number(row, "timestamp", "start_ts"), _number(row, "duration", "duration_ns"), size)


def _number(row: Mapping[str, Any], *names: str, default: float | None = None) -> float:
    found = next((row[name] for name in names if name in row), default)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"a {names[0]!r} is no number")
    if not 0 <= found < LONGEST:
        raise ValueError(f"a {names[0]!r} is {str(found)[:20]}")
    return float(found)


def _text(row: Mapping[str, Any], *names: str, default: str | None = None) -> str:
    found = next((row[name] for name in names if name in row), default)
    if not isinstance(found, str) or len(found) > 64:
        raise ValueError(f"a {names[0]!r} is no short text")
    return found


def _from(first: float, events: Mapping[Any, list[Event]]) -> dict[Any, list[Event]]:
    return {
        key: [event._replace(start=event.start - first) for event in some] for key, some in events.items()
    }


# ---- the model -----------------------------------------------------------------------------------

OPCODES = {"nc_matmul": "MATMUL", "activation": "ACTIVATE", "tensor_copy": "COPY"}  # others: their own names


def modelled(timeline: Timeline) -> RunEvents:
    """Return the events of a modelled run, under the device's names, of all its cores."""
    instructions: dict[tuple[str, str], list[Event]] = defaultdict(list)
    packets: dict[str, list[Event]] = defaultdict(list)
    for core in timeline.cores:
        for op in core.operations:
            transfer = core.transfers.get(op.index)
            start, ns = core.start[op.index], core.end[op.index] - core.start[op.index]
            if transfer is None:
                instructions[op.kind, _opcode(op)].append(Event(start, ns))
                continue
            parts = max(1, transfer.descriptors)
            queue = QUEUES.get(transfer.mode, transfer.mode)
            one = Event(start, transfer.packet_ns / parts, transfer.nbytes / parts)
            packets[queue] += [one] * parts
            if transfer.mode == "hardware":  # ScalarE triggers stores, SyncE loads
                engine = "scalar" if _is_store(op) else "sync"
                trigger = Event(core.triggered[op.index], transfer.issue_ns)
                instructions[engine, "DMA_DIRECT2D"].append(trigger)
        instructions["scalar", "ACT_TABLE_LOAD"] += [Event(a, b - a) for a, b, _ in core.table_loads]
    return RunEvents({key: some for key, some in instructions.items() if some}, packets)


def _is_store(op: Operation) -> bool:
    return op.instruction is not None and not op.instruction.operands()[0].on_chip


QUEUES = {"software": "software_dynamic", "hardware": "hardware_dynamic"}


def _opcode(op: Operation) -> str:
    assert op.instruction is not None
    if is_transpose(op):
        return "TRANSPOSE"
    name = op.instruction.public
    if name == "tensor_copy":
        dst, src = op.instruction.operands()[:2]
        return "COPY" if dst.dtype == src.dtype else "CAST"
    return OPCODES.get(name, name.upper())


# ---- both ----------------------------------------------------------------------------------------


def compared(device: RunEvents, model: RunEvents) -> dict[str, Any]:
    """Return the figures of both, as plain data: by engine and opcode, by engine, and of DMA."""
    keys = sorted({*device.instructions, *model.instructions}, key=_order)
    engines = dict.fromkeys(engine for engine, _ in keys)
    queues = sorted({*device.packets, *model.packets})
    return {
        "total_us": {"device": _total(device), "model": _total(model)},
        "opcodes": [
            {"engine": engine, "opcode": opcode, **_both(device, model, _opcode_figures, (engine, opcode))}
            for engine, opcode in keys
        ],
        "engines": [{"engine": one, **_both(device, model, _engine_figures, one)} for one in engines],
        "dma": [{"queue": queue, **_both(device, model, _queue_figures, queue)} for queue in queues],
    }


def _order(key: tuple[str, str]) -> tuple[int, str, str]:
    engine, opcode = key
    return (ENGINES.index(engine) if engine in ENGINES else len(ENGINES), engine, opcode)


def _both(device: RunEvents, model: RunEvents, figures: Any, key: Any) -> dict[str, Any]:
    return {"device": figures(device, key), "model": figures(model, key)}


def _total(run: RunEvents) -> float:
    events = [event for some in (*run.instructions.values(), *run.packets.values()) for event in some]
    return max((event.start + event.ns for event in events), default=0.0) / 1e3


def _opcode_figures(run: RunEvents, key: tuple[str, str]) -> dict[str, float] | None:
    return _figures(run.instructions.get(key, ()))


def _queue_figures(run: RunEvents, queue: str) -> dict[str, float] | None:
    events = run.packets.get(queue, ())
    found = _figures(events)
    return None if found is None else {**found, "bytes": sum(event.nbytes for event in events)}


def _figures(events: Iterable[Event]) -> dict[str, float] | None:
    lengths = [event.ns for event in events]
    if not lengths:
        return None
    first = min(event.start for event in events) / 1e3
    return {"count": len(lengths), "us": sum(lengths) / 1e3, "median_ns": median(lengths), "first_us": first}


def _engine_figures(run: RunEvents, engine: str) -> dict[str, float] | None:
    events = [event for (one, _), some in run.instructions.items() if one == engine for event in some]
    if not events:
        return None
    spans = np.array(sorted((event.start, event.start + event.ns) for event in events))
    active, last = union_length(spans), float(spans[:, 1].max())
    ends = np.maximum.accumulate(spans[:, 1])
    gaps = np.maximum(0.0, spans[1:, 0] - ends[:-1])
    return {
        "count": len(events),
        "active_us": active / 1e3,
        "idle_us": (last - float(spans[0, 0]) - active) / 1e3,
        "longest_gap_us": float(gaps.max(initial=0.0)) / 1e3,
        "first_us": float(spans[0, 0]) / 1e3,
    }
