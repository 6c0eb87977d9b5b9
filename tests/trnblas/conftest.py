"""Both backends, a tile cache of its own, and comparison with float64 references of rounded operands."""

import math

import pytest
from threadpoolctl import threadpool_limits

# of the result, relative to it: twice for float32 and float64, where torch rounds again when it scales
ROUNDING = {"float32": 2e-7, "bfloat16": 3.95e-3, "float16": 4.95e-4, "float64": 4e-16}


def pytest_ignore_collect(collection_path, config):
    """The tiny suite does not wait for torch to be imported."""
    return True if config.getoption("markexpr", "") == "tiny" else None


@pytest.fixture(autouse=True)
def surroundings(tmp_path_factory, monkeypatch):
    """Set up trn2, kernels that must not fail, and no tile cache of the user."""
    pytest.importorskip("torch", reason="torch is not installed")
    import trnblas

    for name in ("TRNBLAS_USE_SIMULATOR", "TRNBLAS_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRNBLAS_REQUIRE_NKI", "1")
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    monkeypatch.setenv("TRNBLAS_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "tiles"))
    trnblas.set_backend("auto")
    with threadpool_limits(1):  # small matrices on a machine that others use too
        yield
    trnblas.set_backend("auto")


@pytest.fixture(params=["pytorch", "nki"])
def backend(request):
    import trnblas

    trnblas.set_backend(request.param)
    return request.param


@pytest.fixture
def near():
    """Return near(found, expected, scale, terms), which checks equality up to roundings.

    Of the result, relative to itself; of float32 (float64) sums of that many terms, relative to `scale`, the
    same sum of magnitudes.
    """
    import numpy as np

    def compare(found, expected, scale=1.0, terms=1):
        dtype = str(found.dtype).removeprefix("torch.")
        sums = (2e-16 if dtype == "float64" else 1e-7) * math.sqrt(max(1, terms))
        allowed = ROUNDING[dtype] * np.abs(expected) + sums * np.abs(scale) + 1e-30
        found = found.double().numpy()
        assert found.shape == np.shape(expected)
        assert (np.abs(found - expected) <= allowed).all(), np.abs(found - expected).max()

    return compare
