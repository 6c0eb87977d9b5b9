"""attention_const_max and flash_attention_2 against a softmax written out in float64."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.attention.attention_const_max import AttentionLayout, attention_const_max
from nkilib.experimental.attention.flash_attention2_trn3 import FlashAttentionConfig, flash_attention_2

HEAD, SEQUENCE = AttentionLayout.HEAD_MAJOR, AttentionLayout.SEQUENCE_MAJOR
BF16 = 2**-6


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [attention_const_max, flash_attention_2])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def attended(q, k, v, scale):
    """Query by query; q, k and v are [S, d]."""
    rows = []
    for query in q.astype(np.float64):
        scores = np.array([scale * np.dot(query, key) for key in k.astype(np.float64)])
        weights = np.exp(scores - scores.max())
        rows.append((weights[:, None] * v.astype(np.float64)).sum(0) / weights.sum())
    return np.array(rows)


def constant(heads=2, queries=5, keys=7, size=8, dtype="float32", scale=1.0):
    return {
        "q_hbm": random((heads, size, queries), dtype, scale=scale),
        "k_hbm": random((heads, size, keys), dtype, seed=1),
        "v_hbm": random((heads, keys, size), dtype, seed=2),
    }


def by_head(q_hbm, k_hbm, v_hbm, softmax_max, softmax_scale=None, q_layout=HEAD, k_layout=HEAD):
    q = np.swapaxes(q_hbm, 1, 2) if q_layout == HEAD else q_hbm
    k = np.swapaxes(k_hbm, 1, 2) if k_layout == HEAD else k_hbm
    scale = v_hbm.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    return np.array([attended(*pair, scale) for pair in zip(q, k, v_hbm, strict=True)])


CONSTANT = constant() | {"softmax_max": 1.0}
TURNED = {n: np.ascontiguousarray(np.swapaxes(CONSTANT[n], 1, 2)) for n in ("q_hbm", "k_hbm")}
CASES = [
    Option("basic"),
    Option("scale", {"softmax_scale": 0.1}),
    Option("max-zero", {"softmax_max": 0}),
    Option("max-tensor", {"softmax_max": np.full((128, 1), 2.5, np.float32)}),
    Option("q-sequence", {"q_hbm": TURNED["q_hbm"], "q_layout": SEQUENCE}),
    Option("k-sequence", {"k_hbm": TURNED["k_hbm"], "k_layout": SEQUENCE}),
    Option("both-sequence", TURNED | {"q_layout": SEQUENCE, "k_layout": SEQUENCE}),
    Option("one-head", constant(1)),
    Option("one-query", constant(3, 1, 1, 1)),
    Option("130-keys", constant(1, 3, 130, 16)),
    Option("520-queries", constant(1, 520, 3, 4)),
    Option("128-wide", constant(1, 3, 5, 128)),
    Option("bfloat16", constant(dtype="bfloat16"), tolerance=BF16),
    Option("float16", constant(dtype="float16"), tolerance=2**-8),
]
WRONG = refusals(
    q_hbm=None, k_hbm=None, v_hbm=None, q_hbm__size=random((2, 7, 5)), k_hbm__shape=random((2, 7, 8))
)
WRONG += refusals(v_hbm__rank=random((7, 8)), v_hbm__wide=random((2, 7, 129)), softmax_max=random((1, 1)))
WRONG += refusals(
    q_layout="x", k_hbm__dtype=random((2, 8, 7), "bfloat16"), v_hbm__dtype=np.ones((2, 7, 8), np.int32)
)


@each(on_both(CASES) + WRONG + [Option("trn3", on="trn3")])
def test_attention_const_max(option):
    check(option, attention_const_max, CONSTANT, by_head, 1e-5)


def flash(heads=2, key_heads=2, queries=5, keys=7, size=8, dtype="bfloat16"):
    return {
        "q": random((heads, queries, size), dtype),
        "k": random((key_heads, size, keys), dtype, seed=1),
        "v": random((key_heads, keys, size), dtype, seed=2),
        "scale": 0.3,
    }


def by_group(q, k, v, scale, config=None):
    each_key = len(q) // len(k)
    return np.array([attended(q[h], k[h // each_key].T, v[h // each_key], scale) for h in range(len(q))])


FLASHES = [
    Option("basic"),
    Option("scale", {"scale": 1.0}),
    Option("config", {"config": FlashAttentionConfig(sq_tiles_per_blk=4)}),
    Option("groups", flash(4, 2)),
    Option("one-key-head", flash(3, 1)),
    Option("one-query", flash(queries=1)),
    Option("130-queries", flash(1, 1, 130, 9)),
    Option("600-keys", flash(1, 1, 4, 600)),
    Option("64-wide", flash(size=64)),
    Option("128-wide", flash(size=128)),
    Option("float16", flash(dtype="float16")),
    Option("odd-heads", flash(3, 3)),
]


@each(
    on_both(FLASHES)
    + [Option("trn3", on="trn3")]
    + refusals(q=None, k=None, v=None, q__dtype=random((2, 5, 8)))
)
def test_flash_attention_2(option):
    check(option, flash_attention_2, flash(), by_group, BF16)
