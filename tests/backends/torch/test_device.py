"""Calls on torch tensors: on the processor everywhere, and on a GPU where there is one (`make test-gpu`)."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.torch.lanes import UFUNCS
from nki.backends.torch.runner import DeviceRunner
from support import target

torch = pytest.importorskip("torch")
from nki.frameworks.torch import connect  # noqa: E402
from nki.kernel.devices import run_on_device  # noqa: E402

MATMUL = Path(__file__).parents[3] / "examples" / "matmul" / "kernels.py"
spec = importlib.util.spec_from_file_location("matmul_kernels_of_devices", MATMUL)
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
on_every_device = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def run_on_its_device(kernel, *args, **kwargs):
    """Run a call on the device of its tensors; a list of what it returns, or why it does not run there."""
    call = kernel.prepare(args, kwargs)
    tensors = [tensor.value for tensor in call.arguments.tensors]
    found = run_on_device(call, tensors)
    return found if isinstance(found, str) else [connect(found[0], tensors, kernel.__name__)]


def factors(dtype, device, k=300, m=260, n=1100):
    chance = torch.Generator().manual_seed(0)
    made = [torch.randint(-3, 4, shape, generator=chance).to(dtype) for shape in ((k, m), (k, n))]
    return [tensor.to(device) for tensor in made]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", kernels.STEPS[1:], ids=lambda k: k.__name__)
@on_every_device
def test_a_matmul_runs_on_the_device_of_its_tensors_with_the_bits_of_the_host(kernel, dtype, device):
    tensors = factors(dtype, device)
    (found,) = run_on_its_device(kernel, *tensors)
    assert found.device.type == device and found.dtype == dtype
    assert torch.equal(found.cpu(), kernel(*(tensor.cpu() for tensor in tensors)))


# ---- kernels of the library ----------------------------------------------------------------------


def library_cases():
    from nkilib.core.attention.attention_cte import attention_cte
    from nkilib.core.mlp.mlp import mlp

    chance = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(shape, generator=chance)

    heads = [normal(2, *shape).bfloat16() for shape in ((256, 128), (128, 256), (256, 128))]
    yield "attention", attention_cte, heads, {"scale": 128**-0.5}
    yield "mlp", mlp, [normal(1, 128, 256), normal(256, 256), normal(256, 256), normal(256, 256)], {}


@pytest.mark.parametrize("number", range(2), ids=["attention", "mlp"])
@on_every_device
def test_kernels_of_the_library_run_on_the_device_from_end_to_end(number, device, monkeypatch):
    def refuse(runner, step, arrays, why):
        raise AssertionError(f"{step.node.instruction.public}: {why}")

    monkeypatch.setattr(DeviceRunner, "_on_host", refuse)
    _, kernel, tensors, options = list(library_cases())[number]
    there = [tensor.to(device) for tensor in tensors]
    (found,) = run_on_its_device(kernel, *there, **options)
    with nki.options(executor="reference"):
        wanted = kernel(*tensors, **options)
    found = found[0] if isinstance(found, (tuple, list)) else found
    wanted = wanted[0] if isinstance(wanted, (tuple, list)) else wanted
    bound = (2e-2 if wanted.dtype == torch.bfloat16 else 1e-4) * wanted.abs().max().item()
    assert (found.cpu().float() - wanted.float()).abs().max() <= bound


# ---- calls ---------------------------------------------------------------------------------------


@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def add_to(x, y):
    """Writes its first argument."""
    a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(y.shape, y.dtype)
    nisa.dma_copy(a, x)
    nisa.dma_copy(b, y)
    nisa.tensor_tensor(a, a, b, nl.add)
    nisa.dma_copy(x, a)
    return x


@on_every_device
def test_tensors_without_dense_rows_are_read_correctly(device):
    left, right = factors(torch.float32, device)
    transposed = left.T.contiguous().T
    (found,) = run_on_its_device(kernels.tiled, transposed, right)
    assert torch.equal(found, left.T @ right)


@on_every_device
def test_a_part_of_a_larger_tensor_is_read_where_it_is(device):
    whole = torch.arange(96, dtype=torch.float32, device=device).reshape(3, 4, 8)
    (found,) = run_on_its_device(twice, whole[1])
    assert torch.equal(found, 2 * whole[1])


@on_every_device
def test_keywords_in_another_order_find_their_parameters(device):
    x, y = torch.ones(4, 8, device=device), torch.full((4, 8), 3.0, device=device)
    (found,) = run_on_its_device(add_to, y=y, x=x)
    assert found is x and (x == 4).all() and (y == 3).all()


@on_every_device
def test_a_written_argument_changes_and_its_version_increases(device):
    base = torch.ones(8, 4, device=device)
    x, y, version = base.T, torch.ones(4, 8, device=device), base._version
    (found,) = run_on_its_device(add_to, x, y)
    assert found is x and (base == 2).all() and base._version > version


def test_an_argument_that_shares_its_memory_is_not_written_there():
    x = torch.ones(4, 8)
    assert run_on_its_device(add_to, x, x) == "it writes an argument that may not be written"


@on_every_device
def test_an_unsupported_instruction_runs_on_the_host_and_warns_once(device, monkeypatch):
    monkeypatch.setattr("nki.backends.torch.instructions._warned", set())
    monkeypatch.delitem(UFUNCS, np.add)
    x, y = torch.rand(5, 9, device=device), torch.rand(5, 9, device=device)  # no graph has these sizes
    wanted = x + y
    with pytest.warns(nki.NkiWarning, match="tensor_tensor is not supported .*numpy.add"):
        (found,) = run_on_its_device(add_to, x, y)
    assert torch.equal(found, wanted)
    (again,) = run_on_its_device(add_to, x, y)  # warnings are errors here
    assert torch.equal(again, wanted + y)


def test_warnings_about_shapes_are_given_on_a_device_too():
    @nki.jit
    def unwritten(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(out, tile)
        return out

    x = torch.ones(4, 8)
    with pytest.warns(nki.NkiWarning, match="private HBM"):
        (found,) = run_on_its_device(unwritten, x)
    assert torch.equal(found, x)


def test_the_gradient_of_a_result_is_an_error_as_on_the_host():
    x = torch.ones(4, 8, requires_grad=True)
    (found,) = run_on_its_device(twice, x)
    assert found.requires_grad
    with pytest.raises(nki.NkiError, match="gradient|backward"):
        found.sum().backward()


def test_threads_share_a_plan_and_not_its_memory():
    found, inputs = {}, [torch.full((16, 32), float(i)) for i in range(6)]

    def work(i):
        found[i] = [run_on_its_device(twice, inputs[i])[0] for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((t == 2.0 * i).all() for i in range(6) for t in found[i])


def test_the_tf32_setting_of_the_user_is_restored():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        left, right = factors(torch.float32, "cpu")
        run_on_its_device(kernels.tiled, left, right)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# ---- the device of the options -------------------------------------------------------------------


def test_numpy_arrays_run_on_the_device_of_the_options(monkeypatch):
    seen = []
    run = DeviceRunner.run
    monkeypatch.setattr(DeviceRunner, "run", lambda self: (seen.append(self.where.type), run(self))[1])
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    with nki.options(device="torch-cpu"):
        found = twice(x)
    monkeypatch.setenv("OPEN_NKI_DEVICE", "torch-cpu")
    again, changed = twice(x), add_to(x, np.ones_like(x))
    assert type(found) is np.ndarray and (found == again).all() and seen == ["cpu"] * 3
    assert changed is x and (2 * x == found + 2).all()


def test_torch_tensors_come_back_from_the_device_of_the_options(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_DEVICE", "torch-cpu")
    x = torch.ones(4, 8)
    assert torch.equal(twice(x), 2 * x)
    assert torch.equal(torch.compile(lambda t: twice(t) + 1, backend="eager")(x), 2 * x + 1)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "tpu"])
def test_an_unknown_device_is_an_error(name):
    with pytest.raises(nki.NkiError, match="torch-cpu"), nki.options(device=name):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_cuda_without_a_gpu_is_an_error():
    with nki.options(device="cuda"), pytest.raises(nki.NkiError, match="finds no GPU"):
        twice(np.ones((4, 8), np.float32))


def test_jax_arrays_run_through_torch():
    jax = pytest.importorskip("jax")
    from nki.frameworks.jax import through_torch

    x = jax.numpy.arange(32, dtype=jax.numpy.float32).reshape(4, 8)
    (found,) = through_torch(twice, twice.prepare((x,), {}), [x])
    assert isinstance(found, jax.Array) and (found == 2 * x).all()
    assert through_torch(add_to, add_to.prepare((x, x), {}), [x, x]) == []  # arrays of JAX never change


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_call_with_tensors_on_a_gpu_stays_there():
    tensors = factors(torch.float32, "cuda")
    found = kernels.blocked_mnk(*tensors)
    assert found.is_cuda and torch.equal(found, tensors[0].T @ tensors[1])
    assert torch.compile(lambda t: twice(t) + 1, backend="eager")(tensors[0][:4, :8].contiguous()).is_cuda


# ---- what changes between two calls --------------------------------------------------------------

step = 1.0


@nki.jit
def advanced(x):
    """Add a number to the argument, in place."""
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.add, step)
    nisa.dma_copy(x, tile)
    return x


@on_every_device
def test_a_change_is_found_after_the_device_has_started_and_its_work_is_given_up(device, monkeypatch):
    x = torch.zeros(4, 8, device=device)
    seen, before = [], advanced.cache_info()
    for size in (1.0, 1.0, 1.0, 10.0, 10.0, 1.0):
        monkeypatch.setitem(globals(), "step", size)
        run_on_its_device(advanced, x)
        seen.append(x[0, 0].item())
    assert seen == [1.0, 2.0, 3.0, 13.0, 23.0, 24.0]
    after = advanced.cache_info()
    hits = after.hits - before.hits
    assert hits + after.misses - before.misses == 6 and hits >= 3
