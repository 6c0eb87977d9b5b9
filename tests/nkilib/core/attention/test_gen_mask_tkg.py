from __future__ import annotations

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.gen_mask_tkg import gen_mask_tkg, gen_mask_tkg_hbm, gen_mask_tkg_hbm_ref


def positions(batches: int, tokens: int, keys: int) -> np.ndarray:
    first = np.random.default_rng(batches + keys).integers(1, keys - tokens, (batches, 1))
    return (first + np.arange(tokens)).astype(np.float32).reshape(1, -1)


def active(tokens: int, batches: int, heads: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (tokens, batches, heads, tokens)).astype(np.uint8)


SIZES = [(2, 2, 3, 256, 0), (3, 1, 2, 96, 0), (4, 1, 5, 512, 16), (32, 8, 1, 512, 16), (1, 2, 2, 384, 0)]


@each_lnc
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("sizes", SIZES)
def test_who_sees_which_key_in_the_order_of_the_tiles(sizes, window, lnc):
    b, h, s, keys, block_len = sizes
    pos, mask = positions(b, s, keys), active(s, b, h)
    start = (pos - window) % keys if window else None
    options = dict(start_pos_hbm=start, block_len=block_len, active_mask=mask)
    got = run(gen_mask_tkg_hbm, pos, b, h, s, keys, lnc=lnc, **options)
    np.testing.assert_array_equal(got, gen_mask_tkg_hbm_ref(pos, b, h, s, keys, n_prgs=lnc, **options))


def test_without_a_mask_of_their_own_new_tokens_are_keys_like_others():
    pos = positions(2, 2, 256)
    np.testing.assert_array_equal(
        gen_mask_tkg_hbm(pos, 2, 1, 2, 256), gen_mask_tkg_hbm_ref(pos, 2, 1, 2, 256)
    )


def test_an_offset_moves_the_numbers_of_the_keys():
    pos, offset = positions(2, 1, 512), np.array([[100]], np.int32)
    got = gen_mask_tkg_hbm(pos, 2, 1, 1, 256, active_mask=active(1, 2, 1), cp_seq_offset=offset)
    expected = gen_mask_tkg_hbm_ref(pos, 2, 1, 1, 256, active_mask=active(1, 2, 1), cp_seq_offset=offset)
    np.testing.assert_array_equal(got, expected)


def test_it_may_leave_transposed():
    pos = positions(2, 3, 256)
    straight = gen_mask_tkg_hbm(pos, 2, 2, 3, 256)
    transposed = gen_mask_tkg_hbm(pos, 2, 2, 3, 256, transposed_out=True)
    np.testing.assert_array_equal(transposed, straight.transpose(1, 2, 3, 0))


@nki.jit
def mask_on_chip(pos, batches, heads, tokens, keys):
    tile = nl.ndarray((128, keys // 128, batches, heads, tokens), nl.uint8, buffer=nl.sbuf)
    gen_mask_tkg(pos, tile, batches, heads, tokens, keys)
    out = nl.ndarray(tile.shape, nl.uint8, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def test_the_form_for_sbuf_has_keys_in_the_partitions():
    pos = positions(2, 3, 256)
    got = mask_on_chip(pos, 2, 2, 3, 256)
    expected = gen_mask_tkg_hbm_ref(pos, 2, 2, 3, 256).reshape(2, 128, 2, 2, 3)
    np.testing.assert_array_equal(got, expected.transpose(1, 0, 2, 3, 4))


@nki.jit
def transposed_on_chip(pos, start, batches, heads, tokens, keys, own_batches, own_keys):
    tile = nl.ndarray((min(128, heads * tokens), own_batches, own_keys), nl.uint8, buffer=nl.sbuf)
    gen_mask_tkg(pos, tile, batches, heads, tokens, keys, start_pos=start, transposed_out=True)
    out = nl.ndarray((nl.num_programs(0), *tile.shape), nl.uint8, buffer=nl.shared_hbm)
    nisa.dma_copy(out[nl.program_id(0)], tile)
    return out


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("sizes", [(2, 2, 3, 256), (3, 1, 2, 96), (1, 16, 8, 384), (2, 3, 1, 640)])
def test_the_form_for_sbuf_may_have_queries_in_the_partitions(sizes, windowed):
    b, h, s, keys = sizes
    pos = positions(b, s, keys)
    start = (pos - 30) % keys if windowed else None
    got = run(transposed_on_chip, pos, start, b, h, s, keys, b, keys)[0]
    expected = gen_mask_tkg_hbm_ref(pos, b, h, s, keys, start_pos_hbm=start)  # [keys, B, H, s]
    np.testing.assert_array_equal(got, expected.transpose(2, 3, 1, 0).reshape(h * s, b, keys))


def test_two_cores_have_their_halves_of_the_keys_transposed():
    b, h, s, keys = 1, 2, 2, 1024
    pos = positions(b, s, keys)
    got = run(transposed_on_chip, pos, None, b, h, s, keys, b, keys // 2, lnc=2)
    expected = (
        gen_mask_tkg_hbm_ref(pos, b, h, s, keys, n_prgs=2).transpose(2, 3, 1, 0).reshape(h * s, b, keys)
    )
    np.testing.assert_array_equal(np.concatenate(list(got), 2), expected)


def test_more_queries_than_partitions_do_not_leave_transposed():
    with pytest.raises(AssertionError, match="q_head, s_active: got 129 queries, transposed_out allows 128"):
        run(transposed_on_chip, positions(1, 1, 256), None, 1, 129, 1, 256, 1, 256)


def test_positions_of_another_size_raise():
    with pytest.raises(AssertionError, match="pos_ids_hbm: got a tensor that has not bs \\* s_active = 6"):
        gen_mask_tkg_hbm(positions(2, 2, 256), 2, 1, 3, 256)


def test_the_compiler_would_take_it_and_the_example_runs():
    compiles_and_example_runs(gen_mask_tkg_hbm)
