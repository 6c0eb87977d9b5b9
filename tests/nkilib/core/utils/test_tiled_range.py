import pytest

from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator


def shown(tiles):
    return [(t.size, t.index, t.start_offset, t.end_offset) for t in tiles]


@pytest.mark.tiny
def test_the_last_tile_may_be_short():
    assert shown(TiledRange(300, 128)) == [(128, 0, 0, 128), (128, 1, 128, 256), (44, 2, 256, 300)]
    assert shown(TiledRange(256, 128)) == [(128, 0, 0, 128), (128, 1, 128, 256)]


def test_a_tile_is_cut_into_tiles_with_absolute_offsets():
    outer = TiledRange(300, 128)[1]
    assert shown(TiledRange(outer, 100)) == [(100, 0, 128, 228), (28, 1, 228, 256)]


def test_tiles_are_a_plain_tuple():
    first, second, last = TiledRange(300, 128)
    assert isinstance(TiledRange(300, 128), tuple) and len(TiledRange(300, 128)) == 3
    assert last.size == 44 and TiledRange(0, 128) == ()


def test_a_tile_can_be_made_by_hand():
    assert shown(TiledRange(TiledRangeIterator(10, 0, 5, 15), 6)) == [(6, 0, 5, 11), (4, 1, 11, 15)]
