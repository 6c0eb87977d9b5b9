"""Small kernels between those of the library, for models with linear attention: 128 tokens at a time."""

import nki
import nki.language as nl


@nki.jit
def activated_heads(x, normalize, eps=1e-6):
    """silu(x) for x [T, heads, d], each head divided by its norm if `normalize`."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    step = nl.tile_size.pmax
    for start in range(nl.program_id(0) * step, x.shape[0], nl.num_programs(0) * step):  # cores take turns
        rows = slice(start, min(start + step, x.shape[0]))
        y = nl.silu(nl.load(x[rows]), dtype=nl.float32)
        if normalize:
            squares = nl.sum(nl.square(y), axis=2, keepdims=True)
            y = nl.multiply(y, nl.rsqrt(nl.add(squares, eps)).broadcast(2, x.shape[2]))
        nl.store(out[rows], y)
    return out


@nki.jit
def gates(a, b, a_log, dt_bias):
    """The logs of the decays, -exp(a_log) softplus(a + dt_bias), and the rates, sigmoid(b): [T, heads]."""
    g = nl.ndarray(a.shape, nl.float32, buffer=nl.shared_hbm)
    beta = nl.ndarray(a.shape, nl.float32, buffer=nl.shared_hbm)
    step = nl.tile_size.pmax
    for start in range(nl.program_id(0) * step, a.shape[0], nl.num_programs(0) * step):
        rows = slice(start, min(start + step, a.shape[0]))
        count = rows.stop - rows.start
        rate = nl.exp(nl.load(a_log.broadcast(0, count)), dtype=nl.float32)
        shifted = nl.add(nl.load(a[rows]), nl.load(dt_bias.broadcast(0, count)), dtype=nl.float32)
        nl.store(g[rows], nl.negative(nl.multiply(rate, nl.softplus(shifted))))
        nl.store(beta[rows], nl.sigmoid(nl.load(b[rows]), dtype=nl.float32))
    return g, beta


@nki.jit
def gated_norm(x, gate, weight, silu, eps=1e-6):
    """RMSNorm(x) weight silu(gate), or sigmoid(gate), for heads x [T, heads, d] and weight [d]."""
    out = nl.ndarray(x.shape, gate.dtype, buffer=nl.shared_hbm)
    step = nl.tile_size.pmax
    for start in range(nl.program_id(0) * step, x.shape[0], nl.num_programs(0) * step):
        rows = slice(start, min(start + step, x.shape[0]))
        y, z = nl.load(x[rows], dtype=nl.float32), nl.load(gate[rows])
        mean = nl.mean(nl.square(y), axis=2, keepdims=True)
        y = nl.multiply(y, nl.rsqrt(nl.add(mean, eps)).broadcast(2, x.shape[2]))
        scale = nl.load(weight.expand_dim(0).broadcast(0, rows.stop - rows.start))
        y = nl.multiply(y, scale.expand_dim(1).broadcast(1, x.shape[1]))
        factor = nl.silu(z, dtype=nl.float32) if silu else nl.sigmoid(z, dtype=nl.float32)
        nl.store(out[rows], nl.multiply(y, factor))
    return out


@nki.jit
def gated(x, gate):
    """x sigmoid(gate), both [T, N]."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    step = nl.tile_size.pmax
    for start in range(nl.program_id(0) * step, x.shape[0], nl.num_programs(0) * step):
        rows = slice(start, min(start + step, x.shape[0]))
        factor = nl.sigmoid(nl.load(gate[rows]), dtype=nl.float32)
        nl.store(out[rows], nl.multiply(nl.load(x[rows]), factor))
    return out
