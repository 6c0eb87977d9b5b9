"""The mixture-of-experts block with MX weights against float64 on emulated numbers."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, random, run
from mx_experts import Experts, agree

import nki.language as nl
from nkilib.core.moe_block.moe_block_tkg import moe_block_tkg
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode, RouterActFnType
from nkilib.experimental.moe_block.mx_moe_block_tkg_wrapper import mx_moe_block_tkg_wrapper

BF16 = ml_dtypes.bfloat16
POST = {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE}
WORDS = {"float4_e2m1fn": np.uint16, "float8_e4m3fn": np.uint32}


class Block:
    """inp [B, S, H] and all that belongs to it; `outputs` is what the block computes of it."""

    def __init__(self, batch, sequence, h, inner, experts, k, form="float4_e2m1fn", first=0, all_experts=0):
        self.k, self.first = k, first
        self.layer = Experts(batch * sequence, h, inner, experts, 1, form)
        self.inp = random((batch, sequence, h), "bfloat16", 1)
        self.gamma = random((1, h), "bfloat16", 2)
        self.router = random((h, max(experts, all_experts)), "float32", 3, h**-0.5)
        self.arguments = {
            "inp": self.inp,
            "gamma": self.gamma,
            "router_weights": self.router,
            **self.layer.weights,
            "top_k": k,
            "router_mm_dtype": nl.float32,
            "router_act_fn": RouterActFnType.SOFTMAX,
            **POST,
        }

    def words(self, form):
        names = ("expert_gate_up_weights", "expert_down_weights")
        return {name: self.arguments[name].view(WORDS[form]) for name in names}

    def normed(self, residual=0.0, actual=None):
        x = (np.asarray(self.inp, np.float64) + residual).reshape(-1, self.inp.shape[2])
        power = np.square(x).sum(-1, keepdims=True) / (actual or x.shape[1])
        return (x / np.sqrt(power + 1e-6) * np.asarray(self.gamma, np.float64)).astype(BF16)

    def outputs(self, n):
        """Return (out, logits) of normalised tokens: softmax over all experts, then the k largest."""
        logits = n.astype(np.float64) @ np.asarray(self.router, np.float64)
        a = np.exp(logits - logits.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        order = np.argsort(-logits, axis=-1)[:, : self.k]
        w = np.zeros_like(a)
        np.put_along_axis(w, order, np.take_along_axis(a, order, -1), -1)
        local = range(len(self.layer.seen))
        return sum(w[:, [self.first + e]] * self.layer.expert(e, n) for e in local), logits


@each_lnc
@pytest.mark.parametrize("form", list(WORDS))
def test_tokens_go_where_the_router_sends_them(lnc, form):
    block = Block(2, 2, 512, 192, 4, 2, form)
    got = run(mx_moe_block_tkg_wrapper, lnc=lnc, on="trn3", **{**block.arguments, **block.words(form)})
    wanted = block.outputs(block.normed())
    agree(got[0], wanted[0])
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-4, atol=1e-4)
    typed = run(moe_block_tkg, lnc=lnc, on="trn3", **block.arguments)
    assert np.array_equal(typed[0], got[0])


@each_lnc
@pytest.mark.parametrize("tokens", [3, 130])
def test_a_rank_serves_the_tokens_that_chose_its_experts(lnc, tokens):
    block = Block(tokens, 1, 512, 64, 2, 2, first=2, all_experts=6)
    options = {"is_all_expert": True, "rank_id": np.array([[1]], np.int32), "skip_router_logits": True}
    got = run(mx_moe_block_tkg_wrapper, lnc=lnc, on="trn3", **block.arguments, **options)
    agree(got, block.outputs(block.normed())[0])


@each_lnc
def test_residual_padding_and_shared_experts(lnc):
    block = Block(1, 3, 1024, 64, 2, 1)
    residual = random(block.inp.shape, "bfloat16", 9)
    shared = [random(s, "bfloat16", 5, s[0] ** -0.5) for s in ((1024, 64), (1024, 64), (64, 1024))]
    names = ("shared_expert_gate_w", "shared_expert_up_w", "shared_expert_down_w")
    options = {"residual": residual, "hidden_actual": 1000, **dict(zip(names, shared, strict=True))}
    out, _, total = run(mx_moe_block_tkg_wrapper, lnc=lnc, on="trn3", **block.arguments, **options)
    n = block.normed(np.asarray(residual, np.float64), 1000)
    gate, up, down = (np.asarray(w, np.float64) for w in shared)
    x = n.astype(np.float64)
    g = x @ gate
    agree(out, block.outputs(n)[0] + (g / (1 + np.exp(-g)) * (x @ up)) @ down)
    np.testing.assert_allclose(total, (block.inp + residual)[0], rtol=1e-2, atol=1e-2)


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(mx_moe_block_tkg_wrapper)


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"router_bias": random((1, 4), "float32", 7)},
        {"eps": 0.5},
        {"norm_topk_prob": True},
        {"router_act_fn": RouterActFnType.SIGMOID},
        {"expert_down_bias": random((4, 512), "bfloat16", 8)},
        {"hidden_act_fn": ActFnType.GELU},
        {"gate_clamp_upper_limit": 0.05},
        {"gate_clamp_lower_limit": -0.05},
        {"up_clamp_upper_limit": 0.05},
        {"up_clamp_lower_limit": -0.05},
        {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.NO_SCALE},
        {"router_pre_norm": False},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_reach_the_block_and_change_its_result(option):
    block = Block(1, 3, 512, 64, 4, 2)
    plain = run(mx_moe_block_tkg_wrapper, on="trn3", **block.arguments)
    got = run(mx_moe_block_tkg_wrapper, on="trn3", **block.arguments | option)
    typed = run(moe_block_tkg, on="trn3", **block.arguments | option)
    assert np.array_equal(typed[0], got[0]) and not np.array_equal(plain[0], got[0])
