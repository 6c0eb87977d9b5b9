"""Kernels on a GPU against cuBLAS; without a GPU, nothing."""

import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "matmul"))
from kernels import blocked_mnk, tiled  # noqa: E402

M, K, N = 4096, 8192, 8192


def milliseconds(torch, call, rounds=5):
    """Return the time of the fastest of some calls; the device is idle before and after."""
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
    return rows + attention(torch)


def attention(torch, heads=32, length=4096, width=128):
    """attention_cte against PyTorch's own attention in float32 maths."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from nkilib.core.attention.attention_cte import attention_cte

    shapes = ((length, width), (width, length), (length, width))
    q, k, v = (torch.randn(heads, *shape, device="cuda").bfloat16() for shape in shapes)

    def plain():
        wide = q.float()[None], k.float().transpose(1, 2)[None], v.float()[None]
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, scale=width**-0.5)[
                0
            ]

    def own():
        return attention_cte(q, k, v, scale=width**-0.5)

    wanted, bare = plain(), milliseconds(torch, plain)
    begin = time.perf_counter()
    found = own()
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    assert found.is_cuda, "it went through the host"
    error = ((found.float() - wanted).norm() / wanted.norm()).item()
    label = f"attention_cte {heads} heads, {length}, causal, bf16, warm / torch float32 ({bare:.1f} ms)"
    rows = [(label, f"{milliseconds(torch, own) / bare:.2f}x", "10x")]
    rows.append(("  its first call: Python, planning and the run", f"{first:.1f} s", ""))
    return [*rows, ("  its relative error to float32", f"{error:.1e}", ""), *where_time_goes(torch, own)]


def where_time_goes(torch, call):
    """Return the GPU's time by kind of work, and the host's time to launch it."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    asked = time.perf_counter() - begin
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    spent = Counter()
    launches = 0
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            launches += 1
            kinds = ("gemm", "index", "reduce", "copy", "exp")
            spent[next((kind for kind in kinds if kind in event.name.lower()), "elementwise")] += (
                event.device_time / 1e3
            )
    rows = [("  the host asks for its steps in", f"{asked * 1e3:.1f} ms", "")]
    rows.append((f"  the GPU works, in {launches} launches", f"{sum(spent.values()):.1f} ms", ""))
    return rows + [(f"    {kind}", f"{ms:.1f} ms", "") for kind, ms in spent.most_common()]
