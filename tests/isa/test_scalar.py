"""ScalarE against float64 formulas."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import scipy.special as reference
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
import support
from nki.isa.enums import SCALAR
from nki.machine import activations as special
from nki.machine import dtypes
from nki.machine.generations import find
from support import run_tiles

CMD = nisa.reduce_cmd
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(7)

EXACT = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "relu": lambda x: np.maximum(x, 0),
    "prelu": lambda x: np.maximum(x, 0),
    "sigmoid": reference.expit,
    "tanh": np.tanh,
    "silu": lambda x: x * reference.expit(x),
    "silu_dx": lambda x: reference.expit(x) * (1 + x * reference.expit(-x)),
    "gelu": lambda x: x * reference.ndtr(x),
    "gelu_dx": lambda x: reference.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    "gelu_apprx_tanh": lambda x: x * reference.expit(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)),
    "gelu_apprx_sigmoid": lambda x: x * reference.expit(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: (
        reference.expit(1.702 * x) * (1 + 1.702 * x * reference.expit(-1.702 * x))
    ),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "erf": reference.erf,
    "erf_dx": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
    "abs": np.abs,
}
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(np.float32).astype(dtype)


def inputs_of(name, *shape):
    x = normal(*shape)
    return np.abs(x) + np.float32(0.1) if name in POSITIVE else np.clip(x, -1.5, 1.5)


def run(body, inputs, outputs, **how):
    """The outputs and the kinds of diagnostics said on the way."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = run_tiles(body, inputs, outputs, **how)
    return results, [w.category.kind for w in said if issubclass(w.category, nki.errors.NkiWarning)]


def activate(x, op, dst=nl.float32, **options):
    """nisa.activation of one tile, quietly."""
    on = options.pop("on", "trn2")
    (out,), kinds = run(lambda d, t: nisa.activation(d, op, t, **options), [x], [(x.shape, dst)], on=on)
    assert kinds == []
    return out


def refused(kind, body, inputs, outputs, **how):
    return str(support.refused(kind, "", lambda: run(body, inputs, outputs, **how)))


# ---- signatures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["activation", "activation_reduce", "activate2"])
def test_signature_is_the_documented_one(name):
    path = Path(__file__).parents[1] / "data" / "documented_api.json"
    documented = json.loads(path.read_text())["nki.isa"]["functions"][name]
    found = inspect.signature(getattr(nisa, name)).parameters.values()
    assert [p.name for p in found] == [parameter for parameter, _ in documented]
    empty = inspect.Parameter.empty
    shown = [None if p.default is empty else str(p.default).removeprefix("nisa.") for p in found]
    assert shown == [default for _, default in documented]


# ---- activation: the functions -------------------------------------------------------------------


@pytest.mark.parametrize("name", special.ACTIVATIONS)
def test_activation_computes_every_function_of_the_table(name):
    x = inputs_of(name, 128, 40)
    got = activate(x, getattr(nl, name))
    np.testing.assert_allclose(got, EXACT[name](x.astype(np.float64)), rtol=3e-7, atol=1e-37)


def test_sine_outside_its_range_continues_as_a_cubic_and_warns():
    x = np.array([[9.0, -9.0, 1.0]], np.float32)
    (out,), kinds = run(lambda d, t: nisa.activation(d, nl.sin, t), [x], [(x.shape, nl.float32)])
    np.testing.assert_allclose(out, [[27.6526, -27.6526, np.sin(1.0)]], rtol=1e-5)
    assert kinds == ["act-range"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("log", 2.0**-70), ("arctan", 2.0), ("sqrt", 2.0**-120), ("rsqrt", 2.0**98), ("reciprocal", -(2.0**50))],
)
def test_input_outside_the_valid_range_is_exact_and_warns(name, value):
    x = np.array([[1.0, value]], np.float32)
    (out,), kinds = run(lambda d, t: nisa.activation(d, getattr(nl, name), t), [x], [(x.shape, nl.float32)])
    np.testing.assert_allclose(out, EXACT[name](x.astype(np.float64)), rtol=2e-7)
    assert kinds == ["act-range"]


def test_the_range_is_that_of_the_input_after_scale_and_bias():
    x = np.array([[9.0]], np.float32)
    assert activate(x, nl.sin, scale=0.1)[0, 0] == pytest.approx(np.sin(0.9))
    _, kinds = run(lambda d, t: nisa.activation(d, nl.sin, t, bias=-20.0), [x], [(x.shape, nl.float32)])
    assert kinds == ["act-range"]


def test_strict_mode_makes_the_range_an_error(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    x = np.array([[9.0]], np.float32)
    text = refused("act-range", lambda d, t: nisa.activation(d, nl.sin, t), [x], [(x.shape, nl.float32)])
    assert "from -3.142 to 3.142, got 9" in text


def test_prelu_of_activation_has_slope_zero():
    x = np.array([[-2.0, 3.0, -0.5]], np.float32)
    np.testing.assert_array_equal(activate(x, nl.prelu), [[0.0, 3.0, 0.0]])


def test_copy_goes_through_float32():
    x = np.array([[2**24 + 1, -(2**24) - 1, 5]], np.int32)
    np.testing.assert_array_equal(activate(x, nl.copy, nl.int32), [[2**24, -(2**24), 5]])


# ---- activation: scale and bias ------------------------------------------------------------------


@pytest.mark.tiny
def test_scale_and_bias_tiles_are_broadcast_along_each_partition():
    x, scale, bias = normal(128, 96), normal(128, 1), normal(128, 1)
    (out,), kinds = run(
        lambda d, t, s, b: nisa.activation(d, nl.tanh, t, bias=b, scale=s),
        [x, scale, bias],
        [(x.shape, nl.float32)],
    )
    np.testing.assert_allclose(out, np.tanh(x.astype(np.float64) * scale + bias), rtol=1e-5, atol=1e-6)
    assert kinds == []


@pytest.mark.parametrize("bias_dtype", [np.float32, BF16, np.float16, np.int32, np.uint8, np.int8])
def test_bias_tile_may_have_any_dtype(bias_dtype):
    x = normal(16, 8)
    bias = np.arange(16).reshape(16, 1).astype(bias_dtype)
    (out,), kinds = run(
        lambda d, t, b: nisa.activation(d, nl.copy, t, bias=b), [x, bias], [(x.shape, nl.float32)]
    )
    np.testing.assert_array_equal(out, x + bias.astype(np.float32))
    assert kinds == []


def test_scale_tile_of_another_dtype_is_converted_with_a_warning():
    x, scale = normal(16, 8), normal(16, 1, dtype=BF16)
    (out,), kinds = run(
        lambda d, t, s: nisa.activation(d, nl.copy, t, scale=s), [x, scale], [(x.shape, nl.float32)]
    )
    np.testing.assert_array_equal(out, x * scale.astype(np.float32))
    assert kinds == ["operand-dtype"]


def test_scale_and_bias_may_be_numbers_of_any_kind():
    x = normal(4, 8)
    for scale, bias in ((2, 1), (np.float32(2), np.int64(1)), (2.0, True)):
        np.testing.assert_array_equal(
            activate(x, nl.copy, scale=scale, bias=bias), x * np.float32(2) + np.float32(1)
        )


def test_multiply_and_add_round_separately():
    x = np.array([[1 + 2.0**-23]], np.float32)
    got = activate(x, nl.copy, scale=float(x[0, 0]), bias=-1.0)
    assert got[0, 0] == np.float32(np.float32(x[0, 0] * x[0, 0]) - np.float32(1))


def test_zero_scale_of_infinity_is_nan_and_identity_keeps_minus_zero():
    x = np.array([[np.inf, 1.0]], np.float32)
    got = activate(x, nl.copy, scale=0.0)
    assert np.isnan(got[0, 0]) and got[0, 1] == 0
    assert np.signbit(activate(np.array([[-0.0]], np.float32), nl.copy, bias=0.0, scale=1.0)[0, 0])


def test_scale_and_bias_in_psum_and_data_in_psum():
    x, scale, bias = normal(64, 32), normal(64, 1), normal(64, 1)
    (out,), _ = run(
        lambda d, t, s, b: nisa.activation(d, nl.exp, t, bias=b, scale=s),
        [x, scale, bias],
        [(x.shape, nl.float32)],
        in_psum=[0, 1, 2],
        out_psum=[0],
    )
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64) * scale + bias), rtol=1e-5)


# ---- activation: dtypes and shapes ---------------------------------------------------------------

CASTABLE = [d for d in dtypes.ALL if d.castable]


@pytest.mark.parametrize("dtype", CASTABLE)
def test_data_of_every_dtype_is_read_as_float32(dtype):
    low = -8 if dtype.is_signed else 0
    values = RNG.integers(low, 2 if dtype.is_bool else 8, (32, 24)).astype(np.float32)

    def body(d, t):
        typed = nl.ndarray(t.shape, dtype, buffer=nl.sbuf)
        nisa.tensor_copy(typed, t)
        nisa.activation(d, nl.square, typed)

    (out,), kinds = run(body, [values], [(values.shape, nl.float32)])
    np.testing.assert_array_equal(out, values**2)
    assert kinds == []


@pytest.mark.parametrize("dtype", CASTABLE)
def test_dst_of_every_dtype_is_cast_once(dtype):
    x = normal(32, 24) * 4

    def body(d, t):
        typed = nl.ndarray(t.shape, dtype, buffer=nl.sbuf)
        nisa.activation(typed, nl.tanh, t)
        nisa.tensor_copy(d, typed)

    (out,), _ = run(body, [x], [(x.shape, nl.float32)])
    np.testing.assert_array_equal(out, dtypes.f32(dtypes.cast(np.tanh(x), dtype), dtype))


def test_integer_dst_rounds_half_to_even_and_saturates():
    x = np.array([[2.5, 3.5, -0.5, 300.0, -300.0, np.nan]], np.float32)
    np.testing.assert_array_equal(activate(x, nl.copy, nl.int8), [[2, 4, 0, 127, -128, 0]])
    np.testing.assert_array_equal(activate(x, nl.copy, nl.uint8), [[2, 4, 0, 255, 0, 0]])


@pytest.mark.parametrize("partitions", [1, 3, 32, 127, 128])
@pytest.mark.parametrize("free", [1, 7, 512])
def test_ragged_sizes(partitions, free):
    x = normal(partitions, free)
    np.testing.assert_allclose(activate(x, nl.exp), np.exp(x.astype(np.float64)), rtol=4e-7)  # 3 ulp


def test_operands_pair_in_stream_order_whatever_their_ranks():
    x = normal(16, 4, 6)
    bias = normal(16, 1)
    shapes = [((16, 24), nl.float32), ((16, 2, 3, 4), nl.float32)]

    def body(flat, deep, t, b):
        nisa.activation(flat, nl.exp, t, bias=b)
        nisa.activation(deep, nl.gelu, t.permute((0, 2, 1)), scale=b)

    (flat, deep), _ = run(body, [x, bias], shapes)
    np.testing.assert_allclose(flat, np.exp(x.astype(np.float64).reshape(16, 24) + bias), rtol=1e-5)
    swapped = x.astype(np.float64).transpose(0, 2, 1).reshape(16, 24) * bias
    np.testing.assert_allclose(deep.reshape(16, 24), EXACT["gelu"](swapped), rtol=1e-5, atol=1e-7)


def test_dst_may_be_the_input():
    x = normal(128, 64)
    for op, exact in ((nl.exp, np.exp), (nl.silu, EXACT["silu"]), (nl.copy, EXACT["copy"])):
        (out,), _ = run(lambda d, op=op: nisa.activation(d, op, d, scale=0.5), [], [x])
        np.testing.assert_allclose(out, exact(x.astype(np.float64) * 0.5), rtol=3e-7)


def test_overlapping_dst_behaves_as_if_inputs_were_copied_first():
    x = normal(8, 33)

    def body(d, r):
        nisa.activation(d[:, 1:33], nl.copy, d[:, 0:32], reduce_res=r, reduce_cmd=CMD.reset_reduce)

    (out, total), _ = run(body, [], [x, ((8, 1), nl.float32)])
    np.testing.assert_array_equal(out, np.concatenate([x[:, :1], x[:, :32]], axis=1))
    np.testing.assert_allclose(total[:, 0], x[:, :32].sum(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_narrow_floats_stored_wide_are_not_rounded(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    x = normal(4, 4)

    def body(d, t):
        wide = nl.ndarray(t.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.activation(wide, nl.tanh, t)
        nisa.activation(d, nl.copy, wide)

    (out,), _ = run(body, [x], [(x.shape, nl.float32)])
    np.testing.assert_array_equal(out, np.tanh(x))


# ---- activation: refusals ------------------------------------------------------------------------

TILE = ((8, 16), nl.float32)


def test_an_operator_that_is_no_activation_is_refused():
    text = refused("op", lambda d, t: nisa.activation(d, nl.add, t), [normal(8, 16)], [TILE])
    assert "nl.add is not an activation function" in text and "gelu_apprx_tanh" in text
    refused("op", lambda d, t: nisa.activation(d, "gelu", t), [normal(8, 16)], [TILE])


def test_numpy_functions_stand_for_operators():
    x = normal(8, 16)
    np.testing.assert_array_equal(activate(x, np.exp), activate(x, nl.exp))


def test_shapes_must_match():
    assert "16 elements per partition" in refused(
        "shape", lambda d, t: nisa.activation(d, nl.exp, t), [normal(8, 17)], [TILE]
    )
    assert "8 partitions" in refused(
        "shape", lambda d, t: nisa.activation(d, nl.exp, t), [normal(9, 16)], [TILE]
    )


def test_bias_and_scale_must_be_columns_of_data():
    x = normal(8, 16)
    for option in ("bias", "scale"):
        text = refused(
            "shape",
            lambda d, t, c, o=option: nisa.activation(d, nl.exp, t, **{o: c}),
            [x, normal(8, 2)],
            [TILE],
        )
        assert f"{option} must have one element per partition, it has 2" in text
        text = refused(
            "shape",
            lambda d, t, c, o=option: nisa.activation(d, nl.exp, t, **{o: c}),
            [x, normal(7, 1)],
            [TILE],
        )
        assert f"{option} has 7 partitions" in text
        text = refused(
            "argument", lambda d, t, o=option: nisa.activation(d, nl.exp, t, **{o: "1"}), [x], [TILE]
        )
        assert f"{option} must be a number or a [P, 1] tile" in text
    refused("argument", lambda d, t: nisa.activation(d, nl.exp, t, scale=None), [x], [TILE])


def test_bias_of_tfloat32_is_refused():
    def body(d, t):
        bias = nl.ndarray((8, 1), nl.tfloat32, buffer=nl.sbuf)
        nisa.memset(bias, 1.0)
        nisa.activation(d, nl.exp, t, bias=bias)

    assert "bias cannot be tfloat32" in refused("dtype", body, [normal(8, 16)], [TILE])


@pytest.mark.parametrize("packed", [d for d in dtypes.ALL if not d.castable])
def test_packed_and_scale_dtypes_are_refused(packed):
    def from_packed(d, t):
        tile = nl.ndarray((8, 16), packed, buffer=nl.sbuf)
        nisa.memset(tile, 0)
        nisa.activation(d, nl.copy, tile)

    def to_packed(d, t):
        nisa.activation(nl.ndarray((8, 16), packed, buffer=nl.sbuf), nl.copy, t)

    for body in (from_packed, to_packed):
        assert "no engine can convert" in refused("dtype", body, [normal(8, 16)], [TILE], on="trn3")


def test_hbm_operands_are_refused():
    @nki.jit
    def kernel(x):
        nisa.activation(nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf), nl.exp, x)

    with pytest.raises(nki.NkiError) as e:
        kernel(normal(8, 16))
    assert e.value.kind == "buffer"


def test_missing_data_is_refused():
    assert "data must be a tile" in refused("argument", lambda d: nisa.activation(d, nl.exp, 3.0), [], [TILE])


# ---- generations ---------------------------------------------------------------------------------


def test_trn1_runs_a_constant_bias_with_a_warning():
    x = normal(8, 16)
    (out,), kinds = run(lambda d, t: nisa.activation(d, nl.copy, t, bias=1.0), [x], [TILE], on="trn1")
    np.testing.assert_array_equal(out, x + np.float32(1))
    assert kinds == ["bias-constant"]
    assert activate(x, nl.copy, bias=1.0, on="trn2") is not None


def test_trn1_has_no_bias_of_reciprocal():
    x, bias = np.abs(normal(8, 16)) + 1, normal(8, 1)
    body = lambda d, t, b: nisa.activation(d, nl.reciprocal, t, bias=b)  # noqa: E731
    text = refused("generation", body, [x, bias], [TILE], on="trn1")
    assert "a bias of nl.reciprocal needs trn2" in text
    (out,), _ = run(body, [x, bias], [TILE], on="trn2")
    np.testing.assert_allclose(out, 1 / (x.astype(np.float64) + bias), rtol=1e-5)
    activate(x, nl.reciprocal, on="trn1")


# ---- the registers -------------------------------------------------------------------------------


@pytest.mark.tiny
def test_reset_reduce_gives_the_sum_of_the_float32_results():
    x = normal(128, 200)
    (out, total), kinds = run(
        lambda d, r, t: nisa.activation(
            d, nl.exp, t, reduce_op=nl.add, reduce_res=r, reduce_cmd=CMD.reset_reduce
        ),
        [x],
        [(x.shape, nl.bfloat16), ((128, 1), nl.float32)],
    )
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_array_equal(out, np.exp(x).astype(BF16))
    np.testing.assert_allclose(total[:, 0], exact.sum(axis=1), rtol=1e-6)
    assert kinds == []


def test_a_chain_of_reductions_keeps_its_sum_in_the_registers():
    x = normal(64, 90)

    def body(d, first, last, t):
        for i, command in enumerate((CMD.reset_reduce, CMD.reduce, CMD.reduce)):
            part = slice(30 * i, 30 * i + 30)
            res = first if i == 0 else None
            nisa.activation(
                d[:, part], nl.square, t[:, part], reduce_op=nl.add, reduce_res=res, reduce_cmd=command
            )
        nisa.activation(d[:, 0:1], nl.copy, t[:, 0:1], reduce_res=last)

    (_, first, last), kinds = run(
        body, [x], [(x.shape, nl.float32), ((64, 1), nl.float32), ((64, 1), nl.float32)]
    )
    square = x.astype(np.float64) ** 2
    np.testing.assert_allclose(first[:, 0], square[:, :30].sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(last[:, 0], square.sum(axis=1), rtol=1e-6)
    assert kinds == []


def test_reset_zeroes_the_registers_and_still_writes_dst():
    x = normal(8, 16)

    def body(d, zero, one, t):
        nisa.activation(d, nl.exp, t, reduce_res=zero, reduce_cmd=CMD.reset)
        nisa.activation(d, nl.exp, t, reduce_res=one, reduce_cmd=CMD.reduce)

    (out, zero, one), kinds = run(body, [x], [TILE, ((8, 1), nl.float32), ((8, 1), nl.float32)])
    np.testing.assert_array_equal(out, np.exp(x))
    np.testing.assert_array_equal(zero, 0)
    np.testing.assert_allclose(one[:, 0], np.exp(x.astype(np.float64)).sum(axis=1), rtol=1e-6)
    assert kinds == []


def test_reading_or_continuing_undefined_registers_warns_and_gives_nan():
    x = normal(8, 16)
    for options in ({}, {"reduce_cmd": CMD.reduce}):
        (_, r), kinds = run(
            lambda d, r, t, o=options: nisa.activation(d, nl.exp, t, reduce_res=r, **o),
            [x],
            [TILE, ((8, 1), nl.float32)],
        )
        assert kinds == ["acc-undefined"] and np.isnan(r).all()


def test_registers_do_not_survive_a_kernel():
    x = normal(8, 16)
    run(lambda d, t: nisa.activation(d, nl.exp, t, reduce_cmd=CMD.reset_reduce), [x], [TILE])
    _, kinds = run(
        lambda d, r, t: nisa.activation(d, nl.exp, t, reduce_res=r), [x], [TILE, ((8, 1), nl.float32)]
    )
    assert kinds == ["acc-undefined"]


def test_reduce_res_that_overlaps_dst_wins():
    x = normal(16, 32)
    for op in (nl.exp, nl.gelu):
        (out,), _ = run(
            lambda d, t, op=op: nisa.activation(
                d, op, t, reduce_op=nl.add, reduce_res=d[:, 3:4], reduce_cmd=CMD.reset_reduce
            ),
            [x],
            [(x.shape, nl.float32)],
        )
        exact = EXACT[op.name](x.astype(np.float64))
        np.testing.assert_allclose(out[:, 3], exact.sum(axis=1), rtol=1e-5)
        np.testing.assert_allclose(out[:, 4:], exact[:, 4:], rtol=3e-7)


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.int32, nl.uint8, nl.float16])
def test_reduce_res_is_cast_to_its_dtype(dtype):
    x = np.abs(normal(16, 32))
    (_, r), _ = run(
        lambda d, r, t: nisa.activation(d, nl.copy, t, reduce_res=r, reduce_cmd=CMD.reset_reduce),
        [x],
        [(x.shape, nl.float32), ((16, 1), dtype)],
        out_psum=[1],
    )
    total = x.astype(np.float64).sum(axis=1).astype(np.float32)
    np.testing.assert_allclose(
        r[:, 0].astype(np.float64), dtypes.cast(total, dtype).astype(np.float64), rtol=1e-2
    )


def test_reduction_covers_all_free_dimensions():
    x = normal(8, 3, 4, 5)
    (_, r), _ = run(
        lambda d, r, t: nisa.activation(d, nl.copy, t, reduce_res=r, reduce_cmd=CMD.reset_reduce),
        [x],
        [(x.shape, nl.float32), ((8, 1), nl.float32)],
    )
    np.testing.assert_allclose(r[:, 0], x.astype(np.float64).sum(axis=(1, 2, 3)), rtol=1e-5, atol=1e-5)


def test_only_sums_are_reduced_by_activation():
    x = normal(8, 16)
    for op in (nl.maximum, nl.multiply):
        text = refused(
            "op",
            lambda d, t, op=op: nisa.activation(d, nl.exp, t, reduce_op=op, reduce_cmd=CMD.reset_reduce),
            [x],
            [TILE],
        )
        assert "reduce_op" in text and "allowed: add" in text
    (_, r), _ = run(
        lambda d, r, t: nisa.activation(
            d, nl.copy, t, reduce_op=np.add, reduce_res=r, reduce_cmd=CMD.reset_reduce
        ),
        [x],
        [TILE, ((8, 1), nl.float32)],
    )
    np.testing.assert_allclose(r[:, 0], x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-6)


def test_load_reduce_is_no_command_of_the_scalar_engine():
    text = refused(
        "reduce-cmd",
        lambda d, t: nisa.activation(d, nl.exp, t, reduce_cmd=CMD.load_reduce),
        [normal(8, 16)],
        [TILE],
    )
    assert "load_reduce" in text
    refused("enum", lambda d, t: nisa.activation(d, nl.exp, t, reduce_cmd=3), [normal(8, 16)], [TILE])


def test_reduce_res_must_be_a_column_of_data():
    x = normal(8, 16)
    for shape in ((8, 2), (7, 1)):
        refused(
            "shape",
            lambda d, r, t: nisa.activation(d, nl.exp, t, reduce_res=r, reduce_cmd=CMD.reset_reduce),
            [x],
            [TILE, (shape, nl.float32)],
        )
    refused("argument", lambda d, t: nisa.activation(d, nl.exp, t, reduce_res=1.0), [x], [TILE])


# ---- activation_reduce ---------------------------------------------------------------------------


def test_activation_reduce_is_activation_with_reset_reduce():
    x, bias = normal(32, 40), normal(32, 1)

    def body(d1, r1, d2, r2, t, b):
        nisa.activation_reduce(d1, nl.exp, t, nl.add, r1, b, 0.5)
        nisa.activation(
            d2, nl.exp, t, bias=b, scale=0.5, reduce_op=nl.add, reduce_res=r2, reduce_cmd=CMD.reset_reduce
        )

    outputs = [(x.shape, nl.float32), ((32, 1), nl.float32)] * 2
    (d1, r1, d2, r2), kinds = run(body, [x, bias], outputs)
    np.testing.assert_array_equal(d1, d2)
    np.testing.assert_array_equal(r1, r2)
    np.testing.assert_allclose(r1[:, 0], np.exp(x.astype(np.float64) * 0.5 + bias).sum(axis=1), rtol=1e-5)
    assert kinds == []


def test_activation_reduce_without_result_keeps_the_sum_in_the_registers():
    x = normal(8, 16)

    def body(d, r, t):
        nisa.activation_reduce(d, nl.square, t, nl.add, None)
        nisa.activation(d, nl.copy, t, reduce_res=r)

    (_, r), kinds = run(body, [x], [TILE, ((8, 1), nl.float32)])
    np.testing.assert_allclose(r[:, 0], (x.astype(np.float64) ** 2).sum(axis=1), rtol=1e-6)
    assert kinds == []


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("op", [nl.square, nl.exp, nl.copy])
def test_a_reduction_may_write_its_by_product_to_one_column(op, dtype):
    x = RNG.normal(size=(6, 8)).astype(np.float32)

    def body(dst, total, data):
        nisa.activation_reduce(dst.ap([[1, 6], [0, 8]]), op, data, nl.add, total)

    dst, total = run_tiles(body, [x], [((6, 1), dtype), ((6, 1), np.float32)])
    exact = EXACT[op.name](x.astype(np.float64))
    assert np.allclose(total, exact.sum(axis=1, keepdims=True), rtol=1e-5)
    assert np.allclose(dst.astype(np.float64), exact[:, -1:], rtol=1e-2)


def test_a_result_is_not_written_to_one_column():
    def body(dst, data):
        nisa.activation(dst.ap([[1, 4], [0, 3]]), nl.exp, data)

    with pytest.raises(nki.NkiError) as caught:
        run_tiles(body, [np.ones((4, 3), np.float32)], [((4, 1), np.float32)])
    assert caught.value.kind == "write-broadcast"


def test_activation_reduce_names_itself_in_errors():
    text = refused(
        "op", lambda d, t: nisa.activation_reduce(d, nl.exp, t, nl.maximum, None), [normal(8, 16)], [TILE]
    )
    assert text.startswith("activation_reduce: ")


# ---- activate2 -----------------------------------------------------------------------------------

STAGES = {
    (nl.multiply, nl.add): lambda x, a, b: x * a + b,
    (nl.multiply, nl.subtract): lambda x, a, b: x * a - b,
    (nl.multiply, nl.bypass): lambda x, a, b: x * a,
    (nl.add, nl.bypass): lambda x, a, b: x + a,
    (nl.subtract, nl.bypass): lambda x, a, b: x - a,
    (nl.bypass, nl.bypass): lambda x, a, b: x,
}


@pytest.mark.parametrize("stages", STAGES, ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
@pytest.mark.parametrize("tiles", [False, True])
def test_activate2_applies_both_stages(stages, tiles):
    x, a, b = normal(16, 24), normal(16, 1), normal(16, 1)
    if not tiles:
        a[:], b[:] = 0.75, -1.25

    def body(d, t, ta, tb):
        imm0, imm1 = (ta, tb) if tiles else (0.75, -1.25)
        nisa.activate2(d, nl.tanh, t, imm0, imm1, *stages)

    (out,), kinds = run(body, [x, a, b], [(x.shape, nl.float32)], on="trn3")
    exact = np.tanh(STAGES[stages](x.astype(np.float64), a, b))
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-6)
    assert kinds == []


def test_activate2_reverses_each_stage():
    x = normal(8, 16)

    def body(first, second, t):
        nisa.activate2(first, nl.copy, t, 2.0, None, nl.subtract, None, reverse0=True)
        nisa.activate2(second, nl.copy, t, 2.0, 3.0, nl.multiply, nl.subtract, reverse0=True, reverse1=True)

    (first, second), _ = run(body, [x], [TILE, TILE], on="trn3")
    np.testing.assert_allclose(first, 2.0 - x.astype(np.float64), rtol=1e-6)
    np.testing.assert_allclose(second, 3.0 - 2.0 * x.astype(np.float64), rtol=1e-6, atol=1e-6)


def test_activate2_takes_the_slope_of_prelu_from_a_tile():
    x, slope = normal(16, 24), normal(16, 1)

    def body(d, number, t, s):
        nisa.activate2(d, nl.prelu, t, 0.0, 0.0, nl.bypass, nl.bypass, relu_param=s)
        nisa.activate2(number, nl.prelu, t, 0.0, 0.0, nl.bypass, nl.bypass, relu_param=0.25)

    (tile, number), _ = run(body, [x, slope], [(x.shape, nl.float32)] * 2, on="trn3")
    np.testing.assert_array_equal(tile, np.where(x < 0, x * slope, x))
    np.testing.assert_array_equal(number, np.where(x < 0, x * np.float32(0.25), x))


def fold_of(op, x):
    if op in (nl.abs_max, nl.abs_min):
        flip = x[:, ::-1]  # the newest of equal magnitudes stays
        at = (np.argmax if op is nl.abs_max else np.argmin)(np.abs(flip), axis=1)
        return np.take_along_axis(flip, at[:, None], axis=1)[:, 0]
    return {nl.add: np.sum, nl.maximum: np.max, nl.minimum: np.min}[op](x.astype(np.float64), axis=1)


@pytest.mark.parametrize("op", [nl.add, nl.maximum, nl.minimum, nl.abs_max, nl.abs_min])
def test_activate2_reduces_with_five_operators_over_a_chain(op):
    x = np.round(normal(16, 60) * 4) / 4

    def body(d, r, t):
        options = {"op0": nl.bypass, "op1": nl.bypass, "reduce_op": op}
        nisa.activate2(d[:, 0:25], nl.copy, t[:, 0:25], 0.0, 0.0, reduce_cmd=CMD.reset_reduce, **options)
        nisa.activate2(
            d[:, 25:60], nl.copy, t[:, 25:60], 0.0, 0.0, reduce_cmd=CMD.reduce, reduce_res=r, **options
        )

    (_, r), kinds = run(body, [x], [(x.shape, nl.float32), ((16, 1), nl.float32)], on="trn3")
    np.testing.assert_allclose(r[:, 0], fold_of(op, x), rtol=1e-6, atol=1e-6)
    assert kinds == []


@pytest.mark.parametrize(
    ("op", "identity"),
    [(nl.add, 0), (nl.maximum, -np.inf), (nl.minimum, np.inf), (nl.abs_max, 0), (nl.abs_min, np.inf)],
)
def test_activate2_resets_to_the_identity_of_the_operator(op, identity):
    def body(d, r, t):
        nisa.activate2(
            d, nl.copy, t, 0.0, 0.0, nl.bypass, nl.bypass, reduce_op=op, reduce_res=r, reduce_cmd=CMD.reset
        )

    (_, r), _ = run(body, [normal(8, 16)], [TILE, ((8, 1), nl.float32)], on="trn3")
    np.testing.assert_array_equal(r, np.float32(identity))


def test_activate2_shares_the_registers_with_activation():
    x = normal(8, 16)

    def body(d, r, t):
        nisa.activation(d, nl.copy, t, reduce_cmd=CMD.reset_reduce)
        nisa.activate2(
            d,
            nl.copy,
            t,
            0.0,
            0.0,
            nl.bypass,
            nl.bypass,
            reduce_op=nl.add,
            reduce_res=r,
            reduce_cmd=CMD.reduce,
        )

    (_, r), kinds = run(body, [x], [TILE, ((8, 1), nl.float32)], on="trn3")
    np.testing.assert_allclose(r[:, 0], 2 * x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-5)
    assert kinds == []


def test_activate2_needs_trn3():
    body = lambda d, t: nisa.activate2(d, nl.exp, t, 1.0, 0.0, nl.multiply, nl.add)  # noqa: E731
    for platform in ("trn1", "trn2"):
        assert "needs trn3" in refused("generation", body, [normal(8, 16)], [TILE], on=platform)


@pytest.mark.parametrize(
    ("op0", "op1"),
    [
        (nl.add, nl.multiply),
        (nl.bypass, nl.add),
        (nl.add, nl.add),
        (nl.maximum, nl.bypass),
        (None, nl.multiply),
    ],
)
def test_activate2_refuses_other_pairs_of_stages(op0, op1):
    text = refused(
        "op",
        lambda d, t: nisa.activate2(d, nl.exp, t, 1.0, 0.0, op0, op1),
        [normal(8, 16)],
        [TILE],
        on="trn3",
    )
    assert "(multiply, subtract)" in text


def test_activate2_refuses_to_reverse_what_is_not_there():
    x = normal(8, 16)
    for options in ({"reverse0": True}, {"reverse1": True}):
        text = refused(
            "op",
            lambda d, t, o=options: nisa.activate2(d, nl.exp, t, 1.0, 0.0, nl.bypass, nl.bypass, **o),
            [x],
            [TILE],
            on="trn3",
        )
        assert "nl.bypass" in text


def test_activate2_refuses_immediates_that_do_not_fit():
    x = normal(8, 16)
    call = lambda d, t, a, b: nisa.activate2(d, nl.exp, t, a, b, nl.multiply, nl.add)  # noqa: E731
    text = refused("dtype", call, [x, normal(8, 1), normal(8, 1, dtype=BF16)], [TILE], on="trn3")
    assert "imm0 is float32 and imm1 is bfloat16" in text
    refused("shape", call, [x, normal(8, 2), normal(8, 1)], [TILE], on="trn3")
    refused("shape", call, [x, normal(8, 1), normal(4, 1)], [TILE], on="trn3")
    none = lambda d, t: nisa.activate2(d, nl.exp, t, None, 0.0, nl.multiply, nl.add)  # noqa: E731
    assert "imm0 must be a number" in refused("argument", none, [x], [TILE], on="trn3")
    slope = lambda d, t: nisa.activate2(d, nl.prelu, t, 0, 0, None, None, relu_param=None)  # noqa: E731
    assert "relu_param" in refused("argument", slope, [x], [TILE], on="trn3")


def test_activate2_refuses_products_of_a_tile():
    text = refused(
        "op",
        lambda d, t: nisa.activate2(
            d, nl.exp, t, 1.0, 0.0, nl.multiply, nl.add, reduce_op=nl.multiply, reduce_cmd=CMD.reset_reduce
        ),
        [normal(8, 16)],
        [TILE],
        on="trn3",
    )
    assert "abs_max" in text


# ---- indirection (trn3) --------------------------------------------------------------------------


def index_of(columns):
    """An index tile [16, n] whose 16 partitions hold the offsets one after the other."""
    index = np.zeros((16, -(-len(columns) // 16)), np.int32)
    for i, column in enumerate(columns):
        index[i % 16, i // 16] = column
    return index


def test_data_and_dst_may_be_picked_by_an_index_tile():
    x = normal(16, 64)
    picked = [5, 60, 0, 17, 33]

    def body(gathered, scattered, t, index):
        nisa.activation(gathered, nl.exp, t.indirect(index, num_elem=5))
        nisa.memset(scattered, 0.0)
        nisa.activation(scattered.indirect(index, num_elem=5), nl.exp, t[:, 0:5])

    (gathered, scattered), _ = run(
        body, [x, index_of(picked)], [((16, 5), nl.float32), ((16, 64), nl.float32)], on="trn3"
    )
    np.testing.assert_array_equal(gathered, np.exp(x[:, picked]))
    np.testing.assert_array_equal(scattered[:, picked], np.exp(x[:, :5]))
    assert np.count_nonzero(scattered) == 16 * 5


def test_the_scalar_engine_cannot_scatter_into_psum():
    text = refused(
        "buffer",
        lambda d, t, index: nisa.activation(d.indirect(index, num_elem=5), nl.exp, t[:, 0:5]),
        [normal(16, 64), index_of(range(5))],
        [((16, 64), nl.float32)],
        on="trn3",
        out_psum=[0],
    )
    assert "scatter" in text


def test_columns_of_operands_are_not_picked_by_an_index_tile():
    refused(
        "indirect-view",
        lambda d, t, c, index: nisa.activation(d, nl.exp, t, bias=c.indirect(index, num_elem=1)),
        [normal(16, 64), normal(16, 8), index_of([3])],
        [((16, 64), nl.float32)],
        on="trn3",
    )


# ---- property ------------------------------------------------------------------------------------


@given(
    name=st.sampled_from(sorted(set(special.ACTIVATIONS) - {*POSITIVE, "sin", "arctan", "prelu"})),
    shape=st.tuples(st.integers(1, 128), st.integers(1, 40)),
    scale=st.one_of(st.just("tile"), st.floats(-2, 2, width=32)),
    bias=st.one_of(st.just("tile"), st.none(), st.floats(-2, 2, width=32)),
    source=st.sampled_from([np.float32, BF16, np.float16, np.int8]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=200, deadline=None)
def test_activation_is_the_function_of_the_affine_input(name, shape, scale, bias, source, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 2).astype(source)
    columns = rng.standard_normal((shape[0], 2)).astype(np.float32)

    def body(d, r, t, c):
        s = c[:, 0:1] if scale == "tile" else scale
        b = c[:, 1:2] if isinstance(bias, str) else bias
        nisa.activation(d, getattr(nl, name), t, bias=b, scale=s, reduce_res=r, reduce_cmd=CMD.reset_reduce)

    outputs = [(shape, nl.float32), ((shape[0], 1), nl.float32)]
    (out, total), _ = run(body, [x, columns], outputs)
    s = columns[:, 0:1] if scale == "tile" else np.float32(scale)
    b = columns[:, 1:2] if isinstance(bias, str) else np.float32(bias or 0)
    z = x.astype(np.float32) * s + b  # what the engine rounds to float32 before the function
    exact = EXACT[name](z.astype(np.float64))
    np.testing.assert_allclose(out, exact, rtol=5e-7, atol=1e-37)
    slack = 1e-37 + 1e-5 * np.abs(exact).sum(axis=1).max()  # sums of subnormals have few digits
    np.testing.assert_allclose(total[:, 0], exact.sum(axis=1), rtol=1e-5, atol=slack)


# ---- cost ----------------------------------------------------------------------------------------


def cost_of(platform, n, **options):
    """The cost of an exp of n float32 elements per partition."""
    costs = []

    def body(d, r, t):
        opt = {k: (r if v == "tile" else v) for k, v in options.items()}
        made = nisa.activation(d, nl.exp, t, **opt)
        costs.append((made.runs_on, made.cost(find(platform))))

    run(body, [normal(128, n)], [((128, n), nl.float32), np.zeros((128, 1), np.float32)], on=platform)
    return costs[0]


def test_cost_follows_the_manual():
    m = find("trn2")
    engine, cost = cost_of("trn2", 512)
    assert engine is SCALAR and (cost.cycles, cost.fix_ns, cost.shortest) == (512, 293, m.min_ii_cycles)
    assert cost.interval / m.scalar_ghz == pytest.approx(612, rel=0.03)  # device traces
    assert cost_of("trn2", 512, bias="tile")[1].fix_ns == 293  # traces: exp with a bias is no slower
    assert cost_of("trn2", 512, scale="tile")[1].fix_ns == 293 + 90
    _, reduced = cost_of("trn2", 512, reduce_res="tile", reduce_cmd=CMD.reset_reduce)
    assert reduced.cycles == pytest.approx(512 + 185 * m.scalar_ghz)
    _, trn1 = cost_of("trn1", 512, reduce_res="tile", reduce_cmd=CMD.reset_reduce)
    assert trn1.interval == pytest.approx(512 + 64 + find("trn1").scalar_access_cycles)
