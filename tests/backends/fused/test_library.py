"""Kernels of the library on the fused backend: the examples of their docstrings, and products of trnblas."""

from __future__ import annotations

import doctest
import inspect
import warnings

import numpy as np
import pytest

import nki.kernel.kernel
from backend_agreement import assert_agrees
from nki.kernel.attempts import run_call
from nki.kernel.staged import stage_call
from nkilib import catalogue
from support import target

BUILT = [k for k in catalogue.kernels() if k.is_built and not inspect.isclass(k.target)]


@pytest.fixture
def checked(monkeypatch):
    """Compare the backends at every call of a kernel; return for each whether it had a plan."""
    programs = []

    def run_and_check(call):
        arrays = [tensor.value.copy() for tensor in call.arguments.tensors]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = stage_call(call).program
        found = run_call(call)
        programs.append(bool(assert_agrees(program, arrays)))
        return found

    monkeypatch.setattr(nki.kernel.kernel, "run_call", run_and_check)
    return programs


def example_of(kernel):
    """The kernel's own, or the one that serves its family."""
    home = inspect.getmodule(kernel.target)
    first = next(other for other in BUILT if other.module == kernel.module)
    texts = [inspect.getdoc(found) or "" for found in (kernel.target, home, first.target)]
    text = next(text for text in texts if ">>>" in text)
    return doctest.DocTestParser().get_doctest(text, {"np": np, **vars(home)}, kernel.name, None, 0)


@pytest.mark.parametrize("kernel", BUILT, ids=lambda k: k.name)
def test_a_kernel_of_the_library_agrees_with_the_reference(kernel, checked):
    printed: list[str] = []
    with target("trn2"):
        done = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example_of(kernel), out=printed.append)
    assert done.failed == 0, "".join(printed)
    if not checked:
        pytest.skip("its example calls no kernel by itself")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_product_of_trnblas_agrees_with_the_reference(dtype, checked):
    pytest.importorskip("torch")
    from trnblas.nki.gemm import gemm_kernel

    chance = np.random.default_rng(0)
    a, b = (chance.standard_normal(shape).astype(dtype) for shape in ((140, 150), (150, 200)))
    with target("trn2"):
        gemm_kernel(a, b)
        gemm_kernel[2](a, b)
    assert checked == [True, True]
