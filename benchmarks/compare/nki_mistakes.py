"""The mistakes in NKI, one source for Open NKI and for triton-viz. They write into their last argument."""

import nki.isa as nisa
import nki.language as nl


def tile_of(source):
    tile = nl.ndarray(source.shape, nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def read_beyond(x, out):  # of [128, 256]
    for block in range(2):
        start = 64 + block * 128
        tile = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, nl.ds(start, 128)])  # wrong: read_beyond
        nisa.dma_copy(dst=out[:, nl.ds(block * 128, 128)], src=tile)


def write_beyond(x, out):
    for block in range(2):
        tile = tile_of(x[:, nl.ds(block * 128, 128)])
        nisa.dma_copy(dst=out[:, nl.ds(64 + block * 128, 128)], src=tile)  # wrong: write_beyond


def uninitialised(x, out):
    tile = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0:128], src=x[:, 0:128])
    nisa.dma_copy(dst=out, src=tile)  # wrong: uninitialised


def untouched(x, out):
    tile = nl.ndarray((128, 256), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=out, src=tile)  # wrong: untouched


def race(x, out):  # on two cores
    tile = tile_of(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(nl.program_id(0)))
    nisa.dma_copy(dst=out, src=tile)  # wrong: race


def capacity(x, out):
    large = nl.ndarray((128, 65536), nl.float32, buffer=nl.sbuf)  # wrong: capacity
    nisa.dma_copy(dst=large[:, 0:256], src=x)
    nisa.dma_copy(dst=out, src=large[:, 0:256])


def mixed_dtypes(x, out):
    narrow = nl.ndarray((128, 256), nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=narrow, src=tile_of(x))
    psum = nl.ndarray((128, 256), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=tile_of(x[:, 0:128]), moving=narrow)  # wrong: mixed_dtypes
    nisa.tensor_copy(dst=narrow, src=psum)
    nisa.dma_copy(dst=out, src=narrow)


def shapes(x, out):
    tile = tile_of(x)
    half = tile_of(x[:, 0:128])
    nisa.tensor_tensor(dst=tile, data1=tile, data2=half, op=nl.add)  # wrong: shapes
    nisa.dma_copy(dst=out, src=tile)


def partitions(x, out):
    tile = nl.ndarray((256, 128), nl.float32, buffer=nl.sbuf)  # wrong: partitions
    nisa.dma_copy(dst=tile[0:128, :], src=x[:, 0:128])
    nisa.dma_copy(dst=out[:, 0:128], src=tile[0:128, :])


def rounding(x, out):
    narrow = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=narrow, src=tile_of(x))
    nisa.dma_copy(dst=out, src=narrow)


def cores(x, scratch, out):
    """Each of two cores writes a half of `scratch` and, after they met, reads the other's."""
    mine, other = nl.program_id(0) * 64, 64 - nl.program_id(0) * 64
    nisa.dma_copy(dst=scratch[nl.ds(mine, 64), :], src=x[nl.ds(mine, 64), :])
    nisa.core_barrier(scratch, (0, 1))
    nisa.dma_copy(dst=out[nl.ds(mine, 64), :], src=scratch[nl.ds(other, 64), :])
