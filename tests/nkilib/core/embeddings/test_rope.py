import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run
from ulps import within_ulps

import nki
import nki.isa as nisa
import nki.language as nl
import nkilib.core.rope
from nkilib.core.embeddings.rope import RoPE, RoPE_ref, RoPE_sbuf
from nkilib.core.utils.tensor_view import TensorView
from support import target

BF16 = np.dtype(ml_dtypes.bfloat16)


def operands(d, batch, heads, sequence, dtype=BF16, angle_dtype=None):
    angles = 7 * random((d // 2, batch, sequence), seed=1)
    x = random((d, batch, heads, sequence), dtype)
    return x, np.cos(angles).astype(angle_dtype or dtype), np.sin(angles).astype(angle_dtype or dtype)


def compare(got, wanted):
    if got.dtype == np.float32:
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    else:
        within_ulps(got, wanted)  # rounded once: the documented 1e-2 is more


def check(arrays, lnc=1, on="trn2", **options):
    compare(run(RoPE, *arrays, lnc=lnc, on=on, **options), RoPE_ref(*arrays, **options))


SHAPES = [(64, 4, 16, 128), (128, 64, 1, 1), (128, 2, 5, 96), (64, 3, 5, 7), (64, 1, 2, 300), (128, 5, 3, 77)]
LARGE = [(128, 1, 8, 512), (64, 1, 16, 512), (128, 3, 15, 512)]


@each_lnc
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_pairs_are_rotated(shape, contiguous, lnc):
    check(operands(*shape), lnc, contiguous_layout=contiguous)


@pytest.mark.slow
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("dtype", [BF16, np.dtype("float32")])
@pytest.mark.parametrize("shape", LARGE)
def test_published_sizes_are_rotated(shape, dtype, contiguous):
    check(operands(*shape, dtype), contiguous_layout=contiguous)


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes_are_rotated(dtype):
    check(operands(128, 2, 4, 64, np.dtype(dtype)))


def test_angles_may_be_more_precise_than_x():
    check(operands(64, 2, 4, 64, BF16, np.float32))


def test_it_runs_on_trn3():
    check(operands(128, 2, 4, 64), on="trn3")


@each_lnc
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("shape", [(128, 2, 5, 96), (64, 4, 2, 2), (128, 1, 1, 2)])
def test_two_cores_may_share_the_positions(shape, contiguous, lnc):
    check(operands(*shape), lnc, lnc_shard=True, contiguous_layout=contiguous)


@each_lnc
@pytest.mark.parametrize("lnc_shard", [True, False])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("shape", [(128, 2, 5, 48), (64, 1, 8, 64)])
def test_matmuls_may_change_the_layout(shape, contiguous, lnc_shard, lnc):
    arrays = operands(*shape)
    check(arrays, lnc, contiguous_layout=contiguous, relayout_in_sbuf=True, lnc_shard=lnc_shard)


# ---- in SBUF -------------------------------------------------------------------------------------


def load(tensor):
    tile = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, tensor)
    return tile


@nki.jit
def in_sbuf(x, cos, sin, convert=False, in_place=False, views=False, out_dtype=None):
    x_tile, cos_tile, sin_tile = load(x), load(cos), load(sin)
    out_tile = x_tile if in_place else nl.ndarray(x.shape, out_dtype or x.dtype, buffer=nl.sbuf)
    if views:
        cos_tile, sin_tile = TensorView(cos_tile), TensorView(sin_tile)
    returned = RoPE_sbuf(x_tile, cos_tile, sin_tile, out_tile, convert_from_interleaved=convert)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, returned)
    return out


@pytest.mark.parametrize("options", [{}, {"in_place": True}, {"views": True}], ids=str)
@pytest.mark.parametrize("dtype", [BF16, np.dtype("float32")])
@pytest.mark.parametrize("shape", [(128, 2, 5, 96), (64, 3, 2, 50)])
def test_tiles_are_rotated_in_sbuf(shape, dtype, options):
    arrays = operands(*shape, dtype)
    compare(run(in_sbuf, *arrays, **options), RoPE_ref(*arrays))


@pytest.mark.parametrize("dtype", [BF16, np.dtype("float32")])
@pytest.mark.parametrize("shape", [(128, 2, 5, 48), (64, 3, 2, 50)])
def test_interleaved_tiles_become_contiguous(shape, dtype):
    x, cos, sin = operands(*shape, dtype)
    even_first = np.concatenate([x[0::2], x[1::2]])
    compare(run(in_sbuf, x, cos, sin, convert=True), RoPE_ref(even_first, cos, sin))


# ---- modelled time -------------------------------------------------------------------------------


def test_16_million_elements_travel_at_the_speed_of_dma():
    """In, out, cos and sin at the 16 * 24.5 GB/s of the DMA engines."""
    angles = nki.TensorSpec((64, 16, 512), "bfloat16")
    with target("trn2"):
        profile = nki.profile(RoPE)(nki.TensorSpec((128, 16, 16, 512), "bfloat16"), angles, angles)
    megabytes = 2 * (2 * 128 * 16 * 16 * 512 + 2 * 64 * 16 * 512) / 1e6
    assert megabytes / 0.392 > 0.78 * profile.total_us


# ---- refusals ------------------------------------------------------------------------------------


def refused(text, kernel, *args, lnc=1, **options):
    with invalid(text):
        run(kernel, *args, lnc=lnc, **options)


@pytest.mark.parametrize(
    "shape, text",
    [
        ((32, 1, 1, 8), "x_in: got d_head 32, allowed are 64 and 128"),
        ((64, 65, 1, 8), "x_in: got batch size 65, allowed are 1 to 64"),
        ((64, 1, 17, 8), "x_in: got 17 heads, allowed are 1 to 16"),
        ((64, 1, 1, 513), "x_in: got sequence length 513, allowed are 1 to 512"),
    ],
)
def test_sizes_out_of_range_raise(shape, text):
    refused(text, RoPE, *operands(*shape))


def test_wrong_operands_raise():
    x, cos, sin = operands(64, 2, 3, 8)
    refused(
        r"x_in: got shape \(64, 48\), expected \(d_head, B, n_heads, S\)", RoPE, x.reshape(64, 48), cos, sin
    )
    refused(r"cos: got shape \(32, 2, 4\), expected \(32, 2, 8\)", RoPE, x, cos[:, :, :4], sin)
    refused(r"sin: got shape \(16, 2, 8\), expected \(32, 2, 8\)", RoPE, x, cos, sin[:16])
    refused(
        "x_in: got dtype int32, allowed are bfloat16, float16 and float32", RoPE, x.astype(np.int32), cos, sin
    )


def test_positions_must_divide_among_the_cores():
    arrays = operands(64, 2, 3, 9)
    refused(
        "lnc_shard: got 9 positions for 2 cores, allowed are multiples", RoPE, *arrays, lnc=2, lnc_shard=True
    )


def test_only_small_tensors_change_their_layout_by_matmuls():
    arrays = operands(64, 2, 3, 100)
    text = r"B \* n_heads \* S = 600, allowed are at most 512"
    refused(f"relayout_in_sbuf: got {text}", RoPE, *arrays, contiguous_layout=False, relayout_in_sbuf=True)
    refused(f"convert_from_interleaved: got {text}", in_sbuf, *arrays, convert=True)


def test_the_result_tile_must_match():
    text = "x_out_sb: got dtype float32, expected bfloat16 like x_in_sb"
    refused(text, in_sbuf, *operands(64, 1, 2, 8), out_dtype=nl.float32)


def test_the_older_path_has_the_same_kernels():
    assert nkilib.core.rope.RoPE is RoPE and nkilib.core.rope.RoPE_sbuf is RoPE_sbuf


def test_the_compiler_would_take_it():
    compiles_and_example_runs(RoPE)
