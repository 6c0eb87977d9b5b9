"""Searches, top-k, lists of nonzeros and gathers by an index tile run on a device, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import loaded, stored

torch = pytest.importorskip("torch")
from backend_agreement import agrees_on_device, torch_devices  # noqa: E402

DEVICES = torch_devices()
CHANCE = np.random.default_rng(7)
DATA = CHANCE.integers(-9, 10, (32, 64)).astype(np.float32)  # many are equal
DATA[0, :3] = np.nan, -0.0, np.inf
WANTED = np.concatenate([DATA[:, [5, 5, 5, 60, 1, 0]], np.full((32, 2), 77, np.float32)], axis=1)
PLACES = CHANCE.integers(0, 64, (32, 16)).astype(np.uint16)


@nki.jit
def find(data, vals):
    places = nl.ndarray((32, 8), nl.uint32)
    nisa.nc_find_index8(places, loaded(data), loaded(vals))
    return stored(places)


@nki.jit
def replace(data, vals):
    left, places = nl.ndarray((32, 64), nl.float32), nl.ndarray((32, 8), nl.uint32)
    nisa.nc_match_replace8(left, loaded(data), loaded(vals), -1.5, places)
    return stored(left), stored(places)


@nki.jit
def gather(data, places):
    out = nl.ndarray((32, 256), nl.float32)
    nisa.local_gather(out, loaded(data), loaded(places))
    return stored(out)


@nki.jit
def gather_each(data, places):
    out = nl.ndarray((32, 16), nl.float32)
    nisa.nc_n_gather(out, loaded(data), loaded(places))
    return stored(out)


@nki.jit
def nonzeros(data):
    found = nl.ndarray((32, 65), nl.int32)
    nisa.memset(found, 0)
    nisa.nonzero_with_count(found, loaded(data), 100, -5)
    return stored(found)


@nki.jit
def largest(data):
    values, places = nl.ndarray((32, 40), nl.bfloat16), nl.ndarray((32, 40), nl.uint32)
    nisa.topk(values, places, loaded(data), 1000)
    return stored(values), stored(places)


CASES = {
    find: (DATA, WANTED),
    replace: (DATA, WANTED),
    gather: (DATA, PLACES),
    gather_each: (DATA, PLACES.astype(np.uint32)),
    nonzeros: (DATA,),
    largest: (DATA.astype(ml_dtypes.bfloat16),),
}


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_nothing_goes_to_the_host_and_the_bits_are_the_same(kernel, device):
    assert agrees_on_device(kernel, CASES[kernel], (), device) in ("ran", "in order")
