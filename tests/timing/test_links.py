"""Links between ranks: what collectives cost, what hides them, and how ranks wait for each other."""

from __future__ import annotations

import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import TRN1, TRN2
from nki.timing.dma_transfer import RANKS
from nki.timing.links import launch_ms
from support import target

MIB = 1 << 20


@pytest.fixture(autouse=True)
def trn2():
    with target("trn2"):
        yield


@nki.jit
def gathers(x, group, cores_compute=False):
    src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
    shape = (x.shape[0] * len(group[0]), x.shape[1])
    dst = nl.ndarray(shape, x.dtype, buffer=nl.shared_hbm, name="dst")
    nisa.dma_copy(src, x)
    ncc.all_gather([src], [dst], group, 0, name="gather")
    if cores_compute:
        a = nl.zeros((128, 512), nl.bfloat16)
        for _ in range(200):
            sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(sums, a[:, :128], a)
    return dst


def everyone(ranks):
    return (tuple(range(ranks)),)


def spec(nbytes):
    return nki.TensorSpec((1024, nbytes // 4096), "float32")


def world(kernel, ranks, *args, **settings):
    return nki.profile(kernel, ranks=ranks, **settings)(*args)


def wire(ranks, nbytes, cores=1, groups=None):
    program = None

    def keep(x):
        return gathers(x, groups or everyone(ranks))

    from nki.launch.world import Described, using

    with using(Described(0, ranks)):
        program = nki.Kernel(keep).trace(spec(nbytes))
    (found,) = [i for i in program.walk() if i.public == "all_gather"]
    return found.wire(TRN2, cores)


def test_the_link_carries_what_the_others_send():
    for ranks in (2, 4, 8):
        assert wire(ranks, MIB).busy_ns == pytest.approx((ranks - 1) * MIB / TRN2.collective_link_gbs)


def test_small_exchanges_take_one_hop_and_larger_ones_a_logarithm():
    start, hop = TRN2.collective_start_ns, TRN2.collective_chip_hop_ns
    assert wire(8, 64 << 10).latency_ns == start + hop  # 512 KiB in all: a mesh
    assert wire(8, MIB).latency_ns == start + 3 * hop  # recursive halving
    assert wire(8, 16 * MIB).latency_ns == start + 4 * hop  # KangaRing


def test_chips_and_nodes_are_farther():
    pair, start = 64 << 10, TRN2.collective_start_ns
    assert wire(2, pair).latency_ns == start + TRN2.collective_chip_hop_ns
    assert wire(16, pair, groups=((0, 15),)).latency_ns == start + TRN2.collective_hop_ns
    far = wire(256, pair, groups=((0, 200),))
    assert far.latency_ns == start + TRN2.internode_hop_ns
    assert far.busy_ns == pytest.approx(pair / 3.125)
    assert wire(256, pair, cores=2, groups=((0, 200),)).busy_ns == pytest.approx(pair / 6.25)


def test_one_rank_is_a_copy():
    assert wire(1, MIB) is None


def test_communication_without_compute_is_reported_as_exposed():
    alone = world(gathers, 4, spec(4 * MIB), everyone(4))
    spent = alone.communication[0]
    assert spent.hidden_percent < 5 and spent.total / 1e3 > 120
    finding = next(f for f in alone.findings if f.kind == "exposed-communication")
    assert "is exposed" in finding.title and "test_links.py" in finding.lines[0]
    busy = world(gathers, 4, spec(4 * MIB), everyone(4), True)
    assert busy.communication[0].hidden_percent > 20
    assert busy.total_us < alone.total_us * 1.05


def test_ranks_that_begin_together_share_a_profile():
    found = world(gathers, 8, spec(MIB), everyone(8))
    assert len(found.ranks) == 8 and len({id(p) for p in found.ranks}) == 1
    assert "0 to 7" in str(found) and "collective_link_gbs" in str(found)


@pytest.mark.parametrize("kernel", [gathers, gathers[2]])
def test_an_early_rank_waits_for_a_late_one(kernel):
    starts = [0.0, 50.0, 0.0, 20.0]
    found = world(kernel, 4, spec(MIB), everyone(4), starts_us=starts)
    together = world(kernel, 4, spec(MIB), everyone(4))
    waits = [c.waiting / 1e3 for c in found.communication]
    assert [round(w / 10) for w in waits] == [5, 0, 5, 3]
    assert found.total_us == pytest.approx(together.total_us + 50, rel=0.02)
    begun = {
        core.start[i]
        for p in found.ranks
        for core in p.timeline.cores
        for i, t in core.transfers.items()
        if t.mode == RANKS
    }
    assert max(begun) - min(begun) < 1e3  # they are joined where they meet


def test_groups_wait_only_for_their_own():
    found = world(gathers, 4, spec(MIB), ((0, 1), (2, 3)), starts_us=[0.0, 100.0, 0.0, 0.0])
    assert [round(c.waiting / 1e4) for c in found.communication] == [10, 0, 0, 0]
    assert found.ranks[0].total_us > found.ranks[2].total_us + 90


def test_figures_and_page_of_a_world():
    found = world(gathers, 2, spec(MIB), everyone(2), starts_us=[0.0, 5.0])
    figures = found.to_dict()
    assert [row["rank"] for row in figures["ranks"]] == [0, 1] and figures["ranks"][1]["start_us"] == 5
    page = found.html()
    assert "rank 0" in page and "rank 1" in page and page.count("<iframe") == 2
    assert world(gathers, 2, spec(MIB), everyone(2)).html().count("<iframe") == 1


def test_starts_are_one_for_each_rank():
    with pytest.raises(nki.NkiError):
        world(gathers, 4, spec(MIB), everyone(4), starts_us=[0.0])


def test_a_bank_goes_to_the_next_of_the_program_as_soon_as_it_is_the_next():
    """Four steps of attention take banks ahead of each other, and none is left waiting."""
    from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd

    x = nki.TensorSpec((1, 1, 1024, 128), "bfloat16")
    world = nki.profile(ring_attention_spmd_fwd, ranks=4)(x, x, x, num_workers=4, tp_q=True, tp_k=True)
    assert 50 < world.total_us < 200


def test_the_host_pays_for_ranks_that_exchange_data_once_per_execution():
    assert launch_ms(TRN1, 1) == launch_ms(TRN1, 2) == TRN1.launch_ms
    assert [round(launch_ms(TRN1, ranks), 2) for ranks in (8, 16, 32)] == [2.43, 3.76, 5.08]
    assert "the host's launch takes about 1 ms" in str(world(gathers, 4, spec(MIB), everyone(4)))
