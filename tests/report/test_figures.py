"""The figures of a profile: every key, every definition of spec/machine.md 12."""

import json

import pytest
from samples import (
    K,
    M,
    N,
    halves,
    idle,
    matmul,
    profiled,
    reshaping,
    spec,
    spilling,
    transposing,
)

import nki
import nki.isa as nisa
import nki.language as nl
from nki.machine.generations import MACHINES
from nki.timing.advisor import Advice
from nki.timing.measures import adjusted_flops, critical_path

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")
STEPS = ("single_tile", "tiled", "hoisted", "blocked_mn", "blocked_mnk")
PEAK = 2 * 128 * 128 * 2.4e9  # FLOP/s of a trn2 core


@pytest.mark.tiny
def test_the_object_has_every_key_of_the_command_line_and_survives_json():
    figures = matmul().to_dict()
    for key in ("total_us", "mfu_percent", "mbu_percent", "hbm_read_bytes", "hbm_write_bytes"):
        assert figures[key] > 0
    for key in ("sbuf_peak_bytes", "psum_peak_bytes", "spill_bytes", "findings", "hfu_percent"):
        assert key in figures
    for key in ("mfu_max_achievable_percent", "bounds", "lines", "assumptions", "diagnostics"):
        assert key in figures
    assert figures["dma"]["packet_us"] > 0
    for engine in ENGINES:
        assert set(figures["engines"][engine]) == {
            "active_percent",
            "active_us",
            "instruction_us",
            "instructions",
        }
    assert (figures["kernel"], figures["target"], figures["cores"]) == ("tiled", "trn2", 1)
    assert json.loads(json.dumps(figures)) == figures


def test_work_and_traffic_are_those_of_the_loops():
    figures = matmul().to_dict()
    loads_of_lhs, loads_of_rhs = N // 512, M // 128
    assert figures["flops"] == 2 * K * M * N
    assert figures["hbm_read_bytes"] == 4 * (loads_of_lhs * K * M + loads_of_rhs * K * N)
    assert figures["hbm_write_bytes"] == 4 * M * N
    assert figures["dma"]["bytes"] == figures["hbm_read_bytes"] + figures["hbm_write_bytes"]
    tensors = {t["name"]: t for t in figures["tensors"]}
    assert tensors["lhsT"]["read_bytes"] == loads_of_lhs * tensors["lhsT"]["bytes"]
    assert tensors["rhs"]["read_bytes"] == loads_of_rhs * tensors["rhs"]["bytes"]
    products = (K // 128) * (M // 128) * (N // 512)
    assert figures["engines"]["tensor"]["instructions"] == products
    assert figures["engines"]["dma"]["instructions"] == 2 * products + (M // 128) * (N // 512)


def test_utilisations_follow_the_profilers_definitions():
    figures = matmul().to_dict()
    seconds = figures["total_us"] * 1e-6
    moved = figures["hbm_read_bytes"] + figures["hbm_write_bytes"]
    assert figures["mfu_percent"] == pytest.approx(100 * 2 * K * M * N / (PEAK * seconds), rel=1e-4)
    assert figures["mbu_percent"] == pytest.approx(100 * moved / (716e9 * seconds), rel=1e-4)
    achievable = 100 * (2 * K * M * N / moved) / (PEAK / 716e9)
    assert figures["mfu_max_achievable_percent"] == pytest.approx(achievable, rel=1e-4)
    assert figures["roofline"]["bound"] == "DMA"
    for engine in figures["engines"].values():
        percent = 100 * engine["active_us"] / figures["total_us"]
        assert engine["active_percent"] == pytest.approx(percent, abs=1e-3)
        assert engine["instruction_us"] >= engine["active_us"] - 1e-3


def test_more_intensity_than_the_ridge_is_compute_bound_and_capped():
    """A product whose operands stay in SBUF."""
    figures = matmul("blocked_mnk", dtype="bfloat16", shape=(1024, 1024, 1024)).to_dict()
    assert figures["roofline"]["flops_per_byte"] > figures["roofline"]["ridge_flops_per_byte"]
    assert figures["mfu_max_achievable_percent"] == 100
    assert figures["roofline"]["bound"] == "TensorE"


def test_hfu_counts_transposes_and_mfu_does_not():
    figures = profiled(transposing, spec(128, 128)).to_dict()
    assert figures["flops"] == 2 * 128**3
    assert figures["hfu_percent"] == pytest.approx(2 * figures["mfu_percent"], rel=1e-3)
    assert matmul().to_dict()["hfu_percent"] == matmul().to_dict()["mfu_percent"]


@pytest.mark.parametrize("on", list(MACHINES))
@pytest.mark.parametrize("step", STEPS)
def test_every_step_of_a_ladder_bounds_the_one_before(step, on):
    figures = matmul(step, on).to_dict()
    for kind in ("memory", "compute"):
        steps = list(figures["bounds"][kind].values())
        assert steps == sorted(steps, reverse=True) and steps[-1] > 0
    busiest = max(e["active_us"] for e in figures["engines"].values())
    assert figures["bounds"]["pipeline"]["busiest_engine_us"] == pytest.approx(busiest)
    assert busiest <= figures["total_us"]


def test_flops_are_adjusted_to_the_rate_of_their_dtype():
    assert adjusted_flops(matmul().timeline) == 4 * 2 * K * M * N
    assert adjusted_flops(matmul(dtype="bfloat16").timeline) == 2 * K * M * N
    turned = profiled(transposing, spec(128, 128)).timeline
    assert adjusted_flops(turned) == (4 + 2) * 2 * 128**3  # a float32 transpose moves twice
    assert adjusted_flops(turned, transposes=False) == 4 * 2 * 128**3


def test_necessary_bytes_count_each_input_and_result_once():
    bounds = matmul().to_dict()["bounds"]["memory"]
    necessary = 4 * (K * M + K * N + M * N)
    assert bounds["necessary_bytes_us"] == pytest.approx(necessary / 435e9 * 1e6, rel=1e-4)


@pytest.mark.parametrize("step", STEPS)
def test_lines_add_up_to_the_kernel(step):
    figures = matmul(step).to_dict()
    rows = figures["lines"]
    assert sum(row["critical_us"] for row in rows) == pytest.approx(figures["work_us"], abs=0.01)
    assert sum(row["critical_percent"] for row in rows) == pytest.approx(100, abs=0.01)
    assert sum(row["instructions"] for row in rows) == figures["instructions"]
    assert sum(row["flops"] for row in rows) == figures["flops"]
    assert sum(row["dma_bytes"] + row["spill_bytes"] for row in rows) == figures["dma"]["bytes"]
    assert rows == sorted(rows, key=lambda row: -row["critical_us"])


def test_a_line_has_its_place_its_source_and_its_engines():
    rows = {row["source"]: row for row in matmul().to_dict()["lines"]}
    product = rows["nisa.nc_matmul(psum, stationary, moving)"]
    assert product["line"] == f"kernels.py:{product['number']}"
    assert product["file"].endswith("examples/matmul/kernels.py")
    assert set(product["engines"]) == {"tensor"}
    assert product["flops"] == 2 * K * M * N


def test_the_critical_path_is_a_chain_that_ends_with_the_kernel():
    timeline = matmul().timeline
    path = critical_path(timeline)
    core = timeline.cores[0]
    assert core.done[path[-1].operation] == timeline.work_ns
    assert core.blocked_by[path[0].operation] == -1
    for before, after in zip(path, path[1:], strict=False):
        assert core.blocked_by[after.operation] == before.operation
    assert all(step.ns >= 0 for step in path)
    assert sum(step.ns for step in path) == pytest.approx(timeline.work_ns)


def test_spills_are_counted_at_the_line_of_the_tile():
    figures = profiled(spilling, spec(128, 1024)).to_dict()
    assert figures["spill_bytes"] > 0
    assert figures["sbuf_peak_bytes"] > figures["limits"]["sbuf_usable_bytes"]
    spilled = [row for row in figures["lines"] if row["spill_bytes"]]
    assert sum(row["spill_bytes"] for row in spilled) == figures["spill_bytes"]
    assert all("nl.ndarray" in row["source"] for row in spilled)
    assert figures["bounds"]["memory"]["necessary_bytes_us"] < figures["bounds"]["memory"]["all_bytes_us"]


@pytest.mark.parametrize("on", list(MACHINES))
def test_assumptions_are_named_with_reason_value_and_lines(on):
    figures = profiled(transposing, spec(128, 128), on=on).to_dict()
    machine = MACHINES[on]
    named = {a["field"]: a for a in figures["assumptions"]}
    assert set(named) <= machine.assumed
    assert {"dma_default_mode", *({"semaphore_ns"} & machine.assumed)} <= set(named)
    for field, told in named.items():
        assert told["reason"] == machine.assumptions[field]
        value = getattr(machine, field)
        assert told["value"] == (list(value) if isinstance(value, tuple) else pytest.approx(value))
        assert bool(told["lines"]) == bool(told["instructions"]) == (field != "kernel_overhead_ns")
        assert all(line.startswith("samples.py:") for line in told["lines"])


def test_trn3_rests_on_more_assumptions_than_trn2():
    trn2, trn3 = (
        {a["field"] for a in profiled(transposing, spec(128, 128), on=on).to_dict()["assumptions"]}
        for on in ("trn2", "trn3")
    )
    assert trn2 < trn3
    assert {"kernel_overhead_ns", "fix_vector_ns", "dma_bytes_per_ns"} <= trn3 - trn2


def test_a_table_load_is_an_assumption_where_no_source_measures_it():
    def lines(on):
        figures = profiled(transposing, spec(128, 128), on=on).to_dict()
        return {a["field"]: a["lines"] for a in figures["assumptions"]}

    assert "activation_table_ns" not in lines("trn2")
    assert len(lines("trn3")["activation_table_ns"]) == 1


def test_two_cores_are_averaged_and_shown_apart():
    figures = profiled(halves[2], spec(256, 512)).to_dict()
    assert figures["cores"] == 2 and len(figures["per_core"]) == 2
    apart = [core["engines"]["vector"] for core in figures["per_core"]]
    together = figures["engines"]["vector"]
    assert together["instructions"] == sum(e["instructions"] for e in apart) == 2
    assert together["active_us"] == pytest.approx(sum(e["active_us"] for e in apart) / 2, abs=1e-3)
    assert together["instruction_us"] == pytest.approx(sum(e["instruction_us"] for e in apart), abs=1e-3)
    assert "per_core" not in matmul().to_dict()


def test_diagnostics_have_kind_line_and_help():
    with pytest.warns(nki.NkiWarning):
        figures = profiled(reshaping, spec(128, 128)).to_dict()
    found = {d["kind"]: d for d in figures["diagnostics"]}
    assert found["dma-shape"]["line"].startswith("samples.py:")
    assert "reshape one side" in found["dma-shape"]["help"]


def test_findings_are_plain_data(monkeypatch):
    profile = matmul("hoisted")
    found = Advice("reload", "rhs travels twice", "Keep it.", ("kernels.py:22",), 3.25)
    monkeypatch.setitem(profile.__dict__, "findings", [found])
    monkeypatch.delitem(profile.__dict__, "_figures", raising=False)
    assert profile.to_dict()["findings"] == [
        {
            "kind": "reload",
            "title": "rhs travels twice",
            "detail": "Keep it.",
            "lines": ["kernels.py:22"],
            "gain_us": 3.25,
        }
    ]
    monkeypatch.delitem(profile.__dict__, "_figures")


def test_the_same_kernel_gives_the_same_figures():
    assert profiled(spilling, spec(128, 1024)).to_dict() == profiled(spilling, spec(128, 1024)).to_dict()


def test_a_kernel_that_does_nothing_has_figures_too():
    figures = profiled(idle, spec(128, 128)).to_dict()
    assert figures["instructions"] == figures["flops"] == 0
    assert figures["lines"] == []
    assert figures["total_us"] == pytest.approx(9.4)
    assert figures["mfu_max_achievable_percent"] == 0


def test_the_name_decides_what_is_saved(tmp_path):
    page, trace = tmp_path / "tiled.html", tmp_path / "tiled.pftrace"
    matmul().save(page)
    assert page.read_text(encoding="utf-8") == matmul().html()
    matmul().save(str(trace))
    assert trace.read_bytes() == matmul().perfetto()


def test_a_saved_profile_comes_back_with_its_figures_and_name(tmp_path):
    path = tmp_path / "tiled.json"
    matmul().save(path)
    saved = nki.Profile.load(path)
    assert saved.kernel == "tiled"
    assert saved.total_us == pytest.approx(matmul().total_us, abs=1e-3)
    assert saved.to_dict() == matmul().to_dict()
    assert str(saved) == matmul().summary()
    assert json.loads(path.read_text())["format"] == "open-nki profile 1"


@pytest.mark.parametrize("content", ["not json", "[1, 2]", '{"format": "another"}'])
def test_another_file_is_refused_as_a_profile(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(nki.NkiError) as e:
        nki.Profile.load(path)
    assert e.value.kind == "profile-file"
    assert "is not a saved profile" in str(e.value) and "--save" in str(e.value)


def test_the_bound_is_the_engine_that_cannot_be_faster():
    def sums(x):
        t = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(t, x)
        for _ in range(20):
            nisa.tensor_tensor(t, t, t, nl.add)

    roof = profiled(sums, spec(128, 1024)).to_dict()["roofline"]
    assert roof["bound"] == next(iter(roof["ceilings_us"])) == "VectorE"
    assert roof["ceilings_us"]["VectorE"] == pytest.approx(20 * 1024 / 0.96 / 1e3, rel=0.01)
    assert roof["ceilings_us"]["DMA"] == pytest.approx(128 * 4096 / (16 * 23.9) / 1e3, rel=0.01)
