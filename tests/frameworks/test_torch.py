"""PyTorch: tensors, gradients, compiled functions, threads and workers (spec/frameworks.md 3)."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import pickle
import threading
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import target, unseen

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from nki.frameworks import torch as bridge  # noqa: E402
from nki.frameworks import torch_tensors  # noqa: E402
from nki.frameworks.torch import differentiable, nki_op, wrap_nki  # noqa: E402

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "uint8",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
]


@nki.jit
def copy(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out


@nki.jit
def double_in_place(x, returns):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(x, tile)
    return x if returns else None


def numbers(dtype, shape=(4, 6)):
    return (torch.arange(24).reshape(shape) - 8).to(getattr(torch, dtype))


def combine(a, b, op, scale):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    left, right = nl.ndarray(a.shape, a.dtype), nl.ndarray(b.shape, b.dtype)
    nisa.dma_copy(left, a)
    nisa.dma_copy(right, b)
    nisa.tensor_tensor(left, left, right, op)
    nisa.tensor_scalar(left, left, nl.multiply, scale)
    nisa.dma_copy(out, left)
    return out


RUNS = []  # how often the Python ran
ran = unseen(RUNS)


@nki.jit
def add(a, b, scale=1.0):
    ran("add")
    return combine(a, b, nl.add, scale)


@nki.jit
def multiply(a, b):
    return combine(a, b, nl.multiply, 1.0)


@nki.jit
def multiply_backward(dy, a, b):
    return multiply(dy, b), multiply(dy, a)


@nki.jit
def gather(x, index):
    out = nl.ndarray((4, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    rows = nl.ndarray((4, 1), nl.int32)
    nisa.dma_copy(rows, index)
    nisa.dma_copy(out, x.vector_select(0, rows))
    return out


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Weights:
    weight: Any
    scale: float


@nki.jit
def structured(weights, pair, options):
    new = combine(weights.weight, pair.first, options["op"], weights.scale)
    return Pair(new, {"same": pair.second, "flat": pair.second.reshape((24,)), "none": None, "n": 3})


def bits(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


def refusal(*args, kernel=copy):
    with pytest.raises(nki.NkiError) as caught:
        kernel(*args)
    return caught.value


@pytest.mark.parametrize("platform", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_in_and_comes_out_with_its_bits(dtype, platform):
    x = numbers(dtype)
    with target(platform):
        result = copy(x)
    assert result.dtype == x.dtype and result.shape == x.shape and result.device == x.device
    assert np.array_equal(bits(result), bits(x))


def test_a_strided_tensor_arrives_as_it_reads():
    x = numbers("bfloat16").T[::2]
    assert torch.equal(copy(x), x)


def test_a_contiguous_tensor_is_read_without_a_copy():
    from nki.frameworks.torch_tensors import to_numpy

    for dtype in DTYPES:
        x = numbers(dtype)
        assert to_numpy(x).ctypes.data == x.data_ptr()


def test_a_written_argument_changes_in_place():
    x = numbers("float32")
    before, version = x.clone(), x._version
    assert double_in_place(x, False) is None
    assert torch.equal(x, before * 2) and x._version > version


def test_a_returned_argument_is_the_same_object():
    x = numbers("bfloat16")
    assert double_in_place(x, True) is x


def test_a_failed_kernel_leaves_its_argument_alone():
    @nki.jit
    def fails(x):
        double_in_place(x, False)
        raise ValueError("later")

    x = numbers("float32")
    with pytest.raises(ValueError, match="later"):
        fails(x)
    assert torch.equal(x, numbers("float32"))


def test_a_kernel_runs_inside_an_autograd_function():
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return copy(x)

        @staticmethod
        def backward(ctx, dy):
            return dy

    x = numbers("float32").requires_grad_()
    (Copy.apply(x) * 3).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


@pytest.mark.parametrize("dtype, cast", [("int64", "x.to(torch.int32)"), ("float64", "x.to(torch.float32)")])
def test_wide_dtypes_are_refused_with_the_cast(dtype, cast):
    problem = refusal(numbers(dtype))
    assert problem.kind == "dtype" and "argument 'x'" in str(problem) and cast in str(problem)


def test_tensors_without_dense_values_are_refused():
    assert refusal(numbers("float32").to_sparse()).kind == "framework"
    assert refusal(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])).kind == "framework"


def test_scalars_and_empty_tensors_are_refused():
    assert refusal(torch.tensor(2.0)).kind == "scalar-argument"
    assert refusal(torch.zeros(0, 4)).kind == "shape"


# ---- arguments -----------------------------------------------------------------------------------


class Tagged(torch.Tensor):
    """A user's subclass without a dispatch of its own."""


def test_subclasses_of_tensor_are_tensors():
    x = numbers("float32").as_subclass(Tagged)
    assert torch.equal(copy(x), numbers("float32"))


def test_tensors_inside_containers_and_dataclasses():
    x, y = numbers("float32"), numbers("float32") + 1
    result = structured(Weights(x, 2.0), Pair(y, x), {"op": nl.add})
    assert isinstance(result, Pair) and torch.equal(result.first, (x + y) * 2)
    assert result.second["same"] is x and result.second["flat"].shape == (24,)
    assert result.second["none"] is None and result.second["n"] == 3


def test_numpy_arrays_do_not_mix_with_tensors():
    x = numbers("float32")
    problem = refusal(x, x.numpy(), kernel=add)
    assert problem.kind == "framework-mix" and "torch.from_numpy" in str(problem)
    assert isinstance(problem, TypeError)


def test_jax_arrays_do_not_mix_with_tensors():
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    assert refusal(numbers("float32"), jnp.zeros((4, 6)), kernel=add).kind == "framework-mix"


def test_all_tensors_are_on_one_device(monkeypatch):
    monkeypatch.setattr(bridge, "device_of", lambda value: "cpu" if value[0, 0] < 0 else "cuda:0")
    problem = refusal(numbers("float32"), numbers("float32") + 100, kernel=add)
    assert problem.kind == "device" and "'b' is on cuda:0" in str(problem)


def test_tensors_of_other_devices_are_copied_with_one_warning(monkeypatch):
    monkeypatch.setattr(torch_tensors, "_warned_devices", set())
    with pytest.warns(nki.NkiWarning, match="copied") as caught:
        torch_tensors._warn_device("cuda")
        torch_tensors._warn_device("cuda")
        torch_tensors._warn_device("mps")
    assert len(caught) == 1 and caught[0].category.kind == "device-copy"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_tensors._warn_device("cpu")
        torch_tensors._warn_device("xla")


def test_expanded_and_overlapping_tensors_cannot_be_written():
    problem = refusal(torch.ones(1, 6).expand(4, 6), False, kernel=double_in_place)
    assert problem.kind == "read-only-input" and "clone" in str(problem)

    @nki.jit
    def write_first(a, b):
        double_in_place(a, False)

    x = torch.ones(6, 6)
    assert refusal(x[:4], x[2:], kernel=write_first).kind == "read-only-input"
    assert torch.equal(x, torch.ones(6, 6))


def test_a_written_strided_tensor_keeps_its_strides():
    x = torch.zeros(6, 4).T
    x += 1
    double_in_place(x, False)
    assert torch.equal(x, torch.full((4, 6), 2.0)) and x.stride() == (1, 4)


def test_the_same_bits_from_numpy_and_torch():
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        array = x.astype(dtype)
        tensor = torch.from_numpy(x).to(getattr(torch, np.dtype(dtype).name))
        assert add(array, array, 0.3).view(np.uint8).tobytes() == bits(add(tensor, tensor, 0.3)).tobytes()


# ---- gradients -----------------------------------------------------------------------------------


def test_a_kernel_without_backward_runs_forwards_and_is_loud_backwards():
    x = torch.nn.Parameter(numbers("float32"))
    result = copy(x)
    assert torch.equal(result, x) and result.requires_grad
    with pytest.raises(nki.NkiError) as caught:
        (result * 2).sum().backward()
    text = str(caught.value)
    assert caught.value.kind == "no-backward" and isinstance(caught.value, RuntimeError)
    assert "kernel copy has no backward" in text and "result = copy(x)" in text
    assert "torch.autograd.Function" in text and "copy = nki.frameworks.torch.differentiable(copy, " in text


def test_no_grad_and_inference_mode():
    x = torch.nn.Parameter(numbers("float32"))
    with torch.no_grad():
        assert not copy(x).requires_grad
    with torch.inference_mode():
        result = copy(x)
        assert not result.requires_grad and result.is_inference()
        double_in_place(result, False)
    assert not copy(x.detach()).requires_grad


def test_results_that_are_not_floats_are_not_differentiable():
    @nki.jit
    def both(x, n):
        return copy(x), copy(n)

    real, whole = both(numbers("float32").requires_grad_(), numbers("int32"))
    assert real.requires_grad and not whole.requires_grad


def test_writes_do_not_lose_gradients_silently():
    leaf = numbers("float32").requires_grad_()
    with pytest.raises(RuntimeError, match="in-place"):
        double_in_place(leaf, False)
    assert torch.equal(leaf, numbers("float32"))
    inner = leaf * 1
    double_in_place(inner, False)
    with pytest.raises(nki.NkiError, match="no backward"):
        inner.sum().backward()

    @nki.jit
    def copy_into(x, y):
        nisa.dma_copy(y, x)

    target_tensor = torch.zeros(4, 6)
    copy_into(leaf, target_tensor)
    with pytest.raises(nki.NkiError, match="no backward"):
        target_tensor.sum().backward()


class SumProduct(torch.autograd.Function):
    """The documented pattern: the addition is a kernel."""

    @staticmethod
    def forward(ctx, a, b):
        return add(a, b)

    @staticmethod
    def backward(ctx, dy, *args):
        return dy, dy


def test_the_class_of_the_guide():
    a, b = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6, requires_grad=True)
    for times in (1, 2):
        out = a * b * SumProduct.apply(a, b)
        out.sum().backward()
        torch.testing.assert_close(a.grad, times * (b * (a + b) + a * b))
        torch.testing.assert_close(b.grad, times * (a * (a + b) + a * b))


def test_gradcheck_in_float32():
    a, b = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3, requires_grad=True)
    product = differentiable(multiply, multiply_backward)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function in (SumProduct.apply, product):
            assert torch.autograd.gradcheck(function, (a, b), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_differentiable_ties_two_kernels_in_one_line():
    product = differentiable(multiply, multiply_backward)
    a, b = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6)
    product(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b)
    assert product.__name__ == "multiply"


def test_differentiable_with_plain_functions_constants_and_outputs():
    def backward(dy, a, b, scale, result):
        assert torch.equal(result, (a + b) * scale)
        return dy * scale, None

    scaled_sum = differentiable(add, backward, outputs=True)
    a, b = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6, requires_grad=True)
    scaled_sum(a, b, 3.0).sum().backward()
    torch.testing.assert_close(a.grad, torch.full((4, 6), 3.0))
    assert b.grad is None


def test_differentiable_with_several_results():
    @nki.jit
    def both(a, b):
        return add(a, b), multiply(a, b)

    function = differentiable(both, lambda da, dm, a, b: (da + dm * b, da + dm * a))
    a, b = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6, requires_grad=True)
    plus, times = function(a, b)
    (plus.sum() + 2 * times.sum()).backward()
    torch.testing.assert_close(a.grad, 1 + 2 * b)


def test_training_moves_towards_the_target():
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 6)
    product = differentiable(multiply, multiply_backward)
    x = torch.rand(4, 6)
    losses = []
    for _ in range(20):
        loss = ((product(layer(x), x) - 1) ** 2).mean()
        layer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter -= 0.5 * parameter.grad
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


# ---- torch.compile and torch.export --------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x):
        return add(self.linear(x), x, scale=2.0) + 1


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    yield lambda function, backend="aot_eager", **options: torch.compile(
        function, fullgraph=True, backend=backend, **options
    )
    torch._dynamo.reset()


def nodes(function, *args):
    """The calls in the graph that torch.compile sees."""
    seen = []

    def backend(graph, examples):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(function, fullgraph=True, backend=backend)(*args)
    return seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_module_gives_the_eager_result(backend, compiler):
    block = Block()
    compiled = compiler(block, backend=backend)
    with torch.no_grad():
        for rows in (4, 3, 2):
            x = numbers("float32")[:rows]
            torch.testing.assert_close(compiled(x), block(x), rtol=1e-6, atol=1e-6)


def test_a_kernel_is_one_operator_and_its_python_does_not_run_again(compiler):
    assert [n for n in nodes(lambda x: add(x, x) * 2, numbers("float32")) if "nki" in n] == ["open_nki.call"]
    compiled = compiler(lambda x: add(x, x), backend="eager")
    compiled(numbers("float32"))
    RUNS.clear()
    for i in range(3):
        assert torch.equal(compiled(numbers("float32") + i), 2 * (numbers("float32") + i))
    assert RUNS == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_each_shape_is_compiled_by_itself(dynamic, compiler):
    compiled = compiler(lambda x: copy(x) + 1, backend="eager", dynamic=dynamic)
    for shape in ((4, 6), (3, 8), (4, 6)):
        assert torch.equal(compiled(torch.zeros(shape)), torch.ones(shape))


def test_two_kernels_do_not_share_compiled_code(compiler):
    def through(kernel):
        return lambda x: kernel(x, x)

    for kernel, expected in ((add, 4.0), (multiply, 4.0)):
        assert torch.equal(
            compiler(through(kernel), backend="eager")(torch.full((4, 6), 2.0)), torch.full((4, 6), expected)
        )

    def either(x, kernel):
        return kernel(x, x)

    compiled = compiler(either, backend="eager")
    assert torch.equal(compiled(torch.full((4, 6), 3.0), add), torch.full((4, 6), 6.0))
    assert torch.equal(compiled(torch.full((4, 6), 3.0), multiply), torch.full((4, 6), 9.0))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_writes_reach_the_argument(backend, compiler):
    def function(x):
        y = x * 1
        double_in_place(x, False)
        double_in_place(y, False)
        return double_in_place(y, True) + 1, x

    x, y = numbers("float32"), numbers("float32")
    expected, changed = function(x)
    result, same = compiler(function, backend=backend)(y)
    assert torch.equal(result, expected) and torch.equal(y, changed) and torch.equal(same, changed)


def test_structures_compile(compiler):
    options = {"op": nl.add}

    def function(x, y):
        result = structured(Weights(x, 2.0), Pair(y, x), options)
        return result.first, result.second["flat"], result.second["n"]

    x, y = numbers("float32"), numbers("float32") + 1
    first, flat, three = compiler(function)(x, y)
    assert torch.equal(first, (x + y) * 2) and torch.equal(flat, x.reshape(-1)) and three == 3


class Settings(nl.NKIObject):
    def __init__(self, weight):
        self.weight = weight
        self.scale = 3.0


class Scale:
    """An object that torch.compile knows nothing about."""

    def __init__(self, factor):
        self.factor = factor


OPTIONS = [Scale(3.0), nl.add, nl.bfloat16, nl.sbuf, nisa.engine.vector, len, numbers, Pair]
OPTIONS += [slice(1, 3), range(2), b"1", 2j, None]
DTYPE_OPTIONS = {np.dtype("int8"): nl.int8, np.float16: nl.float16, torch.uint8: nl.uint8}


@nki.jit
def copy_with(x, option):
    ran(option)
    return copy(x)


@pytest.mark.parametrize("option", [*OPTIONS, *DTYPE_OPTIONS], ids=lambda option: type(option).__name__)
def test_any_object_is_an_option_of_a_compiled_kernel(option, compiler):
    RUNS.clear()
    compiler(lambda x, option=option: copy_with(x, option), backend="eager")(numbers("float32"))
    (seen,) = RUNS
    assert seen == (option if option in OPTIONS else DTYPE_OPTIONS[option])


def test_a_partial_function_is_an_option_of_a_compiled_kernel(compiler):
    RUNS.clear()
    option = functools.partial(max, 3)
    compiler(lambda x: copy_with(x, option), backend="eager")(numbers("float32"))
    assert RUNS[0](2) == 3 and RUNS[0](5) == 5


@nki.jit
def scaled_by(x, scale):
    return combine(x, x, nl.add, scale.factor / 2)


def test_another_object_is_compiled_by_itself(compiler):
    compiled, x = compiler(scaled_by, backend="eager"), torch.ones(4, 6)
    assert [compiled(x, Scale(scale)).mean().item() for scale in (1.0, 2.0, 5.0)] == [1.0, 2.0, 5.0]


@nki.jit
def weighted(x, settings):
    return combine(x, settings.weight, nl.add, settings.scale)


def test_records_bring_their_tensors_into_compiled_code(compiler):
    x, late = numbers("float32"), Weights(numbers("float32"), 1.0)
    late.scale = 3.0
    for settings in (Settings(x), Weights(x, 3.0), late):
        compiled = compiler(lambda x, settings=settings: weighted(x, settings), backend="aot_eager")
        assert torch.equal(compiled(x), 6 * x)


def test_a_launch_degree_inside_compiled_code(compiler):
    with target("trn2"):
        assert torch.equal(
            compiler(lambda x: add[1](x, x), backend="eager")(torch.ones(4, 6)), torch.full((4, 6), 2.0)
        )
        assert torch.equal(
            compiler(lambda x: add[2](x, x), backend="eager")(torch.ones(4, 6)), torch.full((4, 6), 2.0)
        )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_through_compiled_code(backend, compiler):
    product = differentiable(multiply, multiply_backward)
    for function in (product, SumProduct.apply):
        a, b = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6, requires_grad=True)
        c, d = (t.detach().clone().requires_grad_() for t in (a, b))
        (function(a, b) * a).sum().backward()
        compiler(lambda x, y, f=function: (f(x, y) * x).sum(), backend=backend)(c, d).backward()
        torch.testing.assert_close(c.grad, a.grad)
        torch.testing.assert_close(d.grad, b.grad)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_differentiable_functions_without_gradients_compile(count, compiler):
    @nki.jit
    def total(*tensors):
        result = copy(tensors[0])
        for tensor in tensors[1:]:
            result = add(result, tensor)
        return result

    function = differentiable(total, lambda dy, *tensors: [dy] * len(tensors))
    tensors = [numbers("float32")] * count
    assert torch.equal(compiler(function, backend="eager")(*tensors), count * numbers("float32"))


def test_a_missing_backward_is_loud_in_compiled_code_too(compiler):
    x = numbers("float32").requires_grad_()
    with pytest.raises(Exception, match="kernel copy has no backward"):
        compiler(lambda x: copy(x).sum())(x).backward()


def test_an_error_while_compiling_shows_the_line_of_the_kernel(compiler):
    with pytest.raises(Exception, match="dtype") as caught:
        compiler(lambda x: copy(x), backend="eager")(numbers("float64"))
    assert "x.to(torch.float32)" in str(caught.value)


def test_an_error_of_compiled_code_is_the_kernels(compiler):
    compiled = compiler(lambda x, i: gather(x, i), backend="eager")
    good, bad = torch.zeros(4, 1, dtype=torch.int32), torch.full((4, 1), 99, dtype=torch.int32)
    x = numbers("float32")
    assert torch.equal(compiled(x, good), x[[0, 0, 0, 0]])
    with pytest.raises(nki.NkiError) as caught:
        compiled(x, bad)
    assert caught.value.kind == "index" and "x.vector_select(0, rows)" in str(caught.value)
    assert torch.equal(compiled(x, good), x[[0, 0, 0, 0]])


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    block, x = Block(), numbers("float32")
    with torch.no_grad():
        exported = torch.export.export(block, (x,), strict=strict)
        assert "open_nki.call" in str(exported.graph)
        torch.testing.assert_close(exported.module()(x), block(x))


def test_export_of_nested_kernels():
    class Backward(torch.nn.Module):
        def forward(self, x):
            return multiply_backward(x, x, x)[0]

    x = numbers("float32")
    exported = torch.export.export(Backward(), (x,), strict=False)
    assert torch.equal(exported.module()(x), x * x)


def test_shapes_without_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    RUNS.clear()
    with FakeTensorMode():
        fake = add(torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(4, 8, dtype=torch.bfloat16))
    meta = add(*[torch.empty(4, 8, dtype=torch.bfloat16, device="meta")] * 2)
    for tensor in (fake, meta):
        assert tensor.shape == (4, 8) and tensor.dtype == torch.bfloat16
    assert meta.device.type == "meta" and RUNS == ["add"]


def test_reading_a_value_while_only_shapes_are_known_is_refused():
    @nki.jit
    def looks(x):
        return float(np.asarray(x)[0, 0])

    problem = refusal(torch.empty(4, 6, device="meta"), kernel=looks)
    assert problem.kind == "abstract-value" and "np.asarray(x)" in str(problem)


def test_dynamic_kernels_compile_and_look_at_each_calls_data(compiler):
    @nki.jit
    def repeat(x, count):
        times = nisa.register_alloc(count[0:1])
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nl.fori_loop(0, times, lambda i: nisa.tensor_scalar(tile, tile, nl.add, 1.0) and None)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    compiled = compiler(lambda x, n: repeat(x, n), backend="eager")
    for count in (0, 2, 5):
        result = compiled(torch.zeros(4, 6), torch.tensor([count], dtype=torch.int32))
        assert torch.equal(result, torch.full((4, 6), float(count)))


def test_vmap_runs_the_kernel_once_per_element():
    x, y = torch.rand(3, 4, 6), torch.rand(4, 6)
    assert torch.equal(torch.vmap(add, in_dims=(0, None))(x, y), x + y)
    assert torch.equal(torch.vmap(add, in_dims=(1, 1))(x, x), (x + x).transpose(0, 1))


# ---- operators -----------------------------------------------------------------------------------


@nki_op("open_nki_test::multiply", mutates_args={})
def multiply_op(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return wrap_nki(multiply)[1](a, b)


multiply_op.register_autograd(
    lambda ctx, dy: tuple(multiply_op(dy, t) for t in reversed(ctx.saved_tensors)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_an_operator_of_ones_own(compiler):
    a, b = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6, requires_grad=True)
    multiply_op(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b)
    torch.testing.assert_close(compiler(lambda a, b: multiply_op(a, b) + 1)(a, b), a * b + 1)


def test_opcheck():
    a, b = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6, requires_grad=True)
    torch.library.opcheck(multiply_op, (a, b))
    add(torch.empty(4, 6, device="meta"), torch.empty(4, 6, device="meta"))
    key = next(key for key in bridge._operators if key.startswith("add:"))
    x = torch.rand(tuple(bridge._operators[key].staged.described[0][1].shape))
    torch.library.opcheck(torch.ops.open_nki.call.default, ([x, x], key))


def test_code_compiled_in_another_process_says_what_is_missing():
    with pytest.raises(nki.NkiError, match="program table of this process has no 123"):
        torch.ops.open_nki.call([torch.ones(4, 6)], "add:123")


def test_wrap_nki_is_the_kernel():
    assert wrap_nki(add) is add and isinstance(wrap_nki(lambda x: x), nki.Kernel)


# ---- memory, threads, processes ------------------------------------------------------------------


def test_threads_call_kernels_at_the_same_time():
    wrong = []

    def work(number):
        for i in range(20):
            x = torch.full((4, 6), float(100 * number + i))
            if not torch.equal(add(x, x), 2 * x):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Doubled(torch.utils.data.Dataset):
    """What a DataLoader's workers run."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __len__(self):
        return 4

    def __getitem__(self, i):
        x = torch.full((4, 6), float(i))
        return self.kernel(x, x)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_kernels_in_data_loader_workers(method):
    add(torch.ones(4, 6), torch.ones(4, 6))
    loader = torch.utils.data.DataLoader(
        Doubled(add),
        batch_size=2,
        num_workers=1,
        timeout=120,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    batches = torch.cat(list(loader))
    assert torch.equal(batches[:, 0, 0], torch.tensor([0.0, 2.0, 4.0, 6.0]))


def test_kernels_are_pickled_by_name():
    with target("trn2"):
        assert pickle.loads(pickle.dumps(add)) == add
        assert pickle.loads(pickle.dumps(add[2])).grid == (2,)
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(nki.jit(lambda x: x))


def test_tensors_do_not_outlive_their_call():
    x = torch.ones(64, 64)
    add(x, x)
    gc.collect()
    before = sum(isinstance(found, torch.Tensor) for found in gc.get_objects())
    for _ in range(5):
        add(x, x)
    gc.collect()
    assert sum(isinstance(found, torch.Tensor) for found in gc.get_objects()) <= before


# ---- the environment -----------------------------------------------------------------------------


def test_framework_debug_keeps_program_and_graph(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURON_FRAMEWORK_DEBUG", "1")

    @nki.jit
    def kept(x):
        return copy(x)

    x = numbers("bfloat16")
    kept(x)
    kept(x)
    kept(x[:2])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"kept.{n}.{kind}.txt" for n in (0, 1) for kind in ("hlo", "program")
    ]
    text = (tmp_path / "kept.0.hlo.txt").read_text()
    assert "bf16[4,6]{1,0} custom-call(%x)" in text and "AwsNeuronCustomNativeKernel" in text
    assert "dma_copy" in (tmp_path / "kept.0.program.txt").read_text()
    assert str(tmp_path) in capfd.readouterr().err


def test_the_platform_is_chosen_at_each_call():
    @nki.jit
    def version(x):
        return nisa.get_nc_version().value

    for platform, generation in (("trn1", 2), ("trn2", 3), ("trn3", 4)):
        with target(platform):
            assert version(numbers("float32")) == generation


# ---- torch_xla -----------------------------------------------------------------------------------


def test_xla_tensors_come_back_on_their_device():
    xm = pytest.importorskip("torch_xla.core.xla_model", reason="torch_xla is not installed")
    device = xm.xla_device()
    a, b = numbers("float32").to(device), numbers("float32").to(device)
    result = add(a, b)
    assert result.device == a.device
    torch.testing.assert_close((result * 2).cpu(), 4 * numbers("float32"))
