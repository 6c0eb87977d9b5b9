"""Blockwise experts, forward and backward, on routings as bad as they come, against a dense mixture in torch.

All tokens at one expert, experts without any, blocks of padding and blocks that are left out, tokens that
stand several times in a block, padding between them, ids that are no token's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from kernel_support import close, random, run

import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
)
from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd

H, BLOCK = 512, 256
KINDS = [kind for kind in MoECTEImplementation if "mx" not in kind.name]
QUICK, MANY = range(3), range(3, 200)


@dataclass
class Routing:
    """Ids [N, BLOCK] and the expert of each block; those from the first condition that is 0 on do not run."""

    tokens: int
    experts: int
    ids: np.ndarray
    owners: np.ndarray
    conditions: np.ndarray | None
    skip: bool

    def counts(self) -> np.ndarray:
        """How often each token passes through each expert, [T, E]."""
        found = np.zeros((self.tokens, self.experts))
        for n, expert in enumerate(self.owners):
            if self.conditions is not None and self.conditions[n] == 0:
                break
            for token in self.ids[n]:
                if expert < self.experts and 0 <= token < self.tokens:
                    found[token, expert] += 1
        return found

    @property
    def arguments(self) -> tuple:
        return self.ids.ravel().astype(np.int32), self.owners.astype(np.int32)[:, None], BLOCK


def draw(rng: np.random.Generator) -> Routing:
    tokens, experts = int(rng.integers(1, 300)), int(rng.integers(1, 6))
    blocks = int(rng.choice([1, 2, 3, 8, 9]))
    skip = bool(rng.integers(2))
    chosen = rng.permutation(experts)[: rng.integers(1, experts + 1)]  # the others have no tokens
    owners = rng.choice(chosen, blocks)
    owners[rng.random(blocks) < 0.15] = experts + rng.integers(3)  # left out
    ids = rng.integers(0, max(1, tokens // int(rng.choice([1, 1, 20]))), (blocks, BLOCK))
    padding = [-1, tokens] if skip else [tokens]
    full = rng.choice([0.0, 0.1, 0.9, 1.0], (blocks, 1))
    ids = np.where(rng.random(ids.shape) < full, ids, rng.choice(padding, ids.shape))
    conditions = None
    if rng.random() < 0.4:
        conditions = (np.arange(blocks + 1) < rng.integers(0, blocks + 1)).astype(np.int32)
    return Routing(tokens, experts, ids, owners, conditions, skip)


class Mixture:
    """Tokens, affinities and weights for a routing, and what comes of them by a dense formulation."""

    def __init__(self, routing: Routing, inner: int):
        rows, experts = routing.tokens + (not routing.skip), routing.experts
        self.routing = routing
        self.hidden = random((rows, H))
        self.affinities = np.abs(random((rows * experts, 1), seed=1))
        self.gate_up = random((experts, H, 2, inner), seed=2, scale=H**-0.5)
        self.down = random((experts, inner, H), seed=3, scale=inner**-0.5)
        self.out_grad = random((rows, H), seed=4)
        self.tensors = (self.hidden, self.affinities, self.gate_up, self.down)

    def dense(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The result, and the gradients of tokens, affinities and weights."""
        tokens, experts = self.routing.tokens, self.routing.experts
        leaves = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in self.tensors]
        hidden, affinities, gate_up, down = leaves
        factor = torch.tensor(self.routing.counts()) * affinities.reshape(-1, experts)[:tokens]
        gate, up = torch.einsum("th,ehgi->geti", hidden[:tokens], gate_up)
        out = torch.einsum("te,eti,eih->th", factor, torch.nn.functional.silu(gate) * up, down)
        out.backward(torch.tensor(self.out_grad[:tokens].astype(np.float64)))
        return out.detach().numpy(), [leaf.grad.numpy() for leaf in leaves]


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    routing = draw(rng)
    mixture = Mixture(routing, int(rng.choice([16, 48, 128])))
    options: dict[str, Any] = {
        "skip_dma": SkipMode(skip_token=routing.skip),
        "compute_dtype": nl.float32,
        "lnc": int(rng.integers(1, 3)),
    }
    kinds = KINDS if routing.conditions is not None else [kind for kind in KINDS if "hybrid" not in kind.name]
    keep = ShardOnIConfig(checkpoint_activation=True, num_static_block=int(rng.integers(0, 3)))
    spec = MoECTESpec(kinds[rng.integers(len(kinds))], shard_on_I=keep)
    out, *checkpoints = run(
        moe_cte, *mixture.tensors, *routing.arguments, spec, conditions=routing.conditions, **options
    )
    wanted, gradients = mixture.dense()
    close(out[: routing.tokens], wanted, terms=10**4)
    if routing.conditions is None:  # the backward kernel has none
        ids, owners, block = routing.arguments
        found = run(
            blockwise_mm_bwd, *mixture.tensors, *checkpoints, ids, owners, mixture.out_grad, block, **options
        )
        for mine, reference in zip(found, gradients, strict=True):
            close(mine, reference, terms=10**4)


@pytest.mark.parametrize("seed", QUICK)
def test_a_routing_gives_what_the_dense_mixture_does(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_many_routings_give_what_the_dense_mixture_does(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(6))
def test_an_invalid_token_id_raises_at_any_position(seed):
    rng = np.random.default_rng(seed)
    routing = draw(rng)
    mixture = Mixture(routing, 16)
    wrong = [-2, -(2**31), routing.tokens + 1, 10**6, 2**31 - 1, *([] if routing.skip else [-1])]
    routing.ids[rng.integers(len(routing.ids)), rng.integers(BLOCK)] = rng.choice(wrong)
    checkpoints = np.full((len(routing.ids), 2, 16, BLOCK), 5.0, np.float32)
    spec = MoECTESpec(MoECTEImplementation.shard_on_i, shard_on_I=ShardOnIConfig(checkpoint_activation=True))
    options = {"skip_dma": SkipMode(skip_token=routing.skip), "lnc": int(rng.integers(1, 3))}
    with pytest.raises(IndexError, match="affinities|index"):
        run(moe_cte, *mixture.tensors, *routing.arguments, spec, gate_up_activations_T=checkpoints, **options)
    assert (checkpoints == 5.0).all()
