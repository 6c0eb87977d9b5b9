"""Findings about passes and engines: each said of a kernel, its gain held against the kernel it asks for."""

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.timing.advisor import advise
from support import target

X = nki.TensorSpec((2048, 512), "float32")
WITHIN = 0.20


def timeline_of(body, platform="trn2", spec=X):
    def kernel(x):
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        body(x, out)
        return out

    with target(platform):
        return nki.profile(kernel)(spec).timeline


def finding(timeline, kind):
    found = [finding for finding in advise(timeline) if finding.kind == kind]
    assert found, [f.kind for f in advise(timeline)]
    return found[0]


def tile(shape=(128, 512), dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def rows(x):
    """Each block of rows, loaded."""
    for start in range(0, x.shape[0], 128):
        t = tile((128, x.shape[1]), x.dtype)
        nisa.dma_copy(t, x[start : start + 128])
        yield slice(start, start + 128), t


def heavy(t, vector=0, scalar=0):
    """Work that makes an engine the bound."""
    for _ in range(vector):
        nisa.tensor_tensor(t, t, t, nl.maximum, engine=nisa.engine.vector)
    for _ in range(scalar):
        nisa.activation(t, nl.relu, t)


# ---- two passes that one instruction can do ------------------------------------------------------


def exp_then_sum(x, out):
    for span, t in rows(x):
        e, total = tile(), tile((128, 1))
        nisa.activation(e, nl.exp, t)
        nisa.tensor_reduce(total, nl.add, e, axis=1)
        heavy(e, vector=2)
        nisa.tensor_scalar(e, e, nl.multiply, total)
        nisa.dma_copy(out[span], e)


def exp_with_sum(x, out):
    for span, t in rows(x):
        e, total = tile(), tile((128, 1))
        nisa.activation(
            e, nl.exp, t, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce
        )
        heavy(e, vector=2)
        nisa.tensor_scalar(e, e, nl.multiply, total)
        nisa.dma_copy(out[span], e)


def scale_then_exp(x, out):
    for span, t in rows(x):
        scaled = tile()
        nisa.tensor_scalar(scaled, t, nl.multiply, 0.5, op1=nl.add, operand1=1.0, engine=nisa.engine.vector)
        nisa.activation(t, nl.exp, scaled)
        heavy(t, vector=1)
        nisa.dma_copy(out[span], t)


def exp_with_scale(x, out):
    bias = tile((128, 1))
    nisa.memset(bias, 1.0)
    for span, t in rows(x):
        nisa.activation(t, nl.exp, t, scale=0.5, bias=bias)
        heavy(t, vector=1)
        nisa.dma_copy(out[span], t)


def cast_after(x, out):
    for span, t in rows(x):
        narrow, wide = tile(dtype=nl.bfloat16), tile()
        heavy(t, vector=3)
        nisa.tensor_tensor(wide, t, t, nl.multiply, engine=nisa.engine.vector)
        nisa.tensor_copy(narrow, wide, engine=nisa.engine.vector)
        nisa.dma_copy(out[span], narrow)


def cast_at_once(x, out):
    for span, t in rows(x):
        narrow = tile(dtype=nl.bfloat16)
        heavy(t, vector=3)
        nisa.tensor_tensor(narrow, t, t, nl.multiply, engine=nisa.engine.vector)
        nisa.dma_copy(out[span], narrow)


def multiply_then_add(x, out):
    total = tile()
    nisa.memset(total, 0.0)
    for _, t in rows(x):
        part = tile()
        nisa.tensor_scalar(part, t, nl.multiply, 0.5, engine=nisa.engine.vector)
        nisa.tensor_tensor(total, total, part, nl.add, engine=nisa.engine.vector)
    nisa.dma_copy(out[0:128], total)


def multiply_and_add(x, out):
    total = tile()
    nisa.memset(total, 0.0)
    for _, t in rows(x):
        nisa.scalar_tensor_tensor(total, t, nl.multiply, 0.5, nl.add, total)
    nisa.dma_copy(out[0:128], total)


# ---- who does it ---------------------------------------------------------------------------------


def copies(engines):
    def body(x, out):
        for i, (span, t) in enumerate(rows(x)):
            copy = tile()
            heavy(t, vector=2)
            nisa.tensor_copy(copy, t, engine=engines[i % len(engines)])
            nisa.tensor_tensor(copy, copy, t, nl.add, engine=nisa.engine.vector)
            nisa.dma_copy(out[span], copy)

    return body


def evictions(engines):
    def body(x, out):
        identity = tile((128, 128))
        nisa.memset(identity, 0.0)
        for i, (span, t) in enumerate(rows(x)):
            bank, copy = tile(buffer=nl.psum), tile()
            nisa.nc_matmul(bank, identity, t)
            heavy(t, vector=1)
            nisa.tensor_copy(copy, bank, engine=engines[i % len(engines)])
            nisa.tensor_tensor(copy, copy, t, nl.add, engine=nisa.engine.vector)
            nisa.dma_copy(out[span], copy)

    return body


def pieces(x, out):
    for span, t in rows(x):
        for column in range(0, 512, 8):
            part = t[:, column : column + 8]
            nisa.tensor_scalar(part, part, nl.multiply, 2.0, engine=nisa.engine.vector)
        nisa.dma_copy(out[span], t)


def in_one(x, out):
    for span, t in rows(x):
        nisa.tensor_scalar(t, t, nl.multiply, 2.0, engine=nisa.engine.vector)
        nisa.dma_copy(out[span], t)


def turned_by_dma(x, out):
    for start in range(0, 2048, 128):
        t = tile((128, 128))
        nisa.dma_transpose(t, x[start : start + 128, 0:128])
        nisa.dma_copy(out[start : start + 128, 0:128], t)


def turned_by_tensor_engine(x, out):
    for start in range(0, 2048, 128):
        t, turned, copy = tile((128, 128)), tile((128, 128), buffer=nl.psum), tile((128, 128))
        nisa.dma_copy(t, x[start : start + 128, 0:128])
        nisa.nc_transpose(turned, t, engine=nisa.engine.tensor)
        nisa.tensor_copy(copy, turned)
        nisa.dma_copy(out[start : start + 128, 0:128], copy)


VECTOR, SCALAR = nisa.engine.vector, nisa.engine.scalar
ADVICE = {  # kind -> kernels before and after, platform
    "two-passes: exp and row sum": (exp_then_sum, exp_with_sum, "trn2"),
    "two-passes: scale, bias and activation": (scale_then_exp, exp_with_scale, "trn2"),
    "two-passes: copy with cast": (cast_after, cast_at_once, "trn2"),
    "two-passes: multiply and accumulate": (multiply_then_add, multiply_and_add, "trn2"),
    "other-engine": (copies([VECTOR]), copies([SCALAR]), "trn2"),
    "psum-eviction": (evictions([VECTOR]), evictions([SCALAR]), "trn2"),
    "short-instructions": (pieces, in_one, "trn2"),
    "dma-transpose": (turned_by_dma, turned_by_tensor_engine, "trn1"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_change_gains_what_was_predicted(name):
    before, after, platform = ADVICE[name]
    slow, fast = timeline_of(before, platform), timeline_of(after, platform)
    found = finding(slow, name.partition(":")[0])
    gained = slow.total_us - fast.total_us
    assert gained > 0
    assert found.gain_us == pytest.approx(gained, rel=WITHIN)
    assert found.lines and found.detail


@pytest.mark.parametrize("name", ADVICE)
def test_the_better_kernel_does_not_get_the_same_finding(name):
    _, after, platform = ADVICE[name]
    kind = name.partition(":")[0]
    assert kind not in [f.kind for f in advise(timeline_of(after, platform))]


def test_a_tile_that_others_read_too_is_needed():
    def body(x, out):
        for span, t in rows(x):
            scaled = tile()
            nisa.tensor_scalar(scaled, t, nl.multiply, 0.5, engine=nisa.engine.vector)
            nisa.activation(t, nl.exp, scaled)
            nisa.tensor_tensor(t, t, scaled, nl.add)
            nisa.dma_copy(out[span], t)

    assert "two-passes" not in [f.kind for f in advise(timeline_of(body))]
