"""The three problems in Pallas, for a TPU's memories. `interpret` is True or `pltpu.InterpretParams`."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from benchmarks.compare.problems import COLUMNS, DEPTH, HEAD, ROWS


def matmul_kernel(lhsT, rhs, out):
    @pl.when(pl.program_id(2) == 0)
    def _():
        out[...] = jnp.zeros_like(out)

    out[...] += jnp.dot(lhsT[...].T, rhs[...], preferred_element_type=jnp.float32)


def matmul(interpret):
    def call(lhsT, rhs):
        (K, M), N = lhsT.shape, rhs.shape[1]
        return pl.pallas_call(
            matmul_kernel,
            grid=(M // ROWS, N // COLUMNS, K // DEPTH),
            in_specs=[
                pl.BlockSpec((DEPTH, ROWS), lambda m, n, k: (k, m)),
                pl.BlockSpec((DEPTH, COLUMNS), lambda m, n, k: (k, n)),
            ],
            out_specs=pl.BlockSpec((ROWS, COLUMNS), lambda m, n, k: (m, n)),
            out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
            interpret=interpret,
        )(lhsT, rhs)

    return jax.jit(call)


def softmax_kernel(x, out):
    grown = jnp.exp(x[...] - x[...].max(axis=1, keepdims=True))
    out[...] = grown / grown.sum(axis=1, keepdims=True)


def softmax(interpret):
    def call(x):
        rows = pl.BlockSpec((ROWS, x.shape[1]), lambda row: (row, 0))
        return pl.pallas_call(
            softmax_kernel,
            grid=(x.shape[0] // ROWS,),
            in_specs=[rows],
            out_specs=rows,
            out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
            interpret=interpret,
        )(x)

    return jax.jit(call)


def attention_kernel(q, k, v, out, maximum, total):
    @pl.when(pl.program_id(1) == 0)
    def _():
        maximum[...] = jnp.full_like(maximum, -1e30)
        total[...] = jnp.zeros_like(total)
        out[...] = jnp.zeros_like(out)

    scores = jnp.dot(q[...], k[...].T, preferred_element_type=jnp.float32) * HEAD**-0.5
    new = jnp.maximum(maximum[...], scores.max(axis=1, keepdims=True))
    factor = jnp.exp(maximum[...] - new)
    grown = jnp.exp(scores - new)
    total[...] = total[...] * factor + grown.sum(axis=1, keepdims=True)
    out[...] = out[...] * factor + jnp.dot(grown, v[...], preferred_element_type=jnp.float32)
    maximum[...] = new

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        out[...] = out[...] / total[...]


def attention(interpret):
    def call(q, k, v):
        queries = pl.BlockSpec((ROWS, HEAD), lambda row, key: (row, 0))
        keys = pl.BlockSpec((ROWS, HEAD), lambda row, key: (key, 0))
        return pl.pallas_call(
            attention_kernel,
            grid=(q.shape[0] // ROWS, k.shape[0] // ROWS),
            in_specs=[queries, keys, keys],
            out_specs=queries,
            out_shape=jax.ShapeDtypeStruct(q.shape, jnp.float32),
            scratch_shapes=[pltpu.VMEM((ROWS, 1), jnp.float32), pltpu.VMEM((ROWS, 1), jnp.float32)],
            interpret=interpret,
        )(q, k, v)

    return jax.jit(call)
