"""The `nki` command: profile, trace, compare, check, explain, tune, run, migrate, kernels, info.

Exit codes: 0 when all went well, 1 when a kernel is wrong, 2 when the command line is.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..errors import NkiError
from ..kernel.bridges import TensorSpec
from ..kernel.jit import profile
from ..kernel.kernel import Kernel
from ..options import choose_machine
from . import completion, migrate, neuron_profile, plans, run, script, tuning
from .checking import command_check, command_explain
from .listing import KERNELS_TEXT, command_info, command_kernels
from .script import UsageError
from .settings import settings
from .terminal import Stages, complain, show, user_traceback
from .tuning import add_tune, command_tune

if TYPE_CHECKING:
    from ..kernel.profile import Profile, SavedProfile

WRONG_KERNEL, WRONG_USAGE, INTERRUPTED = 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        options = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or 0)
    if options.name is None:
        return welcome()
    options.code = 0
    try:
        code = options.command(options)
        sys.stdout.flush()
        return code
    except UsageError as problem:
        complain(f"nki {options.name}: {problem}")
        return WRONG_USAGE
    except NkiError as problem:
        complain(traceback.format_exc() if options.traceback else f"{type(problem).__name__}: {problem}")
        return WRONG_KERNEL
    except BrokenPipeError:  # `nki check ... | head` has seen enough; what was found stays found
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return options.code
    except OSError as problem:
        complain(f"nki {options.name}: {problem}")
        return WRONG_USAGE
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except Exception as problem:
        complain(traceback.format_exc() if options.traceback else user_traceback(problem))
        return WRONG_KERNEL


def welcome() -> int:
    """`nki` alone: what can be done next."""
    parser().print_help()
    print(WELCOME)
    return 0


# ---- commands ------------------------------------------------------------------------------------


def command_profile(options: argparse.Namespace) -> int:
    """nki profile"""
    check_outputs(options)
    with Stages() as stage, settings(options):
        made = make_profile(options.kernel, options, script.parse_arguments(options.arg), stage)
        stage("working out the figures")
        figures = made.to_dict()
        for path, write in outputs(options, made):
            stage(f"writing {path}")
            write()
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        from ..report.text import document

        show(document(figures))
    for path, _ in outputs(options, made):
        print(f"wrote {path}", file=sys.stderr)
    return 0


def command_trace(options: argparse.Namespace) -> int:
    """nki trace"""
    with Stages() as stage, settings(options), kernel_at(options.kernel, stage) as kernel:
        kernel = launched(kernel, options.lnc)
        bound = script.bind(kernel, script.parse_arguments(options.arg))
        stage(f"tracing {kernel.__name__}")
        program = kernel.trace(*bound.args, **bound.kwargs)
        if options.save:
            program.save(options.save)
    if options.json:
        print(json.dumps(program.to_dict(), indent=2))
    elif options.save:
        print(f"wrote {options.save}: {program!r}", file=sys.stderr)
    else:
        print(program.text(constants=False), end="")
    return 0


def command_plan(options: argparse.Namespace) -> int:
    """nki plan"""
    with Stages() as stage, settings(options), kernel_at(options.kernel, stage) as kernel:
        kernel = launched(kernel, options.lnc)
        bound = script.bind(kernel, script.parse_arguments(options.arg))
        stage(f"tracing {kernel.__name__}")
        program = kernel.trace(*bound.args, **bound.kwargs)
    return plans.print_plan(program, options.json)


def command_show(options: argparse.Namespace) -> int:
    """nki show"""
    values = script.parse_arguments(options.arg)
    with Stages() as stage, settings(options), kernel_at(options.kernel, stage) as kernel:
        kernel = launched(kernel, options.lnc)
        bound = script.bind(kernel, filled(values) if options.values else values)
        stage(f"{'running' if options.values else 'tracing'} {kernel.__name__}")
        from ..kernel.show import show as steps_of

        steps = steps_of(kernel)(*bound.args, **bound.kwargs)
        file = options.output or f"{kernel.__name__}.html"
        Path(file).write_text(steps.html(), encoding="utf-8")
    print(f"wrote {file}: {steps.count:,} steps", file=sys.stderr)
    return 0


def filled(values: dict[str, Any]) -> dict[str, Any]:
    """Random arrays in place of described tensors."""
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(v.shape).astype(np.dtype(v.dtype)) if isinstance(v, TensorSpec) else v
        for name, v in values.items()
    }


def command_completion(options: argparse.Namespace) -> int:
    """nki completion"""
    print(completion.script(options.shell, parser()), end="")
    return 0


def command_compare(options: argparse.Namespace) -> int:
    """nki compare"""
    allowed = None if options.fail_if_slower is None else part_of(options.fail_if_slower)
    with Stages(8) as stage, settings(options):
        made = make_both(options, stage)
        if options.html:
            stage(f"writing {options.html}")
            write_both(options.html, *made)
        a, b = (one.to_dict() for one in made)
    slower = b["total_us"] / a["total_us"] - 1
    failed = allowed is not None and slower > allowed
    options.code = WRONG_KERNEL if failed else 0
    if options.json:
        print(json.dumps({"a": a, "b": b, "speedup": a["total_us"] / b["total_us"]}, indent=2))
    else:
        from ..report.text import side_by_side

        show(side_by_side(a, b))
    if options.html:
        print(f"wrote {options.html}", file=sys.stderr)
    if allowed is not None and failed:
        complain(f"nki compare: {100 * slower:.1f}% slower, {100 * allowed:g}% are allowed")
    return options.code


def part_of(text: str) -> float:
    """0.03 of "3%"."""
    try:
        return float(text.strip().removesuffix("%")) / 100 if "%" in text else float(text)
    except ValueError:
        raise UsageError(f"--fail-if-slower {text}: write a part of the time, as in 3%") from None


# ---- profiles ------------------------------------------------------------------------------------


def make_profile(spec: str, options: argparse.Namespace, values: dict[str, Any], stage: Stages) -> Profile:
    """The profile of `script.py:kernel`."""
    with kernel_at(spec, stage) as kernel:
        kernel = launched(kernel, options.lnc)
        bound = script.bind(kernel, values)
        uncertain = getattr(options, "uncertainty", False)
        return profile(kernel, stage=stage, uncertainty=uncertain)(*bound.args, **bound.kwargs)


@contextlib.contextmanager
def kernel_at(spec: str, stage: Stages) -> Iterator[Kernel]:
    target = script.target(spec)
    stage(f"loading {target}")
    with script.loaded(target.place) as module:
        yield script.find_kernel(module, target.place, target.name)


def launched(kernel: Kernel, cores: int | None) -> Kernel:
    """kernel[cores], if the platform has as many."""
    if cores is None:
        return kernel
    platform = choose_machine(kernel.target)
    if cores not in platform.lnc_degrees:
        allowed = " or ".join(map(str, platform.lnc_degrees))
        raise UsageError(f"--lnc {cores}: {platform.name} launches a kernel on {allowed} core(s)")
    return kernel[cores]


def write_both(path: str, a: Profile | SavedProfile, b: Profile | SavedProfile) -> None:
    from ..kernel.profile import Profile

    if not (isinstance(a, Profile) and isinstance(b, Profile)):
        raise UsageError("--html: a saved profile has no timeline\n  help: give both as script.py:kernel")
    from ..report.compare import both

    Path(path).write_text(both(a, b), encoding="utf-8")


def make_both(options: argparse.Namespace, stage: Stages) -> list[Profile | SavedProfile]:
    """The two profiles of a comparison; each kernel gets the arguments it takes."""
    values = script.parse_arguments(options.arg)
    specs = [options.a, options.b]
    taken = [set() if is_saved(spec) else taken_by(spec, values, stage) for spec in specs]
    for name in values:
        if not any(name in names for names in taken):
            raise UsageError(f"--arg {name}: nothing compared here has such a parameter")
    made: list[Profile | SavedProfile] = []
    for spec, names in zip(specs, taken, strict=True):
        if is_saved(spec):
            made.append(load_saved(spec))
        else:
            own = {name: values[name] for name in values if name in names}
            made.append(make_profile(spec, options, own, stage))
    return made


def taken_by(spec: str, values: dict[str, Any], stage: Stages) -> set[str]:
    """Those of the arguments that the kernel of a spec takes."""
    with kernel_at(spec, stage) as kernel:
        parameters = kernel.__signature__.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(values)
    return {p.name for p in parameters} & set(values)


def is_saved(spec: str) -> bool:
    """A file that is no Python file must be a saved profile."""
    file = Path(spec)
    return file.is_file() and file.suffix != ".py"


def load_saved(path: str) -> SavedProfile:
    from ..kernel.profile import SavedProfile

    try:
        return SavedProfile.load(path)
    except (NkiError, OSError, UnicodeDecodeError) as problem:
        why = problem.message if isinstance(problem, NkiError) else f"{path}: {problem}"
        raise UsageError(
            f"{why}\n  help: compare files of nki profile --save, or kernels as script.py:kernel"
        ) from None


# ---- what is written -----------------------------------------------------------------------------


def outputs(options: argparse.Namespace, made: Profile) -> list[tuple[str, Callable[[], Any]]]:
    """The files asked for and how to write each."""
    wanted: list[tuple[str | None, Callable[[], Any]]] = [
        (options.html, lambda: Path(options.html).write_text(made.html(), encoding="utf-8")),
        (options.perfetto, lambda: Path(options.perfetto).write_bytes(made.perfetto())),
        (options.save, lambda: made.save(options.save)),
    ]
    return [(path, write) for path, write in wanted if path]


def check_outputs(options: argparse.Namespace) -> None:
    """Say before the work what could not be written after it."""
    for flag, path in (("--html", options.html), ("--perfetto", options.perfetto), ("--save", options.save)):
        if path and Path(path).is_dir():
            raise UsageError(f"{flag} {path}: this is a directory")
        if path and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{flag} {path}: there is no directory {Path(path).parent}")
    if options.perfetto and importlib.util.find_spec("perfetto") is None:
        raise UsageError("--perfetto needs the package perfetto\n  help: pip install 'open-nki[profile]'")


# ---- the command line ----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="nki",
        description="Profile, trace and check NKI kernels without a device.",
        epilog="Exit codes: 0 all went well, 1 the kernel is wrong, 2 the command line is.",
    )
    top.add_argument("--version", action="version", version=f"Open NKI {__version__}")
    commands = top.add_subparsers(dest="name", metavar="command")

    def command(name: str, action: Callable, help: str, description: str, epilog: str = "") -> Any:
        made = commands.add_parser(
            name,
            help=help,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.add_argument(
            "--traceback", action="store_true", help="show Python's whole traceback of an error"
        )
        made.set_defaults(command=action)
        return made

    one = command("profile", command_profile, "model the run of a kernel", PROFILE_TEXT, PROFILE_EXAMPLES)
    one.add_argument(
        "kernel", metavar="script.py[:kernel]", help="the kernel may be left out if there is one only"
    )
    add_run_options(one)
    one.add_argument("--html", metavar="FILE", help="write a page with timeline, source, memory and roofline")
    one.add_argument("--perfetto", metavar="FILE", help="write a trace for ui.perfetto.dev")
    one.add_argument("--save", metavar="FILE", help="write the figures for nki compare")
    one.add_argument(
        "--uncertainty", action="store_true", help="the time as an interval: each assumption at its ends"
    )

    traced = command("trace", command_trace, "print the program of a kernel", TRACE_TEXT, TRACE_EXAMPLES)
    traced.add_argument(
        "kernel", metavar="script.py[:kernel]", help="the kernel may be left out if there is one only"
    )
    add_run_options(traced)
    traced.add_argument("--save", metavar="FILE", help="write the program for nki.Program.load instead")

    planned = command("plan", command_plan, "print how a kernel runs here", plans.TEXT, plans.EXAMPLES)
    planned.add_argument(
        "kernel", metavar="script.py[:kernel]", help="the kernel may be left out if there is one only"
    )
    add_run_options(planned)

    shown = command("show", command_show, "a page that steps through a kernel", SHOW_TEXT, SHOW_EXAMPLES)
    shown.add_argument(
        "kernel", metavar="script.py[:kernel]", help="the kernel may be left out if there is one only"
    )
    add_run_options(shown, json=False)
    shown.add_argument("-o", "--output", metavar="FILE", help="the page (default: the kernel's name.html)")
    shown.add_argument("--values", action="store_true", help="run it on random numbers, and show them")

    two = command("compare", command_compare, "put two profiles side by side", COMPARE_TEXT, COMPARE_EXAMPLES)
    for letter in "ab":
        two.add_argument(letter, help="script.py:kernel, or a file written by nki profile --save")
    two.add_argument(
        "--fail-if-slower", metavar="PART", help="exit with 1 when b takes longer than a by more, as in 3%%"
    )
    add_run_options(two)
    two.add_argument("--html", metavar="FILE", help="write a page with both timelines; not of saved profiles")

    add_check(command("check", command_check, "find what the real compilers would not accept", CHECK_TEXT))
    add_tune(
        command("tune", command_tune, "find the best tile sizes", tuning.TEXT, tuning.EXAMPLES),
        add_run_options,
    )
    explained = command("explain", command_explain, "what a kind of error or warning means", EXPLAIN_TEXT)
    explained.add_argument("kind", nargs="?", help="as in NkiError[kind]; all of them are listed without it")
    explained.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    script_run = command(
        "run", run.command_run, "run a script written for a device", run.RUN_TEXT, run.RUN_EXAMPLES
    )
    run.add_arguments(script_run)
    for tool in ("neuron-profile", "neuron-explorer"):
        made = command(
            tool,
            neuron_profile.command_neuron_profile,
            "reports of what scripts left for it",
            neuron_profile.TEXT,
            neuron_profile.EXAMPLES,
        )
        neuron_profile.add_arguments(made)
    migrated = command(
        "migrate",
        migrate.command_migrate,
        "list what of older APIs a file uses",
        migrate.MIGRATE_TEXT,
        migrate.MIGRATE_EXAMPLES,
    )
    migrate.add_arguments(migrated)
    shells = command(
        "completion",
        command_completion,
        "a script that completes in a shell",
        completion.TEXT,
        completion.EXAMPLES,
    )
    shells.add_argument("shell", choices=completion.SHELLS)
    listing = command("kernels", command_kernels, "list the kernels of nkilib", KERNELS_TEXT)
    listing.add_argument("word", nargs="?", help="only those with this word in name, module or meaning")
    listing.add_argument("--json", action="store_true", help="print one JSON list and nothing else")
    info = command("info", command_info, "version, platforms, their limits", "What is installed, and where.")
    info.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return top


def add_check(check: argparse.ArgumentParser) -> None:
    """The options of nki check."""
    check.add_argument(
        "kernel",
        nargs="+",
        metavar="TARGET",
        help="script.py[:kernel], package.module[:kernel] or a directory; all kernels if none is named",
    )
    check.add_argument(
        "--front-end",
        choices=("parser", "tracer"),
        default="parser",
        help="which of the two compilers to ask (default: parser)",
    )
    add_run_options(check)
    check.add_argument("--sarif", metavar="FILE", help="write a SARIF 2.1.0 log; - prints it")
    check.add_argument("--github", action="store_true", help="print annotations for GitHub's pull requests")
    check.add_argument("--baseline", metavar="FILE", help="report what is not in this file alone")
    check.add_argument("--update-baseline", action="store_true", help="write the baseline: all there is now")


def add_run_options(command: argparse.ArgumentParser, json: bool = True) -> None:
    """What every command that traces kernels takes."""
    command.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the kernel: a tensor like float32[8192,4096], or a Python value; repeatable",
    )
    command.add_argument(
        "--target", metavar="PLATFORM", help="trn1, trn2 or trn3 (default: as the kernel runs)"
    )
    command.add_argument(
        "--lnc", type=int, metavar="CORES", help="launch on this many cores, as kernel[CORES] does"
    )
    if json:
        command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


WELCOME = """
next:
  nki profile script.py:kernel --arg x=bf16[128,512]   what a kernel would take on Trainium
  nki check script.py                                  what the real compilers would not accept
  nki kernels attention                                whether the library has it already
  nki COMMAND --help                                   all options of a command"""
PROFILE_TEXT = """\
Model when each engine and DMA queue would run each instruction of a kernel, from
shapes and dtypes alone, and print where the time goes."""
PROFILE_EXAMPLES = """\
examples:
  nki profile matmul.py:tiled --arg lhsT=float32[8192,4096] --arg rhs=float32[8192,8192]
  nki profile matmul.py:tiled --arg lhsT=... --arg rhs=... --target trn2 --html report.html"""
TRACE_TEXT = """\
Print what a kernel does: its storages, every instruction of every core with its operands,
loops as regions, what it returns. Constants are shown by their digests."""
TRACE_EXAMPLES = """\
examples:
  nki trace matmul.py:tiled --arg lhsT=float32[512,256] --arg rhs=float32[512,1024]
  nki trace matmul.py:tiled --arg lhsT=... --arg rhs=... --save tiled.nki"""
SHOW_TEXT = """\
Write one page on which to step through a kernel: its tiles in HBM, SBUF and PSUM, what each
instruction reads and writes, and the line it stands on."""
SHOW_EXAMPLES = """\
examples:
  nki show matmul.py:tiled --arg lhsT=float32[256,128] --arg rhs=float32[256,512]
  nki show matmul.py:tiled --arg lhsT=float32[128,4] --arg rhs=float32[128,4] --values -o tiled.html"""
COMPARE_TEXT = """\
Compare two kernels with the same arguments, or two saved profiles. An argument that
one of the kernels does not have goes to the other alone."""
COMPARE_EXAMPLES = """\
examples:
  nki compare matmul.py:tiled matmul.py:hoisted --arg lhsT=float32[512,256] --arg rhs=float32[512,1024]
  nki compare before.json after.json --fail-if-slower 3%"""
CHECK_TEXT = """\
Look for what the simulator runs and compilers or hardware refuse: Python in kernels and in
what they call, and, with --arg, every rule for instructions, races between cores and the
capacity of SBUF and PSUM, from shapes alone. --target all asks trn1, trn2 and trn3. A kernel
can name the calls to check itself, in a comment: # nki: check x=float32[128,512] lnc=2
A line is left out by a comment on it: # nki: ignore[kind]"""
EXPLAIN_TEXT = """\
Tell what a kind of error or warning means, with a wrong kernel and a right one."""
