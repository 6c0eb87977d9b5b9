"""Plans that run again on a GPU are captured and replayed; the same rules are tested on the processor."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import nki
from support import target

torch = pytest.importorskip("torch")
from nki.backends.torch import graphs  # noqa: E402
from nki.backends.torch.lanes import UFUNCS  # noqa: E402
from nki.backends.torch.runner import DeviceRunner  # noqa: E402
from plan_calls import Calls, logarithm  # noqa: E402

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def on_trn2():
    with target("trn2"):
        yield


def test_the_second_run_captures_and_later_ones_replay():
    calls = Calls()
    found = [calls(value) for value in (1.0, 2.0, 3.0, 4.0)]
    np.testing.assert_allclose(found, np.log([2, 4, 6, 8]), rtol=1e-6)
    (graph,) = calls.captures
    assert graph.replays == 3


def test_a_value_that_the_host_reports_is_found_in_a_replay_and_the_next_one_works():
    calls = Calls()
    assert [calls(v) is None for v in (1.0, 1.0, 1e30, 1.0)] == [False, False, True, False]


def test_a_plan_with_steps_on_the_host_is_not_captured(monkeypatch):
    monkeypatch.setattr("nki.backends.torch.instructions._warned", set())
    monkeypatch.delitem(UFUNCS, np.log)
    calls = Calls()
    with pytest.warns(nki.NkiWarning, match="not supported"):
        calls(1.0)
    assert [calls(2.0), calls(3.0)] == [calls(2.0), calls(3.0)] and not calls.captures


def test_a_failed_capture_warns_once_and_leaves_every_call_working():
    def fail(*_):
        raise RuntimeError("operation not permitted")

    calls = Calls(capture=fail)
    first = calls(1.0)
    with pytest.warns(nki.NkiWarning, match="not captured as a graph: operation not permitted"):
        second = calls(1.0)
    assert first == second == calls(1.0)  # warnings are errors here


def test_graphs_are_evicted_by_their_bytes_and_captured_again():
    one = Calls(limit=250)
    others = [Calls(shape=(4, n), plans=one.graphs) for n in (9, 10)]
    for calls in (one, *others):
        calls(1.0), calls(1.0)
    assert len(one.graphs.graphs) == 2 and one.graphs.graphs.weight == 200
    assert one(2.0) == one(2.0) == one(2.0) and len(one.captures) == 4


def test_a_graph_larger_than_the_limit_is_not_held():
    calls = Calls(limit=50)
    assert len({calls(1.0) for _ in range(4)}) == 1
    assert len(calls.captures) == 1 and not calls.graphs.graphs


def test_an_argument_is_read_in_place_until_it_moves_and_copied_from_then_on():
    calls = Calls()
    here, there = torch.full((4, 8), 1.0), torch.full((4, 8), 2.0)
    found = [calls.on(x) for x in (here, here, here, there, here, there)]
    np.testing.assert_allclose(found, np.log([2, 2, 2, 4, 2, 4]), rtol=1e-6)
    assert [(len(graph.given), graph.replays) for graph in calls.captures] == [(0, 2), (1, 3)]


def test_an_argument_at_an_odd_address_is_copied():
    calls = Calls()
    odd = torch.full((33,), 1.0)[1:].reshape(4, 8)
    assert calls.on(odd) == calls.on(odd) and len(calls.captures[0].given) == 1


def test_a_graph_goes_with_its_program():
    calls = Calls()
    calls(1.0), calls(1.0)
    found = calls.graphs.graphs
    assert len(found) == 1
    del calls.plan, calls.program
    gc.collect()
    assert len(found) == 0


# ---- on a GPU ------------------------------------------------------------------------------------


@on_a_gpu
def test_replays_give_the_bits_of_the_first_run_for_other_arguments():
    from nkilib.core.attention.attention_cte import attention_cte

    def heads(seed):
        chance = torch.Generator().manual_seed(seed)
        shapes = ((256, 128), (128, 256), (256, 128))
        return [torch.randn(2, *s, generator=chance).bfloat16().cuda() for s in shapes]

    graphs._on_device.clear()
    first = [attention_cte(*heads(seed), scale=0.1) for seed in range(3)]
    (found,) = graphs._on_device.values()
    assert len(found.graphs) == 1
    again = [attention_cte(*heads(seed), scale=0.1) for seed in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@on_a_gpu
def test_results_of_earlier_calls_stay_as_they_were():
    found = [logarithm(torch.full((4, 8), float(i), device="cuda")) for i in range(1, 6)]
    wanted = [np.float32(np.log(2 * i)) for i in range(1, 6)]
    assert [t[0, 0].item() for t in found] == wanted


@on_a_gpu
def test_a_step_that_cannot_be_captured_falls_back_and_other_kernels_still_work(monkeypatch):
    graphs._on_device.clear()
    launch = DeviceRunner.launch
    monkeypatch.setattr(DeviceRunner, "launch", lambda self: (launch(self), torch.cuda.synchronize())[0])
    x = torch.full((4, 8), 3.0, device="cuda")
    wanted = logarithm(x)
    with pytest.warns(nki.NkiWarning, match="not captured"):
        assert torch.equal(logarithm(x), wanted)
    monkeypatch.undo()
    assert torch.equal(logarithm(x), wanted)
    y = torch.full((4, 16), 3.0, device="cuda")
    assert all((logarithm(y) == wanted[0, 0]).all() for _ in range(4))


@on_a_gpu
@pytest.mark.filterwarnings("ignore:.*not captured")
def test_a_failed_capture_leaves_the_random_generator_as_it_was(monkeypatch):
    graphs._on_device.clear()
    launch = DeviceRunner.launch
    monkeypatch.setattr(DeviceRunner, "launch", lambda self: (launch(self), torch.cuda.synchronize())[0])
    torch.cuda.manual_seed(5)
    wanted = [torch.rand(4, device="cuda") for _ in range(2)]
    torch.cuda.manual_seed(5)
    found = [torch.rand(4, device="cuda")]
    x = torch.full((4, 8), 3.0, device="cuda")
    logarithm(x), logarithm(x)
    found.append(torch.rand(4, device="cuda"))
    assert torch.equal(torch.stack(found), torch.stack(wanted))


@on_a_gpu
def test_threads_on_streams_of_their_own_share_a_graph():
    logarithm(torch.ones(4, 8, device="cuda")), logarithm(torch.ones(4, 8, device="cuda"))
    found = {}

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((4, 8), float(i), device="cuda")
            found[i] = [logarithm(x) for _ in range(50)]
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((t == np.float32(np.log(2 * i))).all() for i in range(1, 7) for t in found[i])


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_products_stay_within_the_bound_of_a_float32_sum(dtype):
    import importlib.util
    from pathlib import Path

    spec = importlib.util.spec_from_file_location(
        "kernels", Path(__file__).parents[3] / "examples/matmul/kernels.py"
    )
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    left, right = (torch.randn(1024, n, device="cuda").to(dtype) for n in (256, 1024))
    found = kernels.tiled(left, right)
    exact = left.double().T @ right.double()
    bound = 1024 * 2.0**-24 * (left.double().abs().T @ right.double().abs())
    rounding = exact.abs() * torch.finfo(dtype).eps
    assert ((found.double() - exact).abs() <= bound + rounding).all()


@on_a_gpu
def test_an_interrupt_during_a_capture_leaves_the_random_generator_usable(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    x = torch.full((4, 8), 3.0, device="cuda")
    graphs._on_device.clear()
    wanted = logarithm(x)
    monkeypatch.setattr(DeviceRunner, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        logarithm(x)
    monkeypatch.undo()
    torch.rand(4, device="cuda")
    assert all(torch.equal(logarithm(x), wanted) for _ in range(3))
