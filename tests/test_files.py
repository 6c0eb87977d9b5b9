"""Files that someone else wrote: none is executed, none blocks, and each is refused in one line."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import hostile
import nki
import nki.isa as nisa
import nki.language as nl
from nki import files
from nki.check.findings import Baseline
from nki.cli import main
from nki.errors import NkiFileError
from nki.testing.budgets import Snapshots
from nki.tune import stored
from nki.tune.space import Space
from nki_legacy import sessions
from nki_legacy.commands import neuron_profile

SPACE = Space({"TILE": [1, 2]}, None)


@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    nisa.dma_copy(out, tile)
    return out


SPEC = nki.TensorSpec((4, 6), "float32")


def snapshots(path):
    found = Snapshots("test_none.py")
    found.path = path
    return found.read()


def tuned(path):
    path.rename(path.parent / "key.json")
    if stored.read("key", SPACE, path.parent) is None:
        raise ValueError("not used")


READERS = {
    "profile": nki.Profile.load,
    "baseline": Baseline.load,
    "costs": snapshots,
    "tuned": tuned,
    "session": sessions.read,
    "program": nki.Program.load,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", hostile.JSON)
def test_hostile_json_is_refused_with_a_reason(name, reader, tmp_path):
    path = tmp_path / "hostile"
    path.write_bytes(hostile.JSON[name])
    with pytest.raises(ValueError) as caught:
        READERS[reader](path)
    assert isinstance(caught.value, NkiFileError) or reader in ("tuned", "session")
    assert len(str(caught.value)) < 500


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes")
@pytest.mark.parametrize("reader", READERS)
def test_only_regular_files_are_read(reader, tmp_path):
    for number, path in enumerate(hostile.not_files(tmp_path).values()):
        if reader == "tuned":
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "key.json").symlink_to(path)
            assert stored.read("key", SPACE, tmp_path / str(number)) is None
        elif path.exists():
            with pytest.raises((NkiFileError, OSError), match="regular file"):
                READERS[reader](path)


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert files.read_bytes(path, 10) == b"0123456789"
    with pytest.raises(OSError, match="larger than 9 bytes"):
        files.read_bytes(path, 9)


def test_a_missing_file_is_not_found(tmp_path):
    for name in set(READERS) - {"costs", "tuned"}:
        with pytest.raises(FileNotFoundError):
            READERS[name](tmp_path / "missing")


# ---- profiles -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def figures():
    return {"format": "open-nki profile 1", "kernel": "k", "figures": nki.profile(twice)(SPEC).to_dict()}


@pytest.mark.parametrize("seed", range(60))
def test_a_changed_profile_is_compared_or_refused(seed, figures, tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(figures))
    bad.write_text(json.dumps(hostile.mutated(figures, seed)))
    for pair in ((good, bad), (bad, good)):
        code = main(["compare", *map(str, pair)])
        printed = capsys.readouterr()
        assert code in (0, 2)
        assert "Traceback" not in printed.err and "fault of Open NKI" not in printed.err
        assert code == 0 or printed.err.count("\n") == 2, "what is wrong, and what to do"


# ---- tuned tables, costs, sessions ---------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, {"TILE": 3}, {"TILE": [1]}, {"TILE": "1"}, {"OTHER": 1}, [1], None])
def test_a_tuned_configuration_outside_the_space_is_not_used(config, tmp_path):
    content = {"format": stored.FORMAT, "config": config, "us": 1.0}
    (tmp_path / "key.json").write_text(json.dumps(content))
    assert stored.read("key", SPACE, tmp_path) is None


def test_a_tuned_configuration_has_the_values_of_the_space(tmp_path):
    (tmp_path / "key.json").write_text(
        json.dumps({"format": stored.FORMAT, "config": {"TILE": True}, "us": 1})
    )
    assert stored.read("key", SPACE, tmp_path)["config"]["TILE"] is SPACE.vary["TILE"][0]


@pytest.mark.parametrize("seed", range(20))
def test_changed_costs_are_read_or_refused(seed, tmp_path):
    cost = {"us": 2.0, "sbuf": 1, "psum": 0, "lines": [{"source": "x = 1", "us": 1.0}]}
    path = tmp_path / "costs.json"
    path.write_text(
        json.dumps(hostile.mutated({"format": "open-nki costs 1", "tests": {"t": {"c": cost}}}, seed))
    )
    found = Snapshots("test_none.py")
    found.path = path
    try:
        found.slower("t", [], 0.1)
    except NkiFileError as problem:
        assert problem.kind == "costs-file"


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_session_is_shown_or_refused(seed, tmp_path, capsys):
    path = tmp_path / "profile.ntff"
    sessions.write(path, "twice", [twice.trace(SPEC)])
    path.write_text(json.dumps(hostile.mutated(json.loads(path.read_text()), seed)))
    code = neuron_profile.main(["view", "-s", str(path), "--output-format", "summary-text"])
    assert code in (0, 2)
    assert code == 0 or capsys.readouterr().err.count("\n") == 1


def test_a_baseline_of_another_kind_exits_with_2(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import nki\n@nki.jit\ndef k(x):\n    return x\n")
    (tmp_path / "known.json").write_bytes(hostile.JSON["nested lists"])
    assert main(["check", str(script), "--baseline", str(tmp_path / "known.json")]) == 2
    assert "nested too deeply" in capsys.readouterr().err


# ---- files of kernels ----------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes")
def test_a_pipe_among_the_scripts_of_a_folder_is_passed_over(tmp_path, capsys):
    hostile.os.mkfifo(tmp_path / "a.py")
    (tmp_path / "b.py").write_text("import nki\n@nki.jit\ndef k(x):\n    return x\n")
    assert main(["check", str(tmp_path)]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes")
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"not numpy", hostile.JSON["pickle"]])
def test_a_shared_constant_is_a_npy_file(content, tmp_path):
    @nki.jit
    def constant(x):
        return nl.shared_constant(path)

    path = str(tmp_path / "constant.npy")
    (tmp_path / "constant.npy").write_bytes(content)
    with pytest.raises(nki.NkiError, match="cannot be read as a .npy file"):
        constant(np.zeros((2, 2), np.float32))
    (tmp_path / "constant.npy").unlink()
    hostile.os.mkfifo(path)
    with pytest.raises(nki.NkiError, match="not a regular file"):
        constant(np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("prefix", ["..", ".", "", "../../up", "a/../../b", "/absolute", "..\\up"])
def test_device_print_writes_inside_its_directory(prefix, tmp_path, monkeypatch, capsys):
    @nki.jit
    def prints(x):
        tile = nl.load(x)
        nl.device_print(prefix, tile)
        return nl.store(nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), tile)

    inside = tmp_path / "out" / "debug"
    monkeypatch.setenv("NEURON_RT_DEBUG_OUTPUT_DIR", str(inside))
    prints(np.zeros((2, 2), np.float32))
    written = list(tmp_path.rglob("*.npy"))
    assert (
        len(written) == 1
        and inside in written[0].parents
        and written[0].parent.parent.parent != inside.parent
    )
