"""Loops: static ranges, dynamic loops, no_reorder (spec/language.md 10)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.experimental
import nki.isa as nisa
import nki.language as nl
from nki.language import loops
from nki.launch import core as core_module

FORMS = ["dynamic_range", "fori_loop"]
LOOPS = [*FORMS, "while_loop"]


def count(form, lower, upper, body, step=1):
    """The counted loop of a name."""
    if form == "fori_loop":
        nl.fori_loop(lower, upper, body, step)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        indices = nl.dynamic_range(lower, upper, step)
    for index in indices:
        body(index)


def once(form, body):
    """A loop of a name that runs its body once."""
    if form != "while_loop":
        count(form, 0, 1, body)
        return

    def step(register):
        body(register)
        nisa.register_move(register, 0)
        return register

    nl.while_loop(nisa.register_alloc(1), step)


def run(body, *arrays, **options):
    seen = []

    @nki.jit
    def kernel(tensors):
        seen.append(body(*tensors))

    result = kernel.run(list(arrays))
    return (seen[0], result) if options.get("with_run") else seen[0]


def refusal(body, *arrays):
    with pytest.raises(nki.NkiError) as caught:
        run(body, *arrays)
    return caught.value


def kinds(run_):
    return [d.kind for d in run_.diagnostics]


def tile_of(value, dtype=nl.int32):
    tile = nl.ndarray((1, 1), dtype)
    nisa.memset(tile, value)
    return tile


# ---- static ranges -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range"])
@settings(max_examples=200, deadline=None)
@given(st.integers(-20, 20), st.none() | st.integers(-20, 20), st.integers(-4, 4).filter(bool))
def test_static_ranges_are_ranges(name, start, stop, step):
    expected = range(0, start, step) if stop is None else range(start, stop, step)
    assert list(getattr(nl, name)(start, stop, step)) == list(expected)


def test_static_ranges_take_numpy_ints_and_work_outside_kernels():
    assert list(nl.affine_range(np.int64(3))) == [0, 1, 2]
    assert all(type(i) is int for i in nl.affine_range(np.int32(1), np.int32(4)))


@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range"])
def test_static_ranges_refuse_registers(name):
    problem = refusal(lambda: getattr(nl, name)(nisa.register_alloc(3)))
    assert problem.kind == "register-value" and isinstance(problem, TypeError) and "fori_loop" in problem.help


def test_static_ranges_warn_once_of_their_deprecation():
    loops._deprecated.discard("affine_range")
    with pytest.warns(PendingDeprecationWarning, match="range()"):
        nl.affine_range(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nl.affine_range(3)


def test_static_loops_leave_no_instruction():
    def body():
        for _ in nl.affine_range(5):
            pass

    assert run(body, with_run=True)[1].statistics.instructions == 0


# ---- counted dynamic loops -----------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=200, deadline=None)
@given(
    st.integers(-5, 10),
    st.integers(-5, 10),
    st.integers(1, 4),
    st.sampled_from(["ints", "lower", "upper", "both"]),
)
def test_counted_loops_count_like_range(form, lower, upper, step, registers):
    def body():
        seen = []
        first = nisa.register_alloc(lower) if registers in ("lower", "both") else lower
        last = nisa.register_alloc(upper) if registers in ("upper", "both") else upper
        count(form, first, last, lambda i: seen.append(i.read()), step)
        return seen

    assert run(body) == list(range(lower, upper, step))


@pytest.mark.tiny
def test_fori_loop_copies_rows_with_a_run_time_bound():
    @nki.jit
    def kernel(x, n):
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        bound = nisa.register_alloc(n)
        row = nl.ndarray((1, x.shape[1]), x.dtype)

        def body(i):
            nisa.dma_copy(row, x[nl.ds(i, 1)])
            nisa.dma_copy(out[nl.ds(i, 1)], row)

        nl.fori_loop(0, bound, body)
        return out

    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    for n in (0, 1, 3, 5):
        expected = np.where(np.arange(5)[:, None] < n, x, 0)
        assert np.array_equal(kernel(x, np.array([n], np.int32)), expected)


def test_dynamic_range_with_one_argument_counts_from_0():
    def body():
        with pytest.warns(DeprecationWarning, match="fori_loop"):
            return [i.read() for i in nl.dynamic_range(3)]

    assert run(body) == [0, 1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_bounds_are_read_once(form):
    def body():
        bound = nisa.register_alloc(3)
        seen = []

        def step(i):
            seen.append(i.read())
            nisa.register_move(bound, 10)

        count(form, 0, bound, step)
        return seen

    assert run(body) == [0, 1, 2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [0, -1, 1.5, None, "2"])
def test_the_step_is_a_positive_int(form, step):
    problem = refusal(lambda: count(form, 0, 3, lambda i: None, step))
    assert problem.kind == "loop-step" and isinstance(problem, AssertionError)


@pytest.mark.parametrize("form", FORMS)
def test_the_step_cannot_be_a_register(form):
    problem = refusal(lambda: count(form, 0, 3, lambda i: None, nisa.register_alloc(1)))
    assert problem.kind == "loop-step" and "a register" in str(problem)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bound", [2.0, "3", None])
def test_bounds_are_ints_or_registers(form, bound):
    problem = refusal(lambda: count(form, bound, 3, lambda i: None))
    assert problem.kind == "argument" and isinstance(problem, TypeError)


def test_a_tile_as_a_bound_names_register_load():
    problem = refusal(lambda: nl.fori_loop(0, tile_of(2), lambda i: None))
    assert "register_load" in problem.help


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bound", [2**31, -(2**31) - 1, 2**40])
def test_bounds_fit_32_bits(form, bound):
    problem = refusal(lambda: count(form, 0, bound, lambda i: None))
    assert problem.kind == "register-range" and isinstance(problem, ValueError)


def test_the_index_of_dynamic_range_is_frozen():
    def body():
        for index in nl.dynamic_range(2):
            nisa.register_move(index, 0)

    with pytest.warns(DeprecationWarning):
        problem = refusal(body)
    assert problem.kind == "frozen-register" and isinstance(problem, AssertionError)


def test_the_index_of_dynamic_range_cannot_be_a_list_index():
    def body():
        for index in nl.dynamic_range(2):
            [1, 2, 3][index]

    with pytest.warns(DeprecationWarning), pytest.raises(TypeError, match="only at run time"):
        run(body)


def test_the_index_of_fori_loop_is_passed_by_value():
    def body():
        seen = []

        def step(i):
            seen.append(i.read())
            nisa.register_move(i, 100)
            seen.append(i.read())

        nl.fori_loop(0, 3, step)
        return seen

    assert run(body) == [0, 100, 1, 100, 2, 100]


@pytest.mark.parametrize("returned", [0, "x", ()])
def test_the_body_of_fori_loop_returns_nothing(returned):
    problem = refusal(lambda: nl.fori_loop(0, 1, lambda i: returned))
    assert problem.kind == "loop-body" and type(returned).__name__ in str(problem)


@pytest.mark.parametrize(
    "loop", [lambda: nl.fori_loop(0, 1, 3), lambda: nl.while_loop(nisa.register_alloc(1), 3)]
)
def test_the_body_is_a_function(loop):
    assert refusal(loop).kind == "argument"


def test_break_ends_a_dynamic_range():
    def body():
        core = core_module.current()
        core.read_back()
        before = list(core.sinks)
        for index in nl.dynamic_range(10):
            tile = tile_of(1)
            if index.read() == 3:
                break
        depth, sinks = len(core.loops), core.sinks == before
        with pytest.raises(nki.NkiError) as caught:
            nisa.tensor_copy(nl.ndarray((1, 1), nl.int32), tile)
        return depth, sinks, caught.value.kind

    with pytest.warns(DeprecationWarning):
        assert run(body) == (0, True, "loop-local-tensor")


def test_dynamic_loops_run_only_in_kernels():
    for loop in (
        lambda: nl.fori_loop(0, 1, print),
        lambda: list(nl.dynamic_range(2)),
        nl.no_reorder().__enter__,
    ):
        with warnings.catch_warnings(), pytest.raises(nki.NkiError) as caught:
            warnings.simplefilter("ignore", DeprecationWarning)
            loop()
        assert caught.value.kind == "no-kernel"


@pytest.mark.parametrize("form", FORMS)
def test_a_loop_does_not_read_back_values_whatever_its_bounds(form):
    def body(upper):
        count(form, 0, upper, lambda i: None)
        return core_module.current().launch.python.read_values

    assert run(lambda: body(3)) is False
    assert run(lambda: body(nisa.register_alloc(3))) is False


# ---- while_loop ----------------------------------------------------------------------------------


@pytest.mark.tiny
def test_while_loop_runs_until_the_returned_register_is_0():
    @nki.jit
    def kernel(x, n):
        out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        left, total, value = (
            nl.ndarray((1, 1), nl.int32),
            nl.zeros((1, 1), nl.float32),
            nl.ndarray((1, 1), nl.float32),
        )
        nisa.dma_copy(left, n)
        nisa.dma_copy(value, x)

        def body(register):
            nisa.tensor_tensor(total, total, value, nl.add)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(register, left)
            return register

        nl.while_loop(nisa.register_alloc(left), body)
        nisa.dma_copy(out, total)
        return out

    for n in (0, 1, 7):
        result = kernel(np.array([[1.5]], np.float32), np.array([[n]], np.int32))
        assert result[0, 0] == 1.5 * n


def test_the_condition_is_passed_by_value():
    def body():
        init = nisa.register_alloc(2)
        seen, left = [], tile_of(2)

        def step(register):
            seen.append(register.read())
            nisa.register_move(register, 99)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            return nisa.register_alloc(left)

        nl.while_loop(init, step)
        return seen, init.read()

    assert run(body) == ([2, 1], 2)


def test_the_body_may_write_the_callers_register():
    def body():
        init = nisa.register_alloc(1)

        def step(register):
            nisa.register_move(init, 0)
            return init

        nl.while_loop(init, step)
        return init.read()

    assert run(body) == 0


@pytest.mark.parametrize("init", [1, True, None])
def test_the_condition_must_be_a_register(init):
    problem = refusal(lambda: nl.while_loop(init, lambda r: r))
    assert problem.kind == "argument" and isinstance(problem, TypeError)


@pytest.mark.parametrize("returned", [None, 0, 1.0])
def test_the_body_must_return_a_register(returned):
    problem = refusal(lambda: nl.while_loop(nisa.register_alloc(1), lambda r: returned))
    assert problem.kind == "loop-body" and type(returned).__name__ in str(problem)


def test_an_endless_loop_is_reported(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_MAX_ITERATIONS", "25")
    problem = refusal(lambda: nl.while_loop(nisa.register_alloc(7), lambda r: r))
    assert problem.kind == "endless-loop" and isinstance(problem, AssertionError)
    assert "25 iterations" in str(problem) and "7, 7, 7" in str(problem)


def test_as_many_iterations_as_allowed_are_no_error(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_MAX_ITERATIONS", "3")

    def body():
        trips, left = [], tile_of(3)

        def step(register):
            trips.append(1)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(register, left)
            return register

        nl.while_loop(nisa.register_alloc(3), step)
        return len(trips)

    assert run(body) == 3


def test_experimental_while_loop_is_the_same_function():
    assert nki.experimental.while_loop is nl.while_loop


# ---- tensors of a body ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm])
def test_a_tensor_of_the_body_has_one_storage_and_is_poison_again(form, buffer):
    def body():
        tiles, poisoned = [], []

        def step(i):
            tile = nl.ndarray((2, 2), nl.float32, buffer=buffer)
            poisoned.append(np.isnan(np.asarray(tile)).all())
            if buffer in (nl.sbuf, nl.psum):
                nisa.memset(tile, 1.0)
            else:
                nisa.dma_copy(tile, nl.zeros((2, 2), nl.float32))
            tiles.append(tile)

        count(form, 0, 3, step)
        return len({id(tile.storage) for tile in tiles}), poisoned

    assert run(body) == (1, [True] * 3)


@pytest.mark.parametrize("form", LOOPS)
def test_reading_last_iterations_tensor_finds_poison(form):
    def body():
        held = []
        out = nl.ndarray((1, 1), nl.int32)

        def step(i):
            tile = nl.ndarray((1, 1), nl.int32)
            held.append(tile)
            nisa.tensor_copy(out, tile)
            nisa.memset(tile, 5)

        if form == "while_loop":

            def body_fun(register):
                step(register)
                return nisa.register_alloc(2 - len(held))

            nl.while_loop(nisa.register_alloc(1), body_fun)
        else:
            count(form, 0, 2, step)

    with pytest.warns(nki.NkiWarning) as caught:
        run(body)
    assert "uninitialised" in {w.category.kind for w in caught}


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("use", ["read", "write"])
def test_using_a_tensor_of_the_body_after_the_loop_is_an_error(form, use):
    def body():
        held = []
        before = tile_of(0)

        def step(i):
            held.append(tile_of(1))
            nisa.tensor_copy(before, held[-1])  # the same instruction is fine inside

        once(form, step)
        if use == "read":
            nisa.tensor_copy(before, held[-1])
        else:
            nisa.memset(held[-1], 1)

    problem = refusal(body)
    assert problem.kind == "loop-local-tensor" and isinstance(problem, AssertionError)
    assert "before the loop" in problem.help


def test_a_tensor_of_the_body_can_still_be_shown_after_the_loop():
    def body():
        held = []
        nl.fori_loop(0, 1, lambda i: held.append(tile_of(3)))
        return repr(held[0])

    assert "3" in run(body)


def test_returning_a_tensor_of_the_body_is_an_error():
    @nki.jit
    def kernel():
        held = []
        nl.fori_loop(0, 1, lambda i: held.append(nl.zeros((4,), nl.float32, buffer=nl.shared_hbm)))
        return held[0]

    with pytest.raises(nki.NkiError) as caught:
        kernel()
    assert caught.value.kind == "loop-local-tensor" and "return held[0]" in str(caught.value)


def test_tensors_from_before_the_loop_stay_usable():
    def body():
        total = tile_of(0)
        nl.fori_loop(0, 4, lambda i: nisa.tensor_scalar(total, total, nl.add, 1) and None)
        return int(np.asarray(total)[0, 0])

    assert run(body) == 4


def test_dead_tiles_of_a_body_give_their_memory_back():
    def body():
        seen = []

        def step(i):
            for _ in range(3):
                tile = nl.ndarray((128, 1024), nl.float32)
                nisa.memset(tile, 0.0)
            seen.append(tile.storage)

        nl.fori_loop(0, 3, step)
        return [storage in core_module.current().memories for storage in seen]

    assert run(body) == [False, False, False]


def test_placed_tensors_of_a_body_keep_their_address():
    def body():
        seen = []

        def step(i):
            tile = nl.ndarray((2, 2), nl.float32, address=(0, 64))
            nisa.memset(tile, 1.0)
            seen.append(np.asarray(tile)[0, 0])

        nl.fori_loop(0, 3, step)
        return seen

    assert run(body) == [1.0] * 3


# ---- the same instructions in every iteration ----------------------------------------------------


def divergence(step, trips=3):
    state = {"trip": 0}

    def body(i):
        state["trip"] += 1
        step(state["trip"], i)

    def loop():
        nl.fori_loop(0, trips, body)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [d for d in run(loop, with_run=True)[1].diagnostics if d.kind == "loop-divergence"]


def test_equal_iterations_are_fine():
    def step(trip, i):
        tile = nl.zeros((4, 4), nl.float32)
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nisa.register_store(tile_of(0), i)

    assert not divergence(step)


@pytest.mark.parametrize(
    "step",
    [
        lambda trip, i: nl.zeros((4, trip), nl.float32),  # shapes
        lambda trip, i: nisa.memset(nl.ndarray((1, 1), nl.int32), trip),  # options
        lambda trip, i: [nl.zeros((1, 1), nl.float32) for _ in range(trip)],  # more
        lambda trip, i: [nl.zeros((1, 1), nl.float32) for _ in range(4 - trip)],  # fewer
        lambda trip, i: nisa.memset(nl.ndarray((1, 4), nl.float32)[:, trip : trip + 1], 0.0),  # offsets
        lambda trip, i: nisa.register_move(nisa.register_alloc(1), trip),  # immediates
        lambda trip, i: nisa.memset(nl.ndarray((1, 1), nl.float32 if trip < 3 else nl.int32), 0),  # dtypes
    ],
)
def test_iterations_that_differ_are_reported_once(step):
    found = divergence(step)
    assert len(found) == 1 and "the Python of the body once" in found[0].help


def test_offsets_into_hbm_count_too():
    def loop(x):
        state = {"row": 0}

        def body(i):
            tile = nl.ndarray((1, 4), nl.float32)
            nisa.dma_copy(tile, x[state["row"] : state["row"] + 1])
            state["row"] += 1

        nl.fori_loop(0, 2, body)

    with pytest.warns(nki.NkiWarning, match="do not issue the same"):
        run(loop, np.zeros((2, 4), np.float32))


def test_registers_may_differ_between_iterations():
    def step(trip, i):
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(tile, i)
        nisa.iota(nl.ndarray((1, 4), nl.int32), [[1, 4]], offset=i)

    assert not divergence(step)


def test_an_inner_loop_may_run_a_different_number_of_times():
    def step(trip, i):
        nl.fori_loop(0, i, lambda j: nisa.memset(nl.ndarray((1, 1), nl.float32), 0.0) and None)

    assert not divergence(step)


def test_an_inner_loop_in_some_iterations_only_is_reported():
    def step(trip, i):
        if trip == 2:
            nl.fori_loop(0, 1, lambda j: None)

    assert divergence(step)


def test_divergence_is_an_error_in_strict_mode(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")

    def loop():
        shapes = [(1, 1), (1, 2)]
        nl.fori_loop(0, 2, lambda i: nisa.memset(nl.ndarray(shapes.pop(), nl.float32), 0.0) and None)

    assert refusal(loop).kind == "loop-divergence"


# ---- nesting and order ---------------------------------------------------------------------------


def test_loops_nest():
    def body():
        seen = []
        nl.fori_loop(0, 3, lambda i: nl.fori_loop(0, i, lambda j: seen.append((i.read(), j.read()))))
        return seen

    assert run(body) == [(i, j) for i in range(3) for j in range(i)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nested_dynamic_ranges_are_reported():
    def body():
        for _ in nl.dynamic_range(1):
            for _ in nl.dynamic_range(1):
                pass

    with pytest.warns(nki.NkiWarning, match="up to 0.4"):
        run(body)


@pytest.mark.parametrize("form", LOOPS)
def test_dynamic_loops_cannot_stand_in_no_reorder(form):
    def body():
        with nl.no_reorder():
            once(form, lambda i: None)

    problem = refusal(body)
    assert (
        problem.kind == "loop-in-no-reorder" and isinstance(problem, AssertionError) and form in str(problem)
    )


def test_no_reorder_in_a_body_and_static_loops_in_no_reorder_are_fine():
    def body():
        def step(i):
            with nl.no_reorder():
                for _ in nl.affine_range(2):
                    tile_of(0)

        nl.fori_loop(0, 2, step)
        return core_module.current().ordering.blocks

    assert run(body) == [(2, 3), (5, 6)]


def test_no_reorder_nests_binds_none_and_closes_on_errors():
    def body():
        core = core_module.current()
        depths = []
        with nl.no_reorder() as bound, nl.no_reorder():
            depths.append(core.ordering.depth)
            tile_of(1)
        with pytest.raises(KeyError), nl.no_reorder():
            raise KeyError
        return bound, depths, core.ordering.depth, core.ordering.blocks

    assert run(body) == (None, [2], 0, [(1, 1)])


def test_an_error_in_a_body_leaves_the_next_call_alone():
    def broken():
        def step(i):
            raise KeyError("mine")

        nl.fori_loop(0, 2, step)

    with pytest.raises(KeyError, match="mine"):
        run(broken)
    assert run(lambda: nl.fori_loop(0, 2, lambda i: None)) is None


def test_each_iteration_costs_a_rendezvous_in_the_program():
    def body():
        nl.fori_loop(0, 5, lambda i: None)

    assert run(body, with_run=True)[1].statistics.by_instruction["dynamic_loop"] == 5
