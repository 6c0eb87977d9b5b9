"""Golden files (`golden("report/golden/x.txt", text)` compares, `pytest --update` writes), and a browser."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401  torch's inductor wants its distutils, which others would import first

HERE = Path(__file__).parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_addoption(parser):
    parser.addoption("--update", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture(autouse=True)
def _environment_as_it_was():
    """Examples of docstrings set variables; the next test does not see them."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def golden(request):
    """Compare a text with a file below tests/, or write the file when run with --update."""

    def compare(path: str, text: str) -> None:
        file = HERE / path
        if request.config.getoption("--update"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == text, f"{path} differs; pytest --update writes it anew"

    return compare


@pytest.fixture(scope="module")  # its event loop runs as long as it does
def chromium():
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright here: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
