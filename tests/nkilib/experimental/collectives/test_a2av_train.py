"""Tokens to the ranks of their experts and back, on 1 to 4 ranks."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, refusals

from nki.ranks import run_ranks
from nkilib.experimental.benchmark.find_nonzero_indices_with_count import find_nonzero_indices_with_count
from nkilib.experimental.collectives.a2av_train import permute_a2av, unpermute_a2av
from nkilib.experimental.collectives.a2av_train.permute_a2av import permute_a2av_ref
from nkilib.experimental.collectives.a2av_train.unpermute_a2av import unpermute_a2av_ref
from support import target


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [permute_a2av, unpermute_a2av, find_nonzero_indices_with_count])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def routed(ranks, tokens, share, seed):
    """send_indices and send_counts of every rank."""
    rng = np.random.default_rng(seed)
    indices, counts = [], []
    for _ in range(ranks):
        goes = rng.random((tokens, ranks)) < share
        table = np.full((tokens, ranks), tokens, np.int32)
        for rank in range(ranks):
            chosen = np.flatnonzero(goes[:, rank])
            table[: len(chosen), rank] = rng.permutation(chosen)
        indices.append(table)
        counts.append(goes.sum(0, keepdims=True).astype(np.int32))
    return indices, counts


SIZES = [
    (1, 5, 3, 0.5, "float32"),
    (2, 6, 4, 0.5, "float32"),
    (2, 6, 4, 1.0, "float32"),
    (2, 6, 4, 0.0, "float32"),
    (3, 7, 5, 0.4, "bfloat16"),
    (4, 130, 3, 0.3, "float32"),
    (4, 9, 40, 0.6, "float16"),
]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_permute(size, lnc):
    ranks, tokens, width, share, dtype = size
    indices, counts = routed(ranks, tokens, share, 0)
    rows = [random((tokens, width), dtype, seed) for seed in range(ranks)]
    kernel = permute_a2av if lnc == 1 else permute_a2av[lnc]
    group = (tuple(range(ranks)),)
    got = run_ranks(kernel, ranks, lambda rank: (rows[rank], indices[rank], counts[rank], group))
    for here in range(ranks):
        packed = [rows[there][indices[there][: counts[there][0, here], here]] for there in range(ranks)]
        expected = np.concatenate(packed)
        np.testing.assert_array_equal(got[here][0][: len(expected)], expected)
        assert not got[here][0][len(expected) :].astype(np.float32).any()
        lengths = [len(part) for part in packed]
        assert got[here][1][2].tolist() == [width * n for n in lengths]
        assert got[here][1][3].tolist() == [width * sum(lengths[:i]) for i in range(ranks)]
        assert got[here][1][0].tolist() == (width * counts[here][0]).tolist()
    results, tables = permute_a2av_ref(rows, indices, counts)
    for here in range(ranks):
        np.testing.assert_array_equal(got[here][0], results[here])
        np.testing.assert_array_equal(got[here][1], tables[here])


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_unpermute(size, lnc):
    ranks, tokens, width, share, dtype = size
    indices, counts = routed(ranks, tokens, share, 1)
    rows = [random((ranks * tokens, width), dtype, seed) for seed in range(ranks)]
    received = [np.array([[counts[s][0, r] for s in range(ranks)]], np.int32) for r in range(ranks)]
    kernel = unpermute_a2av if lnc == 1 else unpermute_a2av[lnc]
    group = (tuple(range(ranks)),)
    got = run_ranks(kernel, ranks, lambda rank: (rows[rank], indices[rank], received[rank], group))
    for here in range(ranks):
        expected = np.zeros((tokens, width))
        for there in range(ranks):
            for t in range(counts[here][0, there]):
                token = indices[here][t, there]
                expected[token] += rows[there][here * tokens + t].astype(np.float64)
        near(got[here], expected, 1e-6 if dtype == "float32" else 2**-8)
        near(unpermute_a2av_ref(rows, indices, received)[here], expected, 1e-12)


def test_a_token_comes_back_as_often_as_it_went():
    """Both directions in turn: what arrives packed is laid out in slots, as experts leave it."""
    ranks, tokens = 2, 6
    indices, counts = routed(ranks, tokens, 0.7, 2)
    rows = [random((tokens, 3), seed=seed) for seed in range(ranks)]
    group = ((0, 1),)
    with target("trn3"):
        sent = run_ranks(permute_a2av, ranks, lambda rank: (rows[rank], indices[rank], counts[rank], group))
    slots, received = [], []
    for out, table in sent:
        n = table[2] // 3
        begins = table[3] // 3
        slot = np.zeros((ranks * tokens, 3), np.float32)
        for s in range(ranks):
            slot[s * tokens : s * tokens + n[s]] = out[begins[s] : begins[s] + n[s]]
        slots.append(slot)
        received.append(n[None].astype(np.int32))
    got = run_ranks(unpermute_a2av, ranks, lambda rank: (slots[rank], indices[rank], received[rank], group))
    for rank in range(ranks):
        times = (indices[rank][:, :, None] == np.arange(tokens)).sum((0, 1))
        near(got[rank], rows[rank] * times[:, None].astype(np.float64), 1e-6)


DISPATCH = {"hidden_states": random((5, 3)), "send_indices": np.full((5, 1), 5, np.int32)}
DISPATCH |= {"send_counts": np.zeros((1, 1), np.int32), "replica_group": ((0,),)}
WRONG = refusals(hidden_states=None, hidden_states__dtype=np.ones((5, 3), np.int32))
WRONG += refusals(send_indices=np.zeros((4, 1), np.int32), send_indices__dtype=random((5, 1)))
WRONG += refusals(send_counts=np.zeros((1, 2), np.int32))


@each(WRONG)
def test_permute_refusals(option):
    check(option, permute_a2av, DISPATCH, lambda **_: None, 0.0)


COMBINE = {"output": random((5, 3)), "send_indices": np.full((5, 1), 5, np.int32)}
COMBINE |= {"recv_counts": np.zeros((1, 1), np.int32), "replica_group": ((0,),)}


@each(refusals(output=random((6, 3)), send_indices=np.zeros((5, 2), np.int32), recv_counts=random((2, 1))))
def test_unpermute_refusals(option):
    check(option, unpermute_a2av, COMBINE, lambda **_: None, 0.0)


FOUND = [
    Option(
        f"{share}-of-{tokens}", {"input_tensor": (np.random.default_rng(i).random((1, tokens)) < share) * 2.5}
    )
    for i, (tokens, share) in enumerate([(1, 1.0), (7, 0.5), (32, 0.0), (128, 0.3), (1000, 0.1), (4096, 1.0)])
]
FOUND = [
    option._replace(changes={"input_tensor": option.changes["input_tensor"].astype("f")}) for option in FOUND
]
FOUND += [option._replace(name=f"{option.name}-lnc2", lnc=2) for option in FOUND]
FOUND += [Option("int32", {"input_tensor": np.array([[0, -3, 0, 9]], np.int32)}), Option("trn3", on="trn3")]
FOUND += refusals(
    input_tensor=None, input_tensor__rank=random(4), input_tensor__dtype=random((1, 4), "bfloat16")
)


@each(FOUND)
def test_find_nonzero_indices_with_count(option):
    def reference(input_tensor):
        found = [i for i, value in enumerate(input_tensor[0]) if value != 0]
        return np.array([found + [-1] * (input_tensor.shape[1] - len(found)) + [len(found)]])

    check(option, find_nonzero_indices_with_count, {"input_tensor": random((1, 5))}, reference, 0.0)
    if not option.refused:
        assert run(find_nonzero_indices_with_count, random((1, 5))).dtype == np.int32
