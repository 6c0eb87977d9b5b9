"""Plans on torch tensors: on the processor everywhere, and on a GPU where there is one (`make test-gpu`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.plan.device import refusal
from nki.plan.planner import plan_of
from support import target

torch = pytest.importorskip("torch")
from nki.frameworks.torch import run_there  # noqa: E402

MATMUL = Path(__file__).parents[2] / "examples" / "matmul" / "kernels.py"
spec = importlib.util.spec_from_file_location("matmul_kernels_of_devices", MATMUL)
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "plan")
    with target("trn2"):
        yield


def factors(dtype, device, k=300, m=260, n=1100):
    chance = torch.Generator().manual_seed(0)
    made = [torch.randint(-3, 4, shape, generator=chance).to(dtype) for shape in ((k, m), (k, n))]
    return [tensor.to(device) for tensor in made]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", kernels.STEPS[1:], ids=lambda k: k.__name__)
@pytest.mark.parametrize("device", DEVICES)
def test_a_matmul_runs_where_its_tensors_are_and_gives_the_bits_of_the_host(kernel, dtype, device):
    tensors = factors(dtype, device)
    (found,) = run_there(kernel, tuple(tensors), {}, tensors)
    assert found.device.type == device and found.dtype == dtype
    wanted = kernel(*(tensor.cpu() for tensor in tensors))
    assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_that_are_no_dense_rows_are_read_right(device):
    left, right = factors(torch.float32, device)
    turned = left.T.contiguous().T
    (found,) = run_there(kernels.tiled, (turned, right), {}, [turned, right])
    assert torch.equal(found, left.T @ right)


def test_what_is_said_about_shapes_is_said_there_too():
    @nki.jit
    def product(lhsT, rhs):
        result = nl.ndarray((lhsT.shape[1], rhs.shape[1]), nl.float32, buffer=nl.private_hbm)
        tiles = [nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.sbuf) for tensor in (lhsT, rhs)]
        for tile, tensor in zip(tiles, (lhsT, rhs), strict=True):
            nisa.dma_copy(tile, tensor)
        psum = nl.ndarray(result.shape, nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, *tiles)
        out = nl.ndarray(result.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(out, psum)
        nisa.dma_copy(result, out)
        return result

    tensors = factors(torch.float32, "cpu", 128, 128, 512)
    with pytest.warns(nki.NkiWarning, match="private HBM"):
        (found,) = run_there(product, tuple(tensors), {}, tensors)
    assert torch.equal(found, tensors[0].T @ tensors[1])


def test_a_call_that_needs_a_gradient_runs_on_the_host():
    left, right = factors(torch.float32, "cpu")
    assert run_there(kernels.tiled, (left.requires_grad_(), right), {}, [left, right]) == []


def test_an_instruction_without_a_form_there_is_named():
    from nkilib.core.mlp.mlp import mlp

    chance = np.random.default_rng(0)
    shapes = ((1, 128, 128), (128, 128), (128, 128), (128, 128))
    program = mlp.trace(*(chance.standard_normal(shape).astype(np.float32) for shape in shapes))
    assert "has no form there" in refusal(plan_of(program, forced=True))


def test_products_of_bytes_run_on_the_host():
    import ml_dtypes

    arrays = [np.ones(shape, ml_dtypes.float8_e5m2) for shape in ((128, 128), (128, 512))]
    assert "float8_e5m2" in refusal(plan_of(kernels.tiled.trace(*arrays), forced=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_call_with_tensors_on_a_gpu_stays_there():
    tensors = factors(torch.float32, "cuda")
    found = kernels.blocked_mnk(*tensors)
    assert found.is_cuda and torch.equal(found, tensors[0].T @ tensors[1])
