"""deepseek_v3_router against the rule of the model, token by token in float64."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, on_both, refusals

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.experimental.deepseek_v32.deepseek_v3_router import (
    RouterOutputs,
    deepseek_v3_router,
    deepseek_v3_router_ref,
)


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(deepseek_v3_router)


def call(t=5, h=256, e=32, groups=8, kept=4, k=6, dtype="float32", transposed=False, **more):
    weight = random((e, h), dtype, 2, h**-0.5)
    return {
        "normed": random((t, h), dtype, 1),
        "router_weight": np.ascontiguousarray(weight.T) if transposed else weight,
        "e_score_correction_bias": random(e, seed=3, scale=0.1),
        "n_group": groups,
        "topk_group": kept,
        "top_k": k,
        "routed_scaling_factor": 2.5,
    } | more


def by_token(normed, router_weight, e_score_correction_bias, n_group, topk_group, top_k, scale):
    """(weights, experts, their weights), by Python's sort."""
    tokens, hidden = normed.shape
    weight = router_weight.astype(np.float64)
    weight = weight if weight.shape[1] == hidden else weight.T
    dense, experts = np.zeros((tokens, len(weight))), np.zeros((tokens, top_k), int)
    size = len(weight) // n_group
    for token, x in enumerate(normed.astype(np.float64)):
        score = [1 / (1 + np.exp(-x @ row)) for row in weight]
        choice = [s + b for s, b in zip(score, e_score_correction_bias.astype(np.float64), strict=True)]
        group = [sum(sorted(choice[g * size : (g + 1) * size])[-2:]) for g in range(n_group)]
        kept = sorted(range(n_group), key=lambda g: -group[g])[:topk_group]
        allowed = [g * size + i for g in kept for i in range(size)]
        experts[token] = sorted(allowed, key=lambda i: -choice[i])[:top_k]
        total = sum(score[i] for i in experts[token])
        for i in experts[token]:
            dense[token, i] = scale * score[i] / total
    return dense, experts, np.take_along_axis(dense, experts, 1)


def expected(outputs=RouterOutputs.DENSE, output_in_sbuf=False, **arguments):
    dense, experts, top = by_token(*arguments.values())
    results = {RouterOutputs.DENSE: dense, RouterOutputs.TOPK: (experts, top)}
    return results.get(outputs, (dense, experts, top))


CASES = [
    Option("basic"),
    Option("one-token", call(t=1)),
    Option("128-tokens", call(t=128, h=128)),
    Option("odd-tiles", call(h=384)),
    Option("transposed", call(transposed=True)),
    Option("transposed-odd", call(t=33, h=640, transposed=True)),
    Option("bf16", call(t=17, dtype="bfloat16", h=512)),
    Option("bf16-transposed", call(dtype="bfloat16", transposed=True)),
    Option("deepseek", call(t=3, h=1024, e=256, k=8, dtype="bfloat16")),
    Option("one-group", call(groups=1, kept=1)),
    Option("all-groups", call(groups=4, kept=4)),
    Option("pairs", call(e=16, groups=8, kept=8, k=8)),
    Option("few-experts", call(e=6, groups=3, kept=2, k=3)),
    Option("topk", {"outputs": RouterOutputs.TOPK}),
    Option("all", {"outputs": RouterOutputs.ALL}),
]
WRONG = refusals(
    normed=random((129, 256)),
    normed__width=random((5, 200)),
    router_weight=random((32, 128)),
    router_weight__square=random((256, 256)),
    e_score_correction_bias=random(31),
    n_group=5,
    topk_group=9,
    top_k=9,
    outputs="dense",
)


@each(on_both(CASES) + [Option("trn3", on="trn3")] + WRONG)
def test_each_option_is_right_or_refused(option):
    check(option, deepseek_v3_router, call(), expected, 1e-5)


@nki.jit
def from_tile(columns, weight, bias):
    """Route a hidden-major tile, and leave the results in SBUF."""
    tile = nl.ndarray(columns.shape, columns.dtype)
    nisa.dma_copy(tile, columns)
    dense, experts, top = deepseek_v3_router(
        tile, weight, bias, 8, 4, 6, 2.5, RouterOutputs.ALL, output_in_sbuf=True
    )
    out = nl.ndarray((nl.num_programs(0),) + tuple(dense.shape), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out[nl.program_id(0)], dense)
    assert (dense.buffer, experts.buffer, top.buffer) == (nl.sbuf, nl.sbuf, nl.sbuf)
    return out


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_tokens_and_results_may_be_tiles(lnc, transposed):
    given = call(h=384, transposed=transposed)
    x, weight, bias = list(given.values())[:3]
    columns = np.ascontiguousarray(x.reshape(5, 3, 128).transpose(2, 1, 0))
    for got in run(from_tile, columns, weight, bias, lnc=lnc):
        np.testing.assert_allclose(got, by_token(*given.values())[0], atol=1e-5)


def test_the_reference_agrees_with_the_rule_by_token():
    given = list(call().values())
    weights, experts = deepseek_v3_router_ref(*given)
    dense, chosen, _ = by_token(*given)
    np.testing.assert_allclose(weights, dense, atol=1e-12)
    np.testing.assert_array_equal(experts, chosen)
