"""`differentiable` in PyTorch and JAX: keywords, gradients that do not fit, vmap, profiles, warnings."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.testing import gradcheck


@nki.jit
def multiply(a, b, scale=1.0):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    x, y = nl.ndarray(a.shape, a.dtype), nl.ndarray(a.shape, a.dtype)
    nisa.dma_copy(x, a)
    nisa.dma_copy(y, b)
    nisa.tensor_tensor(x, x, y, nl.multiply)
    nisa.tensor_scalar(x, x, nl.multiply, scale)
    nisa.dma_copy(out, x)
    return out


def backward(dy, a, b, scale=1.0):
    return dy * b * scale, dy * a * scale


@nki.jit
def careless(a):
    """Says something at run time: an activation outside its range."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, a.dtype)
    nisa.dma_copy(x, a)
    nisa.activation(x, nl.sin, x)
    nisa.dma_copy(out, x)
    return out


# ---- PyTorch -------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def tensors(torch):
    torch.manual_seed(0)
    return [torch.randn(4, 6, requires_grad=True) for _ in range(2)]


def torch_differentiable(*args, **kwargs):
    from nki.frameworks.torch import differentiable

    return differentiable(*args, **kwargs)


def test_keywords_reach_both_functions(torch, tensors):
    a, b = tensors
    product = torch_differentiable(multiply, backward)
    for call in (
        lambda: product(a, b, 3.0),
        lambda: product(a, b, scale=3.0),
        lambda: product(a, b=b, scale=3.0),
        lambda: product(b=b, a=a, scale=3.0),
    ):
        result = call()
        torch.testing.assert_close(result, 3 * a * b)
        da, db = torch.autograd.grad(result.sum(), [a, b])
        torch.testing.assert_close((da, db), (3 * b.detach(), 3 * a.detach()))


def test_a_keyword_behind_a_default_stays_a_keyword(torch, tensors):
    a, b = tensors

    def forward(a, scale=2.0, b=None):
        return multiply(a, b, scale)

    product = torch_differentiable(forward, lambda dy, a, b=None: (dy * b * 2, dy * a * 2))
    da, db = torch.autograd.grad(product(a, b=b).sum(), [a, b])
    torch.testing.assert_close((da, db), (2 * b.detach(), 2 * a.detach()))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda dy, a, b, scale: dy * b, r"multiply: the backward returned 1 gradient\(s\) for 2 .*'a', 'b'"),
        (
            lambda dy, a, b, scale: (dy, dy, None),
            r"3 gradient\(s\) for 2 .*\n.*get no gradient, not even None",
        ),
        (lambda dy, a, b, scale: (dy[0], dy), r"shape \(6,\) for 'a', which has \(4, 6\)"),
        (lambda dy, a, b, scale: (dy, dy.T), r"shape \(6, 4\) for 'b', which has \(4, 6\)"),
    ],
)
def test_gradients_that_do_not_fit_are_named(torch, tensors, wrong, text):
    product = torch_differentiable(multiply, wrong)
    with pytest.raises(nki.NkiError, match=f"(?s){text}") as caught:
        product(*tensors, 1.0).sum().backward()
    assert caught.value.kind == "gradient"


def test_vmap_runs_a_kernel_once_for_each_element(torch):
    a, b = torch.randn(3, 4, 6), torch.randn(3, 4, 6)
    torch.testing.assert_close(torch.vmap(multiply)(a, b), a * b)
    torch.testing.assert_close(torch.vmap(multiply, in_dims=(0, None))(a, b[0]), a * b[0])


def test_vmap_of_a_kernel_that_writes_its_argument_is_refused_by_name(torch):
    @nki.jit
    def doubled(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(x, tile)
        return x

    with pytest.raises(nki.NkiError, match="doubled writes its arguments"):
        torch.vmap(lambda x: doubled(x))(torch.ones(3, 2, 2))


def test_keywords_in_compiled_code(torch, tensors):
    a, b = tensors
    product = torch_differentiable(multiply, backward)
    compiled = torch.compile(lambda a, b: product(a, b, scale=3.0), backend="eager")
    result = compiled(a, b)
    torch.testing.assert_close(result, 3 * a * b)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), a)[0], 3 * b.detach())


def test_vmap_of_a_differentiable_kernel_and_gradients_through_it(torch):
    product = torch_differentiable(multiply, backward)
    a, b = torch.randn(3, 4, 6, requires_grad=True), torch.randn(3, 4, 6, requires_grad=True)
    result = torch.vmap(product)(a, b)
    torch.testing.assert_close(result, a * b)
    da, db = torch.autograd.grad(result.sum(), [a, b])
    torch.testing.assert_close((da, db), (b.detach(), a.detach()))


def test_functional_gradients(torch):
    product = torch_differentiable(multiply, backward)
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(torch.func.grad(lambda x: product(x, b).sum())(a), b)


def events(torch, function):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        function()
    return {event.key for event in seen.key_averages()}


def test_kernels_appear_in_the_profiler_by_name(torch):
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    assert "nki::multiply" in events(torch, lambda: multiply(a, b))
    compiled = torch.compile(lambda x, y: multiply(x, y) + 1, backend="aot_eager")
    compiled(a, b)
    assert "nki::multiply" in events(torch, lambda: compiled(a, b))


def test_a_compiled_function_warns_once_in_twenty_steps(torch):
    compiled = torch.compile(lambda x: careless(x) + 1, backend="aot_eager")
    x = torch.full((4, 6), 4.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(20):
            compiled(x)
    kinds = [w.category.kind for w in said if issubclass(w.category, nki.NkiWarning)]
    assert kinds == ["act-range"]


def test_gradcheck_tells_right_gradients_from_wrong_ones(torch, tensors):
    gradcheck(torch_differentiable(multiply, backward), [*tensors, 2.0])
    with pytest.raises(AssertionError, match="differences of values"):
        gradcheck(
            torch_differentiable(multiply, lambda dy, a, b, s: (dy * b * s * 1.1, dy * a * s)),
            [*tensors, 2.0],
        )
    with pytest.raises(AssertionError, match="differences of values"):
        gradcheck(torch_differentiable(multiply, lambda dy, a, b, s: (dy * b * s, None)), [*tensors, 2.0])


# ---- JAX -----------------------------------------------------------------------------------------


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


@pytest.fixture
def arrays(jax):
    random = np.random.default_rng(0)
    return [jax.numpy.asarray(random.standard_normal((4, 6)), "float32") for _ in range(2)]


def jax_differentiable(*args, **kwargs):
    from nki.frameworks.jax import differentiable

    return differentiable(*args, **kwargs)


def test_keywords_in_jax(jax, arrays):
    a, b = arrays
    product = jax_differentiable(multiply, backward)
    for call in (
        lambda a, b: product(a, b, scale=3.0),
        lambda a, b: product(a, b=b, scale=3.0),
        lambda a, b: product(b=b, a=a, scale=3.0),
    ):
        da, db = jax.grad(lambda a, b, call=call: call(a, b).sum(), argnums=(0, 1))(a, b)
        np.testing.assert_allclose(da, 3 * b, rtol=1e-6)
        np.testing.assert_allclose(db, 3 * a, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda dy, a, b: dy * b, r"multiply: the backward returned 1 gradient\(s\) for 2 .*'a', 'b'"),
        (lambda dy, a, b: (dy, dy, None), r"3 gradient\(s\) for 2 .*\n.*not even None"),
        (lambda dy, a, b: (dy[0], dy), r"shape \(6,\) for 'a', which has \(4, 6\)"),
    ],
)
def test_gradients_that_do_not_fit_are_named_in_jax(jax, arrays, wrong, text):
    product = jax_differentiable(multiply, wrong)
    with pytest.raises(nki.NkiError, match=f"(?s){text}"):
        jax.grad(lambda a, b: product(a, b).sum())(*arrays)


def test_gradcheck_in_jax(jax, arrays):
    gradcheck(jax_differentiable(multiply, backward), [*arrays, 2.0])
    with pytest.raises(AssertionError):
        gradcheck(jax_differentiable(multiply, lambda dy, a, b, s: (dy * b * s, dy * b * s)), [*arrays, 2.0])


# ---- gradient_of ---------------------------------------------------------------------------------


def test_gradient_of_a_torch_function_takes_keywords_and_skips_integers():
    torch = pytest.importorskip("torch")
    from nki.frameworks.torch import differentiable, gradient_of

    def reference(x, rows, factor=1.0):
        return x[rows.long()].square() * factor

    function = differentiable(lambda x, rows, factor=1.0: reference(x, rows, factor), gradient_of(reference))
    x, rows = torch.arange(4.0, requires_grad=True), torch.tensor([1, 3], dtype=torch.int32)
    function(x, rows, factor=3.0).sum().backward()
    assert x.grad.tolist() == [0.0, 6.0, 0.0, 18.0]


def test_gradient_of_a_torch_function_with_two_results():
    torch = pytest.importorskip("torch")
    from nki.frameworks.torch import differentiable, gradient_of

    def reference(x):
        return x * 2, x.exp()

    x = torch.zeros(3, requires_grad=True)
    a, b = differentiable(reference, gradient_of(reference, results=2))(x)
    (a.sum() + 5 * b.sum()).backward()
    assert x.grad.tolist() == [7.0] * 3


def test_gradient_of_a_jax_function_takes_keywords():
    jax = pytest.importorskip("jax")
    from nki.frameworks.jax import differentiable, gradient_of

    def reference(x, factor=1.0):
        return x * x * factor

    function = differentiable(lambda x, factor=1.0: reference(x, factor), gradient_of(reference))
    found = jax.jit(jax.grad(lambda x: function(x, factor=3.0).sum()))(jax.numpy.arange(3.0))
    assert found.tolist() == [0.0, 6.0, 12.0]
