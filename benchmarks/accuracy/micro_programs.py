"""Small whole kernels that show a measured fact, and what is read off their profiles."""

import functools

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl

from .experiments import spec, tile
from .micro_kernels import profiled, work_us


@functools.cache
def attention(mode):
    """Return a smallest attention, 128 x 64 in float32, in seventeen instructions."""

    def kernel(q, k, v):
        rows, depth = q.shape
        out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray(x.shape, x.dtype) for x in (q, k, v)]
        for made, source in zip(tiles, (q, k, v), strict=True):
            nisa.dma_copy(made, source, dge_mode=mode)
        turned = []
        for made in tiles[:2]:
            bank = nl.ndarray((depth, rows), nl.float32, buffer=nl.psum)
            nisa.nc_transpose(bank, made)
            turned.append(nl.ndarray((depth, rows), nl.float32))
            nisa.tensor_copy(turned[-1], bank)
        scores = nl.ndarray((rows, rows), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(scores, *turned)
        least, total, weights = (nl.ndarray((rows, n), nl.float32) for n in (1, 1, rows))
        nisa.tensor_reduce(least, nl.maximum, scores, axis=1, negate=True)
        nisa.activation(weights, nl.exp, scores, bias=least, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(total, total)
        bank = nl.ndarray((rows, rows), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(bank, weights)
        turned = nl.ndarray((rows, rows), nl.float32)
        nisa.tensor_copy(turned, bank)
        sums = nl.ndarray((rows, depth), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums, turned, tiles[2])
        result = nl.ndarray((rows, depth), nl.float32)
        nisa.tensor_scalar(result, sums, nl.multiply, total)
        nisa.dma_copy(out, result, dge_mode=mode)
        return out

    return kernel


def attention_us(mode=nisa.dge_mode.unknown, lnc=1):
    return attention_profile(mode, lnc).total_us


def attention_profile(mode=nisa.dge_mode.unknown, lnc=1):
    return profiled(attention(mode), *[spec(128, 64, dtype="float32")] * 3, lnc=lnc)


@functools.cache
def rotation(chunk, tiles=256):
    """Return a product of every tile of 128 columns with one matrix, so many tiles to a transfer."""

    def kernel(x, matrix):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        weights = nl.ndarray((128, 128), x.dtype)
        nisa.dma_copy(weights, matrix)
        for begin in range(0, 128 * tiles, 128 * chunk):
            part = x[:, begin : begin + 128 * chunk]
            data, result = (nl.ndarray(part.shape, x.dtype) for _ in range(2))
            nisa.dma_copy(data, part)
            for first in range(0, 128 * chunk, 1024):  # eight tiles are two banks of PSUM
                sums = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum)
                for half in (0, 512):
                    moving = data[:, first + half : first + half + 512]
                    nisa.nc_matmul(sums[:, half : half + 512], weights, moving)
                nisa.tensor_copy(result[:, first : first + 1024], sums)
            nisa.dma_copy(out[:, begin : begin + 128 * chunk], result)
        return out

    return kernel


def rotations(chunk, other):
    """Return the time with chunks of one size against that of another."""
    sizes = spec(128, 128 * 256), spec(128, 128)
    return profiled(rotation(chunk), *sizes).total_us / profiled(rotation(other), *sizes).total_us


def first_matmul_us():
    """Return us from the launch to the first matmul: the fixed cost comes first."""
    profile = attention_profile()
    start = min(bar.start for bar in profile.timeline.bars if bar.engine == "tensor")
    return (profile.timeline.machine.kernel_overhead_ns + start) / 1e3


@functools.cache
def divided(split):
    """Return a kernel over 16 blocks of rows: each of two programs does all, or half of them."""

    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        parts = nl.num_programs(0) if split else 1
        first = nl.program_id(0) if split else 0
        for block in range(16 // parts):
            rows = slice(128 * (first * 16 // parts + block), 128 * (first * 16 // parts + block + 1))
            data = nl.ndarray((128, x.shape[1]), x.dtype)
            nisa.dma_copy(data, x[rows, :])
            for _ in range(8):
                nisa.activation(data, nl.exp, data)
            nisa.dma_copy(out[rows, :], data)
        return out

    return kernel


def divided_us(split):
    return profiled(divided(split), spec(2048, 2048, dtype="float32"), lnc=2).total_us


@functools.cache
def loop(turns, dynamic):
    def kernel():
        x = tile((128, 512))
        for _ in nl.dynamic_range(turns) if dynamic else range(turns):
            nisa.tensor_scalar(x, x, nl.multiply, 2.0)

    return kernel


def loop_us(turns=64):
    """Return what an iteration of a dynamic loop takes more than the same work written out."""
    both = (work_us(loop(turns, dynamic), target="trn1") for dynamic in (True, False))
    return (next(both) - next(both)) / turns


@functools.cache
def all_reduces(count, ranks):
    def kernel(x):
        made = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(count + 1)]
        nisa.dma_copy(made[0], x)
        for a, b in zip(made, made[1:], strict=False):
            ncc.all_reduce([a], [b], (tuple(range(ranks)),), nl.add)
        return made[-1]

    return kernel


def all_reduce_us(ranks, *shape, target="trn1"):
    """Return us of one more all-reduce of bf16 elements in a chain."""
    from nki.launch.world import Described, using

    with using(Described(0, ranks)):
        times = [
            nki.profile(all_reduces(count, ranks), target=target)(spec(*shape)).timeline.work_ns
            for count in (1, 3)
        ]
    return (times[1] - times[0]) / 2e3
