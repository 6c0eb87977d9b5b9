"""The passes on real kernels: the examples of the library's docstrings, and products of trnblas."""

from __future__ import annotations

import doctest
import inspect
import warnings

import numpy as np
import pytest

import nki.kernel.kernel
from nki.kernel.attempts import run_call
from nki.kernel.staged import stage_call
from nki.launch.world import current_world
from nkilib import catalogue
from random_programs import assert_unchanged
from support import target

BUILT = [k for k in catalogue.kernels() if k.is_built and not inspect.isclass(k.target)]


@pytest.fixture
def checked(monkeypatch):
    """Every call of a kernel also goes through the passes; how many did."""
    programs = []

    def run_and_check(call):
        if current_world().size > 1:  # a rank's program does not run without the others
            return run_call(call)
        arrays = [tensor.value.copy() for tensor in call.arguments.tensors]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = stage_call(call).program
        found = run_call(call)
        assert len(arrays) == len(program.parameters)
        assert assert_unchanged(program, arrays, len(programs))
        programs.append(program)
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
def test_passes_preserve_the_results_of_library_kernels(kernel, checked):
    said: list[str] = []
    with target("trn2"):
        done = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example_of(kernel), out=said.append)
    assert done.failed == 0, "".join(said)
    if not checked:
        pytest.skip("its example calls no kernel by itself")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_passes_preserve_the_products_of_trnblas(dtype, checked):
    pytest.importorskip("torch")
    from trnblas.nki.gemm import gemm_kernel

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((140, 150)).astype(dtype), rng.standard_normal((150, 200)).astype(dtype)
    with target("trn2"):
        gemm_kernel(a, b)
        gemm_kernel[2](a, b)
    assert [len(program.cores) for program in checked] == [1, 2]
