"""NKIBench's first kernel of each operator, at its shapes, against its numpy reference on one BLAS thread.

NKIBENCH names the folder of that name in a clone of AccelOpt (github.com/zhang677/AccelOpt), whose code is
not ours to copy. Each kernel runs in a process of its own; CPU seconds, since others may be busy.
"""

import math
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from .memory import alone, peak_bytes

WARM = 2  # calls; the shorter one counts


def measure(kernel: Path, reference: Path) -> None:
    """Print the CPU seconds of numpy, of the first call and of a later one, and the peak in GiB."""
    from nki.backends.reference.blas import one_blas_thread
    from nki_legacy import stubs

    from .accuracy.public_kernels import imported

    warnings.simplefilter("ignore")
    stubs.install()
    function = imported(kernel.name, kernel.read_text(encoding="utf-8")).kernel
    bare = imported(reference.name, reference.read_text(encoding="utf-8"))
    np.random.seed(0)
    given = bare.get_inputs()
    arguments = bare.transform_to_nki_inputs(given)
    with one_blas_thread():
        plain = seconds(lambda: bare.forward(*given))
        first = seconds(lambda: function(*arguments))
        warm = min(seconds(lambda: function(*arguments)) for _ in range(WARM))
    print(plain, first, warm, peak_bytes() / 2**30)


def seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def run():
    folder = os.environ.get("NKIBENCH")
    if folder is None:
        yield "NKIBench's kernels over numpy", "not measured: set NKIBENCH to its folder", ""
        return
    rows = []
    for kernel in sorted(Path(folder).glob("kernels/*_0.py")):
        (reference,) = Path(folder).glob(f"reference/{kernel.stem.removesuffix('_0')}_numpy_*.py")
        code = "from pathlib import Path; from benchmarks.nkibench import measure; "
        code += f"measure(Path({str(kernel)!r}), Path({str(reference)!r}))"
        plain, first, warm, gib = map(float, alone(code, OPEN_NKI_THREADS="1").split())
        rows.append((first / plain, warm / plain))
        name = kernel.stem.removesuffix("_0")
        yield f"{name}, first / warm over numpy", f"{first / plain:.2f}x / {warm / plain:.2f}x", ""
        print(f"{name}: {rows[-1]}, numpy {plain:.2f} s, peak {gib:.1f} GiB", file=sys.stderr, flush=True)
    first, warm = (math.exp(np.log([row[i] for row in rows]).mean()) for i in range(2))
    yield f"geometric mean of {len(rows)}, first / warm", f"{first:.2f}x / {warm:.2f}x", "- / 2x"
