"""The chemistry example: its energy is that of the formula, and of PySCF."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "df_mp2.py"
SMALL = ["--demo", "--nbasis", "12", "--nocc", "3", "--naux", "20"]


@pytest.fixture
def example():
    found = importlib.util.spec_from_file_location("df_mp2", EXAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def difference(output):
    return float(re.search(r"difference (\S+)", output).group(1))


@pytest.mark.parametrize("flags", [[], ["--backend", "nki"], ["--fused-energy"]], ids=" ".join)
def test_the_demo_agrees_with_einsum(flags, example, capsys):
    assert example.main([*SMALL, *flags]) == 0
    assert difference(capsys.readouterr().out) <= (1e-7 if "--fused-energy" in flags else 1e-13)


def test_the_occupied_orbitals_are_taken_some_at_a_time(example, monkeypatch):
    problem = example.synthetic(12, 3, 20)
    expected, steps = example.direct_energy(problem), []
    monkeypatch.setattr(example, "ROWS_AT_ONCE", 9)
    found = example.df_mp2_energy(problem, progress=lambda done, total: steps.append((done, total)))
    assert found == pytest.approx(expected, rel=1e-12)
    assert steps == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("flags", [[], ["--fused-energy"]], ids=" ".join)
def test_water_agrees_with_pyscf(flags, example, capsys):
    pytest.importorskip("pyscf", reason="the extra `chemistry` is not installed")
    assert example.main(["--mol", "h2o", "--basis", "sto-3g", *flags]) == 0
    output = capsys.readouterr().out
    assert "PySCF's DF-MP2 of h2o, sto-3g" in output and difference(output) <= 1e-7


def test_the_backend_is_left_as_it_was(example):
    import trnblas

    trnblas.set_backend("pytorch")
    example.main([*SMALL, "--fused-energy"])
    assert trnblas.get_backend() == "pytorch"


def test_without_pyscf_the_error_names_the_package_to_install(example, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "pyscf", None)
    assert example.main(["--mol", "h2o"]) == 1
    assert "pip install pyscf" in capsys.readouterr().out
