"""A kernel of 100,000 instructions: the last ones cost what the first ones cost, in time and in memory."""

import os
import time
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl

INSTRUCTIONS, WINDOW = 100_000, 10_000
PER_STEP = 5
TILE_BYTES = 16 * 32 * 4


def stream(x, total, mark):
    """`total` instructions on tiles of its own per step; `mark()` is called between windows."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    accumulator = nl.ndarray((16, 32), nl.float32)
    nisa.memset(accumulator, 0.0)
    for step in range(total // PER_STEP):
        if step % (WINDOW // PER_STEP) == 0:
            mark()
        row = step % (x.shape[0] // 16) * 16
        tile = nl.ndarray((16, 32), x.dtype)
        scaled = nl.ndarray((16, 32), nl.float32)
        nisa.dma_copy(tile, x[row : row + 16, :])
        nisa.tensor_scalar(scaled, tile, nl.multiply, 0.5, op1=nl.add, operand1=1.0)
        nisa.activation(scaled, nl.tanh, scaled)
        nisa.tensor_tensor(accumulator, accumulator, scaled, nl.add)
        nisa.dma_copy(out[row : row + 16, :], accumulator)
    mark()
    return out


def marks(read, cached=False, total=INSTRUCTIONS):
    """What `read()` says at the beginning of each window of a run, and at its end."""
    values = []
    x = np.ones((512, 32), np.float32)
    with mock.patch.dict(os.environ, OPEN_NKI_CACHE=str(int(cached))):
        nki.jit(stream)(x, total, lambda: values.append(read()))
    return np.array(values)


def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])


def held_bytes(cached=False):
    """What Python and numpy hold at each mark of a run."""
    tracemalloc.start()
    try:
        return marks(lambda: tracemalloc.get_traced_memory()[0], cached)
    finally:
        tracemalloc.stop()


def windows(cached=False, runs=5):
    """CPU seconds of each window, a row for each run."""
    return np.array([np.diff(marks(time.process_time, cached)) for _ in range(runs)])


def run():
    marks(time.process_time, total=2 * WINDOW)  # the first window must not pay for cold caches
    plain, recorded = windows(), windows(cached=True, runs=2)
    pages, held, peak = marks(resident_pages), held_bytes(), held_bytes(cached=True).max()
    first, last = f"the first {WINDOW:,} instructions", f"the last {WINDOW:,} of {INSTRUCTIONS:,}"
    growth = np.median(plain[:, -1] / plain[:, 0])
    recording = recorded[:, 0].min() / plain[:, 0].min()
    kept = (held[-1] - held[1]) / (INSTRUCTIONS - WINDOW)
    yield f"CPU time of {last} / of {first}", f"{growth:.2f}x", "1.20x"
    yield f"CPU time of an instruction on {TILE_BYTES} bytes", f"{plain.min() / WINDOW * 1e6:.1f} us", ""
    yield f"resident memory after {last} / after {first}", f"{pages[-1] / pages[1]:.2f}x", "1.05x"
    yield "memory kept for each further instruction", f"{kept:.1f} bytes", "1 byte"
    yield f"{first} recorded for the program cache / not", f"{recording:.2f}x", ""
    yield "memory of the recording at its longest", f"{peak / 2**20:.0f} MiB", ""


if __name__ == "__main__":
    for measure, value, limit in run():
        print(f"{measure}: {value}" + (f" (at most {limit})" if limit else ""))
