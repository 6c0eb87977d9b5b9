"""Take the picture of the viewer in docs/pictures: python tools/screenshots.py"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402
from benchmarks.profiler import chromium  # noqa: E402

STEP = 13  # of the second tile: scaling
SIZE = {"width": 1360, "height": 820}


@nki.jit
def softmax(x):
    """Softmax of rows, 128 at a time."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), nl.float32)
        nisa.dma_copy(tile, x[row : row + 128, :])
        largest = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(largest, nl.maximum, tile, axis=1, negate=True)
        powers = nl.ndarray(tile.shape, nl.float32)
        nisa.activation(powers, nl.exp, tile, bias=largest)
        total = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_reduce(total, nl.add, powers, axis=1)
        nisa.reciprocal(total, total)
        nisa.tensor_scalar(powers, powers, nl.multiply, total)
        nisa.dma_copy(out[row : row + 128, :], powers)
    return out


def reference(x: np.ndarray) -> np.ndarray:
    """What it should return, in float64."""
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def main() -> None:
    from playwright.sync_api import sync_playwright

    rows, columns = np.meshgrid(np.arange(384), np.arange(64), indexing="ij")
    noise = np.random.default_rng(0).standard_normal(rows.shape)
    x = (2 * np.sin(rows / 20) * np.cos(columns / 9) + 0.4 * noise).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder) / "softmax.html"
        nki.show(softmax, reference=reference)(x).save(page)
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport=SIZE, color_scheme="light")
        shown.goto(f"file://{page}")
        shown.wait_for_selector("html[data-ready=yes]")
        shown.locator(".row.stepped", has_text="nisa.tensor_scalar").locator("code").click()
        shown.evaluate(f"viewer.at = {STEP - 1}; viewer.drawNow()")
        shown.mouse.move(0, 0)
        shown.screenshot(path=ROOT / "docs" / "pictures" / "viewer.png")
        browser.close()


if __name__ == "__main__":
    main()
