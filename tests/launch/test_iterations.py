"""Which turn of which loops an instruction was issued in."""

import nki
import nki.isa as nisa
import nki.language as nl
from nki.launch.loop_counters import Iterations, loops_of
from nki.launch.observers import observe


def noted(kernel, *shape):
    """The turns of a kernel's instructions, in their order."""
    iterations = Iterations()
    with observe(iterations):
        kernel.trace(nki.TensorSpec(shape, "float32"))
    return [iterations.turns.get((0, n)) for n in range(1, 1 + max(n for _, n in iterations.turns))]


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
    turns = noted(nested, 128, 8)
    assert turns[0] is None  # outside of any loop
    assert turns[1] == (("row", 0), ("_name", "left"), ("a", 0), ("b", 4))
    assert turns[2] == (("row", 0), ("_name", "right"), ("a", 4), ("b", 8))


def test_the_loops_of_the_callers_count_too():
    turns = noted(nested, 128, 8)
    assert turns[3:5] == [(("row", 0), ("part", 0)), (("row", 0), ("part", 1))]
    assert turns[-1] == (("row", 1), ("part", 1))


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


def test_each_core_has_turns_of_its_own():
    iterations = Iterations()
    with observe(iterations):
        halves[2].trace(nki.TensorSpec((128, 8), "float32"))
    assert sorted(iterations.turns) == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_loops_are_found_in_bytecode_with_what_they_set():
    def body(items):
        for i, (a, *b) in items:
            for self.x in a:  # noqa: F821
                print(i, b)

    assert [loop.variables for loop in loops_of(body.__code__)] == [("i", "a"), ()]


def test_a_profile_knows_the_turns_and_a_saved_program_has_none():
    spec = nki.TensorSpec((128, 8), "float32")
    profile = nki.profile(nested)(spec)
    assert profile.timeline.bars[-1].turn == (("row", 1), ("part", 1))
    again = nki.Program.parse(str(nested.trace(spec))).profile()
    assert again.timeline.bars[-1].turn == ()
    assert "part" in profile.html() and again.html()  # sites that were written down have pages too
