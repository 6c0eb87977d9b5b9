"""Units: equal and independent parts of a program are found, and nothing else is taken for them."""

from __future__ import annotations

import random
import threading

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from backend_agreement import assert_agrees
from nki.backends.fused.planner import plan_of
from nki.backends.fused.runner import PlanRunner
from nki.backends.fused.storages import Storages
from nki.backends.lowered import lower
from nki.backends.units import find_units
from nkilib.core.attention.attention_cte import attention_cte
from support import target

UNITS, ROWS, WIDTH = 5, 128, 64
SPOILED = 3  # the unit that differs in a near miss


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def tile(rows=ROWS, columns=WIDTH, dtype=nl.float32, buffer=None):
    return nl.ndarray((rows, columns), dtype, buffer=buffer or nl.sbuf)


@nki.jit
def softmaxes(x, w, spoil=""):
    """exp(x[unit] @ w), scaled by its row sums; `spoil` makes one unit different, or dependent on another."""
    out = nl.ndarray((UNITS * ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
    weight, shared, total = tile(WIDTH, WIDTH), tile(), tile(ROWS, 1)
    nisa.dma_copy(weight, w)
    nisa.memset(shared, 1.0)
    nisa.memset(total, 0.0)
    one_sum = tile(buffer=nl.psum)
    for unit in range(UNITS):
        spoiled = spoil if unit == SPOILED else ""
        row = unit * ROWS
        data, transposed, scores = tile(), tile(WIDTH, ROWS), tile()
        nisa.dma_copy(data[:, 0:32], x[row : row + ROWS, 0:32])
        second = x[0:ROWS] if spoiled == "address" else x[row : row + ROWS]
        nisa.dma_copy(data[:, 32:64], second[:, 32:64])
        if spoil == "warning":
            nisa.activation(data, nl.sqrt, data)
        swapped = tile(WIDTH, ROWS, buffer=nl.psum)
        nisa.nc_transpose(swapped, data)
        nisa.tensor_copy(transposed, swapped)
        psum = one_sum if spoil == "sum" else tile(buffer=nl.psum)
        nisa.nc_matmul(psum, transposed, weight)
        exps = tile(dtype=nl.bfloat16 if spoiled == "dtype" else nl.float32)
        sums = tile(ROWS, 1)
        command = nisa.reduce_cmd.reduce if spoiled == "registers" else nisa.reduce_cmd.reset_reduce
        nisa.activation(exps, nl.exp, psum, reduce_op=nl.add, reduce_res=sums, reduce_cmd=command)
        nisa.reciprocal(sums, sums)
        nisa.tensor_scalar(scores, exps, nl.multiply, 2.0 if spoiled == "number" else 1.0)
        nisa.tensor_tensor(scores, scores, shared, nl.multiply)
        nisa.activation(scores, nl.copy, scores, scale=sums)
        if spoiled == "written":
            nisa.tensor_scalar(shared, shared, nl.multiply, 3.0)
        if spoil == "kept":
            nisa.tensor_tensor(total, total, sums, nl.add)
            nisa.tensor_scalar(scores, scores, nl.multiply, total)
        if spoiled == "read back":
            nisa.dma_copy(scores, out[0:ROWS])
        place = (UNITS - 1 - unit) * ROWS if spoil == "backwards" else row
        place = 0 if spoiled == "overlap" else place
        nisa.dma_copy(out[place : place + ROWS], scores)
    return out


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32) / np.float32(8)


def units_of(program):
    lowered = lower(program)
    storages = Storages(lowered)
    return find_units(lowered, 0, storages.written, storages.write_once)


def planned(program):
    """Return how often each unit of the plan is repeated."""
    (core,) = plan_of(lower(program), forced=True).cores
    return [len(unit.shifts) for unit in core.units]


def test_units_share_what_is_read_alone():
    program = softmaxes.trace(numbers(UNITS * ROWS, WIDTH), numbers(WIDTH, WIDTH))
    found = units_of(program)
    (unit,) = found.units
    names = [type(program.cores[0][number]).__name__ for number in found.common]
    assert sorted(names) == ["DmaCopy", "Memset", "Memset"]
    assert [set(row.values()) for row in unit.shifts] == [{4 * n * ROWS * WIDTH} for n in range(UNITS)]
    assert found.registers == {"scalar": (0, UNITS - 1)}
    assert planned(program) == [UNITS]


@nki.jit
def viewed(x, y):
    """Units that read HBM of float32 as bfloat16."""
    halves, out = x.view(nl.bfloat16), nl.ndarray((UNITS * 64, 64), nl.float32, buffer=nl.shared_hbm)
    for row in range(0, UNITS * 64, 64):
        a, b = nl.ndarray((64, 64), nl.bfloat16), nl.ndarray((64, 64), nl.bfloat16)
        nisa.dma_copy(a, halves[row : row + 64])
        nisa.dma_copy(b, y[row : row + 64])
        psum, tile = nl.ndarray((64, 64), nl.float32, buffer=nl.psum), nl.ndarray((64, 64), nl.float32)
        nisa.nc_matmul(psum, a, b)
        nisa.activation(tile, nl.exp, psum)
        nisa.dma_copy(out[row : row + 64], tile)
    return out


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_units_move_by_bytes_where_memory_is_viewed_as_another_dtype(backend):
    if backend == "torch":
        pytest.importorskip("torch")
    y = numbers(UNITS * 64, 64).astype(nl.bfloat16.storage)
    arrays = y.view(np.float32), y
    program = viewed.trace(*arrays)
    assert planned(program) == [UNITS]
    assert assert_agrees(program, arrays, backend, tolerance=1e-5) == "ran"


@nki.jit
def signs(x):
    """Units with a tile whose parts are viewed as another dtype, so that no value stands for it."""
    out = nl.ndarray((4 * 64, 64), nl.float32, buffer=nl.shared_hbm)
    for row in range(0, 4 * 64, 64):
        a, b = tile(64, 64), tile(64, 64)
        for half in (slice(0, 32), slice(32, 64)):
            nisa.dma_copy(a[:, half], x[row : row + 64, half])
        bits = a.view(nl.int32)
        nisa.tensor_scalar(bits, bits, nl.bitwise_and, 0x7FFFFFFF)
        nisa.activation(b, nl.exp, a)
        nisa.dma_copy(out[row : row + 64], b)
    return out


def test_units_in_threads_have_memory_of_their_own_for_tiles_that_are_not_tracked(monkeypatch):
    x = numbers(4 * 64, 64)
    program = signs.trace(x)
    assert planned(program) == [4]
    together, run = threading.Barrier(4, timeout=60), PlanRunner._instruction

    def in_step(self, step):
        run(self, step)
        together.wait()

    monkeypatch.setattr(PlanRunner, "_instruction", in_step)
    assert assert_agrees(program, [x], OPEN_NKI_THREADS="4") == "ran"


@nki.jit
def with_numbers(x, differ):
    """Units that are equal but for one number, of the kind that `differ` names."""
    out = nl.ndarray((UNITS * ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
    for unit in range(UNITS):
        rows, data, found = slice(unit * ROWS, (unit + 1) * ROWS), tile(), tile()
        nisa.dma_copy(data, x[rows])
        if differ == "offset of iota":
            columns = tile(dtype=nl.int32)
            nisa.iota(columns, [[1, WIDTH]], offset=unit)
            nisa.tensor_tensor(found, data, columns, nl.multiply)
        elif differ == "offset of affine_select":
            options = {"on_true_tile": data, "on_false_value": 0.5, "cmp_op": nl.greater_equal}
            nisa.affine_select(found, pattern=[[1, WIDTH]], channel_multiplier=-1, offset=unit, **options)
        else:
            kind = np.float32 if differ == "sign of np.float32(0)" else float
            zero = kind(-0.0 if unit % 2 else 0.0)
            nisa.tensor_scalar(found, data, nl.multiply, zero)
            if differ == "sign of a fill":
                nisa.memset(found, zero)
        nisa.dma_copy(out[rows], found)
    return out


@pytest.mark.parametrize("backend", ["fused", "torch"])
@pytest.mark.parametrize(
    "differ",
    [
        "offset of iota",
        "offset of affine_select",
        "sign of 0.0",
        "sign of np.float32(0)",
        "sign of a fill",
    ],
)
def test_units_that_differ_in_a_number_are_not_equal(differ, backend):
    if backend == "torch":
        pytest.importorskip("torch")
    x = np.tile(np.abs(numbers(ROWS, WIDTH)) + 1, (UNITS, 1))
    program = with_numbers.trace(x, differ)
    assert UNITS not in planned(program)
    assert assert_agrees(program, [x], backend, exact=True) == "ran"
    found = program.run(x)
    changes = {found[row : row + ROWS].tobytes() for row in range(0, UNITS * ROWS, ROWS)}
    assert len(changes) == (2 if "sign" in differ else UNITS)


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize(
    ("spoil", "units"),
    [
        ("", [UNITS]),
        ("address", []),
        ("dtype", [UNITS - 1]),
        ("number", [UNITS - 1]),
        ("registers", []),
        ("sum", []),
        ("written", []),
        ("kept", []),
        ("read back", []),
        ("overlap", []),
        ("backwards", []),
    ],
)
def test_a_unit_that_differs_is_planned_apart_and_one_that_depends_on_another_ends_all(spoil, units, threads):
    arrays = [numbers(UNITS * ROWS, WIDTH), numbers(WIDTH, WIDTH)]
    program = softmaxes.trace(*arrays, spoil)
    assert planned(program) == units
    assert assert_agrees(program, arrays, OPEN_NKI_THREADS=threads) == "ran"


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_warning_in_a_unit_comes_from_the_reference(threads):
    arrays = [np.abs(numbers(UNITS * ROWS, WIDTH)), numbers(WIDTH, WIDTH)]
    program = softmaxes.trace(*arrays, "warning")
    assert planned(program) == [UNITS]
    assert assert_agrees(program, arrays, OPEN_NKI_THREADS=threads) == "ran"
    arrays[0][3 * ROWS + 7, 5] = -1  # assert_agrees compares the warnings, with their lines
    assert assert_agrees(program, arrays, OPEN_NKI_THREADS=threads) == "dropped"


@nki.jit
def random_units(x, w, seed, spoiled):
    """Units of random instructions, interleaved as a pipeline; one unit or none differs."""
    body = random.Random(seed)
    out = nl.ndarray((UNITS * ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
    weight, bias = tile(WIDTH, WIDTH, x.dtype), tile(ROWS, WIDTH)
    nisa.dma_copy(weight, w)
    nisa.memset(bias, 0.5)
    names = [
        body.choice(("exp", "add", "product", "halves", "sum", "copy")) for _ in range(body.randint(2, 7))
    ]
    chances = [body.random() for _ in names]
    delay = body.choice((0, 1, len(names) + 2))  # 0: in step; large: one after the other
    state = {}
    for time in range(len(names) + 2 + delay * UNITS):
        for unit in range(UNITS):
            step = time - delay * unit
            if step == 0:
                state[unit] = tile(dtype=x.dtype)
                nisa.dma_copy(state[unit], x[unit * ROWS : (unit + 1) * ROWS])
            elif 0 < step <= len(names):
                name = names[step - 1] if (unit, step) != spoiled else "copy"
                state[unit] = applied(name, chances[step - 1], state[unit], weight, bias)
            elif step == len(names) + 1:
                nisa.dma_copy(out[unit * ROWS : (unit + 1) * ROWS], state[unit])
    return out


def applied(name, chance, data, weight, bias):
    """Return a new tile, computed from another one."""
    found = tile()
    if name == "exp":
        nisa.activation(found, nl.tanh, data, scale=chance)
    elif name == "add":
        nisa.tensor_tensor(found, data, bias, nl.add)
    elif name == "copy":
        nisa.tensor_copy(found, data)
    elif name == "sum":
        total = tile(ROWS, 1)
        nisa.tensor_reduce(total, nl.add, data, axis=1)
        nisa.tensor_scalar(found, data, nl.subtract, total)
    elif name == "halves":
        at = 16 + int(chance * 32)
        nisa.tensor_scalar(found[:, :at], data[:, :at], nl.multiply, chance)
        nisa.tensor_copy(found[:, at:], data[:, at:])
    else:
        swapped, transposed = tile(WIDTH, ROWS, data.dtype, nl.psum), tile(WIDTH, ROWS, weight.dtype)
        nisa.nc_transpose(swapped, data)
        nisa.tensor_copy(transposed, swapped)
        product = tile(buffer=nl.psum)
        nisa.nc_matmul(product, transposed, weight)
        nisa.activation(found, nl.tanh, product)
    return found


@pytest.mark.parametrize("seed", range(24))
def test_random_units_agree_with_the_reference(seed):
    chance = random.Random(seed)
    dtype = chance.choice((np.float32, ml_dtypes.bfloat16))
    arrays = [numbers(UNITS * ROWS, WIDTH).astype(dtype), numbers(WIDTH, WIDTH).astype(dtype)]
    spoiled = (chance.randrange(UNITS), chance.randint(1, 7)) if seed % 3 == 0 else None
    program = random_units.trace(*arrays, seed, spoiled)
    if spoiled is None:
        assert planned(program) == [UNITS]
    assert assert_agrees(program, arrays, OPEN_NKI_THREADS=chance.choice("12")) == "ran"


@pytest.mark.parametrize("keys", [1, 2, 4])
def test_heads_of_attention_are_units(keys):
    arrays = [numbers(4, 256, 128), numbers(keys, 128, 256), numbers(keys, 256, 128)]
    arrays = [a.astype(ml_dtypes.bfloat16) for a in arrays]
    program = attention_cte.trace(*arrays)
    assert planned(program) == ([2, 2] if keys == 2 else [4])
    assert assert_agrees(program, arrays, OPEN_NKI_THREADS="2") == "ran"


def test_a_blocked_matmul_stays_one_product():
    """Units of nothing but products are merged into large ones."""

    @nki.jit
    def products(x, w):
        out = nl.ndarray((UNITS * ROWS, WIDTH), nl.float32, buffer=nl.shared_hbm)
        for unit in range(UNITS):
            left, right, psum, result = tile(WIDTH, ROWS), tile(WIDTH, WIDTH), tile(buffer=nl.psum), tile()
            nisa.dma_copy(left, x[:, unit * ROWS : (unit + 1) * ROWS])
            nisa.dma_copy(right, w)
            nisa.nc_matmul(psum, left, right)
            nisa.tensor_copy(result, psum)
            nisa.dma_copy(out[unit * ROWS : (unit + 1) * ROWS], result)
        return out

    program = products.trace(numbers(WIDTH, UNITS * ROWS), numbers(WIDTH, WIDTH))
    assert planned(program) == []
    (step,) = plan_of(lower(program), forced=True).cores[0].steps
    assert step.left.columns == UNITS * ROWS
