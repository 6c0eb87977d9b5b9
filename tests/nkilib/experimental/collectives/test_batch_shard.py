"""attn_q_batch_shard in worlds of two to four ranks, against slices in numpy."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random
from options.common import refusal

from nki.ranks import run_ranks
from nkilib.experimental.collectives.batch_shard import AttnQBatchShardLayout, attn_q_batch_shard

NBSd, dBnS = AttnQBatchShardLayout.NBSd, AttnQBatchShardLayout.dBnS
GROUPS = {"two": ((0, 1),), "four": ((0, 1, 2, 3),), "pairs": ((0, 1), (2, 3))}


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(attn_q_batch_shard)


def arguments(groups, shape, layout, dtype="float32", given_rank=False):
    """(arguments of a rank, inputs of all)."""
    size, ranks = len(groups[0]), sum(map(len, groups))
    inputs = [random(shape, dtype, seed=rank) for rank in range(ranks)]
    each = shape[1] // size
    table = np.array([[rank % size * each for rank in range(ranks)]], np.int32)
    space = np.zeros((shape[0] * size, *shape[1:]), inputs[0].dtype)

    def of(rank):
        known = np.array([[rank]], np.int32) if given_rank else None
        return inputs[rank], table, space.copy(), size, groups, layout, known

    return of, inputs


@pytest.mark.parametrize("given_rank", [False, True])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [((1, 4, 1, 8), NBSd), ((3, 8, 2, 5), NBSd), ((6, 4, 1, 1), dBnS), ((7, 8, 1, 3), dBnS)],
    ids=["one-head", "heads", "dBnS", "dBnS-sequence"],
)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=list(GROUPS))
def test_heads_are_gathered_and_batches_divided(groups, shape, layout, given_rank):
    of, inputs = arguments(groups, shape, layout, "bfloat16", given_rank)
    results = run_ranks(attn_q_batch_shard, len(inputs), of)
    for rank, got in enumerate(results):
        members = next(group for group in groups if rank in group)
        each = shape[1] // len(members)
        own = slice(members.index(rank) * each, (members.index(rank) + 1) * each)
        parts = [inputs[member][:, own] for member in members]
        expected = np.concatenate(parts) if layout == NBSd else np.stack([part[:, :, 0] for part in parts])
        assert got.shape == expected.shape and got.dtype == expected.dtype
        np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


def changed(of, place, value):
    def call(rank):
        given = list(of(rank))
        given[place] = value
        return tuple(given)

    return call


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [
        (0, None, "input"),
        (0, random((1, 4, 8)), "input"),
        (0, random((1, 3, 1, 8)), "input"),
        (1, None, "iota_workers"),
        (1, random((1, 2)), "iota_workers"),
        (2, random((1, 4, 1, 8)), "gathered_buf"),
        (3, 4, "gqa_group_size"),
        (6, np.zeros(1, np.int32), "rank_id_in"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_arguments_are_refused_by_name(place, value, name):
    of, inputs = arguments(GROUPS["two"], (1, 4, 1, 8), NBSd)
    with pytest.raises(AssertionError, match=refusal(name)):
        run_ranks(attn_q_batch_shard, len(inputs), changed(of, place, value))


def test_several_heads_are_refused_in_dBnS():
    of, inputs = arguments(GROUPS["two"], (6, 4, 2, 1), dBnS)
    with pytest.raises(AssertionError, match="input: got 2 heads"):
        run_ranks(attn_q_batch_shard, len(inputs), of)
