"""Tuning on a real local Ray of two workers, one of which is killed on the way: nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tune import tune
from support import target

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
SPEC = nki.TensorSpec((256, 2048), "float32")


@nki.jit
def doubled(x, columns=512, copies=1):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    for row in range(0, x.shape[0], 128):
        for column in range(0, x.shape[1], columns):
            tile = nl.ndarray((128, columns), x.dtype)
            part = (slice(row, row + 128), slice(column, column + columns))
            nisa.dma_copy(tile, x[part])
            for _ in range(copies):
                nisa.tensor_scalar(tile, tile, nl.multiply, 2.0 ** (1 / copies))
            nisa.dma_copy(out[part], tile)
    return out


@pytest.fixture
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    yield
    ray.shutdown()


def worker_pids():
    @ray.remote
    def pid():
        time.sleep(0.5)
        return os.getpid()

    return set(ray.get([pid.remote() for _ in range(2)]))


def test_a_worker_that_is_killed_loses_nothing(cluster):
    vary = {"columns": [64, 128, 256, 512, 1024, 2048], "copies": list(range(1, 13))}
    with target("trn2"):
        here = tune(doubled, [SPEC], vary=vary, jobs=1, cache=False)
        victim = min(worker_pids())
        killed = []

        def progress(done, total, best):
            if done >= 8 and not killed:
                killed.append(victim)
                threading.Thread(target=os.kill, args=(victim, signal.SIGKILL)).start()

        there = tune(doubled, [SPEC], vary=vary, ray=True, cache=False, progress=progress)
    assert killed, "one of two workers was killed on the way"
    assert there.tried == here.tried == 72 and len({repr(o.config) for o in there.outcomes}) == 72
    assert (there.best, there.us) == (here.best, here.us)
