"""`torch_neuronx.experimental.profiler`: on exit, a modelled profile of each kernel launched inside.

`jax.profiler` is JAX's own; inside `nki run` it also writes our profiles beside its trace.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from nki.kernel.profile import profile_program

from ..sessions import Calls, write


class profile:
    """The context manager; its options are AWS's, of which output_dir has an effect."""

    def __init__(
        self, *_: object, output_dir: str | None = None, neuron_tensorboard_plugin_dir: str = "", **__: object
    ):
        self.folder = output_dir or neuron_tensorboard_plugin_dir or "output"
        self.calls = Calls()

    def start(self) -> None:
        self.calls.start()

    def stop(self) -> None:
        for number, program in enumerate(self.calls.stop()):
            os.makedirs(self.folder, exist_ok=True)
            path = os.path.join(self.folder, f"{program.name}_{number}.json")
            profile_program(program).save(path)
            write(os.path.join(self.folder, f"neff_{number}.neff"), program.name, [program])
            session = os.path.join(self.folder, f"{number}_instid_0_vnc_0.ntff")
            write(session, program.name, [program])
            print(
                f"nki run: wrote {path} and {session}, modelled, not measured\n"
                f"  nki neuron-explorer view -s {session} makes a report, nki compare shows two",
                file=sys.stderr,
            )

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# ---- jax.profiler --------------------------------------------------------------------------------


def add_kernels(module: ModuleType) -> None:
    """`trace`, `start_trace` and `stop_trace` of JAX write modelled profiles of kernels too."""
    jax_trace, jax_start, jax_stop = module.trace, module.start_trace, module.stop_trace
    started: list[profile] = []

    @contextlib.contextmanager
    def trace(log_dir: str | os.PathLike, *args: Any, **kwargs: Any) -> Iterator[None]:
        with jax_trace(log_dir, *args, **kwargs), profile(output_dir=os.fspath(log_dir)):
            yield

    def start_trace(log_dir: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        jax_start(log_dir, *args, **kwargs)
        started.append(profile(output_dir=os.fspath(log_dir)))
        started[-1].start()

    def stop_trace() -> None:
        if started:
            started.pop().stop()
        jax_stop()

    vars(module).update(trace=trace, start_trace=start_trace, stop_trace=stop_trace)
