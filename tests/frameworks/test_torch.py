"""PyTorch tensors as arguments and results (frameworks.md 3.1; language.md 3, 6.3)."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

torch = pytest.importorskip("torch")

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "uint8",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
]


@nki.jit
def copy(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out


@nki.jit
def double_in_place(x, returns):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(x, tile)
    return x if returns else None


def numbers(dtype, shape=(4, 6)):
    return (torch.arange(24).reshape(shape) - 8).to(getattr(torch, dtype))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def refusal(*args, kernel=copy):
    with pytest.raises(nki.NkiError) as caught:
        kernel(*args)
    return caught.value


@pytest.mark.parametrize("platform", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_in_and_comes_out_with_its_bits(dtype, platform):
    x = numbers(dtype)
    with target(platform):
        result = copy(x)
    assert result.dtype == x.dtype and result.shape == x.shape and result.device == x.device
    assert np.array_equal(bits(result), bits(x))


def test_a_strided_tensor_arrives_as_it_reads():
    x = numbers("bfloat16").T[::2]
    assert torch.equal(copy(x), x)


def test_a_contiguous_tensor_is_read_without_a_copy():
    from nki.frameworks.torch import to_numpy

    for dtype in DTYPES:
        x = numbers(dtype)
        assert to_numpy(x).ctypes.data == x.data_ptr()


def test_a_written_argument_changes_in_place():
    x = numbers("float32")
    before, version = x.clone(), x._version
    assert double_in_place(x, False) is None
    assert torch.equal(x, before * 2) and x._version > version


def test_a_returned_argument_is_the_same_object():
    x = numbers("bfloat16")
    assert double_in_place(x, True) is x


def test_a_failed_kernel_leaves_its_argument_alone():
    @nki.jit
    def fails(x):
        double_in_place(x, False)
        raise ValueError("later")

    x = numbers("float32")
    with pytest.raises(ValueError, match="later"):
        fails(x)
    assert torch.equal(x, numbers("float32"))


def test_parameters_and_no_grad():
    x = torch.nn.Parameter(numbers("float32"))
    with torch.no_grad():
        assert torch.equal(copy(x), x)
    problem = refusal(x)
    assert problem.kind == "no-backward" and "torch.autograd.Function" in str(problem)


def test_a_kernel_runs_inside_an_autograd_function():
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return copy(x)

        @staticmethod
        def backward(ctx, dy):
            return dy

    x = numbers("float32").requires_grad_()
    (Copy.apply(x) * 3).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


@pytest.mark.parametrize("dtype, mend", [("int64", "x.to(torch.int32)"), ("float64", "x.to(torch.float32)")])
def test_wide_dtypes_are_refused_with_the_cast(dtype, mend):
    problem = refusal(numbers(dtype))
    assert problem.kind == "dtype" and "argument 'x'" in str(problem) and mend in str(problem)


def test_tensors_without_dense_values_are_refused():
    for x in (numbers("float32").to_sparse(), torch.empty(4, 6, device="meta")):
        assert refusal(x).kind == "framework"


def test_scalars_and_empty_tensors_are_refused():
    assert refusal(torch.tensor(2.0)).kind == "scalar-argument"
    assert refusal(torch.zeros(0, 4)).kind == "shape"
