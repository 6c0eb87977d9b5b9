"""The three kernels of the fused Mamba tutorial, as the instructions they issue, in their order."""

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS = 128


def specs(channels, length, states=16):
    """Arguments of the kernels from sizes alone."""
    wide, rows = (1, channels, length), (1, states, length)
    shapes = (wide, wide, (channels, states), rows, rows)
    return [nki.TensorSpec(shape, "float32") for shape in shapes]


def loaded(view):
    tile = nl.ndarray(view.shape, dtype=view.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=view)
    return tile


def tile_like(tile):
    return nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)


def product(a, b):
    out = tile_like(a)
    nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.multiply)
    return out


def spread(B, state, begin, end):
    row = loaded(B[0, state : state + 1, begin:end])
    return nl.broadcast_to(row, (PARTITIONS, end - begin))


def step(A, B, C, delta, u, state, columns, total, initial=0.0):
    """One state's part of `total`; the scan, of which the next part of the sequence needs the end."""
    begin, end = columns
    decay = tile_like(delta)
    nisa.activation(dst=decay, op=nl.exp, data=delta, scale=A)
    inputs = product(product(delta, u), spread(B, state, begin, end))
    scanned = tile_like(delta)
    nisa.tensor_tensor_scan(
        dst=scanned, data0=decay, data1=inputs, initial=initial, op0=nl.multiply, op1=nl.add
    )
    nisa.tensor_tensor(
        dst=total, data1=total, data2=product(scanned, spread(C, state, begin, end)), op=nl.add
    )
    return scanned


@nki.jit
def mamba_v1(delta, u, A, B, C):
    """Loads delta and u again for every state."""
    _, channels, length = delta.shape
    output = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for start in range(0, channels, PARTITIONS):
        rows = slice(start, start + PARTITIONS)
        total = nl.zeros((PARTITIONS, length), dtype=delta.dtype)
        for state in range(A.shape[1]):
            delta_i = loaded(delta[0, rows, 0:length])
            u_i = loaded(u[0, rows, 0:length])
            step(loaded(A[rows, state : state + 1]), B, C, delta_i, u_i, state, (0, length), total)
        nisa.dma_copy(dst=output[0, rows, 0:length], src=total)
    return output


@nki.jit
def mamba_v2(delta, u, A, B, C):
    """Loads delta and u once for all states."""
    _, channels, length = delta.shape
    output = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for start in range(0, channels, PARTITIONS):
        rows = slice(start, start + PARTITIONS)
        total = nl.zeros((PARTITIONS, length), dtype=delta.dtype)
        delta_i, u_i = loaded(delta[0, rows, 0:length]), loaded(u[0, rows, 0:length])
        for state in range(A.shape[1]):
            step(loaded(A[rows, state : state + 1]), B, C, delta_i, u_i, state, (0, length), total)
        nisa.dma_copy(dst=output[0, rows, 0:length], src=total)
    return output


@nki.jit
def mamba_v3(delta, u, A, B, C):
    """Goes through the sequence in tiles of 512."""
    _, channels, length = delta.shape
    output = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for start in range(0, channels, PARTITIONS):
        rows = slice(start, start + PARTITIONS)
        total = nl.zeros((PARTITIONS, length), dtype=delta.dtype)
        delta_i, u_i = loaded(delta[0, rows, 0:length]), loaded(u[0, rows, 0:length])
        for state in range(A.shape[1]):
            A_i = loaded(A[rows, state : state + 1])
            last = nl.zeros((PARTITIONS, 1), dtype=delta.dtype)
            for begin in range(0, length, 512):
                part = slice(begin, begin + 512)
                scanned = step(
                    A_i,
                    B,
                    C,
                    delta_i[:, part],
                    u_i[:, part],
                    state,
                    (begin, begin + 512),
                    total[:, part],
                    initial=last,
                )
                nisa.tensor_copy(dst=last, src=scanned[:, 511:512])
        nisa.dma_copy(dst=output[0, rows, 0:length], src=total)
    return output
