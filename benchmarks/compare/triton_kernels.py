"""The three problems in Triton. TRITON_INTERPRET=1 must be set before this is imported."""

import torch
import triton
import triton.language as tl

from benchmarks.compare.problems import COLUMNS, DEPTH, HEAD, ROWS


@triton.jit
def matmul_kernel(lhsT, rhs, out, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    m = tl.program_id(0) * TM + tl.arange(0, TM)
    n = tl.program_id(1) * TN + tl.arange(0, TN)
    total = tl.zeros((TM, TN), tl.float32)
    for start in range(0, K, TK):
        k = start + tl.arange(0, TK)
        left = tl.load(lhsT + k[None, :] * M + m[:, None])
        right = tl.load(rhs + k[:, None] * N + n[None, :])
        total += tl.dot(left, right)
    tl.store(out + m[:, None] * N + n[None, :], total)


def matmul(lhsT, rhs):
    (K, M), N = lhsT.shape, rhs.shape[1]
    out = torch.empty((M, N))
    matmul_kernel[(M // ROWS, N // COLUMNS)](lhsT, rhs, out, M, N, K, ROWS, COLUMNS, DEPTH)
    return out


@triton.jit
def softmax_kernel(x, out, WIDTH: tl.constexpr, TM: tl.constexpr):
    at = (tl.program_id(0) * TM + tl.arange(0, TM))[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tile = tl.load(x + at)
    grown = tl.exp(tile - tl.max(tile, axis=1)[:, None])
    tl.store(out + at, grown / tl.sum(grown, axis=1)[:, None])


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0] // ROWS,)](x, out, x.shape[1], ROWS)
    return out


@triton.jit
def attention_kernel(q, k, v, out, keys, scale, TM: tl.constexpr, WIDTH: tl.constexpr):
    wide = tl.arange(0, WIDTH)
    at = (tl.program_id(0) * TM + tl.arange(0, TM))[:, None] * WIDTH + wide[None, :]
    query = tl.load(q + at)
    maximum = tl.full((TM,), -1e30, tl.float32)
    total = tl.zeros((TM,), tl.float32)
    result = tl.zeros((TM, WIDTH), tl.float32)
    for start in range(0, keys, TM):
        key = (start + tl.arange(0, TM))[:, None] * WIDTH + wide[None, :]
        scores = tl.dot(query, tl.trans(tl.load(k + key))) * scale
        new = tl.maximum(maximum, tl.max(scores, axis=1))
        factor = tl.exp(maximum - new)
        grown = tl.exp(scores - new[:, None])
        total = total * factor + tl.sum(grown, axis=1)
        result = result * factor[:, None] + tl.dot(grown, tl.load(v + key))
        maximum = new
    tl.store(out + at, result / total[:, None])


def attention(q, k, v):
    out = torch.empty_like(q)
    attention_kernel[(q.shape[0] // ROWS,)](q, k, v, out, k.shape[0], HEAD**-0.5, ROWS, HEAD)
    return out
