"""Caches: their bounds, threads, forks, and what happens when a Program goes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import weakref

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.caches import LRUCache, cached_property, per_program


@nki.jit
def copy(x):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


def a_program():
    return copy.trace(np.zeros((4, 4), np.float32))


def test_the_least_recently_used_entry_is_evicted():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.find("a") == 1
    cache.put("c", 3)
    assert list(cache) == ["a", "c"]
    assert cache.find("b") is None
    assert (cache.hits, cache.misses) == (1, 1)


def test_entries_are_evicted_until_the_weight_fits():
    cache = LRUCache(100, weight=10)
    cache.put("a", 1, weight=6)
    cache.put("b", 2, weight=3)
    cache.put("c", 3, weight=7)
    assert list(cache) == ["b", "c"]
    assert cache.weight == 10


def test_an_entry_heavier_than_the_limit_is_not_added():
    cache = LRUCache(100, weight=10)
    cache.put("a", 1, weight=6)
    cache.put("b", 2, weight=11)
    assert list(cache) == ["a"]


def test_replacing_an_entry_replaces_its_weight():
    cache = LRUCache(100, weight=10)
    cache.put("a", 1, weight=6)
    cache.put("a", 2, weight=7)
    assert (cache["a"], cache.weight, len(cache)) == (2, 7, 1)
    cache.discard("a")
    cache.discard("a")
    assert (cache.weight, len(cache)) == (0, 0)


def test_clear_removes_entries_and_weight():
    cache = LRUCache(100, weight=10)
    cache.put("a", 1, weight=6)
    cache.clear()
    assert (cache.weight, len(cache), cache.find("a")) == (0, 0, None)


def test_bounds_hold_under_threads():
    cache = LRUCache(50, weight=500)

    def work(first):
        for i in range(2000):
            cache.put((first, i % 70), i, weight=1 + i % 20)
            cache.find((first, (i * 7) % 70))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) <= 50
    assert cache.weight == sum(cache._weights.values()) <= 500
    assert set(cache._weights) == set(cache)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_lock_that_another_thread_held():
    cache = LRUCache(2)
    cache.put("a", 1)
    held, done = threading.Event(), threading.Event()

    def hold():
        with cache.lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(cache.find("a") != 1))
    child.start()
    child.join(20)
    code = child.exitcode
    if code is None:
        child.kill()
    done.set()
    thread.join()
    assert code == 0


def test_a_derived_value_is_made_once_for_each_program_and_argument():
    calls = []

    @per_program
    def derived(program, factor=1):
        calls.append(factor)
        return len(program) * factor

    one, other = a_program(), nki.Program.parse(str(a_program()))
    assert one == other
    assert [derived(one), derived(one), derived(one, 3), derived(one, 3), derived(other)] == [2, 2, 6, 6, 2]
    assert calls == [1, 3, 1]


def test_a_derived_value_goes_with_its_program():
    class Derived:
        pass

    @per_program
    def derived(program):
        return Derived()

    program = nki.Program.parse(str(a_program()))
    value = weakref.ref(derived(program))
    assert value() is derived(program)
    del program
    gc.collect()
    assert value() is None


def test_a_cached_property_waits_for_no_other_thread():
    class Slow:
        entered, leave = threading.Event(), threading.Event()

        @cached_property
        def value(self):
            self.entered.set()
            assert self.leave.wait(10)
            return self

    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    assert Slow.entered.wait(10)
    second = threading.Thread(target=lambda: Slow().value)  # with a lock of the class, it would not begin
    Slow.entered.clear()
    second.start()
    began = Slow.entered.wait(5)
    Slow.leave.set()
    thread.join()
    second.join()
    assert began
