"""More live at once than SBUF or PSUM holds is said, with the tiles that fill it; nothing else is."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

X = np.ones((128, 512), np.float32)


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


def said(kernel, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [d for d in kernel.run(*args).diagnostics if d.kind == "capacity"]


def live_together(x, count, buffer=nl.sbuf, columns=16384):
    """`count` tiles of 64 KiB per partition (in SBUF), all written before the first is read."""
    out = nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="out")
    tiles = [nl.ndarray((128, columns), x.dtype, buffer=buffer) for _ in range(count)]
    for tile in tiles:
        nisa.memset(tile, 1.0)
    sink = nl.ndarray((128, 8), x.dtype)
    for tile in tiles:
        nisa.tensor_copy(sink, tile[:, 0:8])
    nisa.dma_copy(out, sink)
    return out


@nki.jit
def sbuf_tiles(x, count):
    return live_together(x, count)


@nki.jit
def psum_tiles(x, count):
    return live_together(x, count, nl.psum, columns=16)


@nki.jit
def one_after_the_other(x, count):
    out = nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="out")
    sink = nl.ndarray((128, 8), x.dtype)
    for _ in range(count):
        tile = nl.ndarray((128, 16384), x.dtype)
        nisa.memset(tile, 1.0)
        nisa.tensor_copy(sink, tile[:, 0:8])
    nisa.dma_copy(out, sink)
    return out


def test_three_tiles_of_64_kib_fit_and_four_do_not():
    assert said(sbuf_tiles, X, 3) == []
    (found,) = said(sbuf_tiles, X, 4)
    assert "SBUF overflows: 262,176 bytes per partition are live at once in 5 tiles" in found.message
    assert "trn2 has 212,984" in found.message
    assert any("262,144 bytes per partition from test_capacity.py" in note for note in found.notes)
    assert "4 x float32[128, 16384]" in found.notes[0] and "tiles = [nl.ndarray" in found.site.text


def test_a_larger_chip_holds_more():
    with target("trn3"):
        assert said(sbuf_tiles, X, 3) == []
    with target("trn1"):
        assert said(sbuf_tiles, X, 3), "trn1 has 180,224 bytes for tiles"


def test_tiles_that_follow_each_other_share_the_room():
    assert said(one_after_the_other, X, 20) == []


@nki.jit
def narrow_tiles(x, count, partitions):
    """`count` tiles of 64 KiB in each of a few partitions, all live at once."""
    out = nl.ndarray((partitions, 8), x.dtype, buffer=nl.shared_hbm, name="out")
    tiles = [nl.ndarray((partitions, 16384), x.dtype) for _ in range(count)]
    for number, tile in enumerate(tiles):
        nisa.memset(tile, float(number))
    for tile in tiles:
        nisa.dma_copy(out, tile[:, 0:8])
    return out


@pytest.mark.parametrize(("partitions", "fit"), [(32, 12), (64, 6), (96, 3)])
def test_tiles_of_few_partitions_lie_side_by_side_in_sbuf(partitions, fit, monkeypatch):
    """Three of all partitions fit: twice as many of a half, four times as many of a quadrant."""
    assert said(narrow_tiles, X, fit, partitions) == []
    (found,) = said(narrow_tiles, X, fit + 1, partitions)
    assert f"are live at once in {fit + 1} tiles" in found.message
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")  # nothing is recorded: the counts alone tell
    assert said(narrow_tiles, X, fit, partitions) == [] and said(narrow_tiles, X, fit + 1, partitions)


@pytest.mark.parametrize("partitions", [32, 64, 128])
def test_a_warning_comes_with_spills_and_no_spills_without(partitions):
    fit = 3 * 128 // partitions
    for count in (fit, fit + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profile = nki.profile(narrow_tiles)(nki.TensorSpec((128, 512), "float32"), count, partitions)
        assert bool(profile.timeline.spill_bytes) == (count > fit)
        assert [d.kind for d in profile.diagnostics] == (["capacity"] if count > fit else [])


def test_psum_has_eight_banks():
    assert said(psum_tiles, X, 8) == []
    (found,) = said(psum_tiles, X, 9)
    assert found.message == "PSUM overflows: 9 banks are live at once in 9 tiles, trn2 has 8"


def test_one_bank_less_is_left_when_transposes_take_it(monkeypatch):
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "1")
    assert said(psum_tiles, X, 8) and not said(psum_tiles, X, 7)


def test_strict_mode_refuses(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    for _ in range(2):
        with pytest.raises(nki.NkiError, match="SBUF overflows") as caught:
            sbuf_tiles(X, 4)
        assert caught.value.kind == "capacity"
    sbuf_tiles(X, 3)


def test_a_run_without_the_cache_warns_too(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    (found,) = said(sbuf_tiles, X, 4)
    assert "262,176 bytes per partition are live at once" in found.message


def test_shapes_alone_are_enough():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = sbuf_tiles.trace(nki.TensorSpec((128, 512), "float32"), 4)
    assert [d.kind for d in program.diagnostics] == ["capacity"]


def test_tiles_that_a_loop_uses_live_as_long_as_the_loop():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="out")
        held = [nl.ndarray((128, 16384), x.dtype) for _ in range(4)]
        for tile in held:
            nisa.memset(tile, 1.0)
        sink = nl.ndarray((128, 8), x.dtype)

        def body(i):
            for tile in held:
                nisa.tensor_copy(sink, tile[:, 0:8])

        nl.fori_loop(0, 3, body)
        nisa.dma_copy(out, sink)
        return out

    assert said(kernel, X)


def test_tiles_at_addresses_count_once():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="out")
        sink = nl.ndarray((128, 8), x.dtype)
        for _ in range(6):
            tile = nl.ndarray((128, 16384), x.dtype, address=(0, 0))
            nisa.memset(tile, 1.0)
            nisa.tensor_copy(sink, tile[:, 0:8])
        nisa.dma_copy(out, sink)
        return out

    assert said(kernel, X) == []


def test_a_kernel_that_returns_and_writes_nothing_warns(monkeypatch):
    @nki.jit
    def forgets(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)

    @nki.jit
    def prints(x):
        nl.device_print("x", x)

    @nki.jit
    def writes(x):
        nisa.dma_copy(x, nl.zeros(x.shape, x.dtype))

    with pytest.warns(nki.NkiWarning, match="forgets returns nothing and writes none of its arguments"):
        forgets(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prints(X)
        writes(X.copy())
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    with pytest.warns(nki.NkiWarning, match="forgets returns nothing"):
        forgets(X)  # no compiler minds


# ---- in every mode -------------------------------------------------------------------------------


def texts(kernel, **options):
    with warnings.catch_warnings(), nki.options(**options):
        warnings.simplefilter("ignore")
        return [str(found) for found in kernel.run(np.ones((128, 8), np.float32)).diagnostics]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=4, max_size=24),
    st.sampled_from([nl.sbuf, nl.psum]),
    st.sampled_from([0, 1, 3]),
    st.integers(0, 3),
)
def test_an_overflow_is_reported_alike_whether_a_kernel_is_traced_or_not(uses, memory, trips, fixed):
    """Tiles are used and given up in any order, before, in and after a dynamic loop, some at an address."""
    columns = 12_000 if memory is nl.sbuf else 1_000  # of SBUF a quarter, of PSUM two banks of eight

    def body(tiles, own):
        for number, is_last in uses:
            if number not in tiles:
                place = (0, number % 2 * 8192) if number < fixed and not own else None
                tiles[number] = nl.ndarray((128, columns + number), nl.float32, memory, address=place)
            nisa.memset(tiles[number], 1.0)
            if is_last:
                del tiles[number]

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        outer = {}
        body(outer, own=False)
        if trips:
            for _ in nl.dynamic_range(trips):
                body({}, own=True)
                body(dict(outer), own=True)
        nisa.dma_copy(out, x)
        return out

    first, second, eager = texts(kernel), texts(kernel), texts(kernel, cache=False)
    assert first == second == eager


def test_psum_overflows_with_a_print_and_without_the_cache(capsys):
    def body(x, prints):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, 8), nl.float32, nl.psum) for _ in range(9)]
        for _ in range(2):
            for tile in tiles:
                nisa.memset(tile, 1.0)
        if prints:
            print(tiles[0])
        nisa.dma_copy(out, x)
        return out

    plain, printing = (nki.jit(functools.partial(body, prints=prints)) for prints in (False, True))
    (text,) = texts(plain)
    assert text.startswith("NkiWarning[capacity]: PSUM overflows: 9 banks are live at once in 9 tiles")
    assert [text] == texts(plain, cache=False) == texts(printing) == texts(printing, cache=False)
    for kernel, cache in ((plain, True), (plain, False), (printing, True), (printing, False)):
        with pytest.raises(nki.NkiError, match="9 banks"):
            texts(kernel, cache=cache, strict=True)
