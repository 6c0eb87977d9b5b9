"""One token of Gated DeltaNet and of Kimi Delta Attention against float64."""

import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib.experimental.attention.kda_tkg import kda_tkg, kda_tkg_ref
from nkilib.experimental.gdn import gdn_cte, gdn_tkg, gdn_tkg_ref


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [gdn_tkg, kda_tkg])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def gated(requests=2, heads=3, size=8, values=5, dtype="float32"):
    rows = requests * heads
    shapes = {"q": (rows, size), "k": (rows, size), "v": (rows, values), "b": (rows,), "a": (rows,)}
    shapes |= {"A_log": (heads,), "dt_bias": (heads,), "z": (rows, values), "norm_weight": (values,)}
    given = {name: random(shape, dtype, i) for i, (name, shape) in enumerate(shapes.items())}
    return given | {"state_in": random((rows, size, values), seed=20)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_row(q, k, v, b, a, A_log, dt_bias, z, norm_weight, state_in):
    """Row by row in float64."""
    results, states = [], []
    for i in range(len(q)):
        h = i % len(A_log)
        one = {
            name: np.float64(x) for name, x in (("a", a[i]), ("b", b[i]), ("r", A_log[h]), ("d", dt_bias[h]))
        }
        query, key, value, gate = (x[i].astype(np.float64) for x in (q, k, v, z))
        query, key = (x / np.sqrt(x @ x + 1e-6) for x in (query, key))
        state = state_in[i].astype(np.float64)
        state = state * np.exp(-np.exp(one["r"]) * np.log1p(np.exp(one["a"] + one["d"])))
        state = state + np.outer(key, sigmoid(one["b"]) * (value - key @ state))
        out = query @ state / np.sqrt(len(query))
        out = out / np.sqrt(np.mean(out**2) + 1e-6) * norm_weight.astype(np.float64)
        results.append(out * gate * sigmoid(gate))
        states.append(state)
    return np.array(results), np.array(states)


GATED = [
    Option("basic"),
    Option("one-row", gated(1, 1)),
    Option("one-channel", gated(1, 2, 1, 1)),
    Option("full-size", gated(1, 4, 128, 128)),
    Option("34-rows", gated(17, 2)),
    Option("35-heads", gated(1, 35, 4, 4)),
    Option("wide-values", gated(1, 2, 4, 127)),
    Option("bfloat16", gated(dtype="bfloat16"), tolerance=2**-8),
]
WRONG = refusals(q=random((5, 8)), k=random((6, 7)), v=random((6, 4)), b=random((5,)), a=random((6, 1)))
WRONG += refusals(A_log=random((4,)), dt_bias=random((2,)), z=random((6, 4)), norm_weight=random((4,)))
WRONG += refusals(state_in=random((6, 130, 5)), state_in__none=None)


@each(on_both(GATED) + [Option("trn3", on="trn3")] + WRONG)
def test_gdn_tkg(option):
    check(option, gdn_tkg, gated(), by_row, 1e-6)


def test_decode_continues_prefill():
    """A token by gdn_tkg leaves the state that gdn_cte leaves with one token more."""
    given = gated(1, 2, 8, 8)
    keys = random((1, 2, 5, 8), seed=9)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    values, logs = random((1, 2, 5, 8), seed=10), -np.abs(random((1, 2, 5), seed=11))
    rates = sigmoid(random((1, 2, 5), seed=12)).astype(np.float32)
    before = run(gdn_cte, keys[:, :, :4], keys[:, :, :4], values[:, :, :4], logs[:, :, :4], rates[:, :, :4])[
        1
    ]
    after = run(gdn_cte, keys, keys, values, logs, rates)[1]
    softplus = -logs[0, :, 4] / np.exp(given["A_log"])
    given |= {"k": keys[0, :, 4], "v": values[0, :, 4], "b": np.log(rates[0, :, 4] / (1 - rates[0, :, 4]))}
    given |= {"a": np.log(np.expm1(softplus)) - given["dt_bias"], "state_in": before[0]}
    near(run(gdn_tkg, **given)[1], after[0], 1e-5)


def delta(batch=2, heads=3, size=8, values=5):
    rng = np.random.default_rng(0)
    columns, rows = (batch, size, heads), (batch, heads, values)
    shapes = {"q": columns, "k": columns, "v": rows, "g": columns}
    given = {name: random(shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    given["beta"] = rng.uniform(0, 1, (batch, heads)).astype(np.float32)
    given |= {"a_log": random((heads,)), "dt_bias": random((size, heads), seed=5)}
    given |= {"out": np.zeros(rows, np.float32), "S": random((batch, heads, size, values), seed=6)}
    return given | {"scale": np.full((1, 1), 0.25, "f"), "lower_bound": np.full((1, 1), -5.0, "f")}


def by_head(q, k, v, g, beta, a_log, dt_bias, out, S, scale, lower_bound):
    """Head by head in float64."""
    result, states = np.zeros(v.shape), np.zeros(S.shape)
    for b, h in np.ndindex(v.shape[:2]):
        query, key, gate = (x[b, :, h].astype(np.float64) for x in (q, k, g))
        query, key = (x / np.sqrt(x @ x + 1e-6) for x in (query, key))
        logs = lower_bound[0, 0] * sigmoid(np.exp(np.float64(a_log[h])) * (gate + dt_bias[:, h]))
        state = np.diag(np.exp(logs)) @ S[b, h].astype(np.float64)
        states[b, h] = state + np.outer(key, beta[b, h] * (v[b, h] - key @ state))
        result[b, h] = scale[0, 0] * query @ states[b, h]
    return result, states


DELTA = [
    Option("basic"),
    Option("one-head", delta(1, 1)),
    Option("one-channel", delta(1, 2, 1, 1)),
    Option("full-size", delta(1, 3, 128, 128)),
    Option("65-heads", delta(1, 65, 4, 4)),
    Option("wide-values", delta(1, 2, 4, 127)),
    Option("no-decay", {"lower_bound": np.zeros((1, 1), "f")}),
    Option("scale", {"scale": np.ones((1, 1), "f")}),
]
WRONG = refusals(q=random((2, 8, 2)), k=random((2, 7, 3)), v=random((2, 3, 4)), g=random((2, 3, 8)))
WRONG += refusals(beta=random((2, 4)), a_log=random((2,)), dt_bias=random((3, 8)), out=random((2, 3, 4)))
WRONG += refusals(
    S=random((2, 3, 8)), scale=random((2, 1)), lower_bound=None, v__dtype=random((2, 3, 5), "bfloat16")
)


@each(on_both(DELTA) + [Option("trn3", on="trn3")] + WRONG)
def test_kda_tkg(option):
    check(option, kda_tkg, delta(), by_head, 1e-6)


@pytest.mark.parametrize("lnc", [1, 2])
def test_kda_tkg_writes_its_arguments(lnc):
    given = delta()
    out, state = run(kda_tkg, **given, lnc=lnc)
    np.testing.assert_array_equal(given["out"], out)
    np.testing.assert_array_equal(given["S"], state)


def test_the_references_beside_the_kernels_agree():
    for kernel, rows, given in ((gdn_tkg_ref, by_row, gated()), (kda_tkg_ref, by_head, delta())):
        for got, expected in zip(kernel(**given), rows(**given), strict=True):
            near(got, expected, 1e-12)
