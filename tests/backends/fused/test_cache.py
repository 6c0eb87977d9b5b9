"""Plans are cached by the content of their programs."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from backend_agreement import outcome
from nki.backends.fused import cache
from nki.backends.fused.cache import Content, PlanCache
from nki.backends.fused.planner import make_plan, plan_of
from nki.backends.lowered import Lowered, lower
from nki.ir.program import Program
from nki.kernel.cache import programs
from nki.machine.generations import find
from support import target
from tile_programs import program_of


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Plans of this test alone, on trn2."""
    monkeypatch.setattr(cache, "plans", PlanCache())
    with target("trn2"):
        yield


def kernel_of(columns=256, scale=0.5, dtype=nl.float32, op=nl.multiply, first=0, extra=False, label=None):
    @nki.jit
    def kernel(left, right):
        out = nl.ndarray((128, columns), nl.float32, buffer=nl.shared_hbm)
        a, b, tile = nl.ndarray((128, 128), dtype), nl.ndarray((128, columns), dtype), None
        nisa.dma_copy(a, left[:, first : first + 128])
        nisa.dma_copy(b, right[:, 0:columns])
        psum = nl.ndarray((128, columns), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, a, b)
        tile = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_scalar(tile, psum, op, scale, name=label)
        if extra:
            nisa.tensor_copy(a, a)
        nisa.dma_copy(out, tile)
        return out

    return kernel


def arrays(dtype=np.float32):
    chance = np.random.default_rng(0)
    return [chance.integers(-3, 4, (128, 384)).astype(dtype) for _ in range(2)]


def traced(**options):
    return kernel_of(**options).trace(*arrays())


def content_key(program):
    return Content(lower(program)).key


def new_plan(program):
    return make_plan(Lowered(program))


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_programs_of_equal_content_share_a_plan():
    one, other = traced(), traced()
    assert one is not other and plan_of(lower(one), forced=True) is plan_of(lower(other), forced=True)
    assert (cache.plans.plans.hits, cache.plans.plans.misses) == (1, 1)
    assert (
        outcome(other, arrays(), "fused")[0][0].tobytes()
        == outcome(one, arrays(), "reference")[0][0].tobytes()
    )


def test_lines_and_labels_are_no_part_of_the_content():
    assert content_key(traced()) == content_key(traced(label="scaled"))


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": 128},
        {"scale": 0.25},
        {"scale": 1},
        {"dtype": nl.bfloat16},
        {"op": nl.add},
        {"first": 128},
        {"extra": True},
    ],
    ids=str,
)
def test_other_content_has_another_key(changed):
    assert content_key(traced()) != content_key(traced(**changed))


def test_an_integer_a_float_and_a_bool_are_different_options():
    keys = {content_key(traced(scale=scale)) for scale in (1, 1.0, np.float32(1))}
    assert len(keys) == 3


def test_the_platform_and_each_of_its_numbers_is_part_of_the_content():
    program = traced()
    slower = replace(program.machine, tensor_ghz=1.0)
    keys = [content_key(replace(program, machine=m)) for m in (program.machine, find("trn3"), slower)]
    assert len(set(keys)) == 3


def test_addresses_and_parameters_are_part_of_the_content():
    program = traced()
    changed = []
    for name, value in (("address", (0, 64)), ("parameter", True), ("loop", 1)):
        other = traced()
        setattr(other.storages[-1], name, value)
        changed.append(content_key(other))
    assert len({content_key(program), *changed}) == 4


@pytest.mark.parametrize("seed", range(0, 70, 7))
def test_a_random_program_saved_and_loaded_has_the_same_plan(seed, tmp_path):
    program, _ = program_of(seed, 0.15, 2 if seed % 2 else 1, "trn2")
    program.save(tmp_path / "program")
    again = Program.load(tmp_path / "program")
    assert new_plan(program) == new_plan(again)


def test_planning_the_same_program_again_gives_the_same_plan():
    """Whatever the addresses of its objects: sums have the same order in every process."""
    for seed in range(0, 120, 4):
        program, _ = program_of(seed, 0.15, 1, "trn2")
        plans, objects = [], []
        for size in (1, 7, 50):
            objects.append([object() for _ in range(size)])
            plans.append(new_plan(program))
        assert plans[0] == plans[1] == plans[2], seed


def test_random_programs_that_differ_have_different_keys():
    random = [program_of(seed, 0.15, 1, "trn2")[0] for seed in range(30)]
    assert len({content_key(p) for p in random}) == len({p.digest for p in random})


def test_a_cached_plan_keeps_its_key_from_being_used_by_other_instructions():
    """The key has identities of objects in it: they stay alive as long as the plan is cached."""
    program = traced()
    plan_of(lower(program), forced=True)
    ((_, accesses),) = cache.plans.plans.values()
    assert {id(i.access) for i in program.walk(0)} == {id(access) for access in accesses}


def test_a_program_is_freed_although_its_plan_is_cached():
    program = traced()
    outcome(program, arrays(), "fused")
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None and len(cache.plans.plans) == 1


# ---- memory --------------------------------------------------------------------------------------


def test_a_kernel_whose_python_runs_at_every_call_is_planned_once(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "fused")
    kernel, given = kernel_of(), arrays()
    first = kernel(*given)
    programs.clear()
    second = kernel(*given)
    assert first.tobytes() == second.tobytes()
    assert (cache.plans.plans.hits, cache.plans.plans.misses) == (1, 1)


def test_the_plans_in_memory_are_bounded_by_their_bytes():
    content, other = Content(lower(traced())), Content(lower(traced(columns=128)))
    plan = new_plan(traced())
    known = PlanCache()
    known.put(content, plan)
    nbytes = known.plans.weight
    assert nbytes > 0 and known.find(content) is plan
    small = PlanCache(nbytes=nbytes - 1)
    small.put(content, plan)
    assert small.find(content) is None
    one = PlanCache(nbytes=nbytes)
    one.put(content, plan)
    one.put(other, plan)
    assert one.find(content) is None and one.find(other) is plan
    one.clear()
    assert one.find(other) is None


def test_threads_that_plan_the_same_content_get_one_plan():
    programs = [traced() for _ in range(4)]
    ready, found = threading.Barrier(4), [None] * 4

    def plan(number):
        ready.wait()
        found[number] = plan_of(lower(programs[number]), forced=True)

    workers = [threading.Thread(target=plan, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(plan == found[0] for plan in found) and len(cache.plans.plans) == 1
