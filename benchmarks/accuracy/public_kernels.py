"""Times that others published for their own kernels of the old API, beside modelled ones.

python -m benchmarks.accuracy.public_kernels FOLDER [--only TEXT]    print the section of docs/accuracy.md
python -m benchmarks.accuracy.public_kernels FOLDER --tuned    of 123 kernels that agents wrote

FOLDER has clones: AccelOpt (zhang677), asst4-trainium2 (xaviergonzalez), asst4-trainium (robertpare17),
autocomp (ucb-bar), kda-for-trainium (Jerry2423). Their code is not ours to copy, so `make accuracy` keeps the
section that was printed last (SECTION).
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import nki
from nki_grading.task import Samples, ready
from nki_legacy import stubs

SECTION = Path(__file__).with_name("public_kernels.md")
HEAD = """\
## Kernels of courses and benchmarks

Whole kernels of the old API as their authors published them, and the times that these measured. NKIBench
times its first kernel of each operator on trn1; no number was fitted to these times. The rows of CS149 are
those of two students, one on trn2 (2025) and one on trn1 (2024): the fixed time of trn1 was chosen by sums
of 200 columns and more, and two rules were found with the convolutions in view (`casts`, and what skips the
middle end). Autocomp publishes the steps of its searches on trn1.

| kernel | published | ours | ratio | platform | source |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class PublicKernel:
    """A kernel in a clone, how it is called, and how long its author found that it takes."""

    name: str
    file: str
    entry: str
    arguments: Sequence[Any]
    us: float
    target: str
    source: str
    settings: Sequence[tuple[str, str]] = ()  # constants that the author changed for this time
    step: int = -1  # of a search, whose file has the kernels of all steps


def vectors(count: int) -> list[nki.TensorSpec]:
    return [nki.TensorSpec((count,), "float32")] * 2


def images(dtype: str, pool: int) -> list[Any]:
    shapes = ((1, 256, 224, 224), (256, 256, 3, 3), (256,))
    return [*(nki.TensorSpec(shape, dtype) for shape in shapes), pool]


def part_one(folder: str, target: str, source: str, times: dict[str, float]) -> Iterator[PublicKernel]:
    """Yield the sums of vectors, by what their step of the assignment changes."""
    steps = {
        "row by row": ("vector_add_tiled", 25600, ("ROW_CHUNK = 256", "ROW_CHUNK = 1")),
        "128 rows": ("vector_add_tiled", 25600, ("ROW_CHUNK = 256", "ROW_CHUNK = 128")),
        "2 columns": ("vector_add_stream", 25600, ("FREE_DIM = 1000", "FREE_DIM = 2")),
        "200 columns": ("vector_add_stream", 25600, ("FREE_DIM = 1000", "FREE_DIM = 200")),
        "1000 columns": ("vector_add_stream", 256000, ("FREE_DIM = 1000", "FREE_DIM = 1000")),
        "2000 columns": ("vector_add_stream", 256000, ("FREE_DIM = 1000", "FREE_DIM = 2000")),
        "direct allocation": ("vector_add_direct_allocation", 256000, ("FREE_DIM", "FREE_DIM")),
    }
    for step, us in times.items():
        entry, count, setting = steps[step]
        name = f"CS149, sum of {count:,} elements, {step}"
        yield PublicKernel(
            name, f"{folder}/part1/kernels.py", entry, vectors(count), us, target, source, [setting]
        )


def convolutions(folder: str, target: str, source: str, times: Sequence[float]) -> Iterator[PublicKernel]:
    kinds = [(dtype, pool) for pool in (1, 2) for dtype in ("float32", "float16")]
    for (dtype, pool), us in zip(kinds, times, strict=True):
        name = f"CS149, convolution of 224 x 224, {dtype}{', max pool' * (pool > 1)}"
        file = f"{folder}/part2/conv2d.py"
        yield PublicKernel(name, file, "fused_conv2d_maxpool", images(dtype, pool), us, target, source)


def nkibench() -> Iterator[PublicKernel]:
    for name, task in ready().items():
        case = task.cases[0]
        if not name.startswith("nkibench-") or case.baseline_us is None:
            continue
        operator = name.removeprefix("nkibench-")
        file = f"AccelOpt/NKIBench/kernels/{operator.replace('-', '_')}_[A-Z]*_0.py"
        yield PublicKernel(
            f"NKIBench {operator}, {case.name}",
            file,
            "kernel",
            nkibench_arguments(operator),
            case.baseline_us,
            "trn1",
            "AccelOpt",
        )


def nkibench_arguments(operator: str) -> list[Any]:
    values = ready()[f"nkibench-{operator}"].cases[0].arguments.values()
    return [value.spec if isinstance(value, Samples) else value for value in values]


def tuned(folder: Path) -> Iterator[PublicKernel]:
    """Yield the kernels that agents wrote for NKIBench's operators on trn2 (kda-for-trainium).

    Its times are half of the device's: at them, a core would do 118 TFLOP/s in bf16, of 79 that it has.
    """
    for table in sorted((folder / "kda-for-trainium").glob("workspaces/*/benchmark.csv")):
        seen: set[str] = set()
        for row in csv.DictReader(table.open(encoding="utf-8")):
            file = table.parent / row["candidate"]
            timed = row["latency_ms"][:1].isdigit() and file.suffix == ".py" and file.is_file()
            if timed and file.stem not in seen:
                seen.add(file.stem)
                arguments = nkibench_arguments(row["op"].replace("_", "-"))
                us, path = 2e3 * float(row["latency_ms"]), str(file.relative_to(folder))
                yield PublicKernel(f"tuned {file.stem}", path, "kernel", arguments, us, "trn2", "Jerry2423")


SEARCHES: dict[str, list[Any]] = {
    "tutorial/2_gemm": [nki.TensorSpec((8192, columns), "bfloat16") for columns in (4096, 8192)],
    "tutorial/3_mamba": [
        nki.TensorSpec(shape, "float32") for shape in (*[(1, 256, 2048)] * 2, (256, 16), *[(1, 16, 2048)] * 2)
    ],
    "tutorial/4_attention": [nki.TensorSpec((128, 4096), "bfloat16")] * 3,
    "tutorial/5_sd_attention": [nki.TensorSpec((4096, 64), "float32")] * 3,
}


def searches(folder: Path) -> Iterator[PublicKernel]:
    """Yield the steps of Autocomp's searches; a step that does not run by itself is left out."""
    for name, arguments in SEARCHES.items():
        file = f"autocomp/examples/trn-{name}_trace.py"
        for step, (text, ms) in enumerate(steps(folder / file)) if (folder / file).is_file() else ():
            if "def test" in text and (name, step) not in BROKEN:
                title = f"Autocomp {name.partition('_')[2]}, step {step}"
                yield PublicKernel(title, file, "test", arguments, 1e3 * ms, "trn1", "ucb-bar", step=step)


BROKEN = {("tutorial/3_mamba", step) for step in (1, 4, 5, 7)}  # parts of a kernel, or for another shape
IMPORTS = """\
import math
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt
from neuronxcc.nki.language import par_dim
"""


def steps(file: Path) -> list[tuple[str, float]]:
    """Return the kernels of a search and their milliseconds, the first one first."""
    node, found = ast.parse(file.read_text(encoding="utf-8"), mode="eval").body, []
    while isinstance(node, ast.Call):
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        found.append((ast.literal_eval(given["code"]), ast.literal_eval(given["score"])))
        node = given["parent"]
    return found[::-1]


def kernels(folder: Path) -> list[PublicKernel]:
    new, old = ("asst4-trainium2", "trn2", "xaviergonzalez"), ("asst4-trainium", "trn1", "robertpare17")
    matrix = [nki.TensorSpec((1024, 1024), "float32")]
    return [
        *nkibench(),
        *part_one(*new, {"row by row": 37318, "128 rows": 378, "2 columns": 186, "200 columns": 15}),
        PublicKernel(
            "CS149, transpose of 1024 x 1024",
            f"{new[0]}/part1/kernels.py",
            "matrix_transpose",
            matrix,
            86,
            *new[1:],
        ),
        *convolutions(*new, (3832, 824, 3830, 825)),
        *part_one(
            *old,
            {
                "row by row": 27404,
                "128 rows": 206,
                "2 columns": 53,
                "200 columns": 19,
                "1000 columns": 30,
                "2000 columns": 34,
                "direct allocation": 29,
            },
        ),
        *convolutions(*old, (3681, 1060, 3741, 1275)),
        *searches(folder),
    ]


def loaded(path: Path, kernel: PublicKernel) -> ModuleType:
    """Import a file with other settings, or the kernel of a step of a search."""
    text = path.read_text(encoding="utf-8") if kernel.step < 0 else IMPORTS + steps(path)[kernel.step][0]
    for old, new in kernel.settings:
        assert old in text, f"{path} has no {old}"
        text = text.replace(old, new)
    return imported(path.name, text)


def imported(name: str, text: str) -> ModuleType:
    """Import the text of a file of another project from a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / name
        copy.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(copy.stem, copy)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def modelled(kernel: PublicKernel, folder: Path) -> float:
    """Return the modelled microseconds."""
    from nki_legacy.old_api.kernel import jit

    (path,) = folder.glob(kernel.file)
    function = getattr(loaded(path, kernel), kernel.entry)
    return jit(function.user, platform_target=kernel.target).trace(*kernel.arguments).profile().total_us


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tuned", action="store_true", help="only those that agents wrote for NKIBench")
    parser.add_argument("--only", default="", help="kernels whose names have this text")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    stubs.install()
    print(HEAD, end="")
    for kernel in (tuned if options.tuned else kernels)(options.folder):
        if options.only in f"{kernel.name} {kernel.source}":
            us = modelled(kernel, options.folder)
            times = f"{kernel.us:,.0f} us | {us:,.0f} us | {us / kernel.us:.2f}"
            print(f"| {kernel.name} | {times} | {kernel.target} | {kernel.source} |", flush=True)
            print(kernel.name, file=sys.stderr)


if __name__ == "__main__":
    main()
