"""Experiments with few instructions, and what published profiles show of them."""

import nki
import nki.isa as nisa
import nki.language as nl


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    new = nl.ndarray(shape, dtype, buffer=buffer)
    nisa.memset(new, 0)
    return new


def exponential(elements):
    def kernel():
        x = tile((128, elements))
        nisa.activation(x, nl.exp, x)

    return kernel


def add_of_psum_and_sbuf():
    a, b = tile((128, 512)), tile((128, 512), buffer=nl.psum)
    nisa.tensor_tensor(a, a, b, op=nl.add)


def wide():
    x = tile((128, 16384), nl.bfloat16)
    small = nl.ndarray((128, 1), nl.float32)
    narrow = nl.ndarray((128, 16384), nl.float8_e4m3)
    nisa.tensor_reduce(small, nl.maximum, x, axis=1)
    nisa.tensor_scalar(narrow, x, nl.multiply, 2.0)
    nisa.activation_reduce(x, nl.square, x, nl.add, small)


def load(x):
    new = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(new, x)


def chain():
    x = tile((128, 1))
    for _ in range(20):
        nisa.activation(x, nl.exp, x)


def matmuls(count, k, m, n, dtype=nl.bfloat16, banks=8):
    stationary, moving = tile((k, m), dtype), tile((k, n), dtype)
    psum = [nl.ndarray((m, n), nl.float32, buffer=nl.psum) for _ in range(banks)]
    for i in range(count):
        nisa.nc_matmul(psum[i % banks], stationary, moving, accumulate=False)


def resident():
    matmuls(2048, 128, 128, 512)


def mixture():
    for k, m, n in ((128, 32, 512), (128, 128, 64), (32, 128, 512), (128, 128, 512)):
        matmuls(512, k, m, n)


# ---- what is read off a profile ------------------------------------------------------------------


def length(name):
    """ns of the first bar of a name."""
    return lambda p: next(bar.end - bar.start for bar in p.timeline.bars if bar.name == name)


def spacing(name):
    """Median ns between the starts of bars of a name."""

    def read(p):
        starts = [bar.start for bar in p.timeline.bars if bar.name == name]
        gaps = sorted(b - a for a, b in zip(starts, starts[1:], strict=False))
        return gaps[len(gaps) // 2]

    return read


def packets(p):
    """ns that the DMA engines of a transfer work, together."""
    return p.timeline.packet_ns


def tensor_rate(p):
    """TFLOP/s while TensorE is active."""
    return p.timeline.flops / p.timeline.active_ns("tensor") / 1e3


def spec(*shape, dtype="bfloat16"):
    return nki.TensorSpec(shape, dtype)
