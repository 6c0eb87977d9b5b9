"""The DMA engines of the simulation: the shortcut for transfers of equal parts gives the bits of `deal`."""

import random

import pytest

from nki.machine.generations import find
from nki.timing.dma_engines import DmaEngines
from nki.timing.timing_rules import deal


def works(rng, engines):
    """Return what transfers ask of the engines: all the same, some, different, and the link to ranks."""
    all_engines = range(engines)
    for _ in range(3):
        yield tuple((e, rng.uniform(3, 900)) for e in sorted(rng.sample(all_engines, rng.randint(1, 9))))
        yield (*((e, 70.0) for e in all_engines), (engines, rng.uniform(50, 4000)))
    yield tuple((e, rng.uniform(3, 900)) for e in all_engines)
    yield ()
    for _ in range(12):
        ns = rng.choice((64.0, 100 / 3, rng.uniform(1, 500)))
        yield tuple((e, ns) for e in all_engines)


@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("machine", ["trn1", "trn2", "trn3"])
def test_any_sequence_of_transfers_takes_the_times_of_deal(machine, share):
    machine, rng = find(machine), random.Random(20)
    for _ in range(30):
        engines, free = DmaEngines(machine, share), [0.0] * (machine.dma_engines + 1)
        choices = list(works(rng, machine.dma_engines))
        if rng.random() < 0.5:
            choices = choices[-12:]  # equal parts alone
        arrival, step = 0.0, rng.choice((20.0, 90.0, 3000.0))
        for _ in range(120):
            arrival = rng.choice((arrival + rng.uniform(0, step), arrival, free[0], free[-2]))
            work = rng.choice(choices)
            expected = deal(free, arrival, work, machine.dma_skew_ns, share)
            assert engines.move(arrival, work) == expected
