"""From when to when tiles are live, against a count at every position."""

import random

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.liveness import first_and_last, lifetimes, peak
from nki.machine.memories import SBUF


def random_program(seed):
    @nki.jit
    def kernel(x):
        chance, tiles = random.Random(seed), []
        for number in range(40):
            if len(tiles) < 2 or chance.random() < 0.3:
                address = (0, 64 * number) if chance.random() < 0.2 else None
                tiles.append(nl.ndarray((128, chance.choice((1, 4))), nl.float32, address=address))
                nisa.memset(tiles[-1], 0.0)
            if len(tiles) > 1 and chance.random() < 0.2:
                tiles.pop(0)
            one = chance.choice(tiles)
            nisa.tensor_scalar(one, one, nl.add, 1.0)
            nisa.tensor_scalar(one, one, nl.add, tiles[-1][:, 0:1])
        return x

    return kernel.trace(nki.TensorSpec((128, 8), "float32"))


@pytest.mark.parametrize("seed", range(4))
def test_lifetimes_and_the_peak_are_those_counted_at_every_position(seed):
    (items,) = random_program(seed).cores
    used = [{view.storage for view in instruction.views()} for instruction in items]
    order = list(dict.fromkeys(view.storage for instruction in items for view in instruction.views()))
    begins, ends = first_and_last(items)
    assert list(ends) == order
    for storage in order:
        positions = [n for n, storages in enumerate(used, 1) if storage in storages]
        assert (begins[storage], ends[storage]) == (positions[0], positions[-1])
    lives = {s: life for s, life in lifetimes(items).items() if s.buffer is SBUF}
    placed = [s for s in lives if s.address is not None]
    live = [
        [s for s, life in lives.items() if life.first <= n <= life.last and s.address is None]
        for n in range(len(items) + 2)
    ]
    most = max(live, key=lambda storages: sum(s.pitch for s in storages))
    found = peak(lives, lambda storage: storage.pitch)
    assert placed and found.nbytes == sum(s.pitch for s in [*most, *placed])
    assert found.live == sorted([*most, *placed], key=lambda s: s.number)


def test_the_peak_of_tiles_at_addresses_alone_is_the_bytes_that_they_cover():
    @nki.jit
    def kernel(x):
        for byte in (0, 16, 16):
            nisa.memset(nl.ndarray((128, 8), nl.float32, address=(0, byte)), 0.0)
        return x

    (items,) = kernel.trace(nki.TensorSpec((128, 8), "float32")).cores
    assert peak(lifetimes(items), lambda storage: storage.pitch).nbytes == 48
    assert peak({}, lambda storage: storage.pitch) == (0, [])
