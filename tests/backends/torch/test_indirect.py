"""Moves by run-time indices on a device: rows by a vector of indices, views moved by a scalar one."""

from __future__ import annotations

import re

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine import dtypes
from support import loaded, stored, target

torch = pytest.importorskip("torch")
from backend_agreement import assert_agrees, torch_devices  # noqa: E402
from nki.backends.lowered import lower  # noqa: E402
from nki.backends.torch.indirect import IndexedWrite  # noqa: E402
from nki.backends.torch.steps import device_plan_of  # noqa: E402

MODES = {"error": nisa.oob_mode.error, "skip": nisa.oob_mode.skip}
DEVICES = torch_devices()


@pytest.fixture(autouse=True, params=DEVICES)
def device(request):
    with target("trn2"):
        yield DEVICES[request.param]


@pytest.fixture(params=["each with each", "sorted"])
def compared(request, monkeypatch):
    """Compare few indices each with each, or sort them as if they were many."""
    if request.param == "sorted":
        monkeypatch.setattr("nki.backends.torch.indirect.PAIRS", 0)


@nki.jit
def rows_of(x, ids, mode: str = "error", dtype: str = "float32", step: int = 1):
    """Rows of x, by each column of ids; those out of bounds are 7 with "skip"."""
    found = nl.ndarray((ids.shape[0], ids.shape[1], x.shape[1]), dtype)
    nisa.memset(found, 7.0)
    index = loaded(ids)
    rows = x[::step]
    for c in range(ids.shape[1]):
        nisa.dma_copy(found[:, c], rows.vector_select(0, index[:, c : c + 1]), oob_mode=MODES[mode])
    return stored(found)


@nki.jit
def transposed_rows(x, ids, mode: str = "error"):
    """Rows of x as columns; those out of bounds are 7 with "skip"."""
    count = ids.shape[0] * ids.shape[1]
    found = nl.ndarray((x.shape[1], 1, count), x.dtype)
    nisa.memset(found, 7.0)
    rows = x.reshape((x.shape[0], 1, x.shape[1])).ap(
        [[x.shape[1], count], [x.shape[1], 1], [1, x.shape[1]]], vector_offset=loaded(ids)
    )
    nisa.dma_transpose(found, rows, oob_mode=MODES[mode])
    return stored(found)


@nki.jit
def rows_to(x, values, ids, mode: str = "error"):
    """x with rows of values added at ids, column by column of ids."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    index = loaded(ids)
    given = loaded(values, nl.float32)
    for c in range(ids.shape[1]):
        rows = out.vector_select(0, index[:, c : c + 1])
        old = nl.ndarray(values.shape, x.dtype)
        nisa.memset(old, 0.0)
        nisa.dma_copy(old, rows, oob_mode=MODES[mode])
        new = nl.ndarray(values.shape, nl.float32)
        nisa.tensor_tensor(new, old, given, nl.add)
        nisa.dma_copy(rows, new, oob_mode=MODES[mode])
    return out


@nki.jit
def rows_in_turn(x, values, ids, between: str = "", mode: str = "error"):
    """x with the rows of each matrix of values at a column of ids; a "w" writes x, an "r" reads it."""
    count, rows, columns = values.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    seen = nl.ndarray((count, rows, columns), x.dtype, buffer=nl.shared_hbm)
    index, tile = loaded(ids), loaded(x)
    nisa.dma_copy(out, tile)
    given = nl.ndarray((rows, count, columns), x.dtype)
    nisa.dma_copy(given, values.permute((1, 0, 2)))
    nisa.dma_copy(seen.permute((1, 0, 2)), given)
    for c in range(count):
        place = out.vector_select(0, index[:, c : c + 1])
        nisa.dma_copy(place, given[:, c], oob_mode=MODES[mode])
        if between[c : c + 1] == "w":
            nisa.dma_copy(out[3:5], tile[3:5])
        elif between[c : c + 1] == "r":
            old = nl.ndarray((rows, columns), x.dtype)
            nisa.dma_copy(old, out[0:rows])
            nisa.dma_copy(seen[c], old)
    return out, seen


@nki.jit
def blocks_of(w, experts, dtype: str = "bfloat16"):
    """The matrix of each expert, cast."""
    count, (_, k, n) = experts.shape[1], w.shape
    out = nl.ndarray((count, k, n), dtype, buffer=nl.shared_hbm)
    chosen = loaded(experts)
    for e in range(count):
        tile = nl.ndarray((k, n), dtype)
        place = w.ap([[n, k], [1, n]], scalar_offset=chosen[0:1, e : e + 1], indirect_dim=0)
        nisa.dma_copy(tile, place)
        nisa.dma_copy(out[e], tile)
    return out


def floats(*shape, seed=0):
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def numbers(shape, low, high, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("step", [1, 2])
def test_rows_by_indices(device, dtype, step):
    given = [floats(40, 24), numbers((16, 3), 0, 20)]
    program = rows_of.trace(*given, dtype=dtype, step=step)
    assert assert_agrees(program, given, "torch", exact=True, **device) == "ran"


def test_rows_out_of_bounds_keep_what_was_there(device):
    given = [floats(40, 24), numbers((16, 3), -20, 60)]
    assert assert_agrees(rows_of.trace(*given, mode="skip"), given, "torch", exact=True, **device) == "ran"


@pytest.mark.parametrize("mode", ["error", "skip"])
@pytest.mark.parametrize("shape", [(32, 1), (128, 2)])
def test_rows_become_columns(device, mode, shape):
    x = torch.randn(40, 24).bfloat16().view(torch.int16).numpy().view(dtypes.bfloat16.storage)
    ids = numbers(shape, 0, 80 if mode == "skip" else 40).astype(np.uint32)
    program = transposed_rows.trace(x, ids, mode=mode)
    assert assert_agrees(program, [x, ids], "torch", exact=True, **device) == "ran"


def test_an_index_out_of_bounds_is_the_error_of_the_host(device):
    given = [floats(40, 24), numbers((16, 3), 0, 40)]
    given[1][5, 1] = 40
    assert assert_agrees(rows_of.trace(*given), given, "torch", exact=True, **device) == "dropped"


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("mode", ["error", "skip"])
def test_rows_are_added_to_what_earlier_ones_left(device, mode):
    chance = np.random.default_rng(0)
    ids = np.stack([chance.permutation(24)[:16] for _ in range(3)], 1).astype(np.int32)
    if mode == "skip":
        ids[::3, 0], ids[:, 1] = -1, 24 + np.arange(16)  # a third of them, and all
    given = [floats(24, 10), floats(16, 10, seed=1), ids]
    assert assert_agrees(rows_to.trace(*given, mode=mode), given, "torch", exact=True, **device) == "ran"


@pytest.mark.usefixtures("compared")
def test_equal_indices_of_a_scatter_are_the_warning_of_the_host(device):
    given = [floats(24, 10), floats(16, 10, seed=1), numbers((16, 1), 0, 4)]
    assert assert_agrees(rows_to.trace(*given), given, "torch", exact=True, **device) == "dropped"


def scatters_of(program):
    steps = device_plan_of(lower(program)).steps
    return [s.count for s in steps if isinstance(getattr(s.node, "instruction", None), IndexedWrite)]


def distinct(rows, count, high, chance):
    return np.stack([chance.permutation(high)[:rows] for _ in range(count)], 1).astype(np.int32)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("mode", ["error", "skip"])
@pytest.mark.parametrize("seed", range(4))
def test_random_scatters_to_one_table_are_written_in_turn(device, mode, seed):
    """Equal indices of different scatters: the last one counts. Reads and writes between them see theirs."""
    chance = np.random.default_rng(seed)
    between = "".join(chance.choice([*"   wr"], 7))
    ids = distinct(16, 7, 20, chance)
    if mode == "skip":
        ids[chance.random(ids.shape) < 0.3] = 20
        ids[:, 4] = 20
    given = [floats(20, 6), floats(7, 16, 6, seed=1), ids]
    program = rows_in_turn.trace(*given, between=between, mode=mode)
    assert assert_agrees(program, given, "torch", exact=True, **device) == "ran"
    runs = [len(run) + 1 for run in re.split("[wr]", between[:-1])]
    assert scatters_of(program) == runs


@pytest.mark.usefixtures("compared")
def test_equal_indices_of_one_scatter_that_a_later_one_overwrites_are_reported(device):
    ids = distinct(16, 2, 20, np.random.default_rng(0))
    ids[1, 0] = ids[0, 0] = ids[0, 1]
    given = [floats(20, 6), floats(2, 16, 6, seed=1), ids]
    assert assert_agrees(rows_in_turn.trace(*given), given, "torch", exact=True, **device) == "dropped"


def test_matrices_by_a_scalar_index(device):
    given = [floats(5, 16, 12), np.array([[3, 0, 4]], np.int32)]
    assert assert_agrees(blocks_of.trace(*given), given, "torch", exact=True, **device) == "ran"
    given[1][0, 1] = 5
    assert assert_agrees(blocks_of.trace(*given), given, "torch", exact=True, **device) == "dropped"


def test_rows_that_overlap_are_written_in_order(device):
    @nki.jit
    def overlapping(x, values, ids):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        place = out.ap([[4, 3], [1, 6]], vector_offset=loaded(ids))
        nisa.dma_copy(place, loaded(values))
        return out

    given = [floats(8, 4), floats(3, 6, seed=1), np.array([[0], [1], [2]], np.int32)]
    assert assert_agrees(overlapping.trace(*given), given, "torch", exact=True, **device) == "in order"


def test_experts_of_tokens_run_on_the_device(device):
    from nkilib.core.moe.moe_cte.moe_cte import moe_cte
    from nkilib.core.moe.moe_cte.moe_cte_spec import MoECTEImplementation, MoECTESpec

    chance = np.random.default_rng(0)
    shapes = [(257, 512), (257 * 2, 1), (2, 512, 2, 32), (2, 32, 512)]
    tensors = [chance.standard_normal(shape, np.float32) / 8 for shape in shapes]
    ids = np.r_[0:256, 1:129, np.full(128, 256)].astype(np.int32)
    given = [*tensors, ids, np.array([[0], [1]], np.int32)]
    spec = MoECTESpec(MoECTEImplementation.shard_on_block)
    program = moe_cte.trace(*given, 256, spec, compute_dtype=nl.float32)
    assert assert_agrees(program, given, "torch", **device) == "ran"
