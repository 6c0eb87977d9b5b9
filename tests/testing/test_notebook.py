"""%load_ext nki, on a stub of IPython's shell."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.report.viewer import Viewer


@nki.jit
def copied(x):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


class Shell:
    def __init__(self):
        self.user_ns = {"np": np, "copied": copied}
        self.magics = {}

    def register_magic_function(self, function, kind, name):
        assert kind == "line_cell"
        self.magics[name] = function

    def transform_cell(self, code):
        return code


@pytest.fixture
def shell():
    made = Shell()
    nki.load_ipython_extension(made)
    return made


def test_a_line_is_profiled(shell):
    assert isinstance(shell.magics["nki_profile"]("copied(np.ones((2, 2), np.float32))"), nki.Profile)


def test_a_cell_runs_and_its_last_call_is_profiled(shell):
    cell = "x = np.ones((2, 2), np.float32)\ncopied(x)\n"
    found = shell.magics["nki_profile"]("trn1", cell)
    assert found.timeline.machine.name == "trn1"
    assert shell.user_ns["x"].shape == (2, 2)


def test_a_cell_is_shown(shell):
    assert isinstance(shell.magics["nki_show"]("", "copied(np.ones((2, 2), np.float32))"), Viewer)


@pytest.mark.parametrize("code, said", [("x = 1", "no call"), ("len([1])", "no kernel"), ("", "no call")])
def test_what_is_no_call_of_a_kernel_is_refused(shell, code, said):
    with pytest.raises(nki.NkiError, match=said):
        shell.magics["nki_profile"]("", code)


def test_programs_runs_and_tensors_show_themselves():
    x = np.ones((2, 2), np.float32)
    seen = []

    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, x)
        seen.append(tile._repr_html_())
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    run = kernel.run(x)
    assert "NkiTensor" in seen[-1] and "[1. 1.]" in seen[-1]
    assert "256, 0 bytes over all partitions" in run._repr_html_()  # 8 bytes of a quadrant of 32
    assert "2 transfers" in run._repr_html_() and "trn3" in run._repr_html_()
    assert "dma_copy" in copied.trace(x)._repr_html_()
