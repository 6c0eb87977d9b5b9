"""Hidden-sharded experts against numpy in float64, one token of one block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, each_lnc, random, run

import nki.language as nl
from nkilib.core.utils.common_types import ExpertAffinityScaleMode as Scaling
from nkilib.experimental.moe.forward import SkipMode, blockwise_mm_baseline_shard_hidden

HIDDEN, INNER, EXPERTS, TOKENS, BLOCK = 512, 48, 3, 150, 128
EXACT = {"compute_dtype": nl.float32}


def layer(dtype: Any = "float32", skip: bool = False, padding: int = 0, repeated: bool = True) -> dict:
    """Tokens in three blocks of experts 1, 0 and 2; `padding` more rows of Wd, which are not read."""
    rng = np.random.default_rng(3)
    ids = np.stack([rng.permutation(TOKENS)[:BLOCK] for _ in range(3)]).astype(np.int32)
    if not repeated:  # a token in one block at most
        ids = np.full((3, BLOCK), TOKENS, np.int32)
        ids[:, :50] = rng.permutation(TOKENS).reshape(3, 50)
    ids[:, 101:] = TOKENS
    hidden = random((TOKENS + 1, HIDDEN), dtype)
    hidden[TOKENS] = 0
    if skip:
        ids, hidden = np.where(ids == TOKENS, -1, ids).astype(np.int32), hidden[:TOKENS]
    return {
        "hidden_states": hidden,
        "expert_affinities_masked": np.abs(random((len(hidden) * EXPERTS, 1), dtype, seed=1)),
        "gate_up_proj_weight": random((EXPERTS, HIDDEN, 2, INNER), dtype, seed=2, scale=HIDDEN**-0.5),
        "down_proj_weight": random((EXPERTS, INNER + padding, HIDDEN), dtype, seed=3, scale=INNER**-0.5),
        "block_size": BLOCK,
        "token_position_to_id": ids.ravel(),
        "block_to_expert": np.array([[1], [0], [2]], np.int32),
        "skip_dma": SkipMode(skip, False),
    }


def wanted(given: dict, scaling: Any = Scaling.POST_SCALE, accumulating: bool = True) -> tuple:
    """(out, gate and up, down), token by token."""
    x = given["hidden_states"].astype(np.float64)
    weights = given["expert_affinities_masked"].astype(np.float64).reshape(len(x), EXPERTS)
    out, gate_up = np.zeros(x.shape), np.zeros((3, 2, INNER, BLOCK))
    down = np.zeros((3, BLOCK, HIDDEN))
    for position, token in enumerate(given["token_position_to_id"]):
        n, b = divmod(position, BLOCK)
        if not 0 <= token < TOKENS:
            continue
        e = given["block_to_expert"][n, 0]
        w = weights[token, e]
        row = x[token] * w if scaling == Scaling.PRE_SCALE else x[token]
        g, u = np.einsum("h,hgi->gi", row, given["gate_up_proj_weight"][e].astype(np.float64))
        gate_up[n, :, :, b] = g, u
        down[n, b] = (g / (1 + np.exp(-g)) * u) @ given["down_proj_weight"][e, :INNER].astype(np.float64)
        result = down[n, b] * w if scaling == Scaling.POST_SCALE else down[n, b]
        out[token] = out[token] + result if accumulating else result
    return out, gate_up, down


@each_lnc
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("scaling", [Scaling.POST_SCALE, Scaling.PRE_SCALE, Scaling.NO_SCALE])
def test_experts_with_every_scaling(lnc, skip, scaling):
    given = layer(skip=skip)
    options = EXACT | {"expert_affinities_scaling_mode": scaling}
    got = run(blockwise_mm_baseline_shard_hidden, **given, **options, lnc=lnc)
    close(got[:TOKENS], wanted(given, scaling)[0][:TOKENS], terms=HIDDEN)


@each_lnc
@pytest.mark.parametrize("padding", [0, 16])
def test_rows_of_padding_are_not_read_and_activations_are_stored(lnc, padding):
    given = layer(padding=padding)
    if padding:
        given["down_proj_weight"][:, INNER:] = np.nan
    kept = {
        "gate_up_activations_T": np.zeros((3, 2, INNER, BLOCK), np.float32),
        "down_activations": np.zeros((3, BLOCK, HIDDEN), np.float32),
    }
    dtypes = {"activation_dtype": nl.float32, "accum_dtype": nl.float32}
    got = run(blockwise_mm_baseline_shard_hidden, **given, **kept, **EXACT, **dtypes, lnc=lnc)
    out, gate_up, down = wanted(given)
    close(got[:TOKENS], out[:TOKENS], terms=HIDDEN)
    close(kept["gate_up_activations_T"], gate_up, terms=HIDDEN)
    close(kept["down_activations"], down, terms=HIDDEN)


@each_lnc
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_replaced_where_nothing_is_accumulated(lnc, dtype):
    given = layer(dtype, repeated=False)
    options = {} if dtype == "bfloat16" else EXACT
    got = run(
        blockwise_mm_baseline_shard_hidden,
        **given, **options, is_tensor_update_accumulating=False, lnc=lnc,
    )  # fmt: skip
    reference = wanted(given, accumulating=False)[0][:TOKENS]
    tolerance = {"bfloat16": 2e-2, "float32": 1e-5}[dtype] * np.abs(reference).max()
    np.testing.assert_allclose(np.asarray(got[:TOKENS], np.float64), reference, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate_up_activations_T": np.zeros((3, 2, INNER, BLOCK), np.float32)}, "down_activations: got one"),
        ({"accum_dtype": nl.bfloat16}, "accum_dtype: got bfloat16"),
        ({"activation_dtype": nl.float16}, "activation_dtype: got float16"),
        ({"block_size": 100}, "block_size: got 100"),
        ({"down_proj_weight": None}, "down_proj_weight: got None"),
    ],
)
def test_wrong_arguments_raise_by_name(change, message):
    with pytest.raises(AssertionError, match=message):
        run(blockwise_mm_baseline_shard_hidden, **layer() | change)


def test_the_compiler_takes_it_and_the_example_is_right():
    compiles_and_example_runs(blockwise_mm_baseline_shard_hidden)
