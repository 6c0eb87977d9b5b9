"""Kernel: a Python function that issues instructions, and the ways to call it (spec/language.md 2-4).

A call runs the Program that an equal call has left in the cache. Else its Python is traced, and the recorded
Program runs. Where Python reads a value, an instruction fails, or a dynamic loop must be watched, the call
starts again in eager mode.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec

from ..errors import error, user_site, warn_at
from ..ir import tree
from ..ir.context import running, warn
from ..ir.program import Diagnostic, Program
from ..ir.schedule_edges import checked_edges
from ..launch import observers
from ..launch.core import Core
from ..launch.diagnostics import Diagnostics, SideEffects
from ..launch.world import current_world
from ..machine.machine import Machine
from ..options import Options, choose_machine, from_environment
from ..options import options as nki_options
from ..tracebacks import hide_our_frames, hides_our_frames
from .arguments import Arguments, bind
from .arrays import TensorSpec, load_framework
from .attempts import run_call, trace_call
from .cache import CacheInfo, is_debugging, programs
from .early import start_early
from .explain import explains_calls
from .listeners import listeners
from .run import Call, Run, launch_grid
from .staged import Returned, Staged, stage_call
from .user_function import AnyKernel, named, plain, refuse_unfinished

if TYPE_CHECKING:
    from .devices import Started
    from .profile import Profile


P = ParamSpec("P")  # the parameters of the user's function: what editors show of a kernel
MYPY = False  # checkers take it for True; jedi does not look behind it, and shows the function


class _Typed(Generic[P]):
    """What type checkers and editors see: a call takes the arguments of the function."""

    if TYPE_CHECKING:
        __call__: Callable[P, Any]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Kernel(AnyKernel, _Typed[P]):
    """A kernel. `kernel(...)` runs it, `kernel[2]` launches it on two cores. Immutable."""

    func: Callable[P, Any]  # the user's function
    grid: tuple[int, ...] = ()  # () without brackets, else (n,)
    target: str | None = None  # the platform given to nki.jit
    schedule: tuple = ()  # the edges of with_schedule
    returns: bool = True
    simulated: bool = False  # nki.simulate(kernel): the supported-Python lint is on

    __name__: ClassVar[str]
    __qualname__: ClassVar[str]
    __signature__: ClassVar[inspect.Signature]

    is_leaf: ClassVar[bool] = True  # of the trees that kernels receive
    linted: ClassVar[bool] = True  # the rules of AWS's current front ends on Python apply to it

    def __init__(
        self,
        func: Callable[P, Any] | Kernel[P],
        *,
        grid: tuple[int, ...] = (),
        target: str | None = None,
        schedule: tuple = (),
        returns: bool = True,
        simulated: bool = False,
    ):
        if isinstance(func, Kernel):
            func = func.func
        if not callable(func):
            raise error("argument", f"a kernel is a function, got {func!r}")
        users = plain(func)
        refuse_unfinished(users)
        named: dict[str, Any] = {}
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(users, name):
                named[name] = getattr(users, name)
        named.setdefault("__name__", type(users).__name__)
        self.__dict__.update(named, __wrapped__=func, __signature__=inspect.signature(func))
        self.__dict__.update(
            func=func, grid=grid, target=target, schedule=schedule, returns=returns, simulated=simulated
        )

    @property
    def lnc(self) -> int:
        """Launch degree: 1 without brackets."""
        return self.grid[0] if self.grid else 1

    @property
    def _state(self) -> tuple:
        return tuple(self.__dict__[name] for name in _STATE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self._state == other._state

    def __hash__(self) -> int:
        return hash(self._state)

    def __reduce__(self) -> Any:
        """By name, as a function: workers of other processes import it."""
        found = named(self.__module__, self.__qualname__)
        if plain(found) is not plain(self.func) or hasattr(self.func, "__self__"):
            raise pickle.PicklingError(f"kernel {self.__name__} is not {self.__module__}.{self.__qualname__}")
        return _unpickled, (self.__module__, self.__qualname__, self._state[1:])

    def __repr__(self) -> str:
        bracket = f"[{self.lnc}]" if self.grid else ""
        return f"<nki.Kernel {self.__name__}{bracket} target={choose_machine(self.target).name}>"

    def _with(self, **changes: Any) -> Any:
        if "func" in changes:
            return Kernel(**{**dict(zip(_STATE, self._state, strict=True)), **changes})
        twin = object.__new__(Kernel)
        twin.__dict__.update(self.__dict__, **changes)  # its signature is that of this one
        return twin

    def __getitem__(self, degree: object) -> Kernel[P]:
        if _is_compiling():
            return load_framework("torch").launched(self, degree)
        return self._with(grid=launch_grid(degree))

    if MYPY or not TYPE_CHECKING:

        def __get__(self, instance: object, owner: type | None = None) -> Kernel[...]:
            if instance is None or not hasattr(type(self.func), "__get__"):
                return self
            return self._with(func=self.func.__get__(instance, owner))

    def with_schedule(self, edges: Iterable) -> Kernel[P]:
        """Order instructions by name: each edge (later, earlier) makes `later` wait for `earlier`."""
        return self._with(schedule=checked_edges(edges))

    # ---- calling ---------------------------------------------------------------------------------

    def _call(self, *args: object, **kwargs: object) -> Any:
        if _is_compiling():  # torch.compile traces this very function
            return load_framework("torch").staged(self, args, kwargs)
        core = running()
        if core is not None:
            return self._inline(core, args, kwargs)
        try:
            return self._start(args, kwargs)
        except Exception as problem:
            hide_our_frames(problem)
            raise

    @explains_calls
    def _start(self, args: tuple, kwargs: dict) -> Any:
        for listener in tuple(listeners):
            listener(self, args, kwargs)
        early = start_early(self, args, kwargs) if type(self) is Kernel else None
        call = self.prepare(args, kwargs) if early is None else self._prepared(*early)
        framework = call.arguments.framework
        if framework is None:
            return run_call(call).result
        return framework.call(self, call, args, kwargs)

    if not TYPE_CHECKING:
        __call__ = _call

    def _inline(self, core: Core, args: tuple, kwargs: dict) -> Any:
        """Called from a running kernel: the same trace goes on."""
        if self.grid and self.lnc != core.launch.degree:
            raise error(
                "launch-grid",
                f"{self.__name__}[{self.lnc}] is called by a kernel running on {core.launch.degree} core(s)",
                help="leave out the brackets of the inner call",
            )
        if self.target is not None and choose_machine(self.target).name != core.machine.name:
            warn(
                "inner-target",
                f"{self.__name__}: platform_target={self.target!r} is ignored in a nested call",
            )
        return self.func(*args, **kwargs)

    @hides_our_frames
    @explains_calls
    def run(self, *args: object, **kwargs: object) -> Run:
        """Like a call, but returns a Run: the result with statistics and diagnostics.

        `target=` names another platform, unless the kernel has a parameter of that name.
        """
        if "target" in kwargs and "target" not in self.__signature__.parameters:
            with nki_options(target=kwargs.pop("target")):
                return self.run(*args, **kwargs)
        for listener in tuple(listeners):
            listener(self, args, kwargs)
        return run_call(self.prepare(args, kwargs))

    @hides_our_frames
    @explains_calls
    def trace(self, *args: object, **kwargs: object) -> Program:
        """Return what a call does as a Program. Arrays may be `nki.TensorSpec`s; nothing is computed."""
        return trace_call(self.prepare(args, kwargs), has_data=False).program

    @hides_our_frames
    @explains_calls
    def stage(self, *args: object, **kwargs: object) -> Staged:
        """Trace a call on `nki.TensorSpec`s now, to be run with data later."""
        return stage_call(self.prepare(args, kwargs))

    @hides_our_frames
    @explains_calls
    def eval_shape(self, *args: object, **kwargs: object) -> Any:
        """What a call returns, with `nki.TensorSpec`s for its tensors. Takes TensorSpecs or arrays."""
        outline = self.stage(*args, **kwargs).outline
        return tree.replace_leaves(outline.result, Returned, lambda r: TensorSpec(*r[:2]))

    @hides_our_frames
    def profile(self, *args: object, **kwargs: object) -> Profile:
        """The modelled run of the kernel on its platform: `nki.profile(kernel)(*args)`."""
        from .profile import profile_call

        return profile_call(self, args, kwargs)

    def cache_info(self) -> CacheInfo:
        """Return how often calls skipped the kernel's Python, and why it runs at every call if it does."""
        return programs.info(self.func)

    def prepare(self, args: tuple, kwargs: dict) -> Call:
        """Bind and flatten the arguments, and find how the call runs."""
        return self._prepared(bind(self.__name__, self.func, self.__signature__, args, kwargs))

    def _prepared(self, arguments: Arguments, early: Started | None = None) -> Call:
        """Return a call of these arguments, which a GPU may have been asked for already."""
        options = from_environment()
        machine = choose_machine(self.target)
        self._check_degree(machine, options)
        if self.simulated:
            self._lint()
        debugging = is_debugging()
        key: Any = None
        if options.cache and not debugging and not observers.current():
            context = (self.grid, self.schedule, machine.name, options, current_world().size)
            key = programs.key(self.func, arguments.key, arguments.unknown, context)
        is_eager = debugging or not options.cache
        return Call(self, options, machine, arguments, key, eager=is_eager, early=early)

    def _check_degree(self, machine: Machine, options: Options) -> None:
        if self.lnc not in machine.lnc_degrees:
            allowed = " or ".join(map(str, machine.lnc_degrees))
            raise error(
                "launch-grid",
                f"{self.__name__}[{self.lnc}]: {machine.name} launches kernels on {allowed} core(s)",
                help="choose another degree, or another platform with NEURON_PLATFORM_TARGET_OVERRIDE",
            )
        configured = options.logical_nc_config
        if configured is not None and configured != self.lnc:
            text = f"NEURON_LOGICAL_NC_CONFIG is {configured}, but {self.__name__} is launched on {self.lnc}"
            found = Diagnostic("lnc-config", f"{text} core(s); hardware would refuse", [], None, user_site())
            Diagnostics(options.strict, current_world(), SideEffects()).report(found)

    def _lint(self) -> None:
        """Warn about what the real compiler would reject; a function is checked once."""
        from ..check.python import lint

        if self.func not in _findings:
            _findings[self.func] = lint(self.func)
        for finding in _findings[self.func]:
            warn_at(finding.code, finding.described(), finding.filename, finding.line)


_STATE = tuple(f.name for f in fields(Kernel))
_findings: weakref.WeakKeyDictionary[Callable, list[Any]] = weakref.WeakKeyDictionary()


def _is_compiling() -> bool:
    """Return True while torch.compile traces the caller."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


# ---- helpers -------------------------------------------------------------------------------------


def _unpickled(module: str, name: str, state: tuple) -> Kernel:
    """The kernel of a name, launched as the pickled one was."""
    return Kernel(named(module, name), **dict(zip(_STATE[1:], state, strict=True)))
