"""nki trace and nki plan: the program of a kernel as a listing, as a plan."""

from __future__ import annotations

import argparse
import json
import sys

from ..backends.fused.describing import describe, lines
from ..ir.program import Program
from . import script
from .command import Command, add_kernel
from .settings import settings
from .terminal import Stages


def traced(options: argparse.Namespace) -> Program:
    """Return the program of the kernel that the command line names."""
    with Stages() as stage, settings(options), script.kernel_at(options.kernel, stage) as kernel:
        kernel, bound = script.call_of(kernel, script.parse_arguments(options.arg), options.lnc)
        stage(f"tracing {kernel.__name__}")
        return kernel.trace(*bound.args, **bound.kwargs)


def command_trace(options: argparse.Namespace) -> int:
    """nki trace"""
    program = traced(options)
    if options.save:
        program.save(options.save)
    if options.json:
        print(json.dumps(program.to_dict(), indent=2))
    elif options.save:
        print(f"wrote {options.save}: {program!r}", file=sys.stderr)
    else:
        print(program.text(constants=False), end="")
    return 0


def add_trace(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument("--save", metavar="FILE", help="write the program for nki.Program.load instead")


TRACE = Command(
    "trace",
    "print the program of a kernel",
    """\
Print what a kernel does: its storages, every instruction of every core with its operands,
loops as regions, what it returns. Constants are shown by their hashes.""",
    command_trace,
    add_trace,
    """\
examples:
  nki trace matmul.py:tiled --arg lhsT=float32[512,256] --arg rhs=float32[512,1024]
  nki trace matmul.py:tiled --arg lhsT=... --arg rhs=... --save tiled.nki""",
)


def command_plan(options: argparse.Namespace) -> int:
    """nki plan"""
    facts = describe(traced(options))
    print(json.dumps(facts, indent=2) if options.json else "\n".join(lines(facts)))
    return 0


PLAN = Command(
    "plan",
    "print how a kernel runs here",
    """\
Print how a kernel would run here: which of its tile products are one large product, what is
fused into them, what runs one instruction at a time, and how much memory it takes. Columns:
step, number of instructions, what the step does.""",
    command_plan,
    add_kernel,
    """\
examples:
  nki plan matmul.py:tiled --arg lhsT=float32[4096,2048] --arg rhs=float32[4096,4096]
  nki plan matmul.py:tiled --arg lhsT=... --arg rhs=... --json""",
)
