"""run_ranks: one kernel on every rank of a world."""

from __future__ import annotations

from typing import Any

from ..errors import NkiError, error, user_site
from ..kernel.kernel import Kernel
from ..tracebacks import hides_our_frames
from .inputs import calls_of, check_alike
from .local import LARGEST, run_local
from .processes import run_processes

BACKENDS = {"local": run_local, "processes": run_processes}


@hides_our_frames
def run_ranks(
    kernel: Any,
    world_size: int,
    inputs: object,
    *,
    backend: str = "local",
    lnc: int | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """What the kernel returns on each rank of a world, in rank order.

    `inputs` is what each rank is called with: a function of the rank, a sequence with an entry for each, or
    a dict whose `per_rank([...])` values differ. A tuple is positional arguments, a dict keywords, anything
    else the only argument. Backend "local" runs all ranks in this process, one at a time; "processes" gives
    each a process, which `timeout` limits in seconds.
    """
    kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    if lnc is not None:
        kernel = kernel[lnc]
    if not isinstance(world_size, int) or not 1 <= world_size <= LARGEST:
        raise error("argument", f"run_ranks: a world has 1 to {LARGEST} ranks, got {world_size!r}")
    if backend not in BACKENDS:
        raise error(
            "argument",
            f"run_ranks: backend {backend!r}",
            help="write 'local' or 'processes'; programs started by torchrun use nki.ranks.attach",
        )
    calls = calls_of(inputs, world_size)
    check_alike(kernel, calls)
    try:
        return BACKENDS[backend](kernel, calls, timeout)
    except NkiError as problem:
        if problem.site is None:
            problem.site = user_site()  # what was given, not what a kernel's line made of it
        raise
