import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, random, run

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_tkg.moe_tkg import moe_tkg, moe_tkg_ref
from nkilib.core.utils.common_types import (
    ActFnType,
    ExpertAffinityScaleMode,
    MoEAllToAllVStrategy,
    MoEBlockIOLayout,
)
from nkilib.experimental.subkernels.permute_routed_tokens import (
    permute_routed_tokens,
    permute_routed_tokens_ref,
)
from nkilib.experimental.subkernels.topk_reduce import topk_reduce

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype("float16"), np.dtype("float32")
FP8 = np.dtype(ml_dtypes.float8_e4m3)
POST = ExpertAffinityScaleMode.POST_SCALE
ALL_EXPERT = {"is_all_expert": True, "rank_id": np.zeros((1, 1), np.int32)}


def case(tokens, hidden, inner, experts, k, dtype=BF16, everywhere=None, bias=False, scales=None, **options):
    """Arguments; `everywhere` counts the experts of all ranks, `scales` is "ROW" or "STATIC"."""
    everywhere = everywhere or experts
    rng = np.random.default_rng(tokens)
    stored, size = (FP8, 10.0) if scales else (dtype, 1.0)
    arguments = {
        "hidden_input": random((tokens, hidden), dtype, 1),
        "expert_gate_up_weights": random((experts, hidden, 2, inner), stored, 2, size * hidden**-0.5),
        "expert_down_weights": random((experts, inner, hidden), stored, 3, size * inner**-0.5),
        "expert_affinities": rng.random((tokens, everywhere), np.float32),
        "expert_index": np.stack([rng.permutation(everywhere)[:k] for _ in range(tokens)]).astype(np.int32),
        "is_all_expert": False,
    }
    if bias:
        arguments["expert_gate_up_bias"] = random((experts, 2, inner), dtype, 4)
        arguments["expert_down_bias"] = random((experts, hidden), dtype, 5)
    if scales:
        columns = (inner, hidden) if scales == "ROW" else (1, 1)
        arguments["expert_gate_up_weights_scale"] = 0.2 * rng.random((experts, 2, columns[0]), np.float32)
        arguments["expert_down_weights_scale"] = 0.2 * rng.random((experts, columns[1]), np.float32)
    return {**arguments, **options}


def check(arguments, lnc, tolerance=1e-2, **options):
    wanted = moe_tkg_ref(**arguments)
    got = run(moe_tkg, lnc=lnc, **arguments, **options)
    close_to(got, wanted, tolerance)
    return got


def close_to(got, wanted, tolerance=1e-2):
    assert got.shape == wanted.shape
    assert np.abs(got.astype(np.float64) - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(moe_tkg)


def every_expert(a, weight):
    """All experts of all tokens at once, weighed: another way to the same."""
    names = ("hidden_input", "expert_gate_up_weights", "expert_down_weights")
    x, gate_up, down = (a[name].astype(np.float64) for name in names)
    gate, up = np.einsum("th,ehgi->geti", x, gate_up)
    each = np.einsum("eti,eih->eth", gate / (1.0 + np.exp(-gate)) * up, down)
    return np.einsum("te,eth->th", weight, each)


# ---- selected experts ----------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("mode", [ExpertAffinityScaleMode.NO_SCALE, POST])
def test_each_token_goes_to_its_experts(mode, lnc):
    a = case(3, 256, 48, 4, 2, F32, expert_affinities_scaling_mode=mode)
    weight = np.zeros((3, 4))
    chosen = np.take_along_axis(a["expert_affinities"], a["expert_index"], axis=1)
    np.put_along_axis(weight, a["expert_index"], chosen if mode == POST else 1.0, axis=1)
    close_to(run(moe_tkg, lnc=lnc, **a), every_expert(a, weight), 1e-5)
    close_to(moe_tkg_ref(**a), every_expert(a, weight), 1e-12)


@each_lnc
@pytest.mark.parametrize(
    "tokens, hidden, inner, k", [(1, 256, 200, 3), (5, 384, 131, 1), (4, 512, 192, 2), (2, 128, 16, 4)]
)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_sizes_need_not_be_round(tokens, hidden, inner, k, dtype, lnc):
    check(case(tokens, hidden, inner, 4, k, dtype, bias=True, expert_affinities_scaling_mode=POST), lnc)


@each_lnc
def test_affinities_may_come_chosen_already(lnc):
    eager = random((4, 2), BF16)
    check(case(4, 256, 64, 4, 2, expert_affinities_scaling_mode=POST, expert_affinities_eager=eager), lnc)


def test_one_expert_may_be_chosen_twice():
    a = case(2, 256, 32, 4, 2, expert_affinities_scaling_mode=POST)
    a["expert_index"][:] = 3
    check(a, 1)


def test_an_expert_that_does_not_exist_is_an_error():
    a = case(2, 256, 32, 4, 2)
    a["expert_index"][1, 1] = 4
    with pytest.raises(IndexError):
        run(moe_tkg, **a)


# ---- all experts ---------------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("experts", [1, 3, 4])
def test_all_experts_take_all_tokens(experts, lnc):
    a = case(20, 256, 96, experts, 1, F32, **ALL_EXPERT, expert_affinities_scaling_mode=POST)
    wanted = every_expert(a, a["expert_affinities"].astype(np.float64))
    close_to(run(moe_tkg, lnc=lnc, **a), wanted, 1e-5)


@each_lnc
@pytest.mark.parametrize("masked", [False, True])
def test_a_rank_has_its_columns_of_the_affinities(masked, lnc):
    a = case(130, 256, 64, 2, 3, everywhere=6, bias=True, **ALL_EXPERT, expert_affinities_scaling_mode=POST)
    a["rank_id"] = np.array([[2]], np.int32)
    check({**a, "mask_unselected_experts": masked}, lnc)


@each_lnc
def test_all_experts_without_affinities_are_summed(lnc):
    check(case(7, 384, 130, 3, 1, bias=True, **ALL_EXPERT), lnc)


@each_lnc
def test_tokens_beyond_a_block_pass_the_weights_again(lnc):
    check(case(520, 256, 32, 2, 1, bias=True, **ALL_EXPERT, expert_affinities_scaling_mode=POST), lnc)


DYNAMIC = {**ALL_EXPERT, "expert_affinities_scaling_mode": POST, "mask_unselected_experts": True}


@each_lnc
@pytest.mark.parametrize("tokens, block, bias", [(20, 4, True), (130, 32, False), (150, 256, True)])
def test_dynamic_experts_give_the_same(tokens, block, bias, lnc):
    a = case(tokens, 256, 64, 2, 1, everywhere=6, bias=bias, **DYNAMIC)
    a["expert_index"][:, 0] = np.where(np.arange(tokens) % 3 == 0, 1, 5)  # no token chooses expert 0
    check(a, lnc, is_all_expert_dynamic=True, block_size=block)


def test_dynamic_experts_without_affinities_take_all_tokens():
    check(case(20, 256, 33, 1, 1, **ALL_EXPERT), 2, is_all_expert_dynamic=True, block_size=16)


def test_dynamic_experts_need_a_block_size():
    with pytest.raises(AssertionError, match="block_size"):
        run(moe_tkg, **case(2, 256, 32, 2, 1, **ALL_EXPERT), is_all_expert_dynamic=True)


# ---- the rest ------------------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("everyone", [{}, ALL_EXPERT])
@pytest.mark.parametrize("scales", ["ROW", "STATIC"])
def test_fp8_weights_have_scales(scales, everyone, lnc):
    check(
        case(3, 256, 192, 3, 2, bias=True, scales=scales, expert_affinities_scaling_mode=POST, **everyone),
        lnc,
    )


@pytest.mark.parametrize("act_fn", list(ActFnType))
def test_activations_and_limits(act_fn):
    limits = {
        "gate_clamp_upper_limit": 0.5,
        "gate_clamp_lower_limit": -0.7,
        "up_clamp_upper_limit": 0.4,
        "up_clamp_lower_limit": -0.3,
    }
    check(case(2, 256, 32, 2, 1, F32, activation_fn=act_fn, **limits), 1, 1e-4)
    check(case(2, 256, 32, 2, 1, F32, activation_fn=act_fn, gate_clamp_upper_limit=0.2), 1, 1e-4)


@each_lnc
@pytest.mark.parametrize("everyone", [{}, ALL_EXPERT])
def test_the_result_may_be_laid_out_by_partition(everyone, lnc):
    a = case(4, 512, 64, 2, 2, bias=True, expert_affinities_scaling_mode=POST, **everyone)
    got = run(moe_tkg, lnc=lnc, **a, output_layout=MoEBlockIOLayout._128_Nprgs_Hfree_T)
    assert got.shape == (128, lnc, 4 // lnc, 4)
    close_to(got.transpose(3, 1, 0, 2).reshape(4, 512), moe_tkg_ref(**a))


def test_the_result_has_the_dtype_asked_for():
    assert check(case(2, 256, 32, 2, 1), 1, output_dtype=nl.float32).dtype == np.float32


@each_lnc
def test_the_result_goes_where_it_is_asked_for(lnc):
    a = case(2, 256, 32, 2, 1)
    out = np.zeros((2, 256), np.float32)
    close_to(run(moe_tkg, lnc=lnc, **a, output=out), moe_tkg_ref(**a))
    close_to(out, moe_tkg_ref(**a))


def test_older_names_still_work():
    a = case(2, 256, 32, 2, 1)
    got = run(moe_tkg, **a, outp_layout=MoEBlockIOLayout._128_Nprgs_Hfree_T)
    close_to(got.transpose(3, 1, 0, 2).reshape(2, 256), moe_tkg_ref(**a))
    for name in ("gate_up_input_scale", "down_input_scale"):
        with pytest.raises(NotImplementedError, match=f"expert_{name}"):
            run(moe_tkg, **a, **{name: np.ones((2, 1), np.float32)})


NAMES = (
    "expert_gate_up_weights",
    "expert_down_weights",
    "expert_affinities",
    "expert_index",
    "is_all_expert",
    "rank_id",
)
IN_SBUF = {"expert_affinities_scaling_mode": POST, "output_in_sbuf": True}


def loaded(view):
    tile = nl.ndarray(view.shape, view.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, view)
    return tile


@nki.jit
def through_sbuf(hidden, gate_up, down, affinities, index, is_all_expert, rank_id):
    """hidden is [128, T, H / 128] in HBM already."""
    x, w = loaded(hidden), loaded(affinities)
    out = moe_tkg(x, gate_up, down, w, index, is_all_expert, rank_id, **IN_SBUF)
    result = nl.ndarray(hidden.shape, hidden.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.dma_copy(result, out)
    return result


@nki.jit
def halves_through_sbuf(hidden, gate_up, down, affinities, index, is_all_expert, rank_id):
    """hidden is [2, 128, T, H / 256]."""
    core = nl.program_id(0)
    out = moe_tkg(loaded(hidden[core]), gate_up, down, affinities, index, is_all_expert, rank_id, **IN_SBUF)
    result = nl.ndarray(hidden.shape, hidden.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(result[core], out)
    return result


@each_lnc
@pytest.mark.parametrize("everyone", [False, True])
def test_tokens_come_from_sbuf_and_go_there(everyone, lnc):
    a = case(3, 512, 64, 2, 2, expert_affinities_scaling_mode=POST)
    a |= {"is_all_expert": everyone, "rank_id": np.zeros((1, 1), np.int32)}
    x = np.ascontiguousarray(a["hidden_input"].reshape(3, 128, 4).transpose(1, 0, 2))
    got = run(through_sbuf, x, *[a[name] for name in NAMES], lnc=lnc)
    close_to(got.transpose(1, 0, 2).reshape(3, 512), moe_tkg_ref(**a))


def test_each_core_may_have_its_half_in_sbuf():
    a = case(3, 512, 64, 2, 2, expert_affinities_scaling_mode=POST, **ALL_EXPERT)
    x = np.ascontiguousarray(a["hidden_input"].reshape(3, 2, 128, 2).transpose(1, 2, 0, 3))
    got = run(halves_through_sbuf, x, *[a[name] for name in NAMES], lnc=2)
    close_to(got.transpose(2, 0, 1, 3).reshape(3, 512), moe_tkg_ref(**a))


# ---- rows that an all-to-all brought -------------------------------------------------------------


def packed(local, rank, tokens=20, hidden=256):
    """Rows of the local experts of a rank, and their experts."""
    rng = np.random.default_rng(3)
    index = np.stack([rng.permutation(4)[:2] for _ in range(tokens)]).astype(np.int32)
    rows = permute_routed_tokens_ref(random((tokens, hidden), BF16), index, random((tokens, 4), BF16, 4))
    experts = np.sort(index.ravel())
    here = experts // local == rank
    return rows[here], experts[here].astype(np.int32).reshape(-1, 1)


@each_lnc
@pytest.mark.parametrize("local, rank", [(1, 3), (2, 1)])
def test_packed_rows_go_to_the_expert_they_were_sent_to(local, rank, lnc):
    rows, experts = packed(local, rank)
    a = case(20, 256, 64, local, 1, **ALL_EXPERT, expert_affinities_scaling_mode=POST)
    a |= {"hidden_input": rows, "expert_index": experts, "rank_id": np.array([[rank]], np.int32)}
    weight = np.zeros((len(rows), local))
    weight[np.arange(len(rows)), experts[:, 0] - local * rank] = rows[:, 256]
    wanted = every_expert({**a, "hidden_input": rows[:, :256]}, weight)
    for strategy in (MoEAllToAllVStrategy.PRESERVE_ROW_ORDER, MoEAllToAllVStrategy.PACK_OUTPUT_ROWS):
        got = run(moe_tkg, lnc=lnc, **a, all_to_all_v_strategy=strategy)
        close_to(got[:, :256], wanted)
    number = np.ascontiguousarray(rows[:, 257:]).view(np.int32)
    np.testing.assert_array_equal(np.ascontiguousarray(got[:, 256:]).view(np.int32), number + 1)


def test_tokens_come_home_through_permute_experts_and_reduce():
    x, affinities = random((16, 256), BF16), random((16, 4), BF16, 4)
    index = np.stack([np.random.default_rng(t).permutation(4)[:2] for t in range(16)]).astype(np.int32)
    a = case(16, 256, 32, 4, 1, **ALL_EXPERT, expert_affinities_scaling_mode=POST)
    a |= {"hidden_input": run(permute_routed_tokens, x, index, affinities)}
    a |= {"expert_index": np.sort(index.ravel()).reshape(-1, 1)}
    rows = run(moe_tkg, **a, all_to_all_v_strategy=MoEAllToAllVStrategy.PACK_OUTPUT_ROWS)
    whole = {**a, "hidden_input": x, "expert_index": index, "expert_affinities": affinities}
    close_to(run(topk_reduce, rows, 16, 2), moe_tkg_ref(**{**whole, "is_all_expert": False}))


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"expert_affinities_scaling_mode": ExpertAffinityScaleMode.PRE_SCALE},
            "expert_affinities_scaling_mode",
        ),
        ({"is_all_expert": True, "expert_affinities_scaling_mode": POST}, "rank_id: got None"),
        ({**ALL_EXPERT, "expert_affinities_eager": np.zeros((2, 1), np.float32)}, "expert_affinities_eager"),
        ({"hidden_input": np.zeros((2, 128), BF16)}, "hidden_input: got shape"),
        ({"hidden_input": np.zeros((129, 256), BF16)}, "hidden_input: got 129 tokens"),
        ({"expert_gate_up_weights_scale": np.zeros((2, 2, 32), np.float32)}, "expected both or none"),
        ({"expert_down_bias": np.zeros((2, 32), BF16)}, "expert_down_bias: got shape"),
    ],
)
def test_raises_on_invalid_arguments(change, message):
    with pytest.raises(AssertionError, match=message):
        run(moe_tkg, **{**case(2, 256, 32, 2, 1), **change})
