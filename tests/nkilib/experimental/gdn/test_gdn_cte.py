"""The gated delta rule in chunks against the rule token by token, in float64, and its gradients."""

import numpy as np
import pytest
import torch
from kernel_support import compiles_and_example_runs, random, run
from options.common import Option, check, each, near, on_both, refusals

from nkilib import autograd
from nkilib.experimental.gdn import gdn_cte, gdn_cte_bwd, gdn_cte_ref

NAMES = ("query", "key", "value", "g_log", "beta", "recurrent_state")


@pytest.mark.tiny
@pytest.mark.parametrize("kernel", [gdn_cte, gdn_cte_bwd])
def test_compiles_and_the_example_runs(kernel):
    compiles_and_example_runs(kernel)


def unit(shape, dtype, seed):
    x = random(shape, seed=seed)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.dtype(dtype))


def call(batch=1, keys=1, heads=2, tokens=7, size=4, values=5, dtype="float32", decay=0.2, state=True):
    rng = np.random.default_rng(0)
    shape = (batch, heads, tokens)
    given = {
        "query": unit((batch, keys, tokens, size), dtype, 1),
        "key": unit((batch, keys, tokens, size), dtype, 2),
        "value": random((batch, heads, tokens, values), dtype, 3),
        "g_log": -rng.uniform(0, decay, shape).astype(np.float32),
        "beta": rng.uniform(0, 1, shape).astype(np.float32),
        "scale": 0.5,
    }
    return given | ({"recurrent_state": random((batch, heads, size, values))} if state else {})


def by_token(query, key, value, g_log, beta, scale=1.0, recurrent_state=None):
    """torch, token by token."""
    shared = value.shape[1] // query.shape[1]
    query, key = query.repeat_interleave(shared, 1), key.repeat_interleave(shared, 1)
    state, out = recurrent_state, []
    if state is None:
        state = torch.zeros(*value.shape[:2], key.shape[3], value.shape[3], dtype=torch.float64)
    for t in range(value.shape[2]):
        state = state * torch.exp(g_log[:, :, t])[..., None, None]
        known = (key[:, :, t, :, None] * state).sum(2)
        new = beta[:, :, t, None] * (value[:, :, t] - known)
        state = state + key[:, :, t, :, None] * new[:, :, None]
        out.append(scale * (query[:, :, t, :, None] * state).sum(2))
    return torch.stack(out, 2), state


def leaves(arguments):
    return {
        name: torch.tensor(value.astype(np.float64), requires_grad=True) if name in NAMES else value
        for name, value in arguments.items()
        if value is not None and name not in ("group_size", "algorithm", "mask_pack")
    }


def reference(**arguments):
    return [x.detach().numpy() for x in by_token(**leaves(arguments))]


SAME = call(tokens=200, size=8, heads=1, decay=1e-3)
SAME["key"][:] = SAME["key"][:, :, :1]
SAME["beta"][:] = 1.0
CASES = [
    Option("basic"),
    Option("one-token", call(tokens=1)),
    Option("no-state", call(state=False) | {"recurrent_state": None}),
    Option("one-chunk", call(tokens=128, heads=1)),
    Option("chunk-and-one", call(tokens=129, keys=2, heads=2)),
    Option("five-chunks", call(tokens=600, heads=1, size=16, values=8)),
    Option("batch", call(batch=2, keys=2, heads=4, tokens=30)),
    Option("full-size", call(tokens=140, heads=1, size=128, values=128)),
    Option("equal-keys", SAME, tolerance=5e-6),
    Option("strong-decay", call(tokens=150, decay=20.0)),
    Option("group-size", {"group_size": 1}),
    Option("bfloat16", call(dtype="bfloat16", tokens=150, size=16), tolerance=2e-2),
    Option("float16", call(dtype="float16", tokens=150, size=16), tolerance=3e-3),
]
ON = [Option("trn3", on="trn3"), Option("wide-values", call(tokens=9, values=500))]
WRONG = refusals(query=None, query__rank=random((2, 3)), key=random((1, 1, 7, 5)), value=random((1, 2, 6, 5)))
WRONG += refusals(g_log=random((1, 2, 6)), beta=random((1, 1, 7)), recurrent_state=random((1, 2, 5, 4)))
WRONG += refusals(algorithm="neumann", mask_pack=random((128, 128)), group_size=0)
WRONG += refusals(value__dtype=random((1, 2, 7, 5), "bfloat16"), query__size=random((1, 1, 7, 130)))


@each(on_both(CASES, slow=True) + ON + WRONG)
def test_forward(option):
    check(option, gdn_cte, call(), reference, 1e-6)


@each(on_both(CASES[:-3], slow=True) + [Option("trn3", on="trn3")])
def test_backward(option):
    arguments = {name: value for name, value in (call() | option.changes).items() if value is not None}
    given = leaves(arguments)
    out, state = by_token(**given)
    dy, dstate = random(out.shape, seed=7), random(state.shape, seed=8)
    torch.autograd.backward((out, state), (torch.tensor(dy), torch.tensor(dstate)))
    got = run(gdn_cte_bwd, dy, **arguments, grad_state=dstate, lnc=option.lnc, on=option.on)
    for name, grad in zip(NAMES, got, strict=True):
        if name in given:
            near(grad, given[name].grad.numpy(), max(option.tolerance or 0, 4e-6))


@each(refusals(grad_output=random((1, 2, 7, 4)), grad_state=random((1, 2, 4, 4)), grad_output__none=None))
def test_backward_refusals(option):
    check(option, gdn_cte_bwd, {"grad_output": random((1, 2, 7, 5))} | call(), lambda **_: None, 0.0)


def test_backward_of_values_in_bfloat16_rounds_its_results_alone():
    arguments = call(dtype="bfloat16")
    given = leaves(arguments)
    out, _ = by_token(**given)
    dy = random(out.shape, "bfloat16", seed=7)
    out.backward(torch.tensor(dy.astype(np.float64)))
    got = run(gdn_cte_bwd, dy, **arguments)
    for name, grad in zip(NAMES, got, strict=True):
        assert grad.dtype == arguments[name].dtype
        near(grad, given[name].grad.numpy(), 2**-8)


def test_the_reference_beside_the_kernel_agrees():
    for got, expected in zip(gdn_cte_ref(**call()), reference(**call()), strict=True):
        near(got, expected, 1e-12)


def test_is_differentiable_in_torch():
    results = []
    for function, dtype in ((autograd.gdn_cte, torch.float32), (by_token, torch.float64)):
        given = [torch.tensor(call()[name], dtype=dtype, requires_grad=True) for name in NAMES]
        out, state = function(*given[:5], 0.5, given[5])
        ((out**2).sum() + state.sum()).backward()
        results.append([x.grad.numpy() for x in given])
    for got, expected in zip(*results, strict=True):
        near(got, expected, 2e-6)
