"""Every option of the MXFP8 kernels on numbers that MXFP8 holds exactly, so that products are exact too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_support import run
from options.common import Option, check, each, refusals

from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_generic_kernel import matmul_mxfp8
from nkilib.experimental.quantize_mxfp8.quantize_mxfp8 import quantize_block_mxfp8_kernel

TRN3 = "trn3"


def exact(shape, seed=0, dtype="bfloat16") -> np.ndarray:
    """Numbers of two significant bits and a few binades, which FP8 with a common scale holds."""
    chosen = np.random.default_rng(seed).choice([-3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0], shape)
    return chosen.astype(dtype)


def on_trn3(cases) -> list[Option]:
    return [case._replace(name=f"{case.name}-lnc{lnc}", lnc=lnc, on=TRN3) for case in cases for lnc in (1, 2)]


def swizzled(x: np.ndarray) -> np.ndarray:
    """[F, K] as [K/4, 4F]: element k = 512 t + 128 q + p of row f at [128 t + p, 4 f + q]."""
    f, k = x.shape
    return x.reshape(f, k // 512, 4, 128).transpose(1, 3, 0, 2).reshape(k // 4, 4 * f)


PLAIN = {"lhs_is_swizzled": False, "rhs_is_swizzled": False}
BASIC = {"lhs": exact((16, 512)), "rhs": exact((24, 512), 1)} | PLAIN


def product(
    lhs, rhs, lhs_is_swizzled=True, rhs_is_swizzled=True, lhs_is_f_by_k=True, rhs_is_f_by_k=True, **options
):
    def matrix(x, is_swizzled, by_k):
        x = np.asarray(x, np.float64)
        if is_swizzled:
            k4, f4 = x.shape
            return x.reshape(k4 // 128, 128, f4 // 4, 4).transpose(2, 0, 3, 1).reshape(f4 // 4, 4 * k4)
        return x if by_k else x.T

    return matrix(lhs, lhs_is_swizzled, lhs_is_f_by_k) @ matrix(rhs, rhs_is_swizzled, rhs_is_f_by_k).T


PRODUCTS = [
    Option("basic"),
    Option("swizzled", {"lhs": swizzled(exact((16, 512))), "lhs_is_swizzled": True}),
    Option(
        "both-swizzled",
        {
            "lhs": swizzled(exact((16, 512))),
            "rhs": swizzled(exact((24, 512), 1)),
            "lhs_is_swizzled": True,
            "rhs_is_swizzled": True,
        },
    ),
    Option("lhs-k-by-f", {"lhs": exact((512, 16)), "lhs_is_f_by_k": False}),
    Option("rhs-k-by-f", {"rhs": exact((512, 24)), "rhs_is_f_by_k": False}),
    Option("float16", {"lhs": exact((16, 512), dtype="float16")}),
    Option("e4m3", {"float8_dtype": "float8_e4m3fn"}),
    Option("output-float32", {"output_dtype": "float32"}, tolerance=1e-6),
    Option("1x32", {"quant_scheme": "1x32"}),
    Option("K-128", {"lhs": exact((16, 128)), "rhs": exact((24, 128), 1)}),
    Option("K-1536", {"lhs": exact((16, 1536)), "rhs": exact((24, 1536), 1)}),
    Option("M-8", {"lhs": exact((8, 512))}),
    Option("M-136", {"lhs": exact((136, 512))}),
    Option("N-520", {"rhs": exact((520, 512), 1)}),
    Option("no-lnc2", {"run_with_lnc2": False}),
    Option("share-rhs", {"lnc_2_shard_rhs": True}),
    Option("share-lhs", {"lnc_2_shard_rhs": False}),
    Option("loop-order", {"block_loop_order": "nmk", "tile_loop_order": "nmk"}),
    Option("spill", {"spill_reload": True}),
    Option("PE-swizzle", {"load_with_PE_swizzle": True}),
    Option("fast-transpose", {"fast_dma_transpose": True}),
    Option("psum-copy", {"enable_psum_copy_in": True}),
]


@each(on_trn3(PRODUCTS))
def test_products(option):
    check(option, matmul_mxfp8, BASIC, product, 2**-8)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("as_pair", [False, True])
def test_products_of_quantised_operands(dtype, packed, as_pair):
    lhs, rhs = exact((16, 512)), exact((24, 512), 1)
    a = run(quantize_block_mxfp8_kernel, lhs, dtype, enable_scale_packing=packed, on=TRN3)
    b = run(quantize_block_mxfp8_kernel, rhs, dtype, enable_scale_packing=packed, on=TRN3)
    given = {"lhs": a, "rhs": b}
    if not as_pair:
        given = {"lhs": a[0], "rhs": b[0], "lhs_scales": a[1], "rhs_scales": b[1]}
    got = run(
        matmul_mxfp8, **given, float8_dtype=dtype, use_scale_packing=packed, output_dtype="float32", on=TRN3
    )
    np.testing.assert_array_equal(got, lhs.astype(np.float64) @ rhs.astype(np.float64).T)


REFUSED = refusals(
    lhs=None,
    lhs__rank=exact(512),
    lhs__K=exact((16, 256)),
    lhs__M=exact((12, 512)),
    lhs__dtype=exact((16, 512), dtype="float32"),
    rhs=None,
    rhs__N=exact((20, 512)),
    float8_dtype="float8_e3m4",
    float8_dtype__none=None,
    output_dtype="int32",
    quant_scheme="32x1",
    block_loop_order="mm",
    tile_loop_order="abc",
    TILES_IN_BLOCK_M=0,
    lhs_matmul_tile_shape_logical=(1,),
) + [Option("refuses-scales", {"lhs_scales": np.zeros((128, 16), np.uint8)}, "lhs")]


@each([case._replace(on=TRN3) for case in REFUSED])
def test_refusals(option):
    check(option, matmul_mxfp8, BASIC, product, 2**-8)


# ---- quantize_block_mxfp8_kernel ------------------------------------------------------------------------


def dequantised(data, scales, packed: bool) -> np.ndarray:
    """[F, K] of data [K/4, 4F] and scales of 8 rows x 4 lanes."""
    k4, f4 = data.shape
    values = data.astype(np.float64).reshape(k4, f4 // 4, 4)
    for row in range(k4):
        tile, p = divmod(row, 128)
        place = 32 * (p // 32) + p % 32 // 8
        line = scales[128 * (tile // 4) + place + 4 * (tile % 4)] if packed else scales[128 * tile + place]
        values[row] *= 2.0 ** (line.astype(np.float64) - 127)[:, None]
    return values.reshape(k4 // 128, 128, f4 // 4, 4).transpose(2, 0, 3, 1).reshape(f4 // 4, 4 * k4)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(8, 512), (16, 1024), (24, 512)])
def test_quantisation_keeps_exact_numbers(shape, dtype, packed, shared, lnc):
    x = exact(shape)
    data, scales = run(
        quantize_block_mxfp8_kernel,
        x,
        dtype,
        run_with_lnc2=shared,
        enable_scale_packing=packed,
        lnc=lnc,
        on=TRN3,
    )
    assert data.dtype == np.dtype(dtype) and scales.dtype == np.uint8
    np.testing.assert_array_equal(dequantised(data, scales, packed), x.astype(np.float64))


QUANTIZE_REFUSED = refusals(
    src_tensor=None,
    src_tensor__rank=exact(512),
    src_tensor__F=exact((9, 512)),
    src_tensor__K=exact((8, 100)),
    src_tensor__dtype=exact((8, 512), dtype="float32"),
    return_fp8_dtype="float8_e3m4",
    return_fp8_dtype__none=None,
    return_fp8_dtype__float=np.float32,
)


@each([case._replace(on=TRN3) for case in QUANTIZE_REFUSED])
def test_quantisation_refusals(option):
    basic = {"src_tensor": exact((8, 512)), "return_fp8_dtype": "float8_e4m3fn"}
    check(option, quantize_block_mxfp8_kernel, basic, lambda **a: None, 0.0)


def test_dtypes_are_those_of_ml_dtypes():
    assert np.dtype("float8_e4m3fn") == ml_dtypes.float8_e4m3fn
