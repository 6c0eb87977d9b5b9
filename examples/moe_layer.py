"""A mixture-of-experts layer that trains on library kernels, compared with the same layer in plain PyTorch.

python examples/moe_layer.py [--tokens 256 --hidden 512 --inner 128 --steps 10]
python examples/moe_layer.py --profile      # modelled times of layers of real models, from their shapes alone

Router, permutation, experts and the backward of the experts are kernels. The library has no kernel for the
backward of the router, which is two small products.
"""

import argparse
from typing import NamedTuple

import torch
from torch import nn

import nki
import nki.language as nl
from nki import TensorSpec
from nki.frameworks.torch import differentiable
from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
)
from nkilib.core.router_topk.router_topk import XHBMLayout_T_H__1, XSBLayout_tp201__2, router_topk
from nkilib.core.utils.common_types import RouterActFnType
from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd
from nkilib.experimental.subkernels.permute_routed_tokens import permute_routed_tokens

LNC = 2  # physical cores of a logical one
EXPERTS, K, BLOCK = 8, 2, 256  # experts, those of a token, tokens of a block
SPEC = MoECTESpec(MoECTEImplementation.shard_on_i, shard_on_I=ShardOnIConfig(checkpoint_activation=True))
SKIP = SkipMode(skip_token=True)  # padding has index T, one past the last token
ROUTED = 2048  # tokens per call of the router
ROUTER = {
    "act_fn": RouterActFnType.SOFTMAX,  # of the K chosen logits
    "router_pre_norm": False,
    "x_hbm_layout": XHBMLayout_T_H__1,
    "x_sb_layout": XSBLayout_tp201__2,
    "shard_on_tokens": True,
}


# ---- the layer on kernels ------------------------------------------------------------------------


def route(x, router, k):
    """Return the experts of each token [T, K] and their affinities [T, E], 0 for all others."""
    tokens, experts = len(x), router.shape[1]
    logits, affinities = torch.empty(tokens, experts), torch.empty(tokens, experts, dtype=x.dtype)
    index = torch.empty(tokens, k, dtype=torch.int32)
    for results in zip(*(t.split(ROUTED) for t in (x, logits, affinities, index)), strict=True):
        router_topk[LNC](results[0], router, None, *results[1:], k=k, **ROUTER)
    return index, affinities


def fill_blocks(x, index, affinities, block):
    """Sort tokens by expert into blocks with one expert each: return ids [N B], and the expert of each block.

    The number of blocks depends only on the shapes. Unused blocks have no expert.
    """
    tokens, experts = affinities.shape
    column = x[:, :1].to(torch.bfloat16)  # the experts gather whole tokens themselves
    rows = permute_routed_tokens[LNC](column, index, affinities)
    sorted_tokens = rows[:, 2:].contiguous().view(torch.int32).ravel()
    counts = torch.bincount(index.ravel(), minlength=experts)
    of_expert = (counts + block - 1) // block
    number = (index.numel() + experts * (block - 1)) // block
    block_to_expert = torch.full((number, 1), experts, dtype=torch.int32)
    block_to_expert[: of_expert.sum(), 0] = torch.arange(experts, dtype=torch.int32).repeat_interleave(
        of_expert
    )
    padding = block * (of_expert.cumsum(0) - of_expert) - (
        counts.cumsum(0) - counts
    )  # before an expert's first
    ids = torch.full((number * block,), tokens, dtype=torch.int32)
    ids[torch.arange(index.numel()) + padding.repeat_interleave(counts)] = sorted_tokens
    return ids, block_to_expert


def kernel_dtype(tensor):
    return getattr(nl, str(tensor.dtype).removeprefix("torch."))


def forward(x, router, gate_up, down, k, block):
    """Return the result [T, H] and what backward needs, for gate_up [E, H, 2, I], down [E, I, H]."""
    index, affinities = route(x, router, k)
    ids, block_to_expert = fill_blocks(x, index, affinities, block)
    weights = affinities.reshape(-1, 1)
    options = {"skip_dma": SKIP, "compute_dtype": kernel_dtype(x)}
    routing = (ids, block_to_expert, block, SPEC)
    out, kept_gate_up, kept_down = moe_cte[LNC](x, weights, gate_up, down, *routing, **options)
    return out, affinities, kept_gate_up, kept_down, ids, block_to_expert


def backward(dy, *others):
    """Gradients of x, router, gate_up and down."""
    x, router, gate_up, down, k, block, out, affinities, kept_gate_up, kept_down, ids, experts = others[5:]
    kept = (kept_gate_up, kept_down)
    options = {"skip_dma": SKIP, "compute_dtype": kernel_dtype(x)}
    dx, d_affinities, d_gate_up, d_down = blockwise_mm_bwd[LNC](
        x, affinities.reshape(-1, 1), gate_up, down, *kept, ids, experts, dy, block, **options
    )
    a, da = affinities.float(), d_affinities.reshape(affinities.shape).float()
    d_logits = a * (da - (a * da).sum(1, keepdim=True))  # softmax of the chosen; 0 where a is
    d_router = x.float().T @ d_logits
    dx = dx.float() + d_logits @ router.float().T
    return dx.to(x.dtype), d_router.to(router.dtype), d_gate_up, d_down


operator = differentiable(forward, backward, outputs=True)


def mixture(x, router, gate_up, down, k=K, block=BLOCK):
    return operator(x, router, gate_up, down, k, block)[0]


# ---- the same in PyTorch -------------------------------------------------------------------------


def plain_mixture(x, router, gate_up, down, k=K):
    values, index = (x.float() @ router.float()).topk(k)
    affinities = values.softmax(1).to(x.dtype)
    out = torch.zeros_like(x)
    for expert in range(len(down)):
        token, choice = torch.where(index == expert)
        gate, up = torch.einsum("th,hgi->gti", x[token], gate_up[expert])
        y = (nn.functional.silu(gate) * up) @ down[expert]
        out = out.index_add(0, token, y * affinities[token, choice, None])
    return out


class Mixture(nn.Module):
    """A layer whose weights are stored in float32 and used in the dtype of the tokens."""

    def __init__(self, hidden, inner, function):
        super().__init__()
        shapes = {
            "router": (hidden, EXPERTS),
            "gate_up": (EXPERTS, hidden, 2, inner),
            "down": (EXPERTS, inner, hidden),
        }
        for name, shape in shapes.items():
            features = inner if name == "down" else hidden
            setattr(self, name, nn.Parameter(torch.randn(shape) / features**0.5))
        self.function = function

    def forward(self, x):
        return self.function(x, *(weight.to(x.dtype) for weight in (self.router, self.gate_up, self.down)))


def relative_error(found, exact):
    return ((found.float() - exact.float()).norm() / exact.float().norm()).item()


def layers(hidden, inner, functions):
    """One layer for each function, all with the same weights."""
    made = [Mixture(hidden, inner, function) for function in functions]
    for layer in made[1:]:
        layer.load_state_dict(made[0].state_dict())
    return made


def check_gradients(tokens, hidden, inner):
    """The largest relative error of a gradient, in float32, against autograd."""
    x, dy = torch.randn(tokens, hidden), torch.randn(tokens, hidden)
    found = []
    for layer in layers(hidden, inner, (mixture, plain_mixture)):
        leaf = x.clone().requires_grad_()
        layer(leaf).backward(dy)
        found.append([leaf.grad, *(weight.grad for weight in layer.parameters())])
    return max(relative_error(ours, theirs) for ours, theirs in zip(*found, strict=True))


def train(tokens, hidden, inner, steps):
    """Train both layers to imitate a third; return their losses and the distance of the first outputs."""
    with torch.no_grad():
        x = torch.randn(tokens, hidden).to(torch.bfloat16)
        target = Mixture(hidden, inner, plain_mixture)(x)
    losses, outputs = [], []
    for layer in layers(hidden, inner, (mixture, plain_mixture)):
        optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
        losses.append([])
        for step in range(steps):
            out = layer(x)
            loss = (out.float() - target.float()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
            if step == 0:
                outputs.append(out.detach())
    return losses, relative_error(*outputs)


# ---- modelled times of real models' layers -------------------------------------------------------


class Layer(NamedTuple):
    """Sizes of a model's layer, and of its blocks if all experts have the same number of tokens."""

    name: str
    hidden: int
    inner: int
    experts: int
    k: int
    block: int


MODELS = [
    Layer("Qwen3-30B-A3B", 2048, 768, 128, 8, 256),
    Layer("GPT-OSS-20B", 3072, 2880, 32, 4, 512),  # 2880 features, padded
]
POSITIONS = (2048, 4096)  # of blocks that are timed
STAGES = ("routing", "gather", "experts", "scatter")
TRANSFERS = {
    "gather_tokens": "gather",
    "finish_unit": "scatter",
    "add_rows": "scatter",
}  # by the function of moe_cte that starts them


def shapes(layer, tokens):
    """Return the arguments of the three forward kernels and of the backward kernel, without values."""
    _, hidden, inner, experts, k, block = layer
    blocks = tokens * k // block

    def tensor(*shape, dtype="bfloat16"):
        return TensorSpec(shape, dtype)

    x, affinities = tensor(tokens, hidden), tensor(tokens, experts)
    index = tensor(tokens, k, dtype="int32")
    logits = tensor(ROUTED, experts, dtype="float32")
    routed = (logits, tensor(ROUTED, experts), tensor(ROUTED, k, dtype="int32"))
    operands = (
        x,
        tensor(tokens * experts, 1),
        tensor(experts, hidden, 2, inner),
        tensor(experts, inner, hidden),
    )
    kept = (tensor(blocks, 2, inner, block), tensor(blocks, block, hidden))
    routing = (tensor(blocks * block, dtype="int32"), tensor(blocks, 1, dtype="int32"))
    return {
        "router": (tensor(ROUTED, hidden), tensor(hidden, experts), None, *routed),
        "permutation": (tensor(tokens, 1), index, affinities),
        "experts": (*operands, *routing, block, SPEC),
        "backward": (*operands, *kept, *routing, x, block),
    }


def exposed(profile):
    """Return the time of each stage of moe_cte on the first core, in us.

    Time in which stages overlap counts for the experts, else for the scatter. Loading the ids and the fixed
    cost of a run count for routing."""
    edges = []
    for bar in profile.timeline.bars:
        if bar.core == 0:
            stage = bar.site and TRANSFERS.get(bar.site.code.co_name) if bar.engine == "dma" else None
            if stage or bar.flops or (bar.engine == "dma" and bar.site.code.co_name == "load_weights"):
                edges += [(bar.start, 1, stage or "experts"), (bar.end, -1, stage or "experts")]
    times, running, last = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0), 0.0
    for time, step, stage in sorted(edges):
        owner = next((name for name in ("experts", "scatter", "gather") if running[name]), "routing")
        times[owner] += (time - last) / 1e3
        running[stage] += step
        last = time
    times["routing"] += profile.total_us - last / 1e3
    return times


def experts_times(layer, tokens):
    """Return the modelled us of each stage of moe_cte, and of the backward."""
    arguments = shapes(layer, tokens)
    times = exposed(nki.profile(moe_cte[LNC])(*arguments["experts"], skip_dma=SKIP))
    back = nki.profile(blockwise_mm_bwd[LNC])(*arguments["backward"], skip_dma=SKIP).total_us
    return {**times, "backward": back}


def modelled(layer, tokens):
    """Return the modelled us of each forward stage, and of the backward of the experts.

    All blocks cost the same: the times of two numbers of blocks are extrapolated.
    """
    few, more = (count // layer.k for count in POSITIONS)
    if tokens <= more:
        times = experts_times(layer, tokens)
    else:
        first, second = experts_times(layer, few), experts_times(layer, more)
        rest = (tokens - more) / (more - few)
        times = {stage: second[stage] + rest * (second[stage] - first[stage]) for stage in second}
    arguments = shapes(layer, tokens)
    router = nki.profile(router_topk[LNC])(*arguments["router"], k=layer.k, **ROUTER)
    times["routing"] += tokens / ROUTED * router.total_us
    times["routing"] += nki.profile(permute_routed_tokens[LNC])(*arguments["permutation"]).total_us
    return times, times.pop("backward")


def print_profiles(tokens, models=MODELS):
    for layer in models:
        times, back = modelled(layer, tokens)
        total = sum(times.values())
        shares = ", ".join(f"{stage} {times[stage] / total:.1%}" for stage in STAGES)
        print(
            f"{layer.name}-like, {tokens} tokens: {total:,.0f} us forward ({shares}), {back:,.0f} us backward"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 256), ("hidden", 512), ("inner", 128), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--profile", action="store_true", help="modelled time of layers of 4096 tokens instead"
    )
    options = vars(parser.parse_args())
    if options.pop("profile"):
        print_profiles(4096)
        return
    torch.manual_seed(0)
    steps = options.pop("steps")
    print(f"float32 gradients: equal to autograd within {check_gradients(**options):.1e}")
    (ours, theirs), error = train(**options, steps=steps)
    print(f"bfloat16 output: equal to PyTorch within {error:.4f}")
    print(f"training: loss {ours[0]:.4f} -> {ours[-1]:.4f}, of PyTorch {theirs[0]:.4f} -> {theirs[-1]:.4f}")


if __name__ == "__main__":
    main()
