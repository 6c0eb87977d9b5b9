"""nki plan: what the planner makes of a kernel, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nki.cli import main

MATMUL = Path(__file__).parents[3] / "examples" / "matmul" / "kernels.py"
SIZES = ("--arg", "lhsT=float32[1024,1024]", "--arg", "rhs=float32[1024,2048]", "--target", "trn2")


def printed(capsys, *command):
    assert main(list(command)) == 0
    return capsys.readouterr().out


def test_a_plan_is_a_table_of_steps(capsys):
    text = printed(capsys, "plan", f"{MATMUL}:blocked_mnk", *SIZES)
    assert text.splitlines() == [
        "blocked_mnk for trn2: 400 instructions",
        "  1 steps; fused: 64 copies, 224 matmuls, 32 sums, 16 stores",
        "  memory: 0 B of values, 0 B of packed factors",
        "     1      256  product 1024 x 2048 x 1024   32 tiles of 8 terms",
        "                 stationary where it is, moving where it is, result in place",
    ]


def test_narrow_factors_are_packed_and_results_cast_one_by_one(capsys):
    sizes = [size.replace("float32", "bfloat16") for size in SIZES]
    text = printed(capsys, "plan", f"{MATMUL}:tiled", *sizes)
    assert "stationary packed from 8, moving packed from 8, result in the arena" in text
    assert "one by one" in text and "tensor_copy 32" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_plan_as_data(capsys):
    facts = json.loads(printed(capsys, "plan", f"{MATMUL}:tiled", *SIZES, "--json"))
    assert facts["planned"] and facts["by_default"] and facts["in_place"] == []
    (core,) = facts["cores"]
    (step,) = core["steps"]
    assert (step["m"], step["n"], step["k"], step["instructions"]) == (1024, 2048, 1024, 256)
    assert core["bytes"] == 0


@pytest.mark.parametrize("lnc", ["1", "2"])
def test_text_lists_instructions_that_stay_single_and_why(capsys, tmp_path, lnc):
    script = tmp_path / "prints.py"
    script.write_text(
        "import nki, nki.isa as nisa, nki.language as nl\n\n\n@nki.jit\ndef shows(x):\n"
        "    tile = nl.ndarray(x.shape, x.dtype)\n    nisa.dma_copy(tile, x)\n"
        "    nl.device_print('x', tile)\n    nisa.dma_copy(x, tile)\n"
    )
    text = printed(
        capsys, "plan", f"{script}:shows", "--arg", "x=float32[4,4]", "--lnc", lnc, "--target", "trn2"
    )
    assert "run one by one" in text and "why: it touches what is printed" in text
