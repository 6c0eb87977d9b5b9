"""The model against AWS's published profile of the five-step matmul guide (fp32, trn2, one core)."""

import sys
from pathlib import Path

import pytest

import nki
from support import target

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "matmul"))
import kernels  # noqa: E402

# C[4096, 8192] = A[4096, 8192] x B[8192, 8192]: total ms, active % of DMA, TensorE, VectorE, MFU %, packet ms
PUBLISHED = {
    "tiled": (39.89, 99.93, 87.28, None, 17.52, 519.6),
    "hoisted": (28.20, 99.73, 99.85, None, 24.79, 402.1),
    "blocked_mn": (28.41, 95.70, 99.52, None, 24.60, 390.7),
    "blocked_mnk": (28.30, 21.54, 99.50, 10.55, 24.70, 81.7),
}


LONG = ("tiled", "hoisted")  # of 100,000 instructions
STEPS = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in PUBLISHED]


@pytest.mark.parametrize("name", STEPS)
def test_the_five_step_guide_is_reproduced_within_ten_percent_and_five_points(name):
    lhsT, rhs = nki.TensorSpec((8192, 4096), "float32"), nki.TensorSpec((8192, 8192), "float32")
    with target("trn2"):
        timeline = nki.profile(getattr(kernels, name))(lhsT, rhs).timeline
    total, dma, tensor, vector, mfu, packet = PUBLISHED[name]
    assert timeline.total_ns / 1e6 == pytest.approx(total, rel=0.10)
    assert timeline.active_percent("dma") == pytest.approx(dma, abs=5)
    assert timeline.active_percent("tensor") == pytest.approx(tensor, abs=5)
    assert vector is None or timeline.active_percent("vector") == pytest.approx(vector, abs=5)
    assert timeline.mfu_percent == pytest.approx(mfu, abs=5)
    assert timeline.packet_ns / 1e6 == pytest.approx(packet, rel=0.10)
