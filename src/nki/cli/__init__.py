"""The `nki` command: profile, trace, plan, show, compare, advise, check, tune, explain, new, kernels, info.

Plugins add commands (`nki.plugins`). Exit codes: 0 success, 1 wrong kernel, 2 wrong command line or file.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from types import CodeType

from .. import __version__, plugins
from ..errors import NkiError, NkiFileError, suggestion
from . import (
    advising,
    caching,
    checking,
    completion,
    debugging,
    explaining,
    listing,
    profiling,
    showing,
    starting,
    tracing,
    tuning,
)
from .command import INTERRUPTED, WRONG_KERNEL, WRONG_USAGE, Command
from .script import UsageError
from .terminal import complain, user_traceback


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    top = parser()
    unknown = unknown_command(top, sys.argv[1:] if argv is None else argv)
    if unknown is not None:
        complain(unknown)
        return WRONG_USAGE
    try:
        options = top.parse_args(argv)
    except SystemExit as stop:  # argparse has printed why
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
    except NkiFileError as problem:
        complain(f"nki {options.name}: {problem.message}\n  help: {problem.help}")
        return WRONG_USAGE
    except NkiError as problem:
        if problem.site is not None and problem.site.code in callers():
            problem.site = None  # what started this command is no code of the user
        complain(traceback.format_exc() if options.traceback else f"{type(problem).__name__}: {problem}")
        return WRONG_KERNEL
    except BrokenPipeError:  # `nki check ... | head` closed the pipe; the exit code stays that of the check
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


def callers() -> set[CodeType]:
    """Return the code of every function that is running above `main`."""
    frame = sys._getframe(2)
    found = set()
    while frame is not None:
        found.add(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    return found


def unknown_command(top: argparse.ArgumentParser, argv: Sequence[str]) -> str | None:
    """Return what is wrong with the name of the command, if it is."""
    names = completion.commands_of(top)
    if not argv or argv[0].startswith("-") or argv[0] in names:
        return None
    hint = suggestion(argv[0], names)
    return f"nki: there is no command {argv[0]}{hint}\n  help: nki --help lists all of them"


def welcome() -> int:
    """Print the help and what to do next: `nki` without a command."""
    parser().print_help()
    print(WELCOME)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of `nki`, with every command."""
    top = argparse.ArgumentParser(
        prog="nki",
        description="Profile, trace and check NKI kernels without a device.",
        epilog="Exit codes: 0 success, 1 the kernel is wrong, 2 the command line or a file is wrong.",
    )
    top.add_argument("--version", action="version", version=f"Open NKI {__version__}")
    commands = top.add_subparsers(dest="name", metavar="command")
    for command in (*COMMANDS, *plugin_commands()):
        command.add_to(commands)
    return top


def plugin_commands() -> Iterator[Command]:
    """Yield the commands of plugins; one that cannot be imported fails when it is used."""
    for entry in plugins.entry_points("nki.commands").values():
        try:
            yield plugins.load(entry)
        except ImportError as problem:
            yield unavailable(entry, problem)


def unavailable(entry: EntryPoint, problem: ImportError) -> Command:
    def fail(options: argparse.Namespace) -> int:
        raise UsageError(f"{entry.value} cannot be imported: {problem}")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    return Command(entry.name, "not available", f"{entry.value}: {problem}", fail, add_arguments)


def command_completion(options: argparse.Namespace) -> int:
    """nki completion"""
    print(completion.script(options.shell, parser()), end="")
    return 0


COMMANDS = (
    *(profiling.PROFILE, tracing.TRACE, tracing.PLAN, showing.COMMAND, profiling.COMPARE),
    *(advising.COMMAND, checking.COMMAND, debugging.COMMAND),
    *(tuning.COMMAND, explaining.COMMAND, caching.COMMAND),
    Command(
        "completion",
        "a script that completes in a shell",
        completion.TEXT,
        command_completion,
        completion.add_arguments,
        completion.EXAMPLES,
    ),
    *(starting.COMMAND, listing.KERNELS, listing.INFO, listing.DOCTOR),
)

WELCOME = """
next:
  nki profile script.py:kernel --arg x=bf16[128,512]   what a kernel would take on Trainium
  nki check script.py                                  what the real compilers would not accept
  nki kernels attention                                whether the library has it already
  nki COMMAND --help                                   all options of a command"""
