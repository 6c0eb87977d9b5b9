"""mla_sparse_attention_cte_kernel against float64, head by head."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.mla.deepseek.mla_sparse_attention_cte import (
    MlaPrecision,
    mla_sparse_attention_cte_kernel,
    mla_sparse_attention_cte_ref,
)


@pytest.mark.tiny
def test_compiles_and_the_example_runs():
    compiles_and_example_runs(mla_sparse_attention_cte_kernel)


def call(s=3, h=4, r=16, keys=150, k=128, scale=0.05, left_out=0, seed=0):
    rng = np.random.default_rng(seed)
    chosen = np.stack([rng.permutation(max(keys, k))[:k] % keys for _ in range(s)]).astype(np.int32)
    if left_out:
        chosen[:, rng.permutation(k)[:left_out]] = -1
    return {
        "q_lift_hbm": random((1, s, h, 512), "bfloat16", 1),
        "q_pe_hbm": random((1, s, h, r), "bfloat16", 2),
        "c_kv_hbm": random((1, keys, 512), "bfloat16", 3),
        "k_pe_hbm": random((1, keys, r), "bfloat16", 4),
        "softmax_scale": scale,
        "topk_indices_hbm": chosen[None],
    }


def tiled(arguments):
    """Query 128 i + 8 t + g has partitions 16 g ... of [i, t]; j goes down the partitions."""
    flat = arguments["topk_indices_hbm"][0]
    s, k = flat.shape
    out = np.zeros((-(-s // 128), 16, 128, k // 16), np.int32)
    for query, row in enumerate(flat):
        i, inside = divmod(query, 128)
        t, g = divmod(inside, 8)
        for j, index in enumerate(row):
            out[i, t, 16 * g + j % 16, j // 16] = index
    return arguments | {"topk_indices_hbm": out, "topk_tiled": True}


def dense(offset=None, **sizes):
    """A call without indices; by default as many rows as queries."""
    sizes = {"keys": sizes.get("s", 3) + (offset or 0)} | sizes
    given = call(**sizes) | {"topk_indices_hbm": None, "dense": True}
    return given | ({} if offset is None else {"q_pos_offset_hbm": np.array([[offset]], np.int32)})


def chosen_rows(query, indices, tiled, offset):
    """The rows that a query sees."""
    if indices is None:
        return list(range((0 if offset is None else int(offset.item())) + query + 1))
    i, inside = divmod(query, 128)
    t, g = divmod(inside, 8)
    rows = indices[i, t, 16 * g : 16 * g + 16] if tiled else indices[0, query]
    return [row for row in rows.reshape(-1) if row >= 0]


def expected(
    q_lift_hbm,
    q_pe_hbm,
    c_kv_hbm,
    k_pe_hbm,
    softmax_scale,
    topk_indices_hbm=None,
    topk_tiled=False,
    q_pos_offset_hbm=None,
    **_,
):
    _, s, h, size = q_lift_hbm.shape
    out = np.zeros((1, s, h * size))
    c, k = c_kv_hbm[0].astype(np.float64), k_pe_hbm[0].astype(np.float64)
    for query in range(s):
        rows = chosen_rows(query, topk_indices_hbm, topk_tiled, q_pos_offset_hbm)
        for head in range(h):
            q = q_lift_hbm[0, query, head].astype(np.float64)
            scores = c[rows] @ q + k[rows] @ q_pe_hbm[0, query, head].astype(np.float64)
            powers = np.exp(softmax_scale * (scores - scores.max()))
            result = (powers[:, None] * c[rows]).sum(0) / powers.sum()
            for latent in range(size):
                out[0, query, head * size + 128 * (latent % 4) + latent // 4] = result[latent]
    return out


CASES = [
    Option("basic"),
    Option("one-query", call(s=1)),
    Option("one-head", call(h=1)),
    Option("128-heads", call(s=2, h=128, r=64)),
    Option("137-heads", call(s=2, h=137)),
    Option("many-rows", call(s=2, keys=700, k=640)),
    Option("2048-rows", call(s=1, keys=2100, k=2048)),
    Option("repeated-rows", call(keys=40)),
    Option("wide-position", call(r=128)),
    Option("sharp", call(scale=2.0)),
    Option("left-out", call(left_out=100)),
    Option("one-left", call(left_out=127)),
    Option("tiled", tiled(call(s=9))),
    Option("tiled-130", tiled(call(s=130, h=1, keys=200, k=256))),
    Option("bfloat16", {"precision": MlaPrecision.BF16}),
    Option("from-sbuf", {"use_sbuf_indirect": True}),
    Option("dense", dense()),
    Option("dense-one", dense(s=1, h=1, r=2)),
    Option("dense-5-heads", dense(s=53, h=5, scale=1.0)),
    Option("dense-128-heads", dense(s=3, h=128, r=64)),
    Option("dense-137-heads", dense(s=3, h=137)),
    Option("dense-256-heads-offset", dense(offset=40, s=2, h=256)),
    Option("dense-one-head", dense(s=150, h=1)),
    Option("dense-offset", dense(offset=131, s=9)),
    Option("dense-offset-0", dense(offset=0, s=5)),
    Option("dense-rows-unseen", dense(offset=7, s=5, keys=300)),
    Option("dense-blocks", dense(offset=4400, s=6, h=3)),
    Option("dense-sharp", dense(offset=2100, s=3, h=2, scale=3.0)),
]
WRONG = refusals(
    q_lift_hbm=random((1, 3, 4, 256), "bfloat16"),
    q_lift_hbm__batch=random((2, 3, 4, 512), "bfloat16"),
    q_pe_hbm=random((1, 3, 5, 16), "bfloat16"),
    q_pe_hbm__dtype=random((1, 3, 4, 16)),
    c_kv_hbm=random((1, 150, 500), "bfloat16"),
    k_pe_hbm=random((1, 150, 8), "bfloat16"),
    topk_indices_hbm=np.zeros((1, 3, 100), np.int32),
    topk_indices_hbm__rows=np.zeros((1, 3, 2176), np.int32),
    topk_indices_hbm__dtype=np.zeros((1, 3, 128), np.float32),
    topk_indices_hbm__none=None,
    topk_tiled=True,
    softmax_scale=0.0,
    q_pos_offset_hbm=np.zeros((1,), np.int32),
    precision="MX",
)
WRONG += [
    Option(f"refuses-dense-{name}", dense(**sizes) | changes, name)
    for name, sizes, changes in (
        ("topk_indices_hbm", {}, {"topk_indices_hbm": np.zeros((1, 3, 128), np.int32)}),
        ("topk_tiled", {}, {"topk_tiled": True}),
        ("q_pos_offset_hbm", {}, {"q_pos_offset_hbm": np.zeros((2,), np.int32)}),
        ("c_kv_hbm", {"keys": 8200}, {}),
    )
]
WRONG = [
    case._replace(refused="topk_indices_hbm") if case.name == "refuses-topk_tiled" else case for case in WRONG
]


@each(on_both(CASES) + [Option("trn3", on="trn3")] + WRONG)
def test_each_option_is_right_or_refused(option):
    check(option, mla_sparse_attention_cte_kernel, call(), expected, 2**-7)


def test_the_reference_agrees_with_a_loop():
    arguments = call(left_out=3)
    np.testing.assert_allclose(
        mla_sparse_attention_cte_ref(*arguments.values()), expected(**arguments), atol=1e-12
    )
    whole = dense(offset=4)
    found = mla_sparse_attention_cte_ref(*list(whole.values())[:5], q_pos_offset=4)
    np.testing.assert_allclose(found, expected(**whole), atol=1e-12)
    assert mla_sparse_attention_cte_kernel(**arguments).dtype == ml_dtypes.bfloat16
