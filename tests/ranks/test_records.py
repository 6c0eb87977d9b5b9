"""Records between ranks: what is written is read again, and nothing else becomes more than an error."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import hostile
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.collectives.messages import pack, unpack
from nki.launch.world import World, using
from nki.ranks import records, run_ranks
from nki.ranks.attached import GlooWorld
from nki.ranks.errors import packed, unpacked
from nki.ranks.processes import Member, _Watch


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Point:
    x: object
    y: object = 2

    @property
    def computed(self):
        return 1

    @computed.setter
    def computed(self, value):
        raise SystemExit("code of a class has run")


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


TREES = [
    *(None, True, -3, 2**70, 1.5, float("inf"), "text", "\x1b[0m\ud800", b"\x00\xff", 1 + 2j),
    *((), [], {}, (1, [2, {"k": (3,)}]), {1: "a", (2, 3): None}, nl.bfloat16),
    *(np.arange(6).reshape(2, 3), np.float32(0.1), np.zeros((0, 4), np.int8), np.array(3.0)),
    *(
        np.ones(3, ml_dtypes.bfloat16),
        np.ones(2, ">f4"),
        np.asfortranarray(np.eye(3)),
        np.ones((2, 3))[:, ::2],
    ),
    *(Pair(1, (2, np.ones(2))), Point(np.zeros(2)), [Point(Pair(1, 2), {"a": Point(1)})]),
]


def same(a, b):
    if isinstance(a, (np.ndarray, np.generic)):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    return same(vars(a), vars(b)) if isinstance(a, Point) else type(a) is type(b) and a == b


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: repr(tree)[:30].replace("\x1b", ""))
def test_a_tree_comes_back_as_it_was(tree):
    writer = records.TreeWriter()
    plain = json.loads(json.dumps(writer.write(tree)))
    heads = [records.array_head(array, 0) for array in writer.arrays]
    arrays = []
    for array, head in zip(writer.arrays, heads, strict=True):
        dtype, shape, _, size = records.described(head)
        assert size == array.nbytes
        arrays.append(np.frombuffer(array.tobytes(), dtype).reshape(shape))
    assert same(tree, records.TreeReader(arrays).read(plain))


@pytest.mark.parametrize(
    "value",
    [Evil(), print, object(), {1, 2}, np.array([Evil()]), type],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused_by_name(value):
    writer = records.TreeWriter()
    with pytest.raises(nki.NkiError, match="cannot be sent from one process to another"):
        writer.write(value)
        [records.array_head(array, 0) for array in writer.arrays]


@pytest.mark.parametrize(
    "plain",
    [
        *(["record", "os", "system", []], ["record", "subprocess", "Popen", [["args", "true"]]]),
        *(["named", "builtins", "eval", []], ["named", "collections", "OrderedDict", []]),
        *(
            ["record", "not_loaded", "X", []],
            ["record", 1, 2, 3],
            ["_init__", []],
            ["read", []],
            ["array", 7],
        ),
        *(["array", "x"], ["dict", [[["list", []], 1]]], ["dict", [1]], ["bytes", "zz"], ["dtype", "object"]),
        *(
            ["record", __name__, "Point", [["computed", 1]]],
            ["record", __name__, "Evil", []],
            [],
            [None],
            [[]],
        ),
        *(["named", __name__, "Pair", [1]], ["named", __name__, "Point", [1, 2]], ["float", "import os"]),
    ],
    ids=str,
)
def test_a_tree_that_no_rank_writes_is_refused(plain):
    with pytest.raises(ValueError):
        records.TreeReader([]).read(plain)


FAILED = records.Failed(1, "index", "", ["text"], ["a note"], None, ["f.py", 3, "x[9]", "k"], "")
RECORDS = [
    FAILED,
    records.Arrived([0, 1], 0, 1, "all_reduce", "f.py:3", 0, 64),
    records.Proceed([[0, 0, 64]], [1]),
    records.Finished(["list", []], [], [], [["float32", [2], 0]]),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record):
    assert records.loads(records.dumps(record), type(record)) == record
    others = {type(other) for other in RECORDS} - {type(record)}
    for other in others:
        with pytest.raises(ValueError):
            records.loads(records.dumps(record), other)


PEERS = {**hostile.JSON, "pickle of code": pickle.dumps(Evil()), "unknown": b'["System", "true"]'}


@pytest.mark.parametrize("name", PEERS)
def test_what_is_no_record_is_refused(name):
    with pytest.raises(ValueError):
        records.loads(PEERS[name], records.Arrived, records.Failed, records.Finished)


@pytest.mark.parametrize("seed", range(30))
def test_a_changed_record_is_read_or_refused(seed):
    record = RECORDS[seed % len(RECORDS)]
    content = hostile.mutated({"record": json.loads(records.dumps(record))}, seed).get("record")
    try:
        found = records.loads(json.dumps(content).encode(), type(record))
        if isinstance(found, records.Failed):
            assert isinstance(unpacked(found, 0), Exception)
        if isinstance(found, records.Finished):
            [records.described(head) for head in found.arrays]
    except ValueError:
        pass


# ---- errors --------------------------------------------------------------------------------------


class Mine(ValueError):
    def __init__(self, a, b):
        super().__init__(a, b)


@pytest.mark.parametrize(
    ("problem", "cls", "text"),
    [
        (KeyError("mine"), KeyError, "'mine'"),
        (ValueError(), ValueError, ""),
        (ValueError(float("nan")), ValueError, "nan"),
        (FileNotFoundError(2, "no file"), FileNotFoundError, "no file"),
        (Mine(1, 2), ValueError, "Mine: (1, 2)"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), UnicodeDecodeError, "why"),
        (TypeError(Evil()), TypeError, "Evil"),
    ],
)
def test_an_error_arrives_as_the_nearest_built_in(problem, cls, text):
    record = records.loads(records.dumps(packed(problem)), records.Failed)
    found = unpacked(record, 3)
    assert text in str(found)
    assert not hasattr(found, "add_note") or "raised on rank 3" in found.__notes__[0]
    assert isinstance(found, cls) or isinstance(problem, UnicodeDecodeError)


@pytest.mark.parametrize("name", ["eval", "SystemExit", "KeyboardInterrupt", "print", "", "os.system"])
def test_other_names_than_those_of_errors_are_runtime_errors(name):
    assert type(unpacked(FAILED._replace(kind="", type=name), 0)) is RuntimeError


# ---- peers ---------------------------------------------------------------------------------------


@nki.jit
def summed(x):
    src, dst = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=n) for n in ("src", "dst"))
    nisa.dma_copy(src, x)
    ncc.all_reduce([src], [dst], ((0, 1),), nl.add)
    return dst


class Peer(World):
    """A world whose other rank sends what `change` makes of an honest message."""

    backend = "test"

    def __init__(self, change):
        super().__init__(0, 2)
        self.change = change

    def exchange(self, key, data):
        return [data, np.frombuffer(self.change(data.tobytes()), np.uint8)]


def resized(data, sizes):
    head, arrays = unpack(np.frombuffer(data, np.uint8))
    head.pop("sizes")
    return pack(head, [np.zeros(size, np.uint8) for size in sizes]).tobytes()


def head_of(data, **changes):
    """An honest message with another head of the same length or shorter."""
    length = int.from_bytes(data[:8], "little")
    text = json.dumps({**json.loads(data[8 : 8 + length]), **changes}).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


MESSAGES = {
    **{name: lambda data, raw=raw: len(raw).to_bytes(8, "little") + raw for name, raw in PEERS.items()},
    "short": lambda data: data[:5],
    "head beyond the message": lambda data: b"\xff" * 8 + data[8:],
    "no body": lambda data: data[:64],
    "fewer arrays": lambda data: resized(data, []),
    "smaller array": lambda data: resized(data, [4]),
    "one element": lambda data: resized(data, [1]),
    "larger array": lambda data: resized(data, [1 << 16]),
    "more arrays": lambda data: resized(data, [24, 24]),
    "negative size": lambda data: head_of(data, sizes=[-24]),
    "size of another type": lambda data: head_of(data, sizes=["24"]),
    "beyond the end": lambda data: head_of(data, sizes=[1 << 60]),
    "rank of another type": lambda data: head_of(data, rank="0"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_that_no_rank_sends_is_an_error(name):
    with using(Peer(MESSAGES[name])), pytest.raises(nki.NkiError) as caught:
        summed(np.ones((2, 3), np.float32))
    assert caught.value.kind == "rank-lost" and "no message" in str(caught.value) and caught.value.rank == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_of_a_peer_give_a_result_or_an_error(seed):
    chosen = random.Random(seed)

    def change(data):
        raw = bytearray(data)
        for _ in range(chosen.randint(1, 8)):
            raw[chosen.randrange(len(raw))] = chosen.randrange(256)
        return bytes(raw[: chosen.randint(1, len(raw))] if seed % 2 else raw)

    with using(Peer(change)):
        try:
            summed(np.ones((2, 3), np.float32))
        except nki.NkiError as problem:
            assert problem.kind in ("rank-lost", "collective-mismatch")


class Pipe:
    def __init__(self, content):
        self.content = content

    def recv_bytes(self, most):
        return self.content

    def send_bytes(self, content):
        pass


@pytest.mark.parametrize(
    "content",
    [
        *PEERS.values(),
        records.dumps(records.Arrived([0, 99], 0, 1, "", "", 0, 8)),
        records.dumps(records.Arrived([], 0, 1, "", "", 0, 8)),
        records.dumps(records.Arrived([1], 0, 1, "", "", 0, 8)),
        records.dumps(FAILED._replace(kind="../x")),
        records.dumps(FAILED._replace(line=[1, 2, 3, 4])),
    ],
    ids=lambda content: repr(content[:30]),
)
def test_the_parent_reports_a_process_that_sends_something_else(content, monkeypatch):
    member = Member(0, 0, Pipe(content), 0)
    monkeypatch.setattr("nki.ranks.processes.wait", lambda pipes, seconds: pipes)
    _Watch([member], None)._listen(0)
    assert member.problem.kind == "rank-lost" and "no message" in str(member.problem)


# ---- the store of torch.distributed --------------------------------------------------------------


class Store:
    def __init__(self, content):
        self.content = content

    def check(self, keys):
        return True

    def get(self, key):
        return self.content


@pytest.mark.parametrize("name", PEERS)
def test_what_is_in_the_store_runs_no_code(name):
    world = GlooWorld.__new__(GlooWorld)
    World.__init__(world, 0, 2)
    world.store, world.key = Store(PEERS[name]), "nki/1/failed"
    found = world._first_failure(1)
    assert found.kind == "rank-lost" and found.rank == 1


def test_a_result_with_a_class_of_the_user_comes_from_a_process():
    @nki.jit
    def both(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return Pair(out, "text")

    for found in run_ranks(both, 2, lambda rank: (np.full((2, 2), rank, np.float32),), backend="processes"):
        assert type(found) is Pair and found.second == "text" and found.first.shape == (2, 2)
