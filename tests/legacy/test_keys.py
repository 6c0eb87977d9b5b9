"""Keys with index tensors in loops: the form of a key is looked up once, its numbers change."""

from __future__ import annotations

import numpy as np
import pytest

import nki_legacy.old_api as nki
import nki_legacy.old_api.language as nl
from nki_legacy.old_api.keys import RepeatedRegion, form_of
from nki_legacy.old_api.tensor import IndexedTensor

pytestmark = pytest.mark.filterwarnings("ignore")

SHAPE = (16, 14, 15)


def output(shape):
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)


def random_key(rng):
    """Return a function that makes a key from the starts of its entries, and the largest starts.

    Each axis of the result steps through some of the dimensions; a dimension without one is a number.
    """
    sizes = rng.integers(1, 5, 2)
    steps = rng.integers(0, 3, (len(SHAPE), 2))
    steps[rng.integers(0, len(SHAPE))] = [1, 0]  # there is an index tensor
    largest = [n - 1 - int(((sizes - 1) * each).sum()) for n, each in zip(SHAPE, steps, strict=True)]

    def key(starts, arange):
        rows, columns = arange(int(sizes[0]))[:, None], arange(int(sizes[1]))[None, :]
        entries = []
        for start, (a, b) in zip(starts, steps.tolist(), strict=True):
            entries.append(start if not a and not b else a * rows + b * columns + start)
        return tuple(entries)

    return key, largest, (int(sizes[0]), int(sizes[1]))


def test_keys_of_one_form_pick_what_numpy_picks():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(SHAPE).astype(np.float32)
    cases = [random_key(rng) for _ in range(60)]
    starts = [[[int(rng.integers(0, n + 1)) for n in largest] for _ in range(4)] for _, largest, _ in cases]

    @nki.jit
    def kernel(t):
        results = []
        for (key, _, shape), places in zip(cases, starts, strict=True):
            for place in places:
                out = output(shape)
                nl.store(out, nl.load(t[key(place, nl.arange)]))
                results.append(out)
        return tuple(results)

    found = iter(kernel(x))
    for (key, _, shape), places in zip(cases, starts, strict=True):
        for place in places:
            expected = np.broadcast_to(x[key(place, np.arange)], shape)
            assert (next(found) == expected).all(), (key(place, np.arange), place)


def test_a_tile_is_read_and_written_by_keys_of_one_form():
    x = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)

    @nki.jit
    def kernel(t):
        tile, moved = nl.load(t), nl.zeros((nl.par_dim(8), 32), dtype=nl.float32)
        p, f = nl.arange(4)[:, None], nl.arange(8)[None, :]
        for i in nl.affine_range(2):
            for j in nl.affine_range(4):
                moved[4 * i + p, 8 * (3 - j) + f] = nl.copy(tile[4 * i + p, 8 * j + f])
        out = output((8, 32))
        nl.store(out, moved)
        return out

    assert (kernel(x) == x.reshape(8, 4, 8)[:, ::-1].reshape(8, 32)).all()


@pytest.mark.parametrize("start", [-1, 5])
def test_a_known_form_stays_inside_its_tensor(start):
    x = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)

    @nki.jit
    def kernel(t, first):
        p, f = nl.arange(4)[:, None], nl.arange(6)[None, :]
        out = output((4, 6))
        for begin in (0, 4, 2, first):
            nl.store(out, nl.load(t[begin + p, f]))
        return out

    assert (kernel(x, 3) == x[3:7]).all()
    with pytest.raises(Exception, match="err_tensor_access_out_of_bound.*dimension 0 has size 8"):
        kernel(x, start)
    assert (kernel(x, 1) == x[1:5]).all()


def test_axes_that_tiles_side_by_side_drop_are_not_those_of_one_tile():
    x = np.arange(2 * 4 * 6, dtype=np.float32).reshape(2, 4, 6)
    i, j, k = nl.mgrid[0:1, 0:4, 0:3]

    @nki.jit
    def kernel(t):
        side_by_side = nl.ndarray((2, nl.par_dim(4), 6), dtype=nl.float32, buffer=nl.sbuf)
        for b in nl.static_range(2):
            side_by_side[b] = nl.load(t[b])
        tile = nl.load(t[0])
        shapes = [
            tile[j, k].shape,
            side_by_side[1, j, k].shape,
            tile[j, k].shape,
            side_by_side[0, j, k].shape,
        ]
        assert [tuple(shape) for shape in shapes] == [(1, 4, 3), (4, 3), (1, 4, 3), (4, 3)]
        out = output((4, 3))
        nl.store(out, side_by_side[1, j, 2 * k])
        return out

    assert (kernel(x) == x[1, :, 0:6:2]).all()


def test_masks_of_one_form_end_where_the_tensor_does():
    x = np.arange(300 * 4, dtype=np.float32).reshape(300, 4)

    @nki.jit
    def kernel(t):
        out = output((300, 4))
        p, f = nl.arange(128)[:, None], nl.arange(4)[None, :]
        for i in nl.affine_range(3):
            inside = (128 * i + p < 300) & (f < 3)
            tile = nl.load(t[128 * i + p, f], mask=inside)
            nl.store(out[128 * i + p, f], tile, mask=inside)
        return out

    assert (kernel(x)[:, :3] == x[:, :3]).all()


def test_a_form_has_no_numbers_and_tells_dimensions_apart():
    p, f = nl.arange(4)[:, None], nl.arange(6)[None, :]
    assert (
        form_of((3, p, f + 2)) == form_of((3, p, 2 + f))
        and form_of((5, p, f))[0] == form_of((0, p + 1, f))[0]
    )
    assert form_of((0, p, f))[0] != form_of((0, f, p))[0] != form_of((0, p, 2 * f))[0]
    assert form_of((0, slice(1, 3)))[0] is None and form_of((p // 3,))[0] is None
    assert form_of((p, slice(0, 4)))[0] != form_of((p, slice(1, 5)))[0]


def test_the_second_key_of_a_form_is_known():
    seen = []

    @nki.jit
    def kernel(t):
        p, f = nl.arange(3)[:, None], nl.arange(7)[None, :]
        for i in range(3):
            picked = t[i + p, f]
            assert isinstance(picked, IndexedTensor)
            seen.append(type(picked.places) is RepeatedRegion)
            nl.load(picked)
        return t

    kernel.trace(np.zeros((5, 7), np.float32))
    assert seen[1:] == [True, True]
