"""Plans are kept under the content of their programs: in memory, and in a folder if somebody asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from both_ways import assert_same, outcome
from nki.backends.fused import cache as keeping
from nki.backends.fused import files, writing
from nki.backends.fused.cache import PlanCache
from nki.backends.fused.content import content_key
from nki.backends.fused.planner import NoPlan, made, plan_of
from nki.ir.program import Program
from nki.machine.generations import find
from nkilib.core.attention.attention_cte import attention_cte
from support import target
from tile_programs import program_of


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Plans of this test alone, on trn2."""
    monkeypatch.setattr(keeping, "plans", PlanCache())
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


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_programs_of_equal_content_share_a_plan_whoever_traced_them():
    one, other = traced(), traced()
    assert one is not other and plan_of(one, forced=True) is plan_of(other, forced=True)
    assert (keeping.plans.hits, keeping.plans.misses) == (1, 1)
    assert (
        outcome(other, arrays(), "plan")[0][0].tobytes()
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


def test_where_a_tile_is_placed_and_what_is_an_argument_count():
    program = traced()
    changed = []
    for name, value in (("address", (0, 64)), ("parameter", True), ("loop", 1)):
        other = traced()
        setattr(other.storages[-1], name, value)
        changed.append(content_key(other))
    assert len({content_key(program), *changed}) == 4


@pytest.mark.parametrize("seed", range(0, 70, 7))
def test_a_random_program_saved_and_loaded_has_the_same_key_and_plan(seed, tmp_path):
    program, _ = program_of(seed, 0.15, 2 if seed % 2 else 1, "trn2")
    program.save(tmp_path / "program")
    again = Program.load(tmp_path / "program")
    assert content_key(program) == content_key(again) is not None
    assert made(program) == made(again)


def test_planning_the_same_program_again_gives_the_same_plan():
    """Whatever the addresses of its objects: processes write the same bytes, and sums have the same order."""
    for seed in range(0, 120, 4):
        program, _ = program_of(seed, 0.15, 1, "trn2")
        plans, kept = [], []
        for size in (1, 7, 50):
            kept.append([object() for _ in range(size)])
            plans.append(made(program))
        assert plans[0] == plans[1] == plans[2], seed


def test_random_programs_that_differ_have_different_keys():
    programs = [program_of(seed, 0.15, 1, "trn2")[0] for seed in range(30)]
    assert len({content_key(p) for p in programs}) == len({p.digest for p in programs})


def test_an_option_that_nothing_is_known_of_makes_no_key():
    program = traced()
    instruction = next(i for i in program.walk(0) if i.public == "tensor_scalar")
    instruction.operand0 = object()
    assert content_key(program) is None
    assert not isinstance(plan_of(program, forced=True), NoPlan) and not keeping.plans.kept


# ---- memory --------------------------------------------------------------------------------------


def test_a_kernel_whose_python_runs_at_every_call_is_planned_once(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "plan")
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    kernel, given = kernel_of(), arrays()
    first, second = kernel(*given), kernel(*given)
    assert first.tobytes() == second.tobytes() and len(keeping.plans.kept) <= 1


def test_memory_keeps_so_many_plans_and_operands_the_oldest_go_first():
    few = PlanCache(plans=2, weight=1000)
    plan = made(traced())
    for key in (b"1", b"2", b"3"):
        few.keep(key, plan)
        few.find(b"1")
    assert list(few.kept) == [b"3", b"1"]
    weight = few.kept[b"1"][1]
    assert few.weight == 2 * weight > 0
    assert not PlanCache(weight=weight - 1).keep(b"1", plan)
    small = PlanCache(weight=weight)
    small.keep(b"1", plan)
    small.keep(b"2", plan)
    assert list(small.kept) == [b"2"] and small.weight == weight
    small.clear()
    assert (small.kept, small.weight) == ({}, 0)


def test_threads_that_plan_the_same_content_get_one_plan():
    programs = [traced() for _ in range(4)]
    ready, found = threading.Barrier(4), [None] * 4

    def plan(number):
        ready.wait()
        found[number] = plan_of(programs[number], forced=True)

    workers = [threading.Thread(target=plan, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(plan == found[0] for plan in found) and len(keeping.plans.kept) == 1


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_a_random_plan_as_text_is_the_same_plan(seed):
    plan = made(program_of(seed, 0.15, 2 if seed % 8 else 1, "trn2")[0])
    assert isinstance(plan, NoPlan) or writing.parsed(writing.text(plan)) == plan


def test_the_plan_of_a_library_kernel_as_text_is_the_same_plan():
    shapes = ((1, 256, 64), (1, 64, 256), (1, 256, 64))
    plan = made(attention_cte.trace(*(np.ones(shape, np.float32) for shape in shapes)))
    assert writing.parsed(writing.text(plan)) == plan


def kept(folder, **options):
    """The files after a call by a plan, in a process that has no plans yet."""
    keeping.plans.clear()
    with nki.options(executor="plan", plan_cache=str(folder)):
        found = traced(**options).run(*arrays())
    assert found.tobytes() == outcome(traced(**options), arrays(), "reference")[0][0].tobytes()
    return sorted(folder.iterdir())


def test_a_folder_keeps_plans_for_other_processes(tmp_path, monkeypatch):
    folder = tmp_path / "made" / "on demand"
    (file,) = kept(folder)
    text = file.read_bytes()

    def never(*_):
        raise AssertionError("it is there already")

    monkeypatch.setattr("nki.backends.fused.planner.made", never)
    assert kept(folder) == [file] and file.read_bytes() == text


def test_a_plan_that_is_in_memory_is_written_when_somebody_asks_for_a_folder(tmp_path):
    plan_of(traced(), forced=True)
    assert keeping.plans.kept and not list(tmp_path.iterdir())
    with nki.options(executor="plan", plan_cache=str(tmp_path)):
        traced().run(*arrays())
    (file,) = tmp_path.iterdir()
    assert kept(tmp_path) == [file]


def test_no_folder_is_written_unless_somebody_asks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with nki.options(executor="plan"):
        traced().run(*arrays())
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_folder(tmp_path):
    outcome(traced(), arrays(), "plan", OPEN_NKI_PLAN_CACHE=str(tmp_path))
    assert len(list(tmp_path.glob("*.plan"))) == 1


def test_other_content_and_another_version_have_files_of_their_own(tmp_path, monkeypatch):
    assert len(kept(tmp_path)) == 1 and len(kept(tmp_path, columns=128)) == 2
    monkeypatch.setattr(files, "_software", lambda: "a later one")
    assert len(kept(tmp_path)) == 3


def damages(text):
    head, content = text.split(b"\n", 1)
    yield b""
    yield text[: len(text) // 2]
    yield b"\xff\xfe" + text
    yield head + b"\n{}"
    yield text.replace(b'"arena":', b'"arena": 1', 1)
    yield b"another format " + text
    yield content


@pytest.mark.parametrize("number", range(7))
def test_a_damaged_file_is_told_of_and_written_again(tmp_path, number):
    (file,) = kept(tmp_path)
    text = file.read_bytes()
    file.write_bytes(list(damages(text))[number])
    with pytest.warns(nki.NkiWarning, match="cannot be used") as caught:
        assert kept(tmp_path) == [file]
    assert caught[0].category.kind == "plan-cache" and file.read_bytes() == text


def test_a_folder_that_cannot_be_written_to_is_told_of_and_the_call_goes_on(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    keeping.plans.clear()
    with (
        nki.options(executor="plan", plan_cache=str(blocked)),
        pytest.warns(nki.NkiWarning, match="cannot be"),
    ):
        found = traced().run(*arrays())
    assert found.tobytes() == outcome(traced(), arrays(), "reference")[0][0].tobytes()


SEVERAL = """
import sys
import numpy as np
sys.path[:0] = [{tests!r}, {plan!r}]
import nki
from test_keeping import arrays, traced
from nki.backends.fused import keeping
with nki.options(executor="plan", plan_cache={folder!r}, target="trn2"):
    for columns in (128, 256, 384):
        for _ in range(3):
            keeping.plans.clear()
            traced(columns=columns).run(*arrays())
"""


def test_processes_that_write_the_same_plans_at_once_leave_them_whole(tmp_path):
    here = Path(__file__).parent
    code = SEVERAL.format(tests=str(here.parents[1]), plan=str(here), folder=str(tmp_path))
    command = [sys.executable, "-W", "error", "-c", code]
    running = [subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE) for _ in range(2)]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()
    left = sorted(tmp_path.iterdir())
    assert len(left) == 3 and all(file.suffix == ".plan" for file in left)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept(tmp_path) == left


def test_a_plan_that_was_read_runs_as_one_that_was_made(tmp_path):
    for seed in range(0, 30, 3):
        program, given = program_of(seed, 0.15, 2 if seed % 2 else 1, "trn2")
        plan = made(program)
        if not isinstance(plan, NoPlan):
            program.__dict__["_forced_plan"] = writing.parsed(writing.text(plan))
            assert assert_same(program, given)
