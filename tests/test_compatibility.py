"""Modules and names that public code of other releases uses (spec/language.md 1)."""

import subprocess
import sys
from collections.abc import Callable
from typing import Optional, Union

import numpy as np
import pytest

import nki
import nki.dtype
import nki.isa as nisa
import nki.language as nl
from support import target

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def double(x, factor=2.0):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor * nl.num_programs(0))
    nisa.dma_copy(out, tile)
    return out


# ---- modules -------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_public_import_forms_work():
    from nki import jit
    from nki.dtype import float8_e4m3
    from nki.experimental import while_loop
    from nki.framework.kernel import Kernel
    from nki.isa.constants import dge_mode, oob_mode
    from nki.language import NKIObject, affine_range, bfloat16, static_range
    from nki.simulator import simulate_kernel

    assert Kernel is nki.Kernel and jit is nki.jit and while_loop is nl.while_loop
    assert float8_e4m3 is nl.float8_e4m3 and bfloat16 is nl.bfloat16
    assert all((NKIObject, affine_range, static_range, simulate_kernel, dge_mode, oob_mode))


def test_the_version_is_that_of_nki():
    assert nki.__version__.startswith("0.6.0")


def test_nki_dtype_has_every_dtype_of_the_language():
    import nki.dtype

    assert all(getattr(nki.dtype, name) is getattr(nl, name) for name in nki.dtype.__all__)
    assert len(nki.dtype.__all__) == 18


def test_importing_nki_imports_no_framework():
    code = "import nki, nki.language, nki.isa, nki.collectives, sys; "
    code += "print('torch' in sys.modules, 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_importing_nki_is_enough_to_name_its_modules():
    code = (
        "import nki\n"
        "def kernel(x: nki.tensor, dtype: nki.dtype = nki.dtype.bfloat16): ...\n"
        "assert nki.isa.constants.dge_mode is nki.isa.dge_mode and nki.language.float32 == 'float32'\n"
        "assert all((nki.collectives, nki.simulator, nki.typing.tensor, nki.experimental, nki.compiler))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- annotations ---------------------------------------------------------------------------------


@pytest.mark.tiny
def test_tensors_and_dtypes_may_be_annotations():
    def kernel(
        x: nl.ndarray,
        y: nl.ndarray | None = None,
        z: None | nl.ndarray = None,
        w: Optional[nl.ndarray] = None,  # noqa: UP045
        v: Union[nl.ndarray, list[nl.ndarray]] = (),  # noqa: UP007
        u: "nl.ndarray | None" = None,
        t: dict[str, nl.NkiTensor] | None = None,
        f: Callable[[nl.ndarray], nl.ndarray] | None = None,
    ) -> tuple[nl.ndarray, ...]:
        return double(x)

    assert np.array_equal(nki.jit(kernel)(X), 2 * X)


# ---- dtypes and arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in nki.dtype.__all__ if not name.endswith("_x4")])
def test_numpy_takes_the_dtypes_of_nki(name):
    dtype = getattr(nl, name)
    assert np.zeros((2, 3), dtype).dtype == np.ones(4).astype(dtype).dtype == np.dtype(dtype)
    assert {dtype: name}[dtype] == name and dtype == str(dtype)


PACKED = {
    "float8_e4m3fn_x4": np.dtype([("float8_e4m3fn_x4", "<u2"), ("high", "<u2")]),
    "float8_e5m2_x4": np.dtype([("float8_e5m2_x4", "<u2"), ("high", "<u2")]),
    "float4_e2m1fn_x4": np.dtype([("float4_e2m1fn_x4", "u1"), ("high", "u1")]),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_arrays_are_records_in_and_out(name):
    def twice(x):
        assert x.dtype is getattr(nl, name) and x.shape == (4, 6)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        nisa.dma_copy(x[0:1, :], out[1:2, :])
        return out, out[:, 0:2]

    record = PACKED[name]
    codes = np.arange(24 * record.itemsize, dtype=np.uint8)
    for x in (np.zeros((4, 6), record), np.zeros((4, 12), record)[:, ::2]):  # dense, and with gaps
        x[...] = codes.view(record).reshape(4, 6)
        whole, part = nki.jit(twice)(x)
        assert whole.dtype == part.dtype == x.dtype == record
        assert whole.tobytes() == codes.tobytes() and np.array_equal(part, whole[:, 0:2])
        assert np.array_equal(x[0], whole[1]) and np.array_equal(x[1:], whole[1:])


def test_packed_results_without_a_packed_argument_are_bits():
    def fill():
        out = nl.ndarray((2, 2), nl.float8_e4m3fn_x4, buffer=nl.shared_hbm)
        nisa.dma_copy(out, nl.zeros((2, 2), nl.float8_e4m3fn_x4))
        return out

    assert np.array_equal(nki.jit(fill)(), np.zeros((2, 2), np.uint32))


# ---- ways to call --------------------------------------------------------------------------------


def test_simulate_kernel_takes_arguments_and_cores():
    from nki.simulator import simulate_kernel

    assert np.array_equal(simulate_kernel(double, (X,)), 2 * X)
    assert np.array_equal(simulate_kernel(nki.jit(double), args=(X,), kwargs={"factor": 3.0}), 3 * X)
    with target("trn2"):
        assert np.array_equal(simulate_kernel(func=double, args=[X], kwargs={}, _lnc=2), 4 * X)
        assert np.array_equal(simulate_kernel(nki.jit(double)[2], (X,), _lnc=2), 4 * X)


def test_cpu_simulate_is_launched_with_brackets():
    with target("trn2"):
        assert np.array_equal(nki.cpu_simulate(double)[2](x=X), 4 * X)
        assert np.array_equal(nki.cpu_simulate(nki.jit(double))[1](x=X, factor=0.5), 0.5 * X)
        assert np.array_equal(nki.cpu_simulate(double)(X), 2 * X)


@pytest.mark.parametrize("make", [nki.benchmark(warmup=5, iters=10), nki.benchmark])
def test_benchmark_prices_what_it_runs(make):
    priced = make(nki.jit(double))
    assert np.array_equal(priced(X), 2 * X)
    latency = priced.benchmark_result.nc_latency
    assert latency.get_latency_percentile(50) == latency.get_latency_percentile(99) > 0
    assert "modelled, not measured" in repr(latency)


def test_benchmark_takes_arguments_at_once_and_brackets():
    assert nki.benchmark(double, (X,), n_iterations=3).benchmark_result.nc_latency.microseconds > 0
    with target("trn2"):
        assert np.array_equal(nki.benchmark()(nki.jit(double))[2](X), 4 * X)


def test_benchmark_refuses_unknown_keywords():
    with pytest.raises(TypeError, match="unknown keyword 'loops'"):
        nki.benchmark(loops=3)


# ---- names that are gone -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, replacement",
    [
        ("baremetal", "call the kernel"),
        ("simulate_kernel", "nki.simulate(kernel)"),
        ("meta", "nl.shared_constant"),
    ],
)
def test_a_removed_name_tells_its_replacement(name, replacement):
    with pytest.raises(AttributeError) as caught:
        getattr(nki, name)
    assert caught.value.kind == "removed"
    assert f"nki.{name}" in str(caught.value) and replacement in caught.value.help
    assert not hasattr(nki, name)


def test_the_functions_of_nki_tensor_are_gone():
    import nki.ir.tensor

    with pytest.raises(AttributeError) as caught:
        _ = nki.tensor.zeros
    assert caught.value.kind == "removed" and "NumPy" in caught.value.help
    assert not hasattr(nki.tensor, "ones") and nki.tensor.NkiTensor is nl.NkiTensor


@pytest.mark.parametrize("name", ["tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"])
def test_a_removed_instruction_tells_its_replacement(name):
    with pytest.raises(AttributeError) as caught:
        getattr(nisa, name)
    assert caught.value.kind == "removed" and f"nisa.{name}" in str(caught.value)
    assert "scalar_offset" in caught.value.help and not hasattr(nisa, name)


def test_a_mistyped_instruction_meets_its_neighbour():
    with pytest.raises(AttributeError, match="did you mean nisa.tensor_tensor"):
        _ = nisa.tensor_tesnor


@pytest.mark.parametrize(
    "call",
    [
        lambda t: nisa.tensor_copy(t),
        lambda t: nisa.tensor_tensor(t, t, op=nl.add),
        lambda t: nisa.activation(op=nl.exp, data=t),
        lambda t: nisa.nc_matmul(t, t),
    ],
)
def test_calls_in_the_style_of_returned_tiles_are_told_about_dst(call):
    def kernel():
        call(nl.zeros((4, 4), nl.float32))

    with pytest.raises(TypeError) as caught:
        nki.jit(kernel)()
    assert caught.value.kind == "argument" and "dst=" in caught.value.help


@pytest.mark.parametrize("call", [nl.zeros, nl.ones, lambda *a, mask: nl.add(nl.zeros(*a), 1.0, mask=mask)])
def test_masks_are_refused_with_the_bound_to_write(call):
    def kernel():
        call((4, 4), nl.float32, mask=True)

    with pytest.raises(TypeError, match="mask") as caught:
        nki.jit(kernel)()
    assert "min()" in caught.value.help


def test_other_names_are_plain_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'") as caught:
        _ = nki.nonsense
    assert not isinstance(caught.value, nki.NkiError)


# ---- the compiler that is not there --------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize(
    "module, name",
    [
        ("nki.compiler", "skip_middle_end_transformations"),
        ("nki.compiler.driver", "CompileOptions"),
        ("nki.compiler.driver", "compile_to_bir"),
        ("nki.compiler.frontend", "TracerFrontend"),
        ("nki.compiler.ncc_driver", "extract_perf_metrics"),
        ("nki.compiler.kernel_builder", "build"),
    ],
)
def test_compiler_modules_import_and_their_names_tell_what_to_use(module, name):
    imported = __import__(module, fromlist=["*"])
    with pytest.raises(nki.NkiError) as caught:
        getattr(imported, name)
    assert caught.value.kind == "no-compiler" and isinstance(caught.value, NotImplementedError)
    assert f"{module}.{name}" in str(caught.value) and "nki.profile" in caught.value.help
    assert not hasattr(imported, name)
    with pytest.raises(ImportError):
        exec(f"from {module} import {name}")


# ---- shapes across partitions --------------------------------------------------------------------


@nki.jit
def turned(x):
    """(n, 1) as (1, n): simulators reshape it, no view of a tile can."""
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    row = tile.reshape((1, x.shape[0]))
    out = nl.ndarray(row.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, row)
    return out


def test_a_reshape_across_partitions_copies_and_warns():
    column = np.arange(5, dtype=np.float32).reshape(5, 1)
    with pytest.warns(nki.NkiWarning, match="dimension 0 must stay 5, got 1"):
        np.testing.assert_array_equal(turned(column), column.T)


def test_a_reshape_across_partitions_is_an_error_when_strict(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")
    with pytest.raises(nki.NkiError, match="dimension 0 must stay 5, got 1"):
        turned(np.zeros((5, 1), np.float32))
