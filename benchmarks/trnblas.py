"""trnblas: modelled times against the peak, the split float64 product, and the cost of a call on PyTorch."""

import os
import time
from contextlib import contextmanager

import numpy as np

import nki

NOCC, NVIR, CHUNK = 64, 448, 2  # MP2: i's of the chunk that is modelled; the time is proportional to them
ROUNDS, CALLS = 20, 200


@contextmanager
def platform(name):
    before = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = name
    try:
        yield
    finally:
        os.environ.pop("NEURON_PLATFORM_TARGET_OVERRIDE")
        if before is not None:
            os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = before


def modelled(kernel, *arguments, dtype="float32"):
    """The timeline of a kernel; tuples stand for tensors of that shape."""
    given = [nki.TensorSpec(x, dtype) if isinstance(x, tuple) else x for x in arguments]
    return nki.profile(kernel)(*given).timeline


def percent(timeline, m, k, n, ns, multiplier=1.0):
    return 100 * 2 * m * k * n / (timeline.machine.peak_flops(multiplier) * ns * 1e-9)


def product_rows():
    from trnblas.nki.gemm import gemm_kernel, syrk_kernel
    from trnblas.nki.trsm import trsm_kernel

    n = 2048
    for dtype, multiplier, least in (("bfloat16", 1.0, 88), ("float32", 0.25, 95)):
        gemm = modelled(gemm_kernel, (n, n), (n, n), dtype=dtype)
        share = percent(gemm, n, n, n, gemm.total_ns, multiplier)
        yield f"gemm {dtype} 2048^3, trn2, of TensorE's peak", f"{share:.1f} %", f">= {least} %"
        syrk = modelled(syrk_kernel, (n, n), dtype=dtype)
        yield f"syrk {dtype} 2048 over gemm, trn2", f"{gemm.total_ns / syrk.total_ns:.2f}x", ">= 1.7x"
    solve = modelled(trsm_kernel, (1, n, n), (1, n // 128, 128, 128), (1, n, n))
    share = percent(solve, n, n, n / 2, solve.total_ns, 0.25)
    yield "trsm float32 2048 x 2048, trn2, of TensorE's peak", f"{share:.1f} %", ""
    m, k, n = 1000, 700, 900
    ragged = modelled(gemm_kernel, (m, k), (k, n), dtype="bfloat16")
    share = percent(ragged, m, k, n, ragged.work_ns)
    yield "gemm bfloat16 1000 x 700 x 900, trn2, of the peak", f"{share:.1f} %", ">= 60 %"
    share = percent(ragged, m, k, n, ragged.total_ns)
    yield "  the fixed cost of a kernel run included", f"{share:.1f} %", "(57.6 % at best)"


def mp2_rows():
    from benchmarks._mp2_steps import combine_step, divide_step, sum_step, transpose_step
    from trnblas.nki.mp2 import mp2_energy_kernel

    check_steps(mp2_energy_kernel, transpose_step, combine_step, divide_step, sum_step)
    T, energies = (CHUNK * NVIR, NOCC * NVIR), ((CHUNK,), (NOCC,), (NVIR,))
    for name in ("trn1", "trn2"):
        with platform(name):
            fused = modelled(mp2_energy_kernel, T, *energies).work_ns
            steps = [
                modelled(transpose_step, T, NVIR),
                modelled(combine_step, T, T),
                modelled(divide_step, T, *energies),
                modelled(sum_step, T, NVIR),
            ]
        separate = sum(step.work_ns for step in steps)
        whole = fused * NOCC / CHUNK * 1e-6
        yield f"MP2 energy, nocc 64, nvir 448, {name}, fused", f"{whole:.1f} ms", ""
        yield "  as four kernels: transpose, combine, divide, sum", f"{separate / fused:.2f}x", ">= 3x"


def check_steps(fused, transpose, combine, divide, add):
    """Both ways give one energy."""
    T = np.random.default_rng(0).standard_normal((140, 280), dtype=np.float32)
    energies = [
        np.linspace(*ends, n, dtype=np.float32) for *ends, n in ((-1, -1, 1), (-1, 0, 2), (1, 2, 140))
    ]
    separate = add(divide(combine(T, transpose(T, 140)), *energies), 140)
    np.testing.assert_allclose(separate.sum(), fused(T, *energies).sum(), rtol=1e-4)


def precision_rows():
    import torch

    import trnblas

    n, sample = 1024, 64
    A, B = (torch.randn(n, n, dtype=torch.float64) for _ in range(2))
    trnblas.set_backend("nki")
    try:
        found = trnblas.gemm(1.0, A, B, precision="fp64")[:sample].numpy()
    finally:
        trnblas.set_backend("auto")
    exact = A[:sample].numpy().astype(np.longdouble) @ B.numpy().astype(np.longdouble)
    worst = float((np.abs(found - exact) / np.abs(exact)).max())
    yield "gemm 1024^3 precision='fp64', largest relative error", f"{worst:.1e}", "1e-12"
    theirs = float((np.abs((A[:sample] @ B).numpy() - exact) / np.abs(exact)).max())
    yield "  of torch's float64 matmul", f"{theirs:.1e}", ""


def overhead_rows():
    """Processor time beyond the torch calls inside, on 8 x 8 matrices: the largest of all operations."""
    import torch

    import trnblas

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the time of waiting threads would count too
    trnblas.set_backend("pytorch")
    try:
        over = {name: overhead(ours, torchs) * 1e6 for name, ours, torchs in calls()}
    finally:
        trnblas.set_backend("auto")
        torch.set_num_threads(threads)
    worst = max(over, key=over.get)
    yield f"call on PyTorch over the torch call, worst ({worst})", f"{over[worst]:+.1f} us", "+20 us"


def overhead(ours, torchs):
    """The difference of the best times; the two take turns, so that a busy machine slows both."""
    rounds = [(seconds(ours), seconds(torchs)) for _ in range(ROUNDS)]
    return min(a for a, _ in rounds) - min(b for _, b in rounds)


def seconds(call):
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS


def calls():
    import torch

    import trnblas as t

    A, B, C = (torch.randn(8, 8) for _ in range(3))
    x, y, L, batch = A[0].clone(), B[0].clone(), A.tril() + 8 * torch.eye(8), torch.randn(2, 8, 8)
    full, part = lambda A: A.triu() + A.triu(1).mT, dict(beta=0.5, alpha=2.0)
    return [
        ("axpy", lambda: t.axpy(2.0, x, y), lambda: torch.add(y, x, alpha=2.0)),
        ("dot", lambda: t.dot(x, y), lambda: torch.dot(x, y)),
        ("nrm2", lambda: t.nrm2(x), lambda: torch.linalg.vector_norm(x, dtype=torch.float64).float()),
        ("scal", lambda: t.scal(2.0, x), lambda: torch.mul(x, 2.0)),
        ("asum", lambda: t.asum(x), lambda: x.abs().sum()),
        ("iamax", lambda: t.iamax(x), lambda: torch.argmax(x.abs())),
        ("gemv", lambda: t.gemv(2.0, A, x, 0.5, y), lambda: torch.addmv(y, A, x, **part)),
        ("symv", lambda: t.symv(2.0, A, x, 0.5, y), lambda: torch.addmv(y, full(A), x, **part)),
        ("trmv", lambda: t.trmv(A, x), lambda: torch.mv(A.triu(), x)),
        ("ger", lambda: t.ger(2.0, x, y, A), lambda: torch.addr(A, x, y, alpha=2.0)),
        ("gemm", lambda: t.gemm(2.0, A, B, 0.5, C), lambda: torch.addmm(C, A, B, **part)),
        ("batched_gemm", lambda: t.batched_gemm(1.0, batch, batch), lambda: torch.bmm(batch, batch)),
        ("symm", lambda: t.symm(2.0, A, B, 0.5, C), lambda: torch.addmm(C, full(A), B, **part)),
        ("syrk", lambda: t.syrk(2.0, A, 0.5, C), lambda: torch.addmm(full(C), A, A.mT, **part)),
        (
            "trsm",
            lambda: t.trsm(1.0, L, B, uplo="lower"),
            lambda: torch.linalg.solve_triangular(L, B, upper=False),
        ),
        ("trmm", lambda: t.trmm(1.0, A, B), lambda: torch.mm(A.triu(), B)),
    ]


def run():
    with platform("trn2"):
        return [*product_rows(), *mp2_rows(), *precision_rows(), *overhead_rows()]
