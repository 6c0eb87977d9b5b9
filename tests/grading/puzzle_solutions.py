"""One solution of each puzzle of `nki puzzles`; the file is a submission for all of them."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

P = 128  # partitions
N_TILE = 512  # columns of a product


def load(source):
    """Return a tile in SBUF with the elements of a tensor in HBM."""
    tile = nl.ndarray(source.shape, source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, source)
    return tile


def in_sbuf(psum, dtype):
    tile = nl.ndarray(psum.shape, dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile, psum)
    return tile


def transposed(tile):
    """Return the transpose of a tile of at most 128 columns."""
    psum = nl.ndarray((tile.shape[1], tile.shape[0]), tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(psum, tile)
    return in_sbuf(psum, tile.dtype)


@nki.jit
def copy(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, load(x))
    return out


@nki.jit
def scale(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = load(x)
    nisa.tensor_scalar(tile, tile, op0=nl.multiply, operand0=3.0, op1=nl.add, operand1=1.0)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def add(x, y):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = load(x)
    nisa.tensor_tensor(total, total, load(y), nl.add)
    nisa.dma_copy(out, total)
    return out


@nki.jit
def rows(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        tile = load(x[row : row + P])
        nisa.activation(tile, nl.square, tile)
        nisa.dma_copy(out[row : row + P], tile)
    return out


@nki.jit
def edges(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        end = min(row + P, x.shape[0])
        tile = load(x[row:end])
        nisa.activation(tile, nl.square, tile)
        nisa.dma_copy(out[row:end], tile)
    return out


@nki.jit
def row_sums(x):
    out = nl.ndarray((x.shape[0], 1), x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        end = min(row + P, x.shape[0])
        total = nl.ndarray((end - row, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(total, nl.add, load(x[row:end]), axis=1)
        nisa.dma_copy(out[row:end], total)
    return out


@nki.jit
def center(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = load(x)
    mean = nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(mean, nl.add, tile, axis=1)
    nisa.tensor_scalar(mean, mean, op0=nl.multiply, operand0=1.0 / x.shape[1])
    nisa.tensor_scalar(tile, tile, op0=nl.subtract, operand0=mean)
    nisa.dma_copy(out, tile)
    return out


def load_for_all(row, partitions):
    """Return a tile with a row of HBM in every partition."""
    tile = nl.ndarray((partitions, row.shape[0]), row.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, row.ap([[0, partitions], [1, row.shape[0]]]))
    return tile


@nki.jit
def bias(x, b):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = load(x)
    nisa.tensor_tensor(total, total, load_for_all(b, x.shape[0]), nl.add)
    nisa.dma_copy(out, total)
    return out


@nki.jit
def transpose(x):
    out = nl.ndarray((x.shape[1], x.shape[0]), x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        for column in range(0, x.shape[1], P):
            tile = transposed(load(x[row : row + P, column : column + P]))
            nisa.dma_copy(out[column : column + P, row : row + P], tile)
    return out


@nki.jit
def matmul(a, b):
    out = nl.ndarray((a.shape[0], b.shape[1]), a.dtype, buffer=nl.shared_hbm)
    psum = nl.ndarray((a.shape[0], b.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, transposed(load(a)), load(b))
    nisa.dma_copy(out, in_sbuf(psum, a.dtype))
    return out


@nki.jit
def accumulate(aT, b):
    out = nl.ndarray((aT.shape[1], b.shape[1]), aT.dtype, buffer=nl.shared_hbm)
    psum = nl.ndarray((aT.shape[1], b.shape[1]), nl.float32, buffer=nl.psum)
    for k in range(0, aT.shape[0], P):
        nisa.nc_matmul(psum, load(aT[k : k + P]), load(b[k : k + P]))
    nisa.dma_copy(out, in_sbuf(psum, aT.dtype))
    return out


@nki.jit
def tiled_matmul(aT, b):
    depth, rows = aT.shape
    columns = b.shape[1]
    out = nl.ndarray((rows, columns), aT.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, P):
        for n in range(0, columns, N_TILE):
            psum = nl.ndarray((P, N_TILE), nl.float32, buffer=nl.psum)
            for k in range(0, depth, P):
                left, right = load(aT[k : k + P, m : m + P]), load(b[k : k + P, n : n + N_TILE])
                nisa.nc_matmul(psum, left, right)
            nisa.dma_copy(out[m : m + P, n : n + N_TILE], in_sbuf(psum, aT.dtype))
    return out


@nki.jit
def blocked_matmul(aT, b):
    depth, rows = aT.shape
    columns = b.shape[1]
    out = nl.ndarray((rows, columns), aT.dtype, buffer=nl.shared_hbm)
    lefts, rights = [], []
    for k in range(0, depth, P):
        lefts.append(load(aT[k : k + P]))
        rights.append(load(b[k : k + P]))
    for m in range(0, rows, P):
        result = nl.ndarray((P, columns), aT.dtype, buffer=nl.sbuf)
        for n in range(0, columns, N_TILE):
            psum = nl.ndarray((P, N_TILE), nl.float32, buffer=nl.psum)
            for k in range(depth // P):
                nisa.nc_matmul(psum, lefts[k][:, m : m + P], rights[k][:, n : n + N_TILE])
            nisa.tensor_copy(result[:, n : n + N_TILE], psum)
        nisa.dma_copy(out[m : m + P], result)
    return out


def exponentials(scores):
    """Return exp(scores - their maximum), and one over its sum, of each row."""
    largest = nl.ndarray((scores.shape[0], 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(largest, nl.maximum, scores, axis=1, negate=True)
    powers = nl.ndarray(scores.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(powers, nl.exp, scores, bias=largest)
    total = nl.ndarray((scores.shape[0], 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(total, nl.add, powers, axis=1)
    nisa.reciprocal(total, total)
    return powers, total


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        end = min(row + P, x.shape[0])
        powers, factor = exponentials(load(x[row:end]))
        nisa.tensor_scalar(powers, powers, op0=nl.multiply, operand0=factor)
        nisa.dma_copy(out[row:end], powers)
    return out


@nki.jit
def layer_norm(x, gamma, beta):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    width = x.shape[1]
    gammas, betas = load_for_all(gamma, P), load_for_all(beta, P)
    for row in range(0, x.shape[0], P):
        end = min(row + P, x.shape[0])
        tile = load(x[row:end])
        mean = nl.ndarray((end - row, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(mean, nl.add, tile, axis=1)
        nisa.tensor_scalar(mean, mean, op0=nl.multiply, operand0=1.0 / width)
        nisa.tensor_scalar(tile, tile, op0=nl.subtract, operand0=mean)
        square = nl.ndarray(tile.shape, nl.float32, buffer=nl.sbuf)
        nisa.activation(square, nl.square, tile)
        scale = nl.ndarray((end - row, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(scale, nl.add, square, axis=1)
        nisa.tensor_scalar(scale, scale, op0=nl.multiply, operand0=1.0 / width, op1=nl.add, operand1=1e-5)
        nisa.activation(scale, nl.rsqrt, scale)
        nisa.tensor_scalar(tile, tile, op0=nl.multiply, operand0=scale)
        nisa.tensor_tensor(tile, tile, gammas[0 : end - row], nl.multiply)
        nisa.tensor_tensor(tile, tile, betas[0 : end - row], nl.add)
        nisa.dma_copy(out[row:end], tile)
    return out


def masked(scores, first_row, first_column):
    """Return scores with -30000 where the column, counted from the first one, is behind the row."""
    result = nl.ndarray(scores.shape, nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        result,
        pattern=[[-1, scores.shape[1]]],
        channel_multiplier=1,
        on_true_tile=scores,
        on_false_value=-30000.0,
        cmp_op=nl.greater_equal,
        offset=first_row - first_column,
    )
    return result


@nki.jit
def mask(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], P):
        nisa.dma_copy(out[row : row + P], masked(load(x[row : row + P]), row, 0))
    return out


@nki.jit
def gather(table, ids):
    width = table.shape[1]
    out = nl.ndarray((ids.shape[0], width), table.dtype, buffer=nl.shared_hbm)
    for row in range(0, ids.shape[0], P):
        places = load(ids[row : row + P])
        tile = nl.ndarray((P, width), table.dtype, buffer=nl.sbuf)
        nisa.dma_copy(tile, table.ap([[width, P], [1, width]], vector_offset=places, indirect_dim=0))
        nisa.dma_copy(out[row : row + P], tile)
    return out


def updated(largest, total, scores):
    """Return the new maximum, the factor for what was summed before, the powers, and the new sum."""
    partitions = scores.shape[0]
    newest = nl.ndarray((partitions, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(newest, nl.maximum, scores, axis=1)
    nisa.tensor_tensor(newest, newest, largest, nl.maximum)
    factor = nl.ndarray((partitions, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(factor, largest, newest, nl.subtract)
    nisa.activation(factor, nl.exp, factor)
    negated = nl.ndarray((partitions, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(negated, newest, op0=nl.multiply, operand0=-1.0)
    powers = nl.ndarray(scores.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(powers, nl.exp, scores, bias=negated)
    part = nl.ndarray((partitions, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(part, nl.add, powers, axis=1)
    sums = nl.ndarray((partitions, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(sums, total, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=part)
    return newest, factor, powers, sums


def constant(partitions, value):
    tile = nl.ndarray((partitions, 1), nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, value)
    return tile


@nki.jit
def log_sum_exp(x):
    partitions, width = x.shape
    out = nl.ndarray((partitions, 1), x.dtype, buffer=nl.shared_hbm)
    largest, total = constant(partitions, -30000.0), constant(partitions, 0.0)
    for column in range(0, width, 8192):
        largest, _, _, total = updated(largest, total, load(x[:, column : column + 8192]))
    nisa.activation(total, nl.log, total)
    nisa.tensor_tensor(total, total, largest, nl.add)
    nisa.dma_copy(out, total)
    return out


def scores_of(query, key, scale):
    """Return query.T @ key * scale in SBUF."""
    psum = nl.ndarray((query.shape[1], key.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, query, key)
    scores = nl.ndarray(psum.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(scores, psum, op0=nl.multiply, operand0=scale)
    return scores


@nki.jit
def attention(q, k, v):
    tokens, size = q.shape
    out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
    keys = nl.ndarray((size, tokens), nl.float32, buffer=nl.sbuf)
    values = []
    for row in range(0, tokens, P):
        nisa.tensor_copy(keys[:, row : row + P], transposed(load(k[row : row + P])))
        values.append(load(v[row : row + P]))
    for row in range(0, tokens, P):
        powers, factor = exponentials(scores_of(transposed(load(q[row : row + P])), keys, size**-0.5))
        psum = nl.ndarray((P, size), nl.float32, buffer=nl.psum)
        for block in range(tokens // P):
            nisa.nc_matmul(psum, transposed(powers[:, block * P : block * P + P]), values[block])
        result = nl.ndarray((P, size), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(result, psum, op0=nl.multiply, operand0=factor)
        nisa.dma_copy(out[row : row + P], result)
    return out


@nki.jit
def flash_attention(q, k, v):
    tokens, size = q.shape
    out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
    keys, values = [], []
    for row in range(0, tokens, P):
        keys.append(transposed(load(k[row : row + P])))
        values.append(load(v[row : row + P]))
    for row in range(0, tokens, P):
        query = transposed(load(q[row : row + P]))
        largest, total = constant(P, -30000.0), constant(P, 0.0)
        result = nl.ndarray((P, size), nl.float32, buffer=nl.sbuf)
        nisa.memset(result, 0.0)
        for block in range(row // P + 1):  # the blocks of keys that a row of this tile may read
            scores = scores_of(query, keys[block], size**-0.5)
            if block * P == row:
                scores = masked(scores, row, block * P)
            largest, factor, powers, total = updated(largest, total, scores)
            psum = nl.ndarray((P, size), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum, transposed(powers), values[block])
            nisa.tensor_scalar(result, result, op0=nl.multiply, operand0=factor)
            nisa.tensor_tensor(result, result, psum, nl.add)
        nisa.reciprocal(total, total)
        nisa.tensor_scalar(result, result, op0=nl.multiply, operand0=total)
        nisa.dma_copy(out[row : row + P], result)
    return out
