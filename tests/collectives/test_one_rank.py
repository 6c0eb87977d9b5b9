"""Collectives in a world of one rank (spec/collectives.md 1 to 4)."""

from __future__ import annotations

import inspect
import json
import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.collectives import ReplicaGroup
from support import target

ONE = ReplicaGroup([[0]])
DTYPES = ["int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32"]


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


CALLS = {
    "all_reduce": lambda s, d: ncc.all_reduce(s, d, ONE, nl.add),
    "all_gather": lambda s, d: ncc.all_gather(s, d, ONE, 0),
    "reduce_scatter": lambda s, d: ncc.reduce_scatter(s, d, ONE, 0, nl.maximum),
    "all_to_all": lambda s, d: ncc.all_to_all(s, d, ONE, 0),
    "collective_permute": lambda s, d: ncc.collective_permute(s, d, [(0, 0)]),
    "collective_permute_implicit": lambda s, d: ncc.collective_permute_implicit([s], [d], ONE),
}
IN_SBUF = ["all_reduce", "all_gather", "reduce_scatter", "collective_permute_implicit"]


def through(call, x, buffer=nl.shared_hbm):
    """The argument copied to a source, the collective, and its destination copied out."""
    src = nl.ndarray(x.shape, x.dtype, buffer=buffer, name="src")
    dst = nl.ndarray(x.shape, x.dtype, buffer=buffer, name="dst")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    nisa.dma_copy(src, x)
    call([src], [dst])
    nisa.dma_copy(out, dst)
    return out


def refusal(body, *arrays, degree=None):
    @nki.jit
    def kernel(tensors):
        body(*tensors)

    with pytest.raises(nki.NkiError) as caught:
        (kernel if degree is None else kernel[degree])(list(arrays))
    return caught.value


def hbm(shape=(4, 8), dtype=nl.float32, name="t"):
    return nl.zeros(shape, dtype, buffer=nl.shared_hbm, name=name)


def sbuf(shape=(4, 8), dtype=nl.float32):
    return nl.zeros(shape, dtype)


# ---- copies --------------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("name", CALLS)
def test_one_rank_gets_back_what_it_sent(name):
    @nki.jit
    def kernel(x):
        return through(CALLS[name], x)

    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    run = kernel.run(x)
    assert np.array_equal(run.result, x) and not run.diagnostics


@pytest.mark.parametrize("name", IN_SBUF)
def test_sbuf_tiles_may_be_operands(name):
    @nki.jit
    def kernel(x):
        return through(CALLS[name], x, nl.sbuf)

    x = np.random.default_rng(0).standard_normal((128, 3)).astype(np.float32)
    assert np.array_equal(kernel(x), x)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(CALLS)), st.sampled_from(DTYPES), st.integers(1, 9), st.integers(1, 9))
def test_the_copy_keeps_the_bits_of_every_dtype(name, dtype, rows, columns):
    width = np.dtype(dtype).itemsize
    bits = np.random.default_rng(rows * 10 + columns).integers(0, 256, (rows, columns * width), np.uint8)

    @nki.jit
    def kernel(x):
        return through(CALLS[name], x)

    assert np.array_equal(kernel(bits.view(np.dtype(dtype))).view(np.uint8), bits)


@pytest.mark.parametrize("dim", [0, 1])
def test_all_gather_in_sbuf_joins_either_dimension(dim):
    @nki.jit
    def kernel(x):
        return through(lambda s, d: ncc.all_gather(s, d, [[0]], dim), x, nl.sbuf)

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(kernel(x), x)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_several_tensors_travel_in_one_call(name):
    shapes = [(4, 8), (2, 3), (5,)]

    @nki.jit
    def kernel():
        srcs = [hbm(shape, name=f"s{i}") for i, shape in enumerate(shapes)]
        dsts = [
            nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm, name=f"d{i}")
            for i, shape in enumerate(shapes)
        ]
        CALLS[name](srcs, dsts)
        return dsts

    assert [not r.any() and r.shape for r in kernel()] == shapes


def test_parts_of_tensors_may_be_operands():
    @nki.jit
    def kernel(x):
        src, dst = hbm((4, 8), name="s"), hbm((4, 8), name="d")
        nisa.dma_copy(src, x)
        ncc.all_reduce([src[0:2]], [dst[2:4]], ONE, nl.add)
        return dst

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert np.array_equal(kernel(x), np.concatenate([np.zeros((2, 8)), x[0:2]]))


@pytest.mark.parametrize(
    "op, reference", [(nl.add, np.add), (nl.minimum, np.minimum), (nl.maximum, np.maximum)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_the_reducing_ring_combines_its_two_sources(op, reference, dtype):
    @nki.jit
    def kernel(x, y):
        a, b, c = (hbm((4, 8), x.dtype, name) for name in "abc")
        nisa.dma_copy(a, x)
        nisa.dma_copy(b, y)
        ncc.collective_permute_implicit_reduce([[a]], [[b]], [[c]], ONE, op)
        return c

    rng = np.random.default_rng(3)
    x, y = ((rng.standard_normal((4, 8)) * 20).astype(np.dtype(dtype)) for _ in range(2))
    expected = reference(x.astype(np.float64), y.astype(np.float64)).astype(np.float32).astype(x.dtype)
    assert np.array_equal(kernel(x, y), expected)


def test_large_integers_are_rounded_with_a_warning():
    @nki.jit
    def kernel(x):
        a, b, c = (hbm((1, 1), nl.int32, name) for name in "abc")
        nisa.dma_copy(a, x)
        ncc.collective_permute_implicit_reduce([[a]], [[b]], [[c]], ONE, nl.add)
        return c

    with pytest.warns(nki.NkiWarning, match="beyond 2\\^24"):
        assert kernel(np.array([[2**24 + 1]], np.int32))[0, 0] == 2**24


def test_a_ring_has_several_channels():
    @nki.jit
    def kernel():
        srcs = [[nl.full((2, 2), float(i), nl.float32, buffer=nl.shared_hbm, name=f"s{i}")] for i in range(4)]
        dsts = [[hbm((2, 2), name=f"d{i}")] for i in range(4)]
        ncc.collective_permute_implicit(srcs, dsts, ONE, channel_ids=[0, 1, 2, 3])
        return [inner[0] for inner in dsts]

    assert [r[0, 0] for r in kernel()] == [0, 1, 2, 3]


def test_a_rank_in_no_pair_keeps_its_destination():
    @nki.jit
    def kernel():
        src, dst = nl.ones((4,), nl.float32, buffer=nl.shared_hbm, name="s"), hbm((4,), name="d")
        ncc.collective_permute([src], [dst], [])
        return dst

    assert not kernel().any()


# ---- ranks ---------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_the_rank_is_0_in_a_register_that_indexes():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((3, *x.shape[1:]), x.dtype, buffer=nl.shared_hbm)
        ring = ncc.collective_permute_implicit_current_processing_rank_id(5, ONE)
        nisa.dma_copy(out[0], x[ncc.rank_id()])
        nisa.dma_copy(out[1], x.select(0, ring))
        nisa.dma_copy(
            out[2:3], x.ap([[4, 1], [1, 4]], scalar_offset=ncc.rank_id(name="rank"), indirect_dim=0)
        )
        return out

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(kernel(x), np.stack([x[0]] * 3))


def test_the_rank_finds_its_entry_of_a_table():
    @nki.jit
    def kernel(x, table):
        out = nl.ndarray((1, 4), x.dtype, buffer=nl.shared_hbm)
        row = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(row, table.ap([[1, 1], [1, 1]], scalar_offset=ncc.rank_id(), indirect_dim=1))
        nisa.dma_copy(out, x.ap([[4, 1], [1, 4]], scalar_offset=row, indirect_dim=0))
        return out

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(kernel(x, np.array([[2, 0]], np.int32)), x[2:3])


def test_python_cannot_compute_with_the_rank():
    assert refusal(lambda: ncc.rank_id() + 1).kind == "register-value"
    assert refusal(lambda: nisa.register_move(ncc.rank_id(), 1)).kind == "frozen-register"


@pytest.mark.parametrize("arguments", [(-1, ONE), (1.0, ONE), (0, ONE, -1)])
def test_ring_steps_and_channels_are_counted_from_0(arguments):
    call = ncc.collective_permute_implicit_current_processing_rank_id
    assert refusal(lambda: call(*arguments)).kind == "argument"


def test_rank_id_needs_a_kernel():
    with pytest.raises(nki.NkiError) as caught:
        ncc.rank_id()
    assert caught.value.kind == "no-kernel"


# ---- groups --------------------------------------------------------------------------------------


def test_a_group_is_a_value_and_a_sequence():
    group = ReplicaGroup([[2, 0], (1, 3)])
    assert group == ReplicaGroup(((2, 0), (1, 3))) and hash(group) == hash(ReplicaGroup([[2, 0], [1, 3]]))
    assert list(group) == [(2, 0), (1, 3)] and len(group) == 2 and group[1] == (1, 3)
    assert group.groups == ((2, 0), (1, 3)) and ReplicaGroup(groups=[[0]]) == ONE


@pytest.mark.parametrize(
    "groups",
    [[], [[]], [0, 1], "world", [["0"]], [[-1]], [[0, 0]], [[0], [0]], [[0, 1], [2]], None, [[True]]],
)
def test_a_group_must_be_lists_of_different_ranks(groups):
    with pytest.raises(ValueError) as caught:
        ReplicaGroup(groups)
    assert caught.value.kind == "replica-group"


def test_a_group_can_be_an_argument_or_a_bare_list():
    @nki.jit
    def kernel(x, group):
        return through(lambda s, d: ncc.all_reduce(s, d, group, nl.add), x)

    x = np.ones((2, 2), np.float32)
    for group in (ONE, [[0]], ((0,),)):
        assert np.array_equal(kernel(x, group), x)


def test_a_named_group_is_refused():
    assert refusal(lambda: ncc.all_reduce([hbm()], [hbm()], "world", nl.add)).kind == "replica-group"


@pytest.mark.parametrize("group", [[[0, 1]], [[0], [1]], [[1]], ReplicaGroup([[3, 0]])])
def test_a_plain_call_is_a_world_of_one(group):
    problem = refusal(lambda: ncc.all_gather([hbm()], [hbm()], group, 0))
    assert problem.kind == "rank-out-of-world" and isinstance(problem, ValueError)
    assert "all_gather" in str(problem) and "world of one" in str(problem) and "run_ranks" in str(problem)


def test_pairs_name_ranks_of_the_world():
    problem = refusal(lambda: ncc.collective_permute([hbm()], [hbm()], [(0, 1), (1, 0)]))
    assert problem.kind == "rank-out-of-world" and "rank 1" in str(problem)


@pytest.mark.parametrize("pairs", [[(0, 0), (0, 1)], [(1, 0), (0, 0)], [(0,)], [0], [(0, "1")], 3])
def test_pairs_name_each_source_and_target_once(pairs):
    assert refusal(lambda: ncc.collective_permute([hbm()], [hbm()], pairs)).kind == "replica-group"


def test_patterns_that_are_no_circle_are_reported():
    with pytest.warns(nki.NkiWarning, match="circular"):
        refusal(lambda: ncc.collective_permute([hbm()], [hbm()], [(0, 1)]))


# ---- operands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda: (hbm(), sbuf()), "buffer", "both"),
        (lambda: (sbuf(), hbm()), "buffer", "both"),
        (lambda: (nl.zeros((4, 8), nl.float32, buffer=nl.psum), sbuf()), "buffer", "PSUM"),
        (lambda: (sbuf((4, 2, 4)), sbuf((4, 8))), "shape", "2-D"),
        (lambda: (hbm((4, 8)), hbm((8, 4))), "shape", "[8, 4]"),
        (lambda: (hbm(dtype=nl.float32), hbm(dtype=nl.bfloat16)), "dtype", "must be equal"),
        (lambda: (hbm()[nl.ds(nisa.register_alloc(0), 4)], hbm()), "indirect-view", "run-time"),
    ],
)
def test_all_reduce_refuses_operands(make, kind, text):
    def body():
        src, dst = make()
        ncc.all_reduce([src], [dst], ONE, nl.add)

    problem = refusal(body)
    assert problem.kind == kind and text in str(problem)


@pytest.mark.parametrize("name", ["all_to_all", "collective_permute"])
def test_some_collectives_need_hbm(name):
    assert refusal(lambda: CALLS[name]([sbuf()], [sbuf()])).kind == "buffer"


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: ncc.all_gather([hbm()], [hbm()], ONE, 1), "in HBM it must be 0"),
        (lambda: ncc.all_gather([sbuf()], [sbuf()], ONE, 2), "0 or 1"),
        (lambda: ncc.reduce_scatter([sbuf()], [sbuf()], ONE, 1, nl.add), "must be 0"),
        (lambda: ncc.all_to_all([hbm()], [hbm()], ONE, -1), "must be 0"),
    ],
)
def test_the_dimension_is_limited(call, text):
    problem = refusal(call)
    assert problem.kind == "axis" and text in str(problem)


@pytest.mark.parametrize("op", [nl.multiply, nl.subtract, nl.exp])
def test_reductions_are_add_minimum_and_maximum(op):
    problem = refusal(lambda: ncc.all_reduce([hbm()], [hbm()], ONE, op))
    assert problem.kind == "operator" and "nl.maximum" in problem.help


def test_numpy_ufuncs_and_old_names_reduce_too():
    @nki.jit
    def kernel(x):
        return through(lambda s, d: ncc.all_reduce(s, d, ONE, np.add), x)

    assert kernel(np.ones((2, 2), np.float32)).all()


@pytest.mark.parametrize(
    "srcs, kind",
    [
        (lambda: hbm(), "argument"),
        (lambda: [], "argument"),
        (lambda: [3], "argument"),
        (lambda: [hbm(), hbm()], "argument"),
    ],
)
def test_operands_come_in_lists_of_equal_length(srcs, kind):
    problem = refusal(lambda: ncc.all_reduce(srcs(), [hbm()], ONE, nl.add))
    assert problem.kind == kind and isinstance(problem, TypeError)


def test_several_sbuf_tiles_are_refused():
    problem = refusal(lambda: ncc.all_reduce([sbuf(), sbuf()], [sbuf(), sbuf()], ONE, nl.add))
    assert problem.kind == "buffer" and "one call per SBUF tensor" in problem.help


def test_permutes_take_one_tensor():
    problem = refusal(lambda: CALLS["collective_permute"]([hbm(), hbm()], [hbm(), hbm()]))
    assert problem.kind == "argument" and "one tensor" in str(problem)


def test_sources_and_destinations_may_not_overlap():
    def body():
        tensor = hbm((4, 8))
        ncc.all_reduce([tensor[0:3]], [tensor[1:4]], ONE, nl.add)

    problem = refusal(body)
    assert problem.kind == "collective-overlap" and isinstance(problem, ValueError)


def test_the_second_source_of_a_reducing_ring_is_checked_too():
    def body():
        a, c = hbm(name="a"), hbm(name="c")
        ncc.collective_permute_implicit_reduce([[a]], [[c]], [[c]], ONE, nl.add)

    assert refusal(body).kind == "collective-overlap"


@pytest.mark.parametrize(
    "srcs, ids, kind",
    [
        (lambda: [hbm()], [0], "argument"),
        (lambda: [[hbm()]], [1], "channel"),
        (lambda: [[hbm()]], [0, 1], "channel"),
        (lambda: [[hbm()]], 0, "channel"),
        (lambda: [[hbm(), hbm()]], [0], "argument"),
    ],
)
def test_channels_have_one_tensor_each(srcs, ids, kind):
    assert refusal(lambda: ncc.collective_permute_implicit(srcs(), [[hbm()]], ONE, ids)).kind == kind


def test_more_than_four_channels_are_reported():
    def body():
        ncc.collective_permute_implicit(
            [[hbm(name=f"s{i}")] for i in range(5)],
            [[hbm(name=f"d{i}")] for i in range(5)],
            ONE,
            list(range(5)),
        )

    @nki.jit
    def kernel():
        body()

    with pytest.warns(nki.NkiWarning, match="5 channels"):
        kernel()


@pytest.mark.parametrize("priority", [4, -1, "high"])
def test_priorities_run_from_0_to_3(priority):
    problem = refusal(lambda: ncc.all_reduce([hbm()], [hbm()], ONE, nl.add, priority=priority))
    assert problem.kind == "priority" and isinstance(problem, ValueError)


def test_priorities_are_for_trn3():
    @nki.jit
    def kernel(x):
        return through(lambda s, d: ncc.all_reduce(s, d, ONE, nl.add, priority=2), x)

    x = np.ones((2, 2), np.float32)
    with pytest.warns(nki.NkiWarning, match="no DMA priorities"):
        kernel(x)
    with target("trn3"):
        assert not kernel.run(x).diagnostics


def test_arguments_and_nameless_tensors_are_reported():
    @nki.jit
    def kernel(x):
        ncc.all_reduce([x], [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)], ONE, nl.add)

    with pytest.warns(nki.NkiWarning):
        run = kernel.run(np.ones((2, 2), np.float32))
    assert {d.kind for d in run.diagnostics} - {"no-effect"} == {"collective-io-tensor", "collective-unnamed"}


# ---- sizes known at run time ---------------------------------------------------------------------


def varying(call, x, metadata, known=False, size=8, where="hbm", displs=False):
    @nki.jit
    def kernel(x, metadata):
        src, dst = (
            hbm((x.shape[0],), x.dtype, "src"),
            nl.full((size,), -1.0, nl.float32, buffer=nl.shared_hbm, name="dst"),
        )
        nisa.dma_copy(src, x)
        table = nl.ndarray(metadata.shape, nl.uint32, buffer=nl.shared_hbm, name="table")
        nisa.dma_copy(table, metadata)
        if where == "sbuf":
            table = nl.ndarray((1, *metadata.shape), nl.uint32)
            nisa.dma_copy(table, metadata.reshape((1, *metadata.shape)))
        call([src], [dst], ONE, table, recv_counts_known=known, has_rdispls=displs)
        after = nl.ndarray(metadata.shape, nl.uint32, buffer=nl.shared_hbm, name="after")
        nisa.dma_copy(after, table)
        return dst, after

    with pytest.warns(nki.NkiWarning, match="LNC 2"):
        return kernel(x, np.array(metadata, np.uint32).reshape(-1, 1))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([ncc.all_gather_v, ncc.all_to_all_v]),
    st.integers(0, 8),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from(["hbm", "sbuf"]),
)
def test_counts_and_displacements_choose_what_is_sent(call, sent, begin, known, where):
    x = np.arange(12, dtype=np.float32)
    with target("trn2"):
        dst, after = varying(call, x, [sent, begin, 99], known, where=where)
    assert np.array_equal(dst, np.concatenate([x[begin : begin + sent], np.full(8 - sent, -1)]))
    assert after[:, 0].tolist() == [sent, begin, 99 if known else sent]


@pytest.mark.filterwarnings("ignore")
def test_row_3_chooses_where_chunks_land_on_trn3():
    x = np.arange(4, dtype=np.float32)
    with target("trn3"):
        dst, _ = varying(ncc.all_to_all_v, x, [2, 1, 0, 5], displs=True)
    assert dst.tolist() == [-1] * 5 + [1, 2] + [-1]
    problem = refusal(
        lambda: ncc.all_to_all_v([hbm((4,))], [hbm((4,))], ONE, hbm((4, 1), nl.uint32), has_rdispls=True)
    )
    assert problem.kind == "generation"


@pytest.mark.parametrize("metadata", [[5, 0, 0], [3, 2, 0]])
def test_counts_must_stay_inside_the_source(metadata):
    with pytest.raises(IndexError) as caught:
        varying(ncc.all_gather_v, np.zeros(4, np.float32), metadata)
    assert caught.value.kind == "index" and "rank 0" in str(caught.value) and "row 1" in str(caught.value)


def test_counts_must_fit_the_slot():
    with pytest.raises(nki.NkiError) as caught:
        varying(ncc.all_gather_v, np.zeros(12, np.float32), [9, 0, 0])
    assert caught.value.kind == "index" and "slot of dst" in str(caught.value)


@pytest.mark.parametrize(
    "make, options, kind",
    [
        (lambda: hbm((3, 1), nl.int32), {}, "dtype"),
        (lambda: hbm((4, 1), nl.uint32), {}, "shape"),
        (lambda: hbm((3, 2), nl.uint32), {}, "shape"),
        (lambda: nl.zeros((3, 1), nl.uint32), {}, "shape"),
        (lambda: hbm((4, 1), nl.uint32), {"has_rdispls": True}, "not-supported"),
        (lambda: 3, {}, "argument"),
    ],
)
def test_all_gather_v_refuses_metadata(make, options, kind):
    def body():
        ncc.all_gather_v([hbm((8,), name="a")], [hbm((8,), name="b")], ONE, make(), **options)

    assert refusal(body).kind == kind


def test_sizes_known_at_run_time_need_hbm():
    def body():
        ncc.all_to_all_v([sbuf()], [sbuf()], ONE, hbm((3, 1), nl.uint32))

    assert refusal(body).kind == "buffer"


# ---- two cores of the rank -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_a_shared_collective_waits_for_both_cores(name):
    """Each core fills its half of the source; nothing else orders them."""

    @nki.jit
    def kernel(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        half = x.shape[0] // nl.num_programs(0)
        rows = nl.ds(nl.program_id(0) * half, half)
        nisa.dma_copy(src[rows], x[rows])
        CALLS[name]([src], [dst])
        nisa.dma_copy(out[rows], dst[rows])
        return out

    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    run = kernel[2].run(x)
    assert np.array_equal(run.result, x) and not run.diagnostics


def test_sbuf_collectives_of_the_two_cores_are_independent():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4, 4), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        if me == 0:  # core 1 never calls it
            a, b = nl.ones((4, 4), x.dtype), nl.ndarray((4, 4), x.dtype)
            ncc.all_reduce([a], [b], ONE, nl.add)
            nisa.dma_copy(out[0], b)
        else:
            nisa.dma_copy(out[1], nl.zeros((4, 4), x.dtype))
        return out

    assert kernel[2](np.zeros(1, np.float32))[:, 0, 0].tolist() == [1, 0]


@pytest.mark.parametrize("then_barrier", [False, True])
def test_one_core_alone_may_call_a_shared_collective(then_barrier):
    @nki.jit
    def kernel(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        if nl.program_id(0) == 0:
            nisa.dma_copy(src, x)
            ncc.all_reduce([src], [dst], ONE, nl.add)
        if then_barrier:
            nisa.core_barrier(dst, (0, 1))
        return dst

    x = np.ones((2, 2), np.float32)
    with pytest.warns(nki.NkiWarning, match="only core 0 calls it"):
        assert np.array_equal(kernel[2](x), x)


def test_shared_collectives_in_a_loop_exchange_once_per_iteration():
    @nki.jit
    def kernel(x):
        src = nl.ndarray((2, 1), x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray((2, 1), x.dtype, buffer=nl.shared_hbm, name="dst")
        me = nl.program_id(0)
        tile = nl.ndarray((1, 1), x.dtype)
        nisa.dma_copy(tile, x[me : me + 1])

        def body(i):
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
            nisa.dma_copy(src[me : me + 1], tile)
            ncc.all_gather([src], [dst], ONE, 0)

        nl.fori_loop(0, 3, body)
        return dst

    assert kernel[2](np.array([[1.0], [3.0]], np.float32)).tolist() == [[8.0], [24.0]]


# ---- the module ----------------------------------------------------------------------------------


def test_the_module_has_the_documented_names_and_signatures():
    path = os.path.join(os.path.dirname(__file__), "..", "data", "documented_api.json")
    with open(path) as file:
        documented = json.load(file)["nki.collectives"]
    for name, parameters in documented["functions"].items():
        found = inspect.signature(getattr(ncc, name)).parameters.values()
        assert [[p.name, None if p.default is p.empty else repr(p.default)] for p in found] == parameters
    assert all(hasattr(ncc, name) for name in documented["classes"])


def test_a_misspelt_keyword_is_explained():
    problem = refusal(lambda: ncc.all_reduce([hbm()], [hbm()], ONE, opp=nl.add))
    assert problem.kind == "argument" and "did you mean op?" in str(problem)


def test_collectives_are_instructions_of_the_program():
    @nki.jit
    def kernel(x):
        return through(CALLS["all_to_all"], x)

    run = kernel.run(np.ones((2, 2), ml_dtypes.bfloat16))
    assert run.statistics.by_instruction["all_to_all"] == 1
