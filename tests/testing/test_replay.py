"""The values of any step, computed again from checkpoints, are those that the run had."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.report.recording import as_matrix
from nki.testing import replay

pytestmark = pytest.mark.filterwarnings("ignore::nki.NkiWarning", "ignore::DeprecationWarning")

X = np.random.default_rng(0).standard_normal((256, 16)).astype(np.float32)


@nki.jit
def rows(x):
    """Partly written tiles, an accumulation in PSUM, and a tile that only an instruction refers to."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), nl.bfloat16)
        nisa.dma_copy(tile[:, 4:], x[row : row + 128, 4:])
        nisa.activation(tile[:, :4], nl.exp, tile[:, 4:8])
        sums = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        for _ in range(3):
            nisa.nc_matmul(sums, tile, tile)
        nisa.tensor_copy(nl.ndarray((16, 16), nl.float32), sums)
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nisa.dma_copy(out[row : row + 128, :], tile)
    return out


@nki.jit
def halves(x):
    """Each core computes a half, sends a part to the other, and writes after a barrier."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    tile, other = nl.ndarray((128, x.shape[1]), x.dtype), nl.ndarray((128, x.shape[1]), x.dtype)
    nisa.dma_copy(tile, x[core * 128 : core * 128 + 128, :])
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0 + core)
    nisa.sendrecv(src=tile, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.tensor_tensor(tile, tile, other, nl.add)
    nisa.core_barrier(out, (0, 1))
    nisa.dma_copy(out[core * 128 : core * 128 + 128, :], tile)
    return out


@nki.jit
def dynamic(x):
    """A dynamic loop, registers as indices, and tiles of its body."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in nl.dynamic_range(0, 4):
        tile = nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[nl.ds(row, 1), :])
        nisa.tensor_scalar(tile, tile, nl.multiply, 3.0)
        nisa.dma_copy(out[nl.ds(row, 1), :], tile)
    return out


@nki.jit
def placed(x):
    """Tiles that share an address, random numbers, and a value that Python reads."""
    out = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    for number in range(3):
        tile = nl.ndarray((128, x.shape[1]), x.dtype, buffer=nl.sbuf, address=(0, 64 * (number % 2)))
        nisa.rng(tile.view(nl.uint32) if number == 1 else nl.ndarray((128, 4), nl.uint32))
        nisa.dma_copy(tile, x[:128, :])
        nisa.tensor_scalar(tile, tile, nl.multiply, 1.0 + number)
        assert "float32" in repr(tile)
        nisa.dma_copy(out, tile)
    return out


@nki.jit
def in_place(x):
    """Overwrites its argument."""
    tile = nl.ndarray((128, x.shape[1]), x.dtype)
    nisa.dma_copy(tile, x[:128, :])
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(x[128:, :], tile)
    return x


def assert_replays(viewer):
    """Every exact map of the recording is what the replay of its step gives."""
    recording = viewer.recording
    _, columns = recording.packed()
    maps = np.cumsum(columns["map"].astype(np.int64)).astype(np.uint32).view(np.int32)
    ends = np.cumsum(columns["views"].astype(np.int64))
    compared = 0
    for step in range(viewer.finished):
        held = viewer.values(step + 1)
        first = ends[step] - columns["views"][step]
        numbers = maps[first : first + len(held)]
        for number, (matrix, unwritten) in zip(numbers, map(as_matrix, held), strict=True):
            cells = recording.maps.cells[number]
            assert cells is not None and cells.exact
            never, wanted = (
                np.zeros(matrix.shape, bool) if m is None else m for m in (unwritten, cells.unwritten)
            )
            assert np.array_equal(never, wanted)
            assert np.array_equal(matrix[~never], cells.values[~never], equal_nan=True)
            compared += 1
    return compared


@pytest.mark.parametrize("interval", [1, 3, 256])
@pytest.mark.parametrize("kernel", [rows, halves[2], dynamic, placed, in_place])
def test_a_step_from_a_checkpoint_has_the_values_of_the_run(monkeypatch, kernel, interval):
    monkeypatch.setattr(replay, "FIRST_INTERVAL", interval)
    assert assert_replays(nki.show(kernel)(X.copy())) >= 6


def test_checkpoints_stay_within_their_budget(monkeypatch):
    monkeypatch.setattr(replay, "FIRST_INTERVAL", 1)
    kept = replay.Replay(60_000)
    monkeypatch.setattr("nki.testing.show.Replay", lambda: kept)
    viewer = nki.show(rows)(X)
    assert 1 < len(kept.checkpoints) < len(kept.steps) and kept.interval > 1
    assert sum(one.nbytes for one in kept.checkpoints) <= 60_000
    assert assert_replays(viewer) > 10


def test_a_replay_reports_and_prints_nothing(capsys, recwarn):
    viewer = nki.show(rows)(X)
    recwarn.clear()
    capsys.readouterr()
    viewer.values(viewer.count)
    assert not list(recwarn) and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [0, 100])
def test_steps_that_do_not_exist_are_refused(number):
    with pytest.raises(nki.NkiError, match="has steps 1 to 16"):
        nki.show(dynamic)(X).values(number)


def test_a_traced_kernel_has_no_values():
    with pytest.raises(nki.NkiError, match="was traced"):
        nki.show(rows)(nki.TensorSpec((256, 16), "float32")).values(1)
