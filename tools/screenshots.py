"""Take the picture of the viewer in docs/pictures: python tools/screenshots.py"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

import numpy as np

import nki

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "viewer.png"
STEP = 13  # of the second tile: scaling
SIZE = {"width": 1360, "height": 850}
SOURCE = '''\
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


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


def reference(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
'''


def page_in(folder: Path) -> Path:
    """Write the viewer of a softmax of smooth values."""
    file = folder / "softmax.py"
    file.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("softmax", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows, columns = np.meshgrid(np.arange(384), np.arange(64), indexing="ij")
    noise = np.random.default_rng(0).standard_normal(rows.shape)
    x = (2 * np.sin(rows / 20) * np.cos(columns / 9) + 0.4 * noise).astype(np.float32)
    nki.show(module.softmax, reference=module.reference)(x).save(folder / "softmax.html")
    return folder / "softmax.html"


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        shown.goto(f"file://{page_in(Path(folder))}#{STEP}")
        shown.wait_for_selector("html[data-ready=yes]")
        shown.evaluate("viewer.chooseLine([...viewer.listing.rows.keys()][5])")
        shown.evaluate("viewer.drawNow()")
        shown.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
