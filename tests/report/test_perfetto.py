"""The Perfetto trace, read back with the protos: tracks, slices, arguments, arrows."""

import sys
from collections import Counter, defaultdict

import pytest
from samples import halves, idle, matmul, profiled, spec, spilling, transposing

import nki

protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

PROFILES = {
    "tiled": lambda: matmul(),
    "blocked": lambda: matmul("blocked_mnk"),
    "trn1": lambda: matmul("hoisted", "trn1"),
    "transposing": lambda: profiled(transposing, spec(128, 128)),
    "spilling": lambda: profiled(spilling, spec(128, 1024)),
    "two cores": lambda: profiled(halves[2], spec(256, 512)),
    "idle": lambda: profiled(idle, spec(128, 128)),
}


class Read:
    """A trace as a viewer understands it."""

    def __init__(self, data: bytes):
        self.trace = protos.Trace()
        self.trace.ParseFromString(data)
        self.tracks = {p.track_descriptor.uuid: p.track_descriptor for p in self._having("track_descriptor")}
        interned = [p.interned_data for p in self._having("interned_data")]
        self.names = {n.iid: n.name for i in interned for n in i.debug_annotation_names}
        self.strings = {s.iid: s.str.decode() for i in interned for s in i.debug_annotation_string_values}
        self.slices = self._slices()

    def _having(self, field):
        return [p for p in self.trace.packet if p.HasField(field)]

    def _slices(self):
        """(track, begin, end, event) with the ends found as a viewer does: last begun, first ended."""
        open_on = defaultdict(list)
        found = []
        times = [p.timestamp for p in self._having("track_event")]
        assert times == sorted(times)
        for packet in self._having("track_event"):
            event = packet.track_event
            if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
                assert not open_on[event.track_uuid], "slices of one lane overlap"
                open_on[event.track_uuid].append((packet.timestamp, event))
            else:
                begin, begun = open_on[event.track_uuid].pop()
                found.append((event.track_uuid, begin, packet.timestamp, begun))
        assert not any(open_on.values())
        return found

    def args(self, event):
        return {self.names[a.name_iid]: self._value(a) for a in event.debug_annotations}

    def _value(self, note):
        kind = note.WhichOneof("value")
        return self.strings[note.string_value_iid] if kind == "string_value_iid" else getattr(note, kind)


def name_of(read, track):
    return read.tracks[read.tracks[track].parent_uuid].name, read.tracks[track].name


@pytest.mark.tiny
def test_every_engine_and_queue_has_a_track_below_its_core():
    read = Read(matmul().perfetto())
    groups = [t.name for t in read.tracks.values() if not t.parent_uuid]
    assert groups == ["tiled on trn2, core 0"]
    tracks = {name_of(read, uuid)[1] for uuid, t in read.tracks.items() if t.parent_uuid}
    assert tracks == {"tensor", "vector", "scalar", "gpsimd", "sync", "dma software"}


def test_each_core_has_its_own_tracks():
    read = Read(profiled(halves[2], spec(256, 512)).perfetto())
    groups = [t.name for t in read.tracks.values() if not t.parent_uuid]
    assert groups == ["halves on trn2, core 0", "halves on trn2, core 1"]
    used = Counter(name_of(read, track) for track, *_ in read.slices)
    assert used["halves on trn2, core 1", "dma software"] == 2
    assert used["halves on trn2, core 0", "vector"] == 1


@pytest.mark.parametrize("name", list(PROFILES))
def test_every_bar_is_a_slice_at_its_time(name):
    profile = PROFILES[name]()
    read = Read(profile.perfetto())
    drawn = Counter(
        (name_of(read, track)[1], begin, end, event.name)
        for track, begin, end, event in read.slices
        if event.name != "activation table load"
    )
    expected = Counter(
        (f"dma {b.queue}" if b.engine == "dma" else b.engine, round(b.start), round(b.end), b.name)
        for b in profile.timeline.bars
    )
    assert drawn == expected


@pytest.mark.parametrize("name", list(PROFILES))
def test_arrows_join_each_datum_to_its_readers(name):
    profile = PROFILES[name]()
    read = Read(profile.perfetto())
    leaves = {f: begin for _, begin, _, e in read.slices for f in e.flow_ids}
    reaches = {f: begin for _, begin, _, e in read.slices for f in e.terminating_flow_ids}
    assert set(leaves) == set(reaches)
    assert all(leaves[f] <= reaches[f] for f in leaves)
    data = sum(why == "data" for op in profile.timeline.operations for why in op.waits.values())
    assert len(leaves) >= data


def test_a_slice_has_line_operands_work_and_wait():
    read = Read(matmul().perfetto())
    products = [read.args(e) for *_, e in read.slices if e.name == "nc_matmul"]
    copies = [read.args(e) for *_, e in read.slices if e.name == "dma_copy"]
    assert all(a["flops"] == 2 * 128 * 128 * 512 for a in products)
    assert all(a["source"] == "nisa.nc_matmul(psum, stationary, moving)" for a in products)
    assert all("stationary tile float32[128, 128] sbuf" in a["operands"] for a in products)
    assert {a["loops"] for a in products if a["loops"].startswith("m=0 n=0")} == {
        f"m=0 n=0 k={k}" for k in range(0, 512, 128)
    }
    assert any(a["wait"].startswith("data: dma_copy of kernels.py:") for a in products)
    assert all(a["wait_ns"] >= 0 for a in products + copies)
    assert {a["bytes"] for a in copies} == {128 * 128 * 4, 128 * 512 * 4}
    assert all(a["line"].startswith("kernels.py:") for a in products + copies)


def test_labels_table_loads_and_spills_are_shown():
    read = Read(profiled(transposing, spec(128, 128)).perfetto())
    assert any(read.args(e).get("name") == "drain" for *_, e in read.slices)
    loads = [(name_of(read, t)[1], end - begin) for t, begin, end, e in read.slices if "table" in e.name]
    assert loads == [("scalar", 1283)]
    spills = Read(profiled(spilling, spec(128, 1024)).perfetto())
    assert {"spill", "reload"} <= {e.name for *_, e in spills.slices}


def test_the_same_profile_gives_the_same_bytes():
    assert (
        profiled(transposing, spec(128, 128)).perfetto() == profiled(transposing, spec(128, 128)).perfetto()
    )


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(nki.NkiError) as e:
        matmul().perfetto()
    assert e.value.kind == "missing-package"
    assert isinstance(e.value, ImportError)
    assert "pip install perfetto protobuf" in str(e.value)
