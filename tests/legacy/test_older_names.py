"""Modules and attributes of `nki` in other releases: `nki_legacy` supplies them by entry points."""

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.cli
import nki.isa as nisa
import nki.language as nl
from nki import plugins
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


def test_importing_nki_is_enough_to_name_its_modules():
    code = (
        "import nki\n"
        "def kernel(x: nki.tensor, dtype: nki.dtype = nki.dtype.bfloat16): ...\n"
        "assert nki.isa.constants.dge_mode is nki.isa.dge_mode and nki.language.float32 == 'float32'\n"
        "assert all((nki.collectives, nki.simulator, nki.typing.tensor, nki.experimental, nki.compiler))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
def test_a_removed_name_raises_with_its_replacement(name, replacement):
    with pytest.raises(AttributeError) as caught:
        getattr(nki, name)
    assert caught.value.kind == "removed"
    assert f"nki.{name}" in str(caught.value) and replacement in caught.value.help
    assert not hasattr(nki, name)


def test_the_removed_functions_of_nki_tensor_raise():
    import nki.ir.tensor

    with pytest.raises(AttributeError) as caught:
        _ = nki.tensor.zeros
    assert caught.value.kind == "removed" and "NumPy" in caught.value.help
    assert not hasattr(nki.tensor, "ones") and nki.tensor.NkiTensor is nl.NkiTensor


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


# ---- plugins -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", plugins.entry_points("nki.modules"))
def test_a_module_is_the_same_object_under_both_of_its_names(name):
    if name == "standins":
        pytest.skip("its import changes the process")
    entry = plugins.entry_points("nki.modules")[name]
    assert importlib.import_module(f"nki.{name}") is plugins.load(entry)


@pytest.fixture
def broken(monkeypatch):
    """A plugin whose package is not there."""

    def entry_points(group):
        return {"broken": EntryPoint("broken", "no_such_package.module", group)}

    monkeypatch.setattr(plugins, "entry_points", entry_points)


def test_a_plugin_that_cannot_be_imported_fails_only_when_it_is_used(broken, capsys):
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("nki.broken")
    assert "nki.broken" not in sys.modules and not hasattr(nki, "compiler_of_another_name")
    assert nki.cli.main(["info"]) == 0
    assert nki.cli.main(["broken"]) == 2
    assert "no_such_package.module cannot be imported" in capsys.readouterr().err


def test_nki_reads_no_entry_point_until_a_name_is_missing():
    code = "import nki, nki.isa, nki.language, sys; print('importlib.metadata' in sys.modules)"
    floor = "import numpy, ml_dtypes, sys; print('importlib.metadata' in sys.modules)"
    found = [subprocess.run([sys.executable, "-c", c], capture_output=True).stdout for c in (code, floor)]
    assert found[0] == found[1]
    assert not hasattr(nki, "__no_such_dunder__")


ALONE = """
import sys
sys.path[:] = {paths!r}
import nki, nki.isa
try:
    import nki.tensor
except ModuleNotFoundError as problem:
    print(problem.name, hasattr(nki, "meta"))
"""


def test_nki_alone_works_without_the_packages_beside_it(tmp_path):
    (tmp_path / "nki").symlink_to(Path(nki.__file__).parent, target_is_directory=True)
    ours = ("nki_legacy", "open_nki")  # the second is also a folder of tests
    others = [p for p in sys.path if p and not any((Path(p) / name).exists() for name in ours)]
    paths = [str(tmp_path), *others]
    command = [sys.executable, "-I", "-c", ALONE.format(paths=paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == ["nki.tensor", "False"], done.stderr
