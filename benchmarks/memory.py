"""Return the peak memory of a process. `ru_maxrss` would start at the peak of its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def peak_bytes() -> int:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return 1024 * int(line.split()[1])


def alone(code: str, **environment: str) -> str:
    """Return what a program prints in a process of its own, so that nothing else counts."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | environment,
    ).stdout
