"""Triton's interpreter: TRITON_INTERPRET=1."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch
import triton
import triton.language as tl

from benchmarks.compare.answers import numbers, rounded

VERSION = f"Triton {triton.__version__}, PyTorch {torch.__version__}"
torch.set_num_threads(1)


def prepared(name, problem):
    from benchmarks.compare import triton_kernels

    inputs = [torch.from_numpy(x) for x in problem.inputs]
    return lambda: getattr(triton_kernels, name)(*inputs).numpy()


# ---- mistakes ------------------------------------------------------------------------------------
# Kernels on a flat tensor of 128 * 256 numbers, two programs that take a half each.

HALF = 128 * 128


@triton.jit
def read_beyond_kernel(x, out, HALF: tl.constexpr):
    at = tl.program_id(0) * HALF + tl.arange(0, HALF)
    tl.store(out + at, tl.load(x + 64 + at))  # wrong: read_beyond


@triton.jit
def write_beyond_kernel(x, out, HALF: tl.constexpr):
    at = tl.program_id(0) * HALF + tl.arange(0, HALF)
    tl.store(out + 64 + at, tl.load(x + at))  # wrong: write_beyond


@triton.jit
def uninitialised_kernel(x, out, scratch, HALF: tl.constexpr):
    at = tl.arange(0, HALF)
    tl.store(scratch + at, tl.load(x + at))
    tl.store(out + HALF + at, tl.load(scratch + HALF + at))  # wrong: uninitialised


@triton.jit
def untouched_kernel(x, out, scratch, HALF: tl.constexpr):
    at = HALF + tl.arange(0, HALF)
    tl.store(out + at, tl.load(scratch + at))  # wrong: untouched


@triton.jit
def race_kernel(x, out, HALF: tl.constexpr):
    at = tl.arange(0, HALF)
    tl.store(out + HALF + at, tl.load(x + at) + tl.program_id(0))  # wrong: race


@triton.jit
def capacity_kernel(x, out, HALF: tl.constexpr):
    large = tl.full((1024, 1024), 1.0, tl.float32)
    squared = tl.dot(large, large)  # wrong: capacity
    tl.store(out + HALF + tl.arange(0, HALF), tl.sum(squared) + tl.zeros((HALF,), tl.float32))


@triton.jit
def mixed_dtypes_kernel(x, out, HALF: tl.constexpr):
    tile = tl.full((128, 128), 1.0, tl.float32)
    squared = tl.dot(tile, tile.to(tl.bfloat16))  # wrong: mixed_dtypes
    tl.store(out + HALF + tl.arange(0, HALF), tl.reshape(squared, (HALF,)))


@triton.jit
def shapes_kernel(x, out, HALF: tl.constexpr):
    total = tl.zeros((HALF,), tl.float32) + tl.zeros((128,), tl.float32)  # wrong: shapes
    tl.store(out + HALF + tl.arange(0, HALF), total)


def launch(kernel, scratch=False):
    """On memory with guards: the 64 numbers after each tensor are -1, and must stay so."""
    x, out, room = (torch.full((2 * HALF + 64,), -1.0) for _ in range(3))
    x[: 2 * HALF] = torch.arange(2 * HALF, dtype=torch.float32)
    out[: 2 * HALF] = 0
    more = (room[: 2 * HALF],) if scratch else ()
    kernel[(2,)](x[: 2 * HALF], out[: 2 * HALF], *more, HALF)
    spoilt = int((out[2 * HALF :] != -1).sum())
    return numbers(out[: 2 * HALF]) + (f"; {spoilt} numbers of another tensor overwritten" if spoilt else "")


MISTAKES = {
    "read_beyond": read_beyond_kernel,
    "write_beyond": write_beyond_kernel,
    "uninitialised": uninitialised_kernel,
    "untouched": untouched_kernel,
    "race": race_kernel,
    "capacity": capacity_kernel,
    "mixed_dtypes": mixed_dtypes_kernel,
    "shapes": shapes_kernel,
}
SCRATCH = ("uninitialised", "untouched")  # these take a tensor that was never filled
PROBES = {name: lambda n=name: launch(MISTAKES[n], scratch=n in SCRATCH) for name in MISTAKES}

# ---- questions -----------------------------------------------------------------------------------


@triton.jit
def rounding_kernel(x, out, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(out + at, tl.load(x + at).to(tl.bfloat16))


def rounding():
    x = torch.from_numpy(rounded.inputs())
    out = torch.empty(x.shape, dtype=torch.bfloat16)
    rounding_kernel[(128,)](x, out, 512)
    return rounded.outcome(out.to(torch.float32).numpy())


SEEN = []


@triton.jit
def values_kernel(x, WIDTH: tl.constexpr):
    tile = tl.load(x + tl.arange(0, WIDTH))
    SEEN.append(float(tile.handle.data[3]))


def values():
    values_kernel[(1,)](torch.arange(4, dtype=torch.float32), 4)
    return f"yes: x[3] is {SEEN[0]}"


def device_time():
    return f"{triton.testing.do_bench(lambda: launch(shapes_kernel)):.3f} ms"


def shapes_alone():
    from triton.runtime.jit import MockTensor

    spec = MockTensor(torch.float32, (2 * HALF,))
    race_kernel[(2,)](spec, spec, HALF)
    return "yes"


@triton.jit
def cores_kernel(flags, out):
    """The first program waits for the second, at most a thousand looks."""
    if tl.program_id(0) == 1:
        tl.store(flags, 1)
    else:
        looks = 0
        while (tl.load(flags) == 0) & (looks < 1000):
            looks += 1
        tl.store(out, looks)


def cores():
    flags, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    cores_kernel[(2,)](flags, out)
    return "no: programs run one after the other" if out[0] == 1000 else f"yes: after {out[0]} looks"


PROBES |= {f.__name__: f for f in (rounding, values, device_time, shapes_alone, cores)}
FILES = (__file__,)
