"""Registers, their Python operators, and the queries of the target (spec/isa_registers_sync.md)."""

from __future__ import annotations

import inspect
import operator
import os
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.launch import core as core_module
from support import target

INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]


def in_kernel(body, *arrays):
    """Run `body(*tensors)` in a kernel; returns what it put into a list."""
    seen = []

    @nki.jit
    def kernel(tensors):
        seen.append(body(*tensors))

    kernel(list(arrays))
    return seen[0]


def refusal(body, *arrays):
    with pytest.raises(nki.NkiError) as caught:
        in_kernel(body, *arrays)
    return caught.value


def signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def value_of(register):
    return register.read()


# ---- making and moving ---------------------------------------------------------------------------


@pytest.mark.tiny
def test_a_register_holds_the_int_it_was_made_with():
    assert in_kernel(lambda: value_of(nisa.register_alloc(41))) == 41


def test_bools_and_numpy_ints_are_ints():
    assert in_kernel(lambda: value_of(nisa.register_alloc(True))) == 1
    assert in_kernel(lambda: value_of(nisa.register_alloc(np.int64(-7)))) == -7


def test_alloc_of_a_register_copies_its_value():
    def body():
        first = nisa.register_alloc(5)
        second = nisa.register_alloc(first)
        nisa.register_move(first, 6)
        return value_of(first), value_of(second)

    assert in_kernel(body) == (6, 5)


@pytest.mark.parametrize("where", ["hbm", "sbuf"])
def test_alloc_of_a_one_element_tensor_loads_it(where):
    def body(x):
        if where == "sbuf":
            tile = nl.ndarray((1, 1), nl.int32)
            nisa.dma_copy(tile, x)
            x = tile
        return value_of(nisa.register_alloc(x[0, 0]))

    assert in_kernel(body, np.array([[-12]], np.int32)) == -12


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**31), 2**32 - 1))
def test_moved_values_wrap_to_signed_32_bits(value):
    assert in_kernel(lambda: value_of(nisa.register_alloc(value))) == signed(value)


@pytest.mark.parametrize("value", [-(2**31) - 1, 2**32, 10**12])
def test_ints_beyond_32_bits_are_refused(value):
    problem = refusal(lambda: nisa.register_move(nisa.register_alloc(), value))
    assert problem.kind == "register-range" and isinstance(problem, ValueError)
    assert str(value) in str(problem)


def test_the_old_keyword_imm_still_moves():
    def body():
        register = nisa.register_alloc()
        nisa.register_move(register, imm=9)
        return value_of(register)

    with pytest.warns(nki.NkiWarning, match="imm= is an old form"):
        assert in_kernel(body) == 9


@pytest.mark.parametrize("source", [1.5, "3", None])
def test_only_ints_and_registers_can_be_moved(source):
    problem = refusal(lambda: nisa.register_move(nisa.register_alloc(), source))
    assert problem.kind == "argument" and isinstance(problem, TypeError)


def test_alloc_refuses_floats():
    assert refusal(lambda: nisa.register_alloc(2.0)).kind == "argument"


def test_moving_from_a_tensor_names_register_load():
    problem = refusal(lambda x: nisa.register_move(nisa.register_alloc(), x), np.zeros(1, np.int32))
    assert "register_load" in problem.help


@pytest.mark.parametrize("write", [lambda dst, x: nisa.register_move(dst, 1), nisa.register_load])
def test_the_destination_must_be_a_register(write):
    problem = refusal(lambda x: write(3, x), np.zeros(1, np.int32))
    assert problem.kind == "argument" and "dst must be a register" in str(problem)


@pytest.mark.parametrize("write", [lambda dst, x: nisa.register_move(dst, 1), nisa.register_load])
def test_a_frozen_register_cannot_be_written(write):
    problem = refusal(lambda x: write(nisa.VirtualRegister(0, frozen=True), x), np.zeros(1, np.int32))
    assert problem.kind == "frozen-register" and isinstance(problem, AssertionError)


def test_moves_return_a_handle_that_orders_instructions():
    def body():
        register = nisa.register_alloc()
        first = nisa.register_move(register, 1)
        second = nisa.register_move(register, 2)
        return isinstance(second.depends_on(first), nisa.NkiInstruction)

    assert in_kernel(body)


# ---- loading -------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(INTEGERS))
def test_loading_extends_by_the_sign_of_the_dtype(data, dtype):
    limits = np.iinfo(dtype)
    value = data.draw(st.integers(int(limits.min), int(limits.max)))

    def body(x):
        register = nisa.register_alloc()
        nisa.register_load(register, x)
        return value_of(register)

    assert in_kernel(body, np.array([value], dtype)) == signed(value)


def test_loading_a_bool_gives_0_or_1():
    assert in_kernel(lambda x: value_of(nisa.register_alloc(x)), np.array([True])) == 1


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1, 1)])
def test_any_rank_with_one_element_loads(shape):
    assert in_kernel(lambda x: value_of(nisa.register_alloc(x)), np.full(shape, 3, np.int16)) == 3


def test_loading_a_float32_keeps_its_value_and_warns():
    with pytest.warns(nki.NkiWarning, match="src is float32") as said:
        assert in_kernel(lambda x: value_of(nisa.register_alloc(x)), np.array([2.75], np.float32)) == 2.75
    assert said[0].category.kind == "register-float"


def test_a_register_with_a_float_is_no_index_and_no_bound():
    def index(x):
        nisa.dma_copy(
            nl.ndarray((1, 1), nl.float32), x.ap([[1, 1], [1, 1]], scalar_offset=nisa.register_alloc(x))
        )

    def bound(x):
        nl.fori_loop(0, nisa.register_alloc(x), lambda i: None)

    for body in (index, bound):
        with pytest.warns(nki.NkiWarning):
            assert refusal(body, np.array([1.0], np.float32)).kind == "dtype"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2", "float8_e8m0fnu"])
def test_other_floats_cannot_be_loaded_or_stored(dtype):
    array = np.ones(1, np.dtype(dtype))
    for body in (lambda x: nisa.register_alloc(x), lambda x: nisa.register_store(x, nisa.register_alloc(1))):
        problem = refusal(body, array)
        assert problem.kind == "dtype" and "int32" in problem.help


def test_more_than_one_element_is_refused():
    problem = refusal(lambda x: nisa.register_alloc(x), np.zeros((1, 2), np.int32))
    assert problem.kind == "shape" and "it has 2" in str(problem)


def test_psum_is_refused():
    def body():
        nisa.register_alloc(nl.ndarray((1, 1), nl.int32, buffer=nl.psum))

    problem = refusal(body)
    assert problem.kind == "buffer" and "SBUF or HBM" in str(problem)


def test_loading_needs_a_tensor():
    assert refusal(lambda: nisa.register_load(nisa.register_alloc(), 4)).kind == "argument"


def test_the_element_is_read_when_the_instruction_runs():
    def body():
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.memset(tile, 3)
        register = nisa.register_alloc(tile)
        nisa.memset(tile, 4)
        before = value_of(register)
        nisa.register_load(register, tile)
        return before, value_of(register)

    assert in_kernel(body) == (3, 4)


def test_a_register_can_address_what_is_loaded():
    def body(x):
        where = nisa.register_alloc(2)
        return value_of(nisa.register_alloc(x.select(0, where)))

    assert in_kernel(body, np.array([[7], [8], [9]], np.int32)) == 9


# ---- storing -------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**31), 2**32 - 1), st.sampled_from(INTEGERS), st.booleans())
def test_storing_keeps_the_low_bits(value, dtype, on_chip):
    @nki.jit
    def kernel():
        out = nl.ndarray((1, 1), dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), dtype) if on_chip else out
        nisa.register_store(tile, nisa.register_alloc(value))
        if on_chip:
            nisa.dma_copy(out, tile)
        return out

    bits = 8 * np.dtype(dtype).itemsize
    assert int(kernel()[0, 0]) % 2**bits == value % 2**bits


def test_storing_into_float32_converts_the_value():
    @nki.jit
    def kernel():
        out = nl.ndarray((1,), nl.float32, buffer=nl.shared_hbm)
        nisa.register_store(out, nisa.register_alloc(-3))
        return out

    assert kernel().tolist() == [-3.0]


def test_a_float_register_goes_to_float32_only():
    def body(x, y):
        nisa.register_store(y, nisa.register_alloc(x))

    out = np.zeros(1, np.float32)
    with pytest.warns(nki.NkiWarning):
        in_kernel(body, np.array([1.25], np.float32), out)
        assert out[0] == 1.25
        problem = refusal(body, np.array([1.25], np.float32), np.zeros(1, np.int32))
    assert problem.kind == "dtype" and "1.25" in str(problem)


def test_storing_into_a_bool_tests_for_zero():
    out = np.zeros(1, np.bool_)
    in_kernel(lambda x: nisa.register_store(x, nisa.register_alloc(256)), out)
    assert out[0]


def test_storing_takes_the_tensor_first():
    problem = refusal(lambda x: nisa.register_store(nisa.register_alloc(1), x), np.zeros(1, np.int32))
    assert problem.kind == "argument" and "tensor comes first" in problem.help


def test_reading_an_unset_register_is_an_error():
    for body in (
        lambda x: nisa.register_store(x, nisa.register_alloc()),
        lambda x: nisa.register_move(nisa.register_alloc(), nisa.register_alloc()),
        lambda x: nl.fori_loop(0, nisa.register_alloc(), lambda i: None),
        lambda x: bool(nisa.register_alloc()),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = refusal(body, np.zeros(1, np.int32))
        assert problem.kind == "uninitialized" and isinstance(problem, RuntimeError)


# ---- Python manners ------------------------------------------------------------------------------

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lshift,
    operator.rshift,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_python_cannot_compute_with_a_register(op):
    for first, second in ((nisa.VirtualRegister(3), 2), (2, nisa.VirtualRegister(3))):
        with pytest.raises(TypeError) as caught:
            op(first, second)
        assert caught.value.kind == "register-value" and "tensor_scalar" in caught.value.help


@pytest.mark.parametrize(
    "use",
    [int, float, range, operator.neg, operator.invert, abs, lambda r: [1, 2, 3][r], lambda r: [1, 2][0:r]],
)
def test_python_cannot_convert_a_register(use):
    with pytest.raises(TypeError, match="only at run time"):
        use(nisa.VirtualRegister(1))


def test_comparing_with_none_tests_for_presence():
    register = nisa.VirtualRegister(0)
    assert (register == None) is False and (register != None) is True  # noqa: E711


def test_registers_are_equal_to_nothing_and_hash_by_identity():
    register = nisa.VirtualRegister(1)
    assert {register: "found"}[register] == "found"
    with pytest.raises(TypeError):
        _ = register == nisa.VirtualRegister(1)


def test_repr_shows_the_value_and_counts_as_looking():
    def body():
        launch = core_module.current().launch
        register = nisa.register_alloc(12)
        before = launch.python.read_values
        return before, repr(register), launch.python.read_values, repr(nisa.register_alloc())

    before, text, after, unset = in_kernel(body)
    assert (before, after) == (False, True)
    assert "12" in text and "uninitialised" in unset


def test_while_register_runs_and_counts_as_looking():
    def body():
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.memset(tile, 3)
        register = nisa.register_alloc(tile)
        trips = 0
        while register:
            trips += 1
            nisa.tensor_scalar(tile, tile, nl.subtract, 1)
            nisa.register_load(register, tile)
        return trips, core_module.current().launch.python.read_values

    with pytest.warns(DeprecationWarning, match="dynamic-while") as said:
        assert in_kernel(body) == (3, True)
    assert [w.category.kind for w in said] == ["deprecated"]  # once per line


def test_while_register_ends_with_an_error_when_it_never_would(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_MAX_ITERATIONS", "50")

    def body():
        register = nisa.register_alloc(1)
        while register:
            pass

    with pytest.warns(DeprecationWarning):
        problem = refusal(body)
    assert problem.kind == "endless-loop" and "50" in str(problem)


def test_a_register_indexes_tensors_in_every_form():
    x = np.arange(24, dtype=np.int32).reshape(4, 6)

    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, 6), nl.int32, buffer=nl.shared_hbm)
        row = nisa.register_alloc(3)
        nisa.dma_copy(out[0], x[row])
        nisa.dma_copy(out[1], x.select(0, row))
        nisa.dma_copy(out[2:3], x[nl.ds(row, 1)])
        nisa.dma_copy(out[3:4], x.ap([[6, 1], [1, 6]], scalar_offset=row))
        return out

    assert (kernel(x) == x[3]).all()


def test_a_register_beyond_the_tensor_is_found_when_it_is_used():
    def body(x):
        tile = nl.ndarray((1, 6), nl.int32)
        nisa.dma_copy(tile, x[nl.ds(nisa.register_alloc(4), 1)])

    problem = refusal(body, np.zeros((4, 6), np.int32))
    assert problem.kind == "index" and "index 4" in str(problem)


# ---- target queries ------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize(
    "name, version",
    [("trn1", "gen2"), ("gen2", "gen2"), ("trn2", "gen3"), ("GEN3", "gen3"), ("trn3", "gen4")],
)
def test_the_version_follows_the_platform_inside_and_outside_kernels(name, version):
    with target(name):
        assert nisa.get_nc_version() is nisa.nc_version[version]
        assert in_kernel(nisa.get_nc_version) is nisa.nc_version[version]


def test_the_default_platform_is_trn3(monkeypatch):
    for variable in ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_NC_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    assert nisa.get_nc_version() == nisa.nc_version.gen4


def test_versions_order_with_members_and_ints():
    with target("trn2"):
        assert nisa.get_nc_version() >= 3 and nisa.get_nc_version() < nisa.nc_version.gen4
        assert nisa.get_nc_version() == 3 and nisa.get_nc_version() <= nisa.nc_version.gen3


def test_an_unknown_platform_is_an_error():
    with target("trn9"), pytest.raises(nki.NkiError) as caught:
        nisa.get_nc_version()
    assert caught.value.kind == "platform" and "trn2" in str(caught.value)


def test_the_sub_version_is_0():
    assert nisa.get_nc_sub_version() == 0


# ---- signatures ----------------------------------------------------------------------------------


def test_signatures_are_the_documented_ones():
    import json

    path = os.path.join(os.path.dirname(__file__), "..", "data", "documented_api.json")
    with open(path) as file:
        functions = json.load(file)["nki.isa"]["functions"]
    for name in (
        "register_alloc",
        "register_move",
        "register_load",
        "register_store",
        "sendrecv",
        "core_barrier",
    ):
        found = [
            [p.name, None if p.default is p.empty else str(p.default)]
            for p in inspect.signature(getattr(nisa, name)).parameters.values()
        ]
        assert [n for n, _ in found] == [n for n, _ in functions[name]]
        assert [d is None for _, d in found] == [d is None for _, d in functions[name]]


def test_registers_work_with_narrow_floats_stored_wide(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    problem = refusal(lambda x: nisa.register_alloc(x), np.ones(1, ml_dtypes.bfloat16))
    assert problem.kind == "dtype"
