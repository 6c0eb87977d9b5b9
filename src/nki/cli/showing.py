"""nki show: a page on which to step through a kernel, with its values."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

from . import script
from .command import Command, add_kernel
from .debugging import add_reference, reference_at
from .script import UsageError
from .settings import settings
from .terminal import Stages


def command_show(options: argparse.Namespace) -> int:
    """nki show"""
    from ..testing.show import show

    steps = parse_steps(options.steps)
    with ExitStack() as stack:
        stage = stack.enter_context(Stages())
        stack.enter_context(settings(options))
        kernel = stack.enter_context(script.kernel_at(options.kernel, stage))
        kernel, bound = script.call_of(kernel, script.parse_arguments(options.arg), options.lnc)
        reference = stack.enter_context(reference_at(options)) if options.reference else None
        if not options.no_values:
            bound.arguments.update(script.filled(bound.arguments))
        stage(f"{'tracing' if options.no_values else 'running'} {kernel.__name__} step by step")
        call = show(kernel, reference=reference, steps=steps, megabytes=options.megabytes)
        viewer = call(*bound.args, **bound.kwargs)
        if options.output or options.serve is None:
            stage("writing the page")
            file = options.output or f"{kernel.__name__}.html"
            viewer.save(file)
            print(f"wrote {file}: {viewer.recording.summary()}", file=sys.stderr)
    if options.serve is not None:
        from .serving import serve

        serve(viewer, options.serve)
    if viewer.error is not None:
        raise viewer.error
    return 0


def parse_steps(text: str | None) -> range | None:
    """Return the steps that `FIRST:LAST` names, as the page counts them: from 1, the last included."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise UsageError(f"--steps {text}: write FIRST:LAST, for example 1:400")
    return range(int(first) - 1, int(last))


def add_show(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser, json=False)
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (default: the kernel's name.html)")
    add_reference(parser, required=False)
    parser.add_argument("--steps", metavar="FIRST:LAST", help="the steps whose values the page holds")
    parser.add_argument(
        "--megabytes", type=float, default=24, metavar="N", help="of values in the page (default: 24)"
    )
    parser.add_argument(
        "--serve",
        type=int,
        nargs="?",
        const=0,
        metavar="PORT",
        help="serve the page on this machine; it then shows the values of every step in full",
    )
    parser.add_argument("--no-values", action="store_true", help="trace the kernel, do not run it")


COMMAND = Command(
    "show",
    "write a page that steps through a kernel",
    """\
Run a kernel on random numbers and write one page on which to step through it: what each
instruction reads and writes as heat maps, the tiles in SBUF, PSUM and HBM, loop counters, and
breakpoints on lines, NaNs, elements that were never written and differences from a reference.""",
    command_show,
    add_show,
    """\
examples:
  nki show softmax.py:softmax --arg x=float32[256,512]
  nki show softmax.py:softmax --arg x=float32[256,512] --reference check.py:reference
  nki show long.py:kernel --serve
  nki show long.py:kernel --steps 40000:41000 -o part.html""",
)
