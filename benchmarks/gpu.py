"""Kernels on a GPU against cuBLAS; without a GPU, nothing."""

import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "matmul"))
from kernels import blocked_mnk, tiled  # noqa: E402

M, K, N = 4096, 8192, 8192


def milliseconds(torch, call, rounds=20):
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


def settle(call):
    """Call a kernel until its work is captured with compiled kernels; return the seconds."""
    from nki.backends.torch import graphs

    begin = time.perf_counter()
    for _ in range(graphs.OFTEN + 2):
        call()
    graphs.finish_kernels()
    call()
    return time.perf_counter() - begin


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
            settle(lambda kernel=kernel, left=left, right=right: kernel(left, right))
            own = milliseconds(torch, lambda kernel=kernel, left=left, right=right: kernel(left, right))
            label = f"{name} {M}x{K}x{N} {str(dtype)[6:]}, warm / cuBLAS float32 ({plain:.1f} ms)"
            rows.append((label, f"{own / plain:.2f}x", "1.25x"))
            rows.append(
                (f"  its relative error to cuBLAS ({torch.cuda.get_device_name()})", f"{error:.1e}", "")
            )
    return rows + attention(torch) + attention(torch, keys=8) + projections(torch) + experts(torch)


def projections(torch, tokens=4096, hidden=4096, inner=3584):
    """Time `mlp` and `qkv_cte` in bfloat16 against the same in PyTorch."""
    from nkilib.core.mlp.mlp import mlp
    from nkilib.core.qkv.qkv_cte import qkv_cte

    x = torch.randn(1, tokens, hidden, device="cuda").bfloat16()
    shapes = ((hidden, inner), (hidden, inner), (inner, hidden), (hidden, 1280))
    gate, up, down, qkv = ((torch.randn(shape, device="cuda") * 0.02).bfloat16() for shape in shapes)
    heads = {"d_head": 128, "num_q_heads": 8, "num_kv_heads": 1}
    silu = torch.nn.functional.silu
    cases = (
        ("mlp", lambda: mlp(x, gate, up, down), lambda x, g, u, d, _: (silu(x @ g) * (x @ u)) @ d),
        ("qkv_cte", lambda: qkv_cte(x, qkv, **heads), lambda x, g, u, d, w: x @ w),
    )
    rows = []
    for name, own, plain in cases:
        settle(own)
        warm = milliseconds(torch, own)
        for dtype in (torch.bfloat16, torch.float32):
            given = [tensor.to(dtype) for tensor in (x, gate, up, down, qkv)]
            bare = milliseconds(torch, lambda plain=plain, given=given: plain(*given))
            label = (
                f"{name} {tokens} tokens bf16, warm ({warm:.3f} ms) / torch {str(dtype)[6:]} ({bare:.3f} ms)"
            )
            rows.append((label, f"{warm / bare:.2f}x", "1.5x" if dtype == torch.bfloat16 else ""))
        rows += where_time_goes(torch, own)
    return rows


def experts(torch, tokens=4096, hidden=2048, inner=1024, count=8, chosen=2, block=512):
    """Time `moe_cte` in bfloat16 against the same in PyTorch, expert by expert."""
    from nkilib.core.moe.moe_cte.moe_cte import moe_cte
    from nkilib.core.moe.moe_cte.moe_cte_spec import MoECTEImplementation, MoECTESpec

    def random(*shape):
        return (torch.randn(shape, device="cuda") * 0.05).bfloat16()

    x, affinities = random(tokens + 1, hidden), random((tokens + 1) * count, 1)
    up, down = random(count, hidden, 2, inner), random(count, inner, hidden)
    of_token = torch.rand(tokens, count).argsort(1)[:, :chosen]
    of_expert = [(of_token == e).any(1).nonzero()[:, 0] for e in range(count)]
    blocks = tokens * chosen // block + count
    ids = torch.full((blocks, block), tokens, dtype=torch.int32)
    owner = torch.full((blocks, 1), count, dtype=torch.int32)  # no expert's: such blocks are left out
    used = 0
    for e, those in enumerate(of_expert):
        for part in those.split(block):
            ids[used, : len(part)], owner[used] = part.int(), e
            used += 1
    ids, owner, of_expert = ids.reshape(-1).cuda(), owner.cuda(), [those.cuda() for those in of_expert]
    spec = MoECTESpec(MoECTEImplementation.shard_on_block)

    def own():
        return moe_cte(x, affinities, up, down, ids, owner, block, spec)

    def plain():
        out = torch.zeros_like(x)
        weight = affinities.reshape(-1, count)
        for e, those in enumerate(of_expert):
            both = x[those] @ up[e].reshape(hidden, -1)
            middle = torch.nn.functional.silu(both[:, :inner]) * both[:, inner:]
            out.index_add_(0, those, (middle @ down[e]) * weight[those, e, None])
        return out

    begin = time.perf_counter()
    assert own().is_cuda, "it went through the host"
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    settle(own)
    found, wanted = own(), plain()
    error = ((found - wanted)[:-1].float().norm() / wanted[:-1].float().norm()).item()
    warm, bare = milliseconds(torch, own), milliseconds(torch, plain)
    label = f"moe_cte {tokens} tokens, {chosen} of {count} experts, bf16, warm / torch"
    rows = [
        (f"{label} ({warm:.2f} / {bare:.2f} ms)", f"{warm / bare:.2f}x", "1.5x"),
        ("  its first call", f"{first:.1f} s", ""),
    ]
    return [*rows, ("  its relative difference", f"{error:.1e}", ""), *where_time_goes(torch, own)]


def attention(torch, heads=32, length=4096, width=128, keys=32):
    """attention_cte against PyTorch's own attention in float32 maths; heads may share keys and values."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from nkilib.core.attention.attention_cte import attention_cte

    shapes = ((heads, length, width), (keys, width, length), (keys, length, width))
    q, k, v = (torch.randn(shape, device="cuda").bfloat16() for shape in shapes)
    all_k, all_v = (tensor.repeat_interleave(heads // keys, 0) for tensor in (k, v))

    def plain():
        wide = q.float()[None], all_k.float().transpose(1, 2)[None], all_v.float()[None]
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, scale=width**-0.5)[
                0
            ]

    def own():
        return attention_cte(q, k, v, scale=width**-0.5)

    rows_of_k = all_k.transpose(1, 2).contiguous()[None]

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q[None], rows_of_k, all_v[None], is_causal=True, scale=width**-0.5
            )

    wanted, bare, narrow = plain(), milliseconds(torch, plain), milliseconds(torch, flash)
    begin = time.perf_counter()
    found = own()
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    assert found.is_cuda, "it went through the host"
    error = ((found.float() - wanted).norm() / wanted.norm()).item()
    sizes = f"{heads} heads, {keys} of keys, {length}"
    label = f"attention_cte {sizes}, causal, bf16, warm / torch float32 ({bare:.1f} ms)"
    captured = settle(own)
    warm = milliseconds(torch, own)
    rows = [(label, f"{warm / bare:.2f}x", "0.9x")]
    rows.append(
        (f"  warm / torch's flash attention in bf16 ({narrow:.2f} ms)", f"{warm / narrow:.1f}x", "8x")
    )
    rows.append(("  its first call: Python, planning and the run", f"{first:.1f} s", "2 s"))
    rows.append(("  until its kernels are compiled", f"{captured:.1f} s", ""))
    return [*rows, ("  its relative error to float32", f"{error:.1e}", ""), *where_time_goes(torch, own)]


def host_milliseconds(torch, call, rounds=20):
    """Return the time until the fastest of some calls returns, before the device has finished."""
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * 1e3)
    return min(found)


def where_time_goes(torch, call):
    """Return the time of the host and of the GPU apart, and the GPU's by kind of work."""
    from torch.profiler import ProfilerActivity, profile

    asked = host_milliseconds(torch, call)
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
    rows = [("  the call returns, of which some wait for the GPU, after", f"{asked:.3f} ms", "")]
    rows.append((f"  the GPU works, in {launches} launches", f"{sum(spent.values()):.3f} ms", ""))
    return rows + [(f"    {kind}", f"{ms:.3f} ms", "") for kind, ms in spent.most_common()]
