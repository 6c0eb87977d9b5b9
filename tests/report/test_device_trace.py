"""A profile of a device beside the model: what is read, what is refused, what is shown."""

import json

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.cli import main
from nki.errors import NkiError
from nki.report import device_report, device_trace
from nki.report.text import plain
from support import target

KERNEL = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out
"""


def instruction(engine, opcode, start, ns, kind="REGULAR"):
    return {
        "subgroup": engine,
        "opcode": opcode,
        "timestamp": start,
        "duration": ns,
        "instruction_type": kind,
    }


def packet(start, ns, queue="hardware_dynamic", size=4096):
    return {"timestamp": start, "duration": ns, "queue_type": queue, "transfer_size": size}


def content(**changes):
    return {
        "instruction": [
            instruction("Vector", "TENSOR_SCALAR", 2000, 100),
            instruction("Vector", "TENSOR_SCALAR", 2200, 300),
            instruction("Vector", "EVENT_SEMAPHORE", 100, 9000, ""),
            instruction("Tensor", "MATMUL", 2500, 50, "TRANSPOSE"),
            instruction("Tensor", "MATMUL", 2520, 80),
        ],
        "dma": [packet(1000, 20), packet(1010, 40), packet(0, 5, "instruction")],
        **changes,
    }


@pytest.fixture
def written(tmp_path):
    def write(data):
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(data))
        return path

    return write


def test_figures_of_a_device_are_counts_sums_medians_and_gaps(written):
    device = device_trace.load(written(content()))
    figures = device_trace.compared(device, device_trace.RunEvents({}, {}))
    by_opcode = {(row["engine"], row["opcode"]): row["device"] for row in figures["opcodes"]}
    assert by_opcode["vector", "TENSOR_SCALAR"] == {"count": 2, "us": 0.4, "median_ns": 200, "first_us": 1.0}
    assert {*by_opcode} == {("vector", "TENSOR_SCALAR"), ("tensor", "MATMUL"), ("tensor", "TRANSPOSE")}
    engines = {row["engine"]: row["device"] for row in figures["engines"]}
    assert engines["vector"]["idle_us"] == engines["vector"]["longest_gap_us"] == pytest.approx(0.1)
    assert engines["tensor"]["active_us"] == pytest.approx(0.1)  # they overlap
    (queue,) = figures["dma"]
    assert queue["device"] == {"count": 2, "us": 0.06, "median_ns": 30, "first_us": 0.0, "bytes": 8192}
    assert figures["total_us"]["device"] == pytest.approx(1.6)


def test_names_of_neuron_explorer_are_read_too(written):
    rows = [{"engine": "pe", "opcode": "MATMUL", "start_ts": 5, "duration_ns": 7}]
    device = device_trace.load(written({"Instruction": rows}))
    assert device.instructions == {("tensor", "MATMUL"): [device_trace.Event(0.0, 7.0)]}


@pytest.mark.parametrize(
    "data, why",
    [
        ([], "not an object"),
        ({}, "no instructions"),
        (content(instruction={}), "no list of objects"),
        (content(instruction=[3]), "no list of objects"),
        (content(instruction=[instruction("Vector", "COPY", "soon", 1)]), "'timestamp' is no number"),
        (content(instruction=[instruction("Vector", "COPY", True, 1)]), "'timestamp' is no number"),
        (content(instruction=[instruction("Vector", "COPY", 1, -1)]), "'duration' is -1"),
        (content(instruction=[instruction("Vector", "COPY", 10**400, 1)]), "profile of a device"),
        (content(instruction=[instruction("Vector", "x" * 100, 1, 1)]), "no short text"),
        (content(dma=[{**packet(1, 1), "transfer_size": None}]), "'transfer_size' is no number"),
    ],
)
def test_files_of_another_form_are_refused(written, data, why):
    with pytest.raises(NkiError, match=why) as caught:
        device_trace.load(written(data))
    assert caught.value.kind == "profile-file"


def test_parquet_is_refused_by_name_as_a_file_and_as_a_folder(tmp_path):
    (tmp_path / "Instruction.parquet").write_bytes(b"PAR1" + bytes(8) + b"PAR1")
    for path in (tmp_path, tmp_path / "Instruction.parquet"):
        with pytest.raises(NkiError, match="is Parquet, which is not read here") as caught:
            device_trace.load(path)
        assert caught.value.kind == "profile-file" and "--output-format json" in str(caught.value)


def test_the_model_has_the_device_s_names():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        tile, wide = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, nl.float32)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(wide, tile, engine=nisa.engine.vector)
        nisa.activation(wide, nl.exp, wide)
        nisa.dma_copy(out, wide)
        return out

    with target("trn2"):
        run = device_trace.modelled(nki.profile(kernel)(nki.TensorSpec((128, 64), "bfloat16")).timeline)
    assert {*run.instructions} == {("vector", "CAST"), ("scalar", "ACTIVATE"), ("scalar", "ACT_TABLE_LOAD")}
    (packets,) = run.packets.values()
    assert sum(event.nbytes for event in packets) == pytest.approx(128 * 64 * (2 + 4))


def test_the_command_shows_both_in_100_columns(written, tmp_path, capsys):
    (tmp_path / "kernel.py").write_text(KERNEL)
    data = content()
    data["instruction"].append(instruction("Vector", "<b>[red]", 2600, 1))
    page = tmp_path / "both.html"
    arguments = ["compare", str(tmp_path / "kernel.py:doubled"), "--arg", "x=float32[128,512]"]
    options = ["--target", "trn2", "--trace", str(written(data)), "--html", str(page)]
    assert main([*arguments, *options]) == 0
    shown = capsys.readouterr().out
    assert "TENSOR_SCALAR" in shown and "<b>[red]" in shown and max(map(len, shown.splitlines())) <= 100
    assert "<b>[" not in page.read_text() and "&lt;b&gt;[red]" in page.read_text()
    assert main([*arguments, *options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    row = next(one for one in figures["opcodes"] if one["opcode"] == "TENSOR_SCALAR")
    assert row["device"]["count"] == 2 and row["model"]["count"] == 1


def test_the_command_takes_one_kernel_with_a_trace_and_two_without(written, capsys):
    assert main(["compare", "kernel.py:doubled"]) == 2
    assert "--trace" in capsys.readouterr().err
    assert main(["compare", "a.py:x", "b.py:y", "--trace", str(written(content()))]) == 2


def test_a_long_profile_is_shown_in_plain_text(written):
    many = [instruction("Scalar", "ACTIVATE", 10 * i, 5) for i in range(2000)]
    device = device_trace.load(written(content(instruction=many)))
    figures = device_trace.compared(device, device)
    assert "2,000" in plain(device_report.terminal(figures, "kernel"))
    assert np.isclose(figures["total_us"]["device"], 20.0, atol=0.1)


def test_triggers_of_hardware_descriptors_are_instructions_of_their_engine():
    def kernel(x):
        tile = nl.ndarray((128, 512), nl.float32)
        nisa.dma_copy(tile, x, dge_mode=nisa.dge_mode.hwdge)
        nisa.dma_copy(x, tile, dge_mode=nisa.dge_mode.hwdge)

    with target("trn2"):
        timeline = nki.jit(kernel).trace(nki.TensorSpec((128, 512), "float32")).profile().timeline
    found = device_trace.modelled(timeline).instructions
    (load,), (store,) = found["sync", "DMA_DIRECT2D"], found["scalar", "DMA_DIRECT2D"]
    assert load.start < store.start and load.ns == store.ns > 0
