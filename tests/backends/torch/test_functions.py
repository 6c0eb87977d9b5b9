"""Every operator, function and instruction that kernels commonly use gives on tensors what numpy gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.operators import OPERATORS
from support import target

torch = pytest.importorskip("torch")
from backend_agreement import assert_agrees, torch_results  # noqa: E402
from nki.backends.torch.runner import DeviceRunner  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FLOATS = (nl.float32, nl.bfloat16, nl.float16, nl.float8_e4m3, nl.float8_e5m2)
INTEGERS = (nl.int32, nl.uint32, nl.int16, nl.uint16, nl.int8, nl.uint8)
P, F, N = 16, 24, 3  # partitions and elements of a tile; tiles

pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def all_there(monkeypatch):
    """No step goes through the host; the newest machine, which has every operator."""

    def refuse(runner, step, arrays, why):
        raise AssertionError(f"{step.node.instruction.public} is not supported: {why}")

    monkeypatch.setattr(DeviceRunner, "_on_host", refuse)
    with target("trn3"):
        yield


def numbers(dtype, shape=(N * P, F), seed=0):
    chance = np.random.default_rng(seed)
    name = str(dtype)
    if name.startswith(("int", "uint")):
        limits = np.iinfo(name)
        mixed = chance.integers(limits.min, limits.max, shape, dtype=np.int64, endpoint=True)
        small = chance.integers(0, 9, shape)
        return np.where(chance.random(shape) < 0.5, small, mixed).astype(name)
    values = chance.standard_normal(shape).astype(np.float32) * 3
    if name == "float32":
        values.flat[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]
    return values.astype(nl.float32.storage if name == "float32" else dtype.storage)


def tiles_of(body, out=nl.float32, columns=F):
    """A kernel that does `body(dst, *tiles)` for each of N tiles of its arguments."""

    @nki.jit
    def kernel(*tensors):
        result = nl.ndarray((N * P, columns), out, buffer=nl.shared_hbm)
        for i in range(N):
            tiles = []
            for tensor in tensors:
                tile = nl.ndarray((P, tensor.shape[1]), tensor.dtype)
                nisa.dma_copy(tile, tensor[i * P : (i + 1) * P])
                tiles.append(tile)
            dst = nl.ndarray((P, columns), out)
            body(dst, *tiles)
            nisa.dma_copy(result[i * P : (i + 1) * P], dst)
        return result

    return kernel


def same(kernel, arrays, device, ulps=0):
    """The same bits, or numbers that are so many units of the last place apart; NaN is NaN."""
    program = kernel.trace(*arrays)
    found = torch_results(program, arrays, device)
    assert not isinstance(found, str), found
    with nki.options(executor="reference"):
        wanted = program.run(*arrays)
    if found.tobytes() == wanted.tobytes():
        return
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    assert (np.isnan(a) == np.isnan(b)).all()
    known = ~np.isnan(a)
    if ulps:
        step = np.spacing(np.abs(wanted[known].astype(np.float32))).astype(np.float64)
        finite = np.isfinite(a[known]) & np.isfinite(b[known])
        assert (a[known][~finite] == b[known][~finite]).all()
        assert (np.abs(a[known][finite] - b[known][finite]) <= ulps * step[finite]).all()
    else:
        assert (found[known] == wanted[known]).all()


# ---- casts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_dtype", (*FLOATS, *INTEGERS), ids=str)
@pytest.mark.parametrize("source", (*FLOATS, *INTEGERS), ids=str)
def test_casts_give_the_same_bits(source, target_dtype, device):
    same(tiles_of(lambda dst, x: nisa.tensor_copy(dst, x), target_dtype), [numbers(source)], device)


def test_every_float32_rounds_to_the_same_narrow_number(device):
    chance = np.random.default_rng(1)
    bits = chance.integers(0, 2**32, (N * P, 512), dtype=np.uint32)
    bits[:, ::2] &= np.uint32(0xFFFF8000)  # halves between two narrow numbers
    x = bits.view(np.float32)
    for dtype in (nl.bfloat16, nl.float16, nl.float8_e4m3, nl.float8_e5m2):
        same(tiles_of(lambda dst, t: nisa.tensor_copy(dst, t), dtype, 512), [x], device)


# ---- operators -----------------------------------------------------------------------------------

ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum", "abs_max", "abs_min")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")


@pytest.mark.parametrize("dtype", (nl.float32, nl.bfloat16, nl.int32), ids=str)
@pytest.mark.parametrize("op", (*ARITHMETIC, *COMPARISONS, *LOGICAL, "power"))
def test_operators_of_two_tiles(op, dtype, device):
    kernel = tiles_of(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, OPERATORS[op]), dtype)
    same(kernel, [numbers(dtype), numbers(dtype, seed=1)], device, ulps=1 if op == "power" else 0)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", BITS)
def test_bit_patterns_of_two_tiles(op, dtype, device):
    kernel = tiles_of(lambda dst, a, b: nisa.tensor_tensor(dst, a, b, OPERATORS[op]), dtype)
    same(kernel, [numbers(dtype), np.abs(numbers(dtype, seed=1) % 8).astype(str(dtype))], device)


@pytest.mark.parametrize("reverse", (False, True))
@pytest.mark.parametrize("op", (*ARITHMETIC, *COMPARISONS, *LOGICAL))
def test_operators_with_a_number_and_a_column(op, reverse, device):
    def body(dst, x, column):
        nisa.tensor_scalar(dst, x, OPERATORS[op], column, reverse, nl.multiply, 0.7)

    same(tiles_of(body), [numbers(nl.float32), numbers(nl.float32, (N * P, 1), 3)], device)
    same(
        tiles_of(lambda dst, x: nisa.tensor_scalar(dst, x, OPERATORS[op], 1.3, reverse)),
        [numbers(nl.bfloat16)],
        device,
    )


@pytest.mark.parametrize("op", (*ARITHMETIC[:5], *COMPARISONS, *BITS))
@pytest.mark.parametrize("dtype", (nl.int32, nl.uint32), ids=str)
def test_whole_numbers_stay_exact(op, dtype, device):
    kernel = tiles_of(lambda dst, x: nisa.tensor_scalar(dst, x, OPERATORS[op], 5), dtype)
    same(kernel, [numbers(dtype)], device)


@pytest.mark.parametrize("op", ("abs", "square", "relu", "rsqrt", "reciprocal"))
def test_operators_of_one_tile(op, device):
    x = np.abs(numbers(nl.float32)) if op == "rsqrt" else numbers(nl.float32)
    same(tiles_of(lambda dst, t: nisa.tensor_scalar(dst, t, OPERATORS[op], None)), [x], device)


def test_two_operators_with_a_tile(device):
    def body(dst, x, y, column):
        nisa.scalar_tensor_tensor(dst, x, nl.multiply, column, nl.add, y)

    arrays = [numbers(nl.bfloat16), numbers(nl.float32, seed=2), numbers(nl.float32, (N * P, 1), 4)]
    same(tiles_of(body, nl.bfloat16), arrays, device)


# ---- activations ---------------------------------------------------------------------------------

DIFFER = ("exp", "tanh", "sin", "arctan")  # the others give numpy's bits


@pytest.mark.parametrize("op", [name for name, op in OPERATORS.items() if op.activation is not None])
def test_activation_functions_stay_within_two_units_of_the_last_place(op, device):
    x = numbers(nl.float32, (N * P, 512), 5)
    x.flat[:6] = 1.0
    if op in ("log", "sqrt", "rsqrt", "reciprocal"):
        x = np.abs(x) + np.float32(0.01)
    if op in ("sin", "arctan"):
        x = np.clip(x, -1.5, 1.5)

    def body(dst, t, bias):
        nisa.activation(dst, OPERATORS[op], t, bias, 0.9)

    bias = np.full((N * P, 1), 0.01, np.float32)
    kernel = tiles_of(body, columns=512)
    if op not in DIFFER:
        same(kernel, [x, bias], device)
        return
    found = torch_results(kernel.trace(x, bias), [x, bias], device)
    exact = getattr(np, op)((x * np.float32(0.9) + bias).astype(np.float64))
    assert (np.abs(found - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32))).all()


def test_a_value_out_of_the_range_of_a_function_is_reported_by_the_host(device):
    kernel = tiles_of(lambda dst, t: nisa.activation(dst, nl.log, t))
    x = np.full((N * P, F), 1e30, np.float32)
    assert torch_results(kernel.trace(x), [x], device) == "a diagnostic is to be reported"


# ---- reductions and registers --------------------------------------------------------------------


@pytest.mark.parametrize("op", ("add", "maximum", "minimum", "multiply", "subtract"))
def test_reductions(op, device):
    x = np.random.default_rng(6).integers(-2, 3, (N * P, F)).astype(np.float32)
    same(tiles_of(lambda dst, t: nisa.tensor_reduce(dst, OPERATORS[op], t, axis=1), columns=1), [x], device)


def test_sums_on_the_side_of_an_activation(device):
    def body(dst, t):
        total = nl.ndarray((P, 1), nl.float32)
        out = nl.ndarray((P, F), nl.float32)
        nisa.activation_reduce(out, nl.copy, t, nl.add, total)
        nisa.tensor_scalar(dst, out, nl.multiply, total)

    same(tiles_of(body), [np.random.default_rng(7).integers(-3, 4, (N * P, F)).astype(np.float32)], device)


def test_registers_keep_their_values_between_instructions(device):
    def body(dst, t):
        total, other = nl.ndarray((P, 1), nl.float32), nl.ndarray((P, F), nl.float32)
        commands = nisa.reduce_cmd
        nisa.tensor_scalar_reduce(other, t, nl.add, 1.0, nl.add, reduce_cmd=commands.reset_reduce)
        nisa.tensor_scalar_reduce(other, t, nl.add, 2.0, nl.add, total, reduce_cmd=commands.reduce)
        nisa.tensor_scalar(dst, other, nl.subtract, total)

    same(tiles_of(body), [np.random.default_rng(8).integers(-3, 4, (N * P, F)).astype(np.float32)], device)


def test_statistics(device):
    def body(dst, t):
        found = nl.ndarray((P, 6), nl.float32)
        nisa.bn_stats(found, t)
        nisa.bn_aggr(dst, found)

    x = numbers(nl.bfloat16)
    name = {"cuda": "cuda", "cpu": "torch-cpu"}[device]
    program = tiles_of(body, columns=2).trace(x)
    assert assert_agrees(program, [x], "torch", tolerance=1e-6, OPEN_NKI_DEVICE=name)


def test_the_eight_largest(device):
    same(tiles_of(lambda dst, t: nisa.max8(dst, t), columns=8), [numbers(nl.bfloat16)], device)


# ---- selections, patterns, moves -----------------------------------------------------------------


def test_selections(device):
    def select(dst, x, low, high):
        nisa.range_select(
            dst, x, nl.greater_equal, nl.less, low, high, range_start=2, reduce_cmd=nisa.reduce_cmd.idle
        )

    low = np.arange(N * P, dtype=np.float32)[:, None] % 7
    same(tiles_of(select), [numbers(nl.float32), low, low + 9], device)

    def affine(dst, x):
        nisa.affine_select(dst, pattern=[[-1, F]], channel_multiplier=1, on_true_tile=x, on_false_value=-5.0)

    same(tiles_of(affine), [numbers(nl.float32)], device)

    def predicated(dst, x, predicate):
        nisa.memset(dst, 2.5)
        nisa.tensor_copy_predicated(dst, x, predicate)

    same(tiles_of(predicated), [numbers(nl.float32), numbers(nl.uint8) % 2], device)


@pytest.mark.parametrize("dtype", (nl.float32, nl.int32, nl.bfloat16), ids=str)
def test_patterns_and_constants(dtype, device):
    def body(dst, x):
        nisa.iota(dst, [[3, F]], offset=2, channel_multiplier=5)
        nisa.memset(dst[:, 0:4], 7)

    same(tiles_of(body, dtype), [numbers(nl.float32)], device)


@pytest.mark.parametrize("dtype", (nl.float32, nl.bfloat16, nl.int32), ids=str)
def test_transposes_of_tiles(dtype, device):
    def body(dst, x):
        transposed = nl.ndarray((F, P), dtype, buffer=nl.psum if dtype != nl.int32 else nl.sbuf)
        engine = nisa.engine.tensor if dtype != nl.int32 else nisa.engine.vector
        nisa.nc_transpose(transposed, x, engine=engine)
        back = nl.ndarray((F, P), dtype)
        nisa.tensor_copy(back, transposed)
        again = nl.ndarray((P, F), dtype, buffer=nl.psum if dtype != nl.int32 else nl.sbuf)
        nisa.nc_transpose(again, back, engine=engine)
        nisa.tensor_copy(dst, again)

    same(tiles_of(body, dtype), [numbers(dtype)], device)


def test_products_of_narrow_tiles(device):
    @nki.jit
    def product(a, b):
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        left, right = nl.ndarray(a.shape, a.dtype), nl.ndarray(b.shape, b.dtype)
        nisa.dma_copy(left, a)
        nisa.dma_copy(right, b)
        psum = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, left, right)
        tile = nl.ndarray((128, 512), nl.float32)
        nisa.tensor_copy(tile, psum)
        nisa.dma_copy(out, tile)
        return out

    chance = np.random.default_rng(9)
    for dtype in (ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, np.float32):
        arrays = [chance.integers(-3, 4, shape).astype(dtype) for shape in ((64, 128), (64, 512))]
        same(product, arrays, device)
