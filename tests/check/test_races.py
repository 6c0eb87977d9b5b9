"""Races between two cores are found, and nothing else is taken for one."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
from race_kernels import RIGHT, WRONG, argument

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check.races import races
from support import target


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


def races_of(run):
    return [d for d in run.diagnostics if d.kind == "race"]


def quietly(call, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args)


def test_there_are_thirty_racing_and_thirty_correct_kernels():
    assert len(WRONG) >= 30 and len(RIGHT) >= 30


@pytest.mark.parametrize("name", WRONG)
def test_a_race_is_found_by_a_run_and_from_shapes_alone(name):
    kernel = WRONG[name][2]
    assert races_of(quietly(kernel.run, argument())), "the first run"
    program = quietly(kernel.trace, nki.TensorSpec((8, 16), "float32"))
    assert races(program) and any(d.kind == "race" for d in program.diagnostics)


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_kernel_has_no_race(name):
    kernel = RIGHT[name][2]
    assert races_of(quietly(kernel.run, argument())) == []
    assert races_of(quietly(kernel.run, argument())) == []
    assert races(quietly(kernel.trace, nki.TensorSpec((8, 16), "float32"))) == []


@pytest.mark.parametrize("name", ["both_store_everything", "a_dynamic_loop_over_the_same_rows"])
def test_a_race_in_strict_mode_raises_and_changes_nothing(name, monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    for _ in range(2):
        with pytest.raises(nki.NkiError, match="both cores write") as caught:
            WRONG[name][2](argument())
        assert caught.value.kind == "race"
    x = argument()
    with pytest.raises(nki.NkiError):
        WRONG["both_update_an_argument"][2](x)
    assert np.array_equal(x, argument())


@pytest.mark.parametrize("name", WRONG)
def test_races_are_found_without_the_cache_too(name, monkeypatch):
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    assert races_of(quietly(WRONG[name][2].run, argument()))


@pytest.mark.parametrize("name", RIGHT)
def test_correct_kernels_without_the_cache_have_no_race(name, monkeypatch):
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    assert races_of(quietly(RIGHT[name][2].run, argument())) == []


def test_the_report_has_both_lines_the_bytes_and_the_missing_barrier():
    (found,) = races_of(quietly(WRONG["core_0_writes_core_1_reads"][2].run, argument()))
    text = str(found)
    assert "one core writes 'scratch' while the other reads it, and nothing orders them" in text
    assert "core 0 writes scratch[0:8, 0:16] at race_kernels.py:" in text
    assert "core 1 reads scratch[0:8, 0:16] at race_kernels.py:" in text
    assert "512 bytes are touched by both, between bytes 0 and 512" in text
    assert "did not synchronise before" in text and "nisa.core_barrier(scratch, (0, 1))" in text


def test_the_report_names_the_last_barrier():
    (found,) = races_of(quietly(WRONG["a_third_phase_without_a_barrier"][2].run, argument()))[:1]
    assert any(
        "last synchronised at race_kernels.py" in note and "core_barrier" in note for note in found.notes
    )


def test_a_cached_call_warns_again():
    kernel = WRONG["both_store_everything"][2]
    for _ in range(2):
        with pytest.warns(nki.NkiWarning, match="both cores write"):
            kernel(argument())


def test_one_core_has_no_races():
    assert races_of(quietly(WRONG["both_store_everything"].run, argument())) == []


def test_thousands_of_transfers_are_compared_quickly():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        me, (rows, columns) = nl.program_id(0), x.shape
        for row in range(0, rows, 128):
            for column in range(me * 8, columns, 16):
                tile = nl.ndarray((128, 8), x.dtype)
                nisa.dma_copy(tile, x[row : row + 128, column : column + 8])
                nisa.dma_copy(out[row : row + 128, column : column + 8], tile)
        return out

    program = kernel[2].trace(nki.TensorSpec((2048, 2048), "float32"))
    assert len(program) == 16 * 256 * 2
    begin = time.process_time()
    assert races(program) == []
    assert time.process_time() - begin < 2.0


# ---- what cores that race compute -----------------------------------------------------------------


@nki.jit
def zero_then_store(x):
    """Each core zeroes everything, then stores its own half: right on cores that run side by side."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    zeros, tile = nl.ndarray(x.shape, x.dtype), nl.ndarray((4, 16), x.dtype)
    nisa.memset(zeros, 0.0)
    nisa.dma_copy(out, zeros)
    mine = nl.ds(4 * nl.program_id(0), 4)
    nisa.dma_copy(tile, x[mine])
    nisa.dma_copy(out[mine], tile)
    return out


@nki.jit
def look_zero_then_store(x):
    """The same, from Python that looks at a value: each instruction runs as it is issued."""
    tile = nl.ndarray((1, 1), x.dtype)
    nisa.dma_copy(tile, x[0:1, 0:1])
    nl.device_print("first", tile)
    return zero_then_store(x)


@pytest.mark.parametrize("executor", ["auto", "reference", "plan"])
def test_cores_that_race_alternate_and_warn(executor):
    x = argument()
    with nki.options(executor=executor):
        for _ in range(2):  # the second call finds the program of the first
            run = quietly(zero_then_store[2].run, x)
            np.testing.assert_array_equal(run.result, x)
            assert races_of(run)


def test_cores_alternate_in_eager_mode_too(monkeypatch, capsys):
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    x = argument()
    run = quietly(look_zero_then_store[2].run, x)
    np.testing.assert_array_equal(run.result, x)
    assert len(races_of(run)) == len({d.line for d in races_of(run)}) > 0
    assert capsys.readouterr().out.count("first") == 2  # one print of each core


def test_a_race_of_three_steps_is_the_same_every_time():
    @nki.jit
    def writers(x):
        out = shared_like(x)
        tile = nl.ndarray(x.shape, x.dtype)
        for step in range(3):
            nisa.memset(tile, float(10 * step + nl.program_id(0)))
            nisa.dma_copy(out, tile)
        return out

    found = {float(quietly(writers[2], argument())[0, 0]) for _ in range(5)}
    assert found == {21.0}  # the second core's last turn comes last


def shared_like(x):
    return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
