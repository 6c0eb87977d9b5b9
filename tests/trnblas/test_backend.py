"""Which backend serves a call, and what is reported when a kernel fails."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
import trnblas  # noqa: E402
from trnblas import backend as chosen  # noqa: E402
from trnblas.nki import dispatch  # noqa: E402


@pytest.fixture
def launches(monkeypatch):
    """Return the names of the kernels that ran."""
    names = []
    launch = chosen.launch

    def counted(kernel, *arguments):
        names.append(kernel.__name__)
        return launch(kernel, *arguments)

    monkeypatch.setattr("trnblas.nki.launches.launch", counted)
    return names


@pytest.fixture
def broken(monkeypatch):
    """Make kernels fail with the message in this list."""
    message = ["no queue"]

    def fail(kernel, *arguments):
        raise RuntimeError(message[0])

    monkeypatch.setattr("trnblas.nki.launches.launch", fail)
    chosen.forget_fallbacks()
    return message


def test_the_backend_is_auto_until_it_is_set():
    assert trnblas.get_backend() == "auto"
    for name in ("pytorch", "nki", "auto"):
        trnblas.set_backend(name)
        assert trnblas.get_backend() == name


def test_unknown_backends_are_refused_and_change_nothing():
    with pytest.raises(ValueError, match="the backends are auto, pytorch, nki; got 'cuda'"):
        trnblas.set_backend("cuda")
    assert trnblas.get_backend() == "auto"


def test_nki_can_only_be_forced_where_it_can_be_imported(monkeypatch):
    assert trnblas.HAS_NKI
    monkeypatch.setattr(chosen, "HAS_NKI", False)
    with pytest.raises(RuntimeError, match="nki cannot be imported"):
        trnblas.set_backend("nki")
    assert not chosen.choose(torch.float32).nki


def test_auto_is_pytorch_here_and_nki_forces_the_kernel(launches):
    A = torch.eye(3)
    trnblas.gemm(1.0, A, A)
    assert launches == []
    trnblas.set_backend("nki")
    trnblas.gemm(1.0, A, A)
    assert launches == ["gemm_kernel"]


def test_auto_uses_a_device_only_with_the_nki_of_aws(monkeypatch):
    def place(device):
        assert trnblas.explain("gemm", (3, 3), (3, 3)).backend == chosen.choose(torch.float32).place
        return chosen.choose(torch.float32, device).place

    assert place("cpu") == place("xla") == "PyTorch"
    monkeypatch.setattr(chosen, "has_neuron_device", lambda: True)
    assert place("cpu") == place("xla") == "PyTorch", "Open NKI has no device"
    assert "nki is Open NKI, a simulator" in chosen.choose(torch.float32).why
    monkeypatch.setattr(chosen, "is_open_nki", lambda: False)
    assert place("cpu") == place("xla") == "device"
    assert "nki is AWS's package" in chosen.choose(torch.float32).why
    monkeypatch.setenv("TRNBLAS_USE_SIMULATOR", "1")
    assert place("cpu") == place("xla") == "simulator"
    monkeypatch.delenv("TRNBLAS_USE_SIMULATOR")
    monkeypatch.setattr(chosen, "has_neuron_device", lambda: False)
    assert place("cpu") == "PyTorch" and place("xla") == "device"


def test_the_nki_of_this_project_is_recognised():
    assert chosen.is_open_nki()


def test_the_simulator_variable_enables_kernels(launches, monkeypatch):
    simulated = []
    import nki

    simulate = nki.simulate
    monkeypatch.setattr(nki, "simulate", lambda kernel: simulated.append(kernel) or simulate(kernel))
    monkeypatch.setenv("TRNBLAS_USE_SIMULATOR", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the kernels pass the lint of nki.simulate
        trnblas.gemm(1.0, torch.eye(3), torch.eye(3))
        trnblas.syrk(1.0, torch.eye(3))
        trnblas.trsm(1.0, torch.eye(3), torch.eye(3))
        dispatch.nki_mp2_energy(torch.eye(4), torch.ones(2), torch.ones(2), -torch.ones(2))
    assert len(simulated) == 4 == len(launches)
    trnblas.set_backend("pytorch")
    trnblas.gemm(1.0, torch.eye(3), torch.eye(3))
    assert len(launches) == 4
    monkeypatch.setenv("TRNBLAS_USE_SIMULATOR", "0")
    assert not chosen.choose(torch.float32).nki


@pytest.mark.parametrize(
    "call, kernel",
    [
        (lambda x: trnblas.gemv(1.0, x, x[0]), "gemm_kernel"),
        (lambda x: trnblas.symv(1.0, x, x[0]), "gemm_kernel"),
        (lambda x: trnblas.trmv(x, x[0]), "gemm_kernel"),
        (lambda x: trnblas.ger(1.0, x[0], x[0]), "gemm_kernel"),
        (lambda x: trnblas.symm(1.0, x, x), "gemm_kernel"),
        (lambda x: trnblas.trmm(1.0, x, x), "gemm_kernel"),
        (lambda x: trnblas.batched_gemm(1.0, x[None], x[None]), "batched_gemm_kernel"),
        (lambda x: trnblas.syrk(1.0, x), "syrk_kernel"),
        (lambda x: trnblas.trsm(1.0, x, x), "trsm_kernel"),
    ],
)
def test_each_operation_has_its_kernel(call, kernel, launches):
    trnblas.set_backend("nki")
    call(torch.eye(4))
    assert launches == [kernel]
    call(torch.eye(4, dtype=torch.float64))
    assert launches == [kernel], "float64 is not rounded to float32"


# ---- failing kernels -----------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["TRNBLAS_REQUIRE_NKI", "TRNBLAS_USE_SIMULATOR"])
def test_a_failing_kernel_raises_when_kernels_are_required(broken, monkeypatch, variable):
    for name in ("TRNBLAS_REQUIRE_NKI", "TRNBLAS_USE_SIMULATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    trnblas.set_backend("nki")
    with pytest.raises(RuntimeError, match="no queue"):
        trnblas.gemm(1.0, torch.eye(3), torch.eye(3))


@pytest.mark.parametrize("op", ["gemm", "syrk", "trsm"])
def test_a_failing_kernel_falls_back_to_pytorch_with_one_warning_per_error(op, broken, monkeypatch):
    monkeypatch.delenv("TRNBLAS_REQUIRE_NKI")
    trnblas.set_backend("nki")
    x = 2 * torch.eye(3)
    call = {"gemm": lambda: trnblas.gemm(1.0, x, x), "syrk": lambda: trnblas.syrk(1.0, x)}.get(
        op, lambda: trnblas.trsm(1.0, x, 8 * torch.eye(3))
    )
    with pytest.warns(
        trnblas.NkiFallbackWarning, match=f"{op}: .*PyTorch serves the call: RuntimeError: no queue"
    ):
        assert torch.equal(call(), 4 * torch.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(call(), 4 * torch.eye(3))
    broken[0] = "no memory"
    with pytest.warns(trnblas.NkiFallbackWarning, match="no memory"):
        call()


def test_the_warning_points_at_the_caller(broken, monkeypatch):
    monkeypatch.delenv("TRNBLAS_REQUIRE_NKI")
    trnblas.set_backend("nki")
    x = torch.eye(3)
    for call in (lambda: trnblas.gemm(1.0, x, x), lambda: trnblas.syrk(1.0, x), lambda: dispatch.nki_syrk(x)):
        chosen.forget_fallbacks()
        with pytest.warns(trnblas.NkiFallbackWarning) as caught:
            call()
        assert caught[0].filename == __file__


def test_an_error_is_reported_once_for_all_operations(broken, monkeypatch):
    monkeypatch.delenv("TRNBLAS_REQUIRE_NKI")
    trnblas.set_backend("nki")
    with pytest.warns(trnblas.NkiFallbackWarning):
        trnblas.gemm(1.0, torch.eye(3), torch.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trnblas.syrk(1.0, torch.eye(3))


def test_caller_errors_are_not_reported_as_kernel_failures(monkeypatch):
    monkeypatch.delenv("TRNBLAS_REQUIRE_NKI")
    trnblas.set_backend("nki")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="3 != 2"):
            trnblas.gemm(1.0, torch.ones(2, 3), torch.ones(2, 3))


def test_without_nki_the_pytorch_backend_works():
    code = """
import importlib.machinery, sys
class Hidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "nki" else super().find_spec(name, path, target)
sys.meta_path[:] = [f for f in sys.meta_path if f is not importlib.machinery.PathFinder] + [Hidden]
import torch, trnblas
assert not trnblas.HAS_NKI
print(trnblas.gemm(1.0, torch.eye(2), torch.eye(2)).sum().item(), "nki" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2.0", "False"], done.stderr
