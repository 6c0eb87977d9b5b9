"""The examples for the frameworks run, and what they train gets better."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "example, package", [("custom_op_torch", "torch"), ("custom_op_jax", "jax"), ("mlp_torch", "torch")]
)
def test_the_example_runs_and_trains(example, package, capsys):
    pytest.importorskip(package, reason=f"{package} is not installed")
    runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", capsys.readouterr().out).groups())
    assert last < first / 5
