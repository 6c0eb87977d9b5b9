"""gpt_oss_tail_chunked_megakernel against float64: logits, candidates and the token that is chosen."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import check, each, near, refusals

from nki.ranks import run_ranks
from nkilib.experimental.gpt_oss_tail import gpt_oss_tail_chunked_megakernel, gpt_oss_tail_ref


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(gpt_oss_tail_chunked_megakernel)


def call(tokens=3, hidden=200, vocabulary=700, k=9, dtype="float32", head="bfloat16", **options):
    return {
        "hidden_states": random((tokens, hidden), dtype, 1, 3.0),
        "gamma": random((hidden,), "float32", 2),
        "lm_head_weight_t": random((hidden, vocabulary), head, 3, hidden**-0.5),
        "k": k,
    } | options


def sampled(params, **sizes):
    return call(tokens=len(params), **sizes) | {"sampling_params": np.array(params, np.float32)}


def padded(zeros=56, **sizes):
    """The last channels are zeros, and do not count."""
    given = call(**sizes)
    given["hidden_states"][:, -zeros:] = 0
    return given | {"hidden_actual": given["hidden_states"].shape[1] - zeros}


def logits(hidden_states, gamma, lm_head_weight_t, eps=1e-5, hidden_actual=None, **_):
    x = hidden_states.astype(np.float64)
    total = (x * x).sum(1, keepdims=True) / (hidden_actual or x.shape[1])
    return (x / np.sqrt(total + eps) * gamma.astype(np.float64).ravel()) @ lm_head_weight_t.astype(np.float64)


def draw(row, names, top_k, top_p, temperature, uniform):
    """The token at a place of the distribution function, by the definition of top-k and top-p."""
    weights = [np.exp((value - row[0]) / temperature) for value in row]
    if top_k >= 1:
        weights = weights[: int(top_k)]
    kept, before = [], 0.0
    for weight in weights:
        if before < top_p * sum(weights):
            kept.append(weight)
        before += weight
    place = uniform * sum(kept)
    for name, weight in zip(names, kept, strict=False):
        place -= weight
        if place < 0:
            return name
    return names[len(kept) - 1]


def verify(results, arguments):
    """Logits are near float64; candidates are the largest of them, and the token is drawn from these."""
    token, values, columns, found = (np.asarray(result) for result in results)
    near(found, logits(**arguments), 2**-7)
    ours, k, params = found.astype(np.float64), arguments["k"], arguments.get("sampling_params")
    assert token.shape == (len(ours), 1) and columns.shape == values.shape == (len(ours), k)
    for i, row in enumerate(ours):
        np.testing.assert_array_equal(values[i].astype(np.float64), np.sort(row)[::-1][:k])
        np.testing.assert_array_equal(row[columns[i]], values[i].astype(np.float64))
        assert len(set(columns[i])) == k
        chosen = columns[i][0] if params is None else draw(row[columns[i]], columns[i], *params[i])
        assert token[i, 0] == chosen


CASES = {
    "basic": call(),
    "one-token": call(tokens=1),
    "bfloat16": call(dtype="bfloat16", hidden=384),
    "float16": call(dtype="float16", hidden=129),
    "float32-head": call(head="float32", hidden=65),
    "few-channels": call(hidden=5, vocabulary=33, k=1),
    "130-tokens": call(tokens=130, vocabulary=90, hidden=40),
    "all-candidates": call(vocabulary=16, k=16),
    "eps": call(eps=10.0),
    "not-deferred": call(deferred_rms=False),
    "gamma-row": call() | {"gamma": random((1, 200), "bfloat16", 2)},
    "padded": padded(),
    "padded-not-deferred": padded(hidden=256, zeros=100, deferred_rms=False),
    "sampled": sampled([(0, 1, 1, 0.7), (3, 1, 0.5, 0.9), (0, 0.3, 1, 0.99), (1, 1, 1, 0.5)]),
    "top-p": sampled([(0, 1e-6, 2, 0.999), (0, 0.5, 0.7, 0.0), (5, 0.9, 3, 0.45)], k=64),
    "hot": sampled([(0, 1, 50, u) for u in (0.0, 0.2, 0.51, 0.75, 0.9999)], k=40),
}


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("arguments", CASES.values(), ids=list(CASES))
def test_logits_candidates_and_token(arguments, lnc):
    verify(run(gpt_oss_tail_chunked_megakernel, **arguments, lnc=lnc), arguments)


def test_a_vocabulary_beyond_one_search_on_trn3():
    arguments = call(tokens=2, hidden=8, vocabulary=66001, k=5)
    verify(run(gpt_oss_tail_chunked_megakernel, **arguments, lnc=2, on="trn3"), arguments)


@pytest.mark.parametrize(
    ("groups", "options"),
    [
        (((0, 1),), {}),
        (((0, 1, 2, 3),), {}),
        (((0, 2), (1, 3)), {}),
        (((0, 1),), {"a2a_batch_groups": 3}),
        (((0, 1),), {"a2a_batch_groups": 2, "k": 40}),
    ],
    ids=["two", "four", "pairs", "three-parts", "two-parts"],
)
def test_ranks_share_the_vocabulary_and_get_their_tokens(groups, options):
    size, ranks = len(groups[0]), sum(map(len, groups))
    rows, columns = 6, 77
    whole = call(tokens=rows * size, hidden=40, vocabulary=columns * size, **options)

    def of(rank):
        place = next(group.index(rank) for group in groups if rank in group)
        part = np.ascontiguousarray(whole["lm_head_weight_t"][:, place * columns : (place + 1) * columns])
        return whole | {"lm_head_weight_t": part, "replica_groups": groups}

    results = run_ranks(gpt_oss_tail_chunked_megakernel, ranks, of, lnc=1 + (ranks == 2))
    for rank, got in enumerate(results):
        place = next(group.index(rank) for group in groups if rank in group)
        own = whole["hidden_states"][place * rows : (place + 1) * rows]
        verify(got, whole | {"hidden_states": own})


def test_a_rank_without_others_stands_for_all():
    arguments = call(tokens=4)
    options = {"replica_groups": ((0, 1),), "dummy_collectives": True, "emit_logits": False}
    found = run(gpt_oss_tail_chunked_megakernel, **arguments, **options, lnc=2)
    assert len(found) == 3 and found[1].shape == (2, 9)
    once = run(gpt_oss_tail_chunked_megakernel, **arguments)[1]
    near(found[1][0, :2], [once[0, 0], once[2, 0]], 1.0)
    largest = {float(value) for row in once[[0, 2]] for value in row}
    assert {float(value) for value in found[1][0]} <= largest


def test_numbers_of_the_generator_choose_by_weight():
    arguments = call(tokens=400, hidden=4, vocabulary=8, k=8)
    arguments["hidden_states"][:] = arguments["hidden_states"][0]
    arguments["sampling_params"] = np.array([(0, 1, 1)] * 400, np.float32)
    token, values, columns, _ = run(gpt_oss_tail_chunked_megakernel, **arguments)
    weights = np.exp(values[0].astype(np.float64) - float(values[0, 0]))
    shares = np.bincount(token.ravel(), minlength=8)[columns[0]] / 400
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.12)


WRONG = refusals(
    hidden_states=random((600, 200)),
    hidden_states__dtype=np.zeros((3, 200), np.int32),
    gamma=random((100,)),
    lm_head_weight_t=random((100, 700), "bfloat16"),
    lm_head_weight_t__dtype=random((200, 700), "float16"),
    hidden_actual=201,
    k=0,
    zero_interleaved_pad=False,
    hop_meshes=((0, 1),),
    debug_taps=True,
    skip_nan_fold=False,
    a2a_batch_groups=2,
    sampling_params=np.ones((3, 2), np.float32),
    sampling_params__dtype=np.ones((3, 3), np.int32),
)


@each(WRONG)
def test_what_cannot_be_computed_is_refused(option):
    check(option, gpt_oss_tail_chunked_megakernel, call(), logits, 0.0)


def test_the_reference_agrees_with_the_definition():
    arguments = sampled([(0, 0.8, 0.7, 0.6), (4, 1, 1, 0.3)], head="float32")
    tokens, values, columns, found = gpt_oss_tail_ref(**arguments)
    np.testing.assert_allclose(found, logits(**arguments), atol=1e-12)
    for i, params in enumerate(arguments["sampling_params"]):
        assert tokens[i] == draw(values[i], columns[i], *params.astype(np.float64))
