import logging

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.check import lint
from nkilib.core.utils.allocator import (
    BufferManager,
    Logger,
    SbufManager,
    create_auto_alloc_manager,
    sizeinbytes,
)
from support import target

TOTAL = 131072


def inside(body):
    """Run a body in a kernel: tiles exist only there."""

    @nki.jit
    def kernel(x):
        body()
        return x

    with target("trn2"):
        kernel(np.zeros((1, 1), np.float32))


@pytest.mark.tiny
def test_the_two_names_are_one_class():
    assert SbufManager is BufferManager


def test_the_stack_grows_up_and_the_heap_down():
    def body():
        sbm = SbufManager(0, TOTAL)
        sbm.alloc_heap((128, 256), nl.bfloat16)
        assert sbm.get_heap_curr_addr() == TOTAL - 512
        sbm.alloc_stack((128, 512), nl.bfloat16)
        assert sbm.get_stack_curr_addr() == 1024
        assert sbm.get_used_space() == 1536 and sbm.get_free_space() == TOTAL - 1536
        sbm.pop_heap()
        assert sbm.get_heap_curr_addr() == TOTAL == sbm.get_total_space()

    inside(body)


def test_a_closed_scope_gives_its_bytes_back():
    def body():
        sbm = SbufManager(0, TOTAL)
        starts = []
        for scope in range(2):
            sbm.alloc_stack((128, 512), nl.bfloat16) if scope == 0 else None
            sbm.open_scope()
            for _ in range(2):
                starts.append(sbm.get_stack_curr_addr())
                sbm.alloc_stack((128, 256), nl.bfloat16)
            sbm.close_scope()
        assert starts == [1024, 1536, 1024, 1536]

    inside(body)


def test_sections_of_a_scope_alternate():
    def body():
        sbm = SbufManager(0, TOTAL)
        sbm.open_scope(interleave_degree=2)
        starts = []
        for _ in range(4):
            starts.append(sbm.get_stack_curr_addr())
            sbm.alloc_stack((128, 512), nl.bfloat16)
            sbm.increment_section()
        assert starts == [0, 1024, 0, 1024]
        sbm.close_scope()
        assert sbm.get_stack_curr_addr() == 0

    inside(body)


def test_sections_must_have_equal_sizes():
    def body():
        sbm = SbufManager(0, TOTAL)
        sbm.open_scope(interleave_degree=2, name="loop")
        sbm.alloc_stack((128, 512), nl.bfloat16)
        sbm.increment_section()
        sbm.alloc_stack((128, 256), nl.bfloat16)
        sbm.increment_section()

    with pytest.raises(AssertionError, match="section 1 of scope loop has 512 bytes, expected 1024"):
        inside(body)


def test_the_heap_does_not_reach_into_sections_that_were_left():
    def body():
        sbm = SbufManager(0, 4096)
        sbm.open_scope(interleave_degree=2)
        for _ in range(2):
            sbm.alloc_stack((128, 512), nl.bfloat16)
            sbm.increment_section()
        sbm.alloc_heap((128, 1024), nl.bfloat16)
        sbm.alloc_heap((128, 1), nl.bfloat16)

    with pytest.raises(AssertionError, match="SBUF is full: tile None needs 2 bytes per partition"):
        inside(body)


def test_tiles_are_aligned_and_placed_where_they_are_asked():
    def body():
        sbm = SbufManager(1, TOTAL)
        tile = sbm.alloc_stack((32, 3), nl.float32, base_partition=32)
        assert sbm.get_stack_curr_addr() == 4 + 12 and tile.shape == (32, 3)
        sbm.alloc((128, 1), nl.uint8, align=64)
        assert sbm.get_stack_curr_addr() == 65
        sbm.align_stack_curr_addr()
        assert sbm.get_stack_curr_addr() == 96
        sbm.alloc_heap((128, 1), nl.uint8, align=64)
        assert sbm.get_heap_curr_addr() == TOTAL - 64

    inside(body)


def test_overlapping_tiles_share_bytes():
    def body():
        sbm = SbufManager(0, TOTAL, default_stack_alloc=False)
        first = sbm.alloc((128, 4), nl.float32)
        nisa.memset(first, 7.0)
        sbm.pop_heap()
        assert (np.asarray(sbm.alloc((128, 4), nl.float32)) == 7.0).all()

    inside(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda s: s.alloc((128, TOTAL), nl.uint16), f"SBUF is full: .* needs {2 * TOTAL} bytes"),
        (lambda s: s.alloc((128, 4), nl.uint8, buffer=nl.psum), "buffer: got .*, only nl.sbuf is managed"),
        (lambda s: s.pop_heap(), "pop_heap: the heap is empty"),
        (lambda s: s.close_scope(), "close_scope: no scope is open"),
        (lambda s: s.increment_section(), "increment_section: no scope is open"),
        (lambda s: s.open_scope(0), "interleave_degree: got 0, expected at least 1"),
        (lambda s: [s.alloc((1, 1), nl.uint8, name="a") for _ in "ab"], "name: a is already in use"),
        (lambda s: sizeinbytes("float64"), "sizeinbytes: got float64"),
        (lambda s: SbufManager(8, 4), "bounds: got 8 to 4"),
    ],
)
def test_an_impossible_request_raises(body, text):
    with pytest.raises(AssertionError, match=f"Kernel validation exception: {text}"):
        inside(lambda: body(SbufManager(0, TOTAL)))


def test_names_have_the_prefix_in_force():
    def body():
        sbm = SbufManager(0, TOTAL)
        sbm.set_name_prefix("mlp_")
        assert sbm.alloc((1, 1), nl.uint8, name="gate").name == sbm.get_name_prefix() + "gate"

    inside(body)


def test_in_auto_mode_there_are_no_addresses():
    def body():
        sbm = create_auto_alloc_manager()
        assert sbm.is_auto_alloc() and not SbufManager(0, 1).is_auto_alloc()
        sbm.open_scope(2)
        for allocate in (sbm.alloc, sbm.alloc_heap, sbm.alloc_stack):
            assert allocate((128, 4), nl.float32).shape == (128, 4)
            sbm.increment_section()
        sbm.pop_heap()
        sbm.close_scope()
        sbm.get_stack_curr_addr()

    with pytest.raises(AssertionError, match="get_stack_curr_addr: there are no addresses"):
        inside(body)


def test_the_tree_of_allocations_can_be_logged(caplog):
    def body():
        sbm = SbufManager(0, TOTAL, Logger("here"))
        sbm.open_scope(name="outer")
        sbm.alloc((128, 4), nl.float32, name="x")
        sbm.flush_logs()

    with caplog.at_level(logging.INFO, "here"):
        inside(body)
    assert [r.message for r in caplog.records] == [
        "scope outer from 0, 1 sections",
        "  stack 0: x (128, 4) float32",
    ]


def test_sizes_of_elements():
    dtypes = (nl.float8_e5m2, nl.bfloat16, nl.float32, nl.float4_e2m1fn_x4, nl.float8_e4m3fn_x4)
    assert [sizeinbytes(dtype) for dtype in dtypes] == [1, 2, 4, 2, 4]


@nki.jit
def copied_by_a_manager(x):
    sbm = SbufManager(0, 65536)
    sbm.open_scope(interleave_degree=2)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = sbm.alloc_stack((128, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[row : row + 128])
        nisa.dma_copy(out[row : row + 128], tile)
        sbm.increment_section()
    sbm.close_scope()
    return out


def test_a_kernel_with_a_manager_runs_and_compiles():
    x = np.arange(512 * 3, dtype=np.float32).reshape(512, 3)
    np.testing.assert_array_equal(copied_by_a_manager(x), x)
    assert [str(f) for f in lint(copied_by_a_manager)] == []
