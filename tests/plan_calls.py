"""Plans among the graphs of a device, on the processor: a capture there runs its plan again."""

from __future__ import annotations

import weakref

import torch

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.lowered import lower
from nki.backends.torch.graphs import Pending, PlanGraphs
from nki.backends.torch.kernels import StepKernels
from nki.backends.torch.runner import DeviceRunner
from nki.backends.torch.steps import DevicePlan, device_plan_of
from nki.ir.storage import Storage

CPU = torch.device("cpu")


@nki.jit
def logarithm(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.activation(tile, nl.log, tile, scale=2.0)
    nisa.dma_copy(out, tile)
    return out


class CpuCapture:
    """Runs the plan again on tensors of its own, as a graph does."""

    def __init__(
        self, plan: DevicePlan, given: dict[Storage, object], in_place: set[Storage], nbytes: int = 100
    ):
        self.nbytes, self.plan = nbytes, weakref.proxy(plan)
        self.given = {s: torch.empty_like(t) for s, t in given.items() if s not in in_place}
        self.replays = 0

    def replay(self, given):
        for storage, tensor in self.given.items():
            tensor.copy_(given[storage])
        self.replays += 1
        return Pending(DeviceRunner(torch, self.plan, given | self.given, CPU).run())


class Calls:
    """A kernel's plan among the graphs of a device."""

    def __init__(self, kernel=logarithm, shape=(4, 8), limit=1000, capture=CpuCapture, plans=None):
        self.program = kernel.trace(nki.TensorSpec(shape, "float32"))
        self.plan = device_plan_of(lower(self.program))
        self.captures = []

        def captured(plan, given, in_place):
            self.captures.append(capture(plan, given, in_place))
            return self.captures[-1]

        self.graphs = plans or PlanGraphs(
            lambda p, g: DeviceRunner(torch, p, g, CPU), captured, limit, StepKernels(torch, CPU)
        )
        self.argument = torch.empty(shape)  # at one place

    def __call__(self, value):
        return self.on(self.argument.fill_(value))

    def on(self, tensor):
        """Return the first element of the result for an argument."""
        ((_, storage),) = self.program.parameters
        found = self.graphs.run(self.plan, {storage: tensor}).finish()
        return found if found is None else next(iter(found.values()))[0].item()
