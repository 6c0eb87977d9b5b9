import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, each_lnc, invalid, random, run
from ulps import within_ulps

import nki
import nki.language as nl
import nkilib.core.attention.attention_stages as stages
import nkilib.core.attention.attention_units as units
from nkilib.core.attention.attention_cte import attention_cte, attention_cte_ref
from support import target

BF16 = np.dtype(ml_dtypes.bfloat16)


def operands(heads, key_heads, queries, keys, d, dtype=BF16, tp_q=True, tp_k=False):
    """q, k, v; q is scaled so that scores are about normal."""
    q = random((heads, queries, d), dtype, 1, d**-0.5)
    k = random((key_heads, keys, d), dtype, 2)
    v = random((key_heads, keys, d), dtype, 3)
    return q if tp_q else transposed(q), k if tp_k else transposed(k), v


def transposed(x):
    return np.ascontiguousarray(np.swapaxes(x, 1, 2))


def number(value):
    return np.array([[value]], np.int32)


def check(arrays, lnc=1, on="trn2", **options):
    got = run(attention_cte, *arrays, lnc=lnc, on=on, **options)
    wanted = attention_cte_ref(*arrays, **options)
    if options.get("cache_softmax"):
        unnormalized = options.get("skip_output_normalization")
        largest = np.abs(wanted[0].astype(np.float64)).max() if unnormalized else 1.0
        within_ulps(got[0], wanted[0], absolute=1.5e-2 * largest)
        seen = np.isfinite(wanted[1].astype(np.float32))
        within_ulps(got[1][seen], wanted[1][seen], absolute=2e-2)
        np.testing.assert_allclose(
            got[2][seen].astype(np.float64), wanted[2][seen].astype(np.float64), rtol=2e-2
        )
        assert (got[1][~seen].astype(np.float32) > 1e29).all()
    elif got.dtype == np.float32:
        close(got, wanted, terms=arrays[2].shape[1] + arrays[2].shape[2])
    else:
        within_ulps(got, wanted, absolute=1.5e-2)
    return got


# ---- shapes --------------------------------------------------------------------------------------


@pytest.mark.tiny
def test_one_tile_attends_causally():
    check(operands(1, 1, 128, 128, 64))


@each_lnc
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "heads, key_heads, queries, keys, d",
    [
        (4, 2, 256, 256, 128),
        (3, 3, 640, 640, 128),
        (2, 1, 300, 700, 64),
        (1, 1, 77, 33, 40),
        (5, 1, 130, 129, 1),
    ],
)
def test_heads_attend(heads, key_heads, queries, keys, d, causal, lnc):
    check(operands(heads, key_heads, queries, keys, d), lnc, causal_mask=causal)


@pytest.mark.slow
@each_lnc
@pytest.mark.parametrize(
    "heads, key_heads, queries, keys, d, options",
    [
        (8, 1, 2048, 2048, 128, {}),
        (4, 4, 4680, 6240, 128, {"causal_mask": False}),
        (2, 2, 12288, 12288, 128, {}),
    ],
)
def test_published_sizes_attend(heads, key_heads, queries, keys, d, options, lnc):
    q, k, v = operands(heads, key_heads, queries, keys, d)
    got = run(attention_cte, q, k, v, lnc=lnc, **options)
    for start in (0, 640, queries // 2, queries - 100):  # the whole score matrix would take gigabytes
        rows = slice(start, start + 100)
        wanted = attention_cte_ref(q[:, rows], k, v, cp_offset=start, **options)
        within_ulps(got[:, rows], wanted, absolute=1.5e-2)


@pytest.mark.slow
@each_lnc
def test_gpt_oss_attends(lnc):
    check(operands(16, 2, 1024, 1024, 64), lnc, sliding_window=128, sink=random((16, 1), BF16))


@pytest.mark.parametrize("tp_q", [True, False])
@pytest.mark.parametrize("tp_k", [True, False])
@pytest.mark.parametrize("tp_out", [True, False])
def test_each_layout_gives_the_same(tp_q, tp_k, tp_out):
    got = run(
        attention_cte, *operands(2, 1, 200, 260, 64, BF16, tp_q, tp_k), tp_q=tp_q, tp_k=tp_k, tp_out=tp_out
    )
    plain = run(attention_cte, *operands(2, 1, 200, 260, 64, BF16))
    np.testing.assert_array_equal(transposed(got) if tp_out else got, plain)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes_attend(dtype):
    check(operands(2, 1, 200, 300, 64, np.dtype(dtype)))


def test_it_runs_on_trn3():
    check(operands(2, 1, 200, 200, 64), on="trn3")


def test_scores_may_leave_psum_in_bfloat16():
    q, k, v = operands(1, 1, 256, 256, 64)
    exact = check((q, k, v))
    got = run(attention_cte, q, k, v, mm_out_dtype=nl.bfloat16)
    assert (got != exact).any()
    within_ulps(got, exact, absolute=1.5e-2)


def test_scores_are_scaled():
    q, k, v = operands(2, 1, 200, 200, 64)
    check(((q.astype(np.float32) * 8).astype(BF16), k, v), scale=0.125)


def test_large_scores_do_not_overflow():
    q, k, v = operands(1, 1, 128, 128, 64)
    check(((q.astype(np.float32) * 300).astype(BF16), k, v))


# ---- sections: the online softmax ----------------------------------------------------------------


@pytest.fixture
def small_sections(monkeypatch):
    """Sections of 256 keys, transfers of 128, loaded again for every two query tiles."""
    monkeypatch.setattr(units, "SECTION_KEYS", 256)
    monkeypatch.setattr(units, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(units, "GROUP_TILES", 2)
    monkeypatch.setattr(stages, "LOAD_KEYS", 128)


@each_lnc
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal_mask": False},
        {"sliding_window": 200},
        {"cache_softmax": True},
        {"cp_offset": number(100)},
    ],
    ids=str,
)
def test_sections_are_joined(small_sections, options, lnc):
    check(operands(3, 1, 640, 900, 64), lnc, **options)


def test_a_later_section_may_have_the_larger_scores(small_sections):
    q, k, v = operands(1, 1, 128, 512, 64)
    k[:, :, 256:] *= BF16.type(8)
    check((q, k, v), causal_mask=False)


def test_sections_with_a_sink_are_joined(small_sections):
    check(operands(2, 1, 256, 700, 64), causal_mask=False, sink=random((2, 1), BF16, scale=4.0))


# ---- masks ---------------------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("window", [1, 64, 128, 200])
def test_a_window_limits_what_is_seen(window, lnc):
    check(operands(2, 1, 400, 400, 64), lnc, sliding_window=window)


def test_a_window_of_0_is_none():
    arrays = operands(1, 1, 200, 200, 64)
    np.testing.assert_array_equal(run(attention_cte, *arrays, sliding_window=0), run(attention_cte, *arrays))


def test_blocks_outside_the_window_are_skipped():
    mask = units.PrefillMask(True, 128, 1, None, False, None, None, None)
    assert mask.key_range(1024, 1152, 4096) == (896, 1152)
    assert units.PrefillMask(True, 0, 1, None, False, None, None, None).key_range(1024, 1152, 4096) == (
        0,
        1152,
    )


@pytest.mark.parametrize("sink", [-3.0, 0.5, 30.0])
def test_a_sink_takes_part_of_the_attention(sink):
    check(operands(3, 1, 200, 200, 64), sink=np.full((3, 1), sink, np.float32))


@each_lnc
@pytest.mark.parametrize("options", [{}, {"sliding_window": 100}, {"tp_k": True}], ids=str)
@pytest.mark.parametrize("used", [0, 300, 512])
def test_prior_keys_are_seen_as_far_as_used(used, options, lnc):
    tp_k = options.get("tp_k", False)
    arrays = operands(2, 1, 256, 256, 64, tp_k=tp_k)
    _, k_prior, v_prior = operands(1, 1, 1, 512, 64, tp_k=tp_k)
    prior = {
        "k_prior": k_prior * BF16.type(0.5),
        "v_prior": v_prior,
        "prior_used_len": np.array([used], np.int32),
    }
    check(arrays, lnc, **prior, **options)


@each_lnc
@pytest.mark.parametrize("rank", range(4))
def test_context_parallel_queries_start_at_an_offset(rank, lnc):
    check(operands(2, 2, 128, 512, 64), lnc, cp_offset=number(128 * rank), global_cp_deg=4)


@pytest.mark.parametrize("options", [{}, {"sliding_window": 150}], ids=str)
@pytest.mark.parametrize("offset", [None, 0, 3])
def test_context_parallel_queries_may_be_strided(offset, options):
    where = {} if offset is None else {"cp_offset": number(offset)}
    check(operands(1, 1, 128, 512, 64), global_cp_deg=4, cp_strided_q_slicing=True, **where, **options)


@pytest.mark.parametrize("offset", [0, -1])
def test_striped_input_shifts_the_diagonal(offset):
    got = check(operands(1, 1, 200, 200, 64), cp_offset=number(offset), cp_striped_input=True)
    if offset == -1:
        assert not got[:, 0].any()  # the first query sees no key


@each_lnc
@pytest.mark.parametrize("shape", [(2, 300), (1, 300), (300,), (300, 1)])
def test_packed_sequences_see_only_themselves(shape, lnc):
    starts = np.zeros(300, np.int32)
    ends = np.full(300, 300, np.int32)
    starts[100:], ends[:100] = 100, 100
    starts[250:], ends[100:250] = 250, 250
    bounds = {"bound_min": np.resize(starts, shape), "bound_max": np.resize(ends, shape)}
    if shape[0] == 2:  # the second head is not packed
        bounds["bound_min"][1], bounds["bound_max"][1] = 0, 300
    check(operands(2, 1, 300, 300, 64), lnc, **bounds)
    check(operands(2, 1, 300, 300, 64), lnc, causal_mask=False, **bounds)


def test_bounds_count_the_used_prior():
    _, k_prior, v_prior = operands(1, 1, 1, 256, 64)
    bounds = {
        "bound_min": np.full((1, 128), 50.0, np.float32),
        "bound_max": np.full((1, 128), 150.0, np.float32),
    }
    check(
        operands(1, 1, 128, 128, 64),
        k_prior=k_prior,
        v_prior=v_prior,
        prior_used_len=np.array([100], np.int32),
        **bounds,
    )


def test_a_query_that_sees_nothing_gives_0():
    bounds = {"bound_min": np.full((1, 128), 5, np.int32), "bound_max": np.full((1, 128), 128, np.int32)}
    out, neg_max, reciprocal = check(operands(1, 1, 128, 128, 64), cache_softmax=True, **bounds)
    assert not out[:, :5].any() and np.isfinite(out.astype(np.float32)).all()


@pytest.mark.parametrize("heads", [1, 2])
def test_a_position_bias_is_added(heads):
    check(operands(2, 1, 200, 300, 64), scale=0.5, position_bias=random((heads, 200, 300), BF16, 5))


@each_lnc
@pytest.mark.parametrize(
    "heads, queries, keys, lower, upper",
    [(1, 200, 300, 40, 0), (2, 300, 200, 5, 130), (3, 130, 130, 200, 200), (1, 64, 2500, 0, 0)],
)
def test_a_bias_may_be_stored_as_a_band(heads, queries, keys, lower, upper, lnc):
    band = random((heads, queries, lower + 1 + upper), BF16, 5)
    dense = np.zeros((heads, queries, keys))
    for i, j in np.ndindex(queries, keys):
        if -lower <= j - i <= upper:
            dense[:, i, j] = band[:, i, j - i + lower]
    arrays, options = operands(heads, 1, queries, keys, 64), {"scale": 0.5, "causal_mask": False}
    params = {"lower": lower, "upper": upper}
    got = check(arrays, lnc, position_bias=band, bias_layout="banded", bias_band_params=params, **options)
    within_ulps(got, attention_cte_ref(*arrays, position_bias=dense, **options), absolute=1.5e-2)


# ---- softmax statistics --------------------------------------------------------------------------


@each_lnc
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
@pytest.mark.parametrize("unnormalized", [False, True])
def test_softmax_statistics_are_returned(unnormalized, dtype, lnc):
    check(
        operands(3, 1, 384, 384, 64), lnc, scale=0.5, cache_softmax=True, softmax_dtype=dtype,
        skip_output_normalization=unnormalized,
    )  # fmt: skip


# ---- two cores -----------------------------------------------------------------------------------


def test_an_odd_head_is_split_evenly_between_the_cores(monkeypatch):
    def work(prg_id):
        monkeypatch.setattr(nl, "num_programs", lambda axis: 2)
        monkeypatch.setattr(nl, "program_id", lambda axis: prg_id)
        return [tile for run in units.query_runs(1, 32) for tile in range(run[1], run[2])]

    first, second = work(0), work(1)
    assert sorted(first + second) == list(range(32))
    assert sum(t + 1 for t in first) == sum(t + 1 for t in second)


# ---- modelled time -------------------------------------------------------------------------------


def test_the_tensor_engine_works_for_more_than_half_of_the_time():
    """4096 causal positions: 528 pairs of tiles, each with three times 128 columns at 2.4 GHz.

    ScalarE is the limit: it takes each exponential for longer than TensorE its products.
    """
    specs = [nki.TensorSpec(shape, "bfloat16") for shape in ((1, 4096, 128), (1, 128, 4096), (1, 4096, 128))]
    with target("trn2"):
        profile = nki.profile(attention_cte)(*specs)
    assert 0.55 * profile.total_us < 528 * 3 * 128 / 2.4e3
    assert profile.timeline.spill_bytes == 0


# ---- refusals ------------------------------------------------------------------------------------


PRIOR = {
    "k_prior": random((1, 64, 128), BF16),
    "v_prior": random((1, 128, 64), BF16),
    "prior_used_len": number(5),
}
PLAIN = (1, 1, 128, 128, 64)
BAND = {
    "position_bias": random((1, 128, 5), BF16),
    "bias_layout": "banded",
    "bias_band_params": {"lower": 2, "upper": 2},
}
REFUSALS = [
    ((2, 1, 128, 128, 129), {}, "v: got head dimension 129, allowed are 1 to 128"),
    ((514, 1, 1, 1, 1), {}, "q: got batch size 514, allowed are at most 512"),
    ((3, 2, 128, 128, 64), {}, "q: got batch size 3, allowed are multiples of that of k and v, 2"),
    ((1, 1, 128, 131200, 1), {}, "v: got sequence length 131200, allowed are at most 131072"),
    (PLAIN, {"tp_k": True}, r"k: got shape \(1, 64, 128\), expected \(1, 128, 64\)"),
    (PLAIN, {"tp_q": False}, r"q: got shape \(1, 128, 64\), expected \(1, 64, 64\)"),
    (PLAIN, {"scale": 0.0}, "scale: got 0.0, allowed are positive numbers"),
    (PLAIN, {"scale": 0.5, "sliding_window": 4}, "scale: got 0.5, allowed with sliding_window is 1.0"),
    (PLAIN, {"scale": 0.5, "cp_offset": number(1)}, "scale: got 0.5, allowed with context parallelism"),
    (PLAIN, {"scale": 0.5, "cp_striped_input": True}, "scale: got 0.5, allowed with context parallelism"),
    (PLAIN, {"scale": 0.5, **PRIOR}, "scale: got 0.5, allowed with k_prior is 1.0"),
    (PLAIN, {"k_prior": PRIOR["k_prior"]}, "allowed are all three or none"),
    (PLAIN, {**PRIOR, "v_prior": random((1, 99, 64), BF16)}, r"k_prior: got shape .*\(1, 64, 99\)"),
    (PLAIN, {**PRIOR, "prior_used_len": np.zeros(2, np.int32)}, "prior_used_len: .* expected one int32"),
    (PLAIN, {"sliding_window": -1}, "sliding_window: got -1, allowed are None, 0 and positive"),
    (PLAIN, {"sliding_window": 4, "causal_mask": False}, "sliding_window: got 4 without causal_mask"),
    (PLAIN, {"cp_offset": number(1), "causal_mask": False}, "causal_mask: got False, allowed with cp"),
    (PLAIN, {"cp_offset": np.zeros(3, np.int32)}, "cp_offset: .* expected one int32"),
    (PLAIN, {"global_cp_deg": 4}, "global_cp_deg: got 4 without cp_offset, allowed is None"),
    (PLAIN, {"global_cp_deg": 0}, "global_cp_deg: got 0, allowed are None and positive"),
    (PLAIN, {"cp_strided_q_slicing": True}, "global_cp_deg: got None, cp_strided_q_slicing needs"),
    (PLAIN, {"cp_striped_input": True, "sliding_window": 4}, "cp_striped_input: got True, allowed without"),
    (PLAIN, {"cp_striped_input": True, **PRIOR}, "cp_striped_input: got True, allowed without"),
    (PLAIN, {"bound_min": np.zeros(128, np.int32)}, "got one of them, allowed are both or none"),
    (
        PLAIN,
        {"bound_min": np.zeros(127, np.int32), "bound_max": np.zeros(128, np.int32)},
        r"bound_min: got shape \(127,\), allowed are \(\(1, 128\), \(1, 128\), \(128,\), \(128, 1\)\)",
    ),
    (
        (2, 1, 128, 128, 64),
        {"sink": np.zeros((1, 1), np.float32)},
        r"sink: got shape \(1, 1\), expected \(2, 1\)",
    ),
    (
        (1, 1, 100, 128, 64),
        {"cache_softmax": True},
        "cache_softmax: got True with 100 queries, allowed are",
    ),
    (PLAIN, {"skip_output_normalization": True}, "got True without cache_softmax, allowed is False"),
    (PLAIN, {"softmax_dtype": nl.int32}, "softmax_dtype: got int32, allowed are bfloat16"),
    (PLAIN, {"mm_out_dtype": nl.float16}, "mm_out_dtype: got float16, allowed are float32 and bfloat16"),
    (PLAIN, {"bias_layout": "sparse"}, "bias_layout: got 'sparse', allowed are 'dense' and"),
    (PLAIN, {"bias_layout": "banded"}, "position_bias: got None, bias_layout='banded' needs a tensor"),
    (PLAIN, {**BAND, "bias_band_params": None}, "bias_band_params: got None, allowed is {'lower'"),
    (PLAIN, {**BAND, "bias_band_params": {"lower": 3, "upper": -1}}, "bias_band_params: got .* from 0"),
    (PLAIN, {**BAND, "bias_band_params": {"lower": 3, "upper": 3}}, r"allowed are \(\(1, 128, 7\)"),
    (PLAIN, {"bias_band_params": 3}, "bias_band_params: got 3, allowed with 'dense' is None"),
    (
        (2, 1, 128, 128, 64),
        {"position_bias": random((3, 128, 128), BF16)},
        r"position_bias: got shape \(3, 128, 128\)",
    ),
    (PLAIN, {"position_bias": random((1, 128, 128), BF16), **PRIOR}, "position_bias: .* with k_prior"),
]


@pytest.mark.parametrize("sizes, options, text", REFUSALS, ids=[r[2][:40] for r in REFUSALS])
def test_bad_arguments_raise(sizes, options, text):
    with invalid(text):
        run(attention_cte, *operands(*sizes), **options)


def test_dtypes_must_agree():
    q, k, v = operands(1, 1, 128, 128, 64)
    with pytest.raises(AssertionError, match="k: got dtype float32, expected bfloat16 like q"):
        run(attention_cte, q, k.astype(np.float32), v)
    with pytest.raises(AssertionError, match="q: got dtype int32, allowed are bfloat16, float16 and float32"):
        run(attention_cte, q.astype(np.int32), k, v)


def test_the_compiler_would_take_it():
    compiles_and_example_runs(attention_cte)
