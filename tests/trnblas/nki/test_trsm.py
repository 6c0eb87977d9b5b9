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


def inverses(a):
    """Return the transposed inverses of the diagonal blocks."""
    blocks = [np.linalg.inv(a[i : i + 128, i : i + 128]).T for i in range(0, len(a), 128)]
    return np.stack(blocks)[None].astype(np.float32)


@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_blocks_are_solved_in_order(platform, transposed, backward, monkeypatch):
    monkeypatch.setattr(trsm, "SOLVED_BYTES", 4 * 3 * 50)  # 50 columns at a time
    a, b = system(384, 70, backward)
    stored = (np.ascontiguousarray(a.T) if transposed else a)[None]
    with target(platform):
        x = trsm.trsm_kernel(stored, inverses(a), b[None], transposed, backward)
    np.testing.assert_allclose(a.astype(np.float64) @ x[0], b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(x, trsm.trsm_ref(stored, b[None], transposed, backward), rtol=1e-4, atol=1e-5)


def test_two_cores_share_the_columns():
    a, b = system(256, 70, False)
    with target("trn2"):
        x = trsm.trsm_kernel[2](a[None], inverses(a), b[None])
    np.testing.assert_allclose(x, trsm.trsm_ref(a[None], b[None]), rtol=1e-4, atol=1e-5)


def test_systems_that_do_not_fit_together_are_refused():
    a, b = system(256, 3, False)
    cases = [
        (a[None, :200, :200], inverses(a), b[None, :200], "b has 200 rows; a multiple of 128 is needed"),
        (a[None, :128], inverses(a), b[None], r"a is \(1, 128, 256\); \(1, 256, 256\) is needed"),
        (
            a[None],
            inverses(a)[:, :1],
            b[None],
            r"inverses are \(1, 1, 128, 128\); \(1, 2, 128, 128\) is needed",
        ),
    ]
    for *arguments, text in cases:
        with pytest.raises(AssertionError, match=text):
            trsm.trsm_kernel(*arguments)
