"""The profile as a Perfetto trace (ui.perfetto.dev): per core a track for each engine and DMA queue.

Bars of one engine may overlap, because an instruction starts while the one before it drains. Slices of
one Perfetto track may not, so a track has as many lanes as it needs; equal names make them one track.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import error
from ..ir.dependences import RAW
from ..timing.names import QUEUES, queue_of
from ..timing.timeline import Bar, Timeline
from ..timing.timing_rules import ENGINES
from .figures import Profiled

if TYPE_CHECKING:
    from google.protobuf.message import Message

SEQUENCE = 1  # of packets: they share one table of strings


def trace(profile: Profiled) -> bytes:
    """A serialised perfetto.protos.Trace. Times are ns from the first instruction."""
    protos = _protos()
    timeline = profile.timeline
    strings = Strings()
    lanes = _lanes(timeline)
    packets = [_packet(protos, p) for p in _descriptors(protos, profile, lanes)]
    events = [_packet(protos, p) for p in _events(protos, lanes, strings)]
    return b"".join([_packet(protos, strings.packet(protos)), *packets, *events])


def _protos() -> ModuleType:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as problem:
        raise error(
            "missing-package",
            "a Perfetto trace is written with the package perfetto, which is not installed",
            help="pip install perfetto protobuf",
        ) from problem
    return perfetto_trace_pb2


def _packet(protos: ModuleType, packet: Message) -> bytes:
    """A trace of one packet; traces can be strung together."""
    return protos.Trace(packet=[packet]).SerializeToString(deterministic=True)


# ---- slices --------------------------------------------------------------------------------------


class Slice(NamedTuple):
    """A bar in whole ns, with its arguments and the arrows that leave and reach it."""

    begin: int
    end: int
    name: str
    args: dict[str, Any]
    leaving: list[int]
    reaching: list[int]


class Lane(NamedTuple):
    """Slices that do not overlap, of one engine or queue of one core."""

    core: int
    track: str
    slices: list[Slice]


def tracks(timeline: Timeline, core: int) -> list[str]:
    """Return the engines, then the DMA queues the core uses."""
    c = timeline.cores[core]
    used = {queue_of(c.operations[index], transfer) for index, transfer in c.transfers.items()}
    return [*ENGINES, *(f"dma {queue}" for queue in QUEUES if queue in used)]


def _lanes(timeline: Timeline) -> list[Lane]:
    lanes = {
        (core, track): [Lane(core, track, [])]
        for core in range(len(timeline.cores))
        for track in tracks(timeline, core)
    }
    for core, track, piece in _slices(timeline):
        rows = lanes[core, track]
        row = next((r for r in rows if not r.slices or r.slices[-1].end <= piece.begin), None)
        if row is None:
            row = Lane(core, track, [])
            rows.append(row)
        row.slices.append(piece)
    return [lane for rows in lanes.values() for lane in rows]


def _slices(timeline: Timeline) -> Iterator[tuple[int, str, Slice]]:
    """(core, track, slice) of every bar and table load, by start on each core."""
    leaving, reaching = _arrows(timeline)
    by_index = {(bar.core, bar.operation): bar for bar in timeline.bars}
    loads = [
        (core, index, round(start), round(end))
        for core, c in enumerate(timeline.cores)
        for start, end, index in c.table_loads
    ]
    before = {(core, index): (start, end) for core, index, start, end in loads}
    for bar in timeline.bars:
        track = f"dma {bar.queue}" if bar.engine == "dma" else bar.engine
        key = (bar.core, bar.operation)
        if key in before:
            yield (
                bar.core,
                track,
                Slice(*before[key], "activation table load", {"line": str(bar.site)}, [], []),
            )
        args = _arguments(bar, by_index.get((bar.core, bar.waited_for)))
        yield (
            bar.core,
            track,
            Slice(round(bar.start), round(bar.end), bar.name, args, leaving[key], reaching[key]),
        )


def _arguments(bar: Bar, waited_for: Bar | None) -> dict[str, Any]:
    """What the details pane shows of a bar."""
    args: dict[str, Any] = {"line": str(bar.site) if bar.site is not None else "the compiler"}
    if bar.site is not None:
        args["source"] = bar.site.text
    if bar.iteration:
        args["loops"] = " ".join(f"{name}={value}" for name, value in bar.iteration)
    if bar.label:
        args["name"] = bar.label
    args["operands"] = bar.operands
    if bar.nbytes:
        args["bytes"] = bar.nbytes
    if bar.flops:
        args["flops"] = bar.flops
    args["wait_ns"] = round(bar.wait, 1)
    args["wait"] = "nothing"
    if waited_for is not None:
        args["wait"] = f"{bar.why}: {waited_for.name} of {waited_for.site or 'the compiler'}"
    return args


def _arrows(timeline: Timeline) -> tuple[dict, dict]:
    """Flow ids by (core, index): one for every datum waited for and for what decided each start."""
    leaving: dict[tuple[int, int], list[int]] = defaultdict(list)
    reaching: dict[tuple[int, int], list[int]] = defaultdict(list)
    number = 0
    for core, c in enumerate(timeline.cores):
        for op in c.operations:
            for other, why in op.waits.items():
                if why == RAW or other == c.blocked_by[op.index]:
                    number += 1
                    leaving[core, other].append(number)
                    reaching[core, op.index].append(number)
    return leaving, reaching


# ---- packets -------------------------------------------------------------------------------------


def _descriptors(protos: ModuleType, profile: Profiled, lanes: list[Lane]) -> Iterator[Message]:
    """A group per core, and below it the tracks in the order of the machine."""
    cores = len(profile.timeline.cores)
    for core in range(cores):
        packet = protos.TracePacket()
        group = packet.track_descriptor
        group.uuid = core + 1
        group.name = f"{profile.kernel} on {profile.timeline.machine.name}, core {core}"
        group.child_ordering = protos.TrackDescriptor.EXPLICIT
        yield packet
    for number, lane in enumerate(lanes):
        packet = protos.TracePacket()
        track = packet.track_descriptor
        track.uuid = _uuid(number)
        track.parent_uuid = lane.core + 1
        track.name = lane.track
        track.sibling_order_rank = tracks(profile.timeline, lane.core).index(lane.track)
        yield packet


def _uuid(lane: int) -> int:
    return 1000 + lane


def _events(protos: ModuleType, lanes: list[Lane], strings: Strings) -> Iterator[Message]:
    """Beginnings and ends by time; what happens at one moment of a lane keeps its order."""
    moments: list[tuple[int, int, Slice | None]] = []
    for number, lane in enumerate(lanes):
        for piece in lane.slices:
            moments += [(piece.begin, number, piece), (piece.end, number, None)]
    moments.sort(key=lambda moment: moment[0])
    for time, number, started in moments:
        packet = protos.TracePacket(timestamp=time, trusted_packet_sequence_id=SEQUENCE)
        packet.sequence_flags = protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event = packet.track_event
        event.track_uuid = _uuid(number)
        if started is None:
            event.type = protos.TrackEvent.TYPE_SLICE_END
        else:
            _begin(protos, event, started, strings)
        yield packet


def _begin(protos: ModuleType, event: Message, piece: Slice, strings: Strings) -> None:
    event.type = protos.TrackEvent.TYPE_SLICE_BEGIN
    event.name = piece.name
    event.flow_ids.extend(piece.leaving)
    event.terminating_flow_ids.extend(piece.reaching)
    for name, value in piece.args.items():
        note = event.debug_annotations.add()
        note.name_iid = strings.name(name)
        if isinstance(value, str):
            note.string_value_iid = strings.value(value)
        elif isinstance(value, float):
            note.double_value = value
        else:
            note.int_value = value


class Strings:
    """The table of argument names and values: a kernel repeats the same few a hundred thousand times."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.values: dict[str, int] = {}

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names) + 1)

    def value(self, text: str) -> int:
        return self.values.setdefault(text, len(self.values) + 1)

    def packet(self, protos: ModuleType) -> Message:
        """Return the first packet of the sequence; made last, when the table is complete."""
        packet = protos.TracePacket(trusted_packet_sequence_id=SEQUENCE)
        packet.sequence_flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for text, number in self.names.items():
            packet.interned_data.debug_annotation_names.add(iid=number, name=text)
        for text, number in self.values.items():
            packet.interned_data.debug_annotation_string_values.add(iid=number, str=text.encode())
        return packet
