"""Kernel: a Python function that issues instructions, and the ways to call it (language.md 2-4)."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from . import core as core_module
from . import dtypes
from .arguments import Arguments, TensorSpec, bridge_of, framework_of
from .cache import LONGEST, Kept, Leaf, call_key, is_debugging, programs
from .errors import NkiError, NkiWarning, emit_warning, error, user_site, without_our_frames
from .execute.blas import one_blas_thread
from .execute.replay import Recorder, Recording
from .explain import explain_call, suggest
from .functions import is_users_error, plain
from .launch import Diagnostic, Launch
from .machine import Machine
from .options import Options, choose_machine, from_environment
from .ordering import Names, checked_edges
from .outputs import check_results, tensors, warn_lost_writes
from .program import Instruction
from .staging import Effects, Outline, Returned, replaced
from .statistics import Statistics
from .typing import check_shapes
from .view import is_int

ALIAS_SUFFIX = ".must_alias_input"


@dataclass
class Run:
    """A finished call: what it returned and what was seen on the way."""

    result: Any
    machine: Machine
    count: Callable[[], Statistics]
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @cached_property
    def statistics(self) -> Statistics:
        """What the call did; counted when somebody asks."""
        return self.count()


@dataclass
class Call:
    """A call before it runs. Without a key it is neither cached nor replayed."""

    options: Options
    machine: Machine
    bound: inspect.BoundArguments
    aliased: set[str]  # arguments given as name.must_alias_input
    key: Any
    leaves: list[Leaf]
    said: Iterable[Diagnostic] = ()  # said already, when the call was staged


@dataclass
class Trace:
    """What a kernel issued, per core, without data."""

    machine: Machine
    programs: list[list[Instruction]]
    launch: Launch
    schedule: tuple = ()

    @cached_property
    def statistics(self) -> Statistics:
        return Statistics.of(self.machine, self.programs)


class Kernel:
    """A kernel. `kernel(...)` runs it, `kernel[2]` launches it on two cores. Immutable."""

    _state: tuple
    __name__: str
    __qualname__: str
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
        users = plain(func)
        named: dict[str, Any] = {}
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(users, name):
                named[name] = getattr(users, name)
        named.setdefault("__name__", type(users).__name__)
        self.__dict__.update(named, __wrapped__=func, __signature__=inspect.signature(func))
        self.__dict__["_state"] = (func, grid, target, schedule, returns, linted)

    func = property(lambda self: self._state[0], doc="The user's function.")
    grid = property(lambda self: self._state[1], doc="() without brackets, else (n,).")
    target = property(lambda self: self._state[2], doc="The platform given to nki.jit, or None.")
    simulated = property(lambda self: self._state[5], doc="True for nki.simulate(kernel).")
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

    def __reduce__(self) -> Any:
        """By name, as a function: workers of other processes import it."""
        found = _named(self.__module__, self.__qualname__)
        if plain(found) is not plain(self.func) or hasattr(self.func, "__self__"):
            raise pickle.PicklingError(f"kernel {self.__name__} is not {self.__module__}.{self.__qualname__}")
        return _unpickled, (self.__module__, self.__qualname__, self._state[1:])

    def __repr__(self) -> str:
        bracket = f"[{self.lnc}]" if self.grid else ""
        return f"<nki.Kernel {self.__name__}{bracket} target={choose_machine(self.target).name}>"

    def _with(self, **changes: Any) -> Kernel:
        names = ("func", "grid", "target", "schedule", "returns", "linted")
        return Kernel(**{**dict(zip(names, self._state, strict=True)), **changes})

    def __getitem__(self, degree: Any) -> Kernel:
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_dynamo_compiling():
            from .frameworks.torch import launched

            return launched(self, degree)
        return self._with(grid=launch_grid(degree))

    def __get__(self, instance: Any, owner: type | None = None) -> Kernel:
        if instance is None or not hasattr(type(self.func), "__get__"):
            return self
        return self._with(func=self.func.__get__(instance, owner))

    def with_schedule(self, edges: Iterable) -> Kernel:
        """Order instructions by name: each edge (later, earlier) makes `later` wait for `earlier`."""
        return self._with(schedule=checked_edges(edges))

    # ---- calling ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        # torch.compile traces this very function
        if torch is not None and torch.compiler.is_dynamo_compiling():
            from .frameworks.torch import staged

            return staged(self, args, kwargs)
        core = core_module.running()
        if core is not None:
            return self._inline(core, args, kwargs)
        try:
            bridge = bridge_of(args) or bridge_of(kwargs)
            return self.run(*args, **kwargs).result if bridge is None else bridge.call(self, args, kwargs)
        except NkiError as problem:
            raise problem.with_traceback(without_our_frames(problem.__traceback__)) from problem.__cause__
        except Exception as problem:
            better = explain_call(problem) if isinstance(problem, TypeError) else None
            if better is not None:
                raise better.with_traceback(without_our_frames(problem.__traceback__)) from None
            if is_users_error(problem):  # a bare raise brings our frames back before Python 3.11
                raise problem.with_traceback(without_our_frames(problem.__traceback__))  # noqa: B904
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
            return self._run(call) if kept is None else self._replay(call, kept.recording)

    def stage(self, *args: Any, **kwargs: Any) -> Staged:
        """Trace a call on `nki.TensorSpec`s now, to be run with data later."""
        call = self._prepare(args, kwargs)
        kept = programs.find(call.key) if call.key is not None else None
        return self._stage(call) if kept is None else self._staged_before(call, kept)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """What a call returns, with `nki.TensorSpec`s for its tensors. Takes TensorSpecs or arrays."""
        return replaced(self.stage(*args, **kwargs).outline.result, Returned, lambda r: TensorSpec(*r[:2]))

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
        with self._launch(call, counts=call.key is None, sink_makers=makers) as launch:
            arguments = Arguments(launch)
            results = launch.run(lambda: self._program(arguments, call.bound))
            names.check(self.schedule)
            recording = None
            if call.key is not None and not launch.looked_at_values:
                recording = recorder.finish(arguments.parameters(), results[0])
            run = self._finish(call, arguments, results, _counts(launch, recorder))
        if recording is not None:
            programs.keep(call.key, plain(self.func), recording)
        return run

    def _stage(self, call: Call) -> Staged:
        """Run the kernel's Python without data."""
        effects, recorder = Effects(), Recorder(LONGEST)
        makers: list[Any] = [lambda core: effects]
        if self.lnc == 1:
            makers.append(recorder.listen_to)
        with self._launch(call, executes=False, counts=False, sink_makers=makers) as launch:
            arguments = Arguments(launch)
            results = launch.run(lambda: self._program(arguments, call.bound))
            check_results(self, launch, results)
            constants = [(s, s.memory.raw) for s, _ in launch.constants.values() if s.memory is not None]
            outline = effects.outline(
                arguments.parameters(),
                results[0] if self._state[4] else None,
                constants,
                bool(arguments.relabelled),
            )
            recording = None
            if self.lnc == 1 and not launch.looked_at_values:
                recording = recorder.finish(arguments.parameters(), results[0])
        if recording is not None and call.key is not None:
            programs.keep(call.key, plain(self.func), recording)
        said = replace(call, said=launch.diagnostics)
        return Staged(self, said, outline, arguments.described, recording)

    def _staged_before(self, call: Call, kept: Kept) -> Staged:
        """A program that is known already."""
        effects, recording = Effects(), kept.recording
        for instruction in recording.instructions:
            effects(instruction)
        fp8 = any(dtypes.resolve(leaf.value.dtype) == dtypes.float8_e4m3fn for leaf in call.leaves)
        relabelled = fp8 and call.machine.generation < 4
        result = recording.result if self._state[4] else None
        outline = effects.outline(recording.parameters, result, recording.constants, relabelled)
        described = [(leaf.name, leaf.value) for leaf in call.leaves]
        return Staged(self, call, outline, described, recording)

    def _replay(self, call: Call, recording: Recording, into: Sequence[np.ndarray] = ()) -> Run:
        """Run what an earlier call recorded on the tensors of this one."""
        master, recording = recording, recording.acquire()
        try:
            with self._launch(call, counts=False) as launch:
                arguments = Arguments(launch)
                for leaf, (_, storage) in zip(call.leaves, recording.parameters, strict=True):
                    arguments.attach(leaf.value, leaf.framework, storage, None)
                if into:
                    arguments.place(tensors(recording.result), into)
                results = launch.run(lambda: recording.run(launch.cores[0]))
                return self._finish(
                    call, arguments, results, lambda: Statistics.of(call.machine, [master.instructions])
                )
        finally:
            master.release(recording)

    def _launch(self, call: Call, **settings: Any) -> Launch:
        launch = Launch(call.machine, call.options, self.lnc, bracketed=bool(self.grid), **settings)
        launch.hush(call.said)
        return launch

    def _finish(
        self, call: Call, arguments: Arguments, results: list[Any], count: Callable[[], Statistics]
    ) -> Run:
        """Give the results to the caller."""
        launch = arguments.launch
        check_results(self, launch, results)
        returned = arguments.result(results[0]) if self._state[4] else None
        returned = arguments.connect(returned, self.__name__)
        arguments.write_back(self.__name__)
        warn_lost_writes(self, arguments, results[0], call.aliased)
        return Run(returned, call.machine, count, launch.diagnostics)

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """Issue the kernel's instructions without computing anything. Arrays may be `nki.TensorSpec`s."""
        options = from_environment()
        machine = choose_machine(self.target)
        self._check_degree(machine, options)
        programs: list[list[Instruction]] = [[] for _ in range(self.lnc)]

        def recorder(core: core_module.Core) -> Callable[[Instruction], None]:
            return lambda instruction: programs[core.index].append(instruction.detach())

        launch = Launch(
            machine,
            options,
            self.lnc,
            bracketed=bool(self.grid),
            executes=False,
            counts=False,
            sink_makers=[recorder],
        )
        arguments = Arguments(launch)
        bound, _ = self._bind(args, kwargs)
        results = launch.run(lambda: self._program(arguments, bound))
        check_results(self, launch, results)
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
        check_shapes(plain(self.func), bound)
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
        """Say what the real compiler would reject; a function is looked at once."""
        from .check.python import lint

        if self.func not in _findings:
            _findings[self.func] = lint(self.func)
        for finding in _findings[self.func]:
            warnings.warn_explicit(str(finding), NkiWarning, finding.filename, finding.line)


_findings: weakref.WeakKeyDictionary[Callable, list[Any]] = weakref.WeakKeyDictionary()


class Staged:
    """A call that was traced without data. `outline` says what it does, `run` does it."""

    def __init__(
        self,
        kernel: Kernel,
        call: Call,
        outline: Outline,
        described: list[tuple[str, Any]],
        recording: Recording | None,
    ):
        self.kernel, self.call, self.outline = kernel, call, outline
        self.described = described  # the tensors by name, as they were given to `stage`
        self.recording = recording

    def run(self, tensors: Sequence[Any], into: Sequence[np.ndarray] = ()) -> Run:
        """Run on the values of the tensors, in the order of `outline.arguments`.

        `into` may offer dense memory for each returned tensor; it is used where that saves a copy.
        A program that depends on run-time values, or runs on two cores, runs the kernel's Python again.
        """
        with one_blas_thread():
            if self.recording is not None:
                leaves = [
                    Leaf(name, tensor, framework_of(tensor))
                    for (name, _), tensor in zip(self.described, tensors, strict=True)
                ]
                call = replace(self.call, leaves=leaves)
                return self.kernel._replay(call, self.recording, into)
            bound = self._bound(tensors)
            return self.kernel._run(replace(self.call, bound=bound, key=None))

    def describe(self) -> str:
        """All that tells this program from others, the same in every process."""
        call, outline = self.call, self.outline
        circumstances = (call.machine.name, call.options, self.kernel.grid, self.kernel.schedule)
        if self.recording is not None:
            what = self.recording.listing()
        else:
            what = f"{self.kernel.__module__} {self.kernel.__qualname__} {outline.result!r}"
        tensors = [(name, spec.shape, str(spec.dtype)) for name, spec in self.described]
        return f"{self.kernel.__name__} {circumstances!r} {tensors!r}\n{what}"

    def is_same(self, other: Staged) -> bool:
        """True when both do the same, given that their descriptions are equal."""
        if self.recording is not None or other.recording is not None:
            return self.recording is not None and other.recording is not None
        return self is other or (self.call.key is not None and self.call.key == other.call.key)

    def _bound(self, tensors: Sequence[Any]) -> inspect.BoundArguments:
        """The arguments with the values in place of their descriptions."""
        values = {id(spec): tensor for (_, spec), tensor in zip(self.described, tensors, strict=True)}
        bound = copy.copy(self.call.bound)
        bound.arguments = replaced(dict(bound.arguments), TensorSpec, lambda spec: values[id(spec)])
        return bound


# ---- helpers -------------------------------------------------------------------------------------


def _counts(launch: Launch, recorder: Recorder) -> Callable[[], Statistics]:
    """How to count what a launch did: it was counted on the way, or recorded."""
    instructions = recorder.instructions
    if launch.counts or instructions is None:
        launch.statistics.finish()
        return lambda: launch.statistics
    return lambda: Statistics.of(launch.machine, [instructions])


def _unpickled(module: str, name: str, state: tuple) -> Kernel:
    """The kernel of a name, launched as the pickled one was."""
    names = ("grid", "target", "schedule", "returns", "linted")
    return Kernel(_named(module, name), **dict(zip(names, state, strict=True)))


def _named(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def launch_grid(degree: Any) -> tuple[int, ...]:
    """The (n,) of `kernel[degree]`."""
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


_said_once: set[str] = set()


def _warn_once(kind: str, message: str) -> None:
    if kind not in _said_once:
        _said_once.add(kind)
        emit_warning(kind, message, user_site(2))
