"""Library kernels on the timing model, against their roofline. Each family's module has its CASES.

`make bench-kernels` prints them; nothing here is a test.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import nki
from nki.machine.generations import find
from nki.machine.machine import Machine
from nki.timing.measures import ceilings
from nki.timing.timeline import Timeline

PLATFORM = "trn2"
OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"


@dataclass(frozen=True)
class Case:
    """One kernel at one realistic size.

    `arguments` are what the kernel is called with (`nki.TensorSpec`s for tensors); a tuple of positional
    ones or a mapping of keywords. `flops` counts 2 per multiply-add of matmuls, by the dtype of the operands
    ({"bfloat16": 2 * M * N * K}; "mxfp8" for nc_matmul_mx); `hbm_bytes` what must be read and written at
    least once. A kernel whose result needs another engine, or TensorE for transposes, names it and the time
    that engine needs at its full rate: other=("Scalar", 123.4).
    """

    kernel_name: str
    label: str  # the size, e.g. "2048x8192 bf16"
    kernel: Callable
    arguments: tuple | Mapping[str, Any]
    hbm_bytes: int
    flops: Mapping[str, float] = field(default_factory=dict)
    other: tuple[str, float] | None = None  # engine, microseconds
    lnc: int = 1
    platform: str = PLATFORM
    ranks: int = 1  # the slowest one is shown; `link_bytes` is what each has to receive
    link_bytes: int = 0


@dataclass(frozen=True)
class Figures:
    """The modelled time of a case, and its lower bound."""

    kernel: str
    size: str
    modelled_us: float
    bound_us: float
    bound: str  # what sets it: memory, compute, Tensor or link
    limit_us: float  # what its busiest resource needs at least
    limit: str
    ratio: float  # of the modelled time to the bound
    busiest: str  # engine, with the part of the time it works
    sbuf_peak_bytes: int
    spill_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def cases() -> Iterator[Case]:
    """Return the cases of every module here, by kernel."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
        yield from importlib.import_module(f"{__name__}.{module}").CASES


def measure(case: Case) -> Figures:
    """Trace and schedule a case; nothing is computed."""
    machine = find(case.platform)
    kernel = case.kernel if case.lnc == 1 else case.kernel[case.lnc]
    keywords = isinstance(case.arguments, Mapping)
    args, kwargs = ((), case.arguments) if keywords else (case.arguments, {})
    before = os.environ.get(OVERRIDE, PLATFORM)
    os.environ[OVERRIDE] = case.platform
    profile = profiled(kernel, case.ranks, args, kwargs)
    os.environ[OVERRIDE] = before
    bound, bound_us = roofline(case, machine)
    limit, limit_us = busiest_limit(case, profile, machine)
    return Figures(
        kernel=case.kernel_name,
        size=case.label
        + (f", {case.ranks} ranks" if case.ranks > 1 else "")
        + (f", LNC {case.lnc}" if case.lnc > 1 else "")
        + (f", {case.platform}" if case.platform != PLATFORM else ""),
        modelled_us=profile.total_us,
        bound_us=bound_us,
        bound=bound,
        limit_us=limit_us,
        limit=limit,
        ratio=profile.total_us / bound_us,
        busiest=busiest(profile),
        sbuf_peak_bytes=profile.statistics.sbuf_peak_bytes,
        spill_bytes=profile.timeline.spill_bytes,
    )


def profiled(kernel: Callable, ranks: int, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """Return the modelled run; for several ranks that of the slowest."""
    if ranks == 1:
        return nki.profile(kernel)(*args, **kwargs)
    world = nki.profile(kernel, ranks=ranks)(*args, **kwargs)
    return max(world.ranks, key=lambda profile: profile.total_us)


def roofline(case: Case, machine: Machine) -> tuple[str, float]:
    """Return the lower bound of any schedule in microseconds, and the resource that sets it."""
    gbs = min(machine.hbm_gbs, case.lnc * machine.dma_engines * machine.dma_bytes_per_ns)
    compute = sum(flops / machine.peak_flops(speed(dtype, machine)) for dtype, flops in case.flops.items())
    bounds = [("memory", case.hbm_bytes / gbs / 1e3), ("compute", compute / case.lnc * 1e6)]
    if case.link_bytes:
        bounds.append(("link", case.link_bytes / machine.collective_link_gbs / 1e3))
    if case.other and case.other[0] == "Tensor":
        bounds.append(case.other)
    return max(bounds, key=lambda bound: bound[1])


def busiest_limit(case: Case, profile: Any, machine: Machine) -> tuple[str, float]:
    """Return the resource that the kernel's work needs longest, or that of its result, and the time.

    A run has a fixed cost on the device beside it, and a first load and a last store.
    """
    longest = ceilings(profile.timeline)[0]
    found = [(longest.name, longest.ns / 1e3)]
    found.append(("starting transfers", trigger_ns(profile.timeline) / 1e3))
    found.append(("start, load and store", (machine.kernel_overhead_ns + latency_ns(machine)) / 1e3))
    if case.other:
        found.append((" and ".join(f"{name}E" for name in case.other[0].split(", ")), case.other[1]))
    return max(found, key=lambda limit: limit[1])


def trigger_ns(timeline: Timeline) -> float:
    """Return how long the transfers of a core hold the queue whose descriptors software makes."""
    return max(
        sum(transfer.issue_ns for transfer in core.transfers.values() if transfer.mode == "software")
        for core in timeline.cores
    )


def latency_ns(m: Machine) -> float:
    """Return what one load and one store take that move next to nothing."""
    load = m.dma_dispatch_load_ns + m.dma_notify_load_ns
    return load + m.dma_dispatch_store_ns + m.dma_notify_store_ns + m.swdge_wait_ns


def speed(dtype: str, machine: Machine) -> float:
    """Return the rate of matmuls of a dtype, relative to bfloat16."""
    if dtype == "float32":
        return machine.fp32_multiplier
    if dtype.startswith("mx"):
        return machine.mx_multiplier
    return (machine.double_row_multiplier or 1.0) if dtype.startswith("float8") else 1.0


def busiest(profile: Any) -> str:
    timeline = profile.timeline
    names = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd", "dma": "DMA"}
    active = {name: timeline.active_ns(name) for name in names}
    name = max(active, key=active.__getitem__)
    return f"{names[name]} {active[name] / timeline.total_ns:.0%}"
