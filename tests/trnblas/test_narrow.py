"""Narrow floats on the host: sums in float32, rounded once, on every CPU (spec/decisions.md 24)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import trnblas  # noqa: E402
from trnblas.nki import nki_batched_gemm, nki_gemm, nki_syrk  # noqa: E402

NARROW = [torch.bfloat16, torch.float16]
K = 300  # terms: every sum has 10 to 12 bits, float16 has 11 and bfloat16 has 8


def integers(*shape, seed=0):
    """Return integers of three bits: exact in every dtype, their products and sums exact in float32."""
    return torch.randint(-7, 8, shape, generator=torch.Generator().manual_seed(seed)).double()


A, B, C = integers(5, K), integers(K, 4, seed=1), integers(5, 4, seed=2)
S, x, y = integers(K, K, seed=3), integers(K, seed=4), integers(K, seed=5)
T = torch.eye(K).double() - torch.diag((torch.arange(K - 1) % 4 != 3).double(), 1)
# a call of trnblas on these operands -> the same in float64
CALLS = {
    "axpy": (lambda x, y: trnblas.axpy(30.5, x, y), [x, y], lambda x, y: 30.5 * x + y),
    "scal": (lambda x: trnblas.scal(0.1, x), [x], lambda x: x * 0.1),
    "dot": (trnblas.dot, [x, y], torch.dot),
    "nrm2": (trnblas.nrm2, [x], torch.linalg.vector_norm),
    "asum": (trnblas.asum, [x], lambda x: x.abs().sum()),
    "gemv": (lambda A, x: trnblas.gemv(1.0, A, x), [A, x], torch.mv),
    "gemv plus": (
        lambda A, x, y: trnblas.gemv(2.5, A, x, -0.5, y),
        [A, x, C[:, 0]],
        lambda A, x, y: 2.5 * A @ x - 0.5 * y,
    ),
    "gemv of y alone": (
        lambda A, x, y: trnblas.gemv(0.0, A, x, 0.3, y),
        [A, x, C[:, 0]],
        lambda A, x, y: 0.3 * y,
    ),
    "symv": (lambda S, x: trnblas.symv(0.5, S, x), [S, x], lambda S, x: 0.5 * both(S) @ x),
    "trmv": (trnblas.trmv, [S, x], lambda S, x: S.triu() @ x),
    "ger": (
        lambda x, y, C: trnblas.ger(1.5, x, y, C),
        [A[:, 0], B[0], 50 * C],
        lambda x, y, C: 1.5 * torch.outer(x, y) + C,
    ),
    "ger alone": (lambda x, y: trnblas.ger(0.1, x, y), [x, y], lambda x, y: 0.1 * torch.outer(x, y)),
    "gemm": (lambda A, B: trnblas.gemm(1.0, A, B), [A, B], torch.matmul),
    "gemm plus": (
        lambda A, B, C: trnblas.gemm(1.5, A, B, 0.5, C),
        [A, B, C],
        lambda A, B, C: 1.5 * A @ B + 0.5 * C,
    ),
    "batched_gemm": (
        lambda A, B: trnblas.batched_gemm(0.5, A, B),
        [A.expand(2, -1, -1), B.expand(2, -1, -1)],
        lambda A, B: 0.5 * A @ B,
    ),
    "symm": (lambda S, B: trnblas.symm(1.0, S, B), [S, B], lambda S, B: both(S) @ B),
    "trmm": (lambda S, B: trnblas.trmm(1.0, S, B), [S, B], lambda S, B: S.triu() @ B),
    "syrk": (lambda A: trnblas.syrk(1.0, A), [A], lambda A: A @ A.mT),
    "trsm": (
        lambda T, B: trnblas.trsm(1.5, T, B, diag="unit"),
        [T, B],
        lambda T, B: torch.linalg.solve_triangular(T, 1.5 * B, upper=True),
    ),
    "nki_gemm": (nki_gemm, [A, B], torch.matmul),
    "nki_batched_gemm": (nki_batched_gemm, [A[None], B[None]], torch.matmul),
    "nki_syrk": (nki_syrk, [A], lambda A: A @ A.mT),
}


def both(S):
    return S.triu() + S.triu(1).mT


@pytest.fixture(autouse=True)
def on_the_host():
    trnblas.set_backend("pytorch")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_the_exact_one_rounded_once(name, dtype):
    call, operands, exact = CALLS[name]
    found = call(*(operand.to(dtype) for operand in operands))
    assert found.dtype == dtype
    # sums are exact in float32, so that rounding to float32 and then to dtype is all that happens
    assert torch.equal(found, exact(*operands).float().to(dtype))


class NarrowSums(TorchDispatchMode):
    """Lists the operators that sum, and got narrow floats: what they do depends on the CPU."""

    SUMS = {"mm", "addmm", "mv", "addmv", "bmm", "baddbmm", "dot", "addr", "sum", "add", "mul"} | {
        "linalg_vector_norm"
    }

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.__name__.split(".")[0].rstrip("_")
        if name in self.SUMS and any(isinstance(t, torch.Tensor) and t.dtype in NARROW for t in args):
            self.found.append(name)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_torch_never_sums_narrow_floats(name, dtype):
    call, operands, _ = CALLS[name]
    operands = [operand.to(dtype) for operand in operands]
    widened = {"nrm2": ["linalg_vector_norm"], "asum": ["sum"]}  # asked for with a wide dtype
    exact = {"symv": ["add"], "symm": ["add"]}  # a triangle and zeros
    with NarrowSums() as sums:
        call(*operands)
    assert sums.found == {**widened, **exact}.get(name, [])


@pytest.mark.parametrize("name", ["gemv", "gemm", "ger", "dot", "axpy"])
def test_without_widening_torch_would_sum_narrow_floats(name, monkeypatch):
    """Ensure that the test above can fail, also on a CPU that sums in float32."""
    call, operands, _ = CALLS[name]
    operands = [operand.bfloat16() for operand in operands]
    monkeypatch.setattr("trnblas.level1.NARROW", ())
    for level in ("level1", "level2", "level3"):
        monkeypatch.setattr(f"trnblas.{level}.rounded_once", lambda compute, *given: compute(*given))
    with NarrowSums() as sums:
        call(*operands)
    assert sums.found


def test_mixed_dtypes_are_widened_or_refused():
    assert trnblas.axpy(2.0, x.bfloat16(), y.float()).dtype == torch.float32
    with pytest.raises(TypeError, match="gemv: C is torch.float32, the operands are torch.bfloat16"):
        trnblas.gemv(1.0, A.bfloat16(), x.bfloat16(), 1.0, C[:, 0].float())


@pytest.mark.parametrize("name", ["gemv plus", "gemm plus", "axpy", "trsm"])
def test_gradients_arrive_in_the_dtype_of_the_operands(name):
    call, operands, _ = CALLS[name]
    operands = [operand.bfloat16().requires_grad_() for operand in operands]
    call(*operands).sum().backward()
    assert all(operand.grad.dtype == torch.bfloat16 for operand in operands)
