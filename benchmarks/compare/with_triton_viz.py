"""triton-viz's NKI mode, its own interpreter. Open NKI's `nki` gives the names that it replaces."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import triton
import triton_viz

import nki
from benchmarks.compare import nki_kernels, nki_mistakes
from benchmarks.compare.answers import exchanged, numbers, rounded
from benchmarks.compare.page import MISTAKES
from benchmarks.compare.viz_version import VERSION as VIZ

VERSION = f"{VIZ}, Triton {triton.__version__}"


def interpreted(kernel, client="tracer"):
    return triton_viz.trace(client, frontend="nki_beta2")(kernel)


def called(kernel, grid, *arguments):
    """`pre_trace` would ask AWS's compiler first, which is not here."""
    interpreted(kernel)[(grid,)](*arguments, pre_trace=False)
    triton_viz.clear()
    return arguments[-1]


def prepared(name, problem):
    out = np.zeros_like(problem.in_numpy(*problem.inputs))
    return lambda: called(getattr(nki_kernels, name), 1, *problem.inputs, out)


def _mistake(name, cores=1):
    def probe():
        x = np.arange(128 * 256, dtype=np.float32).reshape(128, 256)
        return numbers(called(getattr(nki_mistakes, name), cores, x, np.zeros_like(x)))

    return probe


PROBES = {name: _mistake(name, cores=2 if name == "race" else 1) for name in MISTAKES}


def rounding():
    return rounded.outcome(called(nki_mistakes.rounding, 1, rounded.inputs(), rounded.room()))


def values():
    seen = []

    def kernel(x, out):
        tile = nki_mistakes.tile_of(x)
        seen.append(float(tile.data[0, 3]))
        nki_mistakes.nisa.dma_copy(dst=out, src=tile)

    x = np.arange(512, dtype=np.float32).reshape(128, 4)
    called(kernel, 1, x, np.empty_like(x))
    return f"yes: x[0, 3] is {seen[0]}"


def device_time():
    x = np.ones((128, 64), np.float32)
    kernel = interpreted(nki_kernels.softmax, "profiler")
    kernel[(1,)](x, x.copy(), pre_trace=False)
    known = [
        name for name in vars(kernel.client_manager.clients["profiler"]) if "time" in name or "cycle" in name
    ]
    return f"yes: {known}" if known else "no: its profiler counts bytes and loops"


def shapes_alone():
    spec = nki.TensorSpec((128, 64), "float32")
    called(nki_kernels.softmax, 1, spec, spec)
    return "yes"


def cores():
    x = np.arange(512, dtype=np.float32).reshape(128, 4)
    try:
        out = called(nki_mistakes.cores, 2, x, np.zeros_like(x), np.zeros_like(x))
    except nki.NkiError:  # Open NKI's core_barrier was called: nothing took its place
        return "no: it has no core_barrier"
    return f"yes: {exchanged(out, x)}"


def picture():
    x = np.ones((128, 64), np.float32)
    interpreted(nki_kernels.softmax)[(1,)](x, x.copy(), pre_trace=False)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.tvz"
        triton_viz.save(str(trace))
        return f"yes: a trace of {trace.stat().st_size / 1000:,.0f} kB for its viewer"


PROBES |= {f.__name__: f for f in (rounding, values, device_time, shapes_alone, cores, picture)}
FILES = (nki_mistakes.__file__,)
