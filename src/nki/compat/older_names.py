"""Names of older releases of `nki`: what still works, and what replaced the rest (spec/language.md 1.2)."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from ..errors import NkiError, NkiWarning, error
from ..kernel.jit import as_kernel, jit, simulate

_TENSOR = "make the array with NumPy before the kernel and pass it, or embed it with nl.shared_constant"

REMOVED = {
    "baremetal": "call the kernel: kernel(*args)",
    "simulate_kernel": "nki.simulate(kernel)(*args)",
    "tensor": _TENSOR,
    "meta": _TENSOR,
}


def cpu_simulate(kernel):
    """The kernel, to be launched as cpu_simulate(kernel)[lnc](...); what AWS's library tests call."""
    return as_kernel(kernel)


BENCHMARK_OPTIONS = (
    "warmup",
    "iters",
    "n_iterations",
    "save_neff_name",
    "save_trace_name",
    "additional_compile_opt",
)


def benchmark(kernel=None, args=None, **options):
    """benchmark(warmup=, iters=)(kernel), or benchmark(kernel, args): price it with the timing model."""
    for name in options:
        if name not in BENCHMARK_OPTIONS:
            accepted = ", ".join(BENCHMARK_OPTIONS)
            raise error(
                "argument", f"nki.benchmark: unknown keyword {name!r}", notes=[f"accepted: {accepted}"]
            )
    if kernel is None:
        return Benchmark
    priced = Benchmark(kernel)
    if args is not None:
        priced(*args)
    return priced


class Benchmark:
    """A kernel that also prices each call; `benchmark_result.nc_latency` has the last one's latency."""

    def __init__(self, kernel: Any):
        self.kernel = as_kernel(kernel)
        self.benchmark_result: BenchmarkResult | None = None

    def __getitem__(self, degree: Any) -> Benchmark:
        return Benchmark(self.kernel[degree])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from ..kernel.profile import profile_call

        priced = profile_call(self.kernel, args, kwargs, run=True)
        self.benchmark_result = BenchmarkResult(Latency(priced.total_us))
        return priced.result


class Latency(NamedTuple):
    """Modelled, not measured: the model is deterministic, so every percentile is the same."""

    microseconds: float

    def get_latency_percentile(self, percentile: float) -> float:
        return self.microseconds

    def __repr__(self) -> str:
        return f"{self.microseconds:.3f} us (modelled, not measured)"


class BenchmarkResult(NamedTuple):
    nc_latency: Latency


SUPPORTED = {"benchmark": benchmark, "cpu_simulate": cpu_simulate, "trace": jit}


def simulate_kernel(kernel, *args, **kwargs):
    """nki.simulate(kernel)(*args, **kwargs)."""
    return simulate(kernel)(*args, **kwargs)


def baremetal(kernel=None, **options):
    """The kernel: there is no device, so a call of it runs here."""
    return jit if kernel is None else as_kernel(kernel)


IN_SCRIPTS = {"baremetal": baremetal, "simulate_kernel": simulate_kernel}
_scripts = False


def allow_in_scripts(allowed: bool = True) -> None:
    """Inside `nki run` a few removed names work, each with one warning."""
    global _scripts
    _scripts = allowed


def removed(name: str) -> NkiError:
    """The AttributeError for a removed `nki.name`, with its replacement."""
    return error("removed-name", f"nki.{name} has been removed from NKI", help=REMOVED[name])


def older_name(name: str) -> Any:
    """`nki.name` for a name that is not in the module."""
    if name in SUPPORTED:
        return SUPPORTED[name]
    if _scripts and name in IN_SCRIPTS:
        warnings.warn(f"nki.{name} has been removed: {REMOVED[name]}", NkiWarning, stacklevel=3)
        return IN_SCRIPTS[name]
    if name in REMOVED:
        raise removed(name)
    raise AttributeError(f"module 'nki' has no attribute {name!r}")
