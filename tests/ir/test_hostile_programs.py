"""Program files that someone else wrote: loading executes nothing, running stays inside the memory."""

from __future__ import annotations

import io
import random
import re
import zipfile

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

COUNT = np.array([[2]], np.int32)
X = np.arange(24, dtype=np.float32).reshape(4, 6)
NUMBERS = (
    "-1",
    "0",
    "1",
    "7",
    "129",
    "4096",
    "2147483648",
    "140737488355328",
    "9" * 30,
    "1e300",
    "None",
    "'x'",
)


@nki.jit
def moving(x, count):
    """Loads, gathers, multiplies and loops: views, strides, registers and run-time indices."""
    table = nl.shared_constant(np.arange(24, dtype=np.float32).reshape(4, 6))
    out = nl.ndarray((4, 6), x.dtype, buffer=nl.shared_hbm, name="out")
    tile, rows = nl.ndarray(x.shape, x.dtype), nl.ndarray((4, 1), nl.int32)
    nisa.dma_copy(tile, x)
    nisa.iota(rows, [[1, 1]], offset=0, channel_multiplier=0)
    gathered = nl.ndarray((4, 6), x.dtype)
    nisa.dma_copy(gathered, table.ap([[6, 4], [1, 6]], vector_offset=rows))
    nisa.tensor_tensor(tile[:, 1:5], tile[:, 1:5], gathered[:, 0:4], nl.add)
    times, at = nisa.register_alloc(), nisa.register_alloc()
    nisa.register_load(times, count[0:1, 0:1])
    nisa.register_load(at, count[0:1, 0:1])

    def body(i):
        nisa.tensor_scalar(tile, tile, nl.multiply, 0.5)

    nl.fori_loop(0, times, body)
    nl.fori_loop(0, 2, body)
    nisa.dma_copy(out, tile)
    nisa.dma_copy(out[0:1], tile[nl.ds(0, 1)])
    nisa.dma_copy(out[nl.ds(at, 1)], tile[0:1])
    return out


@pytest.fixture(scope="module")
def text():
    with target("trn2"):
        return str(moving.trace(nki.TensorSpec((4, 6), "float32"), nki.TensorSpec((1, 1), "int32")))


def refused_or_run(text):
    """Load a program and, if it is one, run it and model it: a result or an error that has a kind."""
    try:
        program = nki.Program.parse(text)
    except nki.NkiError as problem:
        assert problem.kind == "program-file"
        return
    storages = dict(program.parameters)
    if {name: (s.shape, str(s.dtype)) for name, s in storages.items()} != {
        "x": ((4, 6), "float32"),
        "count": ((1, 1), "int32"),
    } or sum(s.nbytes for s in program.storages) > 1 << 24:
        return  # its call would be refused, or large
    for executor in ("reference", "fused"):
        with nki.options(executor=executor, max_iterations=1000):
            try:
                program.run(X, COUNT)
            except nki.NkiError as problem:
                assert problem.kind != "program-file"


def test_the_program_itself_runs(text):
    refused_or_run(text)
    with target("trn2"):
        assert nki.Program.parse(text).run(X, COUNT).shape == (4, 6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(120))
def test_changed_numbers_are_refused_or_stay_inside_the_memory(seed, text):
    """Offsets, shapes, strides, counts, indices, positions and bounds of loops."""
    chosen = random.Random(seed)
    lines = text.splitlines()
    for _ in range(chosen.randint(1, 2)):
        number = chosen.choice([i for i, line in enumerate(lines) if re.search(r"\d", line) and i > 1])
        places = list(re.finditer(r"\b\d+\b", lines[number]))
        if places:
            at = chosen.choice(places)
            lines[number] = lines[number][: at.start()] + chosen.choice(NUMBERS) + lines[number][at.end() :]
    refused_or_run("\n".join(lines))


LOOP = r"fori_loop\(2, r3, 0, 2, 1,"


def replaced(text, pattern, new):
    changed = re.sub(pattern, new, text, count=1)
    assert changed != text, pattern
    return changed


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (LOOP, "fori_loop(2, r3, 0, 140737488355327, 1,"),
        (LOOP, "fori_loop(2, r3, 0, 2, 0,"),
        (LOOP, "fori_loop(2, r3, 0, 2, -1,"),
        (LOOP, "fori_loop(2, r3, 0, 'x', 1,"),
        (r'program\("moving"', r'program("\\x1b[2J"'),
        (r'name="out"', r'name="\\x9b31m"'),
        (r"\Z", "\n" + "(" * 5000),
        (r"\Z", "\n" + "-" * 50000 + "1"),
        (r"\Z", "\n" + "1" * 5000),
        (r"\Z", "\nx" + ".x" * 20000),
        (r"\Z", "\nedge(0, 1, 99999)"),
        (r"\Z", "\nedge(7, 0, 0)"),
        (r"\Z", "\ntrips(2, [140737488355327])"),
        (r"\Z", "\nline(-1, 1, 'x', 'y')"),
        (r"\Z", "\nresult(record('X', __class__=1))"),
        (r"\Z", r"\nresult(record('\\x1b[2J', a=1))"),
        (r"\Z", "\nresult(scalar('O', '00'))"),
        (r"\Z", "\nresult(scalar('float32', '0000'))"),
        (r"\Z", "\nresult(().__class__.__bases__[0].__subclasses__())"),
        (r"\Z", "\nresult(lambda: 1)"),
        (r"\Z", "\nresult([x for x in y])"),
        (r"\Z", "\nresult(f'{x}')"),
        (r"\Z", "\n__import__('os').abort()"),
        (r"\Z", "\nsaid('k', 'm', 'notes', None, -1, None)"),
        (r'constant="[^"]*"', 'constant="sha256:' + "0" * 64 + '"'),
        (r'constant="[^"]*"', 'constant="AAAA"'),
        (r'constant="[^"]*"', 'constant="not base64"'),
    ],
)
def test_a_hostile_line_is_refused_with_its_number(pattern, new, text):
    with pytest.raises(nki.NkiError, match="line .* of the program cannot be read") as caught:
        nki.Program.parse(replaced(text, pattern, new))
    assert caught.value.kind == "program-file"


def archive(**parts):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in parts.items():
            file.writestr(name.replace("__", "/"), data)
    return io.BytesIO(content.getvalue())


def test_archives_that_are_no_programs_are_refused(text, monkeypatch):
    for parts in ({}, {"other": b"x"}, {"program.txt": b"\xff\xfe"}, {"program.txt": b""}):
        with pytest.raises(nki.NkiError, match="program"):
            nki.Program.load(archive(**parts))
    monkeypatch.setattr("nki.ir.file.LARGEST", 1 << 20)
    with pytest.raises(nki.NkiError, match="more than 1,048,576 bytes"):
        nki.Program.load(archive(**{"program.txt": text, "constants__bomb": bytes(1 << 21)}))


def test_a_constant_of_another_content_is_not_taken(text, tmp_path):
    program = nki.Program.parse(text)
    path = tmp_path / "p.nki"
    program.save(path)
    with zipfile.ZipFile(path) as file:
        parts = {name.replace("/", "__"): file.read(name) for name in file.namelist()}
    name = next(name for name in parts if name.startswith("constants"))
    parts[name] = bytes(len(parts[name]))
    with pytest.raises(nki.NkiError, match="is not there"):
        nki.Program.load(archive(**parts))
