"""The attention block of decode on several ranks against the float64 reference of one rank with all heads."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import cosine, each_lnc, random

from nki.ranks import run_ranks
from nkilib.core.utils.common_types import QuantizationType
from nkilib.experimental.transformer.attention_block_tkg import (
    CPCollectiveMode,
    KVDPCollectiveMode,
    attention_block_tkg,
    attention_block_tkg_ref,
)

BF16 = ml_dtypes.bfloat16
H, D = 256, 32
REQUIRED = attention_block_tkg.func.__code__.co_varnames[:36]
NAMES = ("K_cache", "V_cache")


def near(got, expected, tolerance=2e-2):
    assert got.shape == expected.shape
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=tolerance, atol=tolerance)


class Block:
    """A block of `ranks` times `heads` heads: as a whole, for the reference, and as each rank has it."""

    def __init__(self, ranks, heads=2, batch=4, active=1, room=160, window=128, transposed=False):
        self.ranks, self.heads, self.batch, self.active, self.window = ranks, heads, batch, active, window
        all_heads = ranks * heads
        angle = np.random.default_rng(6).uniform(0, 6, (D // 2, batch, active))
        cache = (batch, 1, D, room) if transposed else (batch, 1, room, D)
        mask = (np.random.default_rng(3).random((window, batch, all_heads, active)) < 0.7).astype(np.uint8)
        mask[-active:] = np.triu(np.ones((active, active)))[:, None, None, :]
        self.whole = dict.fromkeys(REQUIRED) | {
            "X": random((batch, active, H), BF16),
            "W_qkv": random((H, (all_heads + 2) * D), BF16, 1, H**-0.5),
            "quantization_type_qkv": QuantizationType.NONE,
            "rmsnorm_X_enabled": True,
            "rmsnorm_X_gamma": random((1, H), BF16, 7),
            "cos": np.cos(angle).astype(BF16),
            "sin": np.sin(angle).astype(BF16),
            "rope_contiguous_layout": True,
            "K_cache": random(cache, BF16, 4),
            "V_cache": random((batch, 1, room, D), BF16, 5),
            "K_cache_transposed": transposed,
            "attention_mask": mask,
        }

    def own_heads(self, rank):
        """Return W_qkv and W_out of a rank: its query heads, and the shared head of keys and values."""
        columns = np.arange(self.heads * D) + rank * self.heads * D
        shared = np.arange(2 * D) + self.ranks * self.heads * D
        given = {"W_qkv": np.ascontiguousarray(self.whole["W_qkv"][:, np.concatenate([columns, shared])])}
        if self.whole["W_out"] is not None:
            given["W_out"] = np.ascontiguousarray(self.whole["W_out"][columns])
        return given

    def own_sequences(self, rank):
        """Return a KVDP rank's part of the caches and the mask."""
        some = slice(rank * self.batch // self.ranks, (rank + 1) * self.batch // self.ranks)
        given = {name: self.whole[name][some].copy() for name in NAMES}
        for name in ("kv_cache_update_idx", "active_blocks_table"):
            if self.whole[name] is not None:
                given[name] = self.whole[name][some].copy()
        if self.whole["attention_mask"] is not None:
            given["attention_mask"] = np.ascontiguousarray(self.whole["attention_mask"][:, some])
        return given

    def expected(self, rank, out):
        """Return the result for a rank's heads."""
        return out[:, rank * self.heads : (rank + 1) * self.heads]


def in_groups(ranks):
    return (tuple(range(ranks)),)


@each_lnc
@pytest.mark.parametrize("mode", [None, KVDPCollectiveMode.ALL_GATHER_SLICE])
@pytest.mark.parametrize("ranks, active", [(2, 1), (4, 2)])
def test_ranks_that_share_the_sequences(ranks, active, mode, lnc):
    block = Block(ranks, active=active)
    out, keys, values = attention_block_tkg_ref(**block.whole)
    options = {"KVDP": ranks, "KVDP_replica_group": in_groups(ranks), "KVDP_collective_mode": mode}
    found = run_ranks(
        attention_block_tkg,
        ranks,
        lambda rank: block.whole | block.own_heads(rank) | block.own_sequences(rank) | options,
        lnc=lnc,
    )
    share = block.batch // ranks
    for rank, (got, k, v) in enumerate(found):
        some = slice(rank * share, (rank + 1) * share)
        near(got, block.expected(rank, out))
        near(k, keys[some].transpose(2, 0, 1))
        near(v, values[some])


@each_lnc
@pytest.mark.parametrize("transposed", [False, True])
def test_each_rank_updates_the_caches_of_its_sequences(transposed, lnc):
    block = Block(2, transposed=transposed)
    index = np.array([[7], [-1], [159], [0]], np.int32)
    block.whole |= {"update_cache": True, "kv_cache_update_idx": index}
    out, keys, values = attention_block_tkg_ref(**block.whole)
    given = [
        block.whole | block.own_heads(rank) | block.own_sequences(rank) | {"KVDP": 2} for rank in range(2)
    ]
    before = [{name: inputs[name].astype(np.float64) for name in NAMES} for inputs in given]
    found = run_ranks(
        attention_block_tkg, 2, [inputs | {"KVDP_replica_group": in_groups(2)} for inputs in given], lnc=lnc
    )
    for rank, (got, k, v) in enumerate(found):
        near(got, block.expected(rank, out))
        wanted_keys, wanted_values = before[rank]["K_cache"], before[rank]["V_cache"]
        if transposed:
            wanted_keys, k = wanted_keys.swapaxes(2, 3), k.swapaxes(2, 3)
        for b in range(2):
            at = index[2 * rank + b, 0]
            if at >= 0:
                wanted_keys[b, 0, at], wanted_values[b, 0, at] = (
                    keys[2 * rank + b, 0],
                    values[2 * rank + b, 0],
                )
        near(k, wanted_keys, 1e-2)
        near(v, wanted_values, 1e-2)


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("mode", list(KVDPCollectiveMode))
def test_sinks_output_projections_that_add_up_and_groups_with_gaps(mode, of_all):
    block = Block(2)
    block.whole |= {"W_out": random((4 * D, H), BF16, 11, 0.1), "sink": random((4, 1), "float32", 13)}
    out = attention_block_tkg_ref(**block.whole)[0]
    options = {"KVDP": 2, "KVDP_replica_group": ((2, 0), (1, 3)), "KVDP_collective_mode": mode}
    place = {2: 0, 0: 1, 1: 0, 3: 1}

    def inputs(rank):
        at = place[rank]
        given = block.whole | block.own_heads(at) | block.own_sequences(at) | options
        given["sink"] = block.whole["sink"][slice(None) if of_all else slice(2 * at, 2 * at + 2)]
        return given | ({"KVDP_rank": np.array([[at]], np.int32)} if of_all else {})

    found = [result[0].astype(np.float64) for result in run_ranks(attention_block_tkg, 4, inputs)]
    near(found[2] + found[0], out)
    near(found[1] + found[3], out)


# ---- keys over ranks -----------------------------------------------------------------------------


def by_keys(block, given):
    """Return a CP rank's part of the arguments.

    The whole cache is that of all ranks in order, followed by the new tokens.
    """
    ranks, own, active = block.ranks, block.window - block.active, block.active
    room, total = block.whole["V_cache"].shape[2], ranks * own + active
    mask = (np.random.default_rng(3).random((total, block.batch, ranks * block.heads, active)) < 0.7).astype(
        np.uint8
    )
    mask[-active:] = np.triu(np.ones((active, active)))[:, None, None, :]
    caches = [
        {name: random((block.batch, 1, room, D), BF16, 20 + 2 * rank + i) for i, name in enumerate(NAMES)}
        for rank in range(ranks)
    ]
    whole = {
        name: np.concatenate([c[name][:, :, :own] for c in caches] + [caches[0][name][:, :, :active]], 2)
        for name in NAMES
    }
    for rank in range(ranks):
        seen = np.concatenate([mask[rank * own : (rank + 1) * own], mask[-active:] * (rank == 1)])
        given.append(block.whole | block.own_heads(rank) | caches[rank] | {"attention_mask": seen})
        if block.whole["K_cache_transposed"]:
            given[rank]["K_cache"] = np.ascontiguousarray(given[rank]["K_cache"].swapaxes(2, 3))
    return block.whole | whole | {"attention_mask": mask, "K_cache_transposed": False}


@each_lnc
@pytest.mark.parametrize("mode", list(CPCollectiveMode))
@pytest.mark.parametrize("ranks, batch, active, window", [(2, 3, 1, 256), (4, 2, 2, 128)])
def test_ranks_that_share_the_keys(ranks, batch, active, window, mode, lnc):
    block, given = Block(ranks, 2, batch, active, window + 32, window), []
    block.whole["sink"] = random((2 * ranks, 1), "float32", 13)
    whole = by_keys(block, given)
    out, keys, values = attention_block_tkg_ref(**whole)
    options = {"CP": ranks, "CP_replica_group": in_groups(ranks), "CP_collective_mode": mode}
    for rank in range(ranks):
        given[rank] |= options | {"sink": whole["sink"][2 * rank : 2 * rank + 2]}
    for rank, (got, k, v) in enumerate(run_ranks(attention_block_tkg, ranks, given, lnc=lnc)):
        near(got, block.expected(rank, out))
        near(k, keys.transpose(2, 0, 1))
        near(v, values)


@pytest.mark.parametrize("mode", list(CPCollectiveMode))
def test_a_rank_whose_keys_are_all_masked_adds_nothing(mode):
    block, given = Block(2, batch=2), []
    whole = by_keys(block, given)
    own = block.window - 1
    for inputs in (whole, given[0]):
        inputs["attention_mask"] = inputs["attention_mask"].copy()
        inputs["attention_mask"][:own] = 0
    out = attention_block_tkg_ref(**whole)[0]
    options = {"CP": 2, "CP_replica_group": in_groups(2), "CP_collective_mode": mode}
    found = run_ranks(attention_block_tkg, 2, [inputs | options for inputs in given])
    for rank, result in enumerate(found):
        near(result[0], block.expected(rank, out))


@each_lnc
def test_new_tokens_are_stored_by_the_rank_that_has_an_index_for_them(lnc):
    block, given = Block(2, batch=2, transposed=True), []
    block.whole |= {"update_cache": True, "W_out": random((4 * D, H), BF16, 11, 0.1)}
    whole = by_keys(block, given)
    out, keys, values = attention_block_tkg_ref(**whole)
    options = {"CP": 2, "CP_replica_group": in_groups(2)}
    places = np.array([[[-1], [-1]], [[130], [2]]], np.int32)
    before = [{name: given[rank][name].astype(np.float64) for name in NAMES} for rank in range(2)]
    inputs = [given[rank] | options | {"kv_cache_update_idx": places[rank]} for rank in range(2)]
    found = run_ranks(attention_block_tkg, 2, inputs, lnc=lnc)
    near(found[0][0].astype(np.float64) + found[1][0].astype(np.float64), out)
    for b, at in ((0, 130), (1, 2)):
        before[1]["K_cache"][b, 0, :, at], before[1]["V_cache"][b, 0, at] = keys[b, 0], values[b, 0]
    for rank in range(2):
        near(found[rank][1], before[rank]["K_cache"], 1e-2)
        near(found[rank][2], before[rank]["V_cache"], 1e-2)


def test_positions_count_the_keys_of_a_rank():
    block, given = Block(2, batch=2), []
    whole = by_keys(block, given)
    filled = np.array([[[100], [90]], [[60], [0]]], np.int32)  # by rank and sequence
    own, mask = block.window - 1, np.zeros_like(whole["attention_mask"])
    for rank in range(2):
        for b in range(2):
            mask[rank * own : rank * own + filled[rank, b, 0], b] = 1
    mask[-1] = 1
    out = attention_block_tkg_ref(**whole | {"attention_mask": mask})[0]
    options = {"CP": 2, "CP_replica_group": in_groups(2), "S_ctx": 256}
    inputs = [
        given[rank]
        | options
        | {"pos_ids": filled[rank], "attention_mask": np.full((1, 2, 4, 1), rank, np.uint8)}
        for rank in range(2)
    ]
    for rank, result in enumerate(run_ranks(attention_block_tkg, 2, inputs)):
        near(result[0], block.expected(rank, out))


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"KVDP": 2}, "KVDP_replica_group: got None"),
        ({"CP": 2}, "CP_replica_group: got None"),
        ({"KVDP": 3, "KVDP_replica_group": in_groups(3)}, "KVDP: got 3 ranks for a batch of 4"),
        ({"KVDP": 2, "KVDP_replica_group": in_groups(4)}, "KVDP: got 2"),
        ({"KVDP": 2, "CP": 2, "KVDP_replica_group": in_groups(2)}, "one of the two must be 1"),
        ({"CP": 3, "CP_replica_group": in_groups(3), "S_ctx": 128}, "S_ctx: got 128"),
    ],
)
def test_wrong_arguments_raise(changed, text):
    with pytest.raises(AssertionError, match=text):
        run_ranks(attention_block_tkg, 4, lambda rank: Block(2).whole | changed)


@each_lnc
@pytest.mark.parametrize("kind", ["KVDP", "CP"])
def test_caches_of_blocks(kind, lnc):
    """Each rank has 64 blocks of 16 tokens; its sequences use some of them for the first `filled` tokens."""
    block, rng = Block(2, batch=4), np.random.default_rng(8)
    own = 2 if kind == "KVDP" else 4  # sequences of a rank
    tables = [rng.permutation(64)[: own * 8].reshape(own, 8).astype(np.int32) for _ in range(2)]
    caches = [
        {name: random((64, 16, D), BF16, 30 + 2 * r + i) for i, name in enumerate(NAMES)} for r in (0, 1)
    ]
    filled = rng.integers(1, 120, (2, own, 1)).astype(np.int32)
    flat = [{name: caches[r][name][tables[r]].reshape(own, 1, 128, D) for name in NAMES} for r in (0, 1)]
    seen = [np.arange(128)[:, None] < filled[r, :, 0] for r in (0, 1)]
    options = {kind: 2, f"{kind}_replica_group": in_groups(2)}
    if kind == "KVDP":
        whole = {name: np.concatenate([flat[0][name], flat[1][name]]) for name in NAMES}
        mask = np.concatenate(seen, 1)
        mask[-1] = 1
    else:
        whole = {name: np.concatenate([flat[0][name], flat[1][name]], 2) for name in NAMES}
        mask = np.concatenate(seen)
        mask[-1] = 1
    mask = np.repeat(mask[:, :, None, None], 4, 2).astype(np.uint8)
    out = attention_block_tkg_ref(**block.whole | whole | {"attention_mask": mask})[0]
    inputs = [
        block.whole
        | block.own_heads(r)
        | caches[r]
        | options
        | {"active_blocks_table": tables[r], "pos_ids": filled[r]}
        | {"attention_mask": np.full((1, own, 4, 1), 1 if kind == "KVDP" else r, np.uint8)}
        for r in range(2)
    ]
    for rank, result in enumerate(run_ranks(attention_block_tkg, 2, inputs, lnc=lnc)):
        near(result[0], block.expected(rank, out))


@pytest.mark.parametrize("kind", ["KVDP", "CP"])
def test_more_tokens_than_partitions_and_narrow_caches(kind):
    """200 sequences, FP8 caches."""
    block, given = Block(2, batch=200, room=64, window=64), []
    scales = {"k_scale": np.full((1, 1), 8, np.float32), "v_scale": np.full((1, 1), 16, np.float32)}
    options = {kind: 2, f"{kind}_replica_group": in_groups(2), "softmax_scale": 0.02}
    if kind == "KVDP":
        whole = block.whole
        given = [whole | block.own_heads(r) | block.own_sequences(r) for r in range(2)]
    else:
        whole = by_keys(block, given)
    narrow = ml_dtypes.float8_e4m3
    for inputs in (whole, *given):
        inputs |= {name: inputs[name].astype(np.float32).astype(narrow) for name in NAMES}
    out = attention_block_tkg_ref(**whole, **scales, softmax_scale=0.02)[0]
    found = run_ranks(attention_block_tkg, 2, [inputs | options | scales for inputs in given])
    for rank, result in enumerate(found):
        got, wanted = result[0].astype(np.float64), block.expected(rank, out)
        np.testing.assert_allclose(got, wanted, rtol=5e-2, atol=5e-2 * np.abs(wanted).max())
        assert cosine(got, wanted) >= 0.999
