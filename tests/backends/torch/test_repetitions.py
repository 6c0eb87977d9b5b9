"""Equal units of a program are planned once, and give the results of the whole program."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.fused.storages import Storages
from nki.backends.lowered import lower
from nkilib.core.attention.attention_cte import attention_cte
from support import target
from tile_programs import program_of_units

torch = pytest.importorskip("torch")
from backend_agreement import assert_agrees  # noqa: E402
from nki.backends.torch import steps  # noqa: E402


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def plans(program):
    """The plan of its units, or None; and that of the whole program."""
    lowered = lower(program)
    storages = Storages(lowered)
    return steps.plan_units(lowered, storages), steps.plan_whole(lowered, storages)


def agree(seeds, **options):
    """Compare random programs with the reference; return how many steps units and whole programs have."""
    found = []
    for seed in seeds:
        program, arrays = program_of_units(seed, 0.2, 4 + seed % 4, **options)
        if assert_agrees(program, arrays, "torch") == "in order":  # two cores, and a warning
            continue
        units, whole = plans(program)
        if units is not None:
            found.append((len(units.steps), len(whole.steps)))
    return found


@pytest.mark.parametrize("seeds", (range(24, 40), range(66, 82)))
def test_units_agree_with_the_reference_in_as_many_steps_as_the_whole_program(seeds):
    found = agree(seeds)
    assert len(found) >= 5
    assert sum(units for units, _ in found) <= 1.1 * sum(whole for _, whole in found)


@pytest.mark.parametrize("window", (1, 8 << 10, 20 << 10))
def test_repetitions_that_do_not_fit_into_a_window_agree_too(window, monkeypatch):
    monkeypatch.setattr(steps, "WINDOW", window)
    assert len(agree((0, 2, 10, 34, 54, 56, 68, 69))) >= 6


def test_programs_of_which_one_unit_differs_or_depends_on_another_agree():
    for seed in range(40, 56):
        program, arrays = program_of_units(seed, 0.2, 6, spoiled=(seed % 5, seed % 6))
        assert assert_agrees(program, arrays, "torch") == "ran"


def test_units_of_two_cores_are_repetitions_of_one():
    assert len(agree((0, 24, 30, 38, 42), degree=2)) >= 4


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("cores", (1, 2))
def test_the_heads_of_attention_are_planned_once(cores):
    arrays = [normal(4, 384, 64), normal(4, 64, 384), normal(4, 384, 64)]
    program = attention_cte[cores].trace(*arrays, scale=0.125)
    units, whole = plans(program)
    assert len(units.steps) <= len(whole.steps) and units.arena <= whole.arena
    assert assert_agrees(program, arrays, "torch") == "ran"


@pytest.mark.parametrize("cores", (1, 2))
@pytest.mark.parametrize("keys", (1, 2, 4))
def test_heads_that_share_keys_are_planned_once(keys, cores):
    arrays = [normal(8, 256, 64), normal(keys, 64, 256), normal(keys, 256, 64)]
    program = attention_cte[cores].trace(*arrays, scale=0.125)
    units, whole = plans(program)
    assert len(units.steps) <= len(whole.steps)
    assert assert_agrees(program, arrays, "torch") == "ran"


def test_heads_that_share_keys_read_these_in_place():
    """Products with the keys of one head for all others have a stride of 0 there."""
    arrays = [normal(4, 512, 64), normal(1, 64, 512), normal(1, 512, 64)]
    units, _ = plans(attention_cte.trace(*arrays, scale=0.125))
    strides = [step.right.view.regular((step.count,)) for step in units.steps if is_view_of(step, "k")]
    assert strides and set(strides) == {(0,)}


def is_view_of(step, name):
    view = step.right.view if isinstance(step, steps.BatchedGemm) else None
    return view is not None and getattr(view.layout.memory, "name", "") == name


@pytest.mark.parametrize("groups", (2, 3))
def test_units_of_which_some_share_a_tile_agree_with_the_reference(groups):
    seeds = {2: (70, 142, 150, 162, 174, 218, 2, 6), 3: (31, 67, 99, 119, 135, 139, 151, 195)}[groups]
    assert len(agree(seeds, groups=groups)) >= 5


def test_products_of_small_tiles_with_a_shared_factor_are_merged():
    """All tiles of tokens with one weight: one product of all tokens reads the weight once."""
    program = scaled_products.trace(normal(64, 8 * 128), normal(64, 512))
    units, whole = plans(program)
    assert units is None
    (product,) = [step for step in whole.steps if isinstance(step, steps.BatchedGemm)]
    assert product.count == 1 and product.left.columns == 8 * 128


@nki.jit
def scaled_products(x, w):
    out = nl.ndarray((x.shape[1], w.shape[1]), nl.float32, buffer=nl.shared_hbm)
    weight = nl.ndarray(w.shape, nl.float32)
    nisa.dma_copy(weight, w)
    for row in range(0, x.shape[1], 128):
        tokens = nl.ndarray((x.shape[0], 128), nl.float32)
        nisa.dma_copy(tokens, x[:, row : row + 128])
        psum, tile = nl.ndarray((128, 512), nl.float32, buffer=nl.psum), nl.ndarray((128, 512), nl.float32)
        nisa.nc_matmul(psum, tokens, weight)
        for _ in range(3):
            nisa.activation(tile, nl.exp, psum)
        nisa.dma_copy(out[row : row + 128], tile)
    return out
