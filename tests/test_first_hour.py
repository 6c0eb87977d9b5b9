"""What a newcomer meets first."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl


def python(code, *words):
    return subprocess.run([sys.executable, *words, "-c", code], capture_output=True, text=True)


def test_trnblas_without_torch_names_the_extra():
    done = python("import sys; sys.modules['torch'] = None; import trnblas")
    assert "pip install 'open-nki[torch]'" in done.stderr


@pytest.mark.parametrize(
    "text, dtype",
    [("bf16", nl.bfloat16), ("f32", nl.float32), ("fp16", nl.float16), ("int8", nl.int8), ("i32", nl.int32)],
)
def test_dtypes_may_be_written_as_people_write_them(text, dtype):
    assert nki.TensorSpec.parse(f"{text}[3,4]") == nki.TensorSpec((3, 4), dtype)


PRIVATE = """
import numpy as np, nki, nki.isa as nisa, nki.language as nl
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    nisa.dma_copy(out, x)
    return out
kernel = nki.jit(kernel)
for _ in range(3):
    kernel(np.ones((2, 2), np.float32))
"""


def test_a_warning_is_printed_once_and_shows_its_line_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PRIVATE)
    said = subprocess.run([sys.executable, script], capture_output=True, text=True).stderr
    assert said.count("output-buffer") == 1
    assert said.count("return out") == 1


def test_filters_of_python_decide_whether_it_is_said_again():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
        nisa.dma_copy(out, x)
        return out

    for _ in range(2):
        with pytest.warns(nki.NkiWarning, match="private HBM"):
            kernel(np.ones((2, 2), np.float32))
