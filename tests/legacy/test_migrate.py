"""`nki migrate`: what is old in a file, and a rewrite that computes the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from nki.cli import main

pytest.importorskip("libcst", reason="no libcst here: pip install libcst")
from nki_legacy.commands import source_file
from nki_legacy.commands.rewriting import migrate

pytestmark = pytest.mark.filterwarnings("ignore")

SAFE = """# adds two tensors
from neuronxcc import nki
import neuronxcc.nki.language as nl  # the language


@nki.jit(mode="simulation")
def add(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):  # tiles of four rows
        x = nl.load(a[i * 4 : i * 4 + 4, :])
        nl.store(out[i * 4 : i * 4 + 4, :], nl.add(x, nl.load(b[i * 4 : i * 4 + 4, :])))
    return out
"""
ARGUMENTS = ["--arg", "a=float32[8,4]", "--arg", "b=float32[8,4]"]


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "kernel.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def no_stubs_afterwards():
    yield
    from nki_legacy import stubs

    stubs.remove()


def found(capsys, path):
    code = main(["migrate", str(path), "--json"])
    return code, {f["old"]: (f["line"], f["safe"]) for f in json.loads(capsys.readouterr().out)["findings"]}


def test_each_old_name_has_its_line_and_whether_it_is_safe(capsys, file):
    code, names = found(capsys, file(SAFE))
    assert code == 1
    assert names["from neuronxcc import nki"] == (2, True) and names["nl.affine_range"] == (9, True)
    assert names['@nki.jit(mode="simulation")'] == (6, True)


def test_what_a_person_must_do_is_named(capsys, file):
    source = SAFE.replace(
        "nl.load(a[i * 4 : i * 4 + 4, :])", "nl.load(a[nl.arange(4)[:, None], 0], mask=None)"
    )
    _, names = found(capsys, file(source))
    assert names["nl.arange"] == (10, False) and names["nl.load(mask=)"] == (10, False)
    old = "import neuronxcc.nki.isa as nisa\nr = nisa.nc_matmul(a, b)\nnisa.dma_copy(a, b, dst_rmw_op=c)\n"
    _, names = found(capsys, file(old))
    assert "r = nisa.nc_matmul(...)" in names and "nisa.dma_copy(dst_rmw_op=)" in names


def test_a_file_of_today_has_nothing_old(capsys, file):
    path = file("import nki\nimport nki.isa as nisa\nnisa.tensor_copy(a, b)\n")
    assert main(["migrate", str(path)]) == 0 and "nothing of an older API" in capsys.readouterr().out


def test_write_preserves_comments_and_results(capsys, file):
    path = file(SAFE)
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 0
    capsys.readouterr()
    new = path.read_text()
    assert "neuronxcc" not in new and "# the language" in new and "for i in range(2):  # tiles" in new
    assert "@nki.jit\n" in new and found(capsys, path)[0] == 0


@pytest.mark.parametrize(
    "header, language",
    [
        ("import neuronxcc.nki as nki\nimport neuronxcc.nki.language as tl", "tl."),
        ("from neuronxcc.nki import jit as k, language\nimport neuronxcc.nki as nki", "language."),
        ("import neuronxcc.nki\nfrom neuronxcc import nki", "neuronxcc.nki.language."),
        ("from neuronxcc import nki\nfrom neuronxcc.nki.language import *", ""),
    ],
)
def test_write_follows_the_names_of_the_file_and_the_result_runs(capsys, file, header, language):
    body = SAFE[SAFE.index("\n\n") :].replace("def add(", "def total(").replace("nl.", language)
    path = file(header + body)
    code = main(["migrate", str(path), "--write", *ARGUMENTS])
    said = capsys.readouterr().err
    if header.startswith("import neuronxcc.nki\n"):  # its `nki` would be two things
        assert code == 1 and "`nki` is another name here" in said
    else:
        assert code == 0 and "neuronxcc" not in path.read_text() and found(capsys, path)[0] == 0


def test_write_leaves_line_ends_form_feeds_and_other_alphabets_alone(capsys, file):
    path = file(SAFE)
    path.write_bytes(("# für α\x0cβ\n" + SAFE).replace("\n", "\r\n").encode())
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 0
    new = path.read_bytes()
    assert new.startswith("# für α\x0cβ\r\n".encode()) and new.count(b"\n") == new.count(b"\r\n")
    assert b"neuronxcc" not in new and b"# tiles" in new


def test_write_refuses_what_needs_a_person_and_names_each_place(capsys, file):
    operator = SAFE.replace("nl.add(x, nl.load(b[i * 4 : i * 4 + 4, :]))", "x + x")
    path = file(operator)
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 1
    said = capsys.readouterr()
    assert path.read_text() == operator and ", 1 for you" in said.out
    assert f"{path}:11:" in said.err and ": x + x: arithmetic on tiles; today: nl.add" in said.err
    assert main(["migrate", str(file(SAFE)), "--write"]) == 2


def test_write_refuses_what_does_not_run(capsys, file):
    path = file(SAFE)
    assert main(["migrate", str(path), "--write", "--arg", "a=float32[8,4]", "--arg", "b=float32[3,4]"]) == 1
    assert path.read_text() == SAFE and "it does not run" in capsys.readouterr().err


def test_a_file_that_is_no_python_is_refused(capsys, file):
    assert main(["migrate", str(file("def :"))]) == 2


# ---- names ---------------------------------------------------------------------------------------


def changes(source):
    """Return the migrated source, what it changed and what it left, as (line, old)."""
    new, places = migrate(source)
    return new, {(p.line, p.old) for p in places if not p.why}, {(p.line, p.old) for p in places if p.why}


@pytest.mark.parametrize(
    "imports, use, new_imports, new_use",
    [
        (
            "import neuronxcc.nki.language as tl",
            "tl.affine_range(2)",
            "import nki.language as tl",
            "range(2)",
        ),
        ("from neuronxcc import nki as k", "k.language.load(x)", "import nki as k", "k.language.load(x)"),
        ("import neuronxcc.nki", "neuronxcc.nki.language.load(x)", "import nki", "nki.language.load(x)"),
        ("import neuronxcc.nki as nki", "nki.jit", "import nki", "nki.jit"),
        (
            "from neuronxcc.nki import language as nl, isa",
            "nl.load(x), isa.dma_copy(x, y)",
            "from nki import language as nl, isa",
            "nl.load(x), isa.dma_copy(x, y)",
        ),
        (
            "from neuronxcc.nki.language import affine_range as r, load",
            "r(2), load(x)",
            "from nki.language import load",
            "range(2), load(x)",
        ),
        (
            "from neuronxcc.nki.language import *",
            "store(y, load(x)), max(load(x), axis=1), len(x), affine_range(2)",
            "from nki.language import load, max, store",
            "store(y, load(x)), max(load(x), axis=1), len(x), range(2)",
        ),
        (
            "import os, neuronxcc.nki.language as nl",
            "nl.affine_range(1), nl.affine_range(1)",
            "import os, nki.language as nl",
            "range(1), range(1)",
        ),
        (
            "import neuronxcc.nki.language as t",
            "t.tile_size.psum_fmax",
            "import nki.language as t",
            "t.tile_size.psum_bank_fmax",
        ),
    ],
)
def test_names_are_resolved_by_imports(imports, use, new_imports, new_use):
    new, _, left = changes(f"{imports}\n\n\ndef f(x, y):\n    return {use}  # so\n")
    assert new == f"{new_imports}\n\n\ndef f(x, y):\n    return {new_use}  # so\n" and left == set()


def test_names_are_resolved_by_scope():
    source = """import numpy as np
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa


def host(x, nl):
    return nl.affine_range(np.amax(x)), np.amax(x, axis=1), sorted(x, key=np.amax)


def shadowed(range):
    return nl.affine_range(2)


def kernel(t, d):
    nisa.dma_copy(d, t, op=np.amax)
"""
    new, changed, left = changes(source)
    assert "return nl.affine_range(np.amax(x)), np.amax(x, axis=1), sorted(x, key=np.amax)" in new
    assert "op=nl.maximum)" in new and (15, "np.amax") in changed
    assert left == {(11, "nl.affine_range"), (15, "nisa.dma_copy(op=)")}


@pytest.mark.parametrize(
    "code, old",
    [
        ("other = nl", "nl"),
        ("getattr(nl, 'arange')", "nl"),
        ("nl.load(x, mask=m)", "nl.load(mask=)"),
        ("nl.load(x, m)", "nl.load, argument 2"),
        ("nl.sum(x, axis=1, keep=True)", "nl.sum(keep=)"),
        ("nl.no_such(x)", "nl.no_such"),
        ("nl.program_id(1)", "nl.program_id(1)"),
        ("nisa.tensor_tensor(x, x, op=nl.add)", "r = nisa.tensor_tensor(...)"),
        ("-nl.load(x)", "-nl.load(x)"),
        ("nl.load(x) < 1", "nl.load(x) < 1"),
        ("x[nl.load(x), 0]", "x[index_tile, ...]"),
        ("helper(nl.load(x))", "t * 2"),
        ("made(x) - 1", "made(x) - 1"),
        ("[nl.load(x) for _ in x][0] + 1", "[nl.load(x) for _ in x][0] + 1"),
        ("m.tile = nl.load(x); m.tile + 1", "m.tile + 1"),
        ("{'a': nl.load(x)}['a'] + 1", "{'a': nl.load(x)}['a'] + 1"),
        ("[t + 1 for t in [nl.load(x)]]", "t + 1"),
        ("m['a'] = nl.load(x); m['a'] + 1", "m['a'] + 1"),
        ("nl.load(x).broken()", ".broken"),
        ("kernel[4, 2](x)", "kernel[4, 2]"),
        ("__import__('neuronxcc.nki')", "'neuronxcc.nki'"),
    ],
)
def test_what_is_not_changed_is_listed(code, old):
    source = f"""import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa


def helper(t):
    return t * 2


def made(x):
    y = nl.load(x)
    return y


@nki.jit
def kernel(x, m):
    return x


def f(x, m):
    {code}
"""
    new, _, left = changes(source)
    line = 7 if "t * 2" in old else 21
    assert (line, old) in left and new.splitlines()[20] == f"    {code}"


def test_sizes_indices_and_lists_are_no_tiles():
    source = """import neuronxcc.nki.language as nl


def kernel(x):
    n = x.shape[0] * 2 + 1
    tile = nl.load(x)
    half = tile.shape[1] // 2
    tiles = [tile] * 2
    for i in range(half):
        nl.store(x[i * 2 : i * 2 + n], tile)
    return -n, half < 3, nl.program_id(0) * 2
"""
    assert changes(source)[2] == set()


def test_two_meanings_of_a_name_are_left_to_a_person():
    source = """try:
    import neuronxcc.nki.language as nl
except ImportError:
    import nki.language as nl

nl.affine_range(2)
"""
    new, _, left = changes(source)
    assert "nl.affine_range(2)" in new and any(line == 6 for line, _ in left)


def test_counts_and_diff_come_from_the_same_places(capsys, file):
    path = file(SAFE)
    assert main(["migrate", str(path), "--diff"]) == 1
    diff = capsys.readouterr().out
    assert "-    for i in nl.affine_range(2):  # tiles of four rows\n" in diff and diff.count("\n+") == 5
    assert path.read_text() == SAFE
    assert main(["migrate", str(path)]) == 1
    assert "4 places, 4 that --write can change, 0 for you" in capsys.readouterr().out


def test_the_table_of_the_page_is_what_is_listed():
    page = (Path(__file__).parents[2] / "docs/migration.md").read_text("utf-8")
    kernel = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    kernel = re.sub(r"from nki_legacy import stubs\n\nstubs.*\n", "", kernel)
    rows = re.findall(r"^ (\d+):(\d+) +(\S.*?)  +(\S.*?)  +(--write|you: .*?)$", page, re.MULTILINE)
    listed = {
        (p.line, p.column, p.old, p.new, f"you: {p.why}" if p.why else "--write") for p in migrate(kernel)[1]
    }
    assert len(rows) == 5 and {(int(line), int(column), *rest) for line, column, *rest in rows} <= listed


def test_a_missing_libcst_is_one_line(capsys, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "nki_legacy.commands.rewriting", None)
    assert main(["migrate", str(file(SAFE))]) == 2
    said = capsys.readouterr().err
    assert "nki migrate needs libcst: pip install libcst" in said and len(said.splitlines()) == 1


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["utf-8-sig", "latin-1", "utf-8"])
def test_write_preserves_encoding_permissions_and_links(file, tmp_path, coding):
    path = file("")
    text = ("# -*- coding: latin-1 -*-\n" if coding == "latin-1" else "") + "# für\n" + SAFE
    path.write_bytes(text.encode(coding))
    path.chmod(0o640)
    link = tmp_path / "link.py"
    link.symlink_to(path)
    assert main(["migrate", str(link), "--write", *ARGUMENTS]) == 0
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes().startswith(text[: text.index("# adds")].encode(coding))
    assert "neuronxcc" not in path.read_text(coding) and sorted(tmp_path.glob("*.py")) == [path, link]


def test_a_full_disk_leaves_the_source_whole(capsys, file, tmp_path, monkeypatch):
    path = file(SAFE)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(source_file.os, "fsync", full)
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 2
    assert "No space left" in capsys.readouterr().err
    assert path.read_text() == SAFE and [p for p in tmp_path.iterdir() if p.name != "__pycache__"] == [path]


def test_an_unplanned_change_is_refused(capsys, file, monkeypatch):
    def careless(source):
        new, places = migrate(source)
        return new.replace("# adds", "# Adds"), places

    monkeypatch.setattr("nki_legacy.commands.rewriting.migrate", careless)
    path = file(SAFE)
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 1
    assert "line 1 would change, which is not planned" in capsys.readouterr().err and path.read_text() == SAFE


def test_an_undecodable_file_is_refused(capsys, file):
    path = file("")
    path.write_bytes(b"x = '\xff'\n")
    assert main(["migrate", str(path)]) == 2 and "encoding" in capsys.readouterr().err
