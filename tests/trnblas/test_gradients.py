"""Gradients are the same on every backend: each against torch's own derivative of the formula, in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402
from trnblas import nki as kernels  # noqa: E402

generator = torch.Generator().manual_seed(0)


def rand(*shape):
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5


def mirrored(A):
    return A.triu() + A.triu(1).mT


def energy(T, i, j, a):
    x = T.reshape(len(i), len(a), len(j), len(a)).transpose(1, 2)
    below = i[:, None, None, None] + j[:, None, None] - a[:, None] - a
    return (x * (2 * x - x.mT) / below).sum()


# operation: (the call, the same by torch, operands); precision="fp64" is given where it is taken
PRODUCTS = {
    "gemm": (
        lambda A, B, C, **p: trnblas.gemm(1.5, A, B, 0.5, C, transA=True, **p),
        lambda A, B, C: 1.5 * A.T @ B + 0.5 * C,
        (rand(4, 3), rand(4, 5), rand(3, 5)),
    ),
    "gemm of one matrix": (
        lambda A, **p: trnblas.gemm(1.0, A, A, **p),
        lambda A: A @ A,
        (rand(3, 3),),
    ),
    "batched_gemm": (
        lambda A, B, **p: trnblas.batched_gemm(2.0, A, B, **p),
        lambda A, B: 2 * A @ B,
        (rand(2, 3, 4), rand(2, 4, 2)),
    ),
    "symm": (
        lambda A, B, **p: trnblas.symm(1.0, A, B, **p),
        lambda A, B: mirrored(A) @ B,
        (rand(3, 3), rand(3, 2)),
    ),
    "trmm": (
        lambda A, B, **p: trnblas.trmm(1.0, A, B, trans=True, **p),
        lambda A, B: A.triu().T @ B,
        (rand(3, 3), rand(3, 2)),
    ),
    "syrk": (
        lambda A, C, **p: trnblas.syrk(2.0, A, 0.5, C, **p),
        lambda A, C: 2 * A @ A.T + 0.5 * mirrored(C),
        (rand(3, 4), rand(3, 3)),
    ),
    "gemv": (
        lambda A, x, y, **p: trnblas.gemv(1.0, A, x, 2.0, y, **p),
        lambda A, x, y: A @ x + 2 * y,
        (rand(3, 4), rand(4), rand(3)),
    ),
    "symv": (
        lambda A, x, **p: trnblas.symv(1.0, A, x, **p),
        lambda A, x: mirrored(A) @ x,
        (rand(3, 3), rand(3)),
    ),
    "trmv": (lambda A, x, **p: trnblas.trmv(A, x, **p), lambda A, x: A.triu() @ x, (rand(3, 3), rand(3))),
}
OTHERS = {
    "ger": (lambda x, y: trnblas.ger(2.0, x, y), lambda x, y: 2 * torch.outer(x, y), (rand(3), rand(4))),
    "trsm": (
        lambda A, B: trnblas.trsm(2.0, A, B),
        lambda A, B: torch.linalg.solve(A.triu(), 2 * B),
        (rand(3, 3) + 2 * torch.eye(3), rand(3, 2)),
    ),
    "trsm, right": (
        lambda A, B: trnblas.trsm(1.0, A, B, side="right", uplo="lower"),
        lambda A, B: torch.linalg.solve(A.tril().T, B.T).T,
        (rand(3, 3) + 2 * torch.eye(3), rand(2, 3)),
    ),
    "nki_gemm": (kernels.nki_gemm, lambda A, B: A @ B, (rand(3, 4), rand(4, 2))),
    "nki_syrk": (kernels.nki_syrk, lambda A: A @ A.T, (rand(3, 4),)),
    "nki_mp2_energy": (kernels.nki_mp2_energy, energy, (rand(4, 4), -rand(2), -rand(2), rand(2))),
}


def gradients(call, operands, dtype):
    """Return the derivatives of a weighted sum of the result, in float64."""
    leaves = [operand.to(dtype).requires_grad_() for operand in operands]
    result = call(*leaves)
    weights = torch.arange(1, result.numel() + 1, dtype=result.dtype).reshape(result.shape)
    return [g.double() for g in torch.autograd.grad((result * weights).sum(), leaves)]


@pytest.mark.parametrize("name", [*PRODUCTS, *OTHERS])
def test_gradients_are_those_of_the_formula(backend, name):
    call, formula, operands = {**PRODUCTS, **OTHERS}[name]
    expected = gradients(formula, operands, torch.float64)
    for found, right in zip(gradients(call, operands, torch.float32), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_float64_products_are_float64(backend, name):
    call, formula, operands = PRODUCTS[name]
    found = gradients(lambda *leaves: call(*leaves, precision="fp64"), operands, torch.float64)
    for gradient, right in zip(found, gradients(formula, operands, torch.float64), strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)


def test_gradients_of_gradients_are_those_of_the_formula(backend):
    def hessian(product):
        A, B = rand_pair[0].clone().requires_grad_(), rand_pair[1].clone().requires_grad_()
        (first,) = torch.autograd.grad(product(A, B).square().sum(), A, create_graph=True)
        return torch.autograd.grad(first.sum(), [A, B])

    rand_pair = rand(3, 4), rand(4, 2)
    found = hessian(lambda A, B: trnblas.gemm(1.0, A, B, precision="fp64"))
    for gradient, right in zip(found, hessian(torch.matmul), strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)


def test_a_gradient_of_one_operand_leaves_the_others_alone(backend):
    A, B = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    trnblas.gemm(1.0, A, B).sum().backward()
    assert torch.equal(A.grad, torch.full((2, 2), 2.0)) and B.grad is None
    with torch.no_grad():
        assert not trnblas.gemm(1.0, A, B).requires_grad
