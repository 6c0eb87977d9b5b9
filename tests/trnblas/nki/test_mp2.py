"""The energy kernel against the formula, and the functions around it."""

from __future__ import annotations

import numpy as np
import pytest

from support import target

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402
from trnblas.nki import nki_batched_pair_energy, nki_fused_gemm_energy, nki_mp2_energy, nki_trsm  # noqa: E402
from trnblas.nki.mp2 import largest_divisor, mp2_energy_kernel, mp2_energy_ref  # noqa: E402

SHAPES = [(3, 8, 3), (4, 16, 2), (1, 1, 1), (2, 131, 1), (2, 256, 1), (2, 448, 1), (1, 600, 1), (300, 3, 1)]


def amplitudes(nocc, nvir, ic, dtype=np.float32):
    T = np.random.default_rng(0).standard_normal((ic * nvir, nocc * nvir)).astype(dtype)
    occupied, virtual = np.linspace(-1, -0.2, nocc), np.linspace(0.2, 1, nvir)
    return T, occupied[:ic].astype(dtype), occupied.astype(dtype), virtual.astype(dtype)


def energies(T, chunk, full, virtual):
    """Return [ic, nocc] in float64, pair by pair."""
    n = len(virtual)
    found = np.empty((len(chunk), len(full)))
    for i, j in np.ndindex(*found.shape):
        t = T[i * n : (i + 1) * n, j * n : (j + 1) * n].astype(np.float64)
        denominators = float(chunk[i]) + float(full[j]) - np.add.outer(*[virtual.astype(np.float64)] * 2)
        found[i, j] = (t * (2 * t - t.T) / denominators).sum()
    return found


@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_partials_sum_up_to_the_energy_of_each_pair(shape, platform):
    nocc, nvir, ic = shape
    arguments = amplitudes(*shape)
    with target(platform):
        found = mp2_energy_kernel(*arguments)
    assert found.shape == (largest_divisor(nvir), ic, nocc)
    expected = energies(*arguments)
    np.testing.assert_allclose(mp2_energy_ref(*arguments), expected, rtol=1e-10, atol=1e-9)
    size = energies(np.abs(arguments[0]), *arguments[1:])
    np.testing.assert_allclose(
        found.sum(0, dtype=np.float64), expected, rtol=1e-5, atol=1e-6 * np.abs(size).max()
    )


@pytest.mark.parametrize(
    "nvir, tile", [(1, 1), (8, 8), (128, 128), (131, 1), (256, 128), (448, 112), (600, 120)]
)
def test_the_partial_rows_are_the_largest_divisor_up_to_128(nvir, tile):
    assert largest_divisor(nvir) == tile


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_function_sums_the_partials(dtype, backend):
    arguments = [torch.from_numpy(x).to(dtype) for x in amplitudes(4, 140, 2)]
    found = nki_mp2_energy(*arguments, partials=True)
    assert found.shape == (70, 2, 4)
    total = nki_mp2_energy(*arguments)
    assert total.shape == ()
    expected = energies(*(x.double().numpy() for x in arguments)).sum()
    assert float(total) == pytest.approx(expected, rel=1e-5 if dtype != torch.bfloat16 else 2e-2)
    assert float(found.double().sum()) == pytest.approx(
        expected, rel=1e-5 if dtype != torch.bfloat16 else 2e-2
    )
    if dtype == torch.float64:
        assert found.dtype == dtype, "float64 stays float64"


def test_the_energy_of_no_orbitals_is_zero(backend):
    assert nki_mp2_energy(torch.empty(0, 0), torch.empty(0), torch.empty(0), torch.ones(3)) == 0


def test_energies_from_factors(backend):
    B = torch.randn(3, 20, 12, generator=torch.Generator().manual_seed(0))
    occupied, virtual = torch.linspace(-1, -0.2, 3), torch.linspace(0.2, 1, 20)
    flat = B.reshape(60, 12).double()
    expected = energies((flat @ flat.T).numpy(), *(x.double().numpy() for x in (occupied, occupied, virtual)))
    pair = nki_fused_gemm_energy(B[0], B[1], float(occupied[0]), float(occupied[1]), virtual)
    assert float(pair) == pytest.approx(expected[0, 1], rel=1e-4)
    assert float(nki_batched_pair_energy(B, occupied, virtual)) == pytest.approx(expected.sum(), rel=1e-4)


def test_pairs_are_made_in_chunks(monkeypatch, backend):
    from trnblas.nki import dispatch

    B, occupied, virtual = torch.rand(5, 4, 3), torch.linspace(-1, -0.2, 5), torch.ones(4)
    at_once = nki_batched_pair_energy(B, occupied, virtual)
    monkeypatch.setattr(dispatch, "PAIR_BYTES", 2 * 4 * 5 * 16)
    torch.testing.assert_close(nki_batched_pair_energy(B, occupied, virtual), at_once, rtol=1e-5, atol=1e-5)


def test_trsm_of_the_package_takes_alpha(backend):
    L, B = torch.eye(130) + 0.1 * torch.ones(130, 130).tril(-1) / 130, torch.rand(130, 5)
    torch.testing.assert_close(L @ nki_trsm(L, B, uplo="lower", alpha=2.5), 2.5 * B, rtol=1e-5, atol=1e-5)
    assert trnblas.get_backend() == backend
