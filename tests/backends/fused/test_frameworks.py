"""Calls through PyTorch and JAX run by plans, too: compiled, traced, and in gradients."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.fused.runner import PlanRunner
from support import target


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """Every call runs by a plan; the cores that did."""
    monkeypatch.setenv("OPEN_NKI_EXECUTOR", "fused")
    seen, run = [], PlanRunner.run
    monkeypatch.setattr(PlanRunner, "run", lambda self: (seen.append(self.core.index), run(self))[1])
    with target("trn2"):
        yield seen


@nki.jit
def multiplied(left, right):
    """left.T @ right"""
    out = nl.ndarray((left.shape[1], right.shape[1]), left.dtype, buffer=nl.shared_hbm)
    psum = nl.ndarray(out.shape, nl.float32, buffer=nl.psum)
    for k in range(0, left.shape[0], 128):
        rows = slice(k, k + 128)
        a, b = nl.ndarray((128, left.shape[1]), left.dtype), nl.ndarray((128, right.shape[1]), right.dtype)
        nisa.dma_copy(a, left[rows])
        nisa.dma_copy(b, right[rows])
        nisa.nc_matmul(psum, a, b)
    tile = nl.ndarray(out.shape, out.dtype)
    nisa.tensor_copy(tile, psum)
    nisa.dma_copy(out, tile)
    return out


def factors():
    chance = np.random.default_rng(0)
    return [chance.integers(-3, 4, (256, n)).astype(np.float32) for n in (64, 128)]


def test_a_compiled_function_of_pytorch(planned):
    torch = pytest.importorskip("torch")
    compiled = torch.compile(lambda a, b: multiplied(a, b) + 1, backend="eager")
    left, right = factors()
    for i in range(3):
        found = compiled(torch.from_numpy(left), torch.from_numpy(right + i))
        np.testing.assert_array_equal(found.numpy(), left.T @ (right + i) + 1)
    assert len(planned) == 3


def test_gradients_of_pytorch(planned):
    torch = pytest.importorskip("torch")
    from nki.frameworks.torch import differentiable

    def backward(dy, left, right):
        return multiplied(right.T.contiguous(), dy.T.contiguous()), multiplied(left.T.contiguous(), dy)

    left, right = (torch.from_numpy(a[:128, :128].copy()).requires_grad_() for a in factors()[1:] * 2)
    differentiable(multiplied, backward)(left, right).sum().backward()
    ones = np.ones((128, 128), np.float32)
    np.testing.assert_array_equal(left.grad.numpy(), right.detach().numpy() @ ones)
    np.testing.assert_array_equal(right.grad.numpy(), left.detach().numpy() @ ones)
    assert len(planned) == 3


def test_a_jitted_function_of_jax_and_its_batches(planned):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    jitted = jax.jit(lambda a, b: multiplied(a, b) + 1)
    left, right = factors()
    for i in range(2):
        np.testing.assert_array_equal(np.asarray(jitted(left, right + i)), left.T @ (right + i) + 1)
    assert len(planned) == 2
    batches = np.stack([right, right + 1])
    found = np.asarray(jax.vmap(multiplied, (None, 0))(left, batches))
    np.testing.assert_array_equal(found, np.stack([left.T @ b for b in batches]))
    assert len(planned) == 4
