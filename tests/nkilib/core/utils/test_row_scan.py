import numpy as np
import pytest
from kernel_support import each_lnc, random, run

import nki
import nki.language as nl
from nkilib.core.utils.row_scan import SCAN_TILE, row_blocks, scan_rows


def blocks_of(shape):
    """(start, end, rows in a partition) of every block, on one core."""
    found = []

    @nki.jit
    def kernel(x):
        found.extend((block.start, block.end, block.rows) for block in row_blocks(shape))
        return x

    run(kernel, np.zeros(1, np.float32))
    return found


@pytest.mark.tiny
def test_long_rows_go_one_to_a_partition():
    assert blocks_of((300, SCAN_TILE)) == [(0, 128, 1), (128, 256, 1), (256, 300, 1)]


def test_short_rows_share_a_partition():
    assert blocks_of((600, SCAN_TILE // 2)) == [(0, 256, 2), (256, 512, 2), (512, 600, 1)]
    assert blocks_of((300, 10)) == [(0, 256, 2), (256, 300, 1)]
    assert blocks_of((5, 10)) == [(0, 5, 1)]


@nki.jit
def running_sum(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    scan_rows(out, x)
    return out


@each_lnc
@pytest.mark.parametrize("shape", [(1000, 7), (257, 300), (3, SCAN_TILE + 1)])
def test_every_row_is_scanned_once(shape, lnc):
    x = random(shape)
    np.testing.assert_allclose(
        run(running_sum, x, lnc=lnc), np.cumsum(x, axis=1, dtype=np.float64), atol=1e-3
    )
