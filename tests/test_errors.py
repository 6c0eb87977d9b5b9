"""Errors that teach: kinds and their built-in bases, the text of common mistakes, what happens after one."""

from __future__ import annotations

import ast
import pickle
import re
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import KINDS, Site, error, error_class, is_ours, nearest, show, user_site, warning_class
from support import target

SOURCES = Path(nki.__file__).parent
X = np.ones((128, 512), np.float32)

# kind -> built-ins it can be caught as
# (spec/language.md 17, spec/tensor.md 9, spec/isa.md 1.2 and 4.1, spec/decisions.md 5)
ASSERTED_SIZE, ASSERTED_TYPE, CHOICE = (
    (AssertionError, ValueError),
    (AssertionError, TypeError),
    (AssertionError, ValueError),
)
BASES = {
    **dict.fromkeys(["partition-limit", "free-limit", "capacity", "shape", "axis", "layout"], ASSERTED_SIZE),
    **dict.fromkeys(["pattern", "rank", "alignment", "address"], ASSERTED_SIZE),
    **dict.fromkeys(["partition-dim", "partition-step", "partition-dynamic"], ASSERTED_SIZE),
    **dict.fromkeys(["indirect-dim", "indirect-twice", "indirect-view", "write-broadcast"], ASSERTED_SIZE),
    **dict.fromkeys(["psum-bank", "partition-stride", "fp32-min", "shuffle-source"], ASSERTED_SIZE),
    **dict.fromkeys(["buffer", "output-buffer", "dtype"], ASSERTED_TYPE),
    **dict.fromkeys(["fp8-range", "argument", "enum", "operator", "tensor-value"], (TypeError,)),
    "framework-mix": (TypeError,),
    "index": (IndexError, AssertionError),
    **dict.fromkeys(["op", "engine", "perf-mode", "reduce-cmd", "memset-type", "psum-both"], CHOICE),
    **dict.fromkeys(["lnc", "depends-on"], CHOICE),
    **dict.fromkeys(["launch-grid", "schedule", "platform", "read-only-input"], (ValueError,)),
    **dict.fromkeys(["scalar-argument", "constant-write", "register-range"], (ValueError,)),
    **dict.fromkeys(["lnc-outputs", "shared-mismatch", "lnc-divergence"], (ValueError,)),
    **dict.fromkeys(["no-kernel", "deadlock", "uninitialized", "placeholder"], (RuntimeError,)),
    "no-backward": (RuntimeError,),
    **dict.fromkeys(["loop-step", "frozen-register", "loop-body", "loop-local-tensor"], (AssertionError,)),
    **dict.fromkeys(["loop-in-no-reorder", "endless-loop"], (AssertionError,)),
    "memory": (MemoryError,),
    "generation": (NotImplementedError, AssertionError),
    **dict.fromkeys(["removed", "block-dimension"], (NotImplementedError,)),
    "no-compiler": (NotImplementedError, AttributeError),
}
HARDWARE_RULES = [
    "partition-limit",
    "shape",
    "buffer",
    "dtype",
    "index",
    "op",
    "engine",
    "generation",
    "psum-bank",
]


# ---- kinds ---------------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("kind", BASES)
def test_a_kind_can_be_caught_as_the_built_in_of_the_contract(kind):
    problem = error(kind, "text")
    assert isinstance(problem, nki.NkiError) and problem.kind == kind
    for base in BASES[kind]:
        assert isinstance(problem, base), base
    assert type(problem).__name__ == f"NkiError[{kind}]"


@pytest.mark.parametrize("kind", HARDWARE_RULES)
def test_broken_hardware_rules_are_validation_errors(kind):
    assert issubclass(error_class(kind), nki.NkiValidationError)
    assert nisa.NkiValidationError is nki.NkiValidationError


def test_a_launch_grid_of_a_wrong_type_is_a_type_error_of_the_same_kind():
    problem = error("launch-grid-type", "text")
    assert (
        problem.kind == "launch-grid"
        and isinstance(problem, TypeError)
        and not isinstance(problem, ValueError)
    )
    assert type(problem).__name__ == "NkiError[launch-grid]"


def test_a_removed_name_is_an_attribute_error():
    assert (
        issubclass(error_class("removed-name"), AttributeError)
        and error_class("removed-name").kind == "removed"
    )


def test_a_diagnostic_becomes_a_value_error_in_strict_mode():
    assert (
        issubclass(error_class("stale-read"), ValueError) and error_class("stale-read").kind == "stale-read"
    )


def raised_kinds():
    """Kinds given to error(), fail() and _fail() anywhere in nki, with where."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "func", None)
            name = getattr(name, "attr", getattr(name, "id", None))
            if name in ("error", "fail", "_fail", "error_class") and isinstance(node, ast.Call):
                args = node.args[1:2] if name == "fail" else node.args[:1]
                for arg in args:
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
                        found[arg.value] = f"{path.name}:{node.lineno}"
    return found


def test_every_kind_that_is_raised_is_in_the_table():
    missing = {kind: where for kind, where in raised_kinds().items() if kind not in KINDS}
    assert missing == {}


def test_kinds_are_single_words_of_lower_case():
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kind) for kind in [*KINDS, *raised_kinds()])


# ---- the parts of an error -----------------------------------------------------------------------


def test_an_error_points_at_the_line_outside_nki():
    problem = error("shape", "message", notes=["a note"], help="do this")
    assert problem.message == "message" and problem.notes == ["a note"] and problem.help == "do this"
    assert problem.site.filename == __file__ and problem.site.function.startswith("test_an_error_points")
    assert str(problem).splitlines() == [
        "message",
        f"  --> {__file__}:{problem.site.lineno}",
        '   |     problem = error("shape", "message", notes=["a note"], help="do this")',
        "  = a note",
        "  help: do this",
    ]
    assert repr(problem) == "NkiError[shape]('message')"


def test_errors_survive_pickling_without_their_line():
    for kind in ("shape", "launch-grid-type", "removed-name", "index"):
        problem = error(kind, "message", notes=["n"], help="h")
        twin = pickle.loads(pickle.dumps(problem))
        assert type(twin) is type(problem) and str(twin) == "message\n  = n\n  help: h"


def test_sites_are_worked_out_on_demand():
    site = user_site()
    assert (
        isinstance(site, Site)
        and str(site) == f"test_errors.py:{site.lineno}"
        and site.text == "site = user_site()"
    )
    assert show("headline", None) == "headline"


def test_modules_of_nki_are_ours_and_libraries_on_top_are_users():
    assert is_ours("nki") and is_ours("nki.isa.vector")
    assert (
        not is_ours("nkilib.core") and not is_ours("trnblas") and not is_ours(None) and not is_ours("nkipy")
    )


def test_warnings_have_kinds_too():
    cls = warning_class("stale-read")
    assert issubclass(cls, nki.NkiWarning) and issubclass(cls, UserWarning) and cls.kind == "stale-read"
    assert warning_class("stale-read") is cls


def test_nearest_names():
    assert (
        nearest("tenor_copy", ["tensor_copy", "memset"]) == "tensor_copy"
        and nearest("xyz", ["memset"]) is None
    )


# ---- ten mistakes of a new user, word for word ----------------------------------------------------


def load(x, shape=None):
    tile = nl.ndarray(shape or x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    return tile


def wrong_dtype(x, right):
    tile = load(x)
    words = tile.view(nl.int32) if right else tile
    nisa.tensor_tensor(words, words, words, nl.bitwise_and)


def wrong_buffer(x, right):
    tile = load(x)
    nisa.tensor_tensor(dst=tile, data1=tile if right else x, data2=tile, op=nl.add)


def too_many_partitions(x, right):
    nl.ndarray((128 if right else 129, 512), nl.float32)


def psum_bank_overflow(x, right):
    weights = nl.zeros((128, 128), nl.bfloat16)
    data = nl.zeros((128, 512), nl.bfloat16)
    psum = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum)
    start = 512 if right else 300
    nisa.nc_matmul(psum[:, start : start + 512], weights, data)


def slice_out_of_range(x, right):
    tile = load(x)
    nisa.memset(tile[:, 0 : 512 if right else 600], 1.0)


def python_branch_on_a_value(x, right):
    tile = load(x)
    if right or tile[0, 0] > 0:
        nisa.memset(tile, 1.0)


def uninitialised_read(x, right):
    acc = nl.ndarray((128, 512), nl.float32, name="acc")
    if right:
        nisa.memset(acc, 0.0)
    nisa.tensor_tensor(acc, acc, load(x), nl.add)


def returned_tile(x, right):
    tile = load(x)
    if right:
        return None
    return tile


def mismatched_shapes(x, right):
    tile = load(x)
    half = nl.ndarray((128, 256), nl.float32)
    nisa.tensor_tensor(half, tile[:, 0 : 256 if right else 512], tile[:, 0:256], nl.add)


def unknown_keyword(x, right):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, **{"src" if right else "source": x})


MISTAKES = {
    wrong_dtype: """
NkiError[dtype]: tensor_tensor: dst has dtype float32, a bitwise operator needs integers
  --> FILE:LINE
   |     nisa.tensor_tensor(words, words, words, nl.bitwise_and)
  = dst: float32[128, 512] in sbuf, allocated at FILE:LINE
  help: reinterpret the bits with t.view(nl.int32)""",
    wrong_buffer: """
NkiError[buffer]: tensor_tensor: data1 is in HBM, tensor_tensor works on tiles in SBUF or PSUM
  --> FILE:LINE
   |     nisa.tensor_tensor(dst=tile, data1=tile if right else x, data2=tile, op=nl.add)
  = data1: float32[128, 512] in private_hbm, argument 'x'
  help: load it first: nisa.dma_copy into an SBUF tile, or nl.load""",
    too_many_partitions: """
NkiError[partition-limit]: ndarray: shape (129, 512) has 129 partitions, sbuf has 128
  --> FILE:LINE
   |     nl.ndarray((128 if right else 129, 512), nl.float32)
  help: tile the first dimension by nl.tile_size.pmax (128)""",
    psum_bank_overflow: """
NkiError[psum-bank]: nc_matmul: dst crosses a PSUM bank boundary (2048 bytes per partition)
  --> FILE:LINE
   |     nisa.nc_matmul(psum[:, start : start + 512], weights, data)
  = dst: float32[128, 512] in psum, allocated at FILE:LINE
  help: one instruction writes one bank; slice dst at multiples of 512 float32 columns""",
    slice_out_of_range: """
NkiError[index]: slice 0:600 is out of range for dimension 1 of size 512
  --> FILE:LINE
   |     nisa.memset(tile[:, 0 : 512 if right else 600], 1.0)
  = float32[128, 512] strides (512, 1) offset 0 in sbuf, allocated at FILE:LINE
  help: slices are not clamped; bound it yourself: min(600, 512)""",
    python_branch_on_a_value: """
NkiError[tensor-value]: a Python comparison on a tensor: values are not known while the kernel is traced
  --> FILE:LINE
   |     if right or tile[0, 0] > 0:
  = float32[1, 1] in sbuf, allocated at FILE:LINE
  help: nl.greater compares on the engine; a register (nisa.register_load) can steer a loop""",
    uninitialised_read: """
NkiError[uninitialised]: 'acc' is read, but part of it was never written
  --> FILE:LINE
   |     nisa.tensor_tensor(acc, acc, load(x), nl.add)
  = float32[128, 512] in sbuf 'acc', allocated at FILE:LINE; what was not written is poison (NaN)
  help: write it first (nisa.memset, nisa.dma_copy), or read only the part that was written""",
    returned_tile: """
NkiError[output-buffer]: returned_tile returns a tensor in sbuf, which ends with the kernel
  --> FILE:LINE
   |     return tile
  = float32[128, 512] in sbuf, allocated at FILE:LINE
  help: copy it to a tensor made with nl.ndarray(..., buffer=nl.shared_hbm) and return that""",
    mismatched_shapes: """
NkiError[shape]: tensor_tensor: dst has 256 elements per partition, data1 has 512
  --> FILE:LINE
   |     nisa.tensor_tensor(half, tile[:, 0 : 256 if right else 512], tile[:, 0:256], nl.add)
  = dst: float32[128, 256] in sbuf, allocated at FILE:LINE
  = data1: float32[128, 512] in sbuf, allocated at FILE:LINE
  help: tiles are not broadcast; use a zero-stride view (t.broadcast) or a [P, 1] operand""",
    unknown_keyword: """
NkiError[argument]: dma_copy() got an unexpected keyword argument 'source'
  --> FILE:LINE
   |     nisa.dma_copy(tile, **{"src" if right else "source": x})
  = accepted: dst, src, priority, oob_mode, dge_mode, engine, name
  help: did you mean src?""",
}


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    with target("trn2"):
        yield


def failure(kernel, *args):
    with pytest.raises(Exception) as caught:
        kernel(*args)
    return caught.value


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_the_text_of_a_mistake(strict, mistake):
    problem = failure(nki.jit(mistake), X, False)
    text = "".join(traceback.format_exception_only(problem)).strip()
    text = re.sub(r"(?:/\S*/)?test_errors\.py:\d+", "FILE:LINE", text)
    assert text == MISTAKES[mistake].strip()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_the_line_of_a_mistake_is_the_users(strict, mistake):
    problem = failure(nki.jit(mistake), X, False)
    first = mistake.__code__.co_firstlineno
    assert problem.site.filename == __file__ and first < problem.site.lineno <= first + 6


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_a_traceback_holds_at_most_one_frame_of_ours(strict, mistake):
    frames = traceback.extract_tb(failure(nki.jit(mistake), X, False).__traceback__)
    ours = [frame for frame in frames if str(SOURCES) in frame.filename]
    assert len(ours) <= 1
    if mistake is not returned_tile:
        assert frames[-1].filename == __file__ and frames[-1].name in (mistake.__name__, "load")


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_after_a_mistake_the_next_call_works(strict, mistake, degree):
    kernel = nki.jit(mistake)[degree]
    for _ in range(2):
        assert isinstance(failure(kernel, X, False), nki.NkiError)
        assert kernel(X, True) is None
    with pytest.raises(RuntimeError, match="only works inside a kernel"):
        nl.ndarray((128, 4), nl.float32)


# ---- errors of the user's own --------------------------------------------------------------------


def test_an_assert_in_the_kernel_is_raised_untouched():
    @nki.jit
    def kernel(x):
        assert x.shape[0] == 4, "four rows"

    problem = failure(kernel, X)
    assert type(problem) is AssertionError and str(problem).startswith("four rows")
    ours = [f for f in traceback.extract_tb(problem.__traceback__) if str(SOURCES) in f.filename]
    assert len(ours) <= 1


def test_the_cause_of_a_users_error_stays():
    @nki.jit
    def kernel(x):
        try:
            x.no_such_attribute  # noqa: B018
        except AttributeError as cause:
            raise ValueError("mine") from cause

    problem = failure(kernel, X)
    assert type(problem) is ValueError and isinstance(problem.__cause__, AttributeError)


def test_an_error_inside_a_helper_points_into_the_helper():
    def helper(tile):
        nisa.memset(tile[:, 0:600], 1.0)

    @nki.jit
    def kernel(x):
        helper(load(x))

    problem = failure(kernel, X)
    assert problem.site.function == "helper"
    assert [f.name for f in traceback.extract_tb(problem.__traceback__)][-2:] == ["kernel", "helper"]


def test_a_kernel_may_catch_an_error_and_go_on():
    @nki.jit
    def kernel(x):
        tile = load(x)
        try:
            nisa.memset(tile[:, 0:600], 1.0)
        except IndexError:
            nisa.memset(tile[:, 0:512], 2.0)
        nisa.dma_copy(x, tile)

    x = X.copy()
    kernel(x)
    assert (x == 2).all()


# ---- diagnostics ---------------------------------------------------------------------------------


def unwritten(x):
    for _ in range(3):
        fresh = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(nl.ndarray((4, 4), nl.float32), fresh)


def test_a_diagnostic_is_a_warning_once_per_line_in_a_call_and_recorded():
    kernel = nki.jit(unwritten)
    for _ in range(2):  # each call says it again
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = kernel.run(X)
        assert [w.category.kind for w in caught] == ["uninitialised"] == [d.kind for d in run.diagnostics]
        assert caught[0].filename == __file__ and caught[0].lineno == unwritten.__code__.co_firstlineno + 3
        text = str(run.diagnostics[0])
        assert text.startswith("NkiWarning[uninitialised]: ") and "\n  help: " in text and "\n  --> " in text


def test_a_warning_filter_can_make_a_diagnostic_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error", nki.NkiWarning)
        with pytest.raises(nki.NkiWarning, match="never written"):
            nki.jit(unwritten)(X)


# ---- outside a kernel ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    [
        lambda: nl.ndarray((4, 4), nl.float32),
        lambda: nl.zeros((4, 4), nl.float32),
        lambda: nl.program_id(0),
        lambda: nisa.memset(nl.NkiTensor((4, 4), nl.float32, None), 0.0),
        lambda: nl.add(nl.NkiTensor((4, 4), nl.float32, None), 1.0),
    ],
)
def test_kernel_functions_outside_a_kernel_raise_no_kernel(action):
    problem = failure(action)
    assert problem.kind == "no-kernel" and isinstance(problem, RuntimeError) and "@nki.jit" in problem.help


def test_what_needs_no_kernel_works_without_one():
    assert nl.float32 == "float32" and nl.sbuf and nl.tile_size.pmax == 128 and nl.is_sbuf(nl.sbuf)
    assert nl.ds(1, 2) == nl.ds(1, 2) and nisa.get_nc_version() == 4


def test_lines_of_equal_codes_are_those_of_their_files():
    text = "def f(x):\n{}    y = x\n    return y\n"
    codes = [compile(text.format(gap), "a.py", "exec").co_consts[0] for gap in ("", "\n", "\n\n")]
    assert [Site(code, len(code.co_code) - 2).lineno for code in codes] == [3, 4, 5]


def test_equal_kernels_of_two_files_are_told_apart():
    text = (
        "def kernel(x):\n"
        "    mine = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name='mine')\n"
        "    nisa.dma_copy(mine, x)\n"
        "    return mine if nl.program_id(0) == 0 else x\n"
    )
    for name in ("one.py", "other.py"):
        names = {"nl": nl, "nisa": nisa}
        exec(compile(text, name, "exec"), names)
        with pytest.raises(nki.NkiError, match=rf"return different tensors\n  --> {name}:4"):
            nki.jit(names["kernel"])[2](np.zeros((2, 2), np.float32))
