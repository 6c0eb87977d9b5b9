"""Profiles for the tests of the reports: the matmul examples at small sizes, and kernels made to order."""

import importlib.util
from functools import cache
from pathlib import Path

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

MATMUL = Path(__file__).parents[2] / "examples" / "matmul" / "kernels.py"


@cache
def matmul_kernels():
    spec = importlib.util.spec_from_file_location("matmul_kernels", MATMUL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


K, M, N = 512, 256, 1024


@cache
def matmul(step="tiled", on="trn2", dtype="float32", shape=(K, M, N)):
    """The profile of one step of the matmul examples."""
    k, m, n = (128, 128, 512) if step == "single_tile" else shape
    with target(on):
        return nki.profile(getattr(matmul_kernels(), step))(
            nki.TensorSpec((k, m), dtype), nki.TensorSpec((k, n), dtype)
        )


def profiled(kernel, *args, on="trn2"):
    with target(on):
        return nki.profile(kernel)(*args)


def spec(*shape, dtype="float32"):
    return nki.TensorSpec(shape, dtype)


@nki.jit
def transposing(x):
    """One transpose and one product on the PE array, an exponential, a store."""
    result = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 128), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    turned = nl.ndarray((128, 128), x.dtype, buffer=nl.psum)
    nisa.nc_transpose(turned, tile)
    stationary = nl.ndarray((128, 128), x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(stationary, turned, name="drain")
    product = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(product, stationary, tile)
    out = nl.ndarray((128, 128), nl.float32, buffer=nl.sbuf)
    nisa.activation(out, nl.exp, product)
    nisa.dma_copy(result, out)
    return result


@nki.jit
def spilling(x):
    """Keeps more tiles than SBUF holds: 60 of 4 KiB per partition."""
    result = nl.ndarray((128, 1024), nl.float32, buffer=nl.shared_hbm)
    tiles = []
    for i in range(60):
        tile = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
        nisa.memset(tile, float(i))
        tiles.append(tile)
    total = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(total, x)
    for tile in tiles:
        nisa.tensor_tensor(total, total, tile, op=nl.add)
    nisa.dma_copy(result, total)
    return result


@nki.jit
def halves(x):
    """Each of two cores copies its half."""
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // 2
    first = nl.program_id(0) * rows
    tile = nl.ndarray((rows, x.shape[1]), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x[first : first + rows, :])
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(result[first : first + rows, :], tile)
    return result


@nki.jit
def queues(x):
    """Loads through three DMA queues."""
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    third = x.shape[1] // 4
    nisa.dma_copy(tile[:, 0:third], x[:, 0:third])
    hardware = nisa.dge_mode.hwdge
    nisa.dma_copy(tile[:, third : 2 * third], x[:, third : 2 * third], dge_mode=hardware)
    for engine in (nisa.engine.sync, nisa.engine.scalar):
        nisa.dma_copy(tile[:, 2 * third :], x[:, 2 * third :], dge_mode=hardware, engine=engine)
    nisa.dma_copy(result, tile)
    return result


@nki.jit
def two_engines(x):
    """The same copy on VectorE and on ScalarE, from one line."""
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    for engine in (nisa.engine.vector, nisa.engine.scalar):
        copy = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(copy, tile, engine=engine)
    nisa.dma_copy(result, copy)
    return result


@nki.jit
def reshaping(x):
    """Copies between different shapes, which is diagnosed."""
    result = nl.ndarray((64, 256), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(result, x)
    return result


@nki.jit
def idle(x):
    """Issues nothing."""
    return x
