"""nki check: find what compilers and hardware would refuse."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import linecache
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..check import formats, lint, portability, releases
from ..check.findings import (
    Baseline,
    CheckFinding,
    grouped,
    ignored,
    merged,
    of_diagnostic,
    of_error,
    of_lint,
)
from ..check.python import Checked
from ..errors import NkiError, is_ours
from ..kernel.kernel import Kernel
from ..machine import generations
from ..options import choose_machine
from ..options import options as chosen
from . import script
from .command import WRONG_KERNEL, Command, add_run_options, add_targets
from .script import UsageError
from .settings import platform_named
from .terminal import show_message

MOST_PLACES = 6  # named for one of several equal findings


def command_check(options: argparse.Namespace) -> int:
    """nki check"""
    formatted = [options.json, bool(options.sarif == "-"), options.github]
    if sum(formatted) > 1:
        raise UsageError("--json, --sarif - and --github all print to the same place: choose one")
    if options.update_baseline and not options.baseline:
        raise UsageError("--update-baseline needs --baseline FILE")
    names: list[str] = []
    found: list[CheckFinding] = []
    checked: dict[int, Checked] = {}
    with contextlib.redirect_stdout(sys.stderr), _quiet():
        for spec in options.kernel:
            for target in script.targets(spec):
                for name, one in _checked(target, options, checked):
                    names.append(name) if name not in names else None
                    found += one
    if options.release:
        found = [portability.as_seen_by(options.release, one) for one in found]
    found = [one for one in merged(found) if not ignored(one)]
    if options.update_baseline:
        Baseline.save(options.baseline, found)
        print(f"wrote {options.baseline}: {len(found)} finding(s)", file=sys.stderr)
    known = 0
    if options.baseline:
        new = Baseline.load(options.baseline).new(found)
        known, found = len(found) - len(new), new
    errors = sum(one.level == "error" for one in found)
    options.code = WRONG_KERNEL if errors else 0
    _print(options, found, known, names)
    return options.code


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- one kernel ----------------------------------------------------------------------------------


def _checked(
    target: script.Target, options: argparse.Namespace, checked: dict[int, Checked]
) -> Iterator[tuple[str, list[CheckFinding]]]:
    """Each kernel of a target by name, with what was found."""
    with script.loaded(target.place) as module:
        kernels = script.kernels_of(module)
        if not kernels and target.among_others:
            return
        if target.name or not kernels:
            found = script.find_kernel(module, target.place, target.name)
            kernels = {found.__name__: found}
        values = script.parse_arguments(options.arg)
        for name, kernel in kernels.items():
            yield name, _check_kernel(kernel, values, options, checked)


def _check_kernel(
    kernel: Kernel, values: dict[str, Any], options: argparse.Namespace, checked: dict[int, Checked]
) -> list[CheckFinding]:
    name = kernel.__name__
    found: list[CheckFinding] = []
    if kernel.linted or options.release not in (None, "0.3"):  # 0.3 still compiles the old API
        found += [of_lint(hit, name) for hit in lint(kernel, options.front_end, checked=checked)]
        if options.release:
            found += portability.of_source(kernel, options.release, checked)
    if kernel.linted and not options.release:
        found += _removed(kernel)
    cases = (
        [script.DeclaredCall(values, options.lnc)]
        if values
        else list(script.declared_cases(kernel, options.lnc))
    )
    if options.arg and not values.keys() <= set(kernel.__signature__.parameters):
        cases = []  # the arguments are another kernel's
    if not cases and not _needs_arguments(kernel):
        cases = [script.DeclaredCall({}, options.lnc)]
    for platform_name in _platforms(options.target, kernel):
        with chosen(target=platform_name, **({"api": options.release} if options.release else {})):
            for case in cases:
                found += _traced(kernel, case, platform_name, options.release)
    return found


def _needs_arguments(kernel: Kernel) -> bool:
    parameters = kernel.__signature__.parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _platforms(target: str | None, kernel: Kernel) -> list[str]:
    if target == "all":
        return list(generations.MACHINES)
    return [platform_named(target) if target else choose_machine(kernel.target).name]


def _traced(
    kernel: Kernel, case: script.DeclaredCall, platform_name: str, release: str | None
) -> list[CheckFinding]:
    """Every rule of a platform, and of a release if one is named, from shapes alone."""
    name, at = kernel.__name__, _line_of(kernel)
    bound = script.bind(kernel, case.values)
    try:
        launched = kernel if case.lnc is None else kernel[case.lnc]
        program = launched.trace(*bound.args, **bound.kwargs)
    except NkiError as problem:
        return [of_error(problem, name, at, platform_name)]
    except Exception as problem:
        return [_python_error(problem, name, at, platform_name)]
    found = [of_diagnostic(diagnostic, name, at, platform_name) for diagnostic in program.diagnostics]
    if release:
        for told, level in portability.of_call(program, bound.arguments.values(), release):
            found.append(replace(of_diagnostic(told, name, at, platform_name), level=level))
    return found


def _python_error(problem: Exception, kernel: str, at: tuple[str, int], platform_name: str) -> CheckFinding:
    """An error of Python itself: the last line of the user's code."""
    file, line = at
    for frame, number in traceback.walk_tb(problem.__traceback__):
        if not is_ours(frame.f_globals.get("__name__")):
            file, line = frame.f_code.co_filename, number
    text = "".join(traceback.format_exception_only(problem)).strip()
    source = linecache.getline(file, line).rstrip("\n")
    return CheckFinding(
        "python-error", "error", text, file, line, 1, source, kernel=kernel, targets=(platform_name,)
    )


def _line_of(kernel: Kernel) -> tuple[str, int]:
    code = getattr(inspect.unwrap(kernel.func), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("<unknown>", 1)


def _removed(kernel: Kernel) -> list[CheckFinding]:
    """What the current compiler does not take of `nki.jit`."""
    if kernel.target is None:
        return []
    file, line = _line_of(kernel)
    text = linecache.getline(file, line).rstrip("\n")
    return [
        CheckFinding(
            "removed",
            "error",
            "nki.jit: platform_target= was removed in NKI 0.3.0",
            file,
            line,
            1,
            text,
            help=f"leave it out and set NEURON_PLATFORM_TARGET_OVERRIDE={kernel.target}",
            kernel=kernel.__name__,
        )
    ]


# ---- what is printed -----------------------------------------------------------------------------


def _print(options: argparse.Namespace, found: list[CheckFinding], known: int, names: list[str]) -> None:
    if options.sarif:
        log = json.dumps(formats.sarif(found), indent=2)
        if options.sarif == "-":
            print(log)
        else:
            Path(options.sarif).write_text(log + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(formats.as_json(found, known, names), indent=2))
    elif options.github:
        for one in found:
            print(formats.annotation(one))
    elif options.sarif != "-":
        for one, others in grouped(found):
            also = [f"  = also at {', '.join(others[:MOST_PLACES])}"] if others else []
            also += [f"  = and {len(others) - MOST_PLACES} more"] if len(others) > MOST_PLACES else []
            show_message("\n".join([str(one), *also, ""]))
        print(_summary(options, found, known, names))


def _summary(options: argparse.Namespace, found: list[CheckFinding], known: int, names: list[str]) -> str:
    errors = sum(one.level == "error" for one in found)
    which = ", ".join(names) if len(names) <= 8 else f"{len(names)} kernels"
    before = f", {known} more in the baseline" if known else ""
    return (
        f"{which}: {errors} error(s), {len(found) - errors} warning(s) of the {options.front_end} front end"
        f"{f' for {releases.PREFIX}{options.release}' if options.release else ''}{before}"
    )


def _release(name: str) -> str:
    """`0.5` of `aws-0.5`."""
    if name not in releases.NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(releases.NAMES)}")
    return name.removeprefix(releases.PREFIX)


# ---- the command line ----------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    parser.add_argument(
        "--front-end",
        choices=("parser", "tracer"),
        default="parser",
        help="which of the two compilers' rules to apply (default: parser)",
    )
    parser.add_argument(
        "--for",
        dest="release",
        type=_release,
        metavar="RELEASE",
        help=f"report what a release of AWS's NKI refuses or does differently: {', '.join(releases.NAMES)}",
    )
    add_run_options(parser)
    parser.add_argument("--sarif", metavar="FILE", help="write a SARIF 2.1.0 log; - prints it")
    parser.add_argument("--github", action="store_true", help="print annotations for GitHub's pull requests")
    parser.add_argument("--baseline", metavar="FILE", help="report only what is not in this file")
    parser.add_argument("--update-baseline", action="store_true", help="write the current findings to it")


COMMAND = Command(
    "check",
    "find what the real compilers would not accept",
    """\
Find what the simulator runs and compilers or hardware refuse: Python in kernels and in
what they call, and, with --arg, every rule for instructions, races between cores and the
capacity of SBUF and PSUM, from shapes alone. --target all checks trn1, trn2 and trn3. --for aws-0.5
reports what that release of AWS's NKI lacks, refuses or does differently. A kernel can name
the calls to check itself, in a comment: # nki: check x=float32[128,512] lnc=2
A comment on a line suppresses a finding there: # nki: ignore[kind]""",
    command_check,
    add_arguments,
)
