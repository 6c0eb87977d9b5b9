"""What a type checker finds in kernels: `mypy --strict` on code that uses the public API."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("mypy")

SOURCES = Path(__file__).parents[1] / "src"

BEGIN = """\
import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nki.typing import Tensor


@nki.jit
def double(x: Tensor, factor: float = 2.0) -> Tensor:
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    {line}
    return tile


"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def strict(path: Path, cache: Path) -> list[str]:
    """Return the errors of `mypy --strict` on one file."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        f"--cache-dir={cache}",
        path.name,
    ]
    environment = os.environ | {"MYPYPATH": str(SOURCES)}
    done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "inside, outside, problem",
    [
        ("tile = x[0:2].reshape((1, 2))", "double(np.ones((2, 2)))", ""),
        ("x.shap", "", 'has no attribute "shap"'),
        ("", "double(np.ones((2, 2)), facto=3.0)", 'Unexpected keyword argument "facto"'),
    ],
)
def test_a_tensor_parameter_is_a_tensor_inside_and_any_array_for_the_caller(
    tmp_path, cache, inside, outside, problem
):
    path = tmp_path / "kernel_under_test.py"
    path.write_text(textwrap.dedent(BEGIN).format(line=inside) + outside + "\n")
    errors = "\n".join(strict(path, cache))
    assert problem in errors if problem else not errors
