import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, random, run

from nki import mx
from nkilib.experimental.matmul_mxfp8 import MatmulMxfp8KernelConfig, matmul_mxfp8, matmul_mxfp8_ref
from nkilib.experimental.matmul_mxfp8.matmul_mxfp8_config import check_config
from nkilib.experimental.mxfp_utils.mxfp8_utils import products
from support import target

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
fp8_types = pytest.mark.parametrize("fp8", [E4M3, E5M2])
schemes = pytest.mark.parametrize("scheme", ["wrapX", "1x32"])


def words(data_and_scales, fp8):
    """Return the elements as one array of four-packed words."""
    data, scales = data_and_scales
    return mx.pack_x4(data).view(mx.x4_dtype(fp8)), scales


# how an operand [F, K] may come: (argument, options)
FORMS = {
    "plain": lambda x, fp8, scheme: (x, {"is_swizzled": False}),
    "K by F": lambda x, fp8, scheme: (x.T.copy(), {"is_swizzled": False, "is_f_by_k": False}),
    "swizzled": lambda x, fp8, scheme: (mx.swizzle(x, scheme), {}),
    "packed scales": lambda x, fp8, scheme: (mx.quantize_operand(x, fp8, scheme), {}),
    "unpacked scales": lambda x, fp8, scheme: (mx.quantize_operand(x, fp8, scheme, "hardware"), {}),
    "x4 words": lambda x, fp8, scheme: (words(mx.quantize_operand(x, fp8, scheme), fp8), {}),
}


def operands(m, k, n, dtype=BF16):
    return random((m, k), dtype), random((n, k), dtype, seed=1)


def multiplied(a, b, left="plain", right="plain", fp8=E4M3, scheme="wrapX", lnc=1, **options):
    lhs, of_lhs = FORMS[left](a, fp8, scheme)
    rhs, of_rhs = FORMS[right](b, fp8, scheme)
    options |= {f"lhs_{name}": value for name, value in of_lhs.items()}
    options |= {f"rhs_{name}": value for name, value in of_rhs.items()}
    options = {"output_dtype": "float32", **options}
    return run(matmul_mxfp8, lhs, rhs, lnc=lnc, on="trn3", float8_dtype=fp8, quant_scheme=scheme, **options)


def check(a, b, fp8=E4M3, scheme="wrapX", **options):
    out = multiplied(a, b, fp8=fp8, scheme=scheme, **options)
    close(out, mx_emulation.product(a, b, fp8, scheme), terms=a.shape[1])


@fp8_types
@schemes
@pytest.mark.parametrize(
    "left, right", [*((form, form) for form in FORMS), ("swizzled", "K by F"), ("x4 words", "plain")]
)
def test_every_form_of_operands_gives_the_product_of_the_specification(left, right, scheme, fp8):
    check(*operands(72, 640, 136), left=left, right=right, scheme=scheme, fp8=fp8)


@each_lnc
@pytest.mark.parametrize(
    "size", [(128, 512, 512), (304, 640, 1000), (8, 128, 8), (136, 384, 24), (16, 2560, 40)]
)
def test_ragged_sizes_are_multiplied(size, lnc):
    check(*operands(*size), lnc=lnc)


@pytest.mark.slow
@fp8_types
def test_a_published_size_is_close_to_the_exact_product(fp8):
    a, b = operands(2048, 4096, 4096)
    out = multiplied(a, b, fp8=fp8)
    exact = a.astype(np.float32) @ b.astype(np.float32).T
    assert cosine(out, exact) >= (0.999 if fp8 == E4M3 else 0.997)


def test_the_example_of_the_page_has_swizzled_buffers():
    a, b = operands(256, 2048, 512)
    lhs, rhs = mx.swizzle(a), mx.swizzle(b)
    assert lhs.shape == (512, 1024) and rhs.shape == (512, 2048)
    tiling = {"TILES_IN_BLOCK_M": 2, "TILES_IN_BLOCK_N": 2, "TILES_IN_BLOCK_K": 1, "TILES_IN_LOAD_M": 1}
    out = run(matmul_mxfp8, lhs, rhs, on="trn3", **tiling)
    assert out.dtype == BF16
    close(out, mx_emulation.product(a, b, E5M2))


@pytest.mark.parametrize("fp8, least", [(E4M3, 0.999), (E5M2, 0.997)])
@schemes
def test_the_product_is_close_to_that_of_the_numbers(scheme, fp8, least):
    a, b = operands(64, 1024, 64)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert cosine(multiplied(a, b, fp8=fp8, scheme=scheme), exact) >= least


@pytest.mark.parametrize("shard_rhs", [None, True, False])
@pytest.mark.parametrize("size", [(264, 256, 40), (40, 256, 264), (8, 256, 8)])
def test_two_cores_share_either_side(size, shard_rhs):
    check(*operands(*size), lnc=2, lnc_2_shard_rhs=shard_rhs)


def test_without_sharing_the_first_core_does_all():
    check(*operands(40, 256, 40), lnc=2, run_with_lnc2=False)


@pytest.mark.parametrize("left, right", [("plain", "K by F"), ("packed scales", "unpacked scales")])
def test_a_long_contraction_is_streamed_in_chunks(left, right, monkeypatch):
    monkeypatch.setattr(products, "LONG_TILES", 10)
    monkeypatch.setattr(products, "CHUNK_TILES", 4)
    check(*operands(200, 5248, 72), left=left, right=right)


@pytest.mark.parametrize("size", [(1064, 640, 600), (600, 640, 1064)])
def test_an_operand_too_large_for_sbuf_is_loaded_in_groups(size, monkeypatch):
    monkeypatch.setattr(products, "RESIDENT_BYTES", 4096)
    check(*operands(*size))


def test_float16_operands_and_results():
    a, b = operands(16, 512, 24, np.float16)
    out = multiplied(a, b, output_dtype="float16")
    close(out, mx_emulation.product(a, b))
    assert out.dtype == np.float16


def test_scales_come_beside_the_data_too():
    a, b = operands(16, 640, 24)
    (lhs, lhs_scales), (rhs, rhs_scales) = mx.quantize_operand(a), mx.quantize_operand(b, E5M2)
    scales = {"lhs_scales": lhs_scales.view(ml_dtypes.float8_e8m0fnu), "rhs_scales": rhs_scales}
    out = run(matmul_mxfp8, lhs, rhs, on="trn3", output_dtype="float32", use_scale_packing=True, **scales)
    expected = mx_emulation.quantized(a).values @ mx_emulation.quantized(b, E5M2).values.T
    close(out, expected, terms=640)


def test_untyped_bytes_and_words_are_read_as_the_requested_dtype():
    a, b = operands(16, 512, 24)
    (lhs, lhs_scales), (rhs, rhs_scales) = (mx.quantize_operand(x, E5M2) for x in (a, b))
    out = run(
        matmul_mxfp8,
        (mx.pack_x4(lhs), lhs_scales),
        (rhs.view(np.uint8), rhs_scales),
        on="trn3",
        output_dtype="float32",
    )
    close(out, mx_emulation.product(a, b, E5M2), terms=512)


def test_torch_tensors_are_multiplied():
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16) for x in operands(16, 512, 24))
    out = run(matmul_mxfp8, mx.quantize_operand(a), mx.swizzle(b), on="trn3", float8_dtype=E4M3)
    expected = matmul_mxfp8_ref(*(x.to(torch.float32).numpy() for x in (a, b)), E4M3)
    close(out.to(torch.float32).numpy(), expected.astype(BF16).astype(np.float32))


def test_the_reference_is_the_emulation():
    a, b = operands(16, 640, 24)
    np.testing.assert_allclose(matmul_mxfp8_ref(a, b, E5M2, "1x32"), mx_emulation.product(a, b, E5M2, "1x32"))


# ---- refusals ------------------------------------------------------------------------------------


def ones(*shape, dtype=BF16):
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    "lhs, rhs, options, text",
    [
        (ones(128, 32), ones(160, 32), {}, "lhs, rhs: got K = 512 and 640"),
        (ones(128, 30), ones(128, 32), {}, "lhs: got shape (128, 30), expected [K/4, 4F] as it is swizzled"),
        (ones(100, 32), ones(128, 32), {}, "lhs: the contraction K is 400, it must be a multiple of 128"),
        (ones(128, 16), ones(128, 32), {}, "lhs: has 4 features, a multiple of 8 is needed"),
        (ones(128, 32, dtype=np.float32), ones(128, 32), {}, "lhs: got dtype float32, expected bfloat16"),
        (ones(128, 32), ones(128, 32), {"float8_dtype": "float8_e3m4"}, "float8_dtype: got float8_e3m4"),
        (ones(128, 32), ones(128, 32), {"quant_scheme": "2x16"}, "quant_scheme: got 2x16, allowed are wrapX"),
        (ones(128, 32), ones(128, 32), {"block_loop_order": "mmk"}, "block_loop_order: got mmk"),
        (
            ones(128, 32),
            ones(128, 32),
            {"TILES_IN_BLOCK_K": 0},
            "TILES_IN_BLOCK_K: got 0, expected at least 1",
        ),
        (
            ones(128, 32),
            ones(128, 32),
            {"rhs_matmul_tile_shape_logical": (1, 2, 3)},
            "rhs_matmul_tile_shape_logical: got (1, 2, 3), expected two sizes",
        ),
        (
            mx.quantize_operand(ones(8, 640), scale_layout="hardware"),
            ones(160, 32),
            {"use_scale_packing": True},
            "lhs: got scales of shape (160, 8), use_scale_packing wants packed ones",
        ),
        (
            (mx.quantize_operand(ones(8, 640))[0], ones(7, 8, dtype=np.uint8)),
            ones(160, 32),
            {},
            "lhs: got scales of shape (7, 8), expected (160, 8) or packed (128, 8)",
        ),
        (
            (mx.quantize_operand(ones(8, 512))[0], ones(128, 8)),
            ones(128, 32),
            {},
            "lhs: got scales of dtype bfloat16, expected uint8 or float8_e8m0fnu",
        ),
        (
            (ones(128, 32), ones(128, 8)),
            ones(128, 32),
            {},
            "lhs: got dtype bfloat16 with scales, expected float8",
        ),
        (
            mx.quantize_operand(ones(8, 512)),
            ones(128, 32),
            {"lhs_scales": ones(128, 8, dtype=np.uint8)},
            "lhs_scales: given together with lhs = (data, scales)",
        ),
    ],
)
def test_wrong_arguments_are_refused(lhs, rhs, options, text):
    with pytest.raises(AssertionError, match="NCC_INKI016") as refusal:
        run(matmul_mxfp8, lhs, rhs, on="trn3", **options)
    assert text in str(refusal.value)


@pytest.mark.tiny
def test_a_configuration_holds_the_tiling():
    check_config("phase1_config.", MatmulMxfp8KernelConfig(TILES_IN_BLOCK_M=4, tile_loop_order="kmn"))
    with pytest.raises(AssertionError, match="phase1_config.TILES_IN_LOAD_N: got -1"):
        check_config("phase1_config.", MatmulMxfp8KernelConfig(TILES_IN_LOAD_N=-1))


def test_it_compiles_and_its_example_is_right():
    with target("trn3"):
        compiles_and_example_runs(matmul_mxfp8)
