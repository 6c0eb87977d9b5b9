"""Program: what a kernel does, as data that can be read, compared, written, read back and run."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
import zipfile

import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.ir.program import Loop
from support import target

X = np.arange(32, dtype=np.float32).reshape(4, 8)
COUNT = np.full((1, 1), 3, np.int32)


@dataclasses.dataclass
class Pair:
    out: object
    number: int


@nki.jit
def everything(x, count):
    """Constants, registers, a loop with a tile of its own, indirection, sums, names and edges."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    tile = nl.ndarray(x.shape, x.dtype, name="tile")
    column = nl.ndarray((4, 1), nl.float32)
    load = nisa.dma_copy(tile, x, name="load")
    table = nl.shared_constant(np.arange(8, dtype=np.float32).reshape(1, 8))
    times = nisa.register_alloc(count)

    def body(i):
        ones = nl.ndarray((4, 8), nl.float32)
        nisa.memset(ones, 1.0)
        nisa.tensor_tensor(tile, tile, ones, nl.add)

    nl.fori_loop(0, times, body)
    nisa.activation(tile, nl.exp, tile, scale=-0.0, reduce_op=nl.add, reduce_res=column)
    nisa.tensor_scalar(tile, tile, nl.multiply, column, op1=nl.maximum, operand1=float("-inf"))
    rows = nl.ndarray((4, 1), nl.int32)
    nisa.iota(rows, [[1, 1]], channel_multiplier=1)
    nisa.dma_copy(tile, x.vector_select(0, rows), oob_mode=nisa.oob_mode.skip).depends_on(load)
    sums = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
    with nl.no_reorder():
        nisa.nc_matmul(sums, tile, tile)
        nisa.nc_matmul(sums, tile, tile)
    nisa.dma_copy(out, tile)
    nisa.dma_copy(out[0:1], table)
    placed = nl.ndarray((4, 8), nl.bfloat16, address=(0, 64))
    nisa.tensor_copy(placed, sums[0:4])
    return out, [None, 7, "text"], {"part": out[0:2]}, Pair(out, 3)


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def program():
    return everything.trace(X, COUNT)


# ---- what it holds -------------------------------------------------------------------------------


def test_the_repr_of_a_program_names_its_content():
    p = program()
    assert p.name == "everything" and p.machine.name == "trn2" and len(p.cores) == 1
    assert [name for name, _ in p.parameters] == ["x", "count"] and len(p.constants) == 1
    (loop,) = p.loops
    assert isinstance(loop, Loop) and loop.function == "fori_loop" and len(loop.body) == 3
    assert {s.name for s in p.storages} >= {"x", "count", "out", "tile"}
    assert len(p.edges) == 1 and len(p.blocks) == 1 and p.blocks[0].last == p.blocks[0].first + 1
    assert [s.loop for s in p.storages if s.loop] == [1]
    assert repr(p) == f"<Program everything: {len(p)} instructions for trn2>"


def test_a_program_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        program().name = "other"


def test_equal_traces_are_equal_programs_and_others_are_not():
    p = program()
    assert p == program() and hash(p) == hash(program()) and len({p, program()}) == 1
    assert p != everything.trace(X[:, ::2].copy().repeat(2, 1).astype(np.float16), COUNT)
    with target("trn3"):
        assert p != program()


def test_a_recorded_call_is_the_program_of_its_trace():
    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(x, tile)
        return x

    nki.kernel.cache.clear()
    kernel(X.copy())
    (kept,) = nki.kernel.cache.programs.values()
    assert kept.program == kernel.trace(X)


# ---- text and files ------------------------------------------------------------------------------


def test_the_text_is_read_back():
    p = program()
    again = nki.Program.parse(str(p))
    assert str(again) == str(p) and again == p
    for a, b in zip(p.walk(), again.walk(), strict=True):
        assert a.runs_on is b.runs_on and a.access == b.access and str(a.site) == str(b.site)
    assert again.diagnostics == p.diagnostics and again.edges == p.edges and again.blocks == p.blocks


def test_two_cores_collectives_and_while_loops_are_read_back():
    @nki.jit
    def kernel(x):
        me = nl.program_id(0)
        shared = nl.ndarray((2, 8), x.dtype, buffer=nl.shared_hbm, name="shared")
        gathered = nl.ndarray((2, 8), x.dtype, buffer=nl.shared_hbm, name="gathered")
        tile, other = nl.ndarray((1, 8), x.dtype), nl.ndarray((1, 8), x.dtype)
        nisa.dma_copy(tile, x[me : me + 1])

        def body(left):
            nisa.sendrecv(tile, other, 1 - me, 1 - me, 0)
            nisa.register_move(left, 0)
            return left

        nl.while_loop(nisa.register_alloc(1), body)
        nisa.dma_copy(shared[me : me + 1], other)
        nisa.core_barrier(shared, (0, 1))
        ncc.all_gather([shared], [gathered], ncc.ReplicaGroup([[0]]), 0)
        return gathered

    p = kernel[2].trace(X)
    again = nki.Program.parse(str(p))
    assert again == p and len(again.cores) == 2
    np.testing.assert_array_equal(again.run(X), X[[1, 0]])


def test_a_file_holds_the_program_and_its_constants(tmp_path):
    p, path = program(), tmp_path / "everything.nki"
    p.save(path)
    loaded = nki.Program.load(path)
    assert loaded == p and str(loaded) == str(p)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 2  # the text, and one array
    p.save(tmp_path / "again.nki")
    assert path.read_bytes() == (tmp_path / "again.nki").read_bytes()


def test_a_program_is_pickled():
    p = program()
    again = pickle.loads(pickle.dumps(p))
    assert again == p
    np.testing.assert_array_equal(again.run(X, COUNT)[0], p.run(X, COUNT)[0])


def test_a_pickled_view_has_no_signature_of_another_process():
    p = program()
    views = [view for i in p.walk() for view in i.views()]
    assert all(view.sig for view in views)
    for view in pickle.loads(pickle.dumps(views)):
        assert view._sig is None


def test_a_program_is_plain_data_for_machines():
    found = json.loads(json.dumps(program().to_dict()))
    assert found["name"] == "everything" and found["machine"] == "trn2"
    assert found["cores"][0][0]["instruction"] == "dma_copy" and found["cores"][0][0]["name"] == "load"


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_refused_by_name(seed, tmp_path):
    """Whatever is done to a file, it is read as a program or refused; nothing else happens."""
    draw = random.Random(seed)
    text = str(program())
    lines = text.splitlines()
    for _ in range(draw.randint(1, 3)):
        i = draw.randrange(len(lines))
        line = lines[i]
        lines[i] = draw.choice(
            [
                "",
                line[: draw.randint(0, len(line))],
                line.replace(str(draw.randint(0, 9)), str(draw.randint(0, 99999)), 1),
                line.replace("(", "[", 1),
                line.replace("float32", draw.choice(["float33", "int8", "print"])),
                draw.choice(lines),
                "__import__('os').system('true')",
                line + " ; 1 / 0",
                "(" * 200 + line,
                line.replace("s2", "s99"),
                "-" + line,
            ]
        )
    damaged = "\n".join(lines)
    try:
        again = nki.Program.parse(damaged)
    except nki.NkiError as problem:
        assert problem.kind == "program-file" and "program" in str(problem)
    else:
        assert nki.Program.parse(str(again)) == again
    path = tmp_path / "damaged.nki"
    program().save(path)
    raw = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 20)):
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    path.write_bytes(bytes(raw[: draw.randint(len(raw) // 2, len(raw))]))
    try:
        nki.Program.load(path)
    except nki.NkiError as problem:
        assert problem.kind == "program-file"


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"# nki program 1\n"])
def test_other_files_are_no_programs(content, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(nki.NkiError, match="not a saved program") as caught:
        nki.Program.load(path)
    assert caught.value.kind == "program-file"


def test_the_error_for_a_damaged_text_names_its_line():
    lines = str(program()).splitlines()
    number = next(i for i, line in enumerate(lines) if line.strip().startswith("memset("))
    lines[number] = lines[number].replace("memset", "memsat")
    with pytest.raises(nki.NkiError) as caught:
        nki.Program.parse("\n".join(lines))
    assert f"line {number + 1} of the program" in str(caught.value) and "memsat" in str(caught.value)


# ---- functions of it -----------------------------------------------------------------------------


def test_a_program_runs_without_its_python():
    p, expected = program(), everything(X, COUNT)
    again = nki.Program.parse(str(p)).run(X, COUNT)
    np.testing.assert_array_equal(again[0], expected[0])
    np.testing.assert_array_equal(p.run(X + 1, COUNT)[0], everything(X + 1, COUNT)[0])
    assert again[1] == expected[1] and isinstance(p.run(X, COUNT)[3], Pair)


def test_a_program_asks_for_its_own_shapes():
    for arrays, text in (
        ((X,), "1 arrays for the parameters x, count"),
        ((X[:2], COUNT), "was traced for float32"),
    ):
        with pytest.raises(nki.NkiError, match=text):
            program().run(*arrays)


def test_a_dataclass_comes_back_filled():
    made = everything(X, COUNT)[3]
    assert isinstance(made, Pair) and made.number == 3
    np.testing.assert_array_equal(made.out, everything(X, COUNT)[0])


def test_statistics_and_profile_are_functions_of_a_program():
    p = program()
    assert p.statistics().instructions == len(p)
    assert p.profile().total_us == everything.profile(*map(described, (X, COUNT))).total_us


def described(array):
    return nki.TensorSpec(array.shape, array.dtype)


def test_a_loop_is_priced_as_often_as_it_runs():
    shapes = everything.profile(described(X), described(COUNT))
    assert [d.kind for d in shapes.diagnostics if d.kind == "loop-trips"] == ["loop-trips"]
    assert "as if it ran once" in shapes.summary()
    times = [everything.profile(X, np.full((1, 1), n, np.int32)) for n in (1, 3, 50)]
    assert times[0].total_us == shapes.total_us < times[1].total_us < times[2].total_us
    assert not [d for d in times[0].diagnostics if d.kind == "loop-trips"]
    counts = [t.statistics.instructions for t in times]
    assert counts[1] - counts[0] == 2 * 3 and counts[2] - counts[0] == 49 * 3


def test_observers_see_every_instruction():
    seen = []
    with nki.observe(seen.append):
        everything(X, np.full((1, 1), 1, np.int32))
    assert [i.public for i in seen][:2] == ["dma_copy", "register_load"] and len(seen) >= len(program())
    before = len(seen)
    everything(X, COUNT)
    assert len(seen) == before
