"""Operands of many instructions are read as strided views; whatever is split or gathered, results agree."""

from __future__ import annotations

import numpy as np
import pytest

from nki.machine.dtypes import float32
from tile_programs import program_of

torch = pytest.importorskip("torch")
from backend_agreement import assert_agrees  # noqa: E402
from nki.backends.torch import grids  # noqa: E402
from nki.backends.torch.grids import OperandGrid, OperandLayout, copy_strided, regular_parts  # noqa: E402


def grid(offsets, shape=(2, 3)):
    return OperandGrid(OperandLayout(None, shape, (3, 1), float32), offsets)


def addresses(part, grids_):
    """The offsets of a part, from its first ones and its steps."""
    found = np.array([[g.offsets[part.start] for g in grids_]])
    for n, step in zip(reversed(part.lead), reversed(part.steps), strict=False):
        found = (np.arange(n)[:, None, None] * np.array(step) + found).reshape(-1, len(grids_))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_parts_are_regular_and_cover_every_member_in_order(seed):
    chance = np.random.default_rng(seed)
    pieces = []
    for _ in range(chance.integers(1, 5)):
        shape = chance.integers(1, 5, 3)
        steps = chance.integers(0, 50, (3, 2))
        index = np.indices(shape).reshape(3, -1).T
        pieces.append(index @ steps + chance.integers(0, 1000, 2))
    offsets = np.concatenate(pieces)
    both = [grid(offsets[:, 0]), grid(offsets[:, 1])]
    parts = regular_parts(both)
    assert [p.start for p in parts] == list(np.cumsum([0, *[p.stop - p.start for p in parts]])[:-1])
    assert parts[-1].stop == len(offsets)
    for part in parts:
        assert np.array_equal(addresses(part, both), offsets[part.start : part.stop])
        assert all(g.part(part.start, part.stop).regular(part.lead) is not None for g in both)


def test_a_nest_of_three_loops_is_one_part():
    index = np.indices((2, 7, 4)).reshape(3, -1).T
    found = regular_parts([grid(index @ [7000, 512, 128]), grid(index @ [4096 * 9, 1024, 100])])
    assert [part.lead for part in found] == [(2, 7, 4)]


def test_descending_offsets_are_parts_of_one_member():
    assert [part.lead for part in regular_parts([grid([30, 20, 10])])] == [(1,)] * 3


@pytest.mark.parametrize("offset", (0, 1, 4))
@pytest.mark.parametrize("strides", ((64, 8, 1), (1, 64, 512), (60, 6, 1), (7, 70, 1)))
def test_narrow_elements_are_copied_exactly_in_any_layout(strides, offset):
    source = torch.arange(5000, dtype=torch.int16).view(torch.bfloat16)
    values = source.as_strided((8, 4, 8), strides, offset)
    into = torch.zeros(5000, dtype=torch.bfloat16).as_strided((8, 4, 8), (32, 8, 1), 4)
    copy_strided(torch, into, values)
    assert torch.equal(into.contiguous().view(torch.int16), values.contiguous().view(torch.int16))
    across = torch.zeros(5000, dtype=torch.bfloat16).as_strided((8, 4, 8), (1, 8, 32))
    copy_strided(torch, across, values)
    assert torch.equal(across.contiguous().view(torch.int16), values.contiguous().view(torch.int16))


@pytest.mark.parametrize("cost", (0, 1 << 60), ids=["always split", "never split"])
def test_programs_agree_however_steps_are_split(cost, monkeypatch):
    monkeypatch.setattr(grids, "GATHERED", cost)
    ran = [assert_agrees(*program_of(seed, 0.1, 1, "trn2"), "torch") for seed in range(300, 312)]
    assert ran.count("ran") >= 4


def test_two_cores_that_share_nothing_run_together():
    from nkilib.core.attention.attention_cte import attention_cte

    chance = np.random.default_rng(0)
    shapes = ((3, 384, 64), (3, 64, 384), (3, 384, 64))
    heads = [chance.standard_normal(shape).astype(np.float32) for shape in shapes]
    assert assert_agrees(attention_cte[2].trace(*heads, scale=0.125), heads, "torch") == "ran"
    ran = [assert_agrees(*program_of(seed, 0.1, 2, "trn2"), "torch") for seed in range(1000, 1010)]
    assert "ran" in ran and "in order" in ran  # those that exchange values


@pytest.mark.parametrize("cost", (0, 1 << 60), ids=["always split", "never split"])
def test_attention_and_mlp_agree_however_steps_are_split(cost, monkeypatch):
    from nkilib.core.attention.attention_cte import attention_cte
    from nkilib.core.mlp.mlp import mlp

    monkeypatch.setattr(grids, "GATHERED", cost)
    chance = np.random.default_rng(0)

    def normal(*shape):
        return chance.standard_normal(shape).astype(np.float32)

    heads = [normal(2, *shape) for shape in ((640, 64), (64, 640), (640, 64))]
    assert assert_agrees(attention_cte.trace(*heads, scale=0.125), heads, "torch") == "ran"
    arrays = [normal(1, 256, 256), normal(256, 128), normal(256, 128), normal(128, 256)]
    assert assert_agrees(mlp.trace(*arrays), arrays, "torch") == "ran"
