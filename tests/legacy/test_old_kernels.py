"""Kernels of the old API, neuronxcc.nki: each call becomes instructions of nki.isa."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import nki as new
import nki_legacy.old_api as nki
import nki_legacy.old_api.isa as nisa
import nki_legacy.old_api.language as nl
import nki_legacy.old_api.typing as nt
from nki.cli import main
from nki_legacy import sessions
from nki_legacy.old_api import compiler as ncc

pytestmark = pytest.mark.filterwarnings("ignore")


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def output(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)


def run(body, *args, shape=None, **kwargs):
    """What body(*args) gives, a tile, copied out."""

    @nki.jit
    def kernel(*tensors):
        made = body(*tensors)
        out = output(made.shape, made.dtype)
        nl.store(out, made)
        return out

    return kernel(*args)


def test_index_tensors_load_any_pattern():
    x = random(8, 6)
    p, f = nl.arange(3)[:, None], nl.arange(4)[None, :]
    assert (run(lambda t: nl.load(t[2 * p + 1, f + 2]), x) == x[1:7:2, 2:6]).all()
    assert (run(lambda t: nl.load(t[f, p]), x) == x[:4, :3].T).all()  # transposed
    assert (run(lambda t: nl.load(t[p // 2, f % 2]), x) == x[[[0], [0], [1]], [[0, 1, 0, 1]]]).all()


def test_a_grid_is_unpacked_or_named_and_may_have_more_axes_than_the_tensor():
    x = random(4, 10)
    grid = nl.mgrid[0:4, 0:3, 0:2]
    windows = run(lambda t: nl.load(t)[grid.p, grid.x + grid.y], x)
    assert windows.shape == (4, 3, 2) and (windows[:, 2, 1] == x[:, 3]).all()
    assert (run(lambda t: nl.load(t[nl.mgrid[0:4, 0:3]]), x) == x[:, :3]).all()


def test_a_mask_leaves_positions_out():
    x, p, f = random(5, 7), nl.arange(8)[:, None], nl.arange(7)[None, :]

    @nki.jit
    def kernel(t):
        out = output((5, 7))
        tile = nl.load(t[p, f], mask=(p < 5))
        nl.store(out[p, f], nl.square(tile, mask=(p < 5)), mask=(p < 5) & (f < 7))
        return out

    np.testing.assert_allclose(kernel(x), x * x)


def test_what_a_mask_leaves_out_of_an_assignment_stays():
    p, f = nl.arange(4)[:, None], nl.arange(4)[None, :]

    def body(t):
        tile = nl.full((4, 4), 7, nl.float32)
        tile[p, f] = nl.copy(nl.load(t), mask=(f < 2))
        tile[p, f] = nl.multiply(nl.load(t), 2, mask=(f < p))  # no box: by a predicate
        return tile

    x = random(4, 4)
    rows, columns = np.indices((4, 4))
    expected = np.where(columns < rows, 2 * x, np.where(columns < 2, x, 7))
    np.testing.assert_allclose(run(body, x), expected)


def test_masked_positions_take_no_part_in_a_reduction():
    x, p, f = random(4, 8), nl.arange(4)[:, None], nl.arange(8)[None, :]
    np.testing.assert_allclose(
        run(lambda t: nl.max(nl.load(t), axis=1, mask=(f < 5)), x), x[:, :5].max(1, keepdims=True)
    )
    below = np.arange(8)[None, :] <= np.arange(4)[:, None]
    np.testing.assert_allclose(
        run(lambda t: nl.sum(nl.load(t), axis=[1], mask=(f <= p)), x),
        np.where(below, x, 0).sum(1, keepdims=True),
        rtol=1e-5,
    )


def test_reductions_take_any_free_axes():
    x = random(4, 2, 3, 5)
    np.testing.assert_allclose(run(lambda t: nl.sum(nl.load(t), axis=[1, 3]), x), x.sum((1, 3)), rtol=1e-5)
    assert run(lambda t: nl.mean(nl.load(t), axis=-1, keepdims=True), x).shape == (4, 2, 3, 1)


def test_products_accumulate_in_psum():
    a, b = random(64, 8), random(64, 16)

    def body(x, y):
        total = nl.zeros((8, 16), nl.float32, buffer=nl.psum)
        for k in nl.affine_range(4):
            rows = nl.ds(k * 16, 16)
            total += nisa.nc_matmul(nl.load(x[rows, :]), nl.load(y[rows, :]))
        return total

    np.testing.assert_allclose(run(body, a, b), a.T @ b, rtol=1e-4, atol=1e-5)


def test_an_instruction_writes_where_its_value_is_assigned():
    @nki.jit
    def kernel(t):
        out, tile = output((4, 4)), nl.ndarray((4, 4), nl.float32)
        tile[...] = nl.exp(nl.load(t))
        nl.store(out, tile)
        return out

    program = kernel.trace(new.TensorSpec((4, 4), "float32"))
    names = [instruction.public for instruction in program.walk()]
    assert names == ["dma_copy", "activation", "dma_copy"]  # no copy of the result


def test_operators_promote_and_broadcast():
    import ml_dtypes

    x = random(4, 8)
    np.testing.assert_allclose(
        run(lambda t: (nl.load(t) * 2 - 1) / nl.load(t[0:1, :]), x), (x * 2 - 1) / x[:1], rtol=1e-5
    )
    half = x.astype(ml_dtypes.bfloat16)
    assert run(lambda t: nl.load(t) * 2.0, half).dtype == np.float32
    assert run(lambda t: -nl.load(t), half).dtype == half.dtype
    assert run(lambda t: nl.load(t) < 0.5, x).dtype == np.bool_


def test_tiles_side_by_side_are_dimensions_before_par_dim():
    def body(t):
        tiles = nl.ndarray(
            (3, nl.par_dim(4), 5),
            dtype=nl.float32,
            buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(3,)),
        )
        for i in nl.static_range(3):
            tiles[i] = nl.load(t[i])
        with pytest.raises(NotImplementedError, match="err_failed_to_infer_tile"):
            nl.exp(tiles)
        return tiles[1] + tiles[2]

    x = random(3, 4, 5)
    np.testing.assert_allclose(run(body, x), x[1] + x[2])


def test_rows_are_gathered_and_scattered_by_a_tile_of_indices():
    x, ids = random(10, 6), np.array([[7], [0], [3]], np.int32)

    @nki.jit
    def kernel(t, index):
        rows, f = nl.load(index), nl.arange(6)[None, :]
        out = output((10, 6))
        nl.store(out, 0.0)
        nl.store(out[rows, f], nl.load(t[rows, f]))
        return out

    expected = np.zeros_like(x)
    expected[ids[:, 0]] = x[ids[:, 0]]
    assert (kernel(x, ids) == expected).all()
    with pytest.raises(IndexError, match="index 60 is out of bounds for axis 0 with size 60") as caught:
        kernel(x, np.array([[1], [10], [2]], np.int32))
    assert type(caught.value) is IndexError


@pytest.mark.parametrize(
    "pick",
    [
        lambda t, i: t[i, :, :],
        lambda t, i: t[:, i, :],
        lambda t, i: t[:, :, i],
        lambda t, i: t[i, 2:5, 1:4],
        lambda t, i: t[i],
    ],
)
def test_one_element_of_a_tile_as_an_index_removes_the_dimension(pick):
    x, ids = random(5, 6, 7), np.array([[2, 0], [1, 3]], np.int32)
    assert (run(lambda t, index: nl.load(pick(t, nl.load(index)[1, 1])), x, ids) == pick(x, 3)).all()
    assert (run(lambda t, index: nl.load(pick(t, nl.load(index)[1, 1:2][0, 0])), x, ids) == pick(x, 3)).all()
    assert (run(lambda t, index: nl.load(t[nl.load(index)[1, 1], 2, :]), x, ids) == x[3, 2][:, None]).all()


def test_slices_of_a_tile_as_an_index_keep_the_dimension():
    x, ids = random(5, 6), np.array([[2], [4]], np.int32)
    assert (run(lambda t, index: nl.load(t[nl.load(index)[1:2, 0:1], 1:4]), x, ids) == x[4:5, 1:4]).all()
    assert (run(lambda t, index: nl.load(t[nl.load(index)[1], 1:4]), x, ids) == x[4:5, 1:4]).all()


def test_dimensions_before_the_partitions_take_constant_indices_and_slices():
    x = random(3, 4, 5)

    def body(t):
        tiles = nl.ndarray((3, nl.par_dim(4), 5), dtype=t.dtype, buffer=nl.sbuf)
        for b in nl.static_range(3):
            tiles[b] = nl.load(t[b])
        i, j, k = nl.mgrid[0:1, 0:4, 0:2]
        assert tiles[0:2, 1:3, 2:5].shape == (2, 2, 3)
        with pytest.raises(NotImplementedError, match="err_failed_to_infer_tile"):
            tiles[nl.arange(3)[:, None], nl.arange(4)[None, :], 0]
        out = output((2, 4, 5))
        nl.store(out[0, 1:3, 2:5], tiles[1:3, 1:3, 2:5][1])
        nl.store(out[1, 0:4, 0:2], tiles[i + 2, j, 2 * k])
        return out

    made = nki.jit(body)(x)
    assert (made[0, 1:3, 2:5] == x[2, 1:3, 2:5]).all() and (made[1, :, :2] == x[2, :, 0:4:2]).all()


@pytest.mark.parametrize("store", [False, True])
def test_a_row_with_more_dimensions_is_repeated_whole(store):
    x = random(1, 1, 8)

    @nki.jit
    def kernel(t):
        row, out, tile = nl.load(t), output((4, 8)), nl.ndarray((nl.par_dim(4), 8), dtype=t.dtype)
        tile[...] = row
        nl.store(out, row if store else tile)
        return out

    assert (kernel(x) == np.broadcast_to(x[0], (4, 8))).all()


def test_hbm_takes_the_elements_of_a_row_in_any_shape():
    x = random(1, 8)

    @nki.jit
    def kernel(t):
        column, flat = output((8, 1)), output((8,))
        nl.store(column, nl.load(t))
        nl.store(flat, nl.load(t))
        return column, flat

    column, flat = kernel(x)
    assert (column[:, 0] == x[0]).all() and (flat == x[0]).all()


@pytest.mark.parametrize("named", [False, True])
def test_a_row_does_not_become_partitions(named):
    def body(t):
        tile = nl.ndarray((nl.par_dim(8), 1), dtype=t.dtype)
        if named:
            row = nl.load(t)
            tile[...] = row
        else:
            tile[...] = nl.load(t)
        return tile

    with pytest.raises(new.NkiError, match=r"err_num_partition_mismatch: .*\(8, 1\).*\(1, 8\)"):
        run(body, random(1, 8))


def test_a_grid_of_size_zero_runs_one_program():
    @nki.jit
    def kernel(t):
        out = output(t.shape)
        assert nl.program_id(0) == 0 and nl.num_programs(0) == 1
        nl.store(out, nl.load(t))
        return out

    x = random(4, 5)
    assert (kernel[0](x) == x).all() and (kernel[nl.spmd_dim(0, nl.nc(2)), 1](x) == x).all()


def test_a_grid_runs_the_body_for_each_program():
    @nki.jit
    def kernel(t):
        out = output(t.shape)
        i, j = nl.program_id(0), nl.program_id(1)
        assert nl.num_programs() == 6 and nl.num_programs(0) == 2 and nl.program_ndim() == 2
        nl.store(out[i, j], nl.load(t[i, j]))
        return out

    x = random(2, 3, 4, 5)
    assert (kernel[2, 3](x) == x).all()
    assert (kernel[nl.spmd_dim(nl.nc(2), 1), 3](x) == x).all() and (kernel[nl.nc(2) * 1, 3](x) == x).all()


def test_a_kernel_may_write_to_its_arguments():
    @nki.trace
    def kernel(x, out):
        nl.store(out, nl.load(x) + 1)

    x, out = random(4, 4), np.zeros((4, 4), np.float32)
    assert nki.simulate_kernel(kernel, x, out) is None
    np.testing.assert_allclose(out, x + 1)


def test_a_simulation_rounds_narrow_floats_on_export_only():
    import ml_dtypes

    def body(x):
        out = output(x.shape)
        nl.store(out, nl.exp(nl.load(x), dtype=nl.bfloat16))
        return out

    x = random(4, 4)
    np.testing.assert_allclose(nki.jit(body, mode="simulation")(x), np.exp(x), rtol=1e-6)
    rounded = np.exp(x).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_allclose(nki.jit(body)(x), rounded, rtol=1e-6)


def test_selections_and_indices():
    x = random(4, 6)
    ix, iy = nl.mgrid[0:4, 0:6]
    below = run(lambda t: nisa.affine_select(iy < ix, nl.load(t), -1.0), x)
    assert (below == np.where(np.arange(6) < np.arange(4)[:, None], x, -1)).all()
    assert (
        run(lambda: nisa.iota(5 + 2 * nl.arange(4)[:, None], nl.int32)) == 5 + 2 * np.arange(4)[:, None]
    ).all()
    assert (run(lambda t: nl.where(nl.load(t) > 0, nl.load(t), 0.0), x) == np.maximum(x, 0)).all()


def test_loop_reduce_and_in_place_operators():
    def body(t):
        total = nl.zeros((4, 6), nl.float32)
        for i in nl.sequential_range(3):
            total[...] = nl.loop_reduce(nl.load(t[i]), op=np.add, loop_indices=[i])
        total[:, 0:2] += 1.0
        total[:, 2:4] *= total[:, 0:2]
        return total

    x = random(3, 4, 6)
    expected = x.sum(0)
    expected[:, :2] += 1
    expected[:, 2:4] *= expected[:, :2]
    np.testing.assert_allclose(run(body, x), expected, rtol=1e-5)


def test_loop_reduce_sets_an_undefined_target_when_its_loops_start():
    def body(t):
        largest = nl.ndarray((2, nl.par_dim(4), 6), nl.float32, buffer=nl.sbuf)
        reused = nl.ndarray((4, 6), nl.float32, buffer=nl.sbuf)
        for j in nl.affine_range(2):
            for i in nl.affine_range(1, 3):
                tile = nl.load(t[i + j])
                largest[j] = nl.loop_reduce(tile, op=np.max, loop_indices=[i])
                reused[...] = nl.loop_reduce(tile, op=np.add, loop_indices=[i])
        return largest[0] + largest[1] + reused

    x = -1 - np.abs(random(4, 4, 6))
    expected = x[1:3].max(0) + x[2:4].max(0) + x[2:4].sum(0)
    np.testing.assert_allclose(run(body, x), expected, rtol=1e-5)


def windows(x):
    return [x[:, i : i + 6, j : j + 7] for i in range(3) for j in range(2)]


@pytest.mark.parametrize("shape", [(64, 6, 7), (64, 42)])
def test_a_product_keeps_the_free_dimensions_of_moving(shape):
    def body(weights, x):
        w, tile = nl.load(weights), nl.load(x)
        assert tuple(nisa.nc_matmul(w, tile[:, 1:7, 2:9]).shape) == (64, 6, 7)
        total = nl.zeros(shape, nl.float32, buffer=nl.psum)
        for i in nl.affine_range(3):
            for j in nl.affine_range(2):
                total += nisa.nc_matmul(w, tile[:, i : i + 6, j : j + 7])
        return nl.copy(total)

    w, x = random(32, 64), random(32, 8, 9)
    expected = sum(np.einsum("km,kab->mab", w, part) for part in windows(x))
    np.testing.assert_allclose(run(body, w, x).reshape(64, 6, 7), expected, rtol=1e-4, atol=1e-4)


def accumulated_by_name(a, b):
    total = nl.zeros((4, 6), nl.float32, buffer=nl.psum)
    for i in nl.affine_range(3):
        x, y = nl.load(a[i]), nl.load(b[i])
        product = nisa.nc_matmul(x, y)
        total += product
    return nl.copy(total)


def accumulated_at_once(a, b):
    total = nl.zeros((4, 6), nl.float32, buffer=nl.psum)
    for i in nl.affine_range(3):
        total += nisa.nc_matmul(nl.load(a[i]), nl.load(b[i]))
    return nl.copy(total)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("body", [accumulated_by_name, accumulated_at_once])
def test_products_added_to_zeros_in_psum_accumulate_there_without_a_warning(body):
    a, b = random(3, 8, 4), random(3, 8, 6)
    np.testing.assert_allclose(run(body, a, b), np.einsum("ikm,ikn->mn", a, b), rtol=1e-4, atol=1e-5)

    @nki.jit
    def kernel(a, b):
        made = body(a, b)
        out = output(made.shape, made.dtype)
        nl.store(out, made)
        return out

    counts = new.profile(kernel)(a, b).statistics.by_instruction
    assert counts["nc_matmul"] == 3 and "tensor_tensor" not in counts


def assign_twice(target, value):
    target[...] = value
    target[...] = value


def test_a_named_value_is_computed_once_however_often_it_is_assigned():
    def body(t):
        tile = nl.load(t)
        assign_twice(tile, nl.add(tile, 1.0))
        passed = nl.add(tile, 1.0)
        assign_twice(tile, passed)
        repeated = nl.add(tile, 1.0)
        for _ in range(3):
            tile[...] = repeated
        once = nl.add(tile, 1.0)
        tile[...] = once
        return tile

    x = random(4, 6)
    np.testing.assert_allclose(run(body, x), x + 4, rtol=1e-6)


def test_a_product_is_added_to_a_narrow_tile_in_psum_by_rounding():
    def body(a, b):
        total = nl.zeros((4, 6), nl.float16, buffer=nl.psum)
        total += nisa.nc_matmul(nl.load(a), nl.load(b))
        return nl.copy(total)

    a, b = random(8, 4), random(8, 6)
    np.testing.assert_allclose(run(body, a, b), (a.T @ b).astype(np.float16), rtol=2e-3)


@pytest.mark.parametrize("bias", [(5, 1), (5, 7), (5, 6, 1)])
def test_tensor_tensor_broadcasts_missing_dimensions_after_the_partitions(bias):
    x, y = random(5, 6, 7), random(*bias)
    wide = y.reshape(5, 1, -1) if y.ndim == 2 else y
    body = lambda s, t: nisa.tensor_tensor(nl.load(s), nl.load(t), nl.subtract)  # noqa: E731
    np.testing.assert_allclose(run(body, x, y), x - wide)
    np.testing.assert_allclose(run(body, y, x), wide - x)


def test_a_tile_is_reshaped_to_more_than_five_dimensions():
    def body(t):
        windows = nl.load(t).reshape((5, 1, 2, 2, 3, 2))
        return nl.max(windows, axis=[3, 5]).reshape(shape=(5, 6))

    x = random(5, 4, 6)
    expected = x.reshape(5, 2, 2, 3, 2).max((2, 4)).reshape(5, 6)
    np.testing.assert_array_equal(run(body, x), expected)


def test_a_transposing_product_is_float32_where_transposes_multiply():
    @nki.jit(platform_target="trn1")
    def kernel(x, identity):
        out = output((6, 8), nl.bfloat16)
        nl.store(out, nl.copy(nisa.nc_matmul(nl.load(x), nl.load(identity), is_transpose=True)))
        return out

    x = random(8, 6).astype(nl.bfloat16)
    identity = np.eye(8, dtype=np.float32).astype(nl.bfloat16)
    assert (kernel(x, identity) == x.T).all()


def test_inner_kernels_are_part_of_the_outer_one():
    @nki.jit
    def inner(tile):
        return nl.square(tile)

    x = random(4, 4)
    np.testing.assert_allclose(run(lambda t: inner(nl.load(t)), x), x * x)
    with pytest.raises(ValueError, match="err_nested_kernel_with_spmd_grid"):
        run(lambda t: inner[2](nl.load(t)), x)


def test_benchmark_marks_its_times_as_modelled():
    @nki.benchmark(warmup=2, iters=3)
    def kernel(x):
        out = output(x.shape)
        nl.store(out, nl.load(x))
        return out

    x = random(4, 4)
    assert (kernel(x) == x).all()
    latency = kernel.benchmark_result.nc_latency
    assert latency.get_latency_percentile(99) == latency.get_latency_percentile(0) > 0
    assert "modelled" in repr(latency)
    with pytest.raises(ValueError):
        latency.get_latency_percentile(42)
    assert kernel[1](nt.tensor[[4, 4], nl.float32]) is None and kernel.benchmark_result is not None


@pytest.mark.parametrize("decorate", [nki.benchmark, nki.baremetal])
def test_the_files_that_a_decorator_is_asked_for_are_written(decorate, tmp_path, capsys):
    @decorate(save_neff_name="k.neff", save_trace_name="k.ntff", artifacts_dir=str(tmp_path))
    def kernel(x):
        out = output(x.shape)
        nl.store(out, nl.load(x))
        return out

    x = random(4, 4)
    assert (kernel(x) == x).all()
    assert [p.name for p in sessions.programs_of(sessions.read(tmp_path / "k.neff"))] == ["kernel"]
    assert sessions.profiles_of(sessions.read(tmp_path / "k.ntff"))[0].total_us > 0
    printed = capsys.readouterr().out
    assert ("p99" in printed and "modelled" in printed) is (decorate is nki.benchmark)


def test_commands_load_scripts_that_import_the_old_api(tmp_path, capsys):
    script = tmp_path / "old.py"
    script.write_text(
        "import neuronxcc.nki as nki\n"
        "import neuronxcc.nki.language as nl\n"
        "@nki.benchmark(warmup=1)\n"
        "def twice(x):\n"
        "    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n"
        "    nl.store(out, nl.load(x) * 2.0)\n"
        "    return out\n"
    )
    for command in ("profile", "check", "trace"):
        assert main([command, f"{script}:twice", "--arg", "x=float32[8,8]"]) == 0, command
        capsys.readouterr()
    assert "neuronxcc" not in sys.modules


@pytest.mark.parametrize("number", [7.0, 7, np.float32(7)])
def test_a_number_is_stored_in_one_element_of_hbm(number):
    @nki.jit
    def kernel(x):
        out = output(x.shape)
        for plane in nl.affine_range(x.shape[0]):
            nl.store(out[plane], nl.load(x[plane]))
        nl.store(out[1, 2, 3], value=number)
        nl.store(out[0][1][2], value=number, mask=nl.arange(1)[:, None] < 1)
        nl.store(out[0, 0, 0], value=number, mask=nl.arange(1)[:, None] > 0)
        return out

    x = random(2, 3, 4)
    expected = x.copy()
    expected[1, 2, 3] = expected[0, 1, 2] = 7
    np.testing.assert_array_equal(kernel(x), expected)


def test_columns_of_a_tile_are_row_numbers_as_tiles():
    @nki.jit
    def kernel(x, rows):
        out, tile = output(rows.shape), nl.ndarray(rows.shape, x.dtype)
        picked = nl.load(rows)
        for i in nl.affine_range(rows.shape[1]):
            tile[:, i] = nl.load(x[0, picked[:, i].as_tile()])
        nl.store(out, value=tile)
        return out

    x, rows = random(2, 64, 1), np.random.default_rng(1).integers(0, 64, (16, 3)).astype(np.uint32)
    np.testing.assert_array_equal(kernel(x, rows), x[0, rows, 0])


def test_an_old_kernel_is_a_kernel_of_nki():
    @nki.jit
    def kernel(x):
        out = output(x.shape)
        nl.store(out, nl.exp(nl.load(x)))
        return out

    assert isinstance(kernel, new.Kernel) and not hasattr(kernel, "__wrapped__")
    priced = new.profile(kernel)(new.TensorSpec((4, 4), "float32"))
    assert priced.total_us > 0 and priced.statistics.by_instruction["activation"] == 1


@pytest.mark.parametrize(
    "body, name",
    [
        (
            lambda t: nl.load(t[nl.arange(9)[:, None], nl.arange(4)[None, :]]),
            "err_tensor_access_out_of_bound",
        ),
        (lambda t: nl.ndarray((129, 2), nl.float32), "err_num_partition_exceed_arch_limit"),
        (
            lambda t: nl.zeros((4, 2), nl.float32, buffer=nl.hbm),
            "err_hbm_tensor_with_init_value_not_supported",
        ),
        (lambda t: nl.all_reduce(nl.load(t), np.add, (0,)), "err_no_successor"),
    ],
)
def test_errors_speak_of_the_old_names_at_the_users_line(body, name):
    with pytest.raises(new.NkiError, match=name) as caught:
        run(body, random(8, 4))
    assert caught.value.site.filename == __file__


def test_nothing_works_outside_a_kernel():
    with pytest.raises(RuntimeError, match="err_nki_api_outside_of_nki_kernel"):
        nl.ndarray((4, 4), nl.float32)
    with pytest.raises(ValueError, match="err_control_flow_condition"):
        bool(nl.arange(4)[:, None])


FACTOR = 2.0


@nki.jit
def scaled(x):
    out = output(x.shape)
    nl.store(out, nl.load(x) * FACTOR * nl.tile_size.pmax)
    return out


def test_equal_calls_skip_the_python_until_something_that_it_read_changes(monkeypatch):
    x = random(4, 5)
    before = scaled.cache_info().hits
    for kernel in (scaled, nki.baremetal(scaled), nki.baremetal(scaled)):
        np.testing.assert_array_equal(kernel(x), x * 256)
    assert scaled.cache_info().hits == before + 2
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    np.testing.assert_array_equal(scaled(x), x * 512)
    np.testing.assert_array_equal(nki.simulate_kernel(scaled, x), x * 512)
    assert scaled.cache_info().hits == before + 2
