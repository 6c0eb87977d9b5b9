"""Tuning by the model: spaces, what is dropped, bounds, the search, the cache, processes and the command."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.cli import main
from nki.tune import Space, autotune, tune
from nki.tune import model as models
from nki.tune.search import search
from nki.tune.space import parse_vary
from support import target

SPEC = nki.TensorSpec((256, 2048), "float32")


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("OPEN_NKI_CACHE_DIR", str(tmp_path / "cache"))
    with target("trn2"):
        yield


@nki.jit
def doubled(x, columns=512, copies=1, useless=0):
    """2 x by tiles of `columns`; more copies cost more, `useless` costs nothing."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    for row in range(0, x.shape[0], 128):
        for column in range(0, x.shape[1], columns):
            tile = nl.ndarray((128, columns), x.dtype)
            part = (slice(row, row + 128), slice(column, column + columns))
            nisa.dma_copy(tile, x[part])
            for _ in range(copies):
                nisa.tensor_scalar(tile, tile, nl.multiply, 2.0 ** (1 / copies))
            nisa.dma_copy(out[part], tile)
    return out


# ---- spaces --------------------------------------------------------------------------------------


def test_a_space_is_every_combination_that_the_condition_allows():
    space = Space({"A": [1, 2, 4], "B": [1, 2]}, "A * B <= 4 and not A == 2")
    assert [(c["A"], c["B"]) for c in space] == [(1, 1), (1, 2), (4, 1)]
    assert space.size == 6
    assert len(list(Space({"A": [1, 2, 4]}, lambda c: c["A"] > 1))) == 2


@pytest.mark.parametrize("where", ["__import__('os')", "A.real", "A[0]", "C > 1", "A +", "(lambda: 1)()"])
def test_a_condition_is_arithmetic_alone(where):
    with pytest.raises(nki.NkiError, match="where"):
        Space({"A": [1]}, where)


def test_values_of_the_command_line():
    assert parse_vary("TN=128,256,512") == ("TN", [128, 256, 512])
    assert parse_vary("B=1..4") == ("B", [1, 2, 3, 4])
    assert parse_vary("K=0..256..64,512") == ("K", [0, 64, 128, 192, 256, 512])
    assert parse_vary("order=mn,nm") == ("order", ["mn", "nm"])
    assert parse_vary("flag=True,False") == ("flag", [True, False])
    for wrong in ("TN", "=1", "TN=", "TN=4..1"):
        with pytest.raises(nki.NkiError):
            parse_vary(wrong)
    with pytest.raises(nki.NkiError, match="nothing to vary"):
        Space({})


# ---- tuning --------------------------------------------------------------------------------------


def test_the_best_of_all_is_found_whatever_the_number_of_processes():
    vary = {"columns": [128, 256, 512, 1024, 2048], "copies": [1, 2]}
    one = tune(doubled, [SPEC], vary=vary, jobs=1, cache=False)
    two = tune(doubled, [SPEC], vary=vary, jobs=2, cache=False)
    assert one.best == two.best and one.us == two.us and one.tried == two.tried == 10
    times = {c: nki.profile(doubled)(SPEC, columns=c).total_us for c in vary["columns"]}
    assert one.us == min(times.values()) and one.best == {"columns": min(times, key=times.get), "copies": 1}


def test_configurations_that_fail_a_check_are_dropped_and_counted():
    found = tune(doubled, [nki.TensorSpec((256, 65536), "float32")], vary={"columns": [512, 32768, 65536]})
    assert sum(found.dropped.values()) == 1 and found.dropped["capacity"] == 1
    assert found.best["columns"] in (512, 32768)
    assert [o.why for o in found.outcomes if o.us is None and o.why != "bound"] == ["capacity"]


def test_an_empty_space_raises_with_the_reason():
    with pytest.raises(nki.NkiError, match="none of 1 configurations can be used") as caught:
        tune(doubled, [nki.TensorSpec((256, 65536), "float32")], vary={"columns": [65536]})
    assert any("1 x capacity" in note for note in caught.value.notes)
    with pytest.raises(nki.NkiError, match="refuses all configurations"):
        tune(doubled, [SPEC], vary={"columns": [512]}, where="columns < 0")


def test_equal_programs_are_timed_once(monkeypatch):
    timed = []
    real = models.profile_program
    monkeypatch.setattr(models, "profile_program", lambda p: timed.append(p.digest) or real(p))
    found = tune(doubled, [SPEC], vary={"columns": [512], "useless": [0, 1, 2, 3]}, jobs=1, cache=False)
    assert len(timed) == 1 and found.same == 3 and found.tried == 4


def test_bounds_prune_and_never_the_best():
    vary = {"copies": [1, 60, 80, 100], "columns": [2048]}
    found = tune(doubled, [SPEC], vary=vary, jobs=1, cache=False)
    assert found.pruned >= 1 and found.best["copies"] == 1


@pytest.mark.parametrize("columns", [128, 512, 2048])
@pytest.mark.parametrize("copies", [1, 7, 50])
def test_no_schedule_is_faster_than_the_bound(columns, copies):
    program = doubled.trace(SPEC, columns=columns, copies=copies)
    assert 0 < models.bound_us(program) <= program.profile().total_us


# ---- the search ----------------------------------------------------------------------------------


def landscape(seed):
    """A time over six parameters of eight values: a valley with a rough floor, some of it forbidden."""
    chance = random.Random(seed)
    centre = [chance.randrange(8) for _ in range(6)]
    weights = [chance.uniform(0.2, 2) for _ in range(6)]

    def us(config):
        place = [config[name] for name in "abcdef"]
        rough = random.Random(hash((seed, *place))).uniform(0, 2)
        if sum(place) % 7 == 3:
            return None
        return 50 + rough + sum(w * (p - c) ** 2 for w, p, c in zip(weights, place, centre, strict=True))

    return us


def best_of_search(us, budget, seed):
    found = []

    def ask(configs):
        times = [us(config) for config in configs]
        found.extend(t for t in times if t is not None)
        return times

    search(Space(dict.fromkeys("abcdef", range(8))), budget, 4, ask, seed + 1000)
    return min(found)


def best_of_random(us, budget, seed):
    chance = random.Random(seed + 1000)
    times = [us({name: chance.randrange(8) for name in "abcdef"}) for _ in range(budget)]
    return min(t for t in times if t is not None)


def test_the_search_beats_random_at_equal_budget():
    wins = [
        best_of_search(landscape(seed), 300, seed) < best_of_random(landscape(seed), 300, seed)
        for seed in range(20)
    ]
    assert sum(wins) >= 18


def test_the_search_stays_within_its_budget_and_repeats_nothing():
    asked = []

    def ask(configs):
        asked.extend(map(repr, configs))
        return [1.0 for _ in configs]

    search(Space(dict.fromkeys("abcdef", range(8)), "a + b < 9"), 97, 5, ask)
    assert len(asked) == len(set(asked)) == 97
    small = Space({"a": range(3), "b": range(3)})
    asked.clear()
    search(small, 97, 5, ask)
    assert len(asked) == len(set(asked)) <= 9


# ---- the cache -----------------------------------------------------------------------------------


def files(tmp_path):
    return sorted((tmp_path / "cache" / "tuned").glob("*"))


def test_the_best_is_stored_as_json_that_other_machines_can_read(tmp_path):
    first = tune(doubled, [SPEC], vary={"columns": [512, 1024]}, jobs=1)
    (file,) = files(tmp_path)
    content = json.loads(file.read_text())
    assert content["config"] == first.best and content["us"] == first.us and content["target"] == "trn2"
    again = tune(doubled, [SPEC], vary={"columns": [512, 1024]}, jobs=1)
    assert again.from_cache and (again.best, again.us) == (first.best, first.us)


def test_another_question_has_another_key(tmp_path):
    tune(doubled, [SPEC], vary={"columns": [512, 1024]}, jobs=1)
    tune(doubled, [nki.TensorSpec((128, 2048), "float32")], vary={"columns": [512, 1024]}, jobs=1)
    tune(doubled, [SPEC], vary={"columns": [512]}, jobs=1)
    tune(doubled, [SPEC], vary={"columns": [512, 1024]}, jobs=1, target="trn3")
    assert len(files(tmp_path)) == 4


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"format": 0}', '{"format": "open-nki tuned 1"}', "\x00"]
)
def test_a_file_that_cannot_be_read_is_written_again(content, tmp_path, caplog):
    first = tune(doubled, [SPEC], vary={"columns": [512, 1024]}, jobs=1)
    (file,) = files(tmp_path)
    file.write_text(content)
    with caplog.at_level(logging.WARNING, "nki.tune"):
        again = tune(doubled, [SPEC], vary={"columns": [512, 1024]}, jobs=1)
    assert not again.from_cache and again.best == first.best and "tuning again" in caplog.text


def test_a_write_that_breaks_off_leaves_nothing_half_written(tmp_path, monkeypatch, caplog):
    def fail(*paths):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    tune(doubled, [SPEC], vary={"columns": [512, 1024]}, jobs=1)
    assert "cannot be written" in caplog.text and not [f for f in files(tmp_path) if f.suffix == ".json"]


# ---- the decorator -------------------------------------------------------------------------------


def test_autotune_runs_the_best_for_the_shapes_of_a_call(monkeypatch):
    tuned = autotune({"columns": [256, 512, 1024]}, jobs=1)(doubled)
    x = np.ones((128, 1024), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (tuned(x) == 2).all()
    assert tuned.tune(x).best == tune(doubled, [x], vary={"columns": [256, 512, 1024]}, jobs=1).best
    assert (tuned(x, columns=256) == 2).all(), "the caller may choose"
    assert tuned.__name__ == "doubled" and "2 x by tiles" in tuned.__doc__
    with pytest.raises(nki.NkiError, match="has no parameter rows"):
        autotune({"rows": [1]})(doubled)
    both = autotune({"columns": [256, 512], "copies": [1, 2]}, jobs=1)(doubled)
    with pytest.raises(nki.NkiError, match="give all varied arguments"):
        both(x, columns=256)


def test_autotune_is_a_public_name():
    assert nki.autotune is autotune


# ---- the command ---------------------------------------------------------------------------------

SCRIPT = """
    import nki
    import nki.isa as nisa
    import nki.language as nl

    @nki.autotune({"TN": [256, 512]}, jobs=1)
    @nki.jit
    def copied(x, TN=512):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        for column in range(0, x.shape[1], TN):
            tile = nl.ndarray((x.shape[0], TN), x.dtype)
            nisa.dma_copy(tile, x[:, column : column + TN])
            nisa.dma_copy(out[:, column : column + TN], tile)
        return out
"""


def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    spec = f"{tmp_path / 'script.py'}:copied"
    arguments = ["--arg", "x=float32[128,2048]", "--jobs", "1"]
    assert main(["tune", spec, *arguments, "--vary", "TN=256..1024..256", "--where", "TN != 768"]) == 0
    out = capsys.readouterr().out
    assert "modelled us" in out and "by the model" in out and "3 configurations" in out
    assert max(map(len, out.splitlines())) <= 100
    assert main(["tune", spec, *arguments, "--json", "--no-cache"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tried"] == 2 and facts["best"]["TN"] in (256, 512), "the space of the decorator"


def test_wrong_command_lines_are_refused(tmp_path, capsys):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    spec, x = f"{tmp_path / 'script.py'}:copied", ["--arg", "x=float32[128,2048]"]
    assert main(["tune", spec, *x, "--vary", "TM=1"]) == 2
    assert "has no parameter TM" in capsys.readouterr().err
    assert main(["tune", spec, "--vary", "TN=512"]) == 2
    assert main(["tune", spec, *x, "--vary", "TN=512", "--where", "exec"]) == 1


KILLED = """
import time
import nki, nki.isa as nisa, nki.language as nl
from nki.tune import tune

@nki.jit
def slow(x, N=1):
    time.sleep(0.3)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out

def progress(done, total, best):
    print("busy", flush=True)

x, numbers = nki.TensorSpec((4, 4), "float32"), list(range(200))
tune(slow, (x,), vary={"N": numbers}, jobs=2, cache=False, progress=progress)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_tuning_that_is_killed_leaves_no_process_behind(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    busy = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, start_new_session=True)

    def session():
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                found += [stat.parent.name] if int(session) == busy.pid and state != "Z" else []
        return found

    assert busy.stdout.readline() == b"busy\n"
    assert len(session()) >= 4, "the parent, a manager and two workers"
    busy.kill()
    busy.wait()
    until = time.monotonic() + 20
    while session() and time.monotonic() < until:
        time.sleep(0.05)
    assert session() == []
