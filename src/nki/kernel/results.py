"""What a kernel may return (spec/language.md 3.2 to 3.4)."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..backends.reference.memory import uninitialised
from ..check.whole_program import findings
from ..errors import Site, error
from ..ir.instruction import State
from ..ir.program import Diagnostic, Program
from ..ir.tree import flatten, is_record, leaves, map_tree, replace_leaves
from ..ir.view import View
from ..launch.diagnostics import Diagnostics, as_error
from ..launch.execution import Execution
from ..launch.launch import Launch
from ..machine.memories import PRIVATE_HBM
from .run import CalledKernel
from .transfer import Transfer
from .user_function import plain


def check_results(kernel: CalledKernel, execution: Execution, results: list[Any], executed: bool) -> None:
    """Check that what the cores returned can be given to the caller."""
    for core, result in enumerate(results):
        for view in leaves(result, View):
            _check_output(kernel, execution, view)
        if core and _layout(result) != _layout(results[0]):
            raise error(
                "lnc-outputs",
                f"{kernel.__name__}: core 0 and core {core} return different tensors",
                notes=[f"core {i}: {_shown(results[i])}" for i in (0, core)],
                help="return the same shared_hbm tensors from every core",
                site=_return_site(kernel),
            )
    for view in [view for result in results for view in leaves(result, View)] if executed else ():
        report_unwritten(view, execution, _return_site(kernel))


def _check_output(kernel: CalledKernel, execution: Execution, view: View) -> None:
    site = _return_site(kernel)
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
        if execution.degree > 1:
            raise error(
                "output-buffer",
                f"{text}; each core has its own",
                notes=[view.describe()],
                help=help,
                site=site,
            )
        execution.diagnostics.report(Diagnostic("output-buffer", text, [view.describe()], help, site))


def report_unwritten(view: View, execution: Execution, site: Site | None) -> None:
    """Report a returned tensor of which a part was never written; integers are 0 there."""
    if execution.memories.is_written(view):
        return
    if view.storage.dtype.is_integer:  # public tests compare with arrays that started as zeros
        execution.memories[view.storage].clear_unwritten()
        text = uninitialised(view, "0")
    else:
        text = uninitialised(view)
    execution.diagnostics.report(Diagnostic(*text, site))


def warn_lost_writes(
    kernel: CalledKernel, transfer: Transfer, execution: Execution, result: Any, aliased: frozenset[str]
) -> None:
    """Report arguments that the kernel wrote to no effect, because their framework cannot change them."""
    returned = {id(view.storage) for view in leaves(result, View)}
    for name, _, framework, storage in transfer.written(execution.memories):
        if id(storage) not in returned and name not in aliased and not hasattr(framework, "write_back"):
            execution.diagnostics.report(
                Diagnostic(
                    "lost-write",
                    f"{kernel.__name__} wrote argument '{name}', but {framework.name} arrays cannot change",
                    [],
                    "return the tensor from the kernel",
                    _return_site(kernel),
                )
            )


def report_traced(kernel: CalledKernel, launch: Launch, program: Program) -> Program:
    """Report what the whole of a traced program shows; returns the program with these diagnostics."""
    diagnostics = launch.execution.diagnostics
    known = len(diagnostics.found)
    _report(kernel, diagnostics, findings(program, launch.options))
    if program.parameters and _may_have_no_effect(diagnostics, program.result):
        is_seen = State.output in program.state or any(s in program.written for _, s in program.parameters)
        if not is_seen:
            _mention_no_effect(kernel, diagnostics)
    if len(diagnostics.found) == known:
        return program
    return replace(program, diagnostics=tuple(diagnostics.found))


def report_executed(
    kernel: CalledKernel,
    transfer: Transfer,
    execution: Execution,
    result: object,
    found: Iterable[Diagnostic],
    has_effect: bool = False,
) -> None:
    """Report what the whole of a program shows that has run."""
    _report(kernel, execution.diagnostics, found)
    has_effect = has_effect or bool(execution.side_effects.prints or transfer.written(execution.memories))
    if not has_effect and transfer.tensors and _may_have_no_effect(execution.diagnostics, result):
        _mention_no_effect(kernel, execution.diagnostics)


def _report(kernel: CalledKernel, diagnostics: Diagnostics, found: Iterable[Diagnostic]) -> None:
    """Report each once. In strict mode the first raises, before the caller's arrays are changed."""
    for d in found:
        d = d if d.site is not None else replace(d, site=_return_site(kernel))
        if diagnostics.is_repeat(d.line):
            continue
        if diagnostics.strict:
            raise as_error(d)
        diagnostics.add(d)


def _may_have_no_effect(diagnostics: Diagnostics, result: object) -> bool:
    """Return whether a kernel returns nothing, and nothing else was reported."""
    return not diagnostics.found and all(
        leaf is None for leaf in flatten(result, lambda v: isinstance(v, View))
    )


def _mention_no_effect(kernel: CalledKernel, diagnostics: Diagnostics) -> None:
    """Report a kernel that got tensors, returns nothing and wrote none of them.

    No compiler refuses that: it is reported only if nothing else is, and is never an error.
    """
    text = f"{kernel.__name__} returns nothing and writes none of its arguments: it has no effect"
    help = "return the shared_hbm tensor that holds the result"
    found = Diagnostic("no-effect", text, [], help, _return_site(kernel))
    if not diagnostics.is_repeat(found.line):
        diagnostics.add(found)


def bare(value: object) -> Any:
    """Return the value with views that claim no bytes."""
    return replace_leaves(value, View, lambda view: view.bare())


def is_plain(value: object) -> bool:
    """Return True for tensors and plain values: what a cached program can return again."""
    return all(
        leaf is None or isinstance(leaf, (View, bool, int, float, str))
        for leaf in flatten(value, lambda v: isinstance(v, View))
    )


def _layout(value: object) -> Any:
    """Return structure, shapes, dtypes and storages of a result, to compare those of the cores."""
    found = map_tree(_described, value, is_leaf=lambda v: isinstance(v, View))
    return tuple(flatten(found)) if is_record(found) else found


def _described(leaf: object, path: str) -> Any:
    return (leaf.dtype, leaf.shape, leaf.storage) if isinstance(leaf, View) else type(leaf)


def _shown(value: object) -> str:
    """Return the tensors of a result in words."""
    return "; ".join(view.describe() for view in leaves(value, View)) or "no tensor"


def _return_site(kernel: CalledKernel) -> Site | None:
    """Return the last `return` of a kernel: where a returned tensor is shown to be wrong."""
    code = getattr(plain(kernel.func), "__code__", None)
    return None if code is None else Site(code, _last_return(code))


@lru_cache(maxsize=1024)
def _last_return(code: types.CodeType) -> int:
    """Return the offset of the last return: equal codes, which may be of two files, share it."""
    returns = [i.offset for i in dis.get_instructions(code) if i.opname.startswith("RETURN_")]
    return returns[-1] if returns else 0
