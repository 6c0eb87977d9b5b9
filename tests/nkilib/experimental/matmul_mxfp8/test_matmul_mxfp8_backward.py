import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, invalid, random, run

from nki import mx
from nkilib.core.utils.kernel_assert import NotBuilt
from nkilib.experimental.matmul_mxfp8 import (
    MatmulMxfp8KernelConfig,
    matmul_mxfp8_backward,
    matmul_mxfp8_backward_ref,
)
from support import target

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def operands(m, n, k, dtype=BF16):
    """dY, W and X."""
    return random((m, n), dtype), random((n, k), dtype, seed=1), random((m, k), dtype, seed=2)


def expected(dy, w, x, fp8=E5M2):
    """Both products of the specification's quantised numbers, in float64."""
    return mx_emulation.product(dy, w.T, fp8), mx_emulation.product(dy.T, x.T, fp8)


def gradients(*args, **options):
    return run(matmul_mxfp8_backward, *args, on="trn3", **{"output_dtype": "float32", **options})


def check(tensors, given=None, fp8=E5M2, **options):
    dx, dw = gradients(*(given or tensors), float8_dtype=fp8, **options)
    want_dx, want_dw = expected(*tensors, fp8)
    close(dx, want_dx, terms=tensors[0].shape[1])
    close(dw, want_dw, terms=tensors[0].shape[0])


@each_lnc
@pytest.mark.parametrize("shard_rhs", [True, False])
@pytest.mark.parametrize("size", [(128, 128, 8), (384, 256, 264), (640, 1152, 72)])
def test_odd_sizes_have_the_gradients_of_the_specification(size, shard_rhs, lnc):
    check(operands(*size), lnc=lnc, lnc_2_shard_rhs=shard_rhs)


@pytest.mark.parametrize("fp8", [E4M3, E5M2])
def test_the_dtype_of_the_elements_is_chosen(fp8):
    check(operands(256, 384, 40), fp8=fp8)


@pytest.mark.parametrize("packing", [True, False])
def test_weights_and_inputs_come_quantised_along_their_contraction(packing):
    dy, w, x = operands(384, 640, 40)
    layout = "packed" if packing else "hardware"
    (w_data, w_scales), (x_data, x_scales) = (
        mx.quantize_operand(np.ascontiguousarray(t.T), E5M2, scale_layout=layout) for t in (w, x)
    )
    given = (dy, w_data, x_data)
    check((dy, w, x), given, weight_scales=w_scales, input_scales=x_scales, use_scale_packing=packing, lnc=2)
    check((dy, w, x), (dy, (w_data, w_scales), (x_data, x_scales)))


def test_weights_and_inputs_come_swizzled_along_their_contraction():
    dy, w, x = operands(256, 640, 40)
    given = (dy, *(mx.swizzle(np.ascontiguousarray(t.T)) for t in (w, x)))
    check((dy, w, x), given, weights_is_swizzled=True, input_is_swizzled=True)


def test_without_sharing_the_first_core_does_all():
    check(operands(128, 256, 40), lnc=2, run_with_lnc2=False)


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
def test_gradients_are_rounded_to_the_requested_dtype(dtype):
    tensors = operands(128, 128, 24, dtype)
    for got, want in zip(gradients(*tensors, output_dtype=dtype.name), expected(*tensors), strict=True):
        assert got.dtype == dtype
        close(got, want)


def test_tilings_are_hints():
    config = MatmulMxfp8KernelConfig(TILES_IN_BLOCK_M=2, block_loop_order="knm")
    check(
        operands(128, 128, 16),
        input_grad_config=config,
        weight_grad_config=config,
        tile_loop_order="kmn",
        spill_reload=True,
    )


def test_the_gradients_are_close_to_those_of_autograd_in_float64():
    torch = pytest.importorskip("torch")
    dy, w, x = operands(256, 384, 64)
    exact_w, exact_x = (torch.tensor(t.astype(np.float64), requires_grad=True) for t in (w, x))
    (exact_x @ exact_w.T).backward(torch.tensor(dy.astype(np.float64)))
    dx, dw = gradients(dy, w, x, float8_dtype=E4M3)
    assert cosine(dx, exact_x.grad.numpy()) >= 0.999 and cosine(dw, exact_w.grad.numpy()) >= 0.999


def test_pytorch_differentiates_the_product_with_it():
    torch = pytest.importorskip("torch")
    from nkilib import autograd

    dy, w, x = operands(128, 128, 128)
    weights, inputs = (torch.tensor(t.astype(np.float32)).to(torch.bfloat16).requires_grad_() for t in (w, x))
    with target("trn3"):
        autograd.matmul_mxfp8(inputs, weights).backward(
            torch.tensor(dy.astype(np.float32)).to(torch.bfloat16)
        )
    for got, want in zip((inputs.grad, weights.grad), expected(dy, w, x), strict=True):
        close(got.float().numpy().astype(BF16), want)


def test_the_reference_is_the_emulation():
    tensors = operands(128, 256, 16)
    for got, want in zip(matmul_mxfp8_backward_ref(*tensors), expected(*tensors), strict=True):
        np.testing.assert_allclose(got, want)


@pytest.mark.parametrize(
    "shapes, options, text",
    [
        (((128, 100), (100, 8), (128, 8)), {}, "output_grad: the contraction K is 100"),
        (((128, 128), (256, 8), (128, 8)), {}, r"weights: is \[256, 8\], expected \[128, K\]"),
        (((128, 128), (128, 8), (256, 8)), {}, r"input_activation: is \[256, 8\], expected \[128, 8\]"),
        (((128, 128), (128, 8), (128, 16)), {}, r"input_activation: is \[128, 16\], expected \[128, 8\]"),
        (((128, 128), (128, 8), (128, 8)), {"output_dtype": "int32"}, "output_dtype: got int32"),
        (((128, 128), (128, 8), (128, 8)), {"tile_loop_order": "mm"}, "tile_loop_order: got mm"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(shapes, options, text):
    with invalid(text):
        gradients(*(np.ones(shape, BF16) for shape in shapes), **options)


@pytest.mark.parametrize(
    "option", [{"output_grad_scales": np.ones((32, 128), np.uint8)}, {"output_grad_is_swizzled": True}]
)
def test_blocks_of_the_output_gradient_are_refused_by_name(option):
    with pytest.raises(NotBuilt, match=next(iter(option))):
        gradients(*operands(128, 128, 8), **option)


def test_the_compiler_accepts_it_and_the_example_runs():
    compiles_and_example_runs(matmul_mxfp8_backward)
