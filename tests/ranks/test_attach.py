"""attach: real torchrun processes on this machine, their messages by gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

PROGRAM = Path(__file__).parent / "attached_program.py"


def torchrun(processes: int, *what: str) -> list[str]:
    """Return the lines that the ranks print, sorted."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
    command += ["--nproc-per-node", str(processes), str(PROGRAM), *what]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(done.stdout.splitlines())


@pytest.mark.slow
def test_four_ranks_leave_the_bits_of_the_specification_and_name_the_one_that_fails():
    said = torchrun(4, "worlds", "fails")
    assert [line for line in said if "worlds" in line] == [f"rank {r}: 12 worlds" for r in range(4)]
    failed = [line for line in said if "worlds" not in line]
    assert failed == [f"rank {r}: index of rank 3 after True" for r in range(4)]


def test_two_ranks_agree_train_and_both_hear_of_a_mismatch_and_of_a_rank_that_comes_late():
    said = torchrun(2, "worlds", "ring", "mismatch", "late")
    assert [line for line in said if "ring" in line] == [f"rank {r}: ring True" for r in range(2)]
    assert [line for line in said if "worlds" in line] == [f"rank {r}: 12 worlds" for r in range(2)]
    mismatch = [line for line in said if "mismatch" in line]
    assert mismatch == [f"rank {r}: collective-mismatch with 2 rows" for r in range(2)]
    late = [line for line in said if "rank-timeout" in line]
    assert late == [f"rank {r}: rank-timeout of rank 0: rank 1 has not come after 1 s" for r in range(2)]


def test_attach_needs_an_initialised_group():
    import nki
    from nki.ranks import attach

    with pytest.raises(nki.NkiError, match="not initialised"), attach():
        pass
