"""core_barrier, sendrecv and depends_on (spec/isa_registers_sync.md)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32"]
DTYPES += ["float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


def random_bits(shape, dtype, seed=0):
    width = np.dtype(dtype).itemsize
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.integers(0, 256, (*shape[:-1], shape[-1] * width), np.uint8).view(np.dtype(dtype))


def refusal(kernel, *args, degree=2):
    with pytest.raises(nki.NkiError) as caught:
        kernel[degree](*args)
    return caught.value


# ---- sendrecv ------------------------------------------------------------------------------------


@nki.jit
def exchange(x, dma_engine=nisa.dma_engine.dma):
    """Core k sends x[k] to the other core; out[k] is what core k received."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    mine = nl.ndarray(x.shape[1:], x.dtype)
    theirs = nl.ndarray(x.shape[1:], x.dtype)
    nisa.dma_copy(mine, x[me])
    nisa.sendrecv(mine, theirs, 1 - me, 1 - me, 0, dma_engine=dma_engine)
    nisa.dma_copy(out[me], theirs)
    return out


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", DTYPES)
def test_sendrecv_swaps_the_bits_of_every_dtype(dtype):
    with target("trn3"):  # trn2 would relabel e4m3fn
        x = random_bits((2, 16, 8), dtype)
        got = exchange[2](x)
    assert np.array_equal(got.view(np.uint8), x[::-1].view(np.uint8))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 128), st.integers(1, 40), st.sampled_from(["float32", "bfloat16", "int32"]))
def test_sendrecv_swaps_tiles_of_any_partitions_and_size(partitions, size, dtype):
    x = random_bits((2, partitions, size), dtype, seed=partitions * 64 + size)
    assert np.array_equal(exchange[2](x).view(np.uint8), x[::-1].view(np.uint8))


def test_sendrecv_takes_tiles_of_more_dimensions():
    x = random_bits((2, 4, 2, 3, 5), "int16")
    assert np.array_equal(exchange[2](x), x[::-1])


def test_src_is_read_before_dst_is_written():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        pair = nl.ndarray((2, 8), x.dtype)  # the two tiles lie in one storage
        nisa.dma_copy(pair[0:1], x[me : me + 1])
        nisa.sendrecv(pair[0:1], pair[1:2], 1 - me, 1 - me, 0)
        nisa.sendrecv(pair[1:2], pair[0:1], 1 - me, 1 - me, 0)
        nisa.dma_copy(out[me : me + 1], pair[0:1])
        return out

    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    assert np.array_equal(kernel[2](x), x)


def test_calls_of_one_pipe_match_in_order_and_pipes_are_independent():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 2, 4), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        tiles = []
        for i in range(2):
            tile = nl.ndarray((1, 4), x.dtype)
            nisa.memset(tile, float(10 * me + i))
            tiles.append(tile)
        for i in range(2):
            got = nl.ndarray((1, 4), x.dtype)
            nisa.sendrecv(tiles[i], got, 1 - me, 1 - me, pipe_id=3 + i)
            nisa.sendrecv(tiles[i], got, 1 - me, 1 - me, pipe_id=7)
            nisa.dma_copy(out[me, i : i + 1], got)
        return out

    got = kernel[2](np.zeros(1, np.float32))
    assert got[..., 0].tolist() == [[10, 11], [0, 1]]


def test_sending_to_oneself_is_a_copy():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4, 4), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        mine, copy = nl.ndarray((4, 4), x.dtype), nl.ndarray((4, 4), x.dtype)
        nisa.dma_copy(mine, x)
        if me == 0:  # the other core need not answer
            nisa.sendrecv(mine, copy, 0, 0, 0)
        else:
            nisa.memset(copy, 0.0)
        nisa.dma_copy(out[me], copy)
        return out

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    got = kernel[2](x)
    assert np.array_equal(got[0], x) and not got[1].any()


@pytest.mark.parametrize("dtype, limit", [("float32", 1024), ("bfloat16", 512), ("int8", 256)])
def test_the_gpsimd_dma_takes_limited_bytes(dtype, limit):
    elements = limit // np.dtype(dtype).itemsize
    x = random_bits((2, 4, elements), dtype)
    fast = nisa.dma_engine.gpsimd_dma
    assert np.array_equal(exchange[2](x, fast).view(np.uint8), x[::-1].view(np.uint8))
    problem = refusal(exchange, random_bits((2, 4, elements + 1), dtype), fast)
    assert problem.kind == "free-limit" and str(limit) in problem.help


def test_the_old_keyword_use_gpsimd_dma_is_mapped():
    @nki.jit
    def kernel(x, use):
        me = nl.program_id(0)
        a, b = nl.ndarray((1, 300), x.dtype), nl.ndarray((1, 300), x.dtype)
        nisa.memset(a, 1.0)
        nisa.sendrecv(a, b, 1 - me, 1 - me, 0, use_gpsimd_dma=use)

    x = np.zeros(1, np.float32)
    with pytest.warns(nki.NkiWarning, match="use_gpsimd_dma= is an old form"):
        kernel[2](x, False)
        assert refusal(kernel, x, True).kind == "free-limit"


def sender(
    shape=(4, 4), other=None, dtype=nl.float32, other_dtype=None, to=None, source=None, buffer=nl.sbuf
):
    """A kernel whose one sendrecv is wrong in one respect."""

    @nki.jit
    def kernel():
        me = nl.program_id(0)
        a = nl.ndarray(shape, dtype, buffer=buffer)
        b = nl.ndarray(other or shape, other_dtype or dtype)
        if buffer is not nl.shared_hbm:
            nisa.memset(a, 0)
        nisa.sendrecv(a, b, 1 - me if to is None else to, 1 - me if source is None else source, 0)

    return kernel


@pytest.mark.parametrize(
    "kernel, kind, text",
    [
        (sender(other=(4, 5)), "shape", "elements per partition"),
        (sender(other=(5, 4)), "shape", "partitions"),
        (sender(other_dtype=nl.bfloat16), "dtype", "must be equal"),
        (sender(buffer=nl.psum), "buffer", "PSUM"),
        (sender(buffer=nl.shared_hbm), "buffer", "HBM"),
        (sender(to=2), "lnc", "cores are 0 and 1"),
        (sender(source=-1), "lnc", "cores are 0 and 1"),
        (sender(to=0.5), "argument", "must be an int"),
        (sender(to=0), "lnc", "sends to core 0"),
    ],
)
def test_sendrecv_refuses(kernel, kind, text):
    problem = refusal(kernel)
    assert problem.kind == kind and text in str(problem)


def test_sendrecv_refuses_overlapping_tiles():
    @nki.jit
    def kernel():
        me = nl.program_id(0)
        tile = nl.zeros((4, 8), nl.float32)
        nisa.sendrecv(tile[:, 0:5], tile[:, 3:8], 1 - me, 1 - me, 0)

    problem = refusal(kernel)
    assert problem.kind == "overlap" and "share bytes" in str(problem)


def test_interleaved_tiles_do_not_overlap():
    @nki.jit
    def kernel(x):
        me = nl.program_id(0)
        out = nl.ndarray((2, 4), x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 8), x.dtype)
        nisa.memset(tile, float(me))
        nisa.sendrecv(tile[:, 0:8:2], tile[:, 1:8:2], 1 - me, 1 - me, 0)
        nisa.dma_copy(out[me : me + 1], tile[:, 1:8:2])
        return out

    assert kernel[2](np.zeros(1, np.float32))[:, 0].tolist() == [1, 0]


def test_the_cores_must_agree_on_shape_and_dtype():
    @nki.jit
    def kernel(by_dtype):
        me = nl.program_id(0)
        shape = (4, 4) if me == 0 or by_dtype else (4, 5)
        dtype = nl.float32 if me == 0 or not by_dtype else nl.int32
        a, b = nl.zeros(shape, dtype), nl.ndarray(shape, dtype)
        nisa.sendrecv(a, b, 1 - me, 1 - me, 0)

    for by_dtype, kind in ((False, "shape"), (True, "dtype")):
        problem = refusal(kernel, by_dtype)
        assert problem.kind == kind and "sends" in str(problem) and "raised on core 1" in str(problem)


def test_sendrecv_needs_two_cores_and_trn2():
    assert refusal(sender(), degree=1).kind == "lnc"
    with target("trn1"):
        problem = refusal(sender(), degree=1)
    assert problem.kind == "generation" and "trn2" in str(problem)


def test_a_missing_partner_is_a_deadlock_report():
    @nki.jit
    def kernel():
        me = nl.program_id(0)
        a, b = nl.zeros((1, 1), nl.float32), nl.ndarray((1, 1), nl.float32)
        nisa.sendrecv(a, b, 1 - me, 1 - me, me)  # different pipes

    problem = refusal(kernel)
    assert problem.kind == "deadlock" and isinstance(problem, RuntimeError)
    assert "core 0 waits for core 1 to send on pipe 0" in str(problem)
    assert "core 1 waits for core 0 to send on pipe 1" in str(problem)


# ---- core_barrier --------------------------------------------------------------------------------


@nki.jit
def halves(x):
    """Each core writes its half of `middle`; after the barrier each reads the other's."""
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="middle")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    me, h = nl.program_id(0), x.shape[0] // 2
    mine = slice(me * h, me * h + h)
    theirs = slice((1 - me) * h, (1 - me) * h + h)
    nisa.dma_copy(middle[mine], x[mine])
    nisa.core_barrier(middle, (0, 1))
    nisa.dma_copy(out[theirs], middle[theirs])
    return out


@pytest.mark.tiny
def test_after_a_barrier_each_core_sees_what_the_other_wrote():
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    run = halves[2].run(x)
    assert np.array_equal(run.result, x)
    assert not [d for d in run.diagnostics if d.kind == "uninitialised"]


def test_results_are_the_same_in_every_run():
    x = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    assert all(np.array_equal(halves[2](x), x) for _ in range(20))


@pytest.mark.parametrize("cores", [(0, 1), [0, 1], (1, 0), (np.int64(0), np.int64(1))])
def test_the_cores_may_be_a_tuple_or_list(cores):
    @nki.jit
    def kernel(x):
        nisa.core_barrier(x, cores)

    kernel[2](np.zeros(4, np.float32))


@pytest.mark.parametrize("cores", [(0,), (1,), 0, [0]])
@pytest.mark.parametrize("degree", [1, 2])
def test_a_barrier_of_one_core_does_nothing(cores, degree):
    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.core_barrier(tile, cores)

    kernel[degree](np.zeros(4, np.float32))


@pytest.mark.parametrize(
    "cores, kind", [((0, 2), "lnc"), ((), "lnc"), ((0, 0), "lnc"), ("01", "argument"), ((0.0, 1), "argument")]
)
def test_other_cores_are_refused(cores, kind):
    @nki.jit
    def kernel(x):
        nisa.core_barrier(x, cores)

    assert refusal(kernel, np.zeros(4, np.float32)).kind == kind


def test_a_barrier_on_one_core_would_hang_so_it_is_refused():
    @nki.jit
    def kernel(x):
        nisa.core_barrier(x, (0, 1))

    for launch in (kernel, kernel[1]):
        with pytest.raises(nki.NkiError) as caught:
            launch(np.zeros(4, np.float32))
        assert caught.value.kind == "lnc" and "kernel[2]" in caught.value.help


def test_the_refusal_does_not_depend_on_what_ran_before():
    @nki.jit
    def kernel(x):
        nisa.core_barrier(x, (0, 1))

    x = np.zeros(4, np.float32)
    kernel[2](x)
    assert refusal(kernel, x, degree=1).kind == "lnc"
    kernel[2](x)


def test_barriers_need_trn2():
    @nki.jit
    def kernel(x):
        nisa.core_barrier(x, (0, 1))

    with target("trn1"):
        assert refusal(kernel, np.zeros(4, np.float32), degree=1).kind == "generation"


def test_a_barrier_needs_a_tensor_and_a_known_engine():
    @nki.jit
    def kernel(data, engine):
        nisa.core_barrier(nl.zeros((1, 1), nl.int32) if data else 3, (0, 1), engine=engine)

    assert refusal(kernel, False, nisa.engine.gpsimd).kind == "argument"
    assert refusal(kernel, True, nisa.engine.dma).kind == "engine"


@pytest.mark.parametrize("engine", ["gpsimd", "vector", "scalar", "tensor", "sync", "unknown"])
def test_any_engine_can_wait(engine):
    @nki.jit
    def kernel(x):
        nisa.core_barrier(x, (0, 1), engine=nisa.engine[engine])

    kernel[2](np.zeros(4, np.float32))


def test_a_barrier_on_a_private_tensor_warns():
    @nki.jit
    def kernel(x):
        nisa.core_barrier(nl.zeros((1, 1), nl.int32), (0, 1))

    with pytest.warns(nki.NkiWarning, match="do not share"):
        kernel[2](np.zeros(4, np.float32))


def test_different_barriers_are_a_deadlock_that_names_both():
    @nki.jit
    def kernel(x):
        a = nl.ndarray((4,), nl.float32, buffer=nl.shared_hbm, name="first")
        b = nl.ndarray((4,), nl.float32, buffer=nl.shared_hbm, name="second")
        nisa.core_barrier(a if nl.program_id(0) == 0 else b, (0, 1))

    problem = refusal(kernel, np.zeros(4, np.float32))
    assert problem.kind == "deadlock"
    text = str(problem)
    assert (
        "core 0 waits for core_barrier on first" in text and "core 1 waits for core_barrier on second" in text
    )
    assert "test_sync.py" in text


def test_unnamed_tensors_make_different_barriers_too():
    @nki.jit
    def kernel(x):
        pair = [nl.ndarray((4,), nl.float32, buffer=nl.shared_hbm) for _ in range(2)]
        nisa.core_barrier(pair[nl.program_id(0)], (0, 1))

    assert refusal(kernel, np.zeros(4, np.float32)).kind == "deadlock"


def test_a_core_that_ends_early_is_a_deadlock():
    @nki.jit
    def kernel(x):
        if nl.program_id(0) == 0:
            nisa.core_barrier(x, (0, 1))

    text = str(refusal(kernel, np.zeros(4, np.float32)))
    assert "core 0 waits for core_barrier on x" in text and "core 1 has finished" in text


# ---- depends_on ----------------------------------------------------------------------------------


def with_two_tiles(body):
    @nki.jit
    def kernel():
        a, b = nl.ndarray((4, 4), nl.float32), nl.ndarray((4, 4), nl.float32)
        return body(nisa.memset(a, 0.0), nisa.memset(b, 1.0))

    return kernel


@pytest.mark.tiny
def test_depends_on_returns_the_consumer_so_it_chains():
    def body(first, second):
        third = nisa.memset(nl.ndarray((1, 1), nl.float32), 0.0)
        assert third.depends_on(first).depends_on(second) is third
        assert third.depends_on(first, second) is third
        assert third.depends_on() is third

    with_two_tiles(body)()


@pytest.mark.parametrize(
    "body, text",
    [
        (lambda first, second: first.depends_on(first), "itself"),
        (lambda first, second: first.depends_on(second), "comes later"),
        (lambda first, second: second.depends_on("first"), "got str"),
        (lambda first, second: second.depends_on(None), "got NoneType"),
    ],
)
def test_depends_on_refuses(body, text):
    with pytest.raises(ValueError) as caught:
        with_two_tiles(body)()
    assert caught.value.kind == "depends-on" and text in str(caught.value)


def test_a_cycle_is_refused_at_its_first_backward_edge():
    def body(first, second):
        second.depends_on(first)
        first.depends_on(second)

    with pytest.raises(nki.NkiError) as caught:
        with_two_tiles(body)()
    assert caught.value.kind == "depends-on"


def looped(edge):
    """A fori_loop of two iterations whose second instruction in the body gets an edge."""

    @nki.jit
    def kernel():
        tile = nl.ndarray((1, 1), nl.float32)
        handles = {"before": nisa.memset(tile, 0.0)}

        def body(i):
            handles["previous"] = handles.get("inside")
            handles["inside"] = nisa.memset(tile, 1.0)
            edge(handles, nisa.memset(tile, 2.0))

        nl.fori_loop(0, 2, body)
        handles["after"] = nisa.memset(tile, 3.0)
        edge(handles, None)

    return kernel


def test_a_producer_may_be_in_the_same_iteration_or_before_the_loop():
    def edge(handles, consumer):
        if consumer is not None:
            consumer.depends_on(handles["inside"], handles["before"])

    looped(edge)()


def test_edges_out_of_a_loop_are_refused():
    def edge(handles, consumer):
        if consumer is None:
            handles["after"].depends_on(handles["inside"])

    with pytest.raises(nki.NkiError) as caught:
        looped(edge)()
    assert caught.value.kind == "depends-on" and "dynamic loop" in str(caught.value)


def test_edges_between_iterations_are_refused():
    def edge(handles, consumer):
        if consumer is not None and handles["previous"] is not None:
            consumer.depends_on(handles["previous"])

    with pytest.raises(nki.NkiError) as caught:
        looped(edge)()
    assert caught.value.kind == "depends-on"


def test_edges_between_two_loops_are_refused():
    @nki.jit
    def kernel():
        tile = nl.ndarray((1, 1), nl.float32)
        handles = []
        for _ in range(2):
            nl.fori_loop(0, 1, lambda i: handles.append(nisa.memset(tile, 0.0)))
        handles[1].depends_on(handles[0])

    with pytest.raises(nki.NkiError) as caught:
        kernel()
    assert caught.value.kind == "depends-on"


def test_static_loops_are_no_boundary():
    @nki.jit
    def kernel():
        tile = nl.ndarray((1, 1), nl.float32)
        previous = None
        for _ in range(3):
            handle = nisa.memset(tile, 0.0)
            if previous is not None:
                handle.depends_on(previous)
            previous = handle

    kernel()


def test_edges_and_handles_do_not_keep_tiles_alive():
    from nki.ir.context import running

    @nki.jit
    def kernel():
        running().read_back()  # from now on each instruction runs as it is issued
        previous = None
        for _ in range(4):
            tile = nl.ndarray((128, 64), nl.float32)
            handle = nisa.memset(tile, 0.0)
            if previous is not None:
                handle.depends_on(previous)
            previous, tile = handle, None
        return len(running().memories)

    assert kernel() == 0


def test_barriers_are_separate_in_every_iteration_of_a_loop():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 3), nl.float32, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        tile = nl.ndarray((1, 1), nl.float32)
        nisa.memset(tile, float(me))

        def body(i):
            nisa.dma_copy(out[me : me + 1, nl.ds(i, 1)], tile)
            nisa.core_barrier(out, (0, 1))
            nisa.dma_copy(tile, out[1 - me : 2 - me, nl.ds(i, 1)])
            nisa.core_barrier(out, (0, 1))

        nl.fori_loop(0, 3, body)
        return out

    assert kernel[2](np.zeros(1, np.float32)).tolist() == [[0, 1, 0], [1, 0, 1]]


def test_bfloat16_stored_as_float32_is_exchanged_unrounded(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4, 4), nl.float32, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        a, b = nl.ndarray((4, 4), nl.bfloat16), nl.ndarray((4, 4), nl.bfloat16)
        nisa.dma_copy(a, x[me])
        nisa.sendrecv(a, b, 1 - me, 1 - me, 0)
        nisa.dma_copy(out[me], b)
        return out

    x = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    assert np.array_equal(kernel[2](x), x[::-1])
    monkeypatch.setenv("NKI_PRECISE_FP", "1")
    rounded = x[::-1].astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(kernel[2](x), rounded)
