from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_tkg import AttnTKGConfig, attention_tkg, attention_tkg_ref
from nkilib.core.attention.attention_tkg_utils import (
    is_batch_sharded,
    is_s_prior_sharded,
    resize_cache_block_len_for_attention_tkg_kernel,
)
from nkilib.core.utils.allocator import SbufManager

bfloat16 = ml_dtypes.bfloat16


@nki.jit
def decode(
    q,
    k_active,
    v_active,
    k_prior,
    v_prior,
    mask,
    cfg,
    more,
    placed=False,
    statistics=False,
    values_in_sbuf=False,
):
    """attention_tkg with operands and results wherever cfg wants them; returns out [B, H, d, s] and k_out."""
    sbm = SbufManager(0, 196608) if placed else None
    if placed:
        sbm.open_scope()
    b, h, s, d = cfg.bs, cfg.q_head, cfg.s_active, cfg.d_head
    dtype = q.dtype if q.dtype in (nl.bfloat16, nl.float16, nl.float32) else nl.bfloat16
    result = nl.ndarray((b, h, d, s), dtype, buffer=nl.shared_hbm)
    keys = nl.ndarray((b, 1, d, s), k_active.dtype, buffer=nl.shared_hbm)
    if cfg.qk_in_sb:
        q = on_chip(q.reshape((b * h * s, d)), sbm)
        k_active = on_chip(k_active.reshape((b * s, d)), sbm)
    if values_in_sbuf:
        rows = new_tile((b * s, d), v_active.dtype, sbm)
        nisa.dma_copy(rows, v_active.reshape((b * s, d)))
        v_active = rows
    out = new_tile((d, b * h * s), dtype, sbm) if cfg.out_in_sb else result
    k_out = new_tile((d, b * s), k_active.dtype, sbm) if cfg.k_out_in_sb else keys
    stats = {} if statistics else None
    operands = (q, k_active, v_active, k_prior, v_prior, mask, out, cfg, sbm)
    k_out = k_out if cfg.fuse_rope else None
    out, k_out = attention_tkg(*operands, k_out=k_out, cp_softmax_stats_out=stats, **more)
    if cfg.out_in_sb:
        nisa.dma_copy(result.reshape((b * h, d, s)).permute((1, 0, 2)), out.reshape_dim(1, (b * h, s)))
    if cfg.k_out_in_sb and cfg.fuse_rope:
        nisa.dma_copy(keys.reshape((b, d, s)).permute((1, 0, 2)), k_out.reshape_dim(1, (b, s)))
    if statistics:
        found = nl.ndarray((2, b * h * s), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(found[0:1], stats["neg_max"][0:1])
        nisa.dma_copy(found[1:2], stats["sum"][0:1])
        return result, found
    if placed:
        sbm.close_scope()
    return (result, keys) if cfg.fuse_rope else result


def on_chip(rows, sbm):
    tile = new_tile((rows.shape[1], rows.shape[0]), rows.dtype, sbm)
    nisa.dma_copy(tile, rows.permute((1, 0)))
    return tile


def new_tile(shape, dtype, sbm):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf) if sbm is None else sbm.alloc_stack(shape, dtype)


class Case:
    """Random operands of a call, and what it must give."""

    def __init__(
        self, cfg: AttnTKGConfig, dtype: Any = bfloat16, sink: bool = False, window: int = 0, **more: Any
    ):
        self.cfg, self.dtype, self.more = cfg, dtype, dict(more)
        b, h, s, d, total = cfg.bs, cfg.q_head, cfg.s_active, cfg.d_head, cfg.curr_sprior
        rng = np.random.default_rng(b * 1000 + h * 100 + s * 10 + d + total)
        scale = 1.0 if cfg.fuse_rope else d**-0.25
        self.q, self.k = random((b, h, s, d), dtype, 1, scale), random((b, 1, s, d), dtype, 2, scale)
        self.v = random((b, 1, s, d), dtype, 3)
        if cfg.block_len:
            blocks = total // cfg.block_len
            spare = b * blocks + 3
            self.k_prior = random((spare, cfg.block_len, d), dtype, 4, scale)
            self.v_prior = random((spare, cfg.block_len, d), dtype, 5)
            table = rng.permutation(spare)[: b * blocks].reshape(b, blocks)
            self.more["active_blocks_table"] = table.astype(np.int32)
        else:
            shape = (b + 1, 1, cfg.full_sprior, d)
            self.k_prior = random(shape, dtype, 4, scale)
            if not cfg.tp_k_prior:
                self.k_prior = np.ascontiguousarray(self.k_prior.swapaxes(2, 3))
            self.v_prior = random(shape, dtype, 5)
        causal = (np.arange(s)[:, None] <= np.arange(s)[None, :]).astype(np.uint8)[:, None, None, :]
        if cfg.use_pos_id:
            self.mask = np.broadcast_to(causal, (s, b, h, s)).copy()
        else:
            self.mask = rng.integers(0, 2, (total, b, h, s)).astype(np.uint8)
            self.mask[0] = 1
        if cfg.use_pos_id or cfg.fuse_rope:
            first = rng.integers(1, total - s + 1, (b, 1))
            self.more["rope_pos_ids"] = (first + np.arange(s)).astype(np.float32)
        if window:
            self.more["start_pos_ids"] = (self.more["rope_pos_ids"] - window) % total
        if cfg.fuse_rope:
            self.more["inv_freqs"] = (10000.0 ** -(np.arange(d // 2)[:, None] / (d // 2))).astype(np.float32)
        if sink:
            self.more["sink"] = random((h, 1), "float32", 6)

    def run(self, lnc: int = 1, on: str = "trn2", **options: Any) -> Any:
        operands = [self.q, self.k, self.v, self.k_prior, self.v_prior, self.mask]
        return run(decode, *operands, self.cfg, self.more, lnc=lnc, on=on, **options)

    def expected(self, lnc: int = 1) -> Any:
        operands = [self.q, self.k, self.v, self.k_prior, self.v_prior, self.mask]
        return attention_tkg_ref(*operands, self.cfg, n_prgs=lnc, **self.more)

    def check(self, lnc: int = 1, **options: Any) -> None:
        got, (out, keys) = self.run(lnc, **options), self.expected(lnc)
        if self.cfg.fuse_rope:
            near(got[1], keys, self.dtype)
            got = got[0]
        near(got, out, self.dtype)


def near(got: Any, expected: Any, dtype: Any) -> None:
    tolerance = {np.dtype("float32"): 2e-5, np.dtype("float16"): 5e-3}.get(np.dtype(dtype), 1.5e-2)
    largest = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=tolerance * largest)


def config(bs: int, q_head: int, s_active: int, keys: int, d_head: int, **options: Any) -> AttnTKGConfig:
    cfg = AttnTKGConfig(bs, q_head, s_active, keys, keys, d_head, qk_in_sb=True)
    return replace(cfg, **options)


@each_lnc
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [(1, 8, 1, 512, 128), (4, 2, 3, 256, 64), (3, 5, 4, 384, 32), (6, 1, 1, 128, 64), (2, 3, 2, 96, 16)],
)
def test_a_flat_cache_with_a_mask(sizes, by_rows, lnc):
    Case(config(*sizes, tp_k_prior=by_rows)).check(lnc)


@each_lnc
def test_only_the_first_keys_of_a_larger_cache_count(lnc):
    Case(config(2, 4, 2, 256, 64, full_sprior=512)).check(lnc)


@each_lnc
@pytest.mark.parametrize("block_len, keys", [(32, 4096), (16, 512), (8, 128)])
def test_a_cache_of_blocks(block_len, keys, lnc):
    Case(config(2, 4, 3, keys, 64, block_len=block_len, tp_k_prior=True), sink=True).check(lnc)


@each_lnc
@pytest.mark.parametrize("block_len", [0, 16])
@pytest.mark.parametrize("window", [0, 64])
def test_masks_made_of_positions(window, block_len, lnc):
    cfg = config(4, 2, 3, 512, 64, use_pos_id=True, block_len=block_len, tp_k_prior=True)
    Case(cfg, window=window).check(lnc)


@each_lnc
@pytest.mark.parametrize("in_sbuf", [False, True])
def test_fused_rope_rotates_scales_and_returns_the_keys(in_sbuf, lnc):
    places = dict(qk_in_sb=in_sbuf, k_out_in_sb=in_sbuf, out_in_sb=in_sbuf)
    Case(config(3, 2, 2, 256, 64, fuse_rope=True, use_pos_id=True, **places), "float32", sink=True).check(lnc)


def test_rope_removes_whole_rotations_at_positions_of_long_sequences():
    case = Case(config(2, 2, 1, 256, 64, fuse_rope=True, qk_in_sb=False), "float32")
    case.more["rope_pos_ids"] = np.array([[131072.0], [82431.0]], np.float32)
    got, (out, keys) = case.run(), case.expected()
    np.testing.assert_allclose(got[1], keys, atol=0.02)  # half a float32 step of the angle is 0.004
    assert np.isfinite(got[0]).all() and got[0].shape == out.shape


def test_windows_that_a_given_mask_replaces_are_ignored_with_a_warning():
    case = Case(config(2, 2, 2, 256, 64, fuse_rope=True, qk_in_sb=False), "float32")
    case.more["start_pos_ids"] = case.more["rope_pos_ids"] - 5
    with pytest.warns(UserWarning, match="attention_tkg: start_pos_ids has no effect.*cfg.use_pos_id"):
        got, keys = case.run()
    expected = case.expected()
    near(got, expected[0], "float32")
    near(keys, expected[1], "float32")


def test_queries_in_hbm_may_have_the_layout_of_the_page():
    case = Case(config(2, 4, 2, 256, 64, fuse_rope=True, qk_in_sb=False))
    out, _ = case.run()
    case.q = np.ascontiguousarray(case.q.transpose(0, 3, 1, 2))
    case.k = np.ascontiguousarray(case.k[:, 0].transpose(0, 2, 1))
    np.testing.assert_array_equal(case.run()[0].astype(np.float32), out.astype(np.float32))


@each_lnc
@pytest.mark.parametrize("options", [{}, {"tp_k_prior": True}, {"tp_k_prior": True, "block_len": 16}])
def test_fp8_caches_are_used_as_they_are(options, lnc):
    Case(config(2, 4, 2, 512, 64, out_in_sb=True, **options), ml_dtypes.float8_e4m3).check(lnc)


@pytest.mark.parametrize("by_rows", [False, True])
def test_queries_may_be_wider_than_an_fp8_cache(by_rows):
    case = Case(config(2, 4, 2, 256, 64, tp_k_prior=by_rows))
    for name in ("k", "v", "k_prior", "v_prior"):  # the new tokens too: the cache would round them
        setattr(case, name, getattr(case, name).astype(ml_dtypes.float8_e4m3))
    case.k, case.v = case.k.astype(bfloat16), case.v.astype(bfloat16)
    case.check()


def test_it_runs_on_trn3():
    Case(config(2, 4, 2, 256, 64), ml_dtypes.float8_e4m3fn).check(on="trn3")


@each_lnc
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes(dtype, lnc):
    Case(config(2, 3, 2, 256, 64, tp_k_prior=True), dtype, sink=True).check(lnc)


@each_lnc
@pytest.mark.parametrize("sink", [False, True])
def test_several_sections_are_joined_by_the_online_softmax(sink, lnc):
    Case(config(2, 64, 4, 5120, 32), sink=sink).check(lnc)


@each_lnc
def test_tiles_can_be_placed_by_the_callers_manager(lnc):
    Case(config(2, 4, 2, 512, 64, out_in_sb=True, use_pos_id=True), window=100).check(lnc, placed=True)


@each_lnc
def test_gpsimd_or_dma_carries_what_cores_exchange(lnc):
    Case(config(1, 4, 2, 512, 64, use_gpsimd_sb2sb=False)).check(lnc)


@each_lnc
@pytest.mark.parametrize("positions", [False, True])
def test_keys_beyond_max_context_len_do_not_count(positions, lnc):
    limit = np.array([[100]], np.int32)
    Case(config(2, 2, 2, 512, 64, use_pos_id=positions), max_context_len=limit).check(lnc)


def test_a_query_that_sees_nothing_gives_zero():
    case = Case(config(2, 2, 1, 256, 64))
    case.mask[:, 1, 0] = 0
    out = case.run().astype(np.float32)
    assert (out[1, 0] == 0).all()
    near(out, case.expected()[0], bfloat16)


@each_lnc
def test_softmax_statistics_leave_the_result_unnormalised(lnc):
    case = Case(config(1, 4, 2, 512, 64), "float32")
    (out, stats), (expected, _) = case.run(lnc, statistics=True), case.expected()
    keys = case.k_prior[:1, 0].swapaxes(1, 2).astype(np.float64)
    keys[:, -2:] = case.k[:, 0]
    scores = np.einsum("bhid,bkd->bhik", case.q.astype(np.float64), keys)
    scores = np.where(case.mask.transpose(1, 2, 3, 0), scores, -np.inf)
    np.testing.assert_allclose(-stats[0], scores.max(-1).ravel(), rtol=1e-5)
    sums = np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)
    np.testing.assert_allclose(stats[1], sums.ravel(), rtol=1e-5)
    np.testing.assert_allclose(out / sums[:, :, None, :], expected, atol=2e-5)


def test_how_cores_share():
    few, many = config(4, 8, 1, 2048, 128), config(4, 8, 7, 2048, 128)
    assert is_s_prior_sharded(few, 2) and not is_batch_sharded(few, 2)
    assert is_batch_sharded(many, 2) and not is_s_prior_sharded(many, 2)
    assert is_batch_sharded(config(4, 8, 1, 128, 128), 2)
    assert not is_batch_sharded(config(3, 8, 1, 128, 128), 2)
    assert not is_s_prior_sharded(few, 1)


def test_blocks_are_cut_until_every_partition_has_one():
    resize = resize_cache_block_len_for_attention_tkg_kernel
    assert resize(256, 32, 1, 128, 4, 8, 1) == (32, 1)
    assert resize(64, 32, 1, 128, 4, 8, 1) == (16, 2)
    assert resize(128, 16, 2, 128, 4, 1, 1) == (8, 2)
    with pytest.raises(AssertionError, match="active_blocks_table: got 3 blocks of 16 tokens"):
        resize(3, 16, 1, 128, 1, 1, 1)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(d_head=130), "cfg.d_head: got 130"),
        (dict(curr_sprior=200), "cfg.curr_sprior: got 200"),
        (dict(qk_in_sb=False), "cfg.qk_in_sb: got False"),
        (dict(q_head=0), "cfg.q_head: got 0"),
        (dict(full_sprior=128), "at most full_sprior = 128"),
        (dict(q_head=300, s_active=2), "q_head \\* s_active = 600"),
        (dict(use_pos_id=True), "mask: got shape"),
        (dict(tp_k_prior=True), "k_prior: got shape"),
    ],
)
def test_wrong_configurations_raise(change, message):
    case = Case(config(2, 2, 1, 256, 64))
    case.cfg = replace(case.cfg, **change)
    if change.get("d_head", 64) != 64 or "q_head" in change:
        args = [case.q, case.k, case.v, case.k_prior, case.v_prior, case.mask, case.q, case.cfg, None]
        with pytest.raises(AssertionError, match=message):
            attention_tkg(*args)
        return
    with pytest.raises(AssertionError, match=message):
        case.run()


def test_the_compiler_would_take_it_and_the_example_runs():
    compiles_and_example_runs(attention_tkg)


# ---- values of new tokens that are in SBUF already -----------------------------------------------


@each_lnc
@pytest.mark.parametrize(
    "sizes",
    [
        {"curr_sprior": 512, "s_active": 1},
        {"curr_sprior": 512, "s_active": 7},  # more than a partition holds
        {"curr_sprior": 128, "s_active": 40, "q_head": 2},  # one tile: down the partitions, in two quadrants
        {"curr_sprior": 96, "s_active": 5},  # fewer keys than partitions
        {"curr_sprior": 512, "s_active": 3, "block_len": 16, "tp_k_prior": True},
    ],
    ids=lambda sizes: "-".join(f"{name}{value}" for name, value in sizes.items()),
)
def test_new_values_may_be_in_sbuf(sizes, lnc):
    sizes = {"q_head": 4, "full_sprior": 512, "d_head": 64} | sizes
    cfg = AttnTKGConfig(bs=2, qk_in_sb=True, use_pos_id=True, **sizes)
    Case(cfg).check(lnc, values_in_sbuf=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_the_cache_holds_in_the_place_of_a_new_value_does_not_matter(dtype):
    cfg = AttnTKGConfig(2, 4, 1, 256, 256, 64, qk_in_sb=True, use_pos_id=True)
    case = Case(cfg, dtype)
    expected = case.run()
    case.v_prior[:, :, 255:] = np.nan
    got = case.run(values_in_sbuf=True)
    assert np.array_equal(got, expected)


def test_a_manual_manager_places_new_values_too():
    cfg = AttnTKGConfig(2, 4, 2, 512, 512, 64, qk_in_sb=True, use_pos_id=True)
    Case(cfg).check(values_in_sbuf=True, placed=True)
