"""The workflow of docs/testing.md, run here with the same steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
KERNEL = """
    import nki
    import nki.isa as nisa
    import nki.language as nl

    @nki.jit
    def double(x):
        # nki: check x=float32[128,512]
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(out, tile)
        return out
"""
TEST = """
    import sys
    sys.path.insert(0, "kernels")
    import numpy as np
    import pytest
    from double import double

    @pytest.mark.nki_budget(us=100)
    def test_double(nki_target):
        assert (double(np.ones((128, 512), np.float32)) == 2).all()
"""
SAVE = (
    'nki profile kernels/double.py:double --arg "x=float32[128,512]" --target trn2 '
    "--save profiles/double.json"
)


def steps():
    """The `run:` steps of the workflow, without the installation."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = re.findall(r"- run: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", text)
    commands = [textwrap.dedent(block) or line for block, line in found]
    return [command for command in commands if not command.startswith("pip ")]


@pytest.fixture
def project(tmp_path):
    for name, text in {"kernels/double.py": KERNEL, "tests/test_double.py": TEST}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    (tmp_path / "profiles").mkdir()
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, module in {"nki": "nki", "pytest": "pytest -p nki_pytest"}.items():
        (bin / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (bin / name).chmod(0o755)

    def run(command):
        environment = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-e", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    run.folder = tmp_path
    return run


def test_every_step_passes_on_a_good_project(project):
    assert project("nki check kernels --baseline nki-baseline.json --update-baseline").returncode == 0
    assert project(SAVE).returncode == 0
    assert len(steps()) == 4
    for command in steps():
        done = project(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert json.loads((project.folder / "nki.sarif").read_text())["version"] == "2.1.0"


def test_a_slower_kernel_fails_the_last_step(project):
    assert project(SAVE).returncode == 0
    file = project.folder / "kernels" / "double.py"
    line = "        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)\n"
    text = file.read_text()
    assert line[4:] in text
    file.write_text(text.replace(line[4:], line[4:] * 30))
    done = project(steps()[-1])
    assert done.returncode == 1 and "slower, 3% are allowed" in done.stderr
