"""jax.shard_map: devices as ranks, in a process of its own since JAX counts its devices once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("jax")

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(__file__).parent / "shard_map_program.py"
CHECKS = re.findall(r"^    (\w+),$", PROGRAM.read_text().partition("CHECKS = [")[2], re.MULTILINE)


def run(devices: int, *command: str) -> str:
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=os.environ | flags,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@cache
def told() -> dict[str, str]:
    """What each check of the program says, on four devices."""
    lines = run(4, str(PROGRAM)).splitlines()
    assert lines[0] == "4 devices"
    return dict(line.split(": ", 1) for line in lines[1:] if ": " in line)


@pytest.mark.parametrize("check", CHECKS)
def test_under_shard_map(check):
    assert told()[check] == "True"


def test_the_page_of_jax_on_three_devices():
    """tests/test_docs.py runs it on as many as there are."""
    script = (
        "import sys; sys.path.insert(0, 'tests'); from test_docs import snippets; from pathlib import Path; "
    )
    script += "exec(compile(snippets(Path('docs/jax.md').read_text()), 'jax.md', 'exec'), {}); "
    script += "import jax; print(len(jax.devices()))"
    assert run(3, "-c", script).splitlines()[-1] == "3"
