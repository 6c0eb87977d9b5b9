"""The pytest plugin of Open NKI (docs/testing.md). It imports nki when a test first needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

TARGETS = ("trn1", "trn2", "trn3")
OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nki", "Open NKI")
    group.addoption("--nki-update", action="store_true", help="write the snapshots of modelled costs again")
    group.addoption("--nki-strict", action="store_true", help="run every test in strict mode")
    group.addoption(
        "--nki-targets", metavar="LIST", help="platforms of the fixture nki_target (default: trn1,trn2,trn3)"
    )
    group.addoption(
        "--nki-stubs",
        "--nki-standins",  # its name before
        action="store_true",
        help="provide import stubs for the packages that device scripts import",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "nki_budget(us, sbuf, psum): fail when a kernel that the test calls costs more by the model",
        'nki_snapshot(slower="3%"): fail when a kernel that the test calls got slower than its snapshot',
        "nki_targets(*names): the platforms of the fixture nki_target for this test",
    ):
        config.addinivalue_line("markers", line)
    if config.getoption("nki_stubs"):
        from nki_legacy import stubs

        stubs.install()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "nki_target" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("nki_targets")
        listed = metafunc.config.getoption("--nki-targets")
        names = mark.args if mark else tuple(listed.split(",")) if listed else TARGETS
        metafunc.parametrize("nki_target", names, indirect=True)
    if "nki_cores" in metafunc.fixturenames:
        metafunc.parametrize("nki_cores", (1, 2))


@pytest.fixture
def nki_target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once for each platform, with kernels on it; the value is its name."""
    monkeypatch.setenv(OVERRIDE, request.param)
    return request.param


@pytest.fixture
def nki_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings of kernels are errors in this test."""
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")


@pytest.fixture
def nki_fresh_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide programs, tuned configurations and random states of earlier tests."""
    from nki.testing.fresh import forget

    monkeypatch.setenv("OPEN_NKI_CACHE_DIR", str(tmp_path / "nki-cache"))
    forget()
    yield
    forget()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose kernels exceed its budget or its snapshot; hide the frames of nki in its errors."""
    strict = item.config.getoption("--nki-strict")
    before = os.environ.get("OPEN_NKI_STRICT")
    if strict:
        os.environ["OPEN_NKI_STRICT"] = "1"
    try:
        budget, snapshot = item.get_closest_marker("nki_budget"), item.get_closest_marker("nki_snapshot")
        if budget is None and snapshot is None:
            return (yield)
        from nki.testing.budgets import Snapshots, as_part, measured, over_budget

        with measured() as costs:
            result = yield
        wrong = over_budget(costs, *budget.args, **budget.kwargs) if budget is not None else []
        if snapshot is not None:
            snapshots = Snapshots(item.path)
            name = item.nodeid.partition("::")[2]
            if item.config.getoption("--nki-update"):
                snapshots.write(name, costs)
            else:
                wrong += snapshots.slower(name, costs, as_part(snapshot.kwargs.get("slower", "3%")))
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)
        return result
    except Exception as problem:
        if "nki" in sys.modules:
            sys.modules["nki.tracebacks"].hide_our_frames(problem)
        raise
    finally:
        if strict:
            os.environ.pop("OPEN_NKI_STRICT", None)
            if before is not None:
                os.environ["OPEN_NKI_STRICT"] = before
