"""The MLP with MX weights against float64 on numbers that the OCP emulation quantises."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import cosine, each_lnc, random, run
from mx_weights import by_blocks, in_words, places_of_columns, places_of_rows

import nki
import nki.isa as nisa
import nki.language as nl
from nki import mx
from nkilib.core.mlp.mlp import act_ref, mlp, norm_ref
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.common_types import (
    ActFnType,
    ComputationMode,
    MLPGateUpWeightLayout,
    NormType,
    QuantizationType,
)

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
MX, STATIC_MX, ROW_MX = QuantizationType.MX, QuantizationType.STATIC_MX, QuantizationType.ROW_MX
each_format = pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
INNERMOST, MIDDLE = MLPGateUpWeightLayout.H_X4_INNERMOST, MLPGateUpWeightLayout.H_X4_MIDDLE
NAMES = ("gate", "up", "down")


# ---- weights as callers have them ------------------------------------------------------------------


def layer(tokens, h, inner, form="float8_e4m3fn", layout="quarter"):
    """x, the three weights as words, their scales by keyword, and the weights as float64."""
    x = random((1, tokens, h), "bfloat16", 1)
    plain = [
        random(s, "float32", i, s[0] ** -0.5) for i, s in enumerate(((h, inner), (h, inner), (inner, h)))
    ]
    rows = places_of_rows(h, layout)
    forms = [in_words(plain[0], rows, form), in_words(plain[1], rows, form)]
    forms.append(in_words(plain[2], places_of_columns(inner), form))
    scales = {f"{name}_w_scale": f[1] for name, f in zip(NAMES, forms, strict=True)}
    return x, [f[0] for f in forms], scales, [f[2] for f in forms]


# ---- what they mean ----------------------------------------------------------------------------------


def static_fp8(x, scale):
    return (
        np.clip((x / scale).astype(BF16).astype(np.float64), -448, 448).astype(FP8).astype(np.float64) * scale
    )


def row_fp8(x, bound=np.inf):
    """Every token by its largest element."""
    x = np.clip(x, -bound, bound)
    scale = np.maximum(np.abs(x).max(-1, keepdims=True) / 448, 1e-5)
    return (x / scale).astype(BF16).astype(np.float64).astype(FP8).astype(np.float64) * scale


def expected(x, weights, layout="quarter", act=ActFnType.SiLU, narrow=None, limits=None, biases=(0, 0, 0)):
    gate, up, down = weights
    rows, columns = places_of_rows(len(up), layout), places_of_columns(up.shape[1])
    narrow = narrow or (lambda a, places, _: by_blocks(a, places))
    x = narrow(np.asarray(x, np.float64).astype(BF16).astype(np.float64), rows, 0)
    g, u = x @ gate + biases[0], x @ up + biases[1]
    if limits is not None:
        g, u = np.clip(g, *limits), np.clip(u, *limits)
    m = (act_ref(g, act) * u).astype(BF16).astype(np.float64)
    return narrow(m, columns, 1) @ down + biases[2]


def agree(actual, wanted):
    """Within what spec/library/mlp.md asks of MX; the kernel rarely rounds to the other side."""
    assert actual.shape == wanted.shape
    actual = actual.astype(np.float64)
    np.testing.assert_allclose(actual, wanted, rtol=6e-2, atol=6e-2 * np.abs(wanted).max())
    assert cosine(actual, wanted) > 0.999


# ---- decode ------------------------------------------------------------------------------------------


@each_lnc
@each_format
def test_decode_multiplies_mx_weights_with_mxfp8_tokens(lnc, form):
    x, words, scales, weights = layer(4, 1024, 1024, form)
    y = run(mlp, x, *words, lnc=lnc, on="trn3", quantization_type=MX, **scales)[0]
    agree(y[0], expected(x[0], weights))


@each_lnc
@pytest.mark.parametrize(
    "tokens, inner",
    [
        (3, 256),
        (1, 512),
        (5, 640),
        (33, 96),
        (8, 992),
        (2, 90),
        (4, 360),
        (4, 722),
        (4, 180),
        (34, 692),
        (1, 6),
    ],
)
def test_tokens_may_be_odd_and_the_intermediate_size_ragged(lnc, tokens, inner):
    x, words, scales, weights = layer(tokens, 512, inner)
    y = run(mlp, x, *words, lnc=lnc, on="trn3", quantization_type=MX, **scales)[0]
    agree(y[0], expected(x[0], weights))


@each_lnc
def test_norm_residual_biases_and_limits_as_without_mx(lnc):
    x, words, scales, weights = layer(4, 512, 640)
    add, gamma = random(x.shape, "bfloat16", 7), random((1, 512), "bfloat16", 8)
    places = places_of_columns(640)
    flat = [random((640,), "float32", 9), random((640,), "float32", 10), random((1, 512), "float32", 11)]
    biases = [np.where(places >= 0, b[places], 0).swapaxes(0, 1).astype(np.float32) for b in flat[:2]]
    y, total = run(
        mlp,
        x,
        *words,
        lnc=lnc,
        on="trn3",
        quantization_type=MX,
        normalization_type=NormType.RMS_NORM,
        normalization_weights_tensor=gamma,
        fused_add_tensor=add,
        store_fused_add_result=True,
        activation_fn=ActFnType.Swish,
        gate_proj_bias_tensor=biases[0],
        up_proj_bias_tensor=biases[1],
        down_proj_bias_tensor=flat[2],
        gate_clamp_upper_limit=1.0,
        gate_clamp_lower_limit=-1.0,
        up_clamp_upper_limit=1.0,
        up_clamp_lower_limit=-1.0,
        **scales,
    )
    summed = x.astype(np.float64) + add.astype(np.float64)
    normed = norm_ref(summed, NormType.RMS_NORM, gamma, None, 1e-6)
    agree(y[0], expected(normed[0], weights, act=ActFnType.Swish, limits=(-1, 1), biases=flat))
    np.testing.assert_allclose(total.astype(np.float64), summed, rtol=1e-2, atol=1e-2)


def test_without_a_gate_only_up_is_activated():
    x, words, scales, weights = layer(4, 512, 512)
    y = run(mlp, x, *words, on="trn3", quantization_type=MX, skip_gate_proj=True, **scales)[0]
    inside = by_blocks(x[0].astype(np.float64), places_of_rows(512, "quarter")) @ weights[1]
    m = act_ref(inside, ActFnType.SiLU).astype(BF16).astype(np.float64)
    agree(y[0], by_blocks(m, places_of_columns(512)) @ weights[2])


# ---- STATIC_MX ---------------------------------------------------------------------------------------


def fp8_words(narrow, places):
    lanes = np.where((places >= 0)[..., None], narrow[places], FP8(0)).transpose(1, 0, 3, 2)
    packed = mx.pack_x4(np.ascontiguousarray(lanes), "float8_e4m3fn")
    return packed.view(mx.x4_dtype("float8_e4m3fn"))[..., 0]


def static_layer(tokens, h, inner, layout):
    """FP8 weights without block scales: one scale for all of each operand."""
    x, _, _, plain = layer(tokens, h, inner, layout=layout)
    places = (places_of_rows(h, layout),) * 2 + (places_of_columns(inner),)
    words, scales, weights = [], {}, []
    for name, weight, where in zip(NAMES, plain, places, strict=True):
        scale = np.abs(weight).max() / 448
        narrow = (weight / scale).astype(np.float32).astype(FP8)
        words.append(fp8_words(narrow, where))
        scales[f"{name}_w_scale"] = np.full((128, 1), scale, np.float32)
        weights.append(narrow.astype(np.float64) * scale)
    return x, words, scales, weights


@each_lnc
@pytest.mark.parametrize("layout", ["wrapX", "innermost"])
def test_static_mx_has_one_scale_for_each_operand(lnc, layout):
    x, words, scales, weights = static_layer(4, 1024, 640, layout)
    given = {"gate_up_in_scale": 4 / 448, "down_in_scale": 2 / 448}
    y = run(
        mlp,
        x,
        *words,
        lnc=lnc,
        on="trn3",
        quantization_type=STATIC_MX,
        use_contiguous_x4_gate_up=layout == "innermost",
        mx_dummy_scale_hbm=np.full((128, 512), 127, np.uint8),
        **{name: np.full((128, 1), s, np.float32) for name, s in given.items()},
        **scales,
    )[0]
    agree(
        y[0], expected(x[0], weights, layout, narrow=lambda a, _, n: static_fp8(a, list(given.values())[n]))
    )


# ---- ROW_MX ------------------------------------------------------------------------------------------


def row_layer(tokens, h, inner, layout):
    """FP8 weights without block scales: one scale for each column."""
    x, _, _, plain = layer(tokens, h, inner, layout=layout)
    rows, columns = places_of_rows(h, layout), places_of_columns(inner)
    words, scales, weights = [], {}, []
    for name, weight in zip(NAMES, plain, strict=True):
        scale = np.abs(weight).max(0) / 448
        narrow = (weight / scale).astype(np.float32).astype(FP8)
        words.append(fp8_words(narrow, columns if name == "down" else rows))
        weights.append(narrow.astype(np.float64) * scale)
        if name == "down":
            by_place = scale.reshape(h // 128, 128).T
        else:  # as rows of down have them: [partition, tile and lane]
            by_place = (
                np.where(columns >= 0, scale[columns], 0).transpose(1, 0, 2).reshape(columns.shape[1], -1)
            )
            by_place = np.pad(by_place, ((0, 128 - len(by_place)), (0, 0)))
        scales[f"{name}_w_scale"] = np.ascontiguousarray(by_place, np.float32)
    return x, words, scales, weights


def row_narrow(bound=np.inf):
    return lambda a, *_: row_fp8(a, bound)


@each_lnc
@pytest.mark.parametrize(
    "tokens, inner, layout", [(4, 640, "wrapX"), (3, 96, "innermost"), (301, 512, "wrapX")]
)
def test_row_mx_has_a_scale_for_each_token_and_column(lnc, tokens, inner, layout):
    x, words, scales, weights = row_layer(tokens, 1024, inner, layout)
    x = (x.astype(np.float32) * np.linspace(0.01, 100, tokens)[:, None]).astype(BF16)
    innermost = layout == "innermost"
    y = run(
        mlp,
        x,
        *words,
        lnc=lnc,
        on="trn3",
        quantization_type=ROW_MX,
        use_contiguous_x4_gate_up=innermost,
        **scales,
    )[0]
    agree(y[0], expected(x[0], weights, layout, narrow=row_narrow()))


def test_row_mx_scales_may_have_tiles_and_lanes_apart():
    x, words, scales, weights = row_layer(130, 512, 1024, "wrapX")
    apart = {name: scale.reshape(128, -1, 4) for name, scale in scales.items()}
    y = run(mlp, x, *words, on="trn3", quantization_type=ROW_MX, **apart)[0]
    agree(y[0], expected(x[0], weights, "wrapX", narrow=row_narrow()))


def test_row_mx_with_a_norm_a_bound_and_no_gate():
    x, words, scales, weights = row_layer(4, 512, 512, "wrapX")
    gamma = random((1, 512), "bfloat16", 8)
    options = {"normalization_type": NormType.RMS_NORM, "normalization_weights_tensor": gamma}
    y = run(
        mlp,
        x,
        *words,
        on="trn3",
        quantization_type=ROW_MX,
        quant_clipping_bound=0.75,
        skip_gate_proj=True,
        **options,
        **scales,
    )[0]
    normed = norm_ref(x[0].astype(np.float64), NormType.RMS_NORM, gamma, None, 1e-6).astype(BF16)
    inside = row_fp8(normed.astype(np.float64), 0.75) @ weights[1]
    m = act_ref(inside, ActFnType.SiLU).astype(BF16).astype(np.float64)
    agree(y[0], row_fp8(m, 0.75) @ weights[2])


@each_lnc
@pytest.mark.parametrize("tokens", [4, 130])
def test_row_mx_takes_rows_with_their_scale_behind_them(lnc, tokens):
    x, words, scales, weights = row_layer(tokens, 512, 512, "wrapX")
    scale = np.abs(x[0].astype(np.float32)).max(-1, keepdims=True) / 448
    narrow = (x[0].astype(np.float32) / scale).astype(FP8)
    rows = np.concatenate([narrow, scale.astype(np.float32).view(FP8)], axis=1)[None]
    y = run(mlp, rows, *words, lnc=lnc, on="trn3", quantization_type=ROW_MX, **scales)[0]
    assert y.dtype == BF16
    m = middle_of(narrow.astype(np.float64) * scale, weights)
    agree(y[0], row_fp8(m) @ weights[2])


def middle_of(x, weights):
    return (act_ref(x @ weights[0], ActFnType.SiLU) * (x @ weights[1])).astype(BF16).astype(np.float64)


# ---- prefill -----------------------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("layout, w_layout", [("innermost", INNERMOST), ("wrapX", MIDDLE)])
def test_prefill_takes_weights_of_six_axes(lnc, layout, w_layout):
    tokens, h, inner = 301, 512, 512
    x, words, scales, weights = layer(tokens, h, inner, layout=layout)
    shapes = [(128, h // 512, inner // 512, 4, 128, 4)] * 2 + [(128, inner // 512, h, 4)]
    elements = [
        mx.unpack_x4(w.view(np.uint32), "float8_e4m3fn").reshape(s)
        for w, s in zip(words, shapes, strict=True)
    ]
    for name in ("gate_w_scale", "up_w_scale"):
        scales[name] = scales[name].reshape(16, h // 512, inner // 512, 4, 128)
    y = run(mlp, x, *elements, lnc=lnc, on="trn3", quantization_type=MX, gate_up_w_layout=w_layout, **scales)[
        0
    ]
    agree(y[0], expected(x[0], weights, layout))


# ---- results elsewhere, refusals ---------------------------------------------------------------------


@each_lnc
def test_decode_leaves_results_where_asked(lnc):
    x, words, scales, weights = layer(4, 512, 512)
    options = {"quantization_type": MX, "use_tkg_down_proj_column_tiling": False, "transposed_out": True}
    y = run(mlp, x, *words, lnc=lnc, on="trn3", **options, **scales)[0]
    agree(y.transpose(3, 1, 0, 2).reshape(4, 512), expected(x[0], weights))


def test_what_mx_lacks_is_said():
    x, words, scales, _ = layer(4, 512, 512)
    with pytest.raises(AssertionError, match="trn3"):
        run(mlp, x, *words, on="trn2", quantization_type=MX, **scales)
    with pytest.raises(AssertionError, match="gate_w_scale: got None"):
        run(mlp, x, *words, on="trn3", quantization_type=MX)
    with pytest.raises(AssertionError, match="gate_w_scale"):
        run(mlp, x, *words, on="trn3", quantization_type=ROW_MX, **scales)
    with pytest.raises(AssertionError, match="gate_up_w_layout"):
        run(mlp, x, *words, on="trn3", gate_up_w_layout=INNERMOST)


def test_decode_of_mxfp4_weights_is_bound_by_their_bytes(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    h, inner = 4096, 3584
    words = [nki.TensorSpec((128, 8, inner), "float4_e2m1fn_x4")] * 2 + [
        nki.TensorSpec((128, 7, h), "float4_e2m1fn_x4")
    ]
    shapes = ((16, 8, inner), (16, 8, inner), (16, 7, h))
    scales = {f"{n}_w_scale": nki.TensorSpec(s, "uint8") for n, s in zip(NAMES, shapes, strict=True)}
    hidden = nki.TensorSpec((4, 1, h), "bfloat16")
    narrow = nki.profile(mlp)(hidden, *words, quantization_type=MX, **scales).total_us
    plain = [nki.TensorSpec(s, "bfloat16") for s in ((h, inner), (h, inner), (inner, h))]
    wide = nki.profile(mlp)(hidden, *plain, mode=ComputationMode.DECODE).total_us
    assert narrow <= 0.35 * wide


# ---- tokens that are quantised already -----------------------------------------------------------------


def packed_rows(x, folded):
    """Rows [H | codes of scales] as the page of rmsnorm_mx_prefill has them, and what they stand for."""
    tokens, h = x.shape
    data, codes = mx.quantize_lanes(x.reshape(-1, 4).astype(np.float32), "float8_e4m3fn", "ocp")
    values = mx.dequantize_lanes(data, codes).reshape(tokens, h)
    tiles = h // 512
    region = np.zeros((tokens, tiles, 128), np.uint8)
    g = np.arange(16)
    region[:, :, 32 * (g // 4) + g % 4] = codes.reshape(tokens, tiles, 16)
    if folded:
        wide = np.zeros((tokens, -(-tiles // 4), 128), np.uint8)
        for t in range(tiles):
            wide[:, t // 4] |= np.roll(region[:, t], 4 * (t % 4), axis=-1)
        region = wide
    return np.concatenate([data.reshape(tokens, h).view(np.uint8), region.reshape(tokens, -1)], axis=1).view(
        FP8
    ), values


@each_lnc
@pytest.mark.parametrize("tokens, h, folded", [(129, 1024, True), (300, 1024, False), (6, 2560, True)])
def test_tokens_may_arrive_as_packed_mxfp8(lnc, tokens, h, folded):
    x, words, scales, weights = layer(tokens, h, 512, layout="innermost")
    rows, values = packed_rows(x[0].astype(np.float32), folded)
    options = {"quantization_type": MX, "gate_up_w_layout": INNERMOST}
    y = run(mlp, rows[None], *words, lnc=lnc, on="trn3", **options, **scales)[0]
    assert y.shape == x.shape and y.dtype == BF16
    agree(y[0], by_blocks(middle_of(values, weights), places_of_columns(512)) @ weights[2])


def test_rows_with_a_scale_go_with_mx_weights_too():
    x, words, scales, weights = layer(5, 512, 512)
    scale = np.abs(x[0].astype(np.float32)).max(-1, keepdims=True) / 448
    narrow = (x[0].astype(np.float32) / scale).astype(FP8)
    rows = np.concatenate([narrow, scale.astype(np.float32).view(FP8)], axis=1)[None]
    y = run(mlp, rows, *words, on="trn3", quantization_type=MX, **scales)[0]
    m = middle_of(narrow.astype(np.float64) * scale, weights)
    agree(y[0], by_blocks(m, places_of_columns(512)) @ weights[2])


def test_packed_tokens_need_weights_in_the_same_order():
    _, words, scales, _ = layer(128, 512, 512)
    packed = np.zeros((1, 128, 512 + 128), FP8)
    with pytest.raises(AssertionError, match="H_X4_INNERMOST"):
        run(mlp, packed, *words, on="trn3", quantization_type=MX, **scales)
    with pytest.raises(AssertionError, match="expected .B, S, 516 or 640"):
        run(mlp, packed[:, :, :-1], *words, on="trn3", quantization_type=MX, **scales)


# ---- a manual SBUF manager -----------------------------------------------------------------------------


@nki.jit
def with_manager(hidden, gate, up, down, **options):
    """y, and a tile of the caller's that must be what it was."""
    sbm = SbufManager(2048, 190 * 1024)
    mine = sbm.alloc_stack((128, 64), nl.float32, name="mine")
    nisa.memset(mine, 7.0)
    y = mlp(hidden, gate, up, down, sbm=sbm, **options)[0]
    untouched = nl.ndarray((nl.num_programs(0), 128, 64), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(untouched[nl.program_id(0)], mine)
    return y, untouched


@each_lnc
@pytest.mark.parametrize(
    "tokens, norm", [(3, NormType.NO_NORM), (20, NormType.RMS_NORM_SKIP_GAMMA), (515, NormType.NO_NORM)]
)
def test_a_manual_sbuf_manager_places_all_tiles(lnc, tokens, norm, monkeypatch):
    monkeypatch.setattr("nkilib.core.utils.tiles.STREAM_BYTES", 12 * 1024)  # weights pass it by several times
    x, words, scales, _ = layer(tokens, 1024, 1024)
    options = {"quantization_type": MX, "normalization_type": norm, **scales}
    expected = run(mlp, x, *words, lnc=lnc, on="trn3", **options)[0]
    y, untouched = run(with_manager, x, *words, lnc=lnc, on="trn3", **options)
    assert np.array_equal(y, expected) and (untouched == 7).all()
