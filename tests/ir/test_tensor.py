"""NkiTensor: attributes, Python manners and assignment (spec/tensor.md 2, 4.6)."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.context import running
from nki.ir.tensor import NkiTensor
from support import refused


def tile(*shape, dtype=nl.float32, buffer=nl.sbuf, name=""):
    return NkiTensor(shape, dtype, None, buffer, name)


def in_kernel(body, *arrays):
    """What `body(*tensors)` returned inside a kernel, whatever it is."""
    seen = []

    @nki.jit
    def kernel(tensors):
        seen.append(body(*tensors))

    kernel(list(arrays))
    return seen[0]


def filled(shape=(4, 6), dtype=nl.float32, value=1.0, buffer=nl.sbuf, name=""):
    made = nl.ndarray(shape, dtype, buffer=buffer, name=name)
    nisa.memset(made, value)
    return made


# ---- attributes ----------------------------------------------------------------------------------


@pytest.mark.tiny
def test_a_fresh_tensor_is_row_major():
    t = tile(128, 4, 16, dtype="bfloat16", name="acc")
    assert t.shape == (128, 4, 16) and t.strides == (64, 16, 1) and t.offset == 0
    assert t.ndim == 3 and t.size == 128 * 64
    assert t.dtype is nl.bfloat16 and t.buffer is nl.sbuf and t.name == "acc"


@pytest.mark.parametrize("name", ["shape", "strides", "offset", "dtype", "buffer", "name", "ndim", "size"])
def test_attributes_are_read_only(name):
    t = tile(4, 6)
    with pytest.raises(AttributeError):
        setattr(t, name, getattr(t, name))
    with pytest.raises(AttributeError):
        t.anything_else = 1


@pytest.mark.parametrize("name", ["shape", "strides", "offset", "dtype"])
def test_setting_an_attribute_names_it_and_leaves_the_tensor_as_it_was(name):
    t = tile(4, 6)
    before = getattr(t, name)
    with pytest.raises(AttributeError, match=f"the {name} of a tensor cannot be set"):
        setattr(t, name, None)
    assert getattr(t, name) is before


def test_an_array_argument_has_its_own_attributes():
    def body(x):
        return x.shape, x.dtype, x.buffer, x.name

    shape, dtype, buffer, name = in_kernel(body, np.zeros((3, 5), np.int16))
    assert shape == (3, 5) and dtype is nl.int16 and buffer is nl.hbm and name == "tensors[0]"


def test_a_tensor_can_be_bound_to_an_existing_storage():
    def body(x):
        a = filled((4, 8))
        b = NkiTensor((4, 16), nl.bfloat16, a.storage)
        c = NkiTensor((2, 4), nl.int32, a)
        assert b.storage is a.storage and c.strides == (8, 1) and b.name == a.name
        del b, c  # the first tensor keeps the bytes
        nisa.tensor_copy(a, a)
        return np.asarray(NkiTensor((4, 8), nl.int32, a.storage))

    np.testing.assert_array_equal(in_kernel(body, np.zeros(1, np.int8)), np.full((4, 8), 0x3F800000))


def test_a_storage_must_be_large_enough():
    small = tile(4, 8)
    for shape in ((4, 9), (5, 8), (2, 16)):
        with pytest.raises(nki.NkiError) as caught:
            NkiTensor(shape, nl.float32, small.storage)
        assert caught.value.kind == "shape"
    with pytest.raises(ValueError):
        NkiTensor((0, 4), nl.float32, None)


def test_a_placeholder_has_views_and_no_data():
    placeholder = tile(4, 6, name="spec")
    assert placeholder[:, 2:4].shape == (4, 2)

    def body(x, placeholder):
        real = filled((4, 6))
        nisa.tensor_copy(real, real)  # the same signature passes for a real tile
        nisa.tensor_copy(real, placeholder)

    @nki.jit
    def kernel(x, t):
        body(x, t)

    with pytest.raises(nki.NkiError) as caught:
        kernel(np.zeros(1, np.int8), placeholder)
    assert caught.value.kind == "placeholder" and isinstance(caught.value, RuntimeError)
    assert "'spec'" in str(caught.value)
    with pytest.raises(RuntimeError):
        np.asarray(placeholder)


# ---- identity and truth --------------------------------------------------------------------------


def test_equality_is_identity():
    a, b = tile(4, 6), tile(4, 6)
    assert a == a and a != b and a != a[:] and hash(a) != hash(b)
    assert (a == None) is False and (a != None) is True  # noqa: E711
    assert a in [b, a] and {a: 1}[a] == 1


def test_a_tensor_in_hbm_is_true_and_a_tile_has_no_truth_value():
    assert NkiTensor((4, 6), nl.float32, None, nl.shared_hbm)  # `if bias:` tests presence
    refused("tensor-value", "is not None", lambda: bool(tile(4, 6)))


def test_the_truth_of_a_comparison_is_that_all_elements_hold():
    def body(x):
        ones, twos = filled(value=1.0), filled(value=2.0)
        mixed = filled(value=1.0)
        nisa.memset(mixed[:, 0:1], 2.0)
        return bool(nl.equal(ones, ones)), bool(nl.equal(ones, twos)), bool(nl.equal(ones, mixed))

    assert in_kernel(body, np.zeros(1, np.int8)) == (True, False, False)


# ---- what Python may not do with a tensor --------------------------------------------------------

BINARY = {
    operator.add: ("+", "nl.add"),
    operator.sub: ("-", "nl.subtract"),
    operator.mul: ("*", "nl.multiply"),
    operator.truediv: ("/", "nl.divide"),
    operator.floordiv: ("//", "nl.divide and nl.floor"),
    operator.mod: ("%", "nl.mod"),
    operator.pow: ("**", "nl.power"),
    operator.matmul: ("@", "nl.matmul"),
    operator.and_: ("&", "nl.bitwise_and"),
    operator.or_: ("|", "nl.bitwise_or"),
    operator.xor: ("^", "nl.bitwise_xor"),
    operator.lshift: ("<<", "nl.left_shift"),
    operator.rshift: (">>", "nl.right_shift"),
    divmod: ("divmod()", "nl.divide and nl.floor"),
}
UNARY = {
    operator.neg: ("-", "nl.negative"),
    operator.pos: ("+", "nl.copy"),
    operator.invert: ("~", "nl.invert"),
    abs: ("abs()", "nl.abs"),
}


def refused_operator(action, symbol, replacement):
    with pytest.raises(TypeError) as caught:
        action()
    assert caught.value.kind == "operator"
    assert str(caught.value).startswith(f"unsupported operand: tensors have no operator {symbol}\n")
    assert caught.value.help.startswith(f"use {replacement} or nisa.")


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
@pytest.mark.parametrize(
    "other",
    [2, 2.5, np.float32(2), np.ones((4, 6), np.float32), "tensor"],
    ids=["int", "float", "np", "array", "tensor"],
)
def test_binary_operators_are_refused_with_the_function_to_use(op, other):
    symbol, replacement = BINARY[op]
    t = tile(4, 6)
    other = tile(4, 6) if isinstance(other, str) else other
    refused_operator(lambda: op(t, other), symbol, replacement)
    refused_operator(lambda: op(other, t), symbol, replacement)


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.__name__)
def test_unary_operators_are_refused_with_the_function_to_use(op):
    symbol, replacement = UNARY[op]
    refused_operator(lambda: op(tile(4, 6)), symbol, replacement)


def test_augmented_assignment_is_refused():
    t = tile(4, 6)
    with pytest.raises(TypeError, match="unsupported operand"):
        t += 1
    with pytest.raises(TypeError, match="unsupported operand"):
        t[0:2] += 1.0
    with pytest.raises(TypeError, match="unsupported operand"):
        t[0:2] *= tile(2, 6)


@pytest.mark.parametrize(
    "op, name",
    [
        (operator.lt, "less"),
        (operator.le, "less_equal"),
        (operator.gt, "greater"),
        (operator.ge, "greater_equal"),
    ],
)
def test_ordering_is_refused_with_the_nl_comparison(op, name):
    for action in (lambda: op(tile(4, 6), 0), lambda: op(tile(4, 6), tile(4, 6))):
        with pytest.raises(TypeError) as caught:
            action()
        assert caught.value.kind == "tensor-value"
        assert "values are not known while the kernel is traced" in str(caught.value)
        assert f"nl.{name} " in caught.value.help and "register_load" in caught.value.help


@pytest.mark.parametrize(
    "action, what, help",
    [
        (len, "len()", "t.shape[0]"),
        (iter, "iteration", "t.shape[d]"),
        (list, "iteration", "t.shape[d]"),
        (lambda t: 1 in t, "`in`", "nl.equal"),
        (float, "float()", "nl.device_print"),
        (int, "int()", "register_load"),
        (range, "an index, a size or range()", "register_load"),
        (lambda t: [1, 2][t], "an index, a size or range()", "register_load"),
        (complex, "complex()", "register_load"),
    ],
)
def test_values_are_not_python_numbers_or_sequences(action, what, help):
    with pytest.raises(TypeError) as caught:
        action(tile(1, 1))
    assert caught.value.kind == "tensor-value" and str(caught.value).startswith(f"{what} on a tensor")
    assert help in caught.value.help
    assert "float32[1, 1] in sbuf" in str(caught.value)


def test_tensors_are_neither_copied_nor_pickled_by_python():
    for action in (copy.copy, copy.deepcopy, pickle.dumps, lambda t: copy.deepcopy([t])):
        with pytest.raises(TypeError) as caught:
            action(tile(4, 6))
        assert caught.value.kind == "operator"


def test_numpy_functions_do_not_compute_on_tensors():
    with pytest.raises(TypeError):
        np.exp(tile(4, 6))
    with pytest.raises(TypeError):
        np.add(tile(4, 6), 1)


# ---- looking at values ---------------------------------------------------------------------------


def test_repr_outside_a_run_is_one_line():
    assert repr(tile(128, 64, name="acc")) == "NkiTensor float32[128, 64] sbuf 'acc'"
    assert str(tile(4, 6, dtype=nl.bool_, buffer=nl.shared_hbm)) == "NkiTensor bool[4, 6] shared_hbm"
    kept = in_kernel(lambda x: filled(), np.zeros(1, np.int8))
    assert repr(kept) == "NkiTensor float32[4, 6] sbuf"


def test_repr_inside_a_run_shows_values():
    def body(x):
        fresh = nl.ndarray((1, 2), nl.float32)
        counts = nl.ndarray((1, 2), nl.int32)
        return repr(filled((1, 3), value=2.0, name="acc")), str(x), repr(fresh), repr(counts), repr(x[0:1])

    acc, x, fresh, counts, part = in_kernel(body, np.arange(2, dtype=np.int32))
    assert acc == "NkiTensor float32[1, 3] sbuf 'acc'\n[[2. 2. 2.]]"
    assert x == "NkiTensor int32[2] private_hbm 'tensors[0]'\n[0 1]"
    assert fresh == "NkiTensor float32[1, 2] sbuf\n[[nan nan]]"
    assert counts == "NkiTensor int32[1, 2] sbuf\n[[4 4]]"
    assert part == "NkiTensor int32[1] private_hbm 'tensors[0]'\n[0]"


@pytest.mark.parametrize(
    "look", [repr, str, np.asarray, lambda t: f"{t}"], ids=["repr", "str", "asarray", "format"]
)
def test_reading_back_values_is_recorded_and_not_reported_as_a_read(look):
    @nki.jit
    def kernel(x):
        fresh = nl.ndarray((1, 2), nl.float32)
        assert not running().launch.python.read_values  # such a trace can be replayed
        look(fresh)
        assert running().launch.python.read_values

    assert kernel.run(np.zeros(1, np.int8)).diagnostics == []


def test_asarray_copies_the_values_during_a_run():
    def body(x):
        t = filled(dtype=nl.bfloat16)
        values = np.asarray(t)
        nisa.memset(t, 3.0)
        return values, np.asarray(t[1:2, ::2], dtype=np.float64), np.asarray(x)

    values, later, x = in_kernel(body, np.arange(3, dtype=np.float32))
    assert values.dtype == nl.bfloat16.storage and (values == 1).all()
    assert later.dtype == np.float64 and later.shape == (1, 3) and (later == 3).all()
    x[...] = 9  # a copy: the caller's array is not reached


def test_asarray_refuses_what_has_no_values():
    def body(x):
        index = nl.ndarray((1, 1), nl.int32)
        with pytest.raises(TypeError, match=r"np.asarray\(\) on a tensor"):
            np.asarray(x[index])
        with pytest.raises(ValueError):
            x.__array__(copy=False)  # what np.asarray(x, copy=False) of numpy 2 calls

    in_kernel(body, np.arange(3, dtype=np.float32))


# ---- assignment (spec/tensor.md 4.6) ------------------------------------------------------------------


def test_assignment_picks_the_instruction_for_the_buffers():
    @nki.jit
    def kernel(x):
        sbuf, psum = nl.ndarray((4, 6), x.dtype), nl.ndarray((4, 6), x.dtype, buffer=nl.psum)
        out = nl.ndarray((4, 6), x.dtype, buffer=nl.shared_hbm)
        twin = nl.ndarray((4, 6), x.dtype, buffer=nl.shared_hbm)
        sbuf[...] = x  # SBUF from HBM
        psum[...] = sbuf  # PSUM from SBUF
        psum[:, 0:2] = 7.0  # PSUM from a number
        sbuf[:, 0:4] = psum[:, 0:4]  # SBUF from PSUM
        sbuf[0, :] = 2  # SBUF from a number
        out[...] = sbuf  # HBM from SBUF
        twin[1:3] = out[1:3]  # HBM from HBM
        twin[0] = sbuf[3:4]  # size-1 dimensions do not matter
        twin[3:4] = sbuf[0]
        return out, twin

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    run = kernel.run(x)
    wanted = x.copy()
    wanted[:, 0:2] = 7
    wanted[0] = 2
    np.testing.assert_array_equal(run.result[0], wanted)
    np.testing.assert_array_equal(run.result[1], wanted[[3, 1, 2, 0]])
    assert run.statistics.by_instruction == {"dma_copy": 5, "tensor_copy": 2, "memset": 2}


def test_assignment_casts_like_its_instruction():
    def body(x):
        t = nl.ndarray((2, 3), nl.int8)
        t[...] = x
        return np.asarray(t)

    x = np.array([[2.5, 3.5, 300], [-0.5, -300, np.nan]], np.float32)
    np.testing.assert_array_equal(in_kernel(body, x), [[2, 4, 127], [0, -128, 0]])


@pytest.mark.parametrize(
    "kind, text, action",
    [
        ("buffer", "DMA cannot reach PSUM", lambda x, s, p: x.__setitem__(slice(None), p)),
        ("buffer", "DMA cannot reach PSUM", lambda x, s, p: p.__setitem__(slice(None), x)),
        ("buffer", "a number cannot be written to HBM", lambda x, s, p: x.__setitem__(0, 1.0)),
        ("shape", "(4, 6) does not fit (4, 3)", lambda x, s, p: s.__setitem__((slice(None), slice(0, 3)), x)),
        ("shape", "does not fit", lambda x, s, p: s.__setitem__(slice(None), s[:, 0:1])),
        ("shape", "does not fit", lambda x, s, p: s.__setitem__(slice(None), s.reshape((4, 3, 2)))),
        (
            "argument",
            "expected a tensor or a number, got ndarray",
            lambda x, s, p: s.__setitem__(0, np.ones(6)),
        ),
        ("argument", "got NoneType", lambda x, s, p: s.__setitem__(0, None)),
        ("index", "out of range", lambda x, s, p: s.__setitem__(4, 1.0)),
    ],
)
def test_assignment_refuses(kind, text, action):
    def body(x):
        sbuf, psum = filled(), filled(buffer=nl.psum)
        with pytest.raises(nki.NkiError) as caught:
            action(x, sbuf, psum)
        return caught.value

    error = in_kernel(body, np.zeros((4, 6), np.float32))
    assert error.kind == kind and text in str(error)
    if text == "DMA cannot reach PSUM":
        assert "nl.copy" in error.help
    if "number" in text and kind == "buffer":
        assert "nl.full" in error.help
