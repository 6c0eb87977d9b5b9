import numpy as np
import pytest
from kernel_support import close, fp8_steps, random

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check import lint
from nkilib.core.quantization.fp8_quantize import (
    MINIMUM_SCALE,
    pre_combine_dequant_scales,
    row_quantization,
    row_quantization_ref,
    static_quantization,
    static_quantization_ref,
)
from nkilib.core.utils.allocator import SbufManager
from support import run_tiles

FP8 = ["float8_e4m3", "float8_e4m3fn", "float8_e5m2"]
SHAPES = [(128, 1, 64), (128, 32, 16), (128, 96, 40), (100, 4096)]
ONES = np.ones((128, 1), np.float32)


def quantised(x, scale, dtype="float8_e4m3", **options):
    (q,) = run_tiles(
        lambda q, x, s: static_quantization(x, s, dtype=nl_dtype(dtype), quantized=q, **options),
        [x, scale * ONES],
        [(x.shape, dtype)],
    )
    return q


def nl_dtype(name):
    return getattr(nl, name)


def scale_shape(x):
    return (*x.shape[:2], 1) if x.ndim == 3 else (x.shape[0], 1)


def row_quantised(x, dtype="float8_e4m3", **options):
    return run_tiles(
        lambda q, s, x: row_quantization(x, nl_dtype(dtype), quantized=q, dequant_scale=s, **options),
        [x],
        [(x.shape, dtype), (scale_shape(x), "float32")],
    )


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
def test_static_quantisation_scales_clips_and_rounds(dtype, source):
    x = random((128, 2, 24), source, scale=40)
    q = quantised(x, 0.125, dtype)
    assert fp8_steps(q, static_quantization_ref(x, 0.125, nl_dtype(dtype))) <= 1
    assert np.abs(q.astype(np.float32)).max() <= nl_dtype(dtype).largest


@pytest.mark.parametrize("shape", SHAPES)
def test_static_quantisation_takes_every_shape(shape):
    x = random(shape, "bfloat16")
    assert fp8_steps(quantised(x, 0.01), static_quantization_ref(x, 0.01, nl.float8_e4m3)) <= 1


def test_a_quant_scale_takes_the_place_of_the_dequant_scale():
    x = random((128, 64), "float32")
    (q,) = run_tiles(
        lambda q, x, s: static_quantization(x, None, s, nl.float8_e5m2, quantized=q),
        [x, 4 * ONES],
        [(x.shape, "float8_e5m2")],
    )
    assert fp8_steps(q, static_quantization_ref(x, 0.25, nl.float8_e5m2)) <= 1


@pytest.mark.tiny
@pytest.mark.parametrize("shape", SHAPES)
def test_every_token_has_its_own_scale(shape):
    x = random(shape, "bfloat16") * np.linspace(1, 9, shape[1])[:, None].astype(np.float32)[
        : shape[1]
    ].T.reshape((1, -1, 1) if len(shape) == 3 else (1, -1))
    x = x.astype(np.float32)
    q, s = row_quantised(x)
    expected, scales = row_quantization_ref(x, nl.float8_e4m3)
    assert fp8_steps(q, expected) <= 1
    spread = np.broadcast_to(scales[None, :, None], s.shape) if x.ndim == 3 else scales[:, None]
    np.testing.assert_allclose(s, spread, rtol=1e-6)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
def test_row_quantisation_of_every_dtype(dtype, source):
    x = random((64, 96), source, scale=3)
    q, s = row_quantised(x, dtype)
    expected, scales = row_quantization_ref(x, nl_dtype(dtype))
    assert fp8_steps(q, expected) <= 1
    np.testing.assert_allclose(s[:, 0], scales, rtol=1e-6)


def test_more_tokens_than_partitions():
    x = random((128, 200, 3), "float32")
    _, s = row_quantised(x)
    np.testing.assert_allclose(s[5, :, 0], row_quantization_ref(x, nl.float8_e4m3)[1], rtol=1e-6)


def test_zeros_stay_zeros():
    q, s = row_quantised(np.zeros((4, 8), np.float32))
    assert not q.astype(np.float32).any() and (s == np.float32(MINIMUM_SCALE)).all()


def test_the_bytes_may_be_returned_as_another_dtype():
    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        q, _ = row_quantization(tile, nl.float8_e4m3fn, output_dtype=nl.float8_e4m3fn_x4)
        out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, q)
        return out

    x = random((128, 2, 16), "float32")
    packed = kernel(x)
    assert packed.shape == (128, 2, 4)
    expected, _ = row_quantization_ref(x, nl.float8_e4m3fn)
    assert fp8_steps(packed.view(expected.dtype).reshape(x.shape), expected) <= 1


def test_the_destination_may_hold_four_values_in_an_element():
    def body(packed, x):
        returned, _ = row_quantization(
            x, nl.float8_e4m3fn, output_dtype=nl.float8_e4m3fn_x4, quantized=packed.view(nl.float8_e4m3fn_x4)
        )
        assert returned.dtype == nl.float8_e4m3fn_x4 and returned.shape == (128, 2, 4)

    x = random((128, 2, 16), "float32")
    (packed,) = run_tiles(body, [x], [((128, 2, 4), "uint32")])
    expected, _ = row_quantization_ref(x, nl.float8_e4m3fn)
    assert fp8_steps(packed.view(expected.dtype).reshape(x.shape), expected) <= 1


@pytest.mark.parametrize("shapes", [((128, 1), (128, 1)), ((128, 1), (128, 7)), ((128, 7), (128, 1))])
def test_scales_are_multiplied(shapes):
    a, b = random(shapes[0]), random(shapes[1], seed=1)
    widest = max(shapes, key=lambda shape: shape[1])

    def body(out, a, b):
        nisa.tensor_copy(out, pre_combine_dequant_scales(a, b))

    (combined,) = run_tiles(body, [a, b], [(widest, "float32")])
    close(combined, a.astype(np.float64) * b)


@nki.jit
def placed(x, scale):
    """All three with tiles from an SbufManager."""
    sbm = SbufManager(0, 131072)
    sbm.open_scope()
    tile, column = sbm.alloc(x.shape, x.dtype), sbm.alloc(scale.shape, scale.dtype)
    nisa.dma_copy(tile, x)
    nisa.dma_copy(column, scale)
    combined = pre_combine_dequant_scales(column, column, sbm)
    q = static_quantization(tile, combined, dtype=nl.float8_e4m3, sbm=sbm)
    r, s = row_quantization(tile, nl.float8_e4m3, sbm)
    outs = []
    for result in (q, r, s):
        out = nl.ndarray(result.shape, result.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, result)
        outs.append(out)
    sbm.close_scope()
    return tuple(outs)


def test_tiles_may_come_from_an_sbuf_manager():
    x = random((128, 4, 8), "float32")
    q, r, _ = placed(x, 0.5 * ONES)
    assert fp8_steps(q, static_quantization_ref(x, 0.25, nl.float8_e4m3)) <= 1
    assert fp8_steps(r, row_quantization_ref(x, nl.float8_e4m3)[0]) <= 1


def test_they_compile():
    assert [str(f) for f in lint(placed)] == []


def refused(text, body, *arrays):
    with pytest.raises(AssertionError, match=f"Kernel validation exception: {text}"):
        run_tiles(lambda out, *tiles: body(*tiles), arrays, [((128, 1), "float32")])


def test_what_is_wrong_is_named():
    x = random((128, 2, 4))
    refused("input_dequant_scale: got None, a tile is needed", lambda x: static_quantization(x, None), x)
    refused("dtype: got bfloat16, allowed are float8_e4m3", lambda x: row_quantization(x, nl.bfloat16), x)
    refused("hidden_state: got 4 dimensions, allowed are 2 and 3", row_quantization, x[..., None])
    refused(
        r"input_dequant_scale: got shape \(128, 8\), expected \(128, 1\)",
        static_quantization,
        x,
        x.reshape(128, 8),
    )
    refused(
        r"quantized: got shape \(128, 1, 4\), expected \(128, 2, 4\)",
        lambda x: row_quantization(x, quantized=nl.ndarray((128, 1, 4), nl.float8_e4m3fn)),
        x,
    )
    refused(
        r"weight_dequant_scale: got shape \(128, 3\), expected \(128, 2\)",
        pre_combine_dequant_scales,
        random((128, 2)),
        random((128, 3)),
    )


def test_tensors_outside_sbuf_raise():
    @nki.jit
    def kernel(x):
        row_quantization(x)
        return x

    with pytest.raises(
        AssertionError, match="hidden_state: got a tensor in .*hbm.*, expected a tile in SBUF"
    ):
        kernel(random((4, 4)))
