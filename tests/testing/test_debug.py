"""first_difference and `nki debug`: planted mistakes are found at their tile and line."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.cli import main
from nki.testing import first_difference

X = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)


@nki.jit
def scaled(x, wrong_from=10**6, skip=-1, root=False):
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        count = min(128, rows - start)
        tile = nl.ndarray((count, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + count, :])
        if root:
            nisa.activation(dst=tile, op=nl.sqrt, data=tile)
        factor = 3.0 if start >= wrong_from else 2.0
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
        if start != skip:
            nisa.dma_copy(dst=out[start : start + count, :], src=tile)
    return out


def double(x, *rest):
    return 2 * x


def test_a_right_kernel_has_no_difference():
    assert first_difference(scaled, double, [X]) is None


def test_the_first_wrong_tile_and_the_lines_that_computed_it():
    found = first_difference(scaled, double, [X], wrong_from=128)
    assert found is not None and found.tile == ((128, 256), (0, 16)) and found.wrong == 172 * 16
    assert found.got == pytest.approx(1.5 * found.expected) and found.wrong_in_tile == 128 * 16
    worst = np.unravel_index(np.abs(X[128:256]).argmax(), (128, 16))
    assert found.index == (128 + worst[0], worst[1])
    assert found.writer.number == 6 and found.steps == 9
    sources = [step.source.partition("(")[0] for step in found.lines]
    assert sources == ["nisa.tensor_scalar", "nisa.dma_copy"]
    assert (found.lines[1].low, found.lines[1].high) == (X[128:256].min(), X[128:256].max())
    assert "test_debug.py:" in str(found) and "instead of" in str(found)


@pytest.mark.filterwarnings("ignore")
def test_a_tile_that_nothing_writes():
    found = first_difference(scaled, double, [X], skip=256)
    assert found.tile == ((256, 300), (0, 16)) and found.writer is None
    assert "nothing has written this tile" in str(found)


@pytest.mark.filterwarnings("ignore")
def test_the_line_of_the_first_nan_is_named():
    found = first_difference(scaled, double, [X], root=True)
    assert np.isnan(found.got) and "nl.sqrt" in next(s for s in found.lines[::-1] if s.nans).source
    assert "writes the first NaN" in str(found)


def test_two_cores():
    @nki.jit
    def halves(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        tile = nl.ndarray((64, 16), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[64 * core : 64 * core + 64, :])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0 + core)
        nisa.dma_copy(dst=out[64 * core : 64 * core + 64, :], src=tile)
        return out

    found = first_difference(halves[2], double, [X[:128]])
    assert found.tile == ((64, 128), (0, 16)) and found.wrong == 64 * 16


def test_shapes_and_counts_that_differ_are_errors():
    with pytest.raises(nki.NkiError, match="the reference has 2"):
        first_difference(scaled, lambda x: (x, x), [X])
    with pytest.raises(nki.NkiError, match="result 0 has shape"):
        first_difference(scaled, lambda x: x[:3], [X])


SCRIPT = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def double(x, factor=2.0):
    # nki: check x=float32[4,8]
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nisa.dma_copy(out, tile)
    return out

def reference(x, factor=2.0):
    return x + x
"""


def test_the_command(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    spec, reference = f"{script}:double", f"{script}:reference"
    assert main(["debug", spec, "--reference", reference]) == 0
    assert "double agrees with reference" in capsys.readouterr().out
    wrong = [spec, "--reference", reference, "--arg", "x=f32[4,8]", "--arg", "factor=3.0"]
    assert main(["debug", *wrong, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["tile"] == [[0, 4], [0, 8]]
    assert main(["debug", spec, "--reference", str(script)]) == 2
    assert "write file.py:function" in capsys.readouterr().err
    assert main(["debug", spec, "--reference", f"{script}:nothing"]) == 2
    assert "there is no function nothing" in capsys.readouterr().err
