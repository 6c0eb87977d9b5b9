"""deepseek_v32_sparse_indexer against float64; MXFP8 of the queries' latents is emulated."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from mla_operands import as_mx
from mx_weights import rows_in_words
from options.common import Option, each, near, on_both, refusal, refusals

from nkilib.experimental.deepseek_v32.sparse_indexer import (
    deepseek_v32_sparse_indexer,
    deepseek_v32_sparse_indexer_ref,
)


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(deepseek_v32_sparse_indexer)


def hadamard():
    matrix = np.ones((1, 1))
    while len(matrix) < 128:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix / 128**0.5).astype(ml_dtypes.bfloat16)


def call(t=3, hidden=256, rank=512, heads=4, rope=64, slots=40, k=8, at=None):
    rng = np.random.default_rng(3)
    wq_b, scale, matrix = rows_in_words(rank, heads * 128, "float8_e4m3fn", 4)
    angle = rng.uniform(-3, 3, (t, rope // 2))
    places = rng.integers(slots // 2, slots, t) if at is None else np.array(at)
    given = {
        "hidden_states": random((t, hidden), "bfloat16", 1),
        "qr": random((t, rank), "bfloat16", 2),
        "wq_b": wq_b,
        "wq_b_scale": scale,
        "wk": random((hidden, 128), "bfloat16", 5, hidden**-0.5),
        "k_norm_weight": random(128, seed=6),
        "k_norm_bias": random(128, seed=7),
        "weights_proj": random((hidden, heads), "bfloat16", 8, hidden**-0.5),
        "hadamard": hadamard(),
        "cos": np.cos(angle).astype(np.float32),
        "sin": np.sin(angle).astype(np.float32),
        "key_cache": random((t, 128, slots), "bfloat16", 9),
        "positions": places.astype(np.int32),
        "index_topk": k,
    }
    return given, matrix


def turned(x, cos, sin, matrix):
    """RoPE of the first elements of one row, then the product with the matrix."""
    out, half = np.array(x, np.float64), len(cos)
    for i in range(half):
        out[i] = x[i] * cos[i] - x[half + i] * sin[i]
        out[half + i] = x[half + i] * cos[i] + x[i] * sin[i]
    return out @ matrix.astype(np.float64)


def expected(a, matrix):
    """(scores, cache), token by token and slot by slot."""
    cache = a["key_cache"].astype(np.float64)
    heads, slots = a["weights_proj"].shape[1], cache.shape[2]
    scores = np.full((len(cache), slots), -1e30)
    latents = as_mx(a["qr"])
    for t, position in enumerate(a["positions"]):
        x = a["hidden_states"][t].astype(np.float64)
        k = x @ a["wk"].astype(np.float64)
        k = (k - k.mean()) / np.sqrt(k.var() + 1e-6) * a["k_norm_weight"] + a["k_norm_bias"]
        angles = a["cos"][t].astype(np.float64), a["sin"][t].astype(np.float64)
        if position >= 0:
            cache[t, :, position] = turned(k, *angles, a["hadamard"])
        q = (latents[t] @ matrix).reshape(heads, 128)
        q = [turned(row, *angles, a["hadamard"]) for row in q]
        weights = x @ a["weights_proj"].astype(np.float64) / np.sqrt(128 * heads)
        for slot in range(position + 1):
            scores[t, slot] = sum(
                w * max(row @ cache[t, :, slot], 0) for w, row in zip(weights, q, strict=True)
            )
    return scores, cache


def compare(option):
    build = {key: value for key, value in option.changes.items() if key in call.__code__.co_varnames[:8]}
    a, matrix = call(**build)
    a |= {key: value for key, value in option.changes.items() if key not in build}
    if option.refused:
        with pytest.raises((AssertionError, NotImplementedError), match=refusal(option.refused)):
            run(deepseek_v32_sparse_indexer, **a, lnc=option.lnc, on=option.on)
        return
    scores, cache = expected(a, matrix)
    index, got, _ = run(deepseek_v32_sparse_indexer, **a, lnc=option.lnc, on=option.on)
    near(a["key_cache"], cache, 2**-6)
    slots = a.get("valid_len") or cache.shape[2]
    scores, kept = scores[:, :slots], scores[:, :slots] > -1e29
    assert got.dtype == np.float32 and index.dtype == np.int32 and np.all(got[~kept] < -1e29)
    near(np.where(kept, got, 0), np.where(kept, scores, 0), 2**-6)
    rounded = got.astype(ml_dtypes.bfloat16).astype(np.float64)
    for row, places, count in zip(rounded, index, kept.sum(1), strict=True):
        found = min(count, a["index_topk"])
        chosen = places[places >= 0]
        assert len(set(chosen)) == len(chosen) == found and np.all(places[places < 0] == -1)
        np.testing.assert_array_equal(-np.sort(-row[chosen]), -np.sort(-row)[:found])


CASES = [
    Option("basic"),
    Option("one-token", {"t": 1}),
    Option("nine-tokens", {"t": 9}),
    Option("one-head", {"heads": 1}),
    Option("five-heads", {"heads": 5}),
    Option("64-heads", {"heads": 64, "t": 2, "slots": 16}),
    Option("rope-32", {"rope": 32}),
    Option("all-rotated", {"rope": 128}),
    Option("wide", {"hidden": 384, "rank": 1024}),
    Option("many-slots", {"slots": 1100, "t": 2, "k": 100}),
    Option("short-sequences", {"at": [0, 3, 39]}),
    Option("padding", {"at": [5, -1, 20]}),
    Option("every-slot", {"k": 40}),
    Option("one-slot", {"k": 1}),
    Option("valid_len", {"at": [5, 11, 3], "valid_len": 12}),
]
WRONG = refusals(
    hidden_states=random((3, 200), "bfloat16"),
    qr=random((3, 500), "bfloat16"),
    wq_b=np.zeros((128, 128), np.uint32),
    wq_b_scale=np.zeros((4, 512), np.uint8),
    wk=random((256, 64), "bfloat16"),
    k_norm_weight=random(64),
    k_norm_bias=random(64),
    weights_proj=random((200, 4), "bfloat16"),
    hadamard=random((64, 64), "bfloat16"),
    cos=random((3, 65)),
    sin=random((3, 31)),
    key_cache=random((3, 64, 40), "bfloat16"),
    key_cache__slots=random((3, 128, 7), "bfloat16"),
    positions=np.zeros(3, np.float32),
    index_topk=41,
    valid_len=41,
) + [Option("refuses-trn2", {}, "deepseek_v32_sparse_indexer", on="trn2")]


@each([case._replace(on="trn3") for case in on_both(CASES) + WRONG[:-1]] + WRONG[-1:])
def test_each_option_is_right_or_refused(option):
    compare(option)


def test_the_reference_agrees_with_a_loop():
    a, matrix = call(at=[5, -1, 20])
    q = (as_mx(a["qr"]) @ matrix).reshape(3, 4, 128)
    norms = (a["k_norm_weight"], a["k_norm_bias"])
    names = ("weights_proj", "hadamard", "cos", "sin", "key_cache", "positions")
    got = deepseek_v32_sparse_indexer_ref(a["hidden_states"], q, a["wk"], norms, *(a[n] for n in names))
    for one, wanted in zip(got, expected(a, matrix), strict=True):
        near(one, wanted, 1e-6)
