"""Triton's interpreter under triton-viz: its sanitizer, and its race detector for the race."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ["ENABLE_RACE_DETECTOR"] = "1"  # off unless asked for

import triton
import triton_viz

from benchmarks.compare import triton_kernels, with_triton
from benchmarks.compare.viz_version import VERSION as VIZ

VERSION = f"{VIZ}, Triton {triton.__version__}"
FILES = with_triton.FILES
KERNELS = {"matmul": "matmul_kernel", "softmax": "softmax_kernel", "attention": "attention_kernel"}


def prepared(name, problem):
    kernel = getattr(triton_kernels, KERNELS[name])
    setattr(triton_kernels, KERNELS[name], triton_viz.trace("sanitizer")(kernel))
    call = with_triton.prepared(name, problem)
    return lambda: (call(), triton_viz.clear())[0]


def _mistake(name):
    def probe():
        client = "race_detector" if name == "race" else "sanitizer"
        kernel = triton_viz.trace(client)(with_triton.MISTAKES[name])
        return with_triton.launch(kernel, scratch=name in with_triton.SCRATCH)

    return probe


def picture():
    kernel = triton_viz.trace("tracer")(with_triton.MISTAKES["race"])
    with_triton.launch(kernel)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.tvz"
        triton_viz.save(str(trace))
        return f"yes: a trace of {trace.stat().st_size / 1000:,.0f} kB for its viewer"


PROBES = {name: _mistake(name) for name in with_triton.MISTAKES} | {"picture": picture}
