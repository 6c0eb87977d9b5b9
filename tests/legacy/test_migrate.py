"""`nki migrate`: what is old in a file, and a rewrite that computes the same."""

from __future__ import annotations

import json

import pytest

from nki.cli import main

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
    assert names["@nki.jit(mode='simulation')"] == (6, True)


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


def test_write_leaves_line_ends_form_feeds_and_other_alphabets_alone(capsys, file):
    path = file(SAFE)
    path.write_bytes(("# für α\x0cβ\n" + SAFE).replace("\n", "\r\n").encode())
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 0
    new = path.read_bytes()
    assert new.startswith("# für α\x0cβ\r\n".encode()) and new.count(b"\n") == new.count(b"\r\n")
    assert b"neuronxcc" not in new and b"# tiles" in new


def test_write_refuses_what_does_not_run_or_needs_a_person(capsys, file):
    operator = SAFE.replace("nl.add(x, nl.load(b[i * 4 : i * 4 + 4, :]))", "x + x")
    path = file(operator)
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 1
    assert path.read_text() == operator and "it does not run" in capsys.readouterr().err
    path = file(SAFE.replace("i * 4 + 4, :])\n", "i * 4 + 4, :], mask=None)\n", 1))
    assert main(["migrate", str(path), "--write", *ARGUMENTS]) == 1
    assert "need a person first" in capsys.readouterr().err
    assert main(["migrate", str(file(SAFE)), "--write"]) == 2


def test_a_file_that_is_no_python_is_refused(capsys, file):
    assert main(["migrate", str(file("def :"))]) == 2
