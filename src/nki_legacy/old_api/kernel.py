"""Kernels of the old API: `jit`, `trace`, `simulate_kernel`, `baremetal`, `benchmark`, `profile`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from nki.errors import NkiError, error
from nki.ir.context import running as running_core
from nki.ir.program import Program
from nki.ir.tensor import NkiTensor
from nki.ir.tree import leaves, replace_leaves
from nki.kernel.arrays import TensorSpec
from nki.kernel.jit import profile as model
from nki.kernel.kernel import Kernel
from nki.kernel.run import Call, Run
from nki.language.creation import allocate
from nki.machine.generations import find
from nki.machine.memories import SHARED_HBM

from .. import sessions
from ..older_names import BenchmarkResult, Latency
from . import state as run
from .compiler import skips_middle_end
from .failures import failure
from .regions import move
from .tensor import Tensor, Whole
from .typing import Placeholder

DEFAULT_TARGET = "trn2"
PERCENTILES = (0, 1, 10, 25, 50, 90, 99, 100)
NO_ARTIFACTS = sessions.Artifacts()


class OldKernel(Kernel):
    """A function of the old API as a kernel; `kernel[4, 2]` runs it once for each place of the grid."""

    def __init__(
        self,
        func: Any,
        programs: tuple[int, ...] = (),
        precise: bool = True,
        artifacts: sessions.Artifacts = NO_ARTIFACTS,
        **state: Any,
    ):
        plain = func.user if isinstance(func, OldKernel) else func
        state.setdefault("target", getattr(func, "target", None) or DEFAULT_TARGET)
        state = {k: v for k, v in state.items() if k in ("target", "returns")}
        super().__init__(_body(plain, programs), **state)
        self.__dict__.update(user=plain, programs=programs, precise=precise, artifacts=artifacts)
        del self.__dict__["__wrapped__"]  # pytest would take a kernel called test_... for a test

    linted: ClassVar[bool] = False  # the old front end traced Python

    user: Callable
    programs: tuple[int, ...]
    precise: bool  # False: narrow floats hold float32 values, as in the old simulator
    artifacts: sessions.Artifacts  # what a call writes beside its result

    def _again(self, **changes: Any) -> OldKernel:
        before = {
            "programs": self.programs,
            "precise": self.precise,
            "artifacts": self.artifacts,
            "target": self.target,
            "returns": self.returns,
        }
        return OldKernel(self.user, **{**before, **changes})

    def _with(self, **changes: Any) -> Kernel:
        return self._again(**{k: v for k, v in changes.items() if k in ("target", "returns")})

    def __getitem__(self, grid: Any) -> OldKernel:
        sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
        # public kernels pass 0 for one program
        return self._again(programs=tuple(max(1, int(n)) for n in sizes))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if run.running() is not None:
            if self.programs:
                raise failure(
                    "err_nested_kernel_with_spmd_grid", f"{self.__name__} is called inside a kernel"
                )
            return self.user(*args, **kwargs)
        if running_core() is not None:
            raise error(
                "argument", f"{self.__name__} is of the old API: call it from the host or an old kernel"
            )
        result = super().__call__(*args, **kwargs)
        self.artifacts.write(lambda: self.trace(*args, **kwargs))
        return result

    def prepare(self, args: tuple, kwargs: dict) -> Call:
        args, kwargs = (replace_leaves(v, Placeholder, _described) for v in (args, kwargs))
        call = super().prepare(args, kwargs)
        options = replace(call.options, precise_fp=call.options.precise_fp and self.precise)
        key = None if call.key is None else (*call.key, self.precise)
        return replace(call, options=options, key=key)

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """Return the program, which the device's compiler transforms: less if it skips the middle end."""
        program = super().trace(*args, **kwargs)
        return replace(program, transformed=True, skips_middle_end=skips_middle_end(self.user))

    def run(self, *args: Any, **kwargs: Any) -> Run:
        try:
            return super().run(*args, **kwargs)
        except NkiError as problem:
            raise problem from None


def _described(value: Placeholder) -> TensorSpec:
    return TensorSpec(tuple(value.shape), value.dtype)


@functools.lru_cache(maxsize=256)
def _body(function: Callable, programs: tuple[int, ...]) -> Callable:
    """Return what a kernel of `nki` runs: the function, once for each place of the grid.

    It is the same for an equal kernel, such as `baremetal(kernel)`, so that both find one cached Program.
    """

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        current = run.RunState(programs)
        before = run.activate(current)
        try:
            args, kwargs = (replace_leaves(v, NkiTensor, Whole) for v in (args, kwargs))
            results = []
            for place in np.ndindex(programs):
                current.enter(place)
                results.append(function(*args, **kwargs))
                current.flush()
            return replace_leaves(results[0], Tensor, _exported)
        finally:
            run.activate(before)

    return body


def _exported(tensor: Tensor) -> NkiTensor:
    """Return a result in HBM; a tile is copied there."""
    view = tensor.tile()
    if not view.on_chip:
        return view
    out = allocate("result", tuple(view.shape), view.dtype, SHARED_HBM)
    move(out, view)
    return out


# ---- decorators ----------------------------------------------------------------------------------

MODES = ("auto", "jax", "torchxla", "baremetal", "benchmark", "simulation", "trace")


def _decorator(make: Callable[..., Any]) -> Callable[..., Any]:
    """@d, @d(...), d(f) and d(f, k=v)."""

    @functools.wraps(make)
    def decorate(kernel: Any = None, /, *args: Any, **options: Any) -> Any:
        kernel = options.pop("func", options.pop("kernel", kernel))
        if kernel is None:
            return lambda function: make(function, *args, **options)
        return make(kernel, *args, **options)

    return decorate


@_decorator
def jit(
    func: Any, mode: str = "auto", platform_target: str | None = None, kernel_return: bool = True, **_: object
) -> Any:
    """Return a kernel. It always runs here; mode="simulation" does not round narrow floats."""
    if mode not in MODES:
        raise error("argument", f"jit: mode={mode!r} is none of {', '.join(MODES)}")
    if platform_target is not None:
        find(platform_target)
    state: dict[str, Any] = {"returns": kernel_return}
    if platform_target is not None:
        state["target"] = platform_target
    made = OldKernel(func, getattr(func, "programs", ()), mode != "simulation", **state)
    return OldBenchmark(made) if mode == "benchmark" else made


def trace(func: Any = None, **options: Any) -> Any:
    """Return a helper, or a kernel that writes to its arguments."""
    return jit(func, mode="trace", **options)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel on this machine."""
    made = kernel.kernel if isinstance(kernel, OldBenchmark) else kernel
    made = made if isinstance(made, OldKernel) else OldKernel(made)
    return made._again(precise=False)(*args, **kwargs)


@_decorator
def baremetal(
    kernel: Any,
    save_neff_name: str | None = None,
    save_trace_name: str | None = None,
    additional_compile_opt: object = None,
    artifacts_dir: str | None = None,
    **_: object,
) -> Any:
    """Return the kernel: there is no device, so it runs here. Its calls write the files asked for."""
    made = kernel if isinstance(kernel, OldKernel) else OldKernel(kernel)
    return made._again(artifacts=_artifacts(save_neff_name, save_trace_name, artifacts_dir))


def _artifacts(neff: str | None, trace: str | None, folder: str | None = None) -> sessions.Artifacts:
    """Return the files to write, in a folder that is made if it is missing."""
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    return sessions.Artifacts(*(os.path.join(folder or "", n) if n else None for n in (neff, trace)))


@_decorator
def benchmark(
    kernel: Any,
    warmup: int = 10,
    iters: int = 100,
    save_neff_name: str | None = None,
    save_trace_name: str | None = None,
    additional_compile_opt: object = None,
    artifacts_dir: str | None = None,
    **_: object,
) -> Any:
    """Return a kernel that prices each call with the timing model, and prints its latency."""
    made = kernel if isinstance(kernel, OldKernel) else OldKernel(kernel)
    return OldBenchmark(made._again(artifacts=_artifacts(save_neff_name, save_trace_name, artifacts_dir)))


class OldLatency(Latency):
    """A latency that has only the percentiles of the old API."""

    def get_latency_percentile(self, percentile: float) -> float:
        if percentile not in PERCENTILES:
            raise ValueError(f"there is no percentile {percentile}: {', '.join(map(str, PERCENTILES))}")
        return self.microseconds


class OldBenchmark:
    """A kernel whose calls set `benchmark_result.nc_latency`; `b[grid]` has a separate result."""

    def __init__(self, kernel: OldKernel, of: OldBenchmark | None = None):
        self.kernel, self.of = kernel, of
        self.__name__ = kernel.__name__
        self.benchmark_result: BenchmarkResult | None = None

    def __getitem__(self, grid: Any) -> OldBenchmark:
        return OldBenchmark(self.kernel[grid], self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if run.running() is not None:
            return self.kernel(*args, **kwargs)
        runs = not leaves([args, kwargs], Placeholder)
        priced = model(self.kernel, run=runs)(*args, **kwargs)
        result = BenchmarkResult(OldLatency(priced.total_us))
        self.benchmark_result = result
        if self.of is not None:
            self.of.benchmark_result = result
        self.kernel.artifacts.write(lambda: self.kernel.trace(*args, **kwargs))
        print(latency_table(self.__name__, result.nc_latency))
        return priced.result


def latency_table(name: str, latency: Latency) -> str:
    """Return the percentiles of a latency as a table; the model is deterministic, so they are equal."""
    heads = [f"p{p}" for p in PERCENTILES]
    cells = [f"{latency.get_latency_percentile(p):.2f}" for p in PERCENTILES]
    width = max(map(len, [*heads, *cells])) + 2
    rows = ("".join(text.rjust(width) for text in row) for row in (heads, cells))
    return "\n".join([f"{name}: NC latency in us, modelled, not measured", *rows])


@_decorator
def profile(
    kernel: Any,
    working_directory: str | None = None,
    save_neff_name: str = "file.neff",
    save_trace_name: str = "profile.ntff",
    additional_compile_opt: object = None,
    overwrite: bool = False,
    profile_nth: int = 1,
    num_execs: int = 1,
    **_: object,
) -> Any:
    """Return a kernel whose calls write a modelled profile to `working_directory`, and return None."""
    made = kernel if isinstance(kernel, OldKernel) else OldKernel(kernel)

    def call(*args: Any, **kwargs: Any) -> None:
        folder = os.path.abspath(working_directory or ".")
        os.makedirs(folder, exist_ok=True)
        program = made.trace(*args, **kwargs)
        sessions.write(os.path.join(folder, save_neff_name), made.__name__, [program])
        stem, suffix = os.path.splitext(save_trace_name)
        names = [f"{stem}_exec_{n}{suffix}" for n in range(profile_nth, num_execs + 1, profile_nth)]
        for name in names if profile_nth > 1 else [save_trace_name]:
            sessions.write(os.path.join(folder, name), made.__name__, [program])

    return call


class FrameworkKernel:
    """Was the base class of framework kernels; it has no successor."""

    def __init__(self, *args: Any, **kwargs: Any):
        raise failure(
            "err_no_successor", "FrameworkKernel has no successor", "decorate the function with nki.jit"
        )
