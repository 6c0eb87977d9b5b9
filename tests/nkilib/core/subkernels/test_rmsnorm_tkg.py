"""RMSNorm of decoded tokens, in the layouts of decode."""

import numpy as np
import pytest
from kernel_support import each_lnc, random

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.subkernels.rmsnorm_tkg import rmsnorm_tkg, rmsnorm_tkg_ref

HIDDEN, TOKENS = 512, 6


@nki.jit
def normalised(x, gamma, transposed, in_sbuf, actual):
    """Each core stores what it has."""
    core = nl.program_id(0)
    tile = nl.ndarray((128, TOKENS, HIDDEN // 128), x.dtype, buffer=nl.sbuf)
    given = x
    if in_sbuf:
        given = nl.ndarray(tile.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(given, x)
    rmsnorm_tkg(given, gamma, tile, eps=1e-5, hidden_actual=actual, hidden_dim_tp=transposed)
    out = nl.ndarray((nl.num_programs(0), *tile.shape), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out[core], tile)
    return out


def laid_out(x, cores, transposed):
    if transposed:
        return x.reshape(TOKENS, -1, 128).transpose(2, 0, 1)
    halves = np.split(x, cores, axis=1)
    return np.concatenate([half.reshape(TOKENS, 128, -1).transpose(1, 0, 2) for half in halves], axis=2)


@each_lnc
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("in_sbuf", [False, True])
def test_tokens_are_normalised_in_the_layouts_of_decode(in_sbuf, transposed, lnc):
    x, gamma = random((2, 3, HIDDEN), np.float32), random((1, HIDDEN), np.float32)
    x[..., 500:] = 0
    given = laid_out(x.reshape(TOKENS, HIDDEN), lnc, transposed) if in_sbuf else x
    got = normalised[lnc](np.ascontiguousarray(given), gamma, transposed, in_sbuf, 500)
    expected = laid_out(rmsnorm_tkg_ref(x, gamma, 1e-5, 500), lnc, transposed)
    for tile in got:
        np.testing.assert_allclose(tile, expected, rtol=2e-6, atol=2e-6)


def test_an_output_of_another_shape_is_refused():
    with pytest.raises(AssertionError, match=r"output: got shape \(128, 6, 4\), expected \(128, 6, 2\)"):
        normalised(random((2, 3, 256), np.float32), random((1, 256), np.float32), False, False, None)
