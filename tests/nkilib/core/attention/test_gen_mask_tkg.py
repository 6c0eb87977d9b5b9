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


def test_positions_of_another_size_raise():
    with pytest.raises(AssertionError, match="pos_ids_hbm: got a tensor that has not bs \\* s_active = 6"):
        gen_mask_tkg_hbm(positions(2, 2, 256), 2, 1, 3, 256)


def test_the_compiler_would_take_it_and_the_example_runs():
    compiles_and_example_runs(gen_mask_tkg_hbm)
