"""Profiling a kernel of 100,000 instructions: seconds and memory, and how both grow."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

MATMUL = Path(__file__).parents[1] / "examples" / "matmul"

# A process for each size, so that nothing else counts; CPU seconds, for others may be busy.
PROFILE = """
import sys, time
import nki
sys.path.insert(0, {path!r})
from kernels import tiled
start = time.process_time()
profile = nki.profile(tiled)(nki.TensorSpec(({k}, {m}), "float32"), nki.TensorSpec(({k}, {n}), "float32"))
seconds = time.process_time() - start
instructions = profile.statistics.instructions
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(instructions, seconds, int(peak.split()[1]) / 2**20)
"""

ADVICE = """
import sys, time
import nki
from nki.timing.advisor import advise
sys.path.insert(0, {path!r})
from kernels import tiled
profile = nki.profile(tiled)
start = time.process_time()
timeline = profile(nki.TensorSpec((2048, 1024), "float32"), nki.TensorSpec((2048, 4096), "float32")).timeline
scheduled = time.process_time()
advise(timeline)
print((time.process_time() - scheduled) / (scheduled - start))
"""

IMPORT = """
import time
start = time.process_time()
import nki
print(time.process_time() - start)
"""


def measured(code, **environment):
    """The numbers a fresh Python prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return [float(word) for word in done.stdout.split()]


def import_seconds():
    """The shortest of a few imports, once the bytecode is there."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        return min(measured(IMPORT, **compiled)[0] for _ in range(6))


def profiled(m, k, n):
    return measured(PROFILE.format(path=str(MATMUL), m=m, k=k, n=n))


def run():
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    few, short, small = profiled(1024, 8192, 8192)
    many, long, large = profiled(4096, 8192, 8192)
    growth = (long / short) / (many / few)
    return [
        (f"profile of {many:,.0f} instructions", f"{long:.1f} s", "10 s"),
        ("its memory", f"{large:.2f} GiB", "1 GiB"),
        (f"seconds per instruction / those of {few:,.0f} instructions", f"{growth:.2f}x", "linear: 1x"),
        (f"memory of {few:,.0f} instructions", f"{small:.2f} GiB", "linear"),
        ("advice / trace and schedule", f"{measured(ADVICE.format(path=str(MATMUL)))[0]:.2f}x", "1x"),
        ("import nki", f"{import_seconds():.2f} s", "0.3 s"),
    ]
