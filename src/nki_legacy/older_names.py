"""Attributes of `nki` in older releases: `nki.name` is this module's `name` (spec/language.md 1.2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nki import Kernel, NkiWarning, jit, simulate
from nki.errors import error
from nki.kernel.jit import as_kernel

from .sessions import Artifacts

trace = jit


def cpu_simulate(kernel: Callable[..., Any] | Kernel) -> Kernel:
    """Return the kernel, to be launched as cpu_simulate(kernel)[lnc](...); AWS's library tests call it."""
    return as_kernel(kernel)


BENCHMARK_OPTIONS = (
    "warmup",
    "iters",
    "n_iterations",
    "save_neff_name",
    "save_trace_name",
    "additional_compile_opt",
)


def benchmark(
    kernel: Callable[..., Any] | None = None, args: Sequence[Any] | None = None, **options: object
) -> Benchmark | Callable[..., Benchmark]:
    """benchmark(warmup=, iters=)(kernel), or benchmark(kernel, args): price it with the timing model."""
    for name in options:
        if name not in BENCHMARK_OPTIONS:
            accepted = ", ".join(BENCHMARK_OPTIONS)
            raise error(
                "argument", f"nki.benchmark: unknown keyword {name!r}", notes=[f"accepted: {accepted}"]
            )
    artifacts = Artifacts(options.get("save_neff_name"), options.get("save_trace_name"))  # type: ignore[arg-type]
    if kernel is None:
        return lambda function: Benchmark(function, artifacts)
    priced = Benchmark(kernel, artifacts)
    if args is not None:
        priced(*args)
    return priced


class Benchmark:
    """A kernel that also prices each call; `benchmark_result.nc_latency` has the last one's latency."""

    def __init__(self, kernel: Callable[..., Any] | Kernel, artifacts: Artifacts):
        self.kernel, self.artifacts = as_kernel(kernel), artifacts
        self.benchmark_result: BenchmarkResult | None = None

    def __getitem__(self, grid: int | Sequence[int]) -> Benchmark:
        return Benchmark(self.kernel[grid], self.artifacts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from nki.kernel.profile import profile_call

        priced = profile_call(self.kernel, args, kwargs, run=True)
        self.benchmark_result = BenchmarkResult(Latency(priced.total_us))
        self.artifacts.write(lambda: self.kernel.trace(*args, **kwargs))
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


# ---- removed names -------------------------------------------------------------------------------


def _simulate_kernel(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return nki.simulate(kernel)(*args, **kwargs)."""
    return simulate(kernel)(*args, **kwargs)


def _baremetal(kernel: Callable[..., Any] | None = None, **options: object) -> Any:
    """Return the kernel: there is no device, so a call runs here."""
    return jit if kernel is None else as_kernel(kernel)


REMOVED = {
    "baremetal": "call the kernel: kernel(*args)",
    "simulate_kernel": "nki.simulate(kernel)(*args)",
    "meta": "make the array with NumPy before the kernel and pass it, or embed it with nl.shared_constant",
}
IN_SCRIPTS = {"baremetal": _baremetal, "simulate_kernel": _simulate_kernel}
_scripts = False


def allow_in_scripts(allowed: bool = True) -> None:
    """Inside `nki run` a few removed names work, each with one warning."""
    global _scripts
    _scripts = allowed


def __getattr__(name: str) -> Any:
    """Raise for a removed name, with its replacement; inside `nki run`, warn where it still works."""
    if name not in REMOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _scripts and name in IN_SCRIPTS:
        warnings.warn(f"nki.{name} has been removed: {REMOVED[name]}", NkiWarning, stacklevel=5)
        return IN_SCRIPTS[name]
    raise error("removed-name", f"nki.{name} has been removed from NKI", help=REMOVED[name])
