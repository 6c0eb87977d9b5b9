"""A kernel of 100,000 instructions: the last ones cost what the first ones cost, in time and in memory."""

import time
import tracemalloc
from pathlib import Path

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


def marks(read, total=INSTRUCTIONS):
    """What `read()` says at the beginning of each window of a run, and at its end."""
    values = []
    x = np.ones((512, 32), np.float32)
    nki.jit(stream)(x, total, lambda: values.append(read()))
    return np.array(values)


def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])


def held_bytes():
    """What Python and numpy hold at each mark of a run."""
    tracemalloc.start()
    try:
        return marks(lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def run():
    marks(time.process_time, 2 * WINDOW)  # the first window must not pay for cold caches
    seconds = np.min([np.diff(marks(time.process_time)) for _ in range(3)], axis=0)
    pages, held = marks(resident_pages), held_bytes()
    first, last = f"the first {WINDOW:,} instructions", f"the last {WINDOW:,} of {INSTRUCTIONS:,}"
    kept = (held[-1] - held[1]) / (INSTRUCTIONS - WINDOW)
    yield f"CPU time of {last} / of {first}", f"{seconds[-1] / seconds[0]:.2f}x", "1.20x"
    yield f"CPU time of an instruction on {TILE_BYTES} bytes", f"{seconds.mean() / WINDOW * 1e6:.1f} us", ""
    yield f"resident memory after {last} / after {first}", f"{pages[-1] / pages[1]:.2f}x", "1.05x"
    yield "memory kept for each further instruction", f"{kept:.1f} bytes", "1 byte"


if __name__ == "__main__":
    for measure, value, limit in run():
        print(f"{measure}: {value}" + (f" (at most {limit})" if limit else ""))
