"""A subcommand of `nki`, and the arguments that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

WRONG_KERNEL, WRONG_USAGE, INTERRUPTED = 1, 2, 130  # exit codes


@dataclass(frozen=True)
class Command:
    """What `--help` prints, the arguments, and what runs. Plugins provide such objects too."""

    name: str
    help: str  # one line in the list of commands
    text: str
    run: Callable[[argparse.Namespace], int]  # returns the exit code
    add_arguments: Callable[[argparse.ArgumentParser], None]
    examples: str = ""

    def add_to(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the parser of this command to those of `nki`."""
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=self.text,
            epilog=self.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "--traceback", action="store_true", help="show Python's whole traceback of an error"
        )
        self.add_arguments(parser)
        parser.set_defaults(command=self.run)


def add_kernel(parser: argparse.ArgumentParser, json: bool = True) -> None:
    """Add the kernel and what every command that traces kernels takes."""
    parser.add_argument(
        "kernel", metavar="script.py[:kernel]", help="the kernel may be left out if there is one only"
    )
    add_run_options(parser, json)


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the kernels of a command that takes many."""
    parser.add_argument(
        "kernel",
        nargs="+",
        metavar="TARGET",
        help="script.py[:kernel], package.module[:kernel] or a directory; all kernels if none is named",
    )


def add_run_options(parser: argparse.ArgumentParser, json: bool = True) -> None:
    """Add the options of every command that traces kernels."""
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the kernel: a tensor like float32[8192,4096], or a Python value; repeatable",
    )
    parser.add_argument(
        "--target", metavar="PLATFORM", help="trn1, trn2 or trn3 (default: as the kernel runs)"
    )
    parser.add_argument(
        "--lnc", type=int, metavar="CORES", help="launch on this many cores, as kernel[CORES] does"
    )
    if json:
        add_json(parser)


def add_json(parser: argparse.ArgumentParser, what: str = "object") -> None:
    parser.add_argument("--json", action="store_true", help=f"print one JSON {what} and nothing else")
