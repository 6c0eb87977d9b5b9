"""Which iteration of which loops an instruction was issued in."""

import random
import sys

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.iterations import IterationTable
from nki.launch.loop_counters import IterationRecorder, loops_of, variables_at
from nki.launch.observers import observe


def noted(kernel, *shape):
    """The iterations of a kernel's instructions, in their order."""
    recorder = IterationRecorder()
    with observe(recorder):
        program = kernel.trace(nki.TensorSpec(shape, "float32"))
    iterations = recorder.table
    return [iterations.of(0, n) for n in range(1, 1 + len(program))]


def fill(tile, value):
    for part in range(2):
        nisa.memset(tile[:, part * 4 : part * 4 + 4], value)


@nki.jit
def nested(x):
    tile = nl.ndarray((128, 8), nl.float32)
    nisa.memset(tile, 0.0)
    for row in range(2):
        for _name, (a, b) in (("left", (0, 4)), ("right", (4, 8))):
            nisa.memset(tile[:, a:b], float(row))
        fill(tile, 1.0)
    return x


def test_the_variables_of_all_loops_around_a_call_are_noted_outermost_first():
    iterations = noted(nested, 128, 8)
    assert iterations[0] == ()  # outside of any loop
    assert iterations[1] == (("row", 0), ("_name", "left"), ("a", 0), ("b", 4))
    assert iterations[2] == (("row", 0), ("_name", "right"), ("a", 4), ("b", 8))


def test_the_loops_of_the_callers_count_too():
    iterations = noted(nested, 128, 8)
    assert iterations[3:5] == [(("row", 0), ("part", 0)), (("row", 0), ("part", 1))]
    assert iterations[-1] == (("row", 1), ("part", 1))


@nki.jit
def over_objects(x):
    tile = nl.ndarray((128, 8), nl.float32)
    for _index, part in enumerate([tile[:, 0:4], tile[:, 4:8]]):
        nisa.memset(part, 0.0)
    return x


def test_what_is_no_number_and_no_short_word_is_left_out():
    assert noted(over_objects, 128, 8) == [(("_index", 0),), (("_index", 1),)]


@nki.jit
def halves(x):
    tile = nl.ndarray((128, 8), nl.float32)
    for _step in range(2):
        nisa.memset(tile, float(nl.program_id(0)))
    return x


def test_each_core_has_iterations_of_its_own():
    recorder = IterationRecorder()
    with observe(recorder):
        halves[2].trace(nki.TensorSpec((128, 8), "float32"))
    iterations = recorder.table
    found = [iterations.of(core, n) for core in (0, 1) for n in (1, 2)]
    assert found == 2 * [(("_step", 0),), (("_step", 1),)]
    assert iterations.of(1, 3) == iterations.of(2, 1) == ()


def test_loops_are_found_in_bytecode_with_what_they_set():
    def body(items):
        for i, (a, *b) in items:
            for self.x in a:  # noqa: F821
                print(i, b)

    assert [loop.variables for loop in loops_of(body.__code__)] == [("i", "a"), ()]


def test_a_profile_knows_the_turns_and_a_saved_program_has_none():
    spec = nki.TensorSpec((128, 8), "float32")
    profile = nki.profile(nested)(spec)
    assert profile.timeline.bars[-1].iteration == (("row", 1), ("part", 1))
    again = nki.Program.parse(str(nested.trace(spec))).profile()
    assert again.timeline.bars[-1].iteration == ()
    assert "part" in profile.html() and again.html()  # sites that were written down have pages too


# ---- random nests, against a reader of all frames ------------------------------------------------


def counted(tile, chance, depth):
    for i in range(chance.randint(1, 3)):
        step(tile, chance, depth)
        if chance.random() < 0.2:
            continue
        for j, _word in enumerate(("one", "two", "three")):
            step(tile, chance, depth)
            if (i + j) % 2:
                break


def waited(tile, chance, depth):
    left = chance.randint(1, 3)
    while left:
        left -= 1
        step(tile, chance, depth)


def generated(tile, chance, depth):
    for i in generator(tile, chance, depth):
        step(tile, chance, depth)
        if i == 1:
            nisa.memset(tile, 1.0)


def resumed(tile, chance, depth):
    """One generator is resumed by several loops and functions."""
    made = generator(tile, chance, depth)
    for a in range(2):
        next(made, a)
        step(tile, chance, depth)
    for _b in range(2):
        resume(made)


def resume(made):
    for _c in range(2):
        next(made, None)


def generator(tile, chance, depth):
    for g in range(chance.randint(1, 4)):
        step(tile, chance, depth)
        yield g


def listed(tile, chance, depth):
    return [step(tile, chance, depth) for _k in range(2)]


def repeated(tile, chance, depth):
    for r in range(2):
        nisa.memset(tile, float(r))
        if depth > 0:
            repeated(tile, chance, depth - 1)


def step(tile, chance, depth):
    nisa.memset(tile, 0.0)
    for kind in chance.sample((counted, waited, generated, resumed, listed, repeated), min(depth, 2)):
        kind(tile, chance, depth - 1)


def frames_of_the_kernel(frame):
    """The frames of this file, innermost first, up to the kernel's own."""
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            yield frame
            if frame.f_code.co_name == "kernel":
                return
        frame = frame.f_back


@pytest.mark.parametrize("seed", range(6))
def test_turns_equal_those_of_all_frames_in_random_nests(seed):
    expected = []

    def read(instruction):
        iteration = []
        for frame in frames_of_the_kernel(sys._getframe(1)):
            values = [(name, frame.f_locals.get(name)) for name in variables_at(frame.f_code, frame.f_lasti)]
            iteration = [(name, value) for name, value in values if isinstance(value, (int, str))] + iteration
        expected.append(tuple(iteration))

    @nki.jit
    def kernel(x):
        tile, chance = nl.ndarray((128, 8), nl.float32), random.Random(seed)
        for _outer in range(2):
            step(tile, chance, 3)
        return x

    recorder = IterationRecorder()
    with observe(recorder), observe(read):
        kernel.trace(nki.TensorSpec((128, 8), "float32"))
    iterations = recorder.table
    assert len(set(expected)) > 20
    assert [iterations.of(0, n) for n in range(1, 1 + len(expected))] == expected


def test_a_number_that_is_used_again_has_the_iteration_of_the_last():
    iterations = IterationTable()
    for handle, value in ((1, 5), (3, 6), (3, 7)):
        iterations.add(0, handle, (("i",), (value,)))
    assert [iterations.of(0, n) for n in (1, 2, 3, 4)] == [(("i", 5),), (), (("i", 7),), ()]
