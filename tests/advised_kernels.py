"""Kernels with one mistake each, and the same kernels without it: what the advisor names is then gained."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
from nki import TensorSpec


class Pair(NamedTuple):
    kind: str  # of the finding that leads from one to the other
    before: Callable
    after: Callable
    arguments: tuple
    others: tuple = ()  # arguments of the second one, if they differ


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def loaded(source, dtype=None):
    new = tile(source.shape, dtype or source.dtype)
    nisa.dma_copy(new, source)
    return new


def rows(tensor, i):
    return tensor[128 * i : 128 * (i + 1), :]


# ---- attention: loads, then transposes, in the inner loop ----------------------------------------


def transposed(x):
    psum = tile((x.shape[1], x.shape[0]), x.dtype, nl.psum)
    nisa.nc_transpose(psum, x)
    new = tile(psum.shape, x.dtype)
    nisa.tensor_copy(new, psum)
    return new


def attention_step(i, j, query, key, value, state):
    """One block of keys: the running maximum, sum and result."""
    highest, total, result = state
    size, dtype = query.shape[1], query.dtype
    scores = tile((size, size), nl.float32, nl.psum)
    nisa.nc_matmul(scores, query, key)
    if i == j:
        masked = tile((size, size))
        nisa.tensor_copy(masked, scores)
        scores = tile((size, size))
        nisa.affine_select(
            scores,
            pattern=[[-1, size]],
            offset=0,
            channel_multiplier=1,
            on_true_tile=masked,
            on_false_value=-1e30,
            cmp_op=nl.greater_equal,
        )
    most, negative, part, shrink = (tile((size, 1)) for _ in range(4))
    nisa.tensor_reduce(most, nl.maximum, scores, axis=1)
    nisa.tensor_tensor(most, most, highest, nl.maximum)
    nisa.tensor_scalar(negative, most, nl.multiply, -1.0)
    weights = tile((size, size), dtype)
    nisa.activation(weights, nl.exp, scores, bias=negative, reduce_op=nl.add, reduce_res=part)
    nisa.activation(shrink, nl.exp, highest, bias=negative)
    new_total, new_result = tile((size, 1)), tile(result.shape)
    nisa.scalar_tensor_tensor(new_total, total, nl.multiply, shrink, nl.add, part)
    product = tile(result.shape, nl.float32, nl.psum)
    nisa.nc_matmul(product, transposed(weights), value)
    nisa.scalar_tensor_tensor(new_result, result, nl.multiply, shrink, nl.add, product)
    return most, new_total, new_result


def attention(q, k, v, keys, values):
    """`keys(j)` returns a transposed block of keys, `values(j)` a block of values."""
    out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
    for i in range(q.shape[0] // 128):
        query = transposed(loaded(rows(q, i)))
        state = tile((128, 1)), tile((128, 1)), tile((128, q.shape[1]))
        for part, start in zip(state, (-1e30, 0.0, 0.0), strict=True):
            nisa.memset(part, start)
        for j in range(i + 1):
            state = attention_step(i, j, query, keys(j), values(j), state)
        over, result = tile((128, 1)), tile((128, q.shape[1]), q.dtype)
        nisa.reciprocal(over, state[1])
        nisa.tensor_scalar(result, state[2], nl.multiply, over)
        nisa.dma_copy(rows(out, i), result)
    return out


@nki.jit
def textbook_attention(q, k, v):
    return attention(q, k, v, lambda j: transposed(loaded(rows(k, j))), lambda j: loaded(rows(v, j)))


def blocks_of(tensor):
    found = []
    for j in range(tensor.shape[0] // 128):
        found.append(loaded(rows(tensor, j)))
    return found


@nki.jit
def attention_with_hoisted_loads(q, k, v):
    keys, values = blocks_of(k), blocks_of(v)
    return attention(q, k, v, lambda j: transposed(keys[j]), lambda j: values[j])


@nki.jit
def attention_with_hoisted_transposes(q, k, v):
    values, keys = blocks_of(v), []
    for key in blocks_of(k):
        keys.append(transposed(key))
    return attention(q, k, v, lambda j: keys[j], lambda j: values[j])


# ---- matmuls -------------------------------------------------------------------------------------


def matmul(lhsT, rhs, left, right, wide=512):
    """`left(k, m)` and `right(k, n)` return tiles of the operands."""
    (K, M), N = lhsT.shape, rhs.shape[1]
    out = nl.ndarray((M, N), nl.float32, buffer=nl.shared_hbm)
    for m in range(M // 128):
        for n in range(N // wide):
            psum = tile((128, wide), nl.float32, nl.psum)
            for k in range(K // 128):
                nisa.nc_matmul(psum, left(k, m), right(k, n))
            result = tile((128, wide))
            nisa.tensor_copy(result, psum)
            nisa.dma_copy(rows(out, m)[:, wide * n : wide * (n + 1)], result)
    return out


@nki.jit
def matmul_that_loads_again(lhsT, rhs):
    return matmul(
        lhsT,
        rhs,
        lambda k, m: loaded(rows(lhsT, k)[:, 128 * m : 128 * (m + 1)]),
        lambda k, n: loaded(rows(rhs, k)[:, 512 * n : 512 * (n + 1)]),
    )


@nki.jit
def matmul_that_loads_each_tile_once(lhsT, rhs):
    left, right = {}, {}
    for k in range(lhsT.shape[0] // 128):
        for m in range(lhsT.shape[1] // 128):
            left[k, m] = loaded(rows(lhsT, k)[:, 128 * m : 128 * (m + 1)])
        for n in range(rhs.shape[1] // 512):
            right[k, n] = loaded(rows(rhs, k)[:, 512 * n : 512 * (n + 1)])
    return matmul(lhsT, rhs, lambda k, m: left[k, m], lambda k, n: right[k, n])


@nki.jit
def matmul_that_loads_once(lhsT, rhs):
    left, right = blocks_of(lhsT), blocks_of(rhs)
    return matmul(
        lhsT,
        rhs,
        lambda k, m: left[k][:, 128 * m : 128 * (m + 1)],
        lambda k, n: right[k][:, 512 * n : 512 * (n + 1)],
    )


@nki.jit
def matmul_in_one_bank(lhsT, rhs):
    left, right = blocks_of(lhsT), blocks_of(rhs)
    out = nl.ndarray((lhsT.shape[1], rhs.shape[1]), nl.float32, buffer=nl.shared_hbm)
    psum = tile((128, 512), nl.float32, nl.psum)
    for m in range(lhsT.shape[1] // 128):
        for n in range(rhs.shape[1] // 512):
            columns = slice(512 * n, 512 * (n + 1))
            for k in range(len(left)):
                nisa.nc_matmul(
                    psum, left[k][:, 128 * m : 128 * (m + 1)], right[k][:, columns], accumulate=k > 0
                )
            result = tile((128, 512))
            nisa.tensor_copy(result, psum)
            nisa.dma_copy(rows(out, m)[:, columns], result)
    return out


# ---- elementwise ---------------------------------------------------------------------------------


def each_tile(x, step, width=None):
    """Load, change and store tiles of 128 rows and `width` columns."""
    width = width or x.shape[1]
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        for j in range(x.shape[1] // width):
            columns = slice(width * j, width * (j + 1))
            nisa.dma_copy(rows(out, i)[:, columns], step(loaded(rows(x, i)[:, columns])))
    return out


def doubled(x):
    new = tile(x.shape, x.dtype)
    nisa.tensor_scalar(new, x, nl.multiply, 2.0)
    return new


@nki.jit
def small_loads(x):
    return each_tile(x, doubled, 64)


@nki.jit
def large_loads(x):
    return each_tile(x, doubled, 1024)


def activated(x, function, **options):
    new = tile(x.shape, x.dtype)
    nisa.activation(new, function, x, **options)
    return new


def five_times(step, x):
    for _ in range(5):
        x = step(x)
    return x


@nki.jit
def scaled_then_activated(x):
    return each_tile(x, lambda x: five_times(lambda x: activated(doubled(x), nl.tanh), x))


@nki.jit
def scaled_in_the_activation(x):
    return each_tile(x, lambda x: five_times(lambda x: activated(x, nl.tanh, scale=2.0), x))


def in_parts(x, steps):
    """Load x at once, apply the functions in `steps(parts)` order, store it."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    values = loaded(x)
    for j, function in steps(x.shape[1] // 512):
        part = values[:, 512 * j : 512 * (j + 1)]
        nisa.activation(part, function, part)
    nisa.dma_copy(out, values)
    return out


@nki.jit
def two_tables_in_turn(x):
    return in_parts(x, lambda parts: [(j, f) for j in range(parts) for f in (nl.exp, nl.tanh)])


@nki.jit
def one_table_after_the_other(x):
    return in_parts(x, lambda parts: [(j, f) for f in (nl.exp, nl.tanh) for j in range(parts)])


def powers(x, height, width):
    """Square x nine times, tiles of height x width."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    parts = x.reshape((-1, height, width))
    to = out.reshape((-1, height, width))
    for i in range(parts.shape[0]):
        new = loaded(parts[i])
        for _ in range(9):
            old, new = new, tile(new.shape, new.dtype)
            nisa.tensor_tensor(new, old, old, nl.multiply)
        nisa.dma_copy(to[i], new)
    return out


@nki.jit
def on_32_partitions(x):
    return powers(x, 32, 1024)


@nki.jit
def on_128_partitions(x):
    return powers(x, 128, 1024)


@nki.jit
def column_by_column(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        old, new = loaded(rows(x, i)), tile((128, x.shape[1]), x.dtype)
        for j in range(x.shape[1]):
            nisa.tensor_scalar(new[:, j : j + 1], old[:, j : j + 1], nl.multiply, 2.0)
        nisa.dma_copy(rows(out, i), new)
    return out


@nki.jit
def all_columns_at_once(x):
    return each_tile(x, doubled)


def outer_sums(x, row, spread):
    """x plus a row spread over the partitions, four times; `spread()` returns the spread row."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(x.shape[0] // 128):
        new = tile((128, x.shape[1]), x.dtype)
        nisa.tensor_tensor(new, loaded(rows(x, i)), spread(), nl.add)
        nisa.dma_copy(rows(out, i), new)
    return out


@nki.jit
def computed_in_every_iteration(x, row):
    base = loaded(row)
    return outer_sums(x, row, lambda: activated(activated(base, nl.exp), nl.exp))


@nki.jit
def computed_once(x, row):
    base = loaded(row)
    once = activated(activated(base, nl.exp), nl.exp)
    return outer_sums(x, row, lambda: once)


@nki.jit
def one_buffer_for_all_tiles(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    old, new = (tile((128, x.shape[1]), x.dtype) for _ in range(2))
    for i in range(x.shape[0] // 128):
        nisa.dma_copy(old, rows(x, i))
        nisa.tensor_scalar(new, old, nl.multiply, 2.0)
        nisa.dma_copy(rows(out, i), new)
    return out


@nki.jit
def a_buffer_for_each_tile(x):
    return each_tile(x, doubled)


@nki.jit
def everything_resident(x):
    """All tiles of x are loaded before the first one is used."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    held = []
    for i in range(x.shape[0] // 128):
        held.append(doubled(loaded(rows(x, i))))
    for i in range(x.shape[0] // 128):
        nisa.dma_copy(rows(out, i), doubled(held[i]))
    return out


@nki.jit
def tile_by_tile(x):
    return each_tile(x, lambda x: doubled(doubled(x)))


@nki.jit
def evicted_by_vector_engine(lhsT, rhs):
    return evicted(lhsT, rhs, lambda i: nisa.engine.vector)


@nki.jit
def evicted_in_turn(lhsT, rhs):
    return evicted(lhsT, rhs, lambda i: nisa.engine.vector if i % 2 else nisa.engine.scalar)


def evicted(lhsT, rhs, engine):
    left, right = loaded(lhsT), loaded(rhs)
    out = nl.ndarray((128, 16 * 512), nl.bfloat16, buffer=nl.shared_hbm)
    result = tile((128, 16 * 512), nl.bfloat16)
    for i in range(16):
        psum = tile((128, 512), nl.float32, nl.psum)
        nisa.nc_matmul(psum, left, right)
        nisa.tensor_copy(result[:, 512 * i : 512 * (i + 1)], psum, engine=engine(i))
    nisa.dma_copy(out, result)
    return out


def bf16(*shape):
    return TensorSpec(shape, "bfloat16")


def f32(*shape):
    return TensorSpec(shape, "float32")


QKV = (bf16(2048, 128),) * 3
PAIRS = {
    "attention, loads": Pair("reloaded-data", textbook_attention, attention_with_hoisted_loads, QKV),
    "attention, all": Pair("repeated-work", textbook_attention, attention_with_hoisted_transposes, QKV),
    "attention, transposes": Pair(
        "repeated-work", attention_with_hoisted_loads, attention_with_hoisted_transposes, QKV
    ),
    "matmul, loads": Pair(
        "reloaded-data",
        matmul_that_loads_again,
        matmul_that_loads_each_tile_once,
        (bf16(1024, 1024), bf16(1024, 1024)),
    ),
    "matmul, one bank": Pair(
        "psum-serial", matmul_in_one_bank, matmul_that_loads_once, (bf16(512, 1024), bf16(512, 1024))
    ),
    "matmul, float32": Pair(
        "fp32-matmul",
        matmul_that_loads_once,
        matmul_that_loads_once,
        (f32(1024, 1024),) * 2,
        (bf16(1024, 1024),) * 2,
    ),
    "small loads": Pair("small-dma", small_loads, large_loads, (f32(256, 4096),)),
    "scale, then activation": Pair(
        "two-passes", scaled_then_activated, scaled_in_the_activation, (f32(512, 2048),)
    ),
    "two tables": Pair("table-reload", two_tables_in_turn, one_table_after_the_other, (f32(128, 8192),)),
    "32 partitions": Pair("unused-partitions", on_32_partitions, on_128_partitions, (f32(1024, 1024),)),
    "column by column": Pair("short-instructions", column_by_column, all_columns_at_once, (f32(256, 256),)),
    "computed again": Pair(
        "repeated-work", computed_in_every_iteration, computed_once, (bf16(2048, 1024), bf16(128, 1024))
    ),
    "one buffer": Pair("engine-idle", one_buffer_for_all_tiles, a_buffer_for_each_tile, (f32(2048, 2048),)),
    "resident": Pair("spill", everything_resident, tile_by_tile, (f32(128 * 64, 2048),)),
    "eviction": Pair(
        "psum-eviction", evicted_by_vector_engine, evicted_in_turn, (bf16(128, 128), bf16(128, 512))
    ),
}
