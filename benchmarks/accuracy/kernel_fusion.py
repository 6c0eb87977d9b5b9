"""The published times of github.com/allenkchau/trainium-kernel-fusion: old API, trn2, medians of a benchmark.

The kernels are run from a checkout of that repository; nothing of it is in this one. Its baseline of GEMM
with GELU is two kernels, whose times were added.
"""

import importlib
import sys
from pathlib import Path

import nki
from nki_legacy import stubs

from .case import Case, spec, total_us

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


def cases(public: Path):
    """Return the rows, with the kernels of a checkout; none where there is no checkout."""
    folder = public / "trainium-kernel-fusion"
    return [*_attention(folder), *_gemm(folder)] if (folder / "kernels").is_dir() else []


def _attention(folder):
    kernels = {
        "baseline": _kernel(folder, "baseline.attention", "baseline_attention"),
        "fused": _kernel(folder, "fused.attention", "fused_attention"),
    }
    for (dtype, length), times in ATTENTION.items():
        use = "read" if length in TRACED else "same source"
        for (name, kernel), us in zip(kernels.items(), times, strict=True):
            figures = (("total", "us", us, total_us),)
            title, arguments = f"attention {length} {dtype}, {name}", (spec(dtype, 128, length),) * 3
            yield Case(title, SOURCE, use, "trn2", kernel, arguments, figures, family="attention, old API")


def _gemm(folder):
    gelu = _kernel(folder, "baseline.mlp_gemm", "gelu_kernel")
    kernels = {
        "two kernels": _kernel(folder, "baseline.mlp_gemm", "gemm_kernel"),
        "by table": _kernel(folder, "fused.mlp", "fused_mlp_pwl"),
        "by series": _kernel(folder, "fused.mlp", "fused_mlp_taylor"),
    }
    for (dtype, (m, k, n)), times in GEMM.items():
        arguments = (spec(dtype, k, m), spec(dtype, k, n), spec(dtype, 1, n))
        for (name, kernel), us in zip(kernels.items(), times, strict=True):
            read = _with(gelu, spec(dtype, m, n)) if name == "two kernels" else total_us
            title, figures = f"GELU(GEMM) {m}x{k}x{n} {dtype}, {name}", (("total", "us", us, read),)
            yield Case(
                title, SOURCE, "same source", "trn2", kernel, arguments, figures, long=m > 512,
                family="GEMM with GELU, old API",
            )  # fmt: skip


def _with(kernel, argument):
    """Return a reading that adds the time of a second kernel."""
    return lambda profile: profile.total_us + nki.profile(kernel, target="trn2")(argument).total_us


def _kernel(folder, module, name):
    """Return a kernel of a module, whose package is not left behind: our examples have one of its name."""
    sys.path.insert(0, str(folder))
    try:
        with stubs.importable():
            return getattr(importlib.import_module(f"kernels.{module}"), name)
    finally:
        sys.path.remove(str(folder))
        for left in [one for one in sys.modules if one.partition(".")[0] == "kernels"]:
            del sys.modules[left]
