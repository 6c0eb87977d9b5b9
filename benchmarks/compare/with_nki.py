"""Open NKI: this repository."""

from __future__ import annotations

import inspect

import numpy as np

import nki
from benchmarks.compare import nki_kernels, nki_mistakes
from benchmarks.compare.answers import exchanged, numbers, rounded
from benchmarks.compare.page import MISTAKES
from nki.version import PACKAGE

VERSION = f"Open NKI {PACKAGE}"


def prepared(name, problem):
    """The call to time, and what its arguments are."""
    kernel, out = nki.jit(getattr(nki_kernels, name)), np.empty_like(problem.in_numpy(*problem.inputs))
    return lambda: kernel(*problem.inputs, out)


def _mistake(name, cores=1):
    def probe():
        out = np.zeros((128, 256), np.float32)
        x = np.arange(128 * 256, dtype=np.float32).reshape(128, 256)
        nki.jit(getattr(nki_mistakes, name))[cores](x, out)
        return numbers(out)

    return probe


PROBES = {name: _mistake(name, cores=2 if name == "race" else 1) for name in MISTAKES}


def rounding():
    x, out = rounded.inputs(), rounded.room()
    nki.jit(nki_mistakes.rounding)(x, out)
    return rounded.outcome(out)


def values():
    seen = []

    @nki.jit
    def kernel(x, out):
        tile = nki_mistakes.tile_of(x)
        seen.append(float(np.asarray(tile)[0, 3]))
        nki_mistakes.nisa.dma_copy(dst=out, src=tile)

    x = np.arange(512, dtype=np.float32).reshape(128, 4)
    kernel(x, np.empty_like(x))
    return f"yes: x[0, 3] is {seen[0]}"


def device_time():
    spec = nki.TensorSpec((1024, 1024), "float32")
    profile = nki.profile(nki.jit(nki_kernels.matmul), target="trn2")(spec, spec, spec)
    return f"yes: a model, the matmul takes {profile.total_us:,.0f} us on trn2"


def shapes_alone():
    spec = nki.TensorSpec((1024, 1024), "float32")
    program = nki.jit(nki_kernels.matmul).trace(spec, spec, spec)
    return f"yes: a program of {sum(1 for _ in program.walk()):,} instructions"


def cores():
    x, out = np.arange(512, dtype=np.float32).reshape(128, 4), np.zeros((128, 4), np.float32)
    nki.jit(nki_mistakes.cores)[2](x, np.zeros_like(x), out)
    return f"yes: {exchanged(out, x)}"


def picture():
    x = np.ones((128, 64), np.float32)
    steps = nki.show(nki.jit(nki_kernels.softmax))(x, x.copy())
    return f"yes: a page that steps through it, {len(steps.html()) / 1000:,.0f} kB"


PROBES |= {f.__name__: f for f in (rounding, values, device_time, shapes_alone, cores, picture)}
FILES = (inspect.getsourcefile(nki_mistakes),)
