"""The gradient of attention against torch's autograd in float64."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.core.attention.attention_bwd import attention_bwd, attention_bwd_ref


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(attention_bwd)


def visible(tokens, causal=False, window=None, bounds=None, keys=None, offset=0):
    i, query = np.arange(keys or tokens), np.arange(tokens)[:, None] + offset
    seen = np.ones((tokens, len(i)), bool)
    if causal:
        seen &= i <= query
    if window is not None and window > 0:
        seen &= i > query - window
    if bounds is not None:
        seen &= (i >= bounds[0][:, None]) & (i < bounds[1][:, None])
    return seen


def attend(q, k, v, seen, scale, sinks=None):
    """(o, lse) of torch tensors [B, H, D, S]; sinks [B, H, n]."""
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = scale * torch.einsum("bhdi,bhdj->bhij", q, k)
    scores = scores.masked_fill(~torch.tensor(seen), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, :, None].expand(-1, -1, scores.shape[2], -1)], -1)
    p = torch.softmax(scores, -1)[..., : k.shape[3]]
    return torch.einsum("bhij,bhdj->bhdi", p, v), torch.logsumexp(scores, -1)


def packed(*lengths):
    ends = np.cumsum(lengths)
    starts = ends - lengths
    return [np.repeat(x, lengths).astype(np.float32) for x in (starts, ends)]


def call(batch=1, heads=2, keys=1, size=16, tokens=256, dtype="float32", sinks=None, bounds=None, **options):
    """A call of the kernel with what a forward would give it."""
    length = options.pop("length", tokens)
    shapes = {"q_ref": (batch, heads, size, tokens), "k_ref": (batch, keys, size, length)}
    shapes |= {"v_ref": shapes["k_ref"], "dy_ref": shapes["q_ref"]}
    given = {name: random(shape, dtype, seed) for seed, (name, shape) in enumerate(shapes.items())}
    if sinks is not None:
        given["sinks_ref"] = random((batch, heads, *sinks), seed=9)
    if bounds is not None:
        given |= {"bound_min": bounds[0], "bound_max": bounds[1]}
    o, lse = attend(**leaves(given | options))
    given["o_ref"] = o.detach().numpy().astype(np.dtype(dtype))
    lse = lse.detach().numpy().reshape(batch, heads, tokens // 128, 128)
    given["lse_ref"] = np.ascontiguousarray(lse.swapaxes(2, 3)).astype(np.float32)
    return given | options


def leaves(arguments):
    """The arguments of attend, in float64."""
    given = {
        name: torch.tensor(arguments[f"{name}_ref"].astype(np.float64), requires_grad=True)
        for name in ("q", "k", "v", "sinks")
        if arguments.get(f"{name}_ref") is not None
    }
    if "sinks" in given and given["sinks"].ndim == 2:
        given["sinks"] = given["sinks"].detach().unsqueeze(-1).requires_grad_()
    size, tokens = arguments["q_ref"].shape[2:]
    bounds = arguments.get("bound_min"), arguments.get("bound_max")
    given["scale"] = arguments.get("softmax_scale") or size**-0.5
    given["seen"] = visible(
        tokens,
        arguments.get("use_causal_mask", False),
        arguments.get("sliding_window"),
        None if bounds[0] is None else bounds,
        arguments["k_ref"].shape[3],
        int(arguments.get("cp_offset", np.zeros(1))[0]),
    )
    return given


def gradients(**arguments):
    given = leaves(arguments)
    attend(**given)[0].backward(torch.tensor(arguments["dy_ref"].astype(np.float64)))
    found = [given[name].grad.numpy() for name in ("q", "k", "v")]
    if arguments.get("transpose_dv"):
        found[2] = found[2].swapaxes(2, 3)
    if arguments.get("sinks_ref") is not None:
        found.append(given["sinks"].grad.numpy().reshape(arguments["sinks_ref"].shape))
    return found


CAUSAL = {"use_causal_mask": True}
OFFSET = np.array([200], np.int32)
CASES = [
    Option("basic"),
    Option("causal", call(**CAUSAL)),
    Option("one-tile", call(tokens=128, heads=1, **CAUSAL)),
    Option("five-tiles", call(tokens=640, heads=1, **CAUSAL)),
    Option("window", call(tokens=640, heads=1, sliding_window=100, **CAUSAL)),
    Option("window-of-a-tile", call(tokens=384, sliding_window=128, **CAUSAL)),
    Option("no-window", call(sliding_window=-1, **CAUSAL)),
    Option("four-heads-two-keys", call(heads=4, keys=2, batch=2, tokens=128)),
    Option("sink", call(sinks=(), **CAUSAL)),
    Option("two-sinks-window", call(sinks=(2,), sliding_window=60, **CAUSAL)),
    Option("scale", call(softmax_scale=0.7)),
    Option("packed", call(bounds=packed(100, 156), **CAUSAL)),
    Option("packed-unmasked", call(tokens=384, bounds=packed(127, 129, 128))),
    Option("transposed-dv", call(transpose_dv=True, **CAUSAL)),
    Option("transposed-dv-wide", call(size=160, heads=1, transpose_dv=True)),
    Option("more-keys", call(tokens=128, length=384)),
    Option("fewer-keys", call(tokens=256, length=128, **CAUSAL)),
    Option("offset", call(tokens=128, length=384, cp_offset=OFFSET, **CAUSAL)),
    Option("offset-window", call(tokens=128, length=384, cp_offset=OFFSET, sliding_window=90, **CAUSAL)),
    Option("offset-0", call(cp_offset=0 * OFFSET, **CAUSAL)),
    Option("wide-head", call(size=160, heads=1, **CAUSAL)),
    Option("256-channels", call(size=256, heads=1, tokens=128)),
    Option("bfloat16", call(dtype="bfloat16", **CAUSAL), tolerance=2e-2),
    Option("not-mixed", call(dtype="bfloat16", mixed_precision=False, **CAUSAL), tolerance=8e-3),
]
WRONG = refusals(
    q_ref=random((1, 2, 16, 200)), k_ref=random((1, 3, 16, 256)), v_ref=None, o_ref=random((1, 2))
)
WRONG += refusals(dy_ref=random((1, 1, 16, 256)), lse_ref=random((1, 2, 256)), sinks_ref=random((1, 3)))
WRONG += refusals(cp_offset=OFFSET) + [
    Option("refuses-two-offsets", CAUSAL | {"cp_offset": np.zeros(2, np.int32)}, "cp_offset")
]
WRONG += refusals(sliding_window=128, bound_min=packed(256)[0], q_ref__size=random((1, 2, 262, 256)))
LONG = {
    name: np.zeros((1, 1, 128, 16384), np.float32) for name in ("q_ref", "k_ref", "v_ref", "o_ref", "dy_ref")
}
WRONG += [Option("refuses-length", LONG | {"lse_ref": np.zeros((1, 1, 128, 128), np.float32)}, "k_ref")]


@each(on_both(CASES, slow=True) + [Option("trn3", on="trn3"), Option("trn1", on="trn1")] + WRONG)
def test_gradients(option):
    check(option, attention_bwd, call(), gradients, 4e-6)


def test_the_reference_beside_the_kernel_agrees():
    given = call(sinks=(2,), **CAUSAL)
    inputs = (given[f"{name}_ref"] for name in ("q", "k", "v", "dy"))
    found = attention_bwd_ref(*inputs, visible(256, True), 0.25, given["sinks_ref"])
    for got, expected in zip(found[2:], gradients(**given), strict=True):
        near(got, expected, 1e-10)


@pytest.mark.parametrize("options", [{}, {"causal_mask": False}, {"sliding_window": 70}])
def test_attention_cte_is_differentiable_in_torch(options):
    shapes = ((4, 256, 16), (2, 16, 256), (2, 256, 16))
    results, scale = [], 1.0 if "sliding_window" in options else 0.25  # as attention_cte demands
    seen = visible(256, options.get("causal_mask", True), options.get("sliding_window"))
    for dtype in (torch.float32, torch.float64):
        q, k, v = (
            torch.tensor(random(s, seed=i), dtype=dtype, requires_grad=True) for i, s in enumerate(shapes)
        )
        sink = torch.tensor(random((4, 1), seed=8), dtype=dtype, requires_grad=True)
        if dtype == torch.float32:
            out = autograd.attention_cte(q, k, v, scale, sink=sink, **options)
        else:
            inputs = (q.transpose(1, 2)[None], k[None], v.transpose(1, 2)[None])
            out = attend(*inputs, seen, scale, sink[None])[0][0].transpose(1, 2)
        (out**2).sum().backward()
        results.append([x.grad.numpy() for x in (q, k, v, sink)])
    for got, expected in zip(*results, strict=True):
        near(got, expected, 4e-6)
