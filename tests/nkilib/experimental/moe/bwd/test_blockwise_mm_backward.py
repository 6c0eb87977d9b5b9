"""Gradients of blockwise experts against torch's autograd through a dense mixture, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte import (
    MoECTEImplementation,
    MoECTESpec,
    ShardOnIConfig,
    SkipMode,
    moe_cte,
)
from nkilib.core.utils.common_types import ActFnType
from nkilib.experimental.clamp_limits import ClampLimits, gate_bounds, up_bounds
from nkilib.experimental.moe.bwd.blockwise_mm_backward import blockwise_mm_bwd, blockwise_mm_bwd_ref
from nkilib.experimental.moe.bwd.moe_bwd_parameters import (
    AffinityOption,
    KernelTypeOption,
    MOEBwdDroplessBlockingParams,
    ShardOption,
)

EXACT = {"compute_dtype": nl.float32}
NAMES = ("hidden", "affinities", "gate_up", "down", "gate_up_bias", "down_bias")
ACTIVATIONS = {
    ActFnType.SiLU: torch.nn.functional.silu,
    ActFnType.GELU: torch.nn.functional.gelu,
    ActFnType.Swish: lambda x: x * torch.sigmoid(1.702 * x),
    ActFnType.SquaredReLU: lambda x: torch.relu(x) ** 2,
}
each_affinity = pytest.mark.parametrize("affinity", AffinityOption)


@dataclass
class Layer:
    """A mixture whose token t goes chosen[t, e] times to expert e, and the gradient of its output."""

    chosen: np.ndarray
    h: int = 256
    i: int = 48
    block: int = 128
    skip: bool = False
    dtype: Any = "float32"
    act_fn: ActFnType = ActFnType.SiLU
    limits: ClampLimits = field(default_factory=ClampLimits)
    bias: bool = False
    skip_gate: bool = False

    def __post_init__(self):
        tokens, experts = self.chosen.shape
        rows = tokens + (not self.skip)
        h, i, dtype = self.h, self.i, self.dtype
        self.hidden = random((rows, h), dtype)
        self.affinities = np.abs(random((rows * experts, 1), dtype, seed=1))
        self.gate_up = random((experts, h, 2, i), dtype, seed=2, scale=h**-0.5)
        self.down = random((experts, i, h), dtype, seed=3, scale=i**-0.5)
        self.gate_up_bias = random((experts, 2, i), dtype, seed=4, scale=0.3 * self.bias)
        self.down_bias = random((experts, h), dtype, seed=5, scale=0.3 * self.bias)
        self.out_grad = random((rows, h), dtype, seed=6)

    def blocks(self) -> tuple[np.ndarray, np.ndarray]:
        tokens, experts = self.chosen.shape
        rows, owners = [], []
        for e in range(experts):
            mine = np.repeat(np.arange(tokens), self.chosen[:, e])
            count = -(-len(mine) // self.block)
            row = np.full(count * self.block, -1 if self.skip else tokens)
            row[: len(mine)] = mine
            rows.append(row)
            owners += [e] * count
        return np.concatenate(rows).astype(np.int32), np.array(owners, np.int32)[:, None]

    def expert(self, e: int, x: Any, v: dict) -> tuple:
        """Return (gate and up before the activation, result) of one expert."""
        g, u = torch.einsum("th,hgi->gti", x, v["gate_up"][e]) + v["gate_up_bias"][e][:, None]
        g, u = clamped(g, gate_bounds(self.limits)), clamped(u, up_bounds(self.limits))
        act = ACTIVATIONS[self.act_fn]
        m = act(u) if self.skip_gate else act(g) * u
        return g, u, m @ v["down"][e] + v["down_bias"][e]

    def gradients(self) -> list[np.ndarray]:
        """Compute gradients by autograd: every expert on every token, weighted by chosen * affinity."""
        tokens, experts = self.chosen.shape
        v = {n: torch.tensor(getattr(self, n).astype(np.float64), requires_grad=True) for n in NAMES}
        x, w = v["hidden"][:tokens], v["affinities"].reshape(-1, experts)[:tokens]
        factor = torch.tensor(self.chosen) * w
        out = sum(factor[:, e : e + 1] * self.expert(e, x, v)[2] for e in range(experts))
        out.backward(torch.tensor(self.out_grad[:tokens].astype(np.float64)))
        return [v[n].grad.numpy() for n in NAMES]

    def checkpoints(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what a forward pass saves, rounded to the dtype of the layer."""
        ids, owners = self.blocks()
        tokens = len(self.chosen)
        v = {n: torch.tensor(getattr(self, n).astype(np.float64)) for n in NAMES}
        saved, results = [], []
        for row, e in zip(ids.reshape(-1, self.block), owners.ravel(), strict=True):
            g, u, d = self.expert(int(e), v["hidden"][np.clip(row, 0, tokens - 1)], v)
            saved.append(torch.stack([g.T, u.T]).numpy())
            results.append(d.numpy())
        return np.stack(saved).astype(self.hidden.dtype), np.stack(results).astype(self.hidden.dtype)

    def on(self, affinity: AffinityOption) -> dict[str, Any]:
        """Return the affinity option; the gradient of affinities on I does not include a bias of down."""
        if affinity == AffinityOption.AFFINITY_ON_I:
            self.down_bias[:] = 0.0
        return {"affinity_option": affinity}

    def launch(self, lnc: int = 1, **options: Any) -> tuple:
        ids, owners = self.blocks()
        saved, results = self.checkpoints()
        tensors = (self.hidden, self.affinities, self.gate_up, self.down, saved, results)
        own = {
            "skip_dma": SkipMode(skip_token=self.skip),
            "activation_type": self.act_fn,
            "clamp_limits": self.limits,
            "bias": self.bias,
            "skip_gate_proj": self.skip_gate,
        }
        arguments = (*tensors, ids, owners, self.out_grad, self.block)
        return run(blockwise_mm_bwd, *arguments, lnc=lnc, **{**own, **options})


def clamped(x: Any, bounds: tuple) -> Any:
    return x if bounds == (None, None) else x.clamp(*bounds)


def routed(tokens: int = 150, experts: int = 3, k: int = 2) -> np.ndarray:
    rng = np.random.default_rng(0)
    chosen = np.zeros((tokens, experts), int)
    for t in range(tokens):
        chosen[t, rng.permutation(experts)[:k]] = 1
    return chosen


def all_close(got: tuple, wanted: list, terms: int = 10**4) -> None:
    for mine, reference in zip(got, wanted[: len(got)], strict=True):
        close(mine, reference, terms=terms)


def near(got: tuple, wanted: list, part: float = 2e-2) -> None:
    """Check that errors are within a fraction of the largest gradient."""
    for mine, reference in zip(got, wanted[: len(got)], strict=True):
        assert np.abs(np.asarray(mine, np.float64) - reference).max() <= part * np.abs(reference).max()


@each_lnc
@each_affinity
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_those_of_autograd(lnc, affinity, bias):
    w = Layer(routed(), bias=bias)
    got = w.launch(lnc, **w.on(affinity), **EXACT)
    assert len(got) == (6 if bias else 4)
    all_close(got, w.gradients())


@each_lnc
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_layers(lnc, dtype):
    w = Layer(routed(), dtype=dtype, bias=True)
    got = w.launch(lnc)
    assert all(g.dtype == w.hidden.dtype for g in got)
    near(got, w.gradients())


def test_float32_tensors_are_multiplied_in_compute_dtype():
    w = Layer(routed())
    near(w.launch(2), w.gradients())


@each_lnc
@pytest.mark.parametrize("h, i, block", [(180, 40, 128), (320, 144, 256), (256, 16, 512), (128, 144, 1024)])
def test_ragged_sizes_and_all_blocks(lnc, h, i, block):
    w = Layer(routed(), h=h, i=i, block=block, bias=True)
    all_close(w.launch(lnc, **EXACT), w.gradients())


@pytest.mark.parametrize("option", ShardOption)
def test_every_shard_option_gives_the_same_result(option):
    w = Layer(routed(), dtype="bfloat16")
    for mine, other in zip(w.launch(2, shard_option=option), w.launch(2), strict=True):
        np.testing.assert_array_equal(mine, other)


@each_lnc
@each_affinity
def test_gradients_stop_where_a_limit_was_reached(lnc, affinity):
    w = Layer(routed(), limits=ClampLimits(0.5, -0.4, 0.6, None), act_fn=ActFnType.Swish)
    all_close(w.launch(lnc, **w.on(affinity), **EXACT), w.gradients())


@each_affinity
@pytest.mark.parametrize("act_fn", ACTIVATIONS)
@pytest.mark.parametrize("skip_gate", [False, True])
def test_activation_functions_with_and_without_a_gate(act_fn, skip_gate, affinity):
    w = Layer(routed(40), act_fn=act_fn, skip_gate=skip_gate, bias=True)
    all_close(w.launch(**w.on(affinity), **EXACT), w.gradients())


@each_lnc
def test_padding_without_a_row_of_its_own_is_skipped(lnc):
    w = Layer(routed(), skip=True, bias=True)
    all_close(w.launch(lnc, **EXACT), w.gradients())


def test_rows_of_padding_do_not_matter():
    w = Layer(routed(), bias=True)
    wanted = w.launch(**EXACT)
    w.hidden[-1], w.out_grad[-1] = np.nan, np.nan
    for mine, other in zip(w.launch(**EXACT), wanted, strict=True):
        np.testing.assert_array_equal(mine, other)


# ---- routing as users meet it --------------------------------------------------------------------


@each_lnc
def test_all_tokens_at_one_expert_and_experts_without_any(lnc):
    chosen = np.zeros((200, 4), int)
    chosen[:, 2] = 1
    w = Layer(chosen, bias=True)
    got, wanted = w.launch(lnc, **EXACT), w.gradients()
    all_close(got, wanted)
    assert not got[2][[0, 1, 3]].any()


@each_lnc
@each_affinity
def test_a_token_that_occurs_several_times_in_a_block_counts_each_time(lnc, affinity):
    chosen = routed(60, 2, 2)
    chosen[7, 0], chosen[30, 1] = 3, 2
    w = Layer(chosen, bias=True)
    all_close(w.launch(lnc, **w.on(affinity), **EXACT), w.gradients())


def test_blocks_of_experts_beyond_the_last_are_left_out():
    w = Layer(routed(100, 3, 2))
    ids, owners = w.blocks()
    saved, results = w.checkpoints()
    owners[1] = 7
    tensors = (w.hidden, w.affinities, w.gate_up, w.down, saved, results)
    got = run(blockwise_mm_bwd, *tensors, ids, owners, w.out_grad, w.block, **EXACT)
    w.chosen[:, 1] = 0
    all_close(got, w.gradients())


@pytest.mark.parametrize("wrong", [-1, 151])
def test_an_id_out_of_range_raises_before_anything_is_written(wrong):
    w = Layer(routed())
    ids, owners = w.blocks()
    saved, results = w.checkpoints()
    ids[-w.block] = wrong
    mine = np.full_like(w.hidden, 5.0)
    tensors = (w.hidden, w.affinities, w.gate_up, w.down, saved, results)
    with pytest.raises(IndexError, match="expert_affinities_masked"):
        run(blockwise_mm_bwd, *tensors, ids, owners, w.out_grad, w.block, hidden_states_grad_out=mine)
    assert (mine == 5.0).all()


# ---- where gradients go --------------------------------------------------------------------------


def given(w: Layer, value: float, dtype: Any = "float32") -> dict[str, np.ndarray]:
    shapes = {
        "hidden_states_grad_out": w.hidden,
        "expert_affinities_masked_grad_out": w.affinities,
        "gate_up_proj_weight_grad_out": w.gate_up,
        "down_proj_weight_grad_out": w.down,
    }
    return {name: np.full(x.shape, value, np.dtype(dtype)) for name, x in shapes.items()}


@each_lnc
def test_given_gradients_are_overwritten_or_added_to(lnc):
    w = Layer(routed())
    wanted = w.gradients()
    all_close(w.launch(lnc, **given(w, 3.0), **EXACT), wanted)
    added = w.launch(lnc, **given(w, 3.0), skip_grad_initialization=True, **EXACT)
    all_close(added, [x + 3.0 for x in wanted])


@each_lnc
def test_given_gradients_are_added_to_in_the_accumulation_dtype(lnc):
    w = Layer(routed(), dtype="bfloat16")
    wide = {"accumulation_dtype": nl.float32, "skip_grad_initialization": True}
    near(w.launch(lnc, **given(w, 3.0, "bfloat16"), **wide), [x + 3.0 for x in w.gradients()])


def test_without_given_gradients_nothing_is_added_to():
    w = Layer(routed())
    with pytest.warns(Warning, match="skip_grad_initialization"):
        gradients = w.launch(skip_grad_initialization=True, **EXACT)
    all_close(gradients, w.gradients())


def test_a_token_in_one_block_needs_no_accumulation():
    chosen = routed(150, 3, 1)
    w = Layer(chosen)
    all_close(w.launch(is_tensor_update_accumulating=False, **EXACT), w.gradients())


@each_lnc
def test_sums_use_the_accumulation_dtype(lnc):
    chosen = np.zeros((1000, 2), int)
    chosen[:, 0] = 1
    w = Layer(chosen, dtype="bfloat16", h=128, i=16, bias=True)
    wanted = w.gradients()

    def error(got):
        return np.abs(np.asarray(got[3], np.float64) - wanted[3]).mean()

    wide = w.launch(lnc, accumulation_dtype=nl.float32)
    assert all(g.dtype == ml_dtypes.bfloat16 for g in wide)
    near(wide, wanted)
    assert error(wide) < 0.9 * error(w.launch(lnc))


@each_lnc
def test_the_checkpoints_of_moe_cte_are_what_it_takes(lnc):
    w = Layer(routed(), h=512, block=256, limits=ClampLimits(0.8, -0.8, 0.9, None))
    ids, owners = w.blocks()
    spec = MoECTESpec(MoECTEImplementation.shard_on_i, shard_on_I=ShardOnIConfig(checkpoint_activation=True))
    limits = {"gate_clamp_upper_limit": 0.9, "up_clamp_upper_limit": 0.8, "up_clamp_lower_limit": -0.8}
    tensors = (w.hidden, w.affinities, w.gate_up, w.down)
    _, saved, results = run(moe_cte, *tensors, ids, owners, 256, spec, lnc=lnc, **limits, **EXACT)
    arguments = (*tensors, saved, results, ids, owners, w.out_grad, 256)
    got = run(blockwise_mm_bwd, *arguments, clamp_limits=w.limits, lnc=lnc, **EXACT)
    all_close(got, w.gradients())


# ---- wrong arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"block_size": 64}, r"block_size: got 64, allowed are \(128, 256, 512, 1024\)"),
        (
            {"kernel_type_option": KernelTypeOption.DROPPING},
            "kernel_type_option: .*DROPPING, allowed is DROP",
        ),
        ({"activation_type": ActFnType.ReLU}, "activation_type: got .*ReLU"),
        ({"down_proj_act_checkpoint": None}, "down_proj_act_checkpoint: got None, needed by AFFINITY_ON_H"),
        ({"output_hidden_states_grad": np.zeros((5, 256), "f4")}, "output_hidden_states_grad: got shape"),
        ({"token_position_to_id": np.zeros(64, np.int32)}, "token_position_to_id: got 64 elements"),
    ],
)
def test_wrong_arguments_are_refused_by_name(options, message):
    w = Layer(routed())
    ids, owners = w.blocks()
    saved, results = w.checkpoints()
    arguments = {
        "hidden_states": w.hidden,
        "expert_affinities_masked": w.affinities,
        "gate_up_proj_weight": w.gate_up,
        "down_proj_weight": w.down,
        "gate_up_proj_act_checkpoint_T": saved,
        "down_proj_act_checkpoint": results,
        "token_position_to_id": ids,
        "block_to_expert": owners,
        "output_hidden_states_grad": w.out_grad,
        "block_size": w.block,
    }
    with pytest.raises(AssertionError, match=message):
        run(blockwise_mm_bwd, **{**arguments, **options})


def test_tile_sizes_of_others_change_nothing():
    w = Layer(routed(60))
    got = w.launch(block_tile_size=128, blocking_params=MOEBwdDroplessBlockingParams(), **EXACT)
    all_close(got, w.gradients())


def test_affinities_on_i_need_no_checkpoint_of_down():
    w = Layer(routed(60))
    ids, owners = w.blocks()
    tensors = (w.hidden, w.affinities, w.gate_up, w.down, w.checkpoints()[0], None)
    option = AffinityOption.AFFINITY_ON_I
    got = run(blockwise_mm_bwd, *tensors, ids, owners, w.out_grad, w.block, affinity_option=option, **EXACT)
    all_close(got, w.gradients())


def test_the_reference_is_that_of_autograd():
    w = Layer(routed(), bias=True, limits=ClampLimits(0.5, -0.4, 0.6, None))
    ids, owners = w.blocks()
    tensors = (w.hidden, w.affinities, w.gate_up, w.down, *w.checkpoints())
    got = blockwise_mm_bwd_ref(*tensors, ids, owners, w.out_grad, w.block, limits=w.limits)
    for mine, wanted in zip(got, w.gradients(), strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-5 * np.abs(wanted).max())


def test_the_compiler_takes_it_and_the_example_is_right():
    compiles_and_example_runs(blockwise_mm_bwd)
