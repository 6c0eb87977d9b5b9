"""The MP2 correlation energy of a closed-shell molecule, with density fitting, in BLAS calls.

python examples/df_mp2.py --demo                           synthetic integrals
python examples/df_mp2.py --mol h2o --basis sto-3g         integrals of PySCF, and also its own energy
python examples/df_mp2.py --demo --fused-energy            the last step as one NKI kernel, in float32

PySCF: pip install pyscf
"""

import argparse
import sys
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

import trnblas
from trnblas.nki import nki_mp2_energy

MOLECULES = {
    "h2": "H 0 0 0; H 0 0 0.74",
    "h2o": "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692",
    "nh3": "N 0 0 0.1; H 0 0.94 -0.28; H 0.81 -0.47 -0.28; H -0.81 -0.47 -0.28",
    "ch4": "C 0 0 0; H 0.63 0.63 0.63; H -0.63 -0.63 0.63; H -0.63 0.63 -0.63; H 0.63 -0.63 -0.63",
}
ROWS_AT_ONCE = 4096  # rows of amplitudes (i, a) in one product


@dataclass
class Problem:
    """The result of a mean-field calculation, as float64 tensors."""

    three_center: torch.Tensor  # (mu nu|P), [nbf, nbf, naux]
    metric: torch.Tensor  # (P|Q), [naux, naux]
    occupied: torch.Tensor  # orbitals [nbf, nocc]
    virtual: torch.Tensor  # [nbf, nvir]
    eps_occ: torch.Tensor
    eps_vir: torch.Tensor


def df_mp2_energy(problem, fused=False, progress=lambda done, total: None):
    """Return the correlation energy. With `fused` the NKI kernel sums the amplitudes, in float32."""
    B = fitting_factors(problem)  # [nocc, nvir, naux]
    nocc, nvir, naux = B.shape
    flat = B.reshape(nocc * nvir, naux)
    energy = torch.zeros((), dtype=torch.float64)
    step = max(1, ROWS_AT_ONCE // nvir)
    for i in range(0, nocc, step):
        rows = flat[i * nvir : (i + step) * nvir]
        T = trnblas.gemm(1.0, rows, flat, transB=True, precision="fp64")  # (ia|jb)
        energy += amplitude_sum(T, problem.eps_occ[i : i + step], problem.eps_occ, problem.eps_vir, fused)
        progress(min(i + step, nocc), nocc)
    return float(energy)


def fitting_factors(problem):
    """Return B with (ia|jb) = sum over P of B[i, a, P] B[j, b, P]: two half transforms, then the metric."""
    nbf, naux = problem.three_center.shape[1:]
    nocc, nvir = problem.occupied.shape[1], problem.virtual.shape[1]
    half = trnblas.gemm(  # (i nu|P)
        1.0, problem.occupied, problem.three_center.reshape(nbf, nbf * naux), transA=True, precision="fp64"
    )
    virtual = problem.virtual.expand(nocc, nbf, nvir)
    pairs = trnblas.batched_gemm(1.0, virtual, half.reshape(nocc, nbf, naux), transA=True, precision="fp64")
    L = torch.linalg.cholesky(problem.metric)
    factors = trnblas.trsm(1.0, L, pairs.reshape(nocc * nvir, naux), side="right", uplo="lower", trans=True)
    return factors.reshape(nocc, nvir, naux)


def amplitude_sum(T, eps_chunk, eps_occ, eps_vir, fused):
    """sum T (2 T - T^t) / (e_i + e_j - e_a - e_b)"""
    arguments = (T, eps_chunk, eps_occ, eps_vir)
    if fused:
        return nki_mp2_energy(*(x.float() for x in arguments), partials=True).double().sum()
    return nki_mp2_energy(*arguments)  # float64: PyTorch


# ---- where integrals come from -------------------------------------------------------------------


def synthetic(nbf, nocc, naux, seed=0):
    """Return random integrals, with a realistic metric and realistic orbital energies."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    orbitals = torch.linalg.qr(random(nbf, nbf)).Q
    three_center = random(nbf, nbf, naux) / (2 * nbf)
    metric = trnblas.syrk(1.0 / naux, random(naux, naux)) + torch.eye(naux, dtype=torch.float64)
    energies = torch.linspace(-1.0, 1.0, nbf, dtype=torch.float64) + torch.where(
        torch.arange(nbf) < nocc, -0.3, 0.3
    )
    return Problem(
        three_center + three_center.transpose(0, 1),
        metric,
        orbitals[:, :nocc],
        orbitals[:, nocc:],
        energies[:nocc],
        energies[nocc:],
    )


def direct_energy(problem):
    """Return the same energy by einsum, for small synthetic problems."""
    integrals = np.einsum(
        "mnp,mi,na->iap", *(x.numpy() for x in (problem.three_center, problem.occupied, problem.virtual))
    )
    T = np.einsum(
        "iap,pq,jbq->iajb", integrals, np.linalg.inv(problem.metric.numpy()), integrals, optimize=True
    )
    o, v = problem.eps_occ.numpy(), problem.eps_vir.numpy()
    D = o[:, None, None, None] + o[:, None] - v[:, None, None] - v
    return float((T * (2 * T - T.transpose(0, 3, 2, 1)) / D).sum())


def from_pyscf(molecule, basis):
    """Return a problem and PySCF's own DF-MP2 energy."""
    from pyscf import df, gto, mp, scf

    mol = gto.M(atom=MOLECULES.get(molecule, molecule), basis=basis, verbose=0)
    mean_field = scf.RHF(mol).run(conv_tol=1e-12)
    auxiliary = df.addons.make_auxmol(mol, df.make_auxbasis(mol, mp2fit=True))
    three_center = df.incore.aux_e2(mol, auxiliary, "int3c2e")
    nocc = mol.nelectron // 2
    orbitals, energies = mean_field.mo_coeff, mean_field.mo_energy
    arrays = (
        three_center,
        auxiliary.intor("int2c2e"),
        orbitals[:, :nocc],
        orbitals[:, nocc:],
        energies[:nocc],
        energies[nocc:],
    )
    problem = Problem(*(torch.from_numpy(np.ascontiguousarray(x)) for x in arrays))
    reference = mp.dfmp2.DFMP2(mean_field)
    return problem, float(reference.kernel(with_t2=False)[0])


# ---- the command ---------------------------------------------------------------------------------


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", action="store_true", help="synthetic integrals (also without --mol)")
    parser.add_argument("--mol", help=f"{', '.join(MOLECULES)}, or atoms as PySCF takes them")
    parser.add_argument("--basis", default="sto-3g")
    parser.add_argument("--nbasis", type=int, default=40, help="of the demo")
    parser.add_argument("--nocc", type=int, default=6, help="of the demo")
    parser.add_argument("--naux", type=int, default=120, help="of the demo")
    parser.add_argument("--backend", choices=("auto", "pytorch", "nki"), help="auto; nki with --fused-energy")
    parser.add_argument("--fused-energy", action="store_true", help="sum the amplitudes in the NKI kernel")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 100)
    before = trnblas.get_backend()
    trnblas.set_backend(options.backend or ("nki" if options.fused_energy else "auto"))
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("integrals", total=None)
            if options.mol:
                problem, expected = from_pyscf(options.mol, options.basis)
                other = f"PySCF's DF-MP2 of {options.mol}, {options.basis}"
            else:
                problem = synthetic(options.nbasis, options.nocc, options.naux)
                expected, other = direct_energy(problem), "einsum"
            progress.update(task, description="amplitudes", completed=0, total=len(problem.eps_occ))
            energy = df_mp2_energy(
                problem,
                options.fused_energy,
                lambda done, total: progress.update(task, completed=done, total=total),
            )
    except ImportError as problem:
        console.print(f"{problem}: pip install pyscf", markup=False)
        return 1
    finally:
        trnblas.set_backend(before)
    console.print(f"trnblas    {energy: .10f} Hartree")
    console.print(f"reference  {expected: .10f} Hartree ({other})")
    console.print(f"difference {abs(energy - expected):.1e}")
    return 0 if abs(energy - expected) <= 1e-7 else 1


if __name__ == "__main__":
    sys.exit(main())
