"""What SBUF and PSUM hold over time, and whose tiles those are."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.memories import PSUM, SBUF
from nki.timing.timeline import Stay, steps
from nkilib.core.attention.attention_cte import attention_cte
from support import target

KIB = 1024


def timeline(kernel, *shapes):
    with target("trn2"):
        return nki.profile(kernel)(*(nki.TensorSpec(shape, "float32") for shape in shapes)).timeline


@nki.jit
def one_product(x, y):
    """Two loads, a product of 1 KiB per partition in PSUM, a copy, a store."""
    result = nl.ndarray((128, 256), nl.float32, buffer=nl.shared_hbm)
    stationary = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(stationary, x)
    moving = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(moving, y)
    product = nl.ndarray((128, 256), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(product, stationary, moving)
    out = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(out, product)
    nisa.dma_copy(result, out)
    return result


@nki.jit
def one_place(x):
    """Two tiles of 2 KiB at one address, one after the other, and a third beside them."""
    result = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    beside = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf, address=(0, 2048))
    nisa.memset(beside, 0.0)
    for _ in range(2):
        tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf, address=(0, 0))
        nisa.dma_copy(tile, x)
        nisa.tensor_tensor(beside, beside, tile, op=nl.add)
    nisa.dma_copy(result, beside)
    return result


@nki.jit
def too_much(x):
    """60 tiles of 4 KiB per partition: more than SBUF holds."""
    result = nl.ndarray((128, 1024), nl.float32, buffer=nl.shared_hbm)
    tiles = []
    for i in range(60):
        tile = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
        nisa.memset(tile, float(i))
        tiles.append(tile)
    total = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(total, x)
    for tile in tiles:
        nisa.tensor_tensor(total, total, tile, op=nl.add)
    nisa.dma_copy(result, total)
    return result


@pytest.mark.tiny
def test_a_tile_stays_from_its_first_start_to_its_last_use():
    t = timeline(one_product, (128, 128), (128, 256))
    [stay] = [stay for stay in t.occupancy(SBUF).owners if stay.tile.shape == (128, 128)]
    [load] = [bar for bar in t.bars if bar.name == "dma_copy" and bar.views[0].storage is stay.tile]
    [product] = [bar for bar in t.bars if bar.name == "nc_matmul"]
    assert stay.start == load.start
    assert product.start < stay.end <= product.end


def test_bytes_are_those_of_all_partitions_and_end_at_none():
    found = timeline(one_product, (128, 128), (128, 256)).occupancy(SBUF)
    assert found.nbytes.max() == 128 * (512 + 1024)  # both operands; the result comes when they are gone
    assert found.nbytes[-1] == 0
    assert (found.nbytes >= 0).all() and (np.diff(found.times) > 0).all()


def test_psum_is_taken_in_whole_banks():
    found = timeline(one_product, (128, 128), (128, 256)).occupancy(PSUM)
    assert [stay.nbytes for stay in found.owners] == [128 * 2 * KIB]
    assert found.nbytes.max() == 128 * 2 * KIB


def test_psum_never_holds_more_banks_than_there_are():
    """Writers of one tile run in any order: the first takes its bank."""
    q, k = nki.TensorSpec((4, 1024, 128), "bfloat16"), nki.TensorSpec((1, 128, 1024), "bfloat16")
    with target("trn2"):
        profile = nki.profile(attention_cte)(q, k, nki.TensorSpec((1, 1024, 128), "bfloat16"))
    found = profile.timeline.occupancy(PSUM)
    assert 0 < found.nbytes.max() <= 128 * 16 * KIB


def test_tiles_placed_at_one_address_count_once():
    found = timeline(one_place, (128, 512)).occupancy(SBUF)
    assert len(found.owners) == 3
    assert found.nbytes.max() == 128 * 4 * KIB


def test_a_spilled_tile_is_away_until_it_is_reloaded():
    t = timeline(too_much, (128, 1024))
    found = t.occupancy(SBUF)
    stays = {}
    for stay in found.owners:
        stays.setdefault(id(stay.tile), []).append(stay)
    returned = [s for s in stays.values() if len(s) > 1]
    assert returned and t.spill_bytes > 0
    for earlier, later in returned:
        assert earlier.end <= later.start
    assert found.nbytes.max() <= t.machine.sbuf_usable_bytes * t.machine.partitions


def test_a_spill_carries_the_line_of_its_tile():
    spills = [bar for bar in timeline(too_much, (128, 1024)).bars if bar.name == "spill"]
    assert spills and all(bar.site.text.startswith("tile = nl.ndarray") for bar in spills)


def test_steps_add_up_what_overlaps():
    stays = [Stay(0.0, 10.0, 4, None), Stay(5.0, 20.0, 3, None), Stay(10.0, 30.0, 2, None)]
    times, nbytes = steps(stays)
    assert times.tolist() == [0, 5, 10, 20, 30]
    assert nbytes.tolist() == [4, 7, 5, 2, 0]


def test_a_kernel_without_tiles_has_an_empty_occupancy():
    @nki.jit
    def nothing(x):
        return x

    found = timeline(nothing, (128, 128)).occupancy(SBUF)
    assert len(found.times) == len(found.nbytes) == len(found.owners) == 0


@pytest.mark.parametrize("partitions, spills", [(128, True), (96, True), (64, False), (32, False)])
def test_sbuf_holds_tiles_of_fewer_partitions_side_by_side(partitions, spills):
    """80 tiles of 4 KiB per partition are 320 KiB one above the other, 160 KiB in halves."""

    def kernel(x):
        result = nl.ndarray((partitions, 1024), nl.float32, buffer=nl.shared_hbm)
        tiles = []
        for column in range(0, x.shape[1], 1024):
            tile = nl.ndarray((partitions, 1024), nl.float32)
            nisa.dma_copy(tile, x[:, column : column + 1024])
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
            tiles.append(tile)
        for tile in tiles[1:]:
            nisa.tensor_tensor(tiles[0], tiles[0], tile, nl.add)
        nisa.dma_copy(result, tiles[0])
        return result

    assert (timeline(nki.jit(kernel), (partitions, 80 * 1024)).spill_bytes > 0) is spills


def test_a_tile_that_was_loaded_and_not_changed_is_dropped_and_loaded_again():
    def kernel(x):
        result = nl.ndarray((128, 1024), nl.float32, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, 1024), nl.float32) for _ in range(60)]
        for i, tile in enumerate(tiles):
            nisa.dma_copy(tile, x[:, 1024 * i : 1024 * (i + 1)])
        total = nl.ndarray((128, 1024), nl.float32)
        nisa.memset(total, 0.0)
        for tile in [*tiles, *tiles]:
            nisa.tensor_tensor(total, total, tile, nl.add)
        nisa.dma_copy(result, total)
        return result

    names = {bar.name for bar in timeline(nki.jit(kernel), (128, 60 * 1024)).bars}
    assert "reload" in names and "spill" not in names
