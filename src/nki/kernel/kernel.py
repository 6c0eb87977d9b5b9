"""Kernel: a Python function that issues instructions, and the ways to call it (spec/language.md 2-4).

A call looks for its program in the cache. Where there is none, the Python runs: its instructions are
recorded and then run as one Program. Where that cannot be (Python looks at values, a dynamic loop is to be
watched, an instruction fails and the kernel may catch it), each instruction runs as it is issued.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec

import numpy as np

from ..backends.reference.blas import one_blas_thread
from ..backends.reference.collector import fewer_collections
from ..errors import NkiError, NkiWarning, error, without_our_frames
from ..ir import tree
from ..ir.context import running, warn
from ..ir.program import Program
from ..ir.schedule_edges import check_names, checked_edges
from ..ir.statistics import Statistics
from ..launch import observers
from ..launch.core import Core
from ..launch.launch import Launch, Restart
from ..launch.world import current_world
from ..machine.machine import Machine
from ..options import Options, choose_machine, from_environment
from ..options import options as nki_options
from ..typing import check_shapes
from . import launches
from .arguments import Arguments
from .bridges import TensorSpec, bridge_of, framework_of
from .cache import LONGEST, Leaf, call_key, is_debugging, programs
from .calls import ALIAS_SUFFIX, Call, Run, _warn_once, launch_grid
from .device_option import elsewhere
from .explain import explain_call, suggest
from .progress import LONG, told
from .reads import Reads
from .results import (
    bare,
    check_results,
    is_plain,
    report_replayed,
    report_run,
    report_traced,
    tensors,
    warn_lost_writes,
)
from .staged import Returned, Staged
from .user_function import is_users_error, named, plain, refuse_unfinished

if TYPE_CHECKING:
    from .profile import Profile


P = ParamSpec("P")  # the parameters of the user's function: what editors show of a kernel
MYPY = False  # checkers take it for True; jedi does not look behind it, and shows the function


class _Typed(Generic[P]):
    """A kernel as those see it who only read: a call takes the arguments of the function."""

    if TYPE_CHECKING:
        __call__: Callable[P, Any]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Kernel(_Typed[P]):
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
        return Kernel(**{**dict(zip(_STATE, self._state, strict=True)), **changes})

    def __getitem__(self, degree: Any) -> Kernel[P]:
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_dynamo_compiling():
            from ..frameworks.torch import launched

            return launched(self, degree)
        return self._with(grid=launch_grid(degree))

    if MYPY or not TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None) -> Kernel[...]:
            if instance is None or not hasattr(type(self.func), "__get__"):
                return self
            return self._with(func=self.func.__get__(instance, owner))

    def with_schedule(self, edges: Iterable) -> Kernel[P]:
        """Order instructions by name: each edge (later, earlier) makes `later` wait for `earlier`."""
        return self._with(schedule=checked_edges(edges))

    # ---- calling ---------------------------------------------------------------------------------

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        # torch.compile traces this very function
        if torch is not None and torch.compiler.is_dynamo_compiling():
            from ..frameworks.torch import staged

            return staged(self, args, kwargs)
        core = running()
        if core is not None:
            return self._inline(core, args, kwargs)
        launches.tell(self, args, kwargs)
        try:
            bridge = bridge_of(args) or bridge_of(kwargs) or elsewhere()
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

    def run(self, *args: Any, **kwargs: Any) -> Run:
        """Like a call, but returns a Run: the result with statistics and diagnostics.

        `target=` names another platform, unless the kernel has a parameter of that name.
        """
        if "target" in kwargs and "target" not in self.__signature__.parameters:
            with nki_options(target=kwargs.pop("target")):
                return self.run(*args, **kwargs)
        call = self._prepare(args, kwargs)
        with one_blas_thread(), fewer_collections():
            kept = programs.find(call.key) if call.key is not None else None
            if kept is not None and (current_world().size == 1 or not kept.program.loops):
                with told(self.__name__) if len(kept.program) > LONG else contextlib.nullcontext():
                    return self._run_program(call, kept.program, verified=kept.verified)
            self._note_reads(call)
            with told(self.__name__):
                return self._run_eagerly(call) if call.eager else self._run_deferred(call)

    def trace(self, *args: Any, **kwargs: Any) -> Program:
        """What a call does, as a Program. Arrays may be `nki.TensorSpec`s; nothing is computed."""
        return self._trace(self._prepare(args, kwargs))[0]

    def stage(self, *args: Any, **kwargs: Any) -> Staged:
        """Trace a call on `nki.TensorSpec`s now, to be run with data later."""
        call = self._prepare(args, kwargs)
        kept = programs.find(call.key) if call.key is not None else None
        if kept is not None:
            return Staged(self, call, kept.program, [(leaf.name, leaf.value) for leaf in call.leaves], True)
        self._note_reads(call)
        program, arguments, fixed = self._trace(call)
        if fixed and call.key is not None and not program.loops:
            self._keep(call, program, {}, arguments.launch.files)
        said = replace(call, said=program.said)
        return Staged(self, said, program, arguments.described, fixed)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """What a call returns, with `nki.TensorSpec`s for its tensors. Takes TensorSpecs or arrays."""
        outline = self.stage(*args, **kwargs).outline
        return tree.replace_leaves(outline.result, Returned, lambda r: TensorSpec(*r[:2]))

    def profile(self, *args: Any, **kwargs: Any) -> Profile:
        """The modelled run of the kernel on its platform: `nki.profile(kernel)(*args)`."""
        from .profile import profile_call

        return profile_call(self, args, kwargs)

    def _prepare(self, args: tuple, kwargs: dict) -> Call:
        options = from_environment()
        machine = choose_machine(self.target)
        self._check_degree(machine, options)
        if self.simulated:
            self._lint()
        bound, aliased = self._bind(args, kwargs)
        key: Any = None
        leaves: list[Leaf] = []
        debugging = is_debugging()
        if options.cache and not debugging and not observers.current():
            key, leaves = call_key(
                self.func, bound, (self.grid, self.schedule, machine.name, options, current_world().size)
            )
        return Call(options, machine, bound, aliased, key, leaves, eager=debugging or not options.cache)

    # ---- the ways to run -------------------------------------------------------------------------

    def _trace(self, call: Call) -> tuple[Program, Arguments, bool]:
        """Run the kernel's Python without data; also whether it is all there is to know."""
        with self._launch(call, mode="trace") as launch:
            arguments = Arguments(launch)
            results = launch.run(lambda: self._python(arguments, call.bound))
            check_results(self, launch, results)
            program = report_traced(self, launch, self._recorded(launch, arguments, results))
            fixed = not launch.looked_at_values and is_plain(results[0])
        return program, arguments, fixed

    def _recorded(self, launch: Launch, arguments: Arguments, results: list[Any]) -> Program:
        program = launch.recorded(self.__name__, arguments.parameters(), bare(results[0]), self.schedule)
        if self.schedule:
            check_names(program)
        return program

    def _run_deferred(self, call: Call) -> Run:
        """Run the kernel's Python, then what it issued; keep that for the next call."""
        with self._launch(call, mode="deferred", limit=LONGEST) as launch:
            try:
                arguments = Arguments(launch)
                results = self._recording(launch, arguments, call)
                if launch.mode == "eager":  # it needed values on the way
                    return self._finish_eager(call, arguments, results)
                check_results(self, launch, results)
                program = self._recorded(launch, arguments, results)
                again = is_plain(results[0])
                del results
                if again and call.key is not None and launch.world.size > 1:  # the next rank finds it
                    self._keep(call, program, {}, launch.files)
                run = self._replay(call, arguments, program)
            except Restart:
                run = None
            prints = launch.prints
            if run is not None:
                report_replayed(self, arguments, program)
                if again and call.key is not None:
                    self._keep(call, program, {}, launch.files)
                return self._deliver(arguments, run)
        return self._run_eagerly(call, prints)

    def _recording(self, launch: Launch, arguments: Arguments, call: Call) -> list[Any]:
        """Run the kernel's Python. If it fails, what it said until then is said now."""
        try:
            return launch.run(lambda: self._python(arguments, call.bound))
        except Exception:
            for diagnostic in launch.diagnostics if launch.mode == "deferred" else ():
                launch.speak(diagnostic)
            raise

    def _run_eagerly(self, call: Call, prints_done: int = 0, raced: Launch | None = None) -> Run:
        """Run the kernel's Python, each instruction as it is issued; again, in turns, if cores raced."""
        with self._launch(call, mode="eager", alternates=raced is not None) as launch:
            launch.prints_done = prints_done
            if raced is not None:
                launch.go_on_from(raced)
            arguments = Arguments(launch)
            results = launch.run(lambda: self._python(arguments, call.bound))
            if launch.turns is not None or not launch.races:
                return self._finish_eager(call, arguments, results)
        return self._run_eagerly(call, max(prints_done, launch.prints), launch)

    def _finish_eager(self, call: Call, arguments: Arguments, results: list[Any]) -> Run:
        launch = arguments.launch
        check_results(self, launch, results)
        statistics = launch.statistics
        assert statistics is not None
        statistics.finish()
        run = self._received(call, arguments, results[0], lambda: statistics)
        report_run(self, arguments, results[0], statistics)
        run.trips = {n: counts for core in launch.cores for n, counts in core.trips.items()}
        trips = {n: max(counts) for n, counts in run.trips.items()}
        if trips and call.key is not None and not launch.looked_at_values and not launch.diverged:
            self._keep_traced(call, trips, launch)
        return self._deliver(arguments, run)

    def _keep_traced(self, call: Call, trips: dict[int, int], launch: Launch) -> None:
        """A dynamic loop ran, the same in every iteration: keep the program for as many of them."""
        if call.reads is None or not call.reads.still_hold():  # do not run the Python again for nothing
            return
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")  # it was said already
            program, _, fixed = self._trace(replace(call, said=launch.diagnostics))
            if not fixed or {loop.number for loop in program.loops} != set(trips):
                return
            self._keep(call, program, trips, launch.files)

    def _run_program(
        self,
        call: Call,
        program: Program,
        into: Sequence[np.ndarray] = (),
        verified: dict[int, int] | None = None,
    ) -> Run:
        """Run a program that an earlier call left on the tensors of this one."""
        with self._launch(call, mode="replay") as launch:
            launch.verified = verified if program.loops else None
            arguments = Arguments(launch)
            for leaf, (_, storage) in zip(call.leaves, program.parameters, strict=True):
                arguments.attach(leaf.value, leaf.framework, storage)
            if into:
                arguments.place(tensors(program.result), into)
            try:
                run = self._replay(call, arguments, program)
                report_replayed(self, arguments, program)
                return self._deliver(arguments, run)
            except Restart:
                prints = launch.prints
        self._note_reads(call)
        return self._run_eagerly(call, prints)

    def run_staged(self, staged: Staged, tensors: Sequence[Any], into: Sequence[np.ndarray] = ()) -> Run:
        """Run a staged call on the values of its tensors."""
        leaves = [
            Leaf(name, tensor, framework_of(tensor))
            for (name, _), tensor in zip(staged.described, tensors, strict=True)
        ]
        call = replace(staged.call, leaves=leaves, bound=staged.bound(tensors), key=None)
        with one_blas_thread():
            if staged.fixed:
                run = self._run_program(call, staged.program, into, staged.verified)
            else:
                run = self._run_eagerly(call)
        staged.heard(run.diagnostics)
        if staged.fixed and not any(d.kind == "loop-divergence" for d in run.diagnostics):
            for number, counts in run.trips.items():
                staged.verified[number] = max(staged.verified.get(number, 0), *counts)
        return run

    def _replay(self, call: Call, arguments: Arguments, program: Program) -> Run:
        """Run a program. An instruction that fails does so in the kernel's Python, which may catch it."""
        launch = arguments.launch
        try:
            if launch.mode == "deferred":
                launch.begin_replay()
            launch.replay(program)
            trips = {n: counts for core in launch.cores for n, counts in core.trips.items()}
            check_results(self, launch, [program.result])
            counted = replace(program, trips=trips) if trips else program
            run = self._received(call, arguments, program.result, counted.statistics)
            run.trips = trips
        except Exception:
            if launch.met_ranks:
                raise
            raise Restart from None
        for diagnostic in launch.diagnostics:
            launch.speak(diagnostic)
        return run

    def _received(
        self, call: Call, arguments: Arguments, result: Any, count: Callable[[], Statistics]
    ) -> Run:
        """What the caller will get, before anything of the caller's is changed."""
        returned = arguments.result(result) if self.returns else None
        warn_lost_writes(self, arguments, result, call.aliased)
        arguments.check_write_back()
        returned = arguments.connect(returned, self.__name__)
        return Run(returned, call.machine, count, arguments.launch.diagnostics)

    def _deliver(self, arguments: Arguments, run: Run) -> Run:
        """The last thing a call does: what it wrote goes to the caller."""
        run.written = arguments.write_back(self.__name__)
        if arguments.launch.world.keeps_random_state:
            arguments.launch.generators.keep()
        return run

    def _keep(self, call: Call, program: Program, verified: dict[int, int], files: Any) -> None:
        programs.keep(call.key, self.func, call.reads, program, verified, files)

    def _note_reads(self, call: Call) -> None:
        """Look at what the Python can read before it runs: what it changes itself is then seen to change."""
        if call.key is not None:
            call.reads = Reads.of(self.func, dict(call.bound.arguments))

    def _launch(self, call: Call, **settings: Any) -> Launch:
        launch = Launch(call.machine, call.options, self.lnc, bracketed=bool(self.grid), **settings)
        launch.hush(call.said)
        return launch

    def _python(self, arguments: Arguments, bound: inspect.BoundArguments) -> Any:
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
        from ..check.python import lint

        if self.func not in _findings:
            _findings[self.func] = lint(self.func)
        for finding in _findings[self.func]:
            warnings.warn_explicit(str(finding), NkiWarning, finding.filename, finding.line)


_STATE = tuple(f.name for f in fields(Kernel))
_findings: weakref.WeakKeyDictionary[Callable, list[Any]] = weakref.WeakKeyDictionary()


# ---- helpers -------------------------------------------------------------------------------------


def _unpickled(module: str, name: str, state: tuple) -> Kernel:
    """The kernel of a name, launched as the pickled one was."""
    return Kernel(named(module, name), **dict(zip(_STATE[1:], state, strict=True)))
