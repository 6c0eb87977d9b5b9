"""Names of the published wheel that its tests and users import."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import trnblas  # noqa: E402
import trnblas.nki  # noqa: E402
from trnblas.nki import dispatch  # noqa: E402


def test_the_backend_is_one_whichever_way_it_is_set():
    before = trnblas.get_backend()
    try:
        trnblas.nki.set_backend("pytorch")
        assert trnblas.get_backend() == trnblas.nki.get_backend() == "pytorch" and not dispatch._use_nki()
        trnblas.set_backend("nki")
        assert trnblas.nki.get_backend() == "nki" and dispatch._use_nki()
    finally:
        trnblas.set_backend(before)


def test_the_version_and_the_switch(monkeypatch):
    assert trnblas.__version__.count(".") == 2
    monkeypatch.setenv("TRNBLAS_USE_SIMULATOR", "1")
    assert dispatch._use_simulator()
