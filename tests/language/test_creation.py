"""Creating tensors: what may exist, where, and what it holds."""

from __future__ import annotations

import inspect
import pydoc
import typing

import ml_dtypes
import numpy as np
import pytest
from bodies import kinds, out_of, refusal, refusal_when_strict, run
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import allocation, shared_constants
from nki.machine import dtypes
from support import target

OptionalTensor = typing.Union[nl.NkiTensor, None]  # noqa: UP007
CASTABLE = [d for d in dtypes.ALL if d.castable]


# ---- ndarray -------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_a_new_tensor_has_the_shape_dtype_buffer_and_name_it_was_asked_for():
    def body():
        t = nl.ndarray((128, 4, 8), nl.bfloat16, nl.psum, name="acc")
        assert t.shape == (128, 4, 8) and t.strides == (32, 8, 1) and t.offset == 0
        assert (t.dtype, t.buffer, t.name, t.ndim, t.size) == (nl.bfloat16, nl.psum, "acc", 3, 4096)
        assert nl.ndarray((2, 3), nl.int8).buffer is nl.sbuf
        assert nl.ndarray(dtype=nl.int8, shape=[2, 3], name=None).name == ""
        assert nl.ndarray((7,), nl.int8, nl.hbm).shape == (7,)

    run(body)


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_every_dtype_can_be_allocated_in_every_buffer(dtype):
    def body():
        for buffer in (nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm):
            assert nl.ndarray((5, 3), dtype, buffer).dtype is dtype

    run(body)


@pytest.mark.parametrize(
    "dtype", ["float32", np.float32, np.dtype("float32"), "float8e4", ml_dtypes.bfloat16]
)
def test_dtypes_of_other_packages_are_understood(dtype):
    def body():
        assert nl.ndarray((4, 4), dtype).dtype is dtypes.resolve(dtype)

    run(body)


def test_numpy_ints_are_sizes():
    def body():
        t = nl.ndarray((np.int64(4), np.int32(6)), nl.float32)
        assert t.shape == (4, 6) and all(type(s) is int for s in t.shape)

    run(body)


@pytest.mark.parametrize(
    "shape", [(), 128, (0, 4), (4, -1), (4.0, 4), ("a", 4), None, (4, None), (128.0, 512), (True, 4)]
)
def test_a_shape_is_a_tuple_of_positive_ints(shape):
    def body():
        nl.ndarray((128, 512), nl.float32)  # a remembered check must not let its twins through
        nl.ndarray((1, 4), nl.float32)
        nl.ndarray(shape, nl.float32)

    assert refusal(body).kind == "shape"


def test_fresh_memory_is_poison():
    def body():
        return nl.ndarray((2, 2), nl.float32, nl.shared_hbm), nl.ndarray((2,), nl.int32, nl.shared_hbm)

    floats, ints = run(body)
    assert np.isnan(floats).all() and (ints == 0).all()


def test_a_one_dimensional_tile_becomes_a_column_with_a_warning():
    def body():
        assert nl.ndarray((64,), nl.float32).shape == (64, 1)

    assert kinds(body) == ["one-dimensional-tile"]
    assert kinds(lambda: nl.ndarray((64,), nl.float32, nl.shared_hbm)) == []


def test_a_tile_has_at_most_five_dimensions():
    run(lambda: (nl.ndarray((2, 2, 2, 2, 2), nl.int8), None)[1])
    problem = refusal(lambda: nl.ndarray((2, 2, 2, 2, 2, 2), nl.int8))
    assert problem.kind == "rank" and "2 to 5" in str(problem)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_a_tile_has_at_most_128_partitions(buffer):
    run(lambda: (nl.ndarray((128, 4), nl.int8, buffer), None)[1])
    problem = refusal(lambda: nl.ndarray((129, 4), nl.int8, buffer))
    assert problem.kind == "partition-limit" and "129 partitions" in str(problem) and "pmax" in str(problem)
    assert isinstance(problem, AssertionError) and isinstance(problem, ValueError)


@pytest.mark.parametrize(
    ("on", "buffer", "limit"),
    [
        ("trn1", nl.sbuf, 180224),
        ("trn2", nl.sbuf, 212984),
        ("trn3", nl.sbuf, 245752),
        ("trn1", nl.psum, 16384),
        ("trn3", nl.psum, 16384),
    ],
)
def test_a_single_tile_must_fit_its_partition_when_strict(on, buffer, limit, monkeypatch):
    run(lambda: (nl.ndarray((2, limit), nl.uint8, buffer), None)[1], on=on)
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    problem = refusal(lambda: nl.ndarray((2, limit + 1), nl.uint8, buffer), on=on)
    assert problem.kind == "capacity" and str(limit) in str(problem)
    assert refusal(lambda: nl.ndarray((2, limit // 4 + 1), nl.float32, buffer), on=on).kind == "capacity"


def test_many_tiles_may_exceed_sbuf_together():
    run(lambda: [nl.ndarray((128, 50000), nl.float32) for _ in range(3)] and None)


def test_hbm_beyond_what_a_core_reaches_is_refused_before_anything_is_allocated():
    problem = refusal(lambda: nl.ndarray((2**20, 2**20), nl.float32, nl.shared_hbm))
    assert problem.kind == "memory" and isinstance(problem, MemoryError)


@pytest.mark.parametrize("name", ["sbuf", "psum", "hbm", "private_hbm", "shared_hbm"])
def test_a_buffer_is_not_a_string(name):
    problem = refusal(lambda: nl.ndarray((2, 2), nl.int8, name))
    assert problem.kind == "buffer" and isinstance(problem, TypeError) and f"nl.{name}" in problem.help


@pytest.mark.parametrize("buffer", [None, 3, "sram", nl.float32])
def test_a_buffer_is_a_memory_region(buffer):
    assert refusal(lambda: nl.ndarray((2, 2), nl.int8, buffer)).kind == "buffer"


def test_wide_dtypes_are_refused():
    assert refusal(lambda: nl.ndarray((2, 2), np.float64)).kind == "dtype"
    assert refusal(lambda: nl.ndarray((2, 2), "int64")).kind == "dtype"


def test_a_name_is_a_string():
    assert refusal(lambda: nl.ndarray((2, 2), nl.int8, name=3)).kind == "argument"


def test_missing_and_unknown_arguments_are_type_errors():
    with pytest.raises(TypeError, match="dtype"):
        run(lambda: nl.ndarray((2, 2)))
    with pytest.raises(TypeError, match="mask"):
        run(lambda: nl.zeros((2, 2), nl.int8, mask=None))


def test_ndarray_serves_as_an_annotation():
    assert nl.ndarray | None == OptionalTensor
    assert None | nl.ndarray == OptionalTensor
    assert typing.Union[nl.ndarray, None]  # noqa: UP007
    assert [*inspect.signature(nl.ndarray).parameters] == ["shape", "dtype", "buffer", "name", "address"]
    text = pydoc.plain(pydoc.render_doc(nl.ndarray))
    assert "buffer: 'MemoryRegion' = nl.sbuf" in text

    class Config(nl.NKIObject):
        make = nl.ndarray

    assert Config().make is nl.ndarray


def test_tensors_are_made_inside_kernels_only():
    with pytest.raises(nki.NkiError) as caught:
        nl.ndarray((2, 2), nl.int8)
    assert caught.value.kind == "no-kernel"


def test_the_error_shows_the_users_line():
    problem = refusal(lambda: nl.ndarray((300, 2), nl.int8))
    assert problem.site.filename.endswith("test_creation.py") and "300" in problem.site.text


def test_allocation_checks_are_cached():
    allocation._CHECKED.clear()
    run(lambda: [nl.ndarray((16, 16), nl.float32) for _ in range(50)] and None)
    assert len(allocation._CHECKED) == 1


@given(
    shape=st.lists(st.integers(-1, 140), max_size=6),
    dtype=st.sampled_from(dtypes.ALL),
    buffer=st.sampled_from([nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm]),
)
@settings(max_examples=200, deadline=None)
def test_a_tensor_exists_exactly_when_the_rules_allow_it(shape, dtype, buffer):
    on_chip = buffer in (nl.sbuf, nl.psum)
    limit = {nl.sbuf: 212984, nl.psum: 16384}.get(buffer, 24 * 2**30)
    legal = bool(shape) and min(shape) > 0
    if legal and on_chip:
        legal = len(shape) <= 5 and shape[0] <= 128 and np.prod(shape[1:]) * dtype.itemsize <= limit
    elif legal:
        legal = np.prod(shape, dtype=float) * dtype.itemsize <= limit

    if legal and np.prod(shape, dtype=float) * dtype.itemsize > 2**26:
        return  # would really allocate it
    allowed = ("shape", "rank", "partition-limit", "capacity", "memory", "one-dimensional-tile")
    if legal:
        run(lambda: (nl.ndarray(shape, dtype, buffer), None)[1])
    else:
        assert refusal_when_strict(lambda: nl.ndarray(shape, dtype, buffer)).kind in allowed


# ---- address -------------------------------------------------------------------------------------


def test_an_address_places_a_tile():
    def body():
        t = nl.ndarray((64, 16), nl.float32, address=(32, 4096))
        assert t.storage.address == (32, 4096) and t.offset == 0
        assert nl.ndarray((64, 16), nl.float32, address=[0, 0]).storage.address == (0, 0)
        assert nl.ndarray((64, 16), nl.float32, nl.psum, address=(0, 2048)).storage.address == (0, 2048)
        assert nl.ndarray((64, 16), nl.float32, address=None).storage.address is None

    assert kinds(body) == []


def test_tiles_at_one_address_share_their_bytes():
    def body():
        whole = nl.ndarray((128, 8), nl.float32, address=(0, 1024))
        nisa.memset(whole, 1.0)
        half = nl.ndarray((128, 4), nl.float32, address=(0, 1040))
        nisa.memset(half, 2.0)
        return out_of(whole)

    result = run(body)
    assert (result[:, :4] == 1).all() and (result[:, 4:] == 2).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (dict(address=0), "expected (partition, byte)"),
        (dict(address=(0,)), "expected (partition, byte)"),
        (dict(address=(0, -4)), "expected (partition, byte)"),
        (dict(address=(0, 4.0)), "expected (partition, byte)"),
        (dict(address=(1, 0)), "do not fit"),
        (dict(address=(0, 2)), "multiple of 4"),
        (dict(address=(0, 212984 - 32)), "ends at byte 213016"),
        (dict(address=(0, 0), buffer=nl.shared_hbm), "SBUF or PSUM"),
        (dict(address=(0, 0), buffer=nl.hbm), "SBUF or PSUM"),
        (dict(address=(0, 2), buffer=nl.psum, dtype=nl.bfloat16), "multiple of 4"),
        (dict(address=(0, 16384), buffer=nl.psum), "ends at byte"),
    ],
)
def test_an_address_must_be_where_a_tile_can_be(arguments, text):
    arguments = {"dtype": nl.float32, **arguments}
    problem = refusal(lambda: nl.ndarray((128, 16), **arguments))
    assert problem.kind == "address" and text in str(problem)
    assert isinstance(problem, ValueError) and isinstance(problem, AssertionError)


def test_two_byte_elements_may_start_at_two_bytes_in_sbuf():
    run(lambda: (nl.ndarray((128, 16), nl.bfloat16, address=(0, 2)), None)[1])


def test_a_psum_tile_inside_a_bank_is_a_warning():
    assert kinds(lambda: nl.ndarray((128, 16), nl.float32, nl.psum, address=(0, 512))) == ["psum-bank-start"]


def test_a_psum_tile_may_cross_banks():
    assert kinds(lambda: nl.ndarray((128, 1024), nl.float32, nl.psum, address=(0, 0))) == []


# ---- filled --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.shared_hbm])
def test_zeros_ones_and_full_hold_their_number(dtype, buffer):
    def body():
        tensors = [
            nl.zeros((5, 6), dtype, buffer),
            nl.ones((5, 6), dtype, buffer),
            nl.full((5, 6), 1 if dtype.is_bool else 3, dtype, buffer),
        ]
        return [t if t.buffer is nl.shared_hbm else out_of(t) for t in tensors]

    zero, one, other = run(body)
    assert (zero.astype(np.float32) == 0).all() and (one.astype(np.float32) == 1).all()
    assert (other.astype(np.float32) == (1 if dtype.is_bool else 3)).all()


def test_fill_values_follow_the_rule_of_memset():
    assert refusal(lambda: nl.full((2, 2), 2.0, nl.int32)).kind == "memset-type"
    assert refusal(lambda: nl.full((2, 2), 300, nl.uint8, nl.shared_hbm)).kind == "memset-type"
    assert refusal(lambda: nl.ones((2, 2), nl.float8_e4m3fn_x4)).kind == "memset-type"
    run(lambda: (nl.zeros((2, 2), nl.float4_e2m1fn_x4), None)[1])


@pytest.mark.parametrize("shape", [(1,), (127,), (129,), (3, 5, 7), (128, 64), (1000, 33), (200, 70, 90)])
def test_hbm_of_any_size_is_filled_whole(shape):
    result = run(lambda: nl.full(shape, 2.5, nl.float32, nl.shared_hbm))
    assert result.shape == shape and (result == 2.5).all()


def test_a_large_hbm_tensor_takes_several_transfers():
    def body():
        return nl.full((9000, 1001), 7, nl.int32, nl.shared_hbm)

    @nki.jit
    def kernel():
        return body()

    with target("trn2"):
        finished = kernel.run()
    assert (finished.result == 7).all() and finished.statistics.dma_transfers > 4
    assert finished.statistics.by_instruction["memset"] == 1


def test_zeros_like_and_empty_like_take_shape_dtype_and_buffer_from_their_model():
    def body(x):
        tile = nl.ndarray((4, 3, 2), nl.bfloat16, nl.psum)
        a, b = nl.zeros_like(tile), nl.empty_like(tile)
        assert a.shape == b.shape == (4, 3, 2) and a.dtype == b.dtype == nl.bfloat16
        assert a.buffer is b.buffer is nl.psum
        assert nl.empty_like(x).buffer is x.buffer and nl.zeros_like(x).buffer is x.buffer
        c = nl.zeros_like(x, dtype=nl.int8, buffer=nl.sbuf, name="c")
        assert (c.dtype, c.buffer, c.name) == (nl.int8, nl.sbuf, "c")
        d = nl.empty_like(tile[:, 1], buffer=nl.shared_hbm)
        assert d.shape == (4, 2) and d.buffer is nl.shared_hbm
        return nl.zeros_like(x, buffer=nl.shared_hbm)

    assert (run(body, np.ones((6, 5), np.float32)) == 0).all()
    assert refusal(lambda: nl.zeros_like(3.0)).kind == "argument"
    assert refusal(lambda: nl.empty_like(None)).kind == "argument"


# ---- rand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.shared_hbm])
def test_rand_is_uniform_between_zero_and_one(on, buffer):
    def body():
        t = nl.rand((128, 300), nl.float32, buffer)
        return t if buffer is nl.shared_hbm else out_of(t)

    values = run(body, on=on)
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01 and abs(values.var() - 1 / 12) < 0.005
    assert len(np.unique(values)) > 30000


def test_rand_samples_new_numbers_for_every_part_of_hbm():
    values = run(lambda: nl.rand((128, 9000), nl.float32, nl.shared_hbm)).reshape(-1)
    assert len(np.unique(values)) > 0.9 * values.size


@pytest.mark.parametrize("dtype", [nl.int32, nl.uint8, nl.bool_, nl.float8_e8m0fnu, nl.float8_e5m2_x4])
def test_rand_needs_a_float_dtype(dtype):
    assert refusal(lambda: nl.rand((2, 2), dtype)).kind == "dtype"


def test_rand_casts_to_narrow_floats():
    values = run(lambda: out_of(nl.rand((16, 64), nl.bfloat16))).astype(np.float32)
    assert values.min() >= 0 and values.max() <= 1 and values.std() > 0.2


# ---- constants -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", shared_constants._TESTED_CONSTANTS)
def test_a_constant_holds_the_array(dtype):
    data = np.arange(1, 25, dtype=np.float32).reshape(4, 6).astype(dtype.storage)

    def body():
        c = nl.shared_constant(data)
        assert c.buffer is nl.shared_hbm and c.dtype is dtype and c.shape == (4, 6)
        tile = nl.ndarray((4, 6), dtype)
        nisa.dma_copy(tile, c)
        return out_of(tile)

    assert (run(body, on="trn3").view(np.uint8) == data.view(np.uint8)).all()


def test_a_constant_may_be_a_file(tmp_path):
    path = tmp_path / "c.npy"
    np.save(path, np.arange(6, dtype=np.int32).reshape(2, 3))

    for name in (path, str(path)):
        result = run(lambda name=name: nl.load(nl.shared_constant(name)))
        assert result.tolist() == [[0, 1, 2], [3, 4, 5]]
    problem = refusal(lambda: nl.shared_constant(str(tmp_path / "missing.npy")))
    assert problem.kind == "argument" and "missing.npy" in str(problem)


def test_a_constant_cannot_be_written():
    def body():
        nisa.dma_copy(nl.shared_constant(np.ones((2, 2), np.float32)), nl.zeros((2, 2), nl.float32))

    problem = refusal(body)
    assert problem.kind == "constant-write" and isinstance(problem, ValueError)


def test_a_constant_is_not_changed_by_the_array_afterwards():
    def body():
        data = np.ones((2, 2), np.float32)
        c = nl.shared_constant(data)
        data[...] = 5
        return out_of(nl.load(c))

    assert (run(body) == 1).all()


def test_equal_constants_are_stored_once():
    def body():
        a = nl.shared_constant(np.ones((2, 2), np.float32))
        b = nl.shared_constant(np.ones((2, 2), np.float32))
        c = nl.shared_constant(np.ones((4,), np.float32))
        assert a.storage is b.storage and a.storage is not c.storage

    run(body)


def test_constants_must_be_supported_arrays():
    assert refusal(lambda: nl.shared_constant(np.ones(3))).kind == "dtype"
    assert refusal(lambda: nl.shared_constant(np.ones(3, bool))).kind == "dtype"
    assert refusal(lambda: nl.shared_constant([1.0, 2.0])).kind == "argument"
    assert refusal(lambda: nl.shared_constant(np.zeros((0, 3), np.float32))).kind == "shape"
    assert refusal(lambda: nl.shared_constant(np.array(3, np.float32))).kind == "shape"


def test_both_cores_must_pass_the_same_constant():
    @nki.jit
    def same():
        c = nl.shared_constant(np.ones((2, 2), np.float32))
        out = nl.ndarray((2, 2), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out, c)
        return out

    @nki.jit
    def different():
        nl.shared_constant(np.full((2, 2), nl.program_id(0), np.float32))

    with target("trn2"):
        assert (same[2]() == 1).all()
        with pytest.raises(nki.NkiError) as caught:
            different[2]()
    assert caught.value.kind == "lnc-divergence"


@pytest.mark.parametrize("dtype", CASTABLE)
def test_an_identity_matrix_of_every_dtype(dtype):
    def body():
        eye = nl.shared_identity_matrix(5, dtype)
        assert eye.buffer is nl.sbuf and eye.shape == (5, 5) and eye.dtype is dtype
        return out_of(eye)

    assert (run(body, on="trn3").astype(np.float32) == np.eye(5)).all()


@pytest.mark.parametrize("n", [1, 33, 128])
def test_identities_of_one_dtype_share_a_constant(n):
    def body():
        assert nl.shared_identity_matrix(n).dtype is nl.uint8
        nl.shared_identity_matrix(n=n, dtype=nl.uint8)
        from nki.ir.context import current

        assert len(current().launch.shared.constants) == 1

    run(body)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_an_identity_fills_dst_whose_dtype_wins(buffer):
    def body():
        dst = nl.ndarray((6, 6), nl.bfloat16, buffer)
        assert nl.shared_identity_matrix(6, nl.float32, dst=dst) is dst
        return out_of(dst)

    assert (run(body).astype(np.float32) == np.eye(6)).all()


def test_invalid_identity_matrices_are_refused():
    def into(shape, dtype=nl.float32, buffer=nl.sbuf):
        return lambda: nl.shared_identity_matrix(4, dst=nl.ndarray(shape, dtype, buffer))

    assert refusal(lambda: nl.shared_identity_matrix(129)).kind == "partition-limit"
    assert refusal(lambda: nl.shared_identity_matrix(0)).kind == "shape"
    assert refusal(lambda: nl.shared_identity_matrix(4, nl.float8_e8m0fnu)).kind == "dtype"
    assert refusal(into((4, 5))).kind == "shape"
    assert refusal(into((4, 4), buffer=nl.shared_hbm)).kind == "buffer"
    assert refusal(lambda: nl.shared_identity_matrix(4, dst=3)).kind == "argument"


# ---- two cores -----------------------------------------------------------------------------------


def test_two_cores_share_the_nth_allocation_of_a_name():
    @nki.jit
    def kernel():
        first = nl.ndarray((2, 4), nl.float32, nl.shared_hbm)
        second = nl.ndarray((2, 4), nl.float32, nl.shared_hbm, name="second")
        third = nl.ndarray((2, 4), nl.int32, nl.shared_hbm)
        core = nl.program_id(0)
        for number, tensor in enumerate((first, second, third)):
            tile = nl.full((1, 4), 10 * core + number, tensor.dtype)
            nisa.dma_copy(tensor[core : core + 1], tile)
        return first, second, third

    with target("trn2"):
        results = kernel[2]()
    for number, result in enumerate(results):
        assert result.tolist() == [[number] * 4, [10 + number] * 4]


def test_cores_that_disagree_about_a_shared_tensor_raise_an_error():
    @nki.jit
    def kernel():
        nl.ndarray((2, 4 + nl.program_id(0)), nl.float32, nl.shared_hbm, name="x")

    with target("trn2"), pytest.raises(nki.NkiError) as caught:
        kernel[2]()
    assert caught.value.kind == "shared-mismatch"


# ---- par_dim -------------------------------------------------------------------------------------


def test_par_dim_is_legal_only_as_the_first_entry():
    def body():
        assert nl.ndarray((nl.par_dim(64), 4), nl.float32).shape == (64, 4)

    assert kinds(body) == ["legacy"]
    problem = refusal(lambda: nl.ndarray((4, nl.par_dim(64), 4), nl.float32))
    assert problem.kind == "block-dimension" and "entry 1" in str(problem)
