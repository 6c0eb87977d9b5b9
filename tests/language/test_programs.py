"""program_id and friends, nl.ds, device_print (spec/language.md 11, 12, 15)."""

from __future__ import annotations

import os

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


def inside(body, degree=None):
    """What `body()` gives in a kernel launched plainly or with [degree], per core."""
    seen = []

    @nki.jit
    def kernel(x):
        seen.append(body())

    (kernel if degree is None else kernel[degree])(np.zeros(1, np.float32))
    return seen


def refusal(body, degree=None):
    with pytest.raises(nki.NkiError) as caught:
        inside(body, degree)
    return caught.value


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


# ---- programs ------------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize(
    "degree, ids, count, ndim", [(None, [0], 1, 0), (1, [0], 1, 1), (2, [0, 1], 2, 1), ((2,), [0, 1], 2, 1)]
)
def test_programs_know_their_number_their_count_and_the_grid(degree, ids, count, ndim):
    assert inside(nl.program_id, degree) == ids
    assert inside(lambda: nl.num_programs(0), degree) == [count] * len(ids)
    assert inside(nl.program_ndim, degree) == [ndim] * len(ids)


def test_the_number_is_a_plain_int():
    assert [type(n) for n in inside(lambda: nl.program_id(axis=0), 2)] == [int, int]


@pytest.mark.parametrize("axes", [0, None, (0,), [0], np.int32(0)])
def test_num_programs_counts_over_any_form_of_axes(axes):
    assert inside(lambda: nl.num_programs(axes=axes), 2) == [2, 2]


@pytest.mark.parametrize("call", [nl.program_id, nl.num_programs])
@pytest.mark.parametrize(
    "axis, base", [(1, ValueError), (-1, ValueError), ("0", TypeError), (0.0, TypeError)]
)
def test_only_axis_0_exists(call, axis, base):
    problem = refusal(lambda: call(axis), 2)
    assert problem.kind == "launch-grid" and isinstance(problem, base)


def test_num_programs_checks_every_axis():
    assert refusal(lambda: nl.num_programs((0, 1))).kind == "launch-grid"


@pytest.mark.parametrize("call", [nl.program_id, nl.num_programs, nl.program_ndim])
def test_outside_a_kernel_there_is_no_program(call):
    with pytest.raises(RuntimeError) as caught:
        call()
    assert caught.value.kind == "no-kernel"


# ---- ds ------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 7), st.integers(1, 8), st.booleans())
def test_ds_with_an_int_is_a_slice(start, size, as_register):
    x = np.arange(64, dtype=np.int32).reshape(4, 16)

    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, size), nl.int32, buffer=nl.shared_hbm)
        begin = nisa.register_alloc(start) if as_register else start
        nisa.dma_copy(out, x[:, nl.ds(begin, size)])
        return out

    assert np.array_equal(kernel(x), x[:, start : start + size])


def test_ds_takes_keywords_and_compares_by_value():
    assert nl.ds(start=2, size=3) == nl.ds(2, 3) != nl.ds(2, 4)
    assert len({nl.ds(2, 3), nl.ds(2, 3), nl.ds(3, 3)}) == 2


@pytest.mark.parametrize("start, size, kind", [(0, 1.5, "argument"), ("a", 1, "argument")])
def test_ds_refuses(start, size, kind):
    with pytest.raises(nki.NkiError) as caught:
        nl.ds(start, size)
    assert caught.value.kind == kind


# ---- device_print --------------------------------------------------------------------------------


def printing(array, prefix="value:", buffer=nl.sbuf, times=1, degree=None):
    @nki.jit
    def kernel(x):
        tensor = x
        if buffer is not None:
            tensor = nl.ndarray(x.shape, x.dtype)
            nisa.dma_copy(tensor, x)
        if buffer is nl.psum:
            psum = nl.ndarray(x.shape, x.dtype, buffer=nl.psum)
            nisa.tensor_copy(psum, tensor)
            tensor = psum
        for _ in range(times):
            nl.device_print(prefix, tensor)

    (kernel if degree is None else kernel[degree])(array)


@pytest.mark.tiny
def test_device_print_shows_prefix_dtype_shape_memory_and_values(capsys):
    printing(np.array([[1.5, -2.0]], np.float32))
    assert capsys.readouterr().out == "value: float32[1, 2] sbuf\n[[ 1.5 -2. ]]\n"


@pytest.mark.parametrize("dtype", ["int8", "uint32", "bool", "bfloat16", "float8_e5m2", "float16"])
def test_device_print_shows_every_dtype(dtype, capsys):
    printing(np.array([[0, 1]]).astype(np.dtype(dtype)))
    shown = capsys.readouterr().out
    assert shown.startswith(f"value: {dtype}[1, 2] sbuf\n") and ("1" in shown or "True" in shown)


def test_device_print_shows_hbm_tensors_of_any_rank(capsys):
    printing(np.zeros((2, 1, 3, 1, 1, 2), np.int32), buffer=None)
    assert "int32[2, 1, 3, 1, 1, 2] private_hbm" in capsys.readouterr().out


def test_device_print_shortens_large_tensors(capsys):
    printing(np.zeros((128, 64), np.float32))
    assert "..." in capsys.readouterr().out


def test_device_print_of_psum_works_with_a_warning(capsys):
    with pytest.warns(nki.NkiWarning, match="in PSUM"):
        printing(np.ones((1, 1), np.float32), buffer=nl.psum)
    assert "[[1.]]" in capsys.readouterr().out


def test_device_print_names_the_core_when_there_are_two(capsys):
    printing(np.ones((1, 1), np.float32), degree=2)
    shown = capsys.readouterr().out
    assert shown.index("[core 0] value:") < shown.index("[core 1] value:")


def test_device_print_shows_the_value_of_that_moment(capsys):
    def body():
        tile = nl.ndarray((1, 1), nl.int32)
        for value in (1, 2):
            nisa.memset(tile, value)
            nl.device_print("t", tile)

    inside(body)
    assert capsys.readouterr().out.count("[[1]]") == 1


def test_device_print_does_not_read_back_values():
    def body():
        nl.device_print("t", nl.zeros((1, 1), nl.int32))
        return core_module.current().launch.python.read_values

    assert inside(body) == [False]


@pytest.mark.parametrize("arguments, text", [((3, None), "must be a str"), (("p", 3), "must be a tile")])
def test_device_print_refuses(arguments, text):
    problem = refusal(lambda: nl.device_print(*arguments))
    assert problem.kind == "argument" and text in str(problem)


def test_device_print_writes_files_where_the_runtime_would(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NEURON_RT_DEBUG_OUTPUT_DIR", str(tmp_path))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    printing(x, prefix="act", times=2, degree=2)
    for core in (0, 1):
        for iteration in (0, 1):
            saved = np.load(tmp_path / "act" / f"core_{core}" / str(iteration) / "tensor.npy")
            assert np.array_equal(saved, x)
    assert len(os.listdir(tmp_path / "act" / "core_0")) == 2


def test_files_of_narrow_floats_hold_float32(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NEURON_RT_DEBUG_OUTPUT_DIR", str(tmp_path))
    x = np.array([[1.25, 3]]).astype(ml_dtypes.bfloat16)
    printing(x, prefix="a/b")
    saved = np.load(tmp_path / "a_b" / "core_0" / "0" / "tensor.npy")
    assert saved.dtype == np.float32 and saved.tolist() == [[1.25, 3.0]]


def test_a_print_shows_the_corners_of_many_rows_unless_numpy_is_told_otherwise(capsys):
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        print(tile)
        nl.device_print("tile", tile)

    x = np.arange(256, dtype=np.float32).reshape(128, 2)
    kernel(x)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (1 + 7) and lines[4] == lines[12] == " ..."
    assert lines[1] == "[[  0.   1.]" and lines[7] == " [254. 255.]]"
    with np.printoptions(threshold=10_000):
        kernel(x)
    assert len(capsys.readouterr().out.splitlines()) == 2 * (1 + 128)
