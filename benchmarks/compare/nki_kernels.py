"""The three problems in NKI, one source for Open NKI and for triton-viz. They write into an argument."""

import nki.isa as nisa
import nki.language as nl
from benchmarks.compare.problems import COLUMNS, DEPTH, HEAD, ROWS


def load(source, dtype):
    tile = nl.ndarray(source.shape, dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def from_psum(psum):
    tile = nl.ndarray(psum.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=psum)
    return tile


def matmul(lhsT, rhs, out):
    depth = lhsT.shape[0]
    for m in range(0, out.shape[0], ROWS):
        for n in range(0, out.shape[1], COLUMNS):
            psum = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
            for k in range(0, depth, DEPTH):
                stationary = load(lhsT[k : k + DEPTH, m : m + ROWS], lhsT.dtype)
                moving = load(rhs[k : k + DEPTH, n : n + COLUMNS], rhs.dtype)
                nisa.nc_matmul(dst=psum, stationary=stationary, moving=moving)
            nisa.dma_copy(dst=out[m : m + ROWS, n : n + COLUMNS], src=from_psum(psum))
    return out


def column():
    return nl.ndarray((ROWS, 1), nl.float32, buffer=nl.sbuf)


def softmax(x, out):
    for row in range(0, x.shape[0], ROWS):
        tile = load(x[row : row + ROWS, :], x.dtype)
        least, total, inverse = column(), column(), column()
        nisa.tensor_reduce(dst=least, op=nl.maximum, data=tile, axis=1, negate=True, keepdims=True)
        grown = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=grown, op=nl.exp, data=tile, bias=least)
        nisa.tensor_reduce(dst=total, op=nl.add, data=grown, axis=1, keepdims=True)
        nisa.reciprocal(dst=inverse, data=total)
        nisa.tensor_scalar(dst=grown, data=grown, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[row : row + ROWS, :], src=grown)
    return out


def transposed(tile):
    """Of a square tile."""
    psum = nl.ndarray(tile.shape, nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=psum, data=tile)
    return from_psum(psum)


def product(left_transposed, right, columns):
    psum = nl.ndarray((ROWS, columns), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=psum, stationary=left_transposed, moving=right)
    return from_psum(psum)


def attention(q, k, v, out):
    """A running softmax: maximum, sum and result of each row are corrected with every block of keys."""
    for row in range(0, q.shape[0], ROWS):
        query = transposed(load(q[row : row + ROWS, :], q.dtype))
        total, factor = nl.zeros((ROWS, 1), nl.float32), column()
        maximum, result = nl.zeros((ROWS, 1), nl.float32), nl.zeros((ROWS, HEAD), nl.float32)
        nisa.tensor_scalar(dst=maximum, data=maximum, op0=nl.subtract, operand0=1e30)
        for key in range(0, k.shape[0], ROWS):
            scores = product(query, transposed(load(k[key : key + ROWS, :], k.dtype)), ROWS)
            nisa.tensor_scalar(dst=scores, data=scores, op0=nl.multiply, operand0=HEAD**-0.5)
            new, negative, added = column(), column(), column()
            nisa.tensor_reduce(dst=new, op=nl.maximum, data=scores, axis=1, keepdims=True)
            nisa.tensor_tensor(dst=new, data1=new, data2=maximum, op=nl.maximum)
            nisa.tensor_scalar(dst=negative, data=new, op0=nl.multiply, operand0=-1.0)
            nisa.activation(dst=factor, op=nl.exp, data=maximum, bias=negative)
            nisa.tensor_copy(dst=maximum, src=new)
            nisa.activation(dst=scores, op=nl.exp, data=scores, bias=negative)
            nisa.tensor_reduce(dst=added, op=nl.add, data=scores, axis=1, keepdims=True)
            nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=factor)
            nisa.tensor_tensor(dst=total, data1=total, data2=added, op=nl.add)
            part = product(transposed(scores), load(v[key : key + ROWS, :], v.dtype), HEAD)
            nisa.tensor_scalar(dst=result, data=result, op0=nl.multiply, operand0=factor)
            nisa.tensor_tensor(dst=result, data1=result, data2=part, op=nl.add)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=result, data=result, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[row : row + ROWS, :], src=result)
    return out
