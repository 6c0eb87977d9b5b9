"""Take the pictures of the profile and of the viewer in docs/pictures: python tools/screenshots.py"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import nki

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
STEP = 13  # of the second tile: scaling
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


def loaded(file: Path) -> Any:
    """Return the module of a file."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def viewer_in(folder: Path) -> Path:
    """Write the viewer of a softmax of smooth values."""
    (folder / "softmax.py").write_text(SOURCE, encoding="utf-8")
    module = loaded(folder / "softmax.py")
    rows, columns = np.meshgrid(np.arange(384), np.arange(64), indexing="ij")
    noise = np.random.default_rng(0).standard_normal(rows.shape)
    x = (2 * np.sin(rows / 20) * np.cos(columns / 9) + 0.4 * noise).astype(np.float32)
    nki.show(module.softmax, reference=module.reference)(x).save(folder / "softmax.html")
    return folder / "softmax.html"


def profile_in(folder: Path) -> Path:
    """Write the profile of the tiled matmul of the examples."""
    kernels = loaded(ROOT / "examples" / "matmul" / "kernels.py")
    shapes = [nki.TensorSpec(shape, "bfloat16") for shape in ((1024, 512), (1024, 2048))]
    with nki.options(target="trn2"):
        nki.profile(kernels.tiled)(*shapes).save(str(folder / "profile.html"))
    return folder / "profile.html"


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1200, "height": 720}, color_scheme="light")
        shown.goto(f"file://{profile_in(Path(name))}")
        shown.wait_for_selector("html[data-ready=yes]")
        shown.screenshot(path=PICTURES / "profile.png")
        shown.set_viewport_size({"width": 1360, "height": 850})
        shown.goto(f"file://{viewer_in(Path(name))}#{STEP}")
        shown.wait_for_selector("html[data-ready=yes]")
        shown.evaluate("viewer.chooseLine([...viewer.listing.rows.keys()][5])")
        shown.evaluate("viewer.drawNow()")
        shown.screenshot(path=PICTURES / "viewer.png")
        browser.close()


if __name__ == "__main__":
    main()
