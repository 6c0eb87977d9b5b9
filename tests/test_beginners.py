"""Mistakes of beginners: each is right, or an error at the user's line that says what to write instead."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import traceback
import types
import warnings

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tracebacks import _show_in_notebook

X = np.arange(1024, dtype=np.float32).reshape(128, 8)


def loaded(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    return tile


def psum(columns=8):
    return nl.ndarray((8, columns), nl.float32, buffer=nl.psum)


def run(body):
    """Run a body on an HBM tensor and a tile that holds it; return what the tile holds then."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = loaded(x)
        body(x, tile)
        nisa.dma_copy(out, tile)
        return out

    return kernel(X.copy())


VALUE, OPERATOR, ARGUMENT = "tensor-value", "operator", "argument"

# what a beginner writes with a tile t of x; the kind of the error; what its text contains
MISTAKES = [
    # values
    ("if t", lambda x, t: 1 if t else 0, VALUE, "`is not None` tests presence"),
    ("while t", lambda x, t: not t, VALUE, "`if`, `while` or `not` on a tensor"),
    ("t and", lambda x, t: t and 1, VALUE, "a register (nisa.register_load) can steer a loop"),
    ("t[0, 0] > 0", lambda x, t: t[0, 0] > 0, VALUE, "nl.greater"),
    ("t == 0", lambda x, t: t == 0, VALUE, "nl.equal"),
    ("t != 1.5", lambda x, t: t != 1.5, VALUE, "nl.equal"),
    ("float(t)", lambda x, t: float(t[0, 0]), VALUE, "print(t) can show values, since it only displays them"),
    ("int(t)", lambda x, t: int(t[0, 0]), VALUE, "print(t) can show values"),
    ("t.item()", lambda x, t: t[0, 0].item(), VALUE, "print(t) can show values"),
    ("t.tolist()", lambda x, t: t.tolist(), VALUE, "print(t) can show values"),
    ("math.exp(t)", lambda x, t: math.exp(t), VALUE, "keep it in a tile"),
    ("f'{t:.3f}'", lambda x, t: f"{t[0, 0]:.3f}", VALUE, "the format '.3f'"),
    ("range(t)", lambda x, t: range(t), VALUE, "an index, a size or range()"),
    ("for row in t", lambda x, t: [row for row in t], VALUE, "loop over range(t.shape[d])"),
    ("len(t)", lambda x, t: len(t), VALUE, "t.shape[0]"),
    ("max(t, 0)", lambda x, t: max(t, 0), VALUE, "compares on the engine"),
    ("3 in t", lambda x, t: 3 in t, VALUE, "nl.equal"),
    # functions of other libraries
    ("np.exp", lambda x, t: np.exp(t), OPERATOR, "use nl.exp"),
    ("np.sum", lambda x, t: np.sum(t, axis=1), OPERATOR, "use nl.sum"),
    ("np.amax", lambda x, t: np.amax(t), OPERATOR, "use nl.max"),
    ("np.dot", lambda x, t: np.dot(t, t), OPERATOR, "use nl.matmul"),
    ("np.where", lambda x, t: np.where(t, t, t), OPERATOR, "use nl.where"),
    (
        "np.concatenate",
        lambda x, t: np.concatenate([t, t]),
        OPERATOR,
        "nisa.tensor_copy(whole[:, a:b], part)",
    ),
    ("np.zeros_like", lambda x, t: np.zeros_like(t), OPERATOR, "nl.zeros"),
    ("np.fft.fft", lambda x, t: np.fft.fft(t), OPERATOR, "np.fft.fft does not take a tensor"),
    ("np.linalg.norm", lambda x, t: np.linalg.norm(t), OPERATOR, "np.asarray(t) reads its values"),
    ("np.add.reduce", lambda x, t: np.add.reduce(t), OPERATOR, "use nl.add"),
    ("out=t", lambda x, t: np.add(X, X, out=t), OPERATOR, "use nl.add"),
    ("array + t", lambda x, t: X + t, OPERATOR, "use nl.add"),
    ("np.float32(2) * t", lambda x, t: np.float32(2) * t, OPERATOR, "use nl.multiply"),
    ("t + 1", lambda x, t: t + 1, OPERATOR, "use nl.add or nisa.tensor_tensor"),
    ("t @ t", lambda x, t: t @ t, OPERATOR, "nl.matmul"),
    ("abs(t)", lambda x, t: abs(t), OPERATOR, "nl.abs"),
    ("deepcopy", lambda x, t: copy.deepcopy(t), OPERATOR, "use nl.copy"),
    # arguments
    (
        "no operand0",
        lambda x, t: nisa.tensor_scalar(t, t, nl.add),
        ARGUMENT,
        "write tensor_scalar(dst, data,",
    ),
    ("no dst", lambda x, t: nisa.tensor_copy(t), ARGUMENT, "the result goes to dst"),
    ("no axis", lambda x, t: nl.sum(t), ARGUMENT, "write sum(x, axis, ...)"),
    ("op second", lambda x, t: nisa.tensor_tensor(t, nl.add, t, t), "op", "in another order"),
    ("op as text", lambda x, t: nisa.tensor_tensor(t, t, t, "add"), "op", "pass nl.add"),
    ("an array", lambda x, t: nisa.tensor_copy(t, X), ARGUMENT, "pass arrays to the kernel as arguments"),
    ("a list", lambda x, t: nisa.tensor_copy(t, [1, 2]), ARGUMENT, "must be a tile, got list"),
    ("None", lambda x, t: nisa.tensor_copy(t, None), ARGUMENT, "if w is not None"),
    ("a float index", lambda x, t: t[:, 1.0], ARGUMENT, "an index must be an int"),
    ("a result", lambda x, t: nisa.memset(nisa.memset(t, 0.0), 1.0), ARGUMENT, "which is no tile"),
    ("a wrong axis", lambda x, t: nl.sum(t, axis=5), "axis", "an axis is an int from 1 to 1"),
    ("::-1", lambda x, t: t[:, ::-1], "index", "reverse the data"),
    ("beyond the end", lambda x, t: nisa.memset(t[:, 0:9], 0.0), "index", "min(9, 8)"),
    ("128 / 2", lambda x, t: nl.ndarray((128, 8 / 2), nl.float32), "shape", "divide sizes with //"),
    ("float", lambda x, t: nl.ndarray((128, 8), float), "dtype", "write nl.float32"),
    ("float64", lambda x, t: nl.ndarray((128, 8), np.float64), "dtype", "x.astype(np.float32)"),
    ("nl.arange", lambda x, t: nl.arange(8), "removed", "index tiles with slices"),
    ("round", lambda x, t: round(t), "operator", "use nl.copy(t, dtype=nl.int32)"),
    # memories and shapes
    ("256 rows", lambda x, t: nl.ndarray((256, 8), nl.float32), "partition-limit", "nl.tile_size.pmax"),
    ("a row", lambda x, t: nisa.tensor_tensor(t, t, t[0:1], nl.multiply), "shape", "nl.broadcast_to"),
    ("HBM operand", lambda x, t: nisa.nc_matmul(psum(), x, x), "buffer", "load it first"),
    ("SBUF product", lambda x, t: nisa.nc_matmul(t, t, t), "buffer", "buffer=nl.psum"),
    ("PSUM to HBM", lambda x, t: nisa.dma_copy(x[0:8], psum()), "buffer", "copy it to an SBUF tile first"),
    ("x[0, 0] = 5.0", lambda x, t: x.__setitem__((0, 0), 5.0), "buffer", "memset a tile and dma_copy it"),
    ("nl.store(tile, hbm)", lambda x, t: nl.store(t, x), "buffer", "dst must be in HBM"),
]


@pytest.mark.parametrize("body, kind, text", [case[1:] for case in MISTAKES], ids=[c[0] for c in MISTAKES])
def test_a_mistake_is_an_error_at_its_line_with_help(body, kind, text):
    with pytest.raises(nki.NkiError) as caught:
        run(body)
    problem = caught.value
    assert problem.kind == kind and text in str(problem)
    assert problem.help and problem.site.filename == __file__
    assert problem.site.lineno == body.__code__.co_firstlineno


RIGHT = {
    "a list as a shape": (lambda x, t: nisa.memset(nl.ndarray([128, 8], nl.float32), 0.0), X),
    "a dtype of numpy": (lambda x, t: nisa.memset(nl.ndarray((128, 8), np.float16), 0.0), X),
    "t == None": (lambda x, t: nisa.memset(t, 1.0) if t == None else None, X),  # noqa: E711
    "t is None": (lambda x, t: nisa.memset(t, 1.0) if t is None else None, X),
    "if x, an argument": (lambda x, t: None if x else nisa.memset(t, 1.0), X),
    "np.shape": (lambda x, t: nisa.memset(t, float(np.shape(t)[1])), np.full_like(X, 8)),
    "an operator of numpy": (lambda x, t: nisa.tensor_tensor(t, t, t, np.add), X + X),
    "t[0, 0] = 5.0": (
        lambda x, t: t.__setitem__((0, 0), 5.0),
        np.where(np.arange(1024).reshape(128, 8), X, 5),
    ),
    "t[:, -1]": (lambda x, t: nisa.memset(t[:, -1:], 0.0), np.where(np.arange(8) == 7, 0, X)),
}


@pytest.mark.parametrize("body, expected", RIGHT.values(), ids=RIGHT)
def test_what_looks_like_a_mistake_is_right(body, expected):
    np.testing.assert_array_equal(run(body), expected)


def test_print_shows_values_where_float_is_refused(capsys):
    run(lambda x, t: print(t[0:1, 0:2]))
    assert "[[0. 1.]]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, advice",
    [
        ("T", "nl.transpose"),
        ("sum", "nl.sum"),
        ("astype", "dtype="),
        ("cpu", "return the tensor"),
        ("foo", ""),
    ],
)
def test_a_missing_attribute_names_what_to_use(name, advice):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'") as caught:
        run(lambda x, t: getattr(t, name))
    assert advice in str(caught.value)
    run(lambda x, t: hasattr(t, name))  # code may ask


def test_functions_of_torch_name_those_of_nl():
    torch = pytest.importorskip("torch")
    for function, advice in (
        (torch.exp, "use nl.exp"),
        (lambda t: torch.cat([t, t]), "nisa.tensor_copy"),
        (lambda t: torch.nn.functional.softmax(t, dim=-1), "use nl.softmax"),
        (lambda t: torch.ones(8) * t, "nl.multiply"),
    ):
        with pytest.raises(nki.NkiError) as caught:
            run(lambda x, t, function=function: function(t))
        assert caught.value.kind == OPERATOR and advice in caught.value.help
        assert caught.value.site.filename == __file__


# ---- arguments of a call -------------------------------------------------------------------------


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = loaded(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out


@pytest.mark.parametrize(
    "argument, text",
    [
        ([[1.0, 2.0]], "'x' is a Python list, not a tensor"),
        ((1, 2), "np.array(x, dtype=np.float32)"),
        (3, "a Python int"),
        ("x", "a Python str"),
        (None, "if x is not None"),
    ],
)
def test_an_argument_that_is_no_array_is_named(argument, text):
    with pytest.raises(nki.NkiError) as caught:
        doubled(argument)
    assert caught.value.kind == ARGUMENT and text in str(caught.value)
    assert caught.value.site.function == "doubled"


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: doubled(X.astype(np.float64)), "x.astype(np.float32)"),
        (lambda: doubled(X.astype(np.complex64)), "x.real"),
        (lambda: doubled(X[:0]), "holds no element"),
        (lambda: doubled(), "missing a required argument"),
        (lambda: doubled(X, X), "too many positional arguments"),
        (lambda: doubled(y=X), "accepted: x"),
        (lambda: doubled[2, 2](X), "one positive number of cores"),
        (lambda: nki.options(typo=1), "accepted: target, strict"),
        (lambda: nki.options(stict=True), "did you mean strict?"),
        (lambda: nki.jit(doubled, platform="trn2"), "did you mean platform_target?"),
        (lambda: nki.simulate(3), "a kernel is a function"),
        (lambda: nki.profile(doubled)(), "missing a required argument"),
        (lambda: nl.zeros((4, 4), nl.float32), "decorated with @nki.jit"),
    ],
)
def test_an_error_of_a_call_points_at_the_call(call, text):
    with pytest.raises(nki.NkiError) as caught:
        call()
    assert text in str(caught.value)
    assert caught.value.site.lineno == call.__code__.co_firstlineno


# ---- two products in one tile of PSUM ------------------------------------------------------------


def products(accumulate=None, between=None, fresh=False):
    """Two products of a tile, each read; the warnings, as (line, text)."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 8, 8), nl.float32, buffer=nl.shared_hbm)
        tile, sums = loaded(x), psum()
        for i in range(2):
            sums = psum() if fresh else sums
            nisa.nc_matmul(sums, tile, tile, accumulate=accumulate)
            result = nl.ndarray((8, 8), nl.float32)
            nisa.tensor_copy(result, sums)
            nisa.dma_copy(out[i], result)
            if between is not None:
                between(sums)
        return out

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = kernel(X)
    first = kernel.func.__code__.co_firstlineno
    return result, [(w.lineno - first, str(w.message)) for w in caught]


def test_a_product_added_to_one_that_was_read_is_a_warning_with_both_lines():
    result, ((line, text),) = products()
    np.testing.assert_array_equal(result[1], 2 * result[0])  # what the beginner did not want
    assert line == 6 and "nc_matmul adds to a product that was read already" in text
    assert "read by tensor_copy at test_beginners.py:" in text and "accumulate=False" in text


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": False},
        {"fresh": True},
        {"between": lambda sums: nisa.memset(sums, 0.0)},
    ],
)
def test_two_products_that_are_apart_are_no_warning(settings):
    result, warned = products(**settings)
    np.testing.assert_array_equal(result[1], result[0])
    assert warned == []


def test_a_sum_that_is_asked_for_is_no_warning():
    def body(x, t):
        sums = psum()
        nisa.nc_matmul(sums, t, t)
        for _ in range(2):
            nisa.tensor_copy(t[0:8], sums)
            nisa.nc_matmul(sums, t, t, accumulate=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(body)


def test_parts_of_one_product_that_is_read_at_the_end_are_no_warning():
    def body(x, t):
        sums = psum(16)
        for half in (sums[:, 0:8], sums[:, 8:16]):
            for k in range(2):
                nisa.nc_matmul(half, t[k * 64 : k * 64 + 64], t[k * 64 : k * 64 + 64])
            nisa.tensor_copy(t[0:8], half)  # the other half goes on

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(body)


# ---- tracebacks ----------------------------------------------------------------------------------

FAILING = {
    "a call": lambda: doubled(X.repeat(2, 0)),
    "two cores": lambda: doubled[2](X.repeat(2, 0)),
    "run": lambda: doubled.run(X.repeat(2, 0)),
    "trace": lambda: doubled.trace(X.repeat(2, 0)),
    "profile": lambda: nki.profile(doubled)(X.repeat(2, 0)),
    "a wrong call": lambda: run(lambda x, t: nisa.tensor_scalar(t, t, nl.add)),
    "an argument": lambda: doubled([1.0]),
    "an attribute": lambda: run(lambda x, t: t.T),
    "a name": lambda: run(lambda x, t: nl.mul(t, t)),
    "options": lambda: nki.options(typo=1),
    "jit": lambda: nki.jit(doubled, typo=1),
    "an assert": lambda: nki.jit(its_own_assert)(X),
}


def its_own_assert(x):
    assert x.shape == (4, 4), "mine"


def of_nki(problem):
    frames = traceback.extract_tb(problem.__traceback__)
    return [f for f in frames if nki.__path__[0] in f.filename]


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="a bare raise restores the frames: the hooks remove them"
)
@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING)
def test_no_frame_of_nki_is_in_a_traceback(call):
    with pytest.raises(Exception) as caught:
        call()
    assert of_nki(caught.value) == []
    assert caught.value.__cause__ is None


def test_all_frames_are_there_for_developers(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_FULL_TRACEBACK", "1")
    with pytest.raises(nki.NkiError) as caught:
        doubled(X.repeat(2, 0))
    assert len(of_nki(caught.value)) > 3


def test_a_fault_of_nki_keeps_its_frames(monkeypatch):
    namespace = {"__name__": "nki.faulty"}
    exec("def prepare(*args):\n    return 1 / 0\n", namespace)
    monkeypatch.setattr(nki.Kernel, "prepare", namespace["prepare"])
    with pytest.raises(ZeroDivisionError) as caught:
        doubled(X)
    assert of_nki(caught.value)


def test_a_program_that_ends_with_an_error_shows_no_frame_of_nki(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import nki.language as nl\nnl.zeros((4, 4), nl.float32)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stderr.count("File ") == 1 and "NkiError[no-kernel]" in done.stderr


def test_a_notebook_shows_no_frame_of_nki():
    shown = []
    shell = types.SimpleNamespace(showtraceback=lambda exception, tb_offset: shown.append(exception))
    with pytest.raises(nki.NkiError) as caught:
        nl.zeros((4, 4), nl.float32)
    assert of_nki(caught.value)
    _show_in_notebook(shell, type(caught.value), caught.value, caught.value.__traceback__)
    assert shown[0][1] is caught.value and of_nki(caught.value) == []
