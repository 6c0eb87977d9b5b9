import ml_dtypes
import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.router_topk.router_topk import (
    router_topk,
    router_topk_input_w_load,
    router_topk_input_x_load,
    router_topk_ref,
)
from nkilib.core.utils.common_types import RouterActFnType

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype("float32")
SOFTMAX, SIGMOID = RouterActFnType.SOFTMAX, RouterActFnType.SIGMOID
HBM, SBUF = (1, 0), (1, 2)  # pairs of layouts


def operands(tokens, hidden, experts, dtype=BF16, hbm_layout=1):
    x = random((tokens, hidden), dtype, 1)
    w = random((hidden, experts), dtype, 2, hidden**-0.5)
    return np.ascontiguousarray(x.T) if hbm_layout == 0 else x, w


def results(tokens, experts, k, dtype=F32):
    """Arrays for the kernel to write to, filled with something that is not a result."""
    wide = np.full((2, tokens, experts), 77, dtype)
    return wide[0].copy(), wide[1].copy(), np.full((tokens, k), 77, np.int32)


def compare(got, wanted, k):
    """Tolerances of the page; indices wherever the gap to the next expert is larger than float32 errors."""
    logits, index, affinities = got[:3]
    np.testing.assert_allclose(logits.astype(np.float64), wanted[0], rtol=1e-2, atol=1e-2)
    ordered = -np.sort(-wanted[0], axis=1)
    gaps = ordered[:, :k] - np.append(ordered, np.full((len(ordered), 1), -np.inf), axis=1)[:, 1 : k + 1]
    clear = (gaps > 1e-4).all(axis=1)
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(index[clear], wanted[1][clear])
    for actual, expected in zip(got[2:], wanted[2:], strict=False):
        np.testing.assert_allclose(actual[clear].astype(np.float64), expected[clear], rtol=1e-2, atol=1e-3)
    if (wanted[2] == 0).any():
        np.testing.assert_array_equal((affinities != 0).sum(axis=1), k)


def check(x, w, k, act_fn=SOFTMAX, w_bias=None, layouts=HBM, lnc=1, on="trn2", dtype=F32, **options):
    tokens = x.shape[1 - layouts[0]]
    arrays = results(tokens, w.shape[1], k, dtype)
    got = run(router_topk, x, w, w_bias, *arrays, act_fn, k, *layouts, lnc=lnc, on=on, **options)
    rule = {name: options[name] for name in ("router_pre_norm", "norm_topk_prob") if name in options}
    compare(got, router_topk_ref(x, w, w_bias, act_fn, k, layouts[0], **rule), k)
    assert len(got) == (4 if options.get("return_eager_affi") else 3)
    return got


# ---- shapes and layouts --------------------------------------------------------------------------


@pytest.mark.tiny
def test_a_few_tokens_find_their_experts():
    check(*operands(5, 512, 8), 2)


@each_lnc
@pytest.mark.parametrize(
    "tokens, hidden, experts, k",
    [(1, 384, 32, 4), (130, 256, 128, 4), (64, 512, 512, 8), (5, 512, 3, 2), (300, 128, 9, 1)],
)
def test_sizes_need_not_be_round(tokens, hidden, experts, k, lnc):
    check(*operands(tokens, hidden, experts), k, lnc=lnc)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokens, hidden, experts, k",
    [(1, 3072, 32, 4), (128, 3072, 128, 4), (64, 4096, 128, 8), (2048, 7168, 256, 8)],
)
def test_published_sizes_are_routed(tokens, hidden, experts, k):
    check(*operands(tokens, hidden, experts), k)


@pytest.mark.parametrize("layouts", [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)])
def test_each_layout_in_hbm_gives_the_same(layouts):
    check(*operands(150, 384, 64, hbm_layout=layouts[0]), 4, layouts=layouts)


def test_several_blocks_of_tokens_are_loaded(monkeypatch):
    monkeypatch.setattr("nkilib.core.router_topk.router_operands.BLOCK_BYTES", 1024)
    monkeypatch.setattr("nkilib.core.router_topk.router_operands.CHUNK_BYTES", 512)
    monkeypatch.setattr("nkilib.core.router_topk.router_topk.CHUNK_BYTES", 512)
    check(*operands(301, 512, 24), 3)


@pytest.mark.parametrize("dtype", [F32, np.dtype("float16")])
def test_other_dtypes_are_routed(dtype):
    check(*operands(70, 256, 16, dtype), 2, dtype=dtype)


def test_results_are_rounded_to_their_dtype():
    logits, _, affinities = check(*operands(70, 256, 16), 2, dtype=BF16)
    assert logits.dtype == affinities.dtype == BF16


def test_an_unsigned_index_is_written_too():
    x, w = operands(20, 256, 16)
    logits, affinities, index = results(20, 16, 2)
    got = run(router_topk, x, w, None, logits, affinities, index.astype(np.uint32), SOFTMAX, 2, *HBM)
    assert got[1].dtype == np.uint32
    np.testing.assert_array_equal(got[1], router_topk_ref(x, w, None, SOFTMAX, 2, 1)[1])


def test_it_runs_on_trn3():
    check(*operands(70, 256, 16), 2, on="trn3")


# ---- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize("experts", [6, 40])
@pytest.mark.parametrize("k", [1, 5, 6])
@pytest.mark.parametrize("pre_norm, norm_topk_prob", [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("act_fn", [SOFTMAX, SIGMOID])
def test_affinities_follow_the_rule(act_fn, pre_norm, norm_topk_prob, k, experts):
    options = {"router_pre_norm": pre_norm, "norm_topk_prob": norm_topk_prob}
    check(*operands(40, 256, experts, F32), k, act_fn, return_eager_affi=True, **options)


@pytest.mark.parametrize("sparse", [False, True])
def test_of_equal_logits_the_lower_index_wins(sparse):
    x, w = operands(3, 128, 20, F32)
    w[:] = w[:, :1]  # all experts are equal
    arrays = results(3, 20, 4)
    logits, index, affinities = run(router_topk, x, w, None, *arrays, SOFTMAX, 4, *HBM, norm_topk_prob=sparse)
    np.testing.assert_array_equal(index, np.tile(np.arange(4), (3, 1)))
    wanted = np.where(np.arange(20) < 4, 0.25, 0.0) if sparse else np.full(20, 0.05)
    np.testing.assert_allclose(affinities, np.tile(wanted, (3, 1)), rtol=1e-5)


@pytest.mark.parametrize("bias_dtype", [BF16, F32])
@pytest.mark.parametrize("by_matmul", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (24,)])
def test_a_bias_is_added(shape, by_matmul, bias_dtype):
    bias = random(shape, bias_dtype, 3)
    check(*operands(140, 256, 24), 3, w_bias=bias, use_PE_broadcast_w_bias=by_matmul)


# ---- how, not what -------------------------------------------------------------------------------


@pytest.mark.parametrize("by_matmul", [False, True])
@pytest.mark.parametrize("tokens", [5, 32, 40, 64, 100])
def test_small_matmuls_may_share_the_array(tokens, by_matmul):
    bias = random((1, 24), BF16, 3)
    options = {"use_column_tiling": True, "use_PE_broadcast_w_bias": by_matmul}
    check(*operands(tokens, 640, 24), 3, w_bias=bias, **options)


@each_lnc
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("tokens", [40, 256])
def test_affinities_may_be_scattered_by_dma(tokens, dtype, lnc):
    options = {"use_indirect_dma_scatter": True, "router_pre_norm": False}
    check(*operands(tokens, 256, 24), 3, lnc=lnc, dtype=dtype, **options)


def test_dense_affinities_need_no_scatter():
    check(*operands(40, 256, 24), 3, SIGMOID, use_indirect_dma_scatter=True)


@pytest.mark.parametrize("layouts", [(0, 3), (1, 1)])
@pytest.mark.parametrize("tokens", [6, 300])
def test_two_cores_may_share_the_tokens(tokens, layouts):
    x, w = operands(tokens, 256, 24, hbm_layout=layouts[0])
    check(x, w, 3, layouts=layouts, lnc=2, shard_on_tokens=True, return_eager_affi=True)


@pytest.mark.parametrize("skipped", ["router_logits", "expert_index"])
def test_results_may_be_left_out(skipped):
    x, w = operands(20, 256, 16)
    arrays = results(20, 16, 2)
    got = run(router_topk, x, w, None, *arrays, SOFTMAX, 2, *HBM, **{f"skip_store_{skipped}": True})
    left_out = got[0 if skipped == "router_logits" else 1]
    assert (left_out == 77).all()
    np.testing.assert_allclose(got[2], router_topk_ref(x, w, None, SOFTMAX, 2, 1)[2], rtol=1e-2, atol=1e-3)


def test_the_arguments_of_older_releases_have_no_effect():
    older = {"output_in_sbuf": False, "x_input_in_sbuf": False, "expert_affin_in_sb": False}
    check(*operands(20, 256, 16), 2, **older)


# ---- tiles in SBUF -------------------------------------------------------------------------------


@nki.jit
def route_in_sbuf(x, w, logits, affinities, index, layouts, eager=False, shard_on_tokens=False):
    """x, and the results, as tiles."""
    tile = router_topk_input_x_load(x, layouts[0], layouts[1])
    outs = []
    for like in (logits, affinities, index):
        outs.append(nl.ndarray(like.shape, like.dtype, buffer=nl.sbuf))
    options = {"return_eager_affi": eager, "shard_on_tokens": shard_on_tokens}
    got = router_topk(tile, w, None, *outs, SOFTMAX, index.shape[1], *layouts, **options)
    stored = []
    for result in got:
        hbm = nl.ndarray(result.shape, result.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(hbm, result)
        stored.append(hbm)
    return stored


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("layouts", [(0, 3), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
def test_tokens_and_results_may_be_in_sbuf(layouts, eager):
    x, w = operands(50, 512, 24, hbm_layout=layouts[0])
    got = run(route_in_sbuf, x, w, *results(50, 24, 3), layouts, eager)
    compare(got, router_topk_ref(x, w, None, SOFTMAX, 3, layouts[0]), 3)


def test_results_in_sbuf_are_whole_on_each_of_two_cores():
    x, w = operands(51, 512, 24)
    got = run(route_in_sbuf, x, w, *results(51, 24, 3), HBM, lnc=2, shard_on_tokens=True)
    compare(got, router_topk_ref(x, w, None, SOFTMAX, 3, 1), 3)


@nki.jit
def loaded(source, layouts):
    tile = (
        router_topk_input_w_load(source, layouts)
        if isinstance(layouts, int)
        else router_topk_input_x_load(source, *layouts)
    )
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def test_each_sbuf_layout_is_as_documented():
    x = random((6, 512), BF16)
    p, t, j = np.ogrid[:128, :6, :4]
    np.testing.assert_array_equal(run(loaded, x, (1, 0)), x[t, p * 4 + j])
    np.testing.assert_array_equal(run(loaded, x, (1, 1)), x[t, j // 2 * 256 + p * 2 + j % 2])
    np.testing.assert_array_equal(run(loaded, x, (1, 2)), x[t, j * 128 + p])
    p, j, t = np.ogrid[:128, :4, :6]
    np.testing.assert_array_equal(run(loaded, np.ascontiguousarray(x.T), (0, 3)), x[t, j * 128 + p])


@pytest.mark.parametrize("layout", range(4))
def test_weights_are_loaded_in_the_order_of_x(layout):
    w = random((512, 24), BF16)
    p, j = np.ogrid[:128, :4]
    rows = {0: p * 4 + j, 1: j // 2 * 256 + p * 2 + j % 2}.get(layout, j * 128 + p)
    np.testing.assert_array_equal(run(loaded, w, layout), w[rows])


# ---- NOAUX_TC ------------------------------------------------------------------------------------


def by_torch(logits, bias, k, n_group, topk_group, factor, normalize):
    """The rule of DeepSeek-V3 in torch: masks and topk instead of sorts."""
    scores = torch.from_numpy(logits).sigmoid()
    choice = scores + torch.from_numpy(bias.astype(np.float64))
    groups = choice.view(len(choice), n_group, -1)
    selected = groups.topk(2, dim=-1).values.sum(-1).topk(topk_group, dim=-1).indices
    allowed = torch.zeros(len(choice), n_group, dtype=torch.bool).scatter_(1, selected, True)
    choice = choice.masked_fill(~allowed.repeat_interleave(groups.shape[2], 1), -torch.inf)
    index = choice.topk(k, dim=-1).indices
    top = scores.gather(1, index)
    top = (top / top.sum(-1, keepdim=True) if normalize else top) * factor
    return index.numpy(), torch.zeros_like(scores).scatter_(1, index, top).numpy(), top.numpy()


@each_lnc
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "experts, k, groups",
    [(256, 8, (8, 4)), (64, 6, (1, 1)), (16, 3, (4, 2)), (96, 4, (12, 5)), (6, 2, (3, 1)), (32, 8, (2, 2))],
)
def test_noaux_tc_selects_by_biased_scores_in_the_best_groups(experts, k, groups, normalize, lnc):
    x, w = operands(70, 256, experts, F32)
    bias = random((experts,), F32, 5, 0.2)
    options = {"n_group": groups[0], "topk_group": groups[1], "routed_scaling_factor": 2.5}
    got = run(
        router_topk, x, w, bias, *results(70, experts, k), RouterActFnType.NOAUX_TC, k, *HBM, lnc=lnc,
        norm_topk_prob=normalize, return_eager_affi=True, shard_on_tokens=lnc == 2, **options,
    )  # fmt: skip
    logits = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(got[0], logits, rtol=1e-5, atol=1e-5)
    wanted = by_torch(logits, bias, k, *groups, 2.5, normalize)
    np.testing.assert_array_equal(got[1], wanted[0])
    np.testing.assert_allclose(got[2], wanted[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[3], wanted[2], rtol=1e-5, atol=1e-6)
    rule = {"norm_topk_prob": normalize, **options}
    reference = router_topk_ref(x, w, bias, RouterActFnType.NOAUX_TC, k, 1, **rule)
    np.testing.assert_array_equal(reference[1], wanted[0])
    np.testing.assert_allclose(reference[2], wanted[1], rtol=1e-12)


# ---- refusals ------------------------------------------------------------------------------------


def refused(text, x, w, arrays, k=2, act_fn=SOFTMAX, layouts=HBM, bias=None, lnc=1, **options):
    with invalid(text):
        run(router_topk, x, w, bias, *arrays, act_fn, k, *layouts, lnc=lnc, **options)


def test_sizes_out_of_range_raise():
    refused("k: got 9, allowed are 1 to 8", *operands(4, 128, 16), results(4, 16, 9), k=9)
    refused("k: got 4, allowed are 1 to 3", *operands(4, 128, 3), results(4, 3, 4), k=4)
    refused("w: got 513 experts, allowed are at most 512", *operands(4, 128, 513), results(4, 513, 2))
    refused("x: got 2049 tokens, allowed are at most 2048", *operands(2049, 128, 8), results(2049, 8, 2))
    refused(
        "w: got hidden size 130, allowed for x_sb_layout 3 are multiples of 128",
        *operands(4, 130, 8),
        results(4, 8, 2),
    )


def test_wrong_operands_raise():
    x, w = operands(4, 256, 8)
    logits, affinities, index = arrays = results(4, 8, 2)
    refused(r"x: got shape \(4, 128\), expected \(4, 256\)", x[:, :128], w, arrays)
    refused("x: got dtype float32, expected bfloat16 like w", x.astype(F32), w, arrays)
    refused(
        r"w_bias: got shape \(7,\), allowed are \(\(1, 8\), \(8,\)\)", x, w, arrays, bias=np.zeros(7, F32)
    )
    refused(r"router_logits: got shape \(3, 8\), expected \(4, 8\)", x, w, (logits[:3], affinities, index))
    refused(
        r"expert_affinities: got shape \(4, 7\), expected \(4, 8\)", x, w, (logits, affinities[:, :7], index)
    )
    refused(r"expert_index: got shape \(4, 1\), expected \(4, 2\)", x, w, (logits, affinities, index[:, :1]))
    refused(
        "expert_index: got dtype float32, allowed are int32 and uint32",
        x,
        w,
        (logits, affinities, index.astype(F32)),
    )


def test_other_options_raise():
    x, w = operands(4, 256, 8)
    arrays = results(4, 8, 2)
    refused("x_sb_layout: got 4, allowed are 0 to 3", x, w, arrays, layouts=(1, 4))
    refused("act_fn: got 7, allowed are SIGMOID, SOFTMAX and NOAUX_TC", x, w, arrays, act_fn=7)
    text = "use_indirect_dma_scatter: got 130 tokens, allowed are up to 128 and multiples of it"
    refused(text, *operands(130, 256, 8), results(130, 8, 2), use_indirect_dma_scatter=True)
    text = "norm_topk_prob: got True with router_pre_norm=False"
    refused(text, x, w, arrays, router_pre_norm=False, norm_topk_prob=True)
    text = "shard_on_tokens: got 4 tokens on 1 cores, allowed is an even number on two"
    refused(text, x, w, arrays, shard_on_tokens=True)
    refused(
        "shard_on_tokens: got 5 tokens on 2",
        *operands(5, 256, 8),
        results(5, 8, 2),
        lnc=2,
        shard_on_tokens=True,
    )


@pytest.mark.parametrize(
    "text, options",
    [
        ("w_bias: got None, NOAUX_TC needs the e_score_correction_bias", {"bias": None}),
        ("n_group: got 3, allowed are divisors of 8", {"n_group": 3}),
        ("n_group: got 8 of 8 experts, allowed are groups of at least 2", {"n_group": 8}),
        ("topk_group: got 3, allowed are 1 to 2", {"n_group": 2, "topk_group": 3}),
        ("k: got 3, allowed are at most 2, the experts of 1 groups", {"n_group": 4, "k": 3}),
    ],
)
def test_impossible_groups_raise(text, options):
    options = {"bias": np.zeros(8, F32), "k": 2, **options}
    arrays = results(4, 8, options["k"])
    refused(text, *operands(4, 256, 8), arrays, act_fn=RouterActFnType.NOAUX_TC, **options)


def test_the_compiler_would_take_it():
    compiles_and_example_runs(router_topk)
