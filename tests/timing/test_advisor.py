"""The advisor names what holds a kernel back, the lines, and what a change would gain."""

import importlib.util
import inspect
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.timing.advisor import Advice, advise
from nki.timing.measures import path_shares
from nki.timing.replay import Replay
from nki.timing.schedule import schedule
from support import target

KINDS = {
    "reloaded-data",
    "spill",
    "small-dma",
    "dma-issue",
    "shared-tensor",
    "psum-serial",
    "unused-partitions",
    "table-reload",
    "two-passes",
    "short-instructions",
    "other-engine",
    "psum-eviction",
    "dma-transpose",
    "fp32-matmul",
    "engine-idle",
    "memory-bound",
    "compute-bound",
    "critical-path",
    "repeated-work",
}


def timeline_of(kernel, *args, on="trn2", cores=1):
    with target(on):
        return nki.profile(nki.jit(kernel)[cores] if cores > 1 else kernel)(*args).timeline


def findings(kernel, *args, on="trn2", cores=1):
    """What is said about a kernel, by kind, in order."""
    timeline = timeline_of(kernel, *args, on=on, cores=cores)
    found = advise(timeline)
    assert_order(timeline, found)
    assert {f.kind for f in found} <= KINDS
    return {f.kind: f for f in found}


def assert_order(timeline, found):
    """Causes are sorted by gain; those that relieve what has most of the critical path come first."""
    decisive = [engine for engine, share in path_shares(timeline).items() if share > 0.5]
    causes = [f for f in found if f.kind not in ("engine-idle", "critical-path")]
    worth = 0.01 * timeline.total_us
    order = {id(f): ([f.resource] != decisive or f.gain_us < worth, -f.gain_us) for f in causes}
    assert [order[id(f)] for f in causes] == sorted(order[id(f)] for f in causes)


def spec(*shape, dtype="float32"):
    return nki.TensorSpec(shape, dtype)


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def zeros(shape, dtype=nl.float32, buffer=nl.sbuf):
    new = tile(shape, dtype, buffer)
    nisa.memset(new, 0.0)
    return new


def line(function, text):
    """`test_advisor.py:123`: where a function says this."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = (i for i, source in enumerate(lines) if text in source)
    return f"test_advisor.py:{first + offset}"


# ---- the optimisation guide ----------------------------------------------------------------------

MATMUL = Path(__file__).parents[2] / "examples" / "matmul" / "kernels.py"


@cache
def matmul_kernels():
    spec = importlib.util.spec_from_file_location("matmul_kernels", MATMUL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def matmul_line(text):
    numbers = [i for i, source in enumerate(MATMUL.read_text().splitlines(), 1) if text in source]
    return [f"kernels.py:{number}" for number in numbers]


@cache
def guide(step, m=1024, k=2048, n=2048):
    """What is said about one step of the guide."""
    return findings(getattr(matmul_kernels(), step), spec(k, m), spec(k, n))


LOAD = "nisa.dma_copy(tile, matrix["
STORE = "nisa.dma_copy(result["


@pytest.mark.tiny
def test_tiled_loads_the_same_tiles_again_and_tensor_engine_waits():
    found = guide("tiled")
    assert list(found) == ["reloaded-data", "small-dma", "dma-issue", "engine-idle"]
    again = found["reloaded-data"]
    assert again.title == "rhs is loaded 8 times and lhsT 4 times: TensorE waits for DMA"
    assert "hoist the load out of the loop" in again.detail
    assert list(again.lines) == matmul_line(LOAD)


def test_what_the_compiler_does_anyway_is_not_advised():
    with target("trn2"):
        program = matmul_kernels().tiled.trace(spec(2048, 1024), spec(2048, 2048))
    kinds = [
        {finding.kind for finding in advise(schedule(replace(program, transformed=transformed)))}
        for transformed in (False, True)
    ]
    assert "reloaded-data" in kinds[0]
    assert not {"reloaded-data", "repeated-work", "psum-serial"} & kinds[1]
    with target("trn2"), nki.options(without=("loads",)):  # a compiler that does not
        assert "reloaded-data" in {f.kind for f in advise(schedule(replace(program, transformed=True)))}


def test_hoisting_gains_what_the_advisor_predicts():
    kernels, shapes = matmul_kernels(), (spec(2048, 1024), spec(2048, 2048))
    before, after = (timeline_of(kernel, *shapes).total_us for kernel in (kernels.tiled, kernels.hoisted))
    assert guide("tiled")["reloaded-data"].gain_us == pytest.approx(before - after, rel=0.05)


def test_hoisted_is_still_dominated_by_dma():
    found = guide("hoisted")
    assert list(found)[:2] == ["reloaded-data", "small-dma"] and "fp32-matmul" in found  # DMA decides
    assert "memory-bound" in found and "compute-bound" not in found
    assert found["reloaded-data"].title.startswith("rhs is loaded 8 times: DMA is busy 96.4 %")
    assert "where its matmuls are in bfloat16" in found["reloaded-data"].detail


def test_hoisted_is_advised_to_use_blocks_when_a_matrix_exceeds_sbuf():
    again = guide("hoisted", m=512, k=4096, n=4096)["reloaded-data"]
    assert "64 MiB of it come between two loads of the same tile, and SBUF holds 26 MiB" in again.detail
    assert "work in blocks" in again.detail


def test_blocked_in_two_dimensions_overflows_sbuf():
    found = guide("blocked_mn", m=512, k=8192)
    assert found["spill"].title.startswith("SBUF overflows: ")
    assert found["spill"].title.endswith("are loaded again")  # HBM still has them: nothing is written
    assert "operands of matmuls" in found["spill"].detail
    assert "blocks along the contraction dimension" in found["spill"].detail
    (operand,), (result,) = (
        matmul_line("tile = nl.ndarray((rows,"),
        matmul_line("tile = nl.ndarray(psum.shape"),
    )
    assert found["spill"].lines == (operand, result)


def test_blocked_in_three_dimensions_is_bound_by_tensor_engine_and_bf16_would_be_four_times_as_fast():
    found = guide("blocked_mnk", m=2048, k=4096, n=4096)
    assert list(found) == ["fp32-matmul", "compute-bound"]
    assert found["compute-bound"].title == "Compute-bound: TensorE is busy 99.7 % of the time"
    faster = timeline_of(
        matmul_kernels().blocked_mnk, spec(4096, 2048, dtype="bfloat16"), spec(4096, 4096, dtype="bfloat16")
    )
    slower = timeline_of(matmul_kernels().blocked_mnk, spec(4096, 2048), spec(4096, 4096))
    gain = slower.total_us - faster.total_us
    assert slower.total_us / faster.total_us == pytest.approx(4, rel=0.1)
    assert found["fp32-matmul"].gain_us == pytest.approx(gain, rel=0.05)
    assert list(found["fp32-matmul"].lines) == matmul_line("nisa.nc_matmul(psum, stationary[k][:")
    assert found["compute-bound"].lines == found["fp32-matmul"].lines


def test_the_text_of_a_finding_in_full():
    again = guide("tiled")["reloaded-data"]
    assert again.detail == (
        "Loaded once, the kernel would take 462.5 us instead of 648.9 us. "
        "Of rhs 128 MiB travel instead of 16 MiB: 16 MiB of it come between two loads of the same tile, "
        "which fits into SBUF, so hoist the load out of the loop that repeats it. "
        "Of lhsT 32 MiB travel instead of 8 MiB: 1 MiB of it come between two loads of the same tile, "
        "which fits into SBUF, so hoist the load out of the loop that repeats it."
    )


def test_the_text_of_another_finding_in_full():
    started = guide("tiled")["dma-issue"]
    transfers = 2 * (16 * 8 * 4) + 8 * 4  # both operands of every matmul, every result
    assert started.title == f"Starting {transfers:,} transfers takes {transfers * 0.6:.1f} us"
    assert started.detail == (
        "Software DGE needs 0.6 us for each, however little it moves. Started at once, the kernel would take "
        "546.7 us instead of 648.9 us. Move more with each dma_copy, or start some with dge_mode.hwdge, "
        "which has a queue of its own."
    )
    assert list(started.lines) == matmul_line(LOAD) + matmul_line(STORE)


# ---- data movement -------------------------------------------------------------------------------


def test_data_that_was_written_in_between_is_not_loaded_again():
    def scratch(x):
        kept = nl.ndarray((128, 2048), nl.float32, buffer=nl.hbm)
        for _ in range(8):
            t = tile((128, 2048))
            nisa.dma_copy(t, kept if _ else x)
            nisa.tensor_scalar(t, t, nl.multiply, 2.0)
            nisa.dma_copy(kept, t)

    assert "reloaded-data" not in findings(scratch, spec(128, 2048))


def test_a_copy_and_a_transpose_of_the_same_bytes_are_two_things():
    def both(x):
        for _ in range(4):
            straight, turned = tile((128, 128), x.dtype), tile((128, 128), x.dtype)
            nisa.dma_copy(straight, x[:128, :128])
            nisa.dma_transpose(turned, x[:128, :128])
            nisa.tensor_tensor(straight, straight, turned, op=nl.add)

    found = findings(both, spec(128, 128, dtype="bfloat16"))["reloaded-data"]
    assert found.title.startswith("x is loaded 4 times")
    assert set(found.lines) == {line(both, "nisa.dma_copy"), line(both, "nisa.dma_transpose")}


def test_small_transfers_are_reported_with_size_and_engines():
    def narrow(x):
        for i in range(64):
            nisa.dma_copy(tile((32, 64)), x[32 * i : 32 * i + 32, :])

    found = findings(narrow, spec(2048, 64))
    assert found["small-dma"].title == "64 transfers are too small for DMA"
    assert "All 64 move pieces of 256 B on 4 of 16 DMA engines." in found["small-dma"].detail
    assert found["small-dma"].lines == (line(narrow, "nisa.dma_copy"),)
    # 64 x 8 KiB are two transfers of 2 KiB in each of 128 partitions: 62 triggers of 0.6 us are saved
    assert found["small-dma"].gain_us == pytest.approx(62 * 0.6, rel=0.05)


def test_large_transfers_are_not_small():
    def wide(x):
        for i in range(16):
            t = tile((128, 512))
            nisa.dma_copy(t, x[128 * i : 128 * i + 128, :])
            nisa.tensor_scalar(t, t, nl.multiply, 2.0)

    assert "small-dma" not in findings(wide, spec(2048, 512))


def test_transfers_that_wait_to_be_started_gain_their_time():
    def many(x):
        for i in range(200):
            t = tile((128, 4))
            nisa.dma_copy(t, x[:, 4 * i : 4 * i + 4])

    found = findings(many, spec(128, 800))["dma-issue"]
    assert found.title == "Starting 200 transfers takes 120.0 us"
    # on each DMA engine 8 rows of 16 bytes take 80 ns: 120 us shrink to 16
    assert found.gain_us == pytest.approx(199 * (0.6 - 0.08), rel=0.05)


def test_a_copy_of_a_large_tensor_is_memory_bound():
    def copy(x):
        result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in range(64):
            t = tile((128, 4096))
            nisa.dma_copy(t, x[128 * i : 128 * i + 128, :])
            nisa.dma_copy(result[128 * i : 128 * i + 128, :], t)
        return result

    found = findings(copy, spec(64 * 128, 4096))
    assert list(found) == ["memory-bound"]
    assert "each once" in found["memory-bound"].detail
    places = {line(copy, "nisa.dma_copy(t"), line(copy, "nisa.dma_copy(result")}
    assert set(found["memory-bound"].lines) == places


# ---- SBUF and PSUM -------------------------------------------------------------------------------


def keeping(x):
    """Sixty tiles of 4 KiB per partition are kept: 30 MiB."""
    tiles = []
    for i in range(60):
        t = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
        nisa.memset(t, float(i))
        tiles.append(t)
    total = zeros((128, 1024))
    for t in tiles:
        nisa.tensor_tensor(total, total, t, op=nl.add)


def test_spills_are_reported_with_bytes_peak_and_lines():
    timeline = timeline_of(keeping, spec(128, 128))
    found = findings(keeping, spec(128, 128))["spill"]
    spilled = f"{timeline.spill_bytes / 2**20:.4g} MiB"
    assert found.title == f"SBUF overflows: {spilled} are spilled to HBM and back"
    assert "Up to 30.5 MiB are live at once, in 61 tiles" in found.detail
    assert "SBUF holds 26 MiB" in found.detail
    assert "Use smaller tiles" in found.detail
    assert found.lines == (line(keeping, "nl.ndarray"), line(tile, "nl.ndarray"))
    assert found.gain_us > 0


def one_bank(x):
    """Every product is read before the next may begin."""
    a, b = zeros((128, 128), nl.bfloat16), zeros((128, 512), nl.bfloat16)
    product, copy = tile((128, 512), buffer=nl.psum), tile((128, 512))
    for _ in range(16):
        nisa.nc_matmul(product, a, b, accumulate=False)
        nisa.tensor_copy(copy, product, engine=nisa.engine.vector)  # reads


def bank_by_bank(x):
    a, b = zeros((128, 128), nl.bfloat16), zeros((128, 512), nl.bfloat16)
    copy = tile((128, 512))
    for _ in range(16):
        product = tile((128, 512), buffer=nl.psum)
        nisa.nc_matmul(product, a, b, accumulate=False)
        nisa.tensor_copy(copy, product, engine=nisa.engine.vector)


def test_one_psum_tile_for_all_products_serialises_them():
    found = findings(one_bank, spec(128, 128))["psum-serial"]
    assert found.title == "TensorE waits until VectorE has read PSUM"
    assert "allocate it inside the loop" in found.detail
    assert found.lines == (line(one_bank, "# reads"),)
    gain = timeline_of(one_bank, spec(1, 1)).total_us - timeline_of(bank_by_bank, spec(1, 1)).total_us
    assert found.gain_us == pytest.approx(gain, rel=0.1)


def test_products_in_their_own_banks_do_not_wait_for_psum():
    assert "psum-serial" not in findings(bank_by_bank, spec(128, 128))


# ---- engines -------------------------------------------------------------------------------------


def test_the_busiest_engine_waits_for_loads_that_could_have_been_earlier():
    def one_buffer(x):
        t, total = tile((128, 2048)), zeros((128, 2048))
        for i in range(16):
            nisa.dma_copy(t, x[128 * i : 128 * i + 128, :])  # load
            nisa.tensor_tensor(total, total, t, op=nl.add)

    found = findings(one_buffer, spec(2048, 2048))["engine-idle"]
    assert re.fullmatch(r"VectorE is idle \d\d\.\d % of the time: it waits for DMA", found.title)
    assert "with a new tile in each iteration" in found.detail
    assert found.lines == (line(one_buffer, "# load"),)
    assert found.gain_us > 0


def test_engines_that_alternate_are_advised_to_overlap():
    def in_turns(x):
        t = zeros((128, 2048))
        for _ in range(8):
            nisa.activation(t, nl.exp, t)
            nisa.tensor_tensor(t, t, t, op=nl.add)  # adds

    found = findings(in_turns, spec(1, 1))["engine-idle"]
    assert found.title.endswith("it waits for ScalarE") or found.title.endswith("it waits for VectorE")
    assert "another tile meanwhile" in found.detail
    assert 0 < found.gain_us < timeline_of(in_turns, spec(1, 1)).total_us


def test_tables_loaded_again_cost_their_loads():
    def changing(x):
        t = zeros((128, 64))
        for _ in range(10):
            nisa.activation(t, nl.exp, t)  # first
            nisa.activation(t, nl.tanh, t)

    found = findings(changing, spec(1, 1))["table-reload"]
    assert found.title == "ScalarE loads 18 tables that it had before"
    assert "exp and tanh take turns" in found.detail
    assert found.gain_us == pytest.approx(18 * 1.283)
    assert set(found.lines) == {line(changing, "# first"), line(changing, "nl.tanh")}


def test_float32_matmuls_on_resident_tiles_gain_three_quarters():
    def products(x):
        a, b = zeros((128, 128)), zeros((128, 512))
        banks = [tile((128, 512), buffer=nl.psum) for _ in range(8)]
        for i in range(400):
            nisa.nc_matmul(banks[i % 8], a, b, accumulate=False)

    found = findings(products, spec(1, 1))
    assert list(found) == ["fp32-matmul", "compute-bound"]
    assert found["fp32-matmul"].title == "400 matmuls in float32: bfloat16 takes a quarter of the time"
    assert found["fp32-matmul"].gain_us == pytest.approx(400 * (2068 - 522) / 2.4e3, rel=0.01)


def test_bf16_matmuls_are_compute_bound_and_nothing_is_left():
    def products(x):
        a, b = zeros((128, 128), nl.bfloat16), zeros((128, 512), nl.bfloat16)
        banks = [tile((128, 512), buffer=nl.psum) for _ in range(8)]
        for i in range(2000):
            nisa.nc_matmul(banks[i % 8], a, b, accumulate=False)

    found = findings(products, spec(1, 1))
    assert list(found) == ["compute-bound"]
    assert "Nothing keeps it waiting" in found["compute-bound"].detail
    assert "95." in found["compute-bound"].detail  # 512 of 522 cycles, less what the kernel's start takes


def test_vector_work_on_a_few_partitions_leaves_lanes_unused():
    def rows(x):
        for _ in range(64):
            t = zeros((32, 1024))
            nisa.tensor_scalar(t, t, nl.multiply, 2.0)

    found = findings(rows, spec(1, 1))["unused-partitions"]
    assert found.title == "128 instructions use a part of VectorE"
    assert "works on 32 of 128 partitions" in found.detail
    timeline = timeline_of(rows, spec(1, 1))
    held = timeline.cores[0]
    busy = sum(held.free[op.index] - held.start[op.index] for op in held.operations if op.kind == "vector")
    assert found.gain_us == pytest.approx(0.75 * busy / 1e3, rel=0.05)


def test_matmuls_with_short_contractions_leave_rows_of_the_array_unused():
    def short(x):
        a, b = zeros((32, 128), nl.bfloat16), zeros((32, 512), nl.bfloat16)
        banks = [tile((128, 512), buffer=nl.psum) for _ in range(8)]
        for i in range(200):
            nisa.nc_matmul(banks[i % 8], a, b, accumulate=False)  # short

    found = findings(short, spec(1, 1))["unused-partitions"]
    assert found.title == "200 instructions use a part of TensorE"
    assert (
        f"{line(short, '# short')} works on 32 of 128 rows and 128 of 128 columns of the PE array"
        in found.detail
    )
    assert "tile_position" in found.detail


# ---- the whole -----------------------------------------------------------------------------------


def test_a_kernel_that_does_nothing_gets_no_advice():
    assert advise(timeline_of(lambda x: None, spec(1, 1))) == []


def test_two_cores_are_advised_together():
    def halves(x):
        first = nl.program_id(0) * 1024
        total = zeros((128, 2048))
        for i in range(16):
            t = tile((128, 2048))
            nisa.dma_copy(t, x[first + 64 * (i % 2) : first + 64 * (i % 2) + 128, :])
            nisa.tensor_tensor(total, total, t, op=nl.add)

    found = findings(halves, spec(2048, 2048), cores=2)
    assert found["reloaded-data"].title.startswith("x is loaded 8 times")
    assert found["reloaded-data"].gain_us < timeline_of(halves, spec(2048, 2048), cores=2).total_us


@pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])
def test_every_generation_is_advised(on):
    found = findings(matmul_kernels().tiled, spec(512, 256), spec(512, 1024), on=on)
    assert "reloaded-data" in found


def test_the_same_timeline_gets_the_same_advice():
    timeline = timeline_of(matmul_kernels().blocked_mn, spec(8192, 256), spec(8192, 1024))
    assert advise(timeline) == advise(timeline)
    again = timeline_of(matmul_kernels().blocked_mn, spec(8192, 256), spec(8192, 1024))
    assert advise(again) == advise(timeline)


def test_a_profile_has_its_findings():
    profile = nki.profile(matmul_kernels().tiled)(spec(512, 256), spec(512, 1024))
    assert all(isinstance(finding, Advice) for finding in profile.findings)
    assert profile.findings[0].title in profile.summary().replace("\n", " ")


def test_longer_kernels_are_not_replayed_more_often(monkeypatch):
    """A replay is one pass over the instructions; `make bench` has the time they take together."""
    passes, replay = [], Replay.run
    monkeypatch.setattr(Replay, "run", lambda *arguments: passes.append(1) or replay(*arguments))
    found = []
    for k in (512, 2048):
        timeline = timeline_of(matmul_kernels().tiled, spec(k, 256), spec(k, 1024))
        passes.clear()
        advise(timeline)
        found.append(len(passes))
    assert max(found) <= 12


def test_the_document_shows_what_its_snippets_print(capsys):
    document = Path(__file__).parents[2] / "docs" / "profiling.md"
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    program = "\n".join(text for kind, text in blocks if kind == "python")
    with target("trn2"):
        exec(compile(program, str(document), "exec", dont_inherit=True), {"__name__": "snippet"})
    printed = capsys.readouterr().out.split()
    assert printed == [word for kind, text in blocks if kind == "text" for word in text.split()]


STEPS = st.lists(
    st.tuples(st.sampled_from("lvsmgtw"), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from(["trn1", "trn2", "trn3"]))
def test_every_program_gets_advice_that_holds_together(steps, on):
    def program(x):
        tiles = [zeros((128, 512)) for _ in range(6)]
        sums = [zeros((128, 512), buffer=nl.psum) for _ in range(2)]
        result = nl.ndarray((6 * 128, 512), nl.float32, buffer=nl.shared_hbm)
        for what, i, j in steps:
            a, b = tiles[i], tiles[j]
            if what == "l":
                nisa.dma_copy(a[: 16 * (j + 1), :], x[: 16 * (j + 1), :])
            elif what == "v":
                nisa.tensor_tensor(a, a, b, op=nl.add)
            elif what == "s":
                nisa.activation(a, (nl.exp, nl.tanh)[j % 2], b)
            elif what == "m":
                nisa.nc_matmul(sums[i % 2], a[:, :128], b, accumulate=False)
            elif what == "g":
                nisa.tensor_tensor(a, a, b, op=nl.add, engine=nisa.engine.gpsimd)
            elif what == "t":
                nisa.tensor_copy(a, sums[j % 2])
            else:
                nisa.dma_copy(result[128 * j : 128 * j + 128, :], a)

    timeline = timeline_of(program, spec(128, 512), on=on)
    found = advise(timeline)
    source = Path(__file__).read_text().splitlines()
    assert_order(timeline, found)
    for finding in found:
        assert finding.kind in KINDS and finding.title and finding.detail.endswith(".")
        assert 0 <= finding.gain_us < timeline.total_us
        for place in finding.lines:
            file, number = place.split(":")
            assert file == "test_advisor.py" and "nisa." in source[int(number) - 1]


# ---- what it once got wrong ----------------------------------------------------------------------


def load_exp_store(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(nl.program_id(0), x.shape[0] // 128, nl.num_programs()):
        t = tile((128, x.shape[1]))
        nisa.dma_copy(t, x[128 * i : 128 * i + 128])
        nisa.activation(t, nl.exp, t)
        nisa.dma_copy(out[128 * i : 128 * i + 128], t)
    return out


def test_a_kernel_that_only_moves_data_is_memory_bound_on_two_cores_and_its_engine_is_not_to_blame():
    profile = nki.profile(load_exp_store, target="trn2", lnc=2)(spec(1024, 2048))
    assert [finding.kind for finding in profile.findings] == ["memory-bound"]
    assert profile.to_dict()["roofline"]["bound"] == "HBM"


def test_findings_about_transfers_name_those_that_take_the_time():
    def kernel(x):
        for _ in range(40):
            few = tile((1, 16))
            nisa.dma_copy(few, x[:1, :16])  # often
        for _ in range(8):
            column = tile((128, 1024))
            nisa.dma_copy(column, x.reshape((1024, 128)).permute((1, 0)))  # element by element

    found = findings(kernel, spec(128, 1024))["small-dma"]
    assert found.lines[0] == line(kernel, "# element by element")
