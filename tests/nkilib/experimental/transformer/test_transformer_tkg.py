"""Layers of a transformer in decode against PyTorch's way to write them, in float64."""

import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, random, run

from nki.ranks import run_ranks
from nkilib.experimental.transformer.transformer_tkg import transformer_tkg, transformer_tkg_ref
from support import target

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
H, N, D, INNER, ROOM = 256, 4, 32, 192, 160


def inputs(layers=1, batch=2, active=1, window=128, dtype=BF16):
    def each(shape, seed, scale=1.0):
        return [random(shape, dtype, seed + 10 * layer, scale) for layer in range(layers)]

    angle = np.random.default_rng(6).uniform(0, 6, (D // 2, batch, active))
    mask = (np.random.default_rng(3).random((window, batch, N, active)) < 0.7).astype(np.uint8)
    for b, at in enumerate((7, 100)[:batch]):
        mask[at : at + active, b] = 0  # written, not seen
    mask[-active:] = np.triu(np.ones((active, active)))[:, None, None, :]
    return {
        "X": random((batch, active, H), dtype),
        "W_qkvs": each((H, (N + 2) * D), 1, H**-0.5),
        "W_outs": each((N * D, H), 2, (N * D) ** -0.5),
        "W_gates": each((H, INNER), 3, H**-0.5),
        "W_ups": each((H, INNER), 4, H**-0.5),
        "W_downs": each((INNER, H), 5, INNER**-0.5),
        "W_gamma_qkvs": each((1, H), 6),
        "W_gamma_mlps": each((1, H), 7),
        "K_caches": each((batch, 1, D, ROOM), 8),
        "V_caches": each((batch, 1, ROOM, D), 9),
        "RoPE_cos": np.cos(angle).astype(dtype),
        "RoPE_sin": np.sin(angle).astype(dtype),
        "attention_mask": mask,
        "position_ids": np.array([[7], [100]], np.int32)[:batch],
        "num_layers": layers,
    }


def decoded(a, layer, x):
    """Compute one layer in float64, written without the library; x [B, S, H]."""
    w = {name: np.asarray(a[name][layer], np.float64) for name in a if isinstance(a[name], list)}

    def normed(x, gamma):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gamma

    def rotated(y):  # [B, S, heads, d]
        cos, sin = (
            np.asarray(a[f"RoPE_{f}"], np.float64).transpose(1, 2, 0)[:, :, None] for f in ("cos", "sin")
        )
        low, high = y[..., : D // 2], y[..., D // 2 :]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    batch, active = x.shape[:2]
    window = len(a["attention_mask"])
    qkv = (normed(x, w["W_gamma_qkvs"]) @ w["W_qkvs"]).reshape(batch, active, N + 2, D)
    q, k, v = rotated(qkv[:, :, :N]), rotated(qkv[:, :, N : N + 1])[:, :, 0], qkv[:, :, N + 1]
    keys = w["K_caches"][:, 0].swapaxes(1, 2)[:, :window].copy()
    values = w["V_caches"][:, 0, :window].copy()
    keys[:, -active:], values[:, -active:] = k, v
    scores = np.einsum("bsnd,bkd->kbns", q, keys) / D**0.5
    weights = np.exp(scores) * a["attention_mask"]
    attended = np.einsum("kbns,bkd->bsnd", weights / weights.sum(0), values).reshape(batch, active, N * D)
    x = x + attended @ w["W_outs"]
    y = normed(x, w["W_gamma_mlps"])
    gate = y @ w["W_gates"]
    return x + (gate / (1 + np.exp(-gate)) * (y @ w["W_ups"])) @ w["W_downs"], k, v


def near(got, expected, tolerance=3e-2):
    assert got.shape == expected.shape
    largest = np.abs(expected).max()
    got = np.asarray(got, np.float64)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * largest / 2)


@each_lnc
@pytest.mark.parametrize("layers, batch, active", [(1, 2, 1), (1, 2, 3), (2, 1, 1), (4, 2, 1)])
def test_layers_follow_each_other_and_write_their_caches(layers, batch, active, lnc):
    a = inputs(layers, batch, active)
    before = {name: [cache.copy() for cache in a[name]] for name in ("K_caches", "V_caches")}
    x, new = a["X"].astype(np.float64), []
    for layer in range(layers):
        x, k, v = decoded(a, layer, x)
        new.append((k, v))
    near(run(transformer_tkg, **a, lnc=lnc), x)
    for layer, (k, v) in enumerate(new):
        keys, values = before["K_caches"][layer].swapaxes(2, 3), before["V_caches"][layer]
        for b in range(batch):
            at = slice(a["position_ids"][b, 0], a["position_ids"][b, 0] + active)
            keys[b, 0, at], values[b, 0, at] = k[b], v[b]
        near(a["K_caches"][layer].swapaxes(2, 3), keys.astype(np.float64))
        near(a["V_caches"][layer], values.astype(np.float64))


def test_the_reference_is_the_same_transformer():
    a = inputs(2, active=2)
    x = a["X"].astype(np.float64)
    for layer in range(2):
        x = decoded(a, layer, x)[0]
    near(transformer_tkg_ref(**a)[0].astype(np.float64), x, 1e-2)


def quantized(layers, chosen):
    """Return arguments of which the `chosen` layers have FP8 weights, and the same without FP8."""
    a = inputs(layers)
    plain = {name: list(value) if isinstance(value, list) else value for name, value in a.items()}
    for name in ("gate", "up", "down"):
        a[f"W_{name}_scales"] = [None] * layers
        for layer in chosen:
            wide = a[f"W_{name}s"][layer].astype(np.float32)
            scale = np.abs(wide).max(0, keepdims=True) / 240
            a[f"W_{name}s"][layer] = (wide / scale).astype(FP8)
            a[f"W_{name}_scales"][layer] = np.repeat(scale, 128, 0).astype(np.float32)
            plain[f"W_{name}s"][layer] = a[f"W_{name}s"][layer].astype(np.float64) * scale
    return a, plain


@each_lnc
@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_a_layer_is_quantized_if_its_own_scales_are_given(chosen, lnc):
    a, plain = quantized(3, chosen)
    x = plain["X"].astype(np.float64)
    for layer in range(3):
        x = decoded(plain, layer, x)[0]
    near(run(transformer_tkg, **a, lnc=lnc), x, 6e-2)  # tokens are rounded to FP8 too


def test_a_clamp_bound_limits_tokens_of_quantized_layers():
    a, _ = quantized(2, (0,))
    a["clamp_bound"] = 2.0
    near(run(transformer_tkg, **a), transformer_tkg_ref(**a)[0].astype(np.float64))


def test_caches_are_unchanged_without_positions():
    a = inputs()
    before = a["K_caches"][0].copy()
    expected = decoded(a, 0, a["X"].astype(np.float64))[0]
    near(run(transformer_tkg, **a | {"position_ids": None}), expected)
    np.testing.assert_array_equal(a["K_caches"][0], before)


def test_the_former_name_of_the_mask_and_groups_of_one_rank():
    a = inputs(dtype=np.float16)
    expected = run(transformer_tkg, **a)
    mask = a.pop("attention_mask")
    got = run(
        transformer_tkg,
        **a,
        mask_cache=mask,
        mask_active=mask[-1:],
        replica_groups=[[0]],
        sbuf_residual_and_cc=True,
    )
    np.testing.assert_array_equal(got, expected)


def shard(a, rank, ranks):
    """Return a rank's weights: its query heads, its columns of the MLP, and the one key head."""
    heads, inner = N // ranks, INNER // ranks
    mine = slice(rank * heads * D, (rank + 1) * heads * D)
    columns = slice(rank * inner, (rank + 1) * inner)
    return a | {
        "W_qkvs": [np.concatenate([w[:, mine], w[:, N * D :]], axis=1) for w in a["W_qkvs"]],
        "W_outs": [w[mine] for w in a["W_outs"]],
        "W_gates": [w[:, columns] for w in a["W_gates"]],
        "W_ups": [w[:, columns] for w in a["W_ups"]],
        "W_downs": [w[columns] for w in a["W_downs"]],
        "K_caches": [c.copy() for c in a["K_caches"]],
        "V_caches": [c.copy() for c in a["V_caches"]],
        "attention_mask": np.ascontiguousarray(a["attention_mask"][:, :, :heads]),
    }


@each_lnc
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_a_group_sum_what_they_add(ranks, lnc):
    a = inputs()
    a["attention_mask"] = np.repeat(a["attention_mask"][:, :, :1], N, axis=2)  # ranks share one mask
    expected, _, _ = decoded(a, 0, np.asarray(a["X"], np.float64))
    given = [shard(a, rank, ranks) | {"replica_groups": (tuple(range(ranks)),)} for rank in range(ranks)]
    with target("trn2"):
        results = run_ranks(transformer_tkg, ranks, given, lnc=lnc)
    for result in results:
        near(result, expected)
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"num_layers": 0}, "num_layers: got 0"),
        ({"num_layers": 2}, "W_qkvs: got 1 tensors"),
        ({"attention_mask": None}, "attention_mask: got None"),
        ({"X": np.zeros((2, 1, 200), BF16)}, "X: got shape"),
        (
            {"W_up_scales": [np.ones((128, INNER), np.float32)]},
            r"W_up_scales\[0\]: expected all three",
        ),
        ({"W_downs": [random((INNER, H), FP8)]}, r"W_down_scales\[0\]: got None, needed by"),
        ({"W_gates": [random((H, INNER + 1), BF16)]}, r"W_ups\[0\]: got shape"),
        ({"clamp_bound": 1.0}, "clamp_bound: got 1.0"),
        ({"RoPE_sin": None}, "RoPE_sin: got None"),
    ],
)
def test_wrong_arguments_raise(changed, message):
    with pytest.raises(AssertionError, match=message):
        run(transformer_tkg, **inputs() | changed)


def test_it_compiles_and_its_example_runs():
    compiles_and_example_runs(transformer_tkg)
