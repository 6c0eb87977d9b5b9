"""Plans among the graphs of a device, on the processor: a capture there runs its plan again."""

from __future__ import annotations

import weakref

import torch

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.lowered import lower
from nki.backends.torch.graphs import PlanGraphs
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

    def __init__(self, plan: DevicePlan, given: dict[Storage, object], nbytes: int = 100):
        self.nbytes, self.plan = nbytes, weakref.proxy(plan)
        self.given = {storage: torch.empty_like(tensor) for storage, tensor in given.items()}
        self.replays = 0

    def replay(self, given):
        for storage, tensor in given.items():
            self.given[storage].copy_(tensor)
        self.replays += 1
        return DeviceRunner(torch, self.plan, self.given, CPU).run()


class Calls:
    """A kernel's plan among the graphs of a device."""

    def __init__(self, kernel=logarithm, shape=(4, 8), limit=1000, capture=CpuCapture, plans=None):
        self.program = kernel.trace(nki.TensorSpec(shape, "float32"))
        self.plan = device_plan_of(lower(self.program))
        self.captures = []

        def captured(plan, given):
            self.captures.append(capture(plan, given))
            return self.captures[-1]

        self.graphs = plans or PlanGraphs(
            lambda p, g: DeviceRunner(torch, p, g, CPU), captured, limit, StepKernels(torch, CPU)
        )
        self.shape = shape

    def __call__(self, value):
        ((_, storage),) = self.program.parameters
        found = self.graphs.run(self.plan, {storage: torch.full(self.shape, value)})
        return found if found is None else next(iter(found.values()))[0].item()
