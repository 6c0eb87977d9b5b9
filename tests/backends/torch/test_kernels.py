"""The kernels of steps: on the processor their graphs run as they are; a GPU compiles them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.lowered import lower
from support import target
from tile_programs import program_of

torch = pytest.importorskip("torch")
from backend_agreement import leaves, torch_results  # noqa: E402
from nki.backends.torch import graphs, kernels  # noqa: E402
from nki.backends.torch.kernels import StepKernels  # noqa: E402
from nki.backends.torch.schedule import Refused  # noqa: E402
from nki.backends.torch.steps import device_plan_of  # noqa: E402
from plan_calls import CPU, Calls, logarithm  # noqa: E402

GPU = torch.device("cuda", 0)
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def on_trn2(monkeypatch):
    monkeypatch.setattr(kernels, "LARGE", 0)
    with target("trn2"):
        yield


class Compiler:
    """Returns the graph itself, and counts."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return graph


def compiled(plan, compiler=None, where=CPU):
    """Compile the steps of a plan, and let it use them; return how many steps are kernels."""
    made = StepKernels(torch, where) if compiler is None else StepKernels(torch, where, compiler)
    made.ask(plan)
    made.finish()
    return len(plan.kernels[where]) if made.take(plan) else 0


def test_kernels_of_steps_give_the_bits_of_their_functions():
    found = 0
    for seed in range(24):
        program, arrays = program_of(seed, 0.15)
        wanted = torch_results(program, arrays)
        plan = device_plan_of(lower(program))
        if isinstance(plan, Refused) or isinstance(wanted, str):
            continue
        found += compiled(plan, Compiler())
        now = torch_results(program, arrays)
        for one, other in zip(leaves(wanted), leaves(now), strict=True):
            assert one.tobytes() == other.tobytes()
    assert found > 50


@nki.jit
def selected(x, bounds):
    """Two instructions that differ in a constant, one after the other."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile, bound = nl.ndarray(x.shape, x.dtype), nl.ndarray((x.shape[0], 2), nl.float32)
    nisa.dma_copy(tile, x)
    nisa.dma_copy(bound, bounds)
    for start in (0, 3):
        result = nl.ndarray(x.shape, x.dtype)
        largest = nl.ndarray((x.shape[0], 1), nl.float32)
        nisa.range_select(
            result,
            on_true_tile=tile,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=bound[:, 0:1],
            bound1=bound[:, 1:2],
            range_start=start,
            on_false_value=-3.4028235e38,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=largest,
        )
        tile = result
    nisa.dma_copy(out, tile)
    return out


def test_steps_that_differ_in_constants_share_a_kernel():
    chance = np.random.default_rng(0)
    x = chance.standard_normal((8, 16), dtype=np.float32)
    bounds = np.stack([np.arange(8), np.arange(8) + 6], 1).astype(np.float32)
    program, compiler = selected.trace(x, bounds), Compiler()
    wanted = torch_results(program, [x, bounds])
    assert compiled(device_plan_of(lower(program)), compiler) == 2 and len(compiler.graphs) == 1
    assert torch_results(program, [x, bounds]).tobytes() == wanted.tobytes()


def calls_with(compiler, monkeypatch):
    monkeypatch.setattr(graphs, "OFTEN", 3)
    calls = Calls(logarithm)
    calls.graphs.kernels = StepKernels(torch, CPU, compiler)
    return calls


def test_a_plan_that_is_replayed_often_is_captured_again_with_its_kernels(monkeypatch):
    calls = calls_with(Compiler(), monkeypatch)
    found = [calls(2.0) for _ in range(4)]
    calls.graphs.kernels.finish()
    found += [calls(2.0) for _ in range(4)]  # one runs them, then they are captured
    first, second = calls.captures
    assert (first.replays, second.replays) == (3, 3) and set(found) == {np.log(np.float32(4))}
    assert calls.plan.kernels
    assert calls(1e30) is None  # the host reports it


def test_steps_that_cannot_be_compiled_are_warned_of_once_and_run_as_before(monkeypatch):
    def fail(graph, inputs):
        raise RuntimeError("no compiler here")

    calls = calls_with(fail, monkeypatch)
    found = [calls(2.0) for _ in range(4)]
    calls.graphs.kernels.finish()
    with pytest.warns(nki.NkiWarning, match="not compiled: RuntimeError: no compiler here"):
        found.append(calls(2.0))
    assert {*found, calls(2.0)} == {np.log(np.float32(4))}  # warnings are errors here
    assert len(calls.captures) == 1


def test_a_plan_that_is_gone_is_not_compiled():
    made, compiler = StepKernels(torch, CPU, Compiler()), Compiler()
    made.compile = compiler
    program = logarithm.trace(nki.TensorSpec((4, 8), "float32"))
    with made.lock:  # as long as another plan takes
        made.thread = object()
    made.ask(device_plan_of(lower(program)))
    del program
    gc.collect()
    made._work()
    assert not compiler.graphs and made.thread is None


# ---- compiled ------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-40, -3e-42, 2**-149, 3.4e38, -87.5, -100.0, -103.0]


@nki.jit
def functions(x, y, names: tuple):
    """A tile for each function of ScalarE; then two operands, quotients and narrow results."""
    out = nl.ndarray((len(names) + 5, *x.shape), nl.float32, buffer=nl.shared_hbm)
    narrow = nl.ndarray((3, *x.shape), nl.bfloat16, buffer=nl.shared_hbm)
    a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(a, x)
    nisa.dma_copy(b, y)
    results = []
    for name in names:
        tile = nl.ndarray(x.shape, nl.float32)
        nisa.activation(tile, getattr(nl, name), a, scale=0.7, bias=b[:, 0:1])
        results.append(tile)
    for op in (nl.power, nl.maximum, nl.multiply, nl.subtract):
        tile = nl.ndarray(x.shape, nl.float32)
        nisa.tensor_tensor(tile, a, b, op)
        results.append(tile)
    tile = nl.ndarray(x.shape, nl.float32)
    nisa.reciprocal(tile, a)
    results.append(tile)
    for i, tile in enumerate(results):
        nisa.dma_copy(out[i], tile)
    for i, op in enumerate((nl.multiply, nl.add, nl.maximum)):
        tile = nl.ndarray(x.shape, nl.bfloat16)
        nisa.tensor_scalar(tile, a, op0=nl.multiply, operand0=b[:, 1:2], op1=op, operand1=0.3)
        nisa.dma_copy(narrow[i], tile)
    return out, narrow


@pytest.mark.parametrize("where", [CPU, pytest.param(GPU, marks=on_a_gpu)], ids=str)
def test_compiled_kernels_give_the_bits_of_their_functions(where):
    chance = np.random.default_rng(0)
    x = chance.standard_normal((128, 512), dtype=np.float32) * np.float32(20)
    y = np.exp(chance.standard_normal((128, 512), dtype=np.float32) * np.float32(20))
    x[:, : len(SPECIAL)] = SPECIAL
    y[::2, 1] = 1e-36
    y[::4, 0] = 0
    y[1::4, 0] = -80
    names = ("exp", "tanh", "sigmoid", "gelu", "silu", "square", "relu", "erf", "softplus")
    program = functions.trace(x, y, names)
    wanted = torch_results(program, [x, y], where)
    compiler = Compiler() if where == CPU else None
    assert compiled(device_plan_of(lower(program)), compiler, where) >= len(names) + 8
    graphs._on_device.clear()  # a run comes before a capture
    found = torch_results(program, [x, y], where)
    for one, other in zip(leaves(wanted), leaves(found), strict=True):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            assert same.all(), f"function {i}: {a[~same][:5]} and {b[~same][:5]}"


@nki.jit
def routed(x, ids):
    """Rows of x by ids, doubled, back to other rows; those out of bounds are left out."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    index = nl.ndarray(ids.shape, ids.dtype)
    nisa.dma_copy(index, ids)
    for c in range(ids.shape[1] - 1):
        rows = nl.ndarray((ids.shape[0], x.shape[1]), x.dtype)
        nisa.dma_copy(rows, out.vector_select(0, index[:, c : c + 1]))
        nisa.tensor_scalar(rows, rows, op0=nl.multiply, operand0=2.0)
        place = out.vector_select(0, index[:, c + 1 : c + 2])
        nisa.dma_copy(place, rows, oob_mode=nisa.oob_mode.skip)
    return out


@pytest.mark.parametrize("where", [CPU, pytest.param(GPU, marks=on_a_gpu)], ids=str)
def test_compiled_moves_by_indices_give_the_bits_of_their_functions(where):
    chance = np.random.default_rng(0)
    x = chance.standard_normal((200, 64), dtype=np.float32)
    ids = np.stack([chance.permutation(200)[:128] for _ in range(4)], 1).astype(np.int32)
    ids[::5, 3] = -1
    program = routed.trace(x, ids)
    wanted = torch_results(program, [x, ids], where)
    compiler = Compiler() if where == CPU else None
    assert compiled(device_plan_of(lower(program)), compiler, where) >= 9
    graphs._on_device.clear()
    assert torch_results(program, [x, ids], where).tobytes() == wanted.tobytes()


@on_a_gpu
def test_attention_with_compiled_kernels_has_the_bits_of_the_first_call(monkeypatch):
    from nkilib.core.attention.attention_cte import attention_cte

    monkeypatch.setattr(graphs, "OFTEN", 2)
    graphs._on_device.clear()
    given = [torch.randn(2, *s, device="cuda").bfloat16() for s in ((512, 128), (128, 512), (512, 128))]
    found = [attention_cte(*given, scale=0.1) for _ in range(3)]
    graphs.finish_kernels()
    found += [attention_cte(*given, scale=0.1) for _ in range(2)]
    (there,) = graphs._on_device.values()
    assert len(there.kernels.known)
    assert all(torch.equal(found[0], other) for other in found)
