"""Experts, MXFP8 layers and ring attention of nkilib.autograd against PyTorch's gradients in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kernel_support import cosine  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import nki.language as nl  # noqa: E402
from nkilib import autograd  # noqa: E402
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode  # noqa: E402
from nkilib.core.utils.common_types import ActFnType  # noqa: E402
from support import target  # noqa: E402


def gradients(function, tensors, dtype=None):
    """Return the result and the gradients of a weighted sum of it, as numpy arrays in float64."""
    leaves = [tensor.detach().to(dtype or tensor.dtype).requires_grad_() for tensor in tensors]
    result = function(*leaves)
    weight = torch.sin(torch.arange(result.numel())).reshape(result.shape).to(result.dtype)
    found = torch.autograd.grad((result * weight).sum(), leaves)
    return [x.detach().double().numpy() for x in (result, *found)]


def same(function, reference, tensors, tolerance):
    ours, exact = gradients(function, tensors), gradients(reference, tensors, torch.float64)
    for found, wanted in zip(ours, exact, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def parallel(function, reference, tensors, least):
    with target("trn3"):
        ours = gradients(function, tensors)
    for found, wanted in zip(ours, gradients(reference, tensors, torch.float64), strict=True):
        assert found.shape == wanted.shape and cosine(found, wanted) > least


def routed(tokens, experts, block, padding):
    """Ids by blocks, the expert of each block, and which expert has which token: all tokens, some twice."""
    chosen = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(1)) < 0.6
    ids, owners = [], []
    for e in range(experts):
        mine = torch.nonzero(chosen[:, e]).flatten().int()
        for start in range(0, len(mine), block):
            row = torch.full((block,), padding, dtype=torch.int32)
            row[: len(mine[start : start + block])] = mine[start : start + block]
            ids.append(row)
            owners.append(e)
    return torch.cat(ids), torch.tensor(owners, dtype=torch.int32)[:, None], chosen


def mixture(chosen, act=F.silu, limits=(None,) * 4, gated=True):
    """Every expert on every token, weighted by the affinities of those that are chosen."""
    tokens, experts = chosen.shape

    def bounded(x, low, high):
        return x if low is None and high is None else x.clamp(low, high)

    def reference(x, affinities, gate_up, down, gate_up_bias=None, down_bias=None):
        out = torch.zeros_like(x)
        weights = affinities.reshape(-1, experts)[:tokens] * chosen
        for e in range(experts):
            g, u = (x[:tokens] @ gate_up[e, :, i] for i in (0, 1))
            if gate_up_bias is not None:
                g, u = g + gate_up_bias[e, 0], u + gate_up_bias[e, 1]
            g, u = bounded(g, *limits[:2]), bounded(u, *limits[2:])
            d = (act(g) * u if gated else act(u)) @ down[e]
            d = d if down_bias is None else d + down_bias[e]
            out = out + F.pad(weights[:, e : e + 1] * d, (0, 0, 0, len(x) - tokens))
        return out

    return reference


def experts(tokens, h, i, count, bias=False, rows=None):
    torch.manual_seed(0)
    rows = tokens if rows is None else rows
    shapes = [(rows, h), (rows * count, 1), (count, h, 2, i), (count, i, h)]
    shapes += [(count, 2, i), (count, h)] if bias else []
    found = [torch.randn(shape) for shape in shapes]
    found[2], found[3] = found[2] / h**0.5, found[3] / i**0.5
    return found


@pytest.mark.parametrize(
    ("sizes", "bias", "skip", "options", "reference"),
    [
        ((37, 512, 48, 3), False, False, {}, {}),
        ((150, 512, 32, 2), True, True, {}, {}),
        ((20, 512, 16, 4), True, False, {"activation_function": ActFnType.GELU}, {"act": F.gelu}),
        ((31, 512, 144, 3), False, True, {"skip_gate_proj": True}, {"gated": False}),
        (
            (45, 1024, 48, 2),
            True,
            False,
            {"gate_clamp_upper_limit": 0.5, "up_clamp_upper_limit": 0.7, "up_clamp_lower_limit": -0.6},
            {"limits": (None, 0.5, -0.6, 0.7)},
        ),
    ],
    ids=["plain", "bias", "gelu", "without-gate", "limits"],
)
def test_experts_have_the_gradients_of_a_mixture(sizes, bias, skip, options, reference):
    tokens, h, i, count = sizes
    ids, owners, chosen = routed(tokens, count, 256, -1 if skip else tokens)
    tensors = experts(tokens, h, i, count, bias, tokens if skip else tokens + 1)
    tensors[0][tokens:] = 0

    def ours(x, affinities, gate_up, down, *biases):
        return autograd.moe_cte(
            *(x, affinities, gate_up, down, ids, owners, 256, *biases),
            compute_dtype=nl.float32,
            skip_dma=SkipMode(skip_token=True) if skip else None,
            **options,
        )[:tokens]

    exact = mixture(chosen, **reference)
    same(ours, lambda *given: exact(*given)[:tokens], tensors, 2e-5)


@pytest.mark.parametrize(("tokens", "h", "i", "count"), [(90, 128, 128, 3), (41, 256, 128, 2)])
def test_experts_in_mxfp8_have_nearly_the_gradients_of_a_mixture(tokens, h, i, count):
    ids, owners, chosen = routed(tokens, count, 128, -1)
    x, affinities, gate_up, down = experts(tokens, h, i, count)
    tensors = [x.bfloat16(), affinities, gate_up.permute(0, 2, 3, 1).bfloat16(), down.mT.bfloat16()]
    exact = mixture(chosen)
    parallel(
        lambda *given: autograd.blockwise_mm_fwd_mxfp8(
            *(tensor.contiguous() for tensor in given), ids, owners, 128
        ),
        lambda a, b, gate_up, down: exact(a, b, gate_up.permute(0, 3, 1, 2), down.mT),
        tensors,
        0.99,
    )


def test_an_mlp_in_mxfp8_has_nearly_the_gradients_of_the_mlp():
    torch.manual_seed(0)
    shapes = ((128, 256), (2 * 128, 256), (256, 128))
    tensors = [(torch.randn(shape) / (1, 16, 11)[n]).bfloat16() for n, shape in enumerate(shapes)]

    def reference(x, gate_up, down):
        g, u = (x @ gate_up.T).chunk(2, 1)
        return (F.silu(g) * u) @ down.T

    parallel(autograd.mlp_forward_mxfp8_nki, reference, tensors, 0.99)


def attention(q, k, v, scale, causal=False, low=None, high=None):
    scores = scale * q @ k.mT
    place = torch.arange(q.shape[2])
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        seen = place[:, None] >= place
    if low is not None:
        seen = seen & (place >= low.reshape(-1, 1)) & (place < high.reshape(-1, 1))
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


def test_flash_attention_has_the_gradients_of_attention():
    torch.manual_seed(0)
    q, k, v = torch.randn(4, 128, 40) / 3, torch.randn(2, 40, 256) / 3, torch.randn(2, 256, 40)

    def reference(q, k, v):
        k, v = (x.repeat_interleave(2, 0) for x in (k, v))
        return (0.3 * q @ k).softmax(-1) @ v

    same(lambda *given: autograd.flash_attention_2(*given, 0.3), reference, [q, k, v], 1e-4)


@pytest.mark.parametrize("kind", ["plain", "scaled", "causal", "packed"])
def test_ring_attention_of_one_worker_has_the_gradients_of_attention(kind):
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, 256, 24) / 2 for _ in range(3)]
    scale = {"plain": None, "scaled": 0.7, "causal": 1.0, "packed": 1.0}[kind]
    causal = kind in ("causal", "packed")
    bounds = {}
    if kind == "packed":
        bounds = {"bound_min": torch.tensor([[0.0] * 100 + [100.0] * 156])}
        bounds["bound_max"] = torch.tensor([[100.0] * 100 + [256.0] * 156])
    same(
        lambda *given: autograd.ring_attention_spmd_fwd(
            *given, softmax_scale=scale, use_causal_mask=causal, **bounds
        ),
        lambda *given: attention(*given, scale or 24**-0.5, causal, *bounds.values()),
        tensors,
        1e-4,
    )
