"""attach: real torchrun processes on this machine, their messages by gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

PROGRAM = Path(__file__).parent / "attached_program.py"


def torchrun(what: str, processes: int) -> str:
    """What the ranks print, in any order."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
    command += ["--nproc-per-node", str(processes), str(PROGRAM), what]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("processes", [2, 4])
def test_torchrun_leaves_the_bits_of_the_specification(processes):
    said = torchrun("worlds", processes)
    assert said.count(" worlds") == processes and "12 worlds" in said


def test_the_rank_that_fails_is_named_everywhere():
    said = torchrun("fails", 3)
    assert sorted(said.splitlines()) == [f"rank {r}: index of rank 2 after True" for r in range(3)]


def test_a_mismatch_is_told_on_every_rank():
    said = torchrun("mismatch", 2)
    assert sorted(said.splitlines()) == [f"rank {r}: collective-mismatch with 2 rows" for r in range(2)]


def test_attach_needs_an_initialised_group():
    import nki
    from nki.ranks import attach

    with pytest.raises(nki.NkiError, match="not initialised"), attach():
        pass
