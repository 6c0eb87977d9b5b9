"""The output projection of decode against its float64 reference."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, cosine, each_lnc, invalid, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.output_projection.output_projection_tkg import (
    output_projection_tkg,
    output_projection_tkg_ref,
)
from nkilib.core.utils.allocator import SbufManager, create_auto_alloc_manager
from nkilib.core.utils.common_types import DtypeMode, QuantizationType

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
SMALL = (48, 3, 5, 2, 512)  # D, B, N, S, H: two heads fill 96 partitions, one is left over
ROW, STATIC = QuantizationType.ROW, QuantizationType.STATIC
each_layout = pytest.mark.parametrize("transposed", [False, True])


def inputs(shape, dtype=BF16):
    """attention, weight, bias, whose result is about 1."""
    d, b, n, s, h = shape
    return [
        random((d, b, n, s), dtype),
        random((n * d, h), dtype, 1, (n * d) ** -0.5),
        random((1, h), dtype, 2),
    ]


def gathered(y):
    """[128, cores, J, T] as [T, H]."""
    p, cores, tiles, t = y.shape
    return y.transpose(3, 1, 0, 2).reshape(t, cores * p * tiles)


def check(args, lnc, transposed, tolerance=1e-2, on="trn2", **options):
    y = run(output_projection_tkg, *args, lnc=lnc, TRANSPOSE_OUT=transposed, on=on, **options)
    expected = output_projection_tkg_ref(*args, **options)
    h, t = args[1].shape[1], expected.shape[0]
    assert y.shape == ((128, lnc, h // lnc // 128, t) if transposed else (t, h))
    y = gathered(y) if transposed else y
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    return y, expected


@pytest.mark.tiny
@each_lnc
@each_layout
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_dtype_and_layout(dtype, transposed, lnc):
    args = inputs(SMALL, dtype)
    y, expected = check(args, lnc, transposed)
    close(y, expected, terms=args[1].shape[0])
    check(args[:2], lnc, transposed)


@each_lnc
@each_layout
@pytest.mark.parametrize(
    "shape",
    [
        (128, 1, 1, 4, 4096),
        (64, 32, 8, 1, 768),
        (32, 2, 7, 3, 256),
        (128, 33, 2, 1, 256),
        (96, 16, 3, 8, 768),
        (64, 2, 1, 1, 256),
    ],
)
def test_heads_and_tokens_of_every_kind(shape, transposed, lnc):
    check(inputs(shape), lnc, transposed)


@pytest.mark.slow
@each_lnc
@each_layout
@pytest.mark.parametrize(
    "shape", [(128, 4, 8, 1, 8192), (64, 32, 8, 1, 3072), (128, 1, 1, 4, 4096), (128, 16, 5, 8, 5120)]
)
def test_the_shapes_of_the_manual(shape, transposed, lnc):
    check(inputs(shape), lnc, transposed)


@each_lnc
@pytest.mark.parametrize("h", [130, 1026, 5000])
def test_plain_columns_may_be_ragged(h, lnc):
    check(inputs((64, 2, 3, 1, h)), lnc, False)


@each_lnc
@each_layout
@pytest.mark.parametrize("shape", [(64, 3, 4, 100, 512), (128, 1, 1, 650, 256), (32, 130, 2, 1, 256)])
def test_more_than_128_tokens_as_the_published_tests_have_them(shape, transposed, lnc):
    check(inputs(shape), lnc, transposed)


def test_blocks_of_tokens_whose_rows_fill_sbuf():
    check(inputs((32, 1, 1, 300, 9216), "float32"), 1, True)


@nki.jit
def through_sbuf(attention, weight, bias, transposed):
    """attention and the result in SBUF."""
    tile = nl.ndarray(attention.shape, attention.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, attention)
    result = output_projection_tkg(tile, weight, bias, TRANSPOSE_OUT=transposed, OUT_IN_SB=True)
    assert result.buffer == nl.sbuf
    out = nl.ndarray((nl.num_programs(0), *result.shape), result.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out[nl.program_id(0)], result)
    return out


@each_lnc
@each_layout
@pytest.mark.parametrize("depth", [48, 128])
def test_input_and_output_in_sbuf(depth, transposed, lnc):
    args = inputs((depth, *SMALL[1:]))
    y = run(through_sbuf, *args, lnc=lnc, transposed=transposed)
    assert y.shape == ((lnc, 128, 4 // lnc, 6) if transposed else (lnc, 6, 512 // lnc))
    whole = gathered(y.transpose(1, 0, 2, 3)) if transposed else np.concatenate(list(y), 1)
    np.testing.assert_allclose(
        whole.astype(np.float64), output_projection_tkg_ref(*args), rtol=1e-2, atol=1e-2
    )


# ---- FP8 -----------------------------------------------------------------------------------------


def fp8_inputs(shape, kind, dtype=FP8, largest=240.0):
    """attention in float32, FP8 weight, bias, and the options."""
    attention, weight, bias = inputs(shape, "float32")
    row = kind == ROW
    top = np.abs(weight).max(0 if row else None)
    scale = np.broadcast_to(top / largest, (128, weight.shape[1] if row else 1)).astype(np.float32).copy()
    options = {"quantization_type": kind, "weight_scale": scale}
    if not row:
        options["input_scale"] = np.full((128, 1), 3 / largest, np.float32)  # clips a few
    return [attention, (weight / scale[0]).astype(dtype), bias], options


@each_lnc
@each_layout
@pytest.mark.parametrize("kind", [ROW, STATIC])
@pytest.mark.parametrize("shape", [SMALL, (128, 2, 3, 1, 256)])
def test_fp8_weights(shape, kind, transposed, lnc):
    args, options = fp8_inputs(shape, kind)
    y, expected = check(args, lnc, transposed, **options)
    assert cosine(y, expected) >= 0.999


def test_attention_that_is_fp8_already_is_taken_as_it_is():
    args, options = fp8_inputs(SMALL, STATIC)
    args[0] = (10 * args[0]).astype(FP8)
    y, _ = check(args, 1, False, **options)
    assert y.dtype == BF16


def test_e4m3fn_on_trn3():
    args, options = fp8_inputs(SMALL, STATIC, ml_dtypes.float8_e4m3fn, 448.0)
    check(args, 1, False, on="trn3", dtype_mode=DtypeMode.OCP, **options)


# ---- refusals ------------------------------------------------------------------------------------


def refused(text, *args, lnc=1, **options):
    with invalid(text):
        run(output_projection_tkg, *args, lnc=lnc, **options)


def zeros(*shape, dtype=BF16):
    return np.zeros(shape, dtype)


def test_wrong_shapes_raise():
    refused(r"attention: got shape \(48, 3, 4\), expected \(D, B, N, S\)", zeros(48, 3, 4), zeros(144, 8))
    refused("attention: got D = 129, allowed are at most 128", zeros(129, 1, 1, 4), zeros(129, 8))
    refused(r"weight: got shape \(96, 8\), expected \(144, H\)", zeros(48, 1, 3, 4), zeros(96, 8))
    refused(r"attention: got B \* S = 4097 tokens", zeros(2, 4097, 1, 1), zeros(2, 8))
    refused(r"attention: got B \* S = 129 tokens", zeros(2, 129, 1, 1), zeros(2, 8), OUT_IN_SB=True)
    refused("weight: got H = 9, 2 cores take multiples of 2", zeros(2, 1, 1, 4), zeros(2, 9), lnc=2)
    refused(r"bias: got shape \(1, 9\), expected \(1, 8\)", zeros(2, 1, 1, 4), zeros(2, 8), zeros(1, 9))


def test_limits_of_the_transposed_layout():
    x = zeros(2, 1, 1, 4)
    refused("H = 130, allowed with TRANSPOSE_OUT are multiples of 128", x, zeros(2, 130), TRANSPOSE_OUT=True)
    refused(
        "H = 128, allowed with TRANSPOSE_OUT are multiples of 256",
        x,
        zeros(2, 128),
        TRANSPOSE_OUT=True,
        lnc=2,
    )
    heads = zeros(1, 1, 10, 1)
    refused(
        r"N \* H = 165120, allowed with TRANSPOSE_OUT are at most 163840",
        heads,
        zeros(10, 16512),
        TRANSPOSE_OUT=True,
    )
    refused(
        r"N \* H = 83200, allowed with TRANSPOSE_OUT are at most 81920",
        heads.astype(np.float32),
        zeros(10, 8320, dtype=np.float32),
        TRANSPOSE_OUT=True,
    )


def test_wrong_scales_raise():
    x, w, one = zeros(2, 1, 1, 4), zeros(2, 8), np.ones((128, 1), np.float32)
    fp8 = w.astype(FP8)
    refused("weight_scale: got one with QuantizationType.NONE", x, w, weight_scale=one)
    refused("weight_scale: got None, needed by", x, fp8, quantization_type=STATIC)
    refused("input_scale: got None, needed by", x, fp8, quantization_type=STATIC, weight_scale=one)
    refused("input_scale: got one with QuantizationType.NONE", x, w, input_scale=one)


def test_scales_of_columns_with_mx_weights_raise():
    with invalid("quantization_type: got QuantizationType.ROW_MX, allowed are NONE"):
        run(output_projection_tkg, zeros(2, 1, 1, 4), zeros(2, 8), quantization_type=QuantizationType.ROW_MX)


@nki.jit
def with_manager(x, w, bias, automatic, in_sbuf=False, **options):
    """The result, and a tile of the caller's that must be what it was."""
    sbm = create_auto_alloc_manager() if automatic else SbufManager(1024, 120 * 1024)
    mine = sbm.alloc_stack((128, 64), nl.float32, name="mine")
    nisa.memset(mine, 7.0)
    before = 0 if automatic else sbm.get_stack_curr_addr()
    result = output_projection_tkg(x, w, bias, sbm=sbm, OUT_IN_SB=in_sbuf, **options)
    if not automatic:
        result_bytes = result.size // result.shape[0] * 2 if in_sbuf else 0
        assert sbm.get_stack_curr_addr() == before + result_bytes
    if in_sbuf:
        out = nl.ndarray((nl.num_programs(0), *result.shape), result.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out[nl.program_id(0)], result)
        result = out
    untouched = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(untouched, mine)
    return result, untouched


@each_lnc
@each_layout
@pytest.mark.parametrize("in_sbuf", [False, True])
@pytest.mark.parametrize("kind", [QuantizationType.NONE, STATIC, ROW])
def test_a_manual_sbuf_manager_places_every_tile(kind, in_sbuf, transposed, lnc, monkeypatch):
    args = inputs((48, 3, 5, 2, 2560))
    options = {"TRANSPOSE_OUT": transposed, "in_sbuf": in_sbuf}
    if kind != QuantizationType.NONE:
        scales = {STATIC: np.full((128, 1), 0.02, np.float32), ROW: np.full((128, 2560), 0.02, np.float32)}
        args[1] = (args[1].astype(np.float32) * 50).astype(FP8)
        options |= {"quantization_type": kind, "weight_scale": scales[kind]}
    if kind == STATIC:
        options["input_scale"] = np.full((128, 1), 0.02, np.float32)
    expected = run(with_manager, *args, lnc=lnc, automatic=True, **options)[0]
    places = []
    original = nl.ndarray

    def noted(shape, dtype, buffer=nl.sbuf, name="", address=None, **more):
        if buffer == nl.sbuf:
            places.append(address)
        return original(shape, dtype, buffer=buffer, name=name, address=address, **more)

    monkeypatch.setattr(nl, "ndarray", noted)
    got, untouched = run(with_manager, *args, lnc=lnc, automatic=False, **options)
    assert np.array_equal(got, expected) and (untouched == 7).all()
    assert len(places) > 5 and None not in places


def test_a_manager_without_room_raises():
    with pytest.raises(AssertionError, match="SBUF is full: tile .* needs .* bytes per partition"):
        run(with_little_room, *inputs((128, 4, 8, 1, 4096))[:2])


@nki.jit
def with_little_room(x, w):
    return output_projection_tkg(x, w, sbm=SbufManager(0, 12 * 1024))


@each_lnc
def test_many_tokens_with_a_manual_manager(lnc):
    args = inputs((64, 3, 4, 100, 512))
    got = run(with_manager, *args, lnc=lnc, automatic=False)[0]
    assert np.array_equal(got, run(output_projection_tkg, *args, lnc=lnc))


@pytest.mark.parametrize("transposed, part", [(False, 0.79), (True, 0.75)])
def test_weights_stream_at_most_of_the_dma_rate(transposed, part):
    d, b, n, s, h = 128, 4, 16, 1, 8192
    specs = [nki.TensorSpec(shape, "bfloat16") for shape in ((d, b, n, s), (n * d, h))]
    modelled = run(nki.profile(output_projection_tkg), *specs, TRANSPOSE_OUT=transposed).total_us
    assert 2 * n * d * h / (16 * 24.5e3) >= part * modelled


@pytest.mark.parametrize("batch, heads, h, lnc, most", [(4, 8, 4096, 1, 39.8), (32, 4, 8192, 2, 31.5)])
def test_little_follows_the_last_weights(batch, heads, h, lnc, most):
    """Modelled microseconds; a kernel that drains all columns at the end takes longer."""
    specs = [nki.TensorSpec(shape, "bfloat16") for shape in ((128, batch, heads, 1), (heads * 128, h))]
    assert run(nki.profile(output_projection_tkg[lnc]), *specs).total_us <= most
