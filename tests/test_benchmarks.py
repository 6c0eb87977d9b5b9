"""The table of `make bench-kernels`: its arithmetic, and that every case is one of a documented kernel."""

import io
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from nki import TensorSpec
from nki.machine.generations import find
from nkilib import catalogue
from nkilib.kernels import RmsNormQuantKernelArgs, rmsnorm_quant_kernel
from support import target

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import kernels, nkibench  # noqa: E402
from benchmarks.kernels import __main__ as command  # noqa: E402

SMALL = kernels.Case(
    "rmsnorm_quant_kernel",
    "256x512 bf16",
    rmsnorm_quant_kernel,
    (TensorSpec((256, 512), "bfloat16"), TensorSpec((512,), "bfloat16"), RmsNormQuantKernelArgs(0.0)),
    hbm_bytes=256 * (3 * 512 + 4),
)


@pytest.fixture
def figures():
    with target("trn2"):
        return kernels.measure(SMALL)


def test_the_ratio_is_that_of_the_modelled_time_to_the_bound(figures):
    rate = 16 * 23.9  # GB/s of the DMA engines of a core
    assert figures.bound == "memory" and figures.bound_us == pytest.approx(SMALL.hbm_bytes / rate / 1e3)
    assert figures.ratio == figures.modelled_us / figures.bound_us > 1
    assert 0 < figures.sbuf_peak_bytes < 2**21 and figures.spill_bytes == 0


def test_the_slowest_part_is_the_bound():
    case = kernels.Case("", "", None, (), hbm_bytes=1000, flops={"bfloat16": 1e9, "float32": 1e9}, lnc=2)
    trn2 = find("trn2")
    name, us = kernels.roofline(case, trn2)
    assert name == "compute" and us == pytest.approx((1e9 + 4e9) / trn2.peak_flops() * 1e6 / 2)
    held = kernels.Case("", "", None, (), hbm_bytes=1000, other=("Tensor", 7.0))
    assert kernels.roofline(held, trn2) == ("Tensor", 7.0)
    assert kernels.roofline(replace(held, other=("Scalar", 7.0)), trn2)[0] == "memory"  # a limit, no bound


def test_the_table_has_a_line_for_each_size_and_fits_100_columns(figures):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(command.table([figures, figures]))
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert sum(line == "rmsnorm_quant_kernel" for line in lines) == 1
    assert sum(line.startswith("256x512 bf16") for line in lines) == 2 and max(map(len, lines)) <= 100


def test_every_case_is_one_of_a_documented_kernel_and_every_kernel_has_two_sizes():
    counted = Counter(case.kernel_name for case in kernels.cases())
    assert set(counted) - {kernel.name for kernel in catalogue.kernels()} == set()
    assert [name for name, count in counted.items() if count < 2] == []


def test_kernels_of_nkibench_are_measured_beside_their_references(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "reference").mkdir()
    (tmp_path / "kernels" / "double_N4_0.py").write_text(
        "import neuronxcc.nki as nki\n"
        "import neuronxcc.nki.language as nl\n"
        "@nki.jit\n"
        "def kernel(x):\n"
        "    out = nl.ndarray((4, 4), dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    nl.store(out, nl.load(x) * 2)\n"
        "    return out\n"
    )
    (tmp_path / "reference" / "double_N4_numpy_0.py").write_text(
        "import numpy as np\n"
        "def get_inputs():\n"
        "    return [np.ones((4, 4), np.float32)]\n"
        "def transform_to_nki_inputs(inputs):\n"
        "    return inputs\n"
        "def forward(x):\n"
        "    return [x @ x for _ in range(99999)]\n"
    )
    monkeypatch.setenv("NKIBENCH", str(tmp_path))
    rows = list(nkibench.run())
    assert [row[0] for row in rows] == [
        "double_N4, first / warm over numpy",
        "geometric mean of 1, first / warm",
    ]
    assert rows[0][1] == rows[1][1] and rows[0][1].count("x") == 2
