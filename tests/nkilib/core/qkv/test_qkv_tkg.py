"""The QKV projection of decode from SBUF to SBUF, as other kernels call it."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import cosine, each_lnc, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.qkv.qkv_tkg import qkv_tkg, qkv_tkg_ref
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.common_types import NormType, QKVOutputLayout, QuantizationType

BF16 = ml_dtypes.bfloat16
HEADS = {"d_head": 32, "num_q_heads": 3, "num_kv_heads": 1}
COLUMNS = 5 * 32


@nki.jit
def between_tiles(hidden, qkv_w, norm_w, layout, norm, managed):
    """hidden [cores, 128, T, H / 128] is loaded; every core stores what it got."""
    core = nl.program_id(0)
    tile = nl.ndarray(hidden.shape[1:], hidden.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, hidden[core])
    sbm = SbufManager(0, 65536) if managed else None
    y = qkv_tkg(
        tile,
        qkv_w,
        norm_w,
        output_layout=layout,
        norm_type=norm,
        output_in_sbuf=True,
        sbm=sbm,
        d_head=32,
        num_q_heads=3,
        num_kv_heads=1,
    )
    out = nl.ndarray((nl.num_programs(0),) + tuple(y.shape), y.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out[core], y)
    return out


def near(got, expected, tolerance=1e-2):
    """What the specification asks of results of about 1."""
    assert got.shape == expected.shape and got.dtype == BF16
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    assert cosine(got, expected) > 0.9999


def spread(x, cores):
    """[T, H] as [128, T, H / 128]: each core's half of the hidden dimension over all partitions."""
    parts = np.split(x, cores, axis=1)
    return np.concatenate([part.reshape(len(x), 128, -1).transpose(1, 0, 2) for part in parts], axis=2)


@each_lnc
@pytest.mark.parametrize("layout", list(QKVOutputLayout))
@pytest.mark.parametrize("norm", [NormType.NO_NORM, NormType.RMS_NORM, NormType.LAYER_NORM])
def test_tokens_and_results_stay_in_sbuf(norm, layout, lnc):
    x, w = random((5, 512), BF16), random((512, COLUMNS), BF16, 1, 0.05)
    gamma = None if norm == NormType.NO_NORM else random((1, 512), BF16, 2)
    tiles = np.stack([spread(x, lnc)] * lnc)
    got = run(between_tiles, tiles, w, gamma, layout, norm, lnc == 2, lnc=lnc)
    expected = qkv_tkg_ref(x[None], w, norm_w=gamma, norm_type=norm)[0][0]
    if layout == QKVOutputLayout.NBdS:
        expected = expected.reshape(5, 5, 32).transpose(2, 1, 0)
    for of_core in got:
        near(of_core, expected)


@each_lnc
@pytest.mark.parametrize("tokens", [1, 33, 65, 96, 130])
def test_any_number_of_tokens(tokens, lnc):
    x, w, gamma = random((tokens, 1, 256), BF16), random((256, 1000), BF16, 1, 0.06), random((1, 256), BF16)
    y = run(qkv_tkg, x, w, gamma, lnc=lnc)
    near(y, qkv_tkg_ref(x, w, norm_w=gamma)[0])


@each_lnc
def test_static_fp8_by_section(lnc):
    x, w = random((4, 2, 256), BF16), random((256, COLUMNS), ml_dtypes.float8_e4m3, 1, 0.06)
    options = HEADS | {
        "norm_type": NormType.NO_NORM,
        "quantization_type": QuantizationType.STATIC,
        "qkv_w_scale": np.float32([[0.5, 1, 2]]),
        "qkv_in_scale": np.full((1, 1), 0.02, np.float32),
    }
    y = run(qkv_tkg, x, w, lnc=lnc, **options)
    expected = qkv_tkg_ref(x, w, **options)[0]
    near(y, expected, 2e-2)


def test_too_many_tokens_and_an_odd_hidden_dimension_raise():
    x, w = random((600, 1, 128), BF16), random((128, 64), BF16)
    with pytest.raises(AssertionError, match="at most 512"):
        run(qkv_tkg, x, w, norm_type=NormType.NO_NORM)
    with pytest.raises(AssertionError, match="2 cores take multiples of 256"):
        run(qkv_tkg, x[:4], w, norm_type=NormType.NO_NORM, lnc=2)


# ---- two cores that share the hidden dimension ---------------------------------------------------


@pytest.fixture
def shared_rows(monkeypatch):
    monkeypatch.setattr("nkilib.core.qkv.qkv_decode.LEAST_ROWS", 256)
    monkeypatch.setattr("nkilib.core.qkv.qkv_decode.LEAST_ROWS_OF_WHOLE", 256)


@pytest.mark.parametrize("columns", [COLUMNS, 97], ids=["whole heads", "an odd number of columns"])
@pytest.mark.parametrize("norm", [NormType.NO_NORM, NormType.RMS_NORM, NormType.LAYER_NORM])
def test_cores_that_share_the_hidden_dimension_add_their_sums(norm, columns, shared_rows):
    x, w = random((3, 1, 512), BF16), random((512, columns), BF16, 1, 0.03)
    gamma = None if norm == NormType.NO_NORM else random((1, 512), BF16, 2)
    bias = random((1, columns), BF16, 3)
    more = random((3, 1, 512), BF16, 4, 0.3)
    options = {"norm_w": gamma, "norm_type": norm, "qkv_bias": bias, "fused_add": True}
    options |= {"mlp_prev": more, "attn_prev": more}
    y, added = run(qkv_tkg, x, w, lnc=2, **options)
    expected, expected_sums = qkv_tkg_ref(x, w, **options)
    near(y, expected)
    near(added, expected_sums)


def test_cores_that_share_the_hidden_dimension_undo_fp8_once(shared_rows):
    test_static_fp8_by_section(2)


@pytest.mark.parametrize("layout", list(QKVOutputLayout))
def test_cores_that_share_the_hidden_dimension_give_all_columns_to_both(layout, shared_rows):
    test_tokens_and_results_stay_in_sbuf(NormType.RMS_NORM, layout, 2)


@each_lnc
@pytest.mark.parametrize("norm", [NormType.NO_NORM, NormType.RMS_NORM, NormType.LAYER_NORM])
def test_float32_is_not_rounded(norm, lnc):
    x, w, gamma = (
        random((2, 3, 512), np.float32),
        random((512, 160), np.float32),
        random((1, 512), np.float32),
    )
    beta = {"norm_bias": random((1, 512), np.float32)} if norm == NormType.LAYER_NORM else {}
    weights = {} if norm == NormType.NO_NORM else {"norm_w": gamma}
    options = {"norm_type": norm, **weights, **beta}
    got = qkv_tkg[lnc](x, w, **options)
    expected, _ = qkv_tkg_ref(x, w, **options)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
