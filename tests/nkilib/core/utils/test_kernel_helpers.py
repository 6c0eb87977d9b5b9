import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check import lint
from nkilib.core.utils import kernel_helpers as helpers
from nkilib.core.utils.common_types import ActFnType, DtypeMode, NormType
from nkilib.core.utils.tp_broadcast import tp_broadcast
from support import run_tiles, target


@nki.jit
def programs(marks):
    """Each program writes what it knows of the launch into its row."""
    ndim, n_prgs, prg_id = helpers.get_program_sharding_info()
    start, end = helpers.program_share(7)
    start_of_four, end_of_four = helpers.program_share(14, 4)
    row = nl.ndarray((1, 7), nl.int32)
    facts = [ndim, n_prgs, prg_id, start, end, start_of_four, end_of_four]
    for i in range(7):
        nisa.memset(row[:, i : i + 1], facts[i])
    out = nl.ndarray((n_prgs, 7), nl.int32, buffer=nl.shared_hbm)
    nisa.dma_copy(out[prg_id : prg_id + 1], row)
    return out


@pytest.mark.tiny
def test_a_program_knows_its_share():
    marks = np.zeros(1, np.int32)
    assert list(programs(marks)[0]) == [0, 1, 0, 0, 7, 0, 14]
    assert [list(row) for row in programs[2](marks)] == [[1, 2, 0, 0, 3, 0, 4], [1, 2, 1, 3, 7, 4, 14]]


@nki.jit
def verified(x, allowed_ndims, max_shards):
    helpers.get_verified_program_sharding_info("verified", allowed_ndims, max_shards)
    return nl.zeros((1, 1), nl.float32, buffer=nl.shared_hbm)


def test_a_grid_that_is_not_allowed_raises():
    x = np.zeros(1, np.float32)
    verified[2](x, (0, 1), 2)
    with pytest.raises(AssertionError, match=r"verified: the launch grid has 0 dimensions, .* \(1,\)"):
        verified(x, (1,), None)
    with pytest.raises(AssertionError, match="verified: launched on 2 programs, allowed are at most 1"):
        verified[2](x, (0, 1), 1)


def test_division_rounds_up():
    assert [helpers.div_ceil(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_the_largest_fp8_values():
    dtypes = (nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2)
    assert [helpers.get_max_positive_value_for_dtype(d) for d in dtypes] == [240, 448, 57344]
    with pytest.raises(AssertionError, match="dtype: got float32, allowed are float8_e4m3"):
        helpers.get_max_positive_value_for_dtype(nl.float32)


@nki.jit
def eight_bits(mode):
    return nl.zeros((1, 1), helpers.resolve_fp8_dtype(mode), buffer=nl.shared_hbm)


@pytest.mark.parametrize(
    ("platform", "mode", "name"),
    [
        ("trn2", DtypeMode.NON_OCP, "float8_e4m3"),
        ("trn3", DtypeMode.NON_OCP, "float8_e4m3"),
        ("trn3", DtypeMode.OCP, "float8_e4m3fn"),
        ("trn2", DtypeMode.AUTO, "float8_e4m3"),
        ("trn3", DtypeMode.AUTO, "float8_e4m3fn"),
    ],
)
def test_the_flavour_of_e4m3_follows_the_mode(platform, mode, name):
    with target(platform):
        assert eight_bits(mode).dtype.name == name


def test_activation_functions_by_type():
    functions = [helpers.get_nl_act_fn_from_type(ActFnType(i)) for i in range(4)]
    assert functions == [nl.silu, nl.gelu, nl.gelu_apprx_tanh, nl.gelu_apprx_sigmoid]
    with pytest.raises(AssertionError, match="act_fn: got ActFnType.ReLU, allowed are SiLU"):
        helpers.get_nl_act_fn_from_type(ActFnType.ReLU)


def test_norms_and_their_weights():
    assert [n.value for n in NormType if helpers.is_rms_normalization(n)] == [1, 3, 4]
    assert [n.value for n in NormType if helpers.normalization_uses_weights(n)] == [1, 2, 4]


@pytest.mark.parametrize("index", [0, 1])
def test_copies_alternate_between_engines(index):
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    (y,) = run_tiles(lambda dst, src: helpers.interleave_copy(dst, src, index), [x], [(x.shape, "bfloat16")])
    np.testing.assert_array_equal(y, x.astype(ml_dtypes.bfloat16))


def test_rows_are_copied_to_other_partitions():
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    (y,) = run_tiles(lambda dst, src: helpers.cross_partition_copy(dst[1:4], src[3:6]), [x], [x * 0])
    np.testing.assert_array_equal(y[1:4], x[3:6])
    with pytest.raises(AssertionError, match=r"dst: got shape \(6, 2\), expected \(3, 2\) like src"):
        run_tiles(lambda dst, src: helpers.cross_partition_copy(dst, src[3:6]), [x], [x])


def test_a_column_becomes_a_row_in_all_partitions():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    (y,) = run_tiles(lambda dst, src: tp_broadcast(src, dst, src_offset=1), [x], [((6, 4), "float32")])
    np.testing.assert_array_equal(y, np.repeat([[1.0, 4.0, 7.0, 10.0]], 6, axis=0))
    with pytest.raises(AssertionError, match="expected 4 columns, one for each partition of src"):
        run_tiles(lambda dst, src: tp_broadcast(src, dst, 1), [x], [((6, 5), "float32")])


def test_dtypes_of_others_are_resolved():
    torch = pytest.importorskip("torch")
    for dtype in ("bfloat16", torch.bfloat16, np.dtype(ml_dtypes.bfloat16), ml_dtypes.bfloat16, nl.bfloat16):
        assert helpers.resolve_dtype_to_nki(dtype) is nl.bfloat16
    assert helpers.resolve_dtype_to_nki(np.bool_) is helpers.resolve_dtype_to_nki("bool") is nl.bool_
    with pytest.raises(AssertionError, match="dtype: got .*float64.*, expected a dtype of nki.language"):
        helpers.resolve_dtype_to_nki(np.float64)


def test_a_reference_may_be_called_like_a_kernel():
    double = helpers.LncSubscriptable(lambda x: 2 * x)
    assert double(3) == double[2](3) == double[(2,)](3) == 6
    assert (double.lnc, double[2].lnc, double[(2,)].lnc) == (1, 2, 2)


def test_buffers_in_hbm():
    @nki.jit
    def kernel(x):
        assert helpers.is_hbm_buffer(x) and not helpers.is_hbm_buffer(nl.zeros((1, 1), nl.float32))
        return x

    kernel(np.zeros(3, np.float32))


@nki.jit
def with_every_helper(x):
    _, n_prgs, _ = helpers.get_verified_program_sharding_info("helpers", (0, 1), 2)
    start, end = helpers.program_share(helpers.div_ceil(x.shape[0], 1))
    dtype = helpers.resolve_dtype_to_nki("float32")
    tile = nl.ndarray((end - start, x.shape[1]), dtype)
    nisa.dma_copy(tile, x[start:end])
    moved = nl.ndarray(tile.shape, dtype)
    for i in range(n_prgs):
        helpers.interleave_copy(moved, tile, i)
    helpers.cross_partition_copy(tile, moved)
    nisa.activation(tile, helpers.get_nl_act_fn_from_type(ActFnType.SiLU), tile)
    nisa.tensor_scalar(tile, tile, nl.multiply, helpers.get_max_positive_value_for_dtype(nl.float8_e5m2))
    out = nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
    helpers.kernel_assert(helpers.is_hbm_buffer(out), "out: not in HBM")
    nisa.dma_copy(out[start:end], tile)
    return out


def test_they_compile():
    assert with_every_helper(np.zeros((2, 4), np.float32)).shape == (2, 4)
    assert [str(f) for f in lint(with_every_helper)] == []
