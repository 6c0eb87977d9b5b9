"""The published times of github.com/allenkchau/trainium-kernel-fusion: old API, trn2, medians of a benchmark.

The kernels are run from a checkout of that repository; nothing of it is in this one. Its baseline of GEMM
with GELU is two kernels, whose times were added.
"""

import importlib
import sys
from pathlib import Path

import nki
from nki_legacy import stubs

from .cases import Case, total_us

SOURCE = "kernel-fusion reports"
ATTENTION = {  # dtype, sequence -> us of the baseline, of the fused kernel; 128 per head
    ("float32", 512): (52, 31), ("float32", 1024): (107, 69), ("float32", 2048): (274, 215),
    ("float32", 4096): (1137, 839), ("bfloat16", 512): (48, 28), ("bfloat16", 1024): (96, 60),
    ("bfloat16", 2048): (260, 188), ("bfloat16", 4096): (1035, 684),
}  # fmt: skip
GEMM = {  # dtype, (M, K, N) -> us of the baseline, with GELU by table, by its series
    ("float32", (128, 128, 512)): (37, 21, 26), ("float32", (256, 512, 1024)): (59, 40, 53),
    ("float32", (512, 1024, 2048)): (182, 150, 159), ("float32", (1024, 2048, 4096)): (1173, 1074, 1297),
    ("float32", (2048, 4096, 4096)): (4085, 4187, 4620), ("bfloat16", (128, 128, 512)): (34, 19, 23),
    ("bfloat16", (256, 512, 1024)): (48, 28, 40), ("bfloat16", (512, 1024, 2048)): (82, 56, 96),
    ("bfloat16", (1024, 2048, 4096)): (340, 288, 403), ("bfloat16", (2048, 4096, 4096)): (1687, 1554, 1919),
}  # fmt: skip
TRACED = {512, 1024}  # sequences whose traces rules were read from


def spec(dtype, *shape):
    return nki.TensorSpec(shape, dtype)


def cases(folder: Path):
    """Return the rows, with the kernels of a checkout; none where there is no checkout."""
    if not (folder / "kernels").is_dir():
        return []
    return [*_attention(folder), *_gemm(folder)]


def _attention(folder):
    baseline = _kernel(folder, "baseline.attention", "baseline_attention")
    fused = _kernel(folder, "fused.attention", "fused_attention")
    for (dtype, length), times in ATTENTION.items():
        use = "rule" if length in TRACED else "never used"
        for name, kernel, us in zip(("baseline", "fused"), (baseline, fused), times, strict=True):
            yield _case(
                f"attention {length} {dtype}, {name}", use, kernel, [spec(dtype, 128, length)] * 3, us
            )


def _gemm(folder):
    kernels = [
        _kernel(folder, "baseline.mlp_gemm", "gemm_kernel", "gelu_kernel"),
        _kernel(folder, "fused.mlp", "fused_mlp_pwl"),
        _kernel(folder, "fused.mlp", "fused_mlp_taylor"),
    ]
    for (dtype, (m, k, n)), times in GEMM.items():
        arguments = [spec(dtype, k, m), spec(dtype, k, n), spec(dtype, 1, n)]
        for name, kernel, us in zip(("two kernels", "table", "series"), kernels, times, strict=True):
            yield _case(f"GELU(GEMM) {m}x{k}x{n} {dtype}, {name}", "never used", kernel, arguments, us)


def _case(title, use, kernel, arguments, us):
    figures = (("total", "us", us, total_us),)
    return Case(title, SOURCE, use, "trn2", kernel, tuple(arguments), figures, long=True)


def _kernel(folder, module, *names):
    """Return the kernels of a module that run one after the other, the second on what the first gave."""
    sys.path.insert(0, str(folder))
    with stubs.importable():
        found = importlib.import_module(f"kernels.{module}")
    sys.path.remove(str(folder))
    return tuple(getattr(found, name) for name in names)
