"""The solve kernel on every generation, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from support import target

pytest.importorskip("torch")
from trnblas.nki import trsm  # noqa: E402


def system(n, columns, backward):
    rng = np.random.default_rng(0)
    full = rng.standard_normal((n, n)) / n**0.5 + 2 * np.eye(n)
    a = (np.triu(full) if backward else np.tril(full)).astype(np.float32)
    return a, rng.standard_normal((n, columns)).astype(np.float32)


@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_blocks_are_solved_in_order(platform, transposed, backward, monkeypatch):
    monkeypatch.setattr(trsm, "SOLVED_BYTES", 4 * 3 * 50)  # 50 columns at a time
    a, b = system(384, 70, backward)
    blocks = [np.linalg.inv(a[i : i + 128, i : i + 128]).T.astype(np.float32) for i in (0, 128, 256)]
    with target(platform):
        stored = np.ascontiguousarray(a.T) if transposed else a
        x = trsm.trsm_kernel(stored[None], np.stack(blocks)[None], b[None], transposed, backward)
    np.testing.assert_allclose(a.astype(np.float64) @ x[0], b, rtol=1e-4, atol=1e-5)
