"""attach: real torchrun processes on this machine, their messages by gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

PROGRAM = Path(__file__).parent / "attached_program.py"


@cache
def torchrun(processes: int, *what: str) -> list[str]:
    """The lines that the ranks print, sorted; one start of torch in each process serves several tests."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
    command += ["--nproc-per-node", str(processes), str(PROGRAM), *what]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(done.stdout.splitlines())


FOUR, TWO = (4, "worlds", "fails"), (2, "worlds", "mismatch", "late")


@pytest.mark.parametrize("run", [TWO, FOUR], ids=["two", "four"])
def test_torchrun_leaves_the_bits_of_the_specification(run):
    said = [line for line in torchrun(*run) if "worlds" in line]
    assert said == [f"rank {r}: 12 worlds" for r in range(run[0])]


def test_the_rank_that_fails_is_named_everywhere():
    said = [line for line in torchrun(*FOUR) if "worlds" not in line]
    assert said == [f"rank {r}: index of rank 3 after True" for r in range(4)]


def test_a_mismatch_is_told_on_every_rank():
    said = [line for line in torchrun(*TWO) if "mismatch" in line]
    assert said == [f"rank {r}: collective-mismatch with 2 rows" for r in range(2)]


def test_a_rank_that_comes_late_hears_why_the_others_have_ended():
    said = [line for line in torchrun(*TWO) if "rank-timeout" in line]
    assert said == [f"rank {r}: rank-timeout of rank 0: rank 1 has not come after 1 s" for r in range(2)]


def test_attach_needs_an_initialised_group():
    import nki
    from nki.ranks import attach

    with pytest.raises(nki.NkiError, match="not initialised"), attach():
        pass
