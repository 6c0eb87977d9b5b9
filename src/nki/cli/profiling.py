"""nki profile and nki compare: the modelled run of a kernel, and two of them side by side."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..kernel.jit import profile
from ..kernel.kernel import Kernel
from ..kernel.listeners import distinct_calls
from . import script
from .command import WRONG_KERNEL, Command, add_kernel, add_run_options
from .script import UsageError
from .settings import settings
from .terminal import Stages, complain, show

if TYPE_CHECKING:
    from ..kernel.profile import Profile, SavedProfile


def command_profile(options: argparse.Namespace) -> int:
    """nki profile"""
    check_outputs(options)
    with Stages() as stage, settings(options):
        made = make_profiles(options, stage)
        if len(made) > 1 and outputs(options, made[0]):
            raise UsageError(f"{options.kernel} calls kernels in {len(made)} ways; one file is for one")
        stage("computing the figures")
        figures = [one.to_dict() for one in made]
        for path, write in outputs(options, made[0]):
            stage(f"writing {path}")
            write()
    if options.json:
        print(json.dumps(figures[0] if len(figures) == 1 else {"profiles": figures}, indent=2))
    else:
        from ..report.text import document

        for one in figures:
            show(document(one, options.assumptions))
    for path, _ in outputs(options, made[0]):
        print(f"wrote {path}", file=sys.stderr)
    return 0


def make_profiles(options: argparse.Namespace, stage: Stages) -> list[Profile]:
    """Return the profile of a kernel; of a script, those of all calls that it makes."""
    found = script.target(options.kernel)
    if found.name is None and not options.arg and isinstance(found.place, Path):
        stage(f"running {found}")
        with script.importable(), distinct_calls() as calls:
            code = script.run_as_main([str(found.place)])
        if code and not calls:
            raise UsageError(f"{found} ended with exit code {code} before it called a kernel")
        if calls:
            return [
                call_profile(script.launched(kernel, options.lnc), args, kwargs, options, stage)
                for kernel, args, kwargs in calls.values()
            ]
    return [make_profile(options.kernel, options, script.parse_arguments(options.arg), stage)]


def make_profile(
    spec: str, options: argparse.Namespace, values: Mapping[str, object], stage: Stages
) -> Profile:
    """Return the profile of `script.py:kernel`."""
    with script.kernel_at(spec, stage) as kernel:
        kernel, bound = script.call_of(kernel, values, options.lnc)
        return call_profile(kernel, bound.args, bound.kwargs, options, stage)


def call_profile(
    kernel: Kernel, args: tuple, kwargs: dict, options: argparse.Namespace, stage: Stages
) -> Profile:
    uncertain = getattr(options, "uncertainty", False)
    return profile(kernel, stage=stage, uncertainty=uncertain)(*args, **kwargs)


def outputs(options: argparse.Namespace, made: Profile) -> list[tuple[str, Callable[[], object]]]:
    """Return the files to write and how to write each."""
    wanted: list[tuple[str | None, Callable[[], object]]] = [
        (options.html, lambda: Path(options.html).write_text(made.html(), encoding="utf-8")),
        (options.perfetto, lambda: Path(options.perfetto).write_bytes(made.perfetto())),
        (options.save, lambda: made.save(options.save)),
    ]
    return [(path, write) for path, write in wanted if path]


def check_outputs(options: argparse.Namespace) -> None:
    """Raise before the work for a file that could not be written after it."""
    for flag, path in (("--html", options.html), ("--perfetto", options.perfetto), ("--save", options.save)):
        if path and Path(path).is_dir():
            raise UsageError(f"{flag} {path}: this is a directory")
        if path and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{flag} {path}: there is no directory {Path(path).parent}")
    if options.perfetto and importlib.util.find_spec("perfetto") is None:
        raise UsageError("--perfetto needs the package perfetto\n  help: pip install perfetto protobuf")


def add_profile(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument("--html", metavar="FILE", help="write a page with timeline, source, memory, roofline")
    parser.add_argument("--perfetto", metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument("--save", metavar="FILE", help="write the figures for nki compare")
    parser.add_argument(
        "--assumptions", action="store_true", help="list the constants that no source publishes, and why"
    )
    parser.add_argument(
        "--uncertainty", action="store_true", help="the time as an interval: each assumption at its bounds"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a transformation of the compiler, or all; the report lists their names; repeatable",
    )


PROFILE = Command(
    "profile",
    "model the run of a kernel",
    """\
Model when each engine and DMA queue would run each instruction of a kernel, from
shapes and dtypes alone, and print where the time goes. A script without a kernel's name is
run, and every kernel call that it makes is profiled.""",
    command_profile,
    add_profile,
    """\
examples:
  nki profile script.py
  nki profile matmul.py:tiled --arg lhsT=float32[8192,4096] --arg rhs=float32[8192,8192]
  nki profile matmul.py:tiled --arg lhsT=... --arg rhs=... --target trn2 --html report.html""",
)


# ---- nki compare ---------------------------------------------------------------------------------


def command_compare(options: argparse.Namespace) -> int:
    """nki compare"""
    if options.trace:
        return compare_with_device(options)
    if options.b is None:
        raise UsageError("give a second kernel or profile, or a profile of a device with --trace")
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


def compare_with_device(options: argparse.Namespace) -> int:
    """Show a profile of a device beside the modelled run of one kernel."""
    if options.b is not None or options.fail_if_slower is not None:
        raise UsageError("--trace compares a device with one kernel: give one, without --fail-if-slower")
    from ..report import device_report, device_trace

    with Stages() as stage, settings(options):
        stage(f"reading {options.trace}")
        device = device_trace.load(options.trace)
        made = make_profile(options.a, options, script.parse_arguments(options.arg), stage)
    figures = device_trace.compared(device, device_trace.modelled(made.timeline))
    if options.json:
        print(json.dumps({"kernel": made.kernel, **figures}, indent=2))
    else:
        show(device_report.terminal(figures, made.kernel))
    if options.html:
        Path(options.html).write_text(device_report.page(figures, made.kernel), encoding="utf-8")
        print(f"wrote {options.html}", file=sys.stderr)
    return 0


def part_of(text: str) -> float:
    """Return 0.03 for "3%"."""
    try:
        return float(text.strip().removesuffix("%")) / 100 if "%" in text else float(text)
    except ValueError:
        raise UsageError(f"--fail-if-slower {text}: write a part of the time, as in 3%") from None


def write_both(path: str, a: Profile | SavedProfile, b: Profile | SavedProfile) -> None:
    from ..kernel.profile import Profile

    if not (isinstance(a, Profile) and isinstance(b, Profile)):
        raise UsageError("--html: a saved profile has no timeline\n  help: give both as script.py:kernel")
    from ..report.compare import both

    Path(path).write_text(both(a, b), encoding="utf-8")


def make_both(options: argparse.Namespace, stage: Stages) -> list[Profile | SavedProfile]:
    """Return the two profiles of a comparison; each kernel gets the arguments it takes."""
    values = script.parse_arguments(options.arg)
    specs = [options.a, options.b]
    taken = [set() if is_saved(spec) else taken_by(spec, values, stage) for spec in specs]
    for name in values:
        if not any(name in names for names in taken):
            raise UsageError(f"--arg {name}: neither kernel has such a parameter")
    made: list[Profile | SavedProfile] = []
    for spec, names in zip(specs, taken, strict=True):
        if is_saved(spec):
            from ..kernel.profile import SavedProfile

            made.append(SavedProfile.load(spec))
        else:
            own = {name: values[name] for name in values if name in names}
            made.append(make_profile(spec, options, own, stage))
    return made


def taken_by(spec: str, values: Mapping[str, object], stage: Stages) -> set[str]:
    """Return the names of the arguments that the kernel of a spec takes."""
    with script.kernel_at(spec, stage) as kernel:
        parameters = kernel.__signature__.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(values)
    return {p.name for p in parameters} & set(values)


def is_saved(spec: str) -> bool:
    """True for a file that is no Python file: it must be a saved profile."""
    file = Path(spec)
    return file.is_file() and file.suffix != ".py"


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help="script.py:kernel, or a file written by nki profile --save")
    parser.add_argument("b", nargs="?", help="the same; with --trace, nothing")
    parser.add_argument(
        "--trace", metavar="FILE", help="a device's profile of the kernel: JSON of neuron-profile view"
    )
    parser.add_argument(
        "--fail-if-slower", metavar="PART", help="exit with 1 when b takes longer than a by more, as in 3%%"
    )
    add_run_options(parser)
    parser.add_argument("--html", metavar="FILE", help="write a page with both; not for saved ones")


COMPARE = Command(
    "compare",
    "put two profiles side by side",
    """\
Compare two kernels with the same arguments, or two saved profiles. An argument that
one of the kernels does not have goes to the other alone. With --trace, compare what a
device did with the modelled run of one kernel: by engine and opcode, engine and DMA queue.""",
    command_compare,
    add_compare,
    """\
examples:
  nki compare matmul.py:tiled matmul.py:hoisted --arg lhsT=float32[512,256] --arg rhs=float32[512,1024]
  nki compare before.json after.json --fail-if-slower 3%
  nki compare matmul.py:tiled --arg lhsT=... --arg rhs=... --trace profile_full.json --html both.html""",
)
