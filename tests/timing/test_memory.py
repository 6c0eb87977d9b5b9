"""What a profile takes: everything goes when it is dropped, without a collector of cycles."""

import gc
import weakref

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[row : row + 128, :])
        nisa.tensor_tensor(tile, tile, tile, nl.add)
        nisa.dma_copy(out[row : row + 128, :], tile)
    return out


def test_a_dropped_profile_is_gone_at_once():
    profile = nki.profile(doubled)(nki.TensorSpec((512, 64), "float32"))
    assert profile.findings is not None
    timeline = profile.timeline
    parts = [weakref.ref(part) for part in (timeline, timeline.plans[0], timeline.cores[0])]
    gc.disable()
    try:
        del profile, timeline
        assert [part() for part in parts] == [None, None, None]
    finally:
        gc.enable()


def test_the_collector_is_as_it_was_after_a_profile():
    assert gc.isenabled()
    nki.profile(doubled)(nki.TensorSpec((128, 64), "float32"))
    assert gc.isenabled()
