"""nki.jit, nki.simulate and nki.profile: what is made of a function (spec/language.md 2 and 4)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from ..errors import error, unknown_name
from ..machine.generations import find
from ..options import from_environment
from ..tracebacks import hide_our_frames, hides_our_frames
from .kernel import Kernel, P
from .run import launch_grid

if TYPE_CHECKING:
    from .profile import Profile, WorldProfile

_IGNORED_WITH_WARNING = ("mode", "experimental_flags", "additional_compile_opt")
_IGNORED = ("debug_kernel", "show_compiler_tb")
_JIT_KEYWORDS = ("platform_target", "grid", "kernel_return", *_IGNORED_WITH_WARNING, *_IGNORED)


@overload
def jit(fn: Callable[P, Any], **kwargs: object) -> Kernel[P]:
    """Make a kernel of a function: @nki.jit, or nki.jit(fn)."""


@overload
def jit(fn: None = None, **kwargs: object) -> Callable[[Callable[P, Any]], Kernel[P]]:
    """Make a kernel of the function below: @nki.jit(), @nki.jit(platform_target=...)."""


def jit(fn: Any = None, **kwargs: Any) -> Any:
    """Make a kernel of a function: @nki.jit, @nki.jit(), nki.jit(fn), nki.jit(fn, platform_target=...)."""
    try:  # not by a decorator: editors would not see the kernel behind it
        target = _checked_target(kwargs)
        grid = launch_grid(kwargs["grid"]) if kwargs.get("grid") not in (None, (), []) else ()
        make = functools.partial(
            Kernel, grid=grid, target=target, returns=kwargs.get("kernel_return") is not False
        )
        return make if fn is None else make(fn)
    except Exception as problem:
        hide_our_frames(problem)
        raise


def _checked_target(kwargs: dict[str, Any]) -> str | None:
    """Refuse unknown keywords of nki.jit, warn of those without effect, and return the platform."""
    for name in kwargs:
        if name not in _JIT_KEYWORDS:
            raise unknown_name(f"nki.jit: unknown keyword {name!r}", name, _JIT_KEYWORDS)
        if name in _IGNORED_WITH_WARNING:
            warnings.warn(f"nki.jit: {name}= is accepted and ignored", DeprecationWarning, stacklevel=3)
    target: str | None = kwargs.get("platform_target")
    if target is not None:
        find(target)
        if from_environment().strict:
            raise error(
                "removed",
                "nki.jit: platform_target= was removed in NKI 0.3.0",
                help=f"leave it out and set NEURON_PLATFORM_TARGET_OVERRIDE={target}",
            )
        warnings.warn(
            "nki.jit: platform_target= is deprecated, set NEURON_PLATFORM_TARGET_OVERRIDE",
            DeprecationWarning,
            stacklevel=3,
        )
    return target


@hides_our_frames
def simulate(kernel: Callable[P, Any] | Kernel[P]) -> Kernel[P]:
    """The kernel, run at once on this machine with the supported-Python lint on."""
    return as_kernel(kernel)._with(simulated=True)


@overload
def profile(
    kernel: Callable[..., Any] | Kernel,
    run: bool = False,
    stage: Callable[[str], None] = ...,
    *,
    target: str | None = None,
    lnc: int | None = None,
    uncertainty: bool = False,
) -> Callable[..., Profile]:
    """Profile one rank."""


@overload
def profile(
    kernel: Callable[..., Any] | Kernel,
    run: bool = False,
    stage: Callable[[str], None] = ...,
    ranks: int = 1,
    starts_us: Sequence[float] | None = None,
    *,
    target: str | None = None,
    lnc: int | None = None,
    uncertainty: bool = False,
) -> Callable[..., Profile | WorldProfile]:
    """Profile several ranks."""


@hides_our_frames
def profile(
    kernel: Callable[..., Any] | Kernel,
    run: bool = False,
    stage: Callable[[str], None] = lambda what: None,
    ranks: int = 1,
    starts_us: Sequence[float] | None = None,
    *,
    target: str | None = None,
    lnc: int | None = None,
    uncertainty: bool = False,
) -> Callable[..., Profile | WorldProfile]:
    """`nki.profile(kernel)(*args)`: arguments are arrays or TensorSpecs; `run=True` also computes.

    `target` names another platform and `lnc` another number of cores than the kernel's. With
    `uncertainty=True` the kernel is timed again with each assumption at its ends: `profile.uncertainty`.
    `ranks` gives a WorldProfile of so many, which begin together or at `starts_us`. Given arrays, a kernel
    with dynamic loops is run to count their trips. `stage` is called with each step, to show progress.
    """
    from .profile import profile_call, profile_world

    made = as_kernel(kernel) if lnc is None else as_kernel(kernel)[lnc]
    if ranks > 1 or starts_us is not None:
        return functools.partial(profile_world, made, ranks, starts_us, stage, target)
    return hides_our_frames(
        lambda *args, **kwargs: profile_call(made, args, kwargs, run, stage, target, uncertainty)
    )


def as_kernel(kernel: Any) -> Kernel:
    """A kernel as it is; any other function made into one."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)
