"""Tiles are chosen by the timing model once for a bucket of shapes, and cached on disk by nki.tune."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import nki  # noqa: E402
from trnblas import tuning  # noqa: E402

KEY = (2048, 100, 2048, torch.bfloat16, (False, False))


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("TRNBLAS_CACHE_DIR", str(tmp_path / "cache"))
    tuning.forget()
    yield
    tuning.forget()


@pytest.fixture
def modelled(monkeypatch):
    """Record the calls of the model, which returns (512, 1024)."""
    asked = []

    def fastest(*question):
        asked.append(question)
        return 512, 1024

    monkeypatch.setattr(tuning, "fastest", fastest)
    return asked


def test_a_bucket_is_modelled_once(modelled):
    assert tuning.gemm_tiles(*KEY) == (512, 1024)
    assert sorted(modelled[0][-1]) == sorted(tuning.CANDIDATES)
    assert tuning.gemm_tiles(*KEY) == tuning.gemm_tiles(1500, 70, 1900, *KEY[3:]) == (512, 1024)
    assert len(modelled) == 1


def test_another_process_finds_the_choice_on_disk(tmp_path, monkeypatch):
    shape = (1024, 128, 1024, torch.float32, (False, True))
    first = tuning.gemm_tiles(*shape)
    assert len(list((tmp_path / "cache").iterdir())) == 1, "nothing half written is left"
    tuning.forget()

    def fail(*program):
        raise AssertionError("modelled again")

    monkeypatch.setattr("nki.tune.model.profile_program", fail)
    assert tuning.gemm_tiles(*shape) == first


def test_autotune_0_takes_the_default(modelled, monkeypatch):
    monkeypatch.setenv("TRNBLAS_AUTOTUNE", "0")
    assert tuning.gemm_tiles(*KEY) == tuning.DEFAULT and modelled == []


def test_small_shapes_need_no_choice(modelled):
    assert tuning.gemm_tiles(500, 5000, 300, *KEY[3:]) == tuning.DEFAULT and modelled == []


def test_buckets_are_powers_of_two():
    sizes = [tuning.bucket(n) for n in (0, 1, 128, 129, 1000, 2048, 9000)]
    assert sizes == [128, 128, 128, 256, 1024, 2048, 2048]


def test_the_choice_is_the_fastest_of_the_candidates():
    from trnblas.nki.gemm import gemm_kernel

    a, b = nki.TensorSpec((1024, 128), "float32"), nki.TensorSpec((1024, 128), "float32")
    candidates = tuning.distinct(1024, 1024)
    times = {tiles: nki.profile(gemm_kernel)(a, b, False, True, *tiles).total_us for tiles in candidates}
    assert len(times) == 4 and all(time > 10 for time in times.values())
    chosen = tuning.gemm_tiles(1024, 128, 1024, torch.float32, (False, True))
    assert times[chosen] == min(times.values())
