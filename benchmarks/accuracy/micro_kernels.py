"""Kernels of a few instructions that each show a measured fact, and what is read off their profiles."""

import functools

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import find

from .experiments import matmuls, spec, tile


@functools.cache
def profiled(kernel, *arguments, target="trn2", lnc=None):
    return nki.profile(kernel, target=target, lnc=lnc)(*arguments)


def work_us(kernel, *arguments, target="trn2"):
    return profiled(kernel, *arguments, target=target).timeline.work_ns / 1e3


def bars(profile, name):
    return sorted((b for b in profile.timeline.bars if b.name == name), key=lambda b: b.start)


def bar_ns(body, name, target="trn2"):
    """Return ns of the last bar of a name."""
    found = bars(profiled(body, target=target), name)[-1]
    return found.end - found.start


def gap_ns(profile, name, at=-1):
    """Return ns from the start of one bar to the next, at the end of a stream or at its begin."""
    starts = [bar.start for bar in bars(profile, name)]
    return starts[at] - starts[at - 1]


def per_turn(make, target, few=2, many=6):
    """Return us of one more turn of a loop that is written out."""
    long, short = (profiled(make(turns), target=target).timeline.work_ns for turns in (many, few))
    return (long - short) / (many - few) / 1e3


# ---- TensorE -------------------------------------------------------------------------------------


@functools.cache
def stream(columns, dtype=nl.bfloat16, count=400):
    return lambda: matmuls(count, 128, 128, columns, dtype)


def matmul_ns(columns, dtype=nl.bfloat16, at=-1, target="trn2"):
    """Return the interval of MATMUL instructions; a float32 nc_matmul is two."""
    gap = gap_ns(profiled(stream(columns, dtype), target=target), "nc_matmul", at)
    return gap / (2 if dtype == nl.float32 and target != "trn1" else 1)


def bar_beyond_interval(columns, at):
    profile = profiled(stream(columns))
    bar = bars(profile, "nc_matmul")[at]
    return bar.end - bar.start - gap_ns(profile, "nc_matmul", at)


def loaded_stream(x):
    """Multiply tiles that are loaded first: the clock's windows do not begin with the first matmul."""
    loaded = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(loaded, x)
    banks = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum) for _ in range(8)]
    for i in range(64):
        nisa.nc_matmul(banks[i % 8], loaded[:, :128], loaded, accumulate=False)
    return x


def first_full_rate_us():
    """Return us from the first matmul to the first one at the full clock."""
    starts = [bar.start for bar in bars(profiled(loaded_stream, spec(128, 512)), "nc_matmul")]
    fast = 1.2 * (starts[-1] - starts[-2])
    return next(a - starts[0] for a, b in zip(starts, starts[1:], strict=False) if b - a < fast) / 1e3


# ---- VectorE and ScalarE -------------------------------------------------------------------------


@functools.cache
def copy(on, columns=512):
    def kernel():
        x, y = tile((128, columns), buffer=nl.psum), tile((128, columns))
        nisa.tensor_copy(y, x, engine=on)

    return kernel


@functools.cache
def exponential(buffer, columns=512):
    def kernel():
        x, y, bias = tile((128, columns), buffer=buffer), tile((128, columns)), tile((128, 1))
        for _ in range(2):  # the first one loads the table
            nisa.activation(y, nl.exp, x, bias=bias)

    return kernel


def maximum():
    x, y = tile((128, 512)), tile((128, 1))
    nisa.tensor_reduce(y, nl.maximum, x, axis=1)


@functools.cache
def scaled(columns, by_tile):
    def kernel():
        x, scale = tile((128, columns)), tile((128, 1))
        y = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_scalar(y, x, nl.multiply, scale if by_tile else 2.0)

    return kernel


@functools.cache
def activated(columns, by_tile):
    def kernel():
        x, scale = tile((128, columns)), tile((128, 1))
        for _ in range(2):
            nisa.activation(x, nl.copy, x, scale=scale if by_tile else 2.0)

    return kernel


def sum_with_psum():
    a, b = tile((128, 512)), tile((128, 512), buffer=nl.psum)
    nisa.tensor_tensor(a, a, b, op=nl.add)


@functools.cache
def dequantize(way, turns):
    """[128, 4096] fp8 elements to bf16 in so many turns, each product read by 32 matmuls of 64 columns."""

    def kernel():
        x, full = tile((128, 4096), nl.float8_e4m3), tile((128, 512), nl.bfloat16)
        scales, bank = tile((128, 4096)), tile((128, 512), buffer=nl.psum)
        for _ in range(turns):
            wide = nl.ndarray((128, 4096), nl.bfloat16)
            size = 64 if way in ("tensor_scalar", "activation", "both") else 512
            for begin in range(0, 4096, size):
                part = slice(begin, begin + size)
                if way == "two SBUF operands":
                    nisa.tensor_tensor(wide[:, part], x[:, part], scales[:, part], op=nl.multiply)
                elif way == "one operand in PSUM":
                    nisa.tensor_tensor(wide[:, part], bank, scales[:, part], op=nl.multiply)
                elif way == "activation" or (way == "both" and begin >= 2048):
                    nisa.activation(wide[:, part], nl.copy, x[:, part], scale=scales[:, begin : begin + 1])
                else:
                    nisa.tensor_scalar(wide[:, part], x[:, part], nl.multiply, scales[:, begin : begin + 1])
            sums = nl.ndarray((128, 64), nl.float32, buffer=nl.psum)
            for begin in range(0, 4096, 128):
                nisa.nc_matmul(sums, wide[:, begin : begin + 128], full[:, :64])

    return kernel


def dequantize_us(way):
    return per_turn(functools.partial(dequantize, way), "trn1")


# ---- DMA -----------------------------------------------------------------------------------------


def transfers(profile):
    return list(profile.timeline.cores[0].transfers.values())


@functools.cache
def loads(nbytes, count=1, mode=nisa.dge_mode.unknown, out=False):
    """Return a kernel that moves rows of so many bytes, each at an address of its own."""

    def kernel(x):
        stored = tile((128, nbytes), nl.uint8) if out else None
        for i in range(count):
            hbm = x[:, (2 * i) * nbytes : (2 * i + 1) * nbytes]
            if out:
                nisa.dma_copy(hbm, stored, dge_mode=mode)
            else:
                nisa.dma_copy(nl.ndarray((128, nbytes), nl.uint8), hbm, dge_mode=mode)
        return x

    return kernel


def load_profile(nbytes, count=1, target="trn2", mode=nisa.dge_mode.unknown, out=False):
    x = spec(128, 2 * nbytes * count, dtype="uint8")
    return profiled(loads(nbytes, count, mode, out), x, target=target)


def packet_ns(nbytes, **settings):
    """Return ns of a packet of data; each engine's last packet, for the semaphore, is another."""
    (moved,) = transfers(load_profile(nbytes, **settings))
    semaphores = len(moved.payload_ns) * find("trn2").dma_semaphore_ns
    return (moved.packet_ns - semaphores) / moved.descriptors


def trigger_ns(mode):
    """Return ns between two triggers of one mode."""
    (core,) = load_profile(256, 8, mode=mode).timeline.cores
    moments = sorted(core.triggered[index] for index in core.transfers)
    return moments[-1] - moments[-2]


def gbs(nbytes, target, out=False, count=8):
    """Return bytes per ns of a stream of transfers."""
    dma = load_profile(nbytes, count, target, out=out).timeline.intervals("dma")
    return 128 * nbytes * count / (dma[:, 1].max() - dma[:, 0].min())


@functools.cache
def addressed(nbytes, count, gather):
    """Return a kernel whose loads have an address in SBUF: of a block, or of each row."""

    def kernel(blocks, index):
        where = nl.ndarray(index.shape, index.dtype)
        nisa.dma_copy(where, index)
        for i in range(count):
            new = nl.ndarray((128, nbytes), nl.uint8)
            offsets = where.ap(pattern=[[count, 128 if gather else 1], [1, 1]], offset=i)
            address = {"vector_offset" if gather else "scalar_offset": offsets}
            rows = [[nbytes, 128], [1, nbytes]]
            nisa.dma_copy(new, blocks.ap(pattern=rows, offset=0, indirect_dim=0, **address))
        return blocks

    return kernel


def addressed_us(nbytes, gather, target="trn1", few=4, many=12):
    """Return us of one more load with a run-time address."""
    shape = (4096, nbytes) if gather else (8, 128, nbytes)
    times = [
        profiled(
            addressed(nbytes, count, gather), spec(*shape, dtype="uint8"), spec(128, count, dtype="int32"),
            target=target,
        ).timeline.work_ns
        for count in (few, many)
    ]  # fmt: skip
    return (times[1] - times[0]) / (many - few) / 1e3


@functools.cache
def ring(separate, slots=4):
    """Return a kernel that multiplies into a ring of slots: a tensor for each, or slices of one."""

    def kernel():
        weights, moving, copied = (
            tile((128, 128), nl.bfloat16),
            tile((128, 512), nl.bfloat16),
            tile((128, 512)),
        )
        shape, psum = (128, 512), nl.psum
        one = None if separate else nl.ndarray((128, slots, 512), nl.float32, buffer=psum)
        own = [nl.ndarray(shape, nl.float32, buffer=psum) for _ in range(slots)] if separate else []
        for i in range(32):
            slot = own[i % slots] if separate else one[:, i % slots, :]
            for turn in range(3):
                nisa.nc_matmul(slot, weights, moving, accumulate=turn > 0)
            nisa.tensor_copy(copied, slot, engine=nisa.engine.vector)

    return kernel


def ring_waits():
    """Return the share of the time that TensorE waits, where slots are slices of one tensor."""
    timeline = profiled(ring(False), target="trn1").timeline
    return 100 * (1 - timeline.active_ns("tensor") / timeline.work_ns)
