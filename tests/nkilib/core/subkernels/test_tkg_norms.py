"""rmsnorm_tkg and layernorm_tkg in every layout, and indexed_flatten, against loops in float64."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.subkernels.indexed_flatten import indexed_flatten
from nkilib.core.subkernels.layernorm_tkg import layernorm_tkg
from nkilib.core.subkernels.rmsnorm_tkg import rmsnorm_tkg


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [rmsnorm_tkg, layernorm_tkg, indexed_flatten])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def spread(rows, halves=1, tp=False):
    """Rows [T, H] as [128, T, H/128], element by element."""
    tokens, size = rows.shape
    out, width = np.zeros((128, tokens, size // 128)), size // halves
    for c in range(size):
        half, inside = divmod(c, width)
        each = width // 128
        p, j = (c % 128, c // 128) if tp else (inside // each, half * each + inside % each)
        out[p, :, j] = rows[:, c]
    return out


def rms(input, gamma, eps=1e-6, hidden_actual=None):
    rows = []
    for x in input.astype(np.float64).reshape(-1, input.shape[-1]):
        rows.append(x / np.sqrt(np.dot(x, x) / (hidden_actual or len(x)) + eps) * gamma[0])
    return np.array(rows)


SHAPES = {
    "basic": (1, 2, 256),
    "one-column-each": (1, 3, 128),
    "batch": (2, 5, 512),
    "130-tokens": (1, 130, 256),
}


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("tp", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rmsnorm_layouts(shape, tp, lnc):
    x, gamma = random(shape), random((1, shape[2]), seed=1)
    out = np.zeros((128, shape[0] * shape[1], shape[2] // 128), np.float32)
    got = run(rmsnorm_tkg, x, gamma, out, hidden_dim_tp=tp, lnc=lnc)
    halves = lnc if shape[2] % 256 == 0 else 1
    near(got, spread(rms(x, gamma), halves, tp), 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rmsnorm_options(dtype):
    x, gamma = random((1, 4, 256), dtype), random((1, 256), dtype, seed=1)
    x[..., 200:] = 0
    out = np.zeros((128, 4, 2), x.dtype)
    got = run(rmsnorm_tkg, x, gamma, out, eps=1e-3, hidden_actual=200, single_core_forced=True, lnc=2)
    near(got, spread(rms(x, gamma.astype(np.float64), 1e-3, 200)), 1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("with_beta", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_layernorm(shape, with_beta, lnc):
    x, gamma = random(shape) + 3, random((1, shape[2]), seed=1)
    beta = random((1, shape[2]), seed=2) if with_beta else None
    rows = []
    for row in x.astype(np.float64).reshape(-1, shape[2]):
        centred = row - row.mean()
        rows.append(
            centred / np.sqrt(np.mean(centred**2) + 1e-6) * gamma[0] + (0 if beta is None else beta[0])
        )
    out = np.zeros((128, shape[0] * shape[1], shape[2] // 128), np.float32)
    got = run(layernorm_tkg, x, gamma, out, beta, lnc=lnc)
    near(got, spread(np.array(rows), lnc if shape[2] % 256 == 0 else 1), 1e-5)


@nki.jit
def in_sbuf(x, gamma):
    tile = nl.ndarray((128, x.shape[1], x.shape[2] // 128), x.dtype, buffer=nl.sbuf)
    rmsnorm_tkg(x, gamma, tile)
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def test_the_output_may_be_in_sbuf():
    x, gamma = random((1, 3, 256)), random((1, 256), seed=1)
    near(run(in_sbuf, x, gamma), spread(rms(x, gamma)), 1e-5)


NORM = {"input": random((1, 2, 256)), "gamma": random((1, 256)), "output": np.zeros((128, 2, 2), np.float32)}
WRONG = refusals(
    input=None, gamma=None, output=None, input__rank=random((2, 256)), input__H=random((1, 2, 100))
)
WRONG += refusals(gamma__shape=random(256), output__shape=np.zeros((128, 2, 3), np.float32))


@each([*WRONG, *refusals(hidden_actual=257)])
def test_rmsnorm_refusals(option):
    check(option, rmsnorm_tkg, NORM, rms, 0.0)


@each([*WRONG, *refusals(beta=random((1, 255)))])
def test_layernorm_refusals(option):
    check(option, layernorm_tkg, NORM, rms, 0.0)


# ---- indexed_flatten -------------------------------------------------------------------------------


def numbers(shape, dtype=np.int32):
    return np.random.default_rng(0).integers(0, 99, shape).astype(dtype)


def flattened(input_tensor, f_len, output_len, row_offsets, row_offsets_start=None, padding_val=-1):
    start = 0 if row_offsets_start is None else row_offsets_start[0]
    out = np.full(output_len, float(padding_val))
    for row in range(input_tensor.shape[0]):
        for c in range(input_tensor.shape[1]):
            place = row_offsets[start + row] * f_len + c
            if 0 <= place < output_len:
                out[place] = input_tensor[row, c]
    return out


FLAT = {
    "input_tensor": numbers((3, 8)),
    "f_len": 4,
    "output_len": 32,
    "row_offsets": np.array([4, 0, 2], np.int32),
}
FLATS = [
    Option("basic"),
    Option("f_len-1", {"f_len": 1, "row_offsets": np.array([9, 3, 30], np.int32)}),
    Option("one-block", {"f_len": 8, "row_offsets": np.array([1, 2, 0], np.int32)}),
    Option("overlap", {"row_offsets": np.array([1, 0, 1], np.int32)}),
    Option("outside", {"row_offsets": np.array([7, -1, 100], np.int32)}),
    Option(
        "start",
        {"row_offsets": np.arange(6, dtype=np.int32)[::-1].copy(), "row_offsets_start": numbers(1) * 0 + 2},
    ),
    Option("padding", {"padding_val": 5}),
    Option("float32", {"input_tensor": random((3, 8)), "padding_val": 0.5}),
    Option("one-row", {"input_tensor": numbers((1, 8))}),
    Option("long", {"input_tensor": numbers((2, 600)), "f_len": 2, "output_len": 3000}),
    Option(
        "300-rows",
        {"input_tensor": numbers((20, 4)), "row_offsets": np.arange(20, dtype=np.int32), "output_len": 80},
    ),
    Option("short-output", {"output_len": 4}),
]
FLATS = on_both(FLATS) + [Option("trn3", on="trn3")]
FLATS += refusals(
    input_tensor=None, row_offsets=None, f_len=3, f_len__zero=0, output_len=30, input_tensor__rank=numbers(8)
)
FLATS += refusals(row_offsets__few=numbers(2), row_offsets__dtype=random(3), row_offsets_start=numbers(2))


@each(FLATS)
def test_indexed_flatten(option):
    check(option, indexed_flatten, FLAT, flattened, 0.0)
