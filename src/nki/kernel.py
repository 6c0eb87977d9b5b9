"""Kernel: a Python function that issues instructions, and the ways to call it (language.md 2-4)."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from . import core as core_module
from .arguments import Arguments
from .cache import LONGEST, Kept, Leaf, call_key, is_debugging, programs
from .errors import (
    NkiError,
    NkiWarning,
    Site,
    emit_warning,
    error,
    is_ours,
    nearest,
    user_site,
    without_our_frames,
)
from .execute.blas import one_blas_thread
from .execute.memory import uninitialised
from .execute.replay import Recorder
from .explain import explain_call, suggest
from .launch import Diagnostic, Launch
from .machine import Machine, find
from .options import Options, choose_machine, from_environment
from .ordering import Names, checked_edges
from .program import Instruction
from .statistics import Statistics
from .storage import PRIVATE_HBM
from .typing import check_shapes
from .view import View, is_int

ALIAS_SUFFIX = ".must_alias_input"


@dataclass
class Run:
    """A finished call: what it returned and what was seen on the way."""

    result: Any
    machine: Machine
    statistics: Statistics
    diagnostics: list[Diagnostic] = field(default_factory=list)


@dataclass
class Call:
    """A call before it runs. Without a key it is neither cached nor replayed."""

    options: Options
    machine: Machine
    bound: inspect.BoundArguments
    aliased: set[str]  # arguments given as name.must_alias_input
    key: Any
    leaves: list[Leaf]


@dataclass
class Trace:
    """What a kernel issued, per core, without data."""

    machine: Machine
    programs: list[list[Instruction]]
    launch: Launch
    schedule: tuple = ()


class Kernel:
    """A kernel. `kernel(...)` runs it, `kernel[2]` launches it on two cores. Immutable."""

    _state: tuple
    __name__: str
    __signature__: inspect.Signature

    def __init__(
        self,
        func: Callable,
        *,
        grid: tuple[int, ...] = (),
        target: str | None = None,
        schedule: tuple = (),
        returns: bool = True,
        linted: bool = False,
    ):
        if isinstance(func, Kernel):
            func = func.func
        if not callable(func):
            raise error("argument", f"a kernel is a function, got {func!r}")
        plain = _plain(func)
        named: dict[str, Any] = {}
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(plain, name):
                named[name] = getattr(plain, name)
        named.setdefault("__name__", type(plain).__name__)
        self.__dict__.update(named, __wrapped__=func, __signature__=inspect.signature(func))
        self.__dict__["_state"] = (func, grid, target, schedule, returns, linted)

    func = property(lambda self: self._state[0], doc="The user's function.")
    grid = property(lambda self: self._state[1], doc="() without brackets, else (n,).")
    target = property(lambda self: self._state[2], doc="The platform given to nki.jit, or None.")
    schedule = property(lambda self: self._state[3], doc="The edges of with_schedule.")

    @property
    def lnc(self) -> int:
        """Launch degree: 1 without brackets."""
        return self.grid[0] if self.grid else 1

    def __setattr__(self, name: str, value: Any = None) -> None:
        raise AttributeError(f"a Kernel is immutable, {name} cannot be changed")

    __delattr__ = __setattr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self._state == other._state

    def __hash__(self) -> int:
        return hash(self._state)

    def __repr__(self) -> str:
        bracket = f"[{self.lnc}]" if self.grid else ""
        return f"<nki.Kernel {self.__name__}{bracket} target={choose_machine(self.target).name}>"

    def _with(self, **changes: Any) -> Kernel:
        names = ("func", "grid", "target", "schedule", "returns", "linted")
        return Kernel(**{**dict(zip(names, self._state, strict=True)), **changes})

    def __getitem__(self, degree: Any) -> Kernel:
        return self._with(grid=_grid(degree))

    def __get__(self, instance: Any, owner: type | None = None) -> Kernel:
        if instance is None or not hasattr(type(self.func), "__get__"):
            return self
        return self._with(func=self.func.__get__(instance, owner))

    def with_schedule(self, edges: Iterable) -> Kernel:
        """Order instructions by name: each edge (later, earlier) makes `later` wait for `earlier`."""
        return self._with(schedule=checked_edges(edges))

    # ---- calling ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        core = core_module.running()
        if core is not None:
            return self._inline(core, args, kwargs)
        try:
            return self.run(*args, **kwargs).result
        except NkiError as problem:
            raise problem.with_traceback(without_our_frames(problem.__traceback__)) from problem.__cause__
        except Exception as problem:
            better = explain_call(problem) if isinstance(problem, TypeError) else None
            if better is not None:
                raise better.with_traceback(without_our_frames(problem.__traceback__)) from None
            if _raised_by_user(problem):
                problem.__traceback__ = without_our_frames(problem.__traceback__)
            raise

    def _inline(self, core: core_module.Core, args: tuple, kwargs: dict) -> Any:
        """Called from a running kernel: the same trace goes on."""
        if self.grid and self.lnc != core.launch.degree:
            raise error(
                "launch-grid",
                f"{self.__name__}[{self.lnc}] is called by a kernel running on {core.launch.degree} core(s)",
                help="leave out the brackets of the inner call",
            )
        if self.target is not None and choose_machine(self.target).name != core.machine.name:
            core_module.warn(
                "inner-target",
                f"{self.__name__}: platform_target={self.target!r} is ignored in a nested call",
            )
        return self.func(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Run:
        """Like a call, but returns a Run: the result with statistics and diagnostics."""
        call = self._prepare(args, kwargs)
        kept = programs.find(call.key) if call.key is not None else None
        with one_blas_thread():
            return self._run(call) if kept is None else self._replay(call, kept)

    def _prepare(self, args: tuple, kwargs: dict) -> Call:
        options = from_environment()
        machine = choose_machine(self.target)
        self._check_degree(machine, options)
        if self._state[5]:
            self._lint()
        bound, aliased = self._bind(args, kwargs)
        key: Any = None
        leaves: list[Leaf] = []
        if options.cache and self.lnc == 1 and not is_debugging():
            key, leaves = call_key(self.func, bound, (self.grid, self.schedule, machine.name, options))
        return Call(options, machine, bound, aliased, key, leaves)

    def _run(self, call: Call) -> Run:
        """Run the kernel's Python; what it issued is kept for the next call."""
        names, recorder = Names(), Recorder(LONGEST)
        makers: list[Any] = [lambda core: names] if self.schedule else []
        if call.key is not None:
            makers.append(recorder.listen_to)
        with self._launch(call, sink_makers=makers) as launch:
            arguments = Arguments(launch)
            results = launch.run(lambda: self._program(arguments, call.bound))
            launch.statistics.finish()
            names.check(self.schedule)
            recording = None
            if call.key is not None and not launch.looked_at_values:
                recording = recorder.finish(arguments.parameters(), results[0])
            run = self._finish(call, arguments, results, launch.statistics)
        if recording is not None:
            programs.keep(call.key, _plain(self.func), recording, launch.statistics)
        return run

    def _replay(self, call: Call, kept: Kept) -> Run:
        """Run what an earlier call recorded on the tensors of this one."""
        recording = kept.recording.acquire()
        try:
            with self._launch(call) as launch:
                arguments = Arguments(launch)
                for leaf, (_, storage) in zip(call.leaves, recording.parameters, strict=True):
                    arguments.attach(leaf.value, leaf.framework, storage, None)
                results = launch.run(lambda: recording.run(launch.cores[0]))
                return self._finish(call, arguments, results, kept.statistics)
        finally:
            kept.recording.release(recording)

    def _launch(self, call: Call, **settings: Any) -> Launch:
        return Launch(call.machine, call.options, self.lnc, bracketed=bool(self.grid), **settings)

    def _finish(self, call: Call, arguments: Arguments, results: list[Any], statistics: Statistics) -> Run:
        """Give the results to the caller."""
        launch = arguments.launch
        self._check_results(launch, results)
        returned = arguments.result(results[0]) if self._state[4] else None
        arguments.write_back()
        self._warn_lost_writes(arguments, results[0], call.aliased)
        return Run(returned, call.machine, statistics, launch.diagnostics)

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """Issue the kernel's instructions without computing anything. Arrays may be `nki.TensorSpec`s."""
        options = from_environment()
        machine = choose_machine(self.target)
        self._check_degree(machine, options)
        programs: list[list[Instruction]] = [[] for _ in range(self.lnc)]

        def recorder(core: core_module.Core) -> Callable[[Instruction], None]:
            return lambda instruction: programs[core.index].append(instruction.detach())

        launch = Launch(
            machine, options, self.lnc, bracketed=bool(self.grid), executes=False, sink_makers=[recorder]
        )
        arguments = Arguments(launch)
        bound, _ = self._bind(args, kwargs)
        results = launch.run(lambda: self._program(arguments, bound))
        launch.statistics.finish()
        self._check_results(launch, results)
        return Trace(machine, programs, launch, self.schedule)

    def profile(self, *args: Any, **kwargs: Any) -> Any:
        """The modelled run of the kernel on its platform: `nki.profile(kernel)(*args)`."""
        from .profiling import profile

        return profile(self)(*args, **kwargs)

    def _program(self, arguments: Arguments, bound: inspect.BoundArguments) -> Any:
        signature = self.__signature__
        args, kwargs = [], {}
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += [arguments.convert(v, f"{name}[{i}]") for i, v in enumerate(value)]
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update({k: arguments.convert(v, k) for k, v in value.items()})
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = arguments.convert(value, name)
            else:
                args.append(arguments.convert(value, name))
        return self.func(*args, **kwargs)

    def _bind(self, args: tuple, kwargs: dict) -> tuple[inspect.BoundArguments, set[str]]:
        aliased = {key.removesuffix(ALIAS_SUFFIX) for key in kwargs if key.endswith(ALIAS_SUFFIX)}
        for name in aliased & set(kwargs):
            raise error("argument", f"{self.__name__}() got '{name}' twice, once as '{name}{ALIAS_SUFFIX}'")
        kwargs = {key.removesuffix(ALIAS_SUFFIX): value for key, value in kwargs.items()}
        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as problem:
            accepted = list(self.__signature__.parameters)
            unknown = [name for name in kwargs if name not in accepted]
            raise error(
                "argument",
                f"{self.__name__}() {problem}",
                notes=[f"accepted: {', '.join(accepted)}"],
                help=suggest(unknown[0], accepted) if unknown else None,
            ) from None
        bound.apply_defaults()
        check_shapes(_plain(self.func), bound)
        return bound, aliased

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
            _warn_once(
                "lnc-config",
                f"NEURON_LOGICAL_NC_CONFIG is {configured}, but {self.__name__} is launched on {self.lnc} "
                "core(s); hardware would refuse",
            )

    def _lint(self) -> None:
        from .check.python import lint

        for finding in lint(self.func):
            warnings.warn_explicit(str(finding), NkiWarning, finding.filename, finding.line)

    def _check_results(self, launch: Launch, results: list[Any]) -> None:
        for core, result in enumerate(results):
            for view in _tensors(result):
                self._check_output(launch, view)
            if core and _layout(result) != _layout(results[0]):
                raise error(
                    "lnc-outputs",
                    f"{self.__name__}: core 0 and core {core} return different tensors",
                    notes=[f"core 0: {_layout(results[0])}", f"core {core}: {_layout(result)}"],
                    help="return the same shared_hbm tensors from every core",
                    site=_return_site(self.func),
                )

    def _check_output(self, launch: Launch, view: View) -> None:
        site = _return_site(self.func)
        if view.storage.loop is not None:
            raise error(
                "loop-local-tensor",
                f"{self.__name__} returns a tensor allocated inside a dynamic loop",
                notes=[view.describe()],
                help="allocate it before the loop",
                site=site,
            )
        if view.on_chip:
            raise error(
                "output-buffer",
                f"{self.__name__} returns a tensor in {view.buffer.value}, which ends with the kernel",
                notes=[view.describe()],
                help="copy it to a tensor made with nl.ndarray(..., buffer=nl.shared_hbm) and return that",
                site=site,
            )
        if view.buffer is PRIVATE_HBM and not view.storage.parameter:
            text = f"{self.__name__} returns a private HBM tensor"
            help = "allocate outputs with buffer=nl.shared_hbm"
            if launch.degree > 1:
                raise error(
                    "output-buffer",
                    f"{text}; each core has its own",
                    notes=[view.describe()],
                    help=help,
                    site=site,
                )
            launch.diagnose("output-buffer", text, [view.describe()], help, site)
        if view.storage.memory is not None and not view.storage.memory.is_written(view):
            launch.diagnose(*uninitialised(view), site)

    def _warn_lost_writes(self, arguments: Arguments, result: Any, aliased: set[str]) -> None:
        returned = {id(view.storage) for view in _tensors(result)}
        for name, _value, framework, storage in arguments.written():
            if id(storage) not in returned and name not in aliased and not hasattr(framework, "write_back"):
                arguments.launch.diagnose(
                    "lost-write",
                    f"{self.__name__} wrote argument '{name}', but {framework.name} arrays cannot change",
                    [],
                    "return the tensor from the kernel",
                    _return_site(self.func),
                )


# ---- nki.jit and nki.simulate --------------------------------------------------------------------

_IGNORED_WITH_WARNING = ("mode", "experimental_flags", "additional_compile_opt")
_IGNORED = ("debug_kernel", "show_compiler_tb")
_JIT_KEYWORDS = ("platform_target", "grid", "kernel_return", *_IGNORED_WITH_WARNING, *_IGNORED)


def jit(fn=None, **kwargs):
    """Make a kernel of a function: @nki.jit, @nki.jit(), nki.jit(fn), nki.jit(fn, platform_target=...)."""
    for name in kwargs:
        if name not in _JIT_KEYWORDS:
            close = nearest(name, _JIT_KEYWORDS)
            raise error(
                "argument",
                f"nki.jit: unknown keyword {name!r}",
                notes=[f"accepted: {', '.join(_JIT_KEYWORDS)}"],
                help=f"did you mean {close}?" if close else None,
            )
        if name in _IGNORED_WITH_WARNING:
            warnings.warn(f"nki.jit: {name}= is accepted and ignored", DeprecationWarning, stacklevel=2)
    target = kwargs.get("platform_target")
    if target is not None:
        find(target)
        warnings.warn(
            "nki.jit: platform_target= is deprecated, set NEURON_PLATFORM_TARGET_OVERRIDE",
            DeprecationWarning,
            stacklevel=2,
        )
    grid = _grid(kwargs["grid"]) if kwargs.get("grid") not in (None, (), []) else ()
    make = functools.partial(
        Kernel, grid=grid, target=target, returns=kwargs.get("kernel_return") is not False
    )
    return make if fn is None else make(fn)


def simulate(kernel):
    """The kernel, run at once on this machine with the supported-Python lint on."""
    return (kernel if isinstance(kernel, Kernel) else Kernel(kernel))._with(linted=True)


# ---- helpers -------------------------------------------------------------------------------------


def _plain(func: Callable) -> Callable:
    """The user's own function inside partials, bound methods and wrappers of other decorators."""
    while True:
        inner = (
            getattr(func, "__wrapped__", None)
            or getattr(func, "__func__", None)
            or getattr(func, "func", None)
        )
        if not callable(inner):
            return func
        func = inner


def _raised_by_user(problem: BaseException) -> bool:
    """True when the innermost frame is the user's: then ours are of no interest."""
    last = problem.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and not is_ours(last.tb_frame.f_globals.get("__name__"))


def _grid(degree: Any) -> tuple[int, ...]:
    sizes = tuple(degree) if isinstance(degree, (tuple, list)) else (degree,)
    for size in sizes:
        if not is_int(size):
            raise error(
                "launch-grid-type",
                f"kernel[...] takes the number of cores, got {size!r}",
                help="write kernel[2] for two cores",
            )
    if len(sizes) != 1 or sizes[0] < 1:
        raise error("launch-grid", f"kernel[...] takes one positive number of cores, got {degree!r}")
    return (int(sizes[0]),)


def _tensors(value: Any) -> list[View]:
    """All tensors of a returned value, in order."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


def _layout(value: Any) -> Any:
    """Structure, shapes, dtypes and storages of a result, to compare the cores'."""
    if isinstance(value, View):
        return (str(value.dtype), tuple(value.shape), value.storage.name, id(value.storage))
    if isinstance(value, dict):
        return {k: _layout(v) for k, v in value.items()}
    return tuple(_layout(v) for v in value) if isinstance(value, (tuple, list)) else type(value).__name__


def _return_site(func: Callable) -> Site | None:
    """The last `return` of the kernel: where a returned tensor is shown to be wrong."""
    code = getattr(_plain(func), "__code__", None)
    return None if code is None else _last_return(code)


@functools.lru_cache(maxsize=1024)
def _last_return(code: types.CodeType) -> Site:
    import dis

    returns = [i.offset for i in dis.get_instructions(code) if i.opname.startswith("RETURN_")]
    return Site(code, returns[-1]) if returns else Site(code, 0)


_said_once: set[str] = set()


def _warn_once(kind: str, message: str) -> None:
    if kind not in _said_once:
        _said_once.add(kind)
        emit_warning(kind, message, user_site(2))
