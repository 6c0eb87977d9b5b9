"""A GPU repeats the last call of a kernel before the next one is prepared; the processor plays the GPU."""

from __future__ import annotations

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

torch = pytest.importorskip("torch")
from nki.backends.torch import graphs  # noqa: E402
from nki.kernel import early  # noqa: E402
from plan_calls import Calls  # noqa: E402


class Played:
    """Graphs on the processor, and how many of their replays were early."""

    def __init__(self):
        self.plans = Calls().graphs
        self.early = self.started = 0

    def start(self, plan, given, where):
        self.started += 1
        return self.plans.run(plan, given)

    def replay(self, plan, given, where):
        found = self.plans.replay(plan, given)
        self.early += found is not None
        return found


@pytest.fixture
def played(monkeypatch):
    found = Played()
    monkeypatch.setattr(graphs, "start", found.start)
    monkeypatch.setattr(graphs, "replay", found.replay)
    monkeypatch.setattr("nki.frameworks.torch.device_of_call", lambda tensors: tensors[0].device)
    monkeypatch.setattr(early, "_last", {})
    with target("trn2"):
        yield found


step = 1.0


def kernel_of(name):
    """Return a new kernel: x * factor + step, in the place of `name`, or in a new tensor."""

    def scaled(x, factor=2.0):
        out = x if name == "x" else nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_scalar(tile, tile, nl.multiply, factor, op1=nl.add, operand1=step)
        nisa.dma_copy(out, tile)
        return out

    return nki.jit(scaled)


def test_calls_after_the_capture_start_early_and_do_their_work_once(played):
    kernel, x = kernel_of("out"), torch.ones(4, 8)
    found = []
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        found.append(kernel(x.fill_(value)))  # it is read anew
    assert [y[0, 0].item() for y in found] == [3.0, 5.0, 7.0, 9.0, 11.0]  # and results are new tensors
    assert (played.started, played.early) == (2, 3)  # the run, the capture; then replays alone


def test_a_written_argument_is_changed_once_by_each_call(played):
    kernel, x = kernel_of("x"), torch.zeros(4, 8)
    seen = [kernel(x)[0, 0].item() for _ in range(5)]
    assert seen == [1.0, 3.0, 7.0, 15.0, 31.0] and played.early == 3


def test_a_change_of_what_the_python_reads_gives_up_the_early_work(played, monkeypatch):
    kernel, x = kernel_of("x"), torch.zeros(4, 8)
    seen = []
    for size in (1.0, 1.0, 1.0, 10.0, 10.0, 10.0, 10.0):
        monkeypatch.setitem(globals(), "step", size)
        seen.append(kernel(x, 1.0)[0, 0].item())
    assert seen == [1.0, 2.0, 3.0, 13.0, 23.0, 33.0, 43.0]
    assert played.early == 4  # one of them in vain


def test_another_number_is_another_call(played):
    kernel, x = kernel_of("out"), torch.ones(4, 8)
    factors = (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, -0.0, 0.0, 2.0, 2)
    assert [kernel(x, f)[0, 0].item() for f in factors] == [f + 1 for f in factors]
    assert played.early == 2  # the third call of each number


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(8, 4),
        torch.ones(4, 8, dtype=torch.bfloat16),
        torch.ones(8, 4).T,
        torch.ones(4, 16)[:, 8:],
        torch.ones(4, 8, requires_grad=True),
        torch.nn.Parameter(torch.ones(4, 8)),
    ],
    ids=("shape", "dtype", "transposed", "part", "gradient", "parameter"),
)
def test_another_tensor_gives_its_own_result(played, other):
    kernel, x = kernel_of("out"), torch.zeros(4, 8)
    for _ in range(4):
        kernel(x)
    for _ in range(4):
        found = kernel(other)
        assert found.shape == other.shape and found.dtype == other.dtype and (found == 3.0).all()
        assert found.requires_grad == other.requires_grad
        assert (kernel(x) == 1.0).all()


def test_a_tensor_that_is_resized_in_place_is_another_argument(played):
    kernel, x = kernel_of("out"), torch.ones(4, 8)
    for _ in range(4):
        kernel(x)
    x.resize_(2, 8)
    assert kernel(x).shape == (2, 8) and (kernel(x) == 3.0).all()
    x.data = torch.zeros(2, 8)
    assert (kernel(x) == 1.0).all()


def test_a_call_on_the_host_ends_early_starts(played):
    kernel, x = kernel_of("out"), torch.ones(4, 8)
    for _ in range(4):
        kernel(x)
    before = played.early
    with nki.options(executor="reference"):
        for _ in range(3):
            assert (kernel(x) == 3.0).all()
    assert played.early == before + 1  # the first of them
    for _ in range(2):
        assert (kernel(x) == 3.0).all()


def test_a_call_that_becomes_an_operator_is_not_started(played):
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel, x = kernel_of("out"), torch.ones(4, 8)
    for _ in range(4):
        kernel(x)
    before = played.early
    with FakeTensorMode() as mode:
        assert kernel(mode.from_tensor(x)).shape == (4, 8)
    assert played.early == before


def test_a_kernel_that_is_gone_is_forgotten(played):
    import gc

    x = torch.ones(4, 8)
    kernel_of("out")(x)
    gc.collect()
    assert not early._last
