"""Kernels on a GPU against cuBLAS; without a GPU, nothing."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "matmul"))
from kernels import blocked_mnk, tiled  # noqa: E402

M, K, N = 4096, 8192, 8192


def milliseconds(torch, call, rounds=5):
    """The fastest of some calls, the device idle before and after."""
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return min(found)


def run():
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    try:
        import torch
    except ImportError:
        return [("matmuls on a GPU", "no PyTorch", "")]
    if not torch.cuda.is_available():
        return [("matmuls on a GPU", "no GPU", "")]
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        left, right = (torch.randn(K, n, device="cuda").to(dtype) for n in (M, N))
        bare = left.float().T @ right.float()
        wide = left.float(), right.float()
        plain = milliseconds(torch, lambda wide=wide: wide[0].T @ wide[1])
        for name, kernel in (("blocked", blocked_mnk), ("loads in the inner loop", tiled)):
            found = kernel(left, right)
            assert found.is_cuda, "it went through the host"
            error = ((found.float() - bare).norm() / bare.norm()).item()
            own = milliseconds(torch, lambda kernel=kernel, left=left, right=right: kernel(left, right))
            label = f"{name} {M}x{K}x{N} {str(dtype)[6:]}, warm / cuBLAS float32 ({plain:.1f} ms)"
            rows.append((label, f"{own / plain:.2f}x", "1.25x"))
            rows.append(
                (f"  its relative error to cuBLAS ({torch.cuda.get_device_name()})", f"{error:.1e}", "")
            )
    return rows
