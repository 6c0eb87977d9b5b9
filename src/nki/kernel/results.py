"""What a kernel may return (spec/language.md 3.2 to 3.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..backends.reference.memory import uninitialised
from ..check.capacity import counted
from ..check.program import findings
from ..errors import error, error_class
from ..ir.instruction import State
from ..ir.program import Diagnostic, Program
from ..ir.statistics import Statistics
from ..ir.tree import flatten, is_record, leaves, map_tree, replace_leaves
from ..ir.view import View
from ..launch.launch import Launch, speak
from ..machine.memories import PRIVATE_HBM
from .arguments import Arguments
from .user_function import return_site


def check_results(kernel: Any, launch: Launch, results: list[Any]) -> None:
    """What the programs returned can be given to the caller."""
    for core, result in enumerate(results):
        for view in tensors(result):
            _check_output(kernel, launch, view)
        if core and _layout(result) != _layout(results[0]):
            raise error(
                "lnc-outputs",
                f"{kernel.__name__}: core 0 and core {core} return different tensors",
                notes=[f"core 0: {_layout(results[0])}", f"core {core}: {_layout(result)}"],
                help="return the same shared_hbm tensors from every core",
                site=return_site(kernel.func),
            )


def _check_output(kernel: Any, launch: Launch, view: View) -> None:
    site = return_site(kernel.func)
    if view.storage.loop:
        raise error(
            "loop-local-tensor",
            f"{kernel.__name__} returns a tensor allocated inside a dynamic loop",
            notes=[view.describe()],
            help="allocate it before the loop",
            site=site,
        )
    if view.on_chip:
        raise error(
            "output-buffer",
            f"{kernel.__name__} returns a tensor in {view.buffer.value}, which ends with the kernel",
            notes=[view.describe()],
            help="copy it to a tensor made with nl.ndarray(..., buffer=nl.shared_hbm) and return that",
            site=site,
        )
    if view.buffer is PRIVATE_HBM and not view.storage.parameter:
        text = f"{kernel.__name__} returns a private HBM tensor"
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
    if launch.mode in ("eager", "replay") and not launch.backend.is_written(view):
        launch.diagnose(*uninitialised(view), site)


def warn_lost_writes(kernel: Any, arguments: Arguments, result: Any, aliased: set[str]) -> None:
    """Say which arguments the kernel wrote to no effect, because their framework cannot change them."""
    returned = {id(view.storage) for view in tensors(result)}
    for name, _, framework, storage in arguments.written():
        if id(storage) not in returned and name not in aliased and not hasattr(framework, "write_back"):
            arguments.launch.diagnose(
                "lost-write",
                f"{kernel.__name__} wrote argument '{name}', but {framework.name} arrays cannot change",
                [],
                "return the tensor from the kernel",
                return_site(kernel.func),
            )


def report_traced(kernel: Any, launch: Launch, program: Program) -> Program:
    """Say what the whole of a traced program shows; the program, which says it too."""
    known = len(launch.diagnostics)
    is_seen = State.output in program.state or any(s in program.written for _, s in program.parameters)
    in_vain = [] if is_seen or not program.parameters else _in_vain(kernel, program.result)
    _report(kernel, launch, findings(program, launch.options))
    _mention(kernel, launch, in_vain)
    return program if len(launch.diagnostics) == known else replace(program, said=tuple(launch.diagnostics))


def report_replayed(kernel: Any, arguments: Arguments, program: Program) -> None:
    """Say what the whole of a program shows that has run."""
    launch = arguments.launch
    _report(kernel, launch, findings(program, launch.options))
    _mention(kernel, launch, _without_effect(kernel, arguments, program.result))


def report_run(kernel: Any, arguments: Arguments, result: Any, statistics: Statistics) -> None:
    """The same of a run whose program nobody kept."""
    launch = arguments.launch
    _report(kernel, launch, [*launch.races, *counted(statistics)])
    _mention(kernel, launch, _without_effect(kernel, arguments, result))


def _report(kernel: Any, launch: Launch, found: Iterable[Diagnostic]) -> None:
    """Say it, each once. In strict mode the first is an error, before anything of the caller's is changed."""
    for d in found:
        d = d if d.site is not None else replace(d, site=return_site(kernel.func))
        if launch.heard(d.line):
            continue
        if launch.options.strict:
            raise error_class(d.kind)(d.message, notes=d.notes, help=d.help, site=d.site)
        launch.diagnostics.append(d)
        speak(d)


def _mention(kernel: Any, launch: Launch, found: Iterable[Diagnostic]) -> None:
    """Say it where there is nothing worse to say: no compiler minds, so it is no error in strict mode."""
    for d in found:
        d = replace(d, site=return_site(kernel.func))
        if not launch.diagnostics and not launch.heard(d.line):
            launch.diagnostics.append(d)
            speak(d)


def _without_effect(kernel: Any, arguments: Arguments, result: Any) -> list[Diagnostic]:
    launch = arguments.launch
    is_seen = launch.prints or launch.looked_at_values or any(True for _ in arguments.written())
    return [] if is_seen or not arguments.tensors else _in_vain(kernel, result)


def _in_vain(kernel: Any, result: Any) -> list[Diagnostic]:
    """A kernel that got tensors, returns nothing and wrote nothing of the caller's worked for nobody."""
    if any(leaf is not None for leaf in flatten(result, lambda v: isinstance(v, View))):
        return []
    return [
        Diagnostic(
            "no-effect",
            f"{kernel.__name__} returns nothing and writes none of its arguments: nobody sees what it does",
            [],
            "return the shared_hbm tensor that holds the result",
        )
    ]


def tensors(value: Any) -> list[View]:
    """All tensors of a returned value, in order."""
    return leaves(value, View)


def bare(value: Any) -> Any:
    """The returned value with views that claim no bytes."""
    return replace_leaves(value, View, lambda view: view.bare())


def is_plain(value: Any) -> bool:
    """True for tensors and plain values: what a replay can return once more."""
    return all(
        leaf is None or isinstance(leaf, (View, bool, int, float, str))
        for leaf in flatten(value, lambda v: isinstance(v, View))
    )


def _layout(value: Any) -> Any:
    """Structure, shapes, dtypes and storages of a result, to compare the cores'."""
    found = map_tree(_described, value, is_leaf=lambda v: isinstance(v, View))
    return tuple(flatten(found)) if is_record(found) else found


def _described(leaf: Any, path: str) -> Any:
    if isinstance(leaf, View):
        return f"{leaf.dtype}{list(leaf.shape)} {leaf.storage.name}@{id(leaf.storage)}"
    return type(leaf).__name__
