"""nki debug: the first tile of a result that differs from a reference, and the line that wrote it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import script
from .command import WRONG_KERNEL, Command, add_kernel
from .script import UsageError
from .settings import settings
from .terminal import Stages, show_message


def command_debug(options: argparse.Namespace) -> int:
    """nki debug"""
    from ..testing.debug import first_difference

    with Stages() as stage, settings(options), script.kernel_at(options.kernel, stage) as kernel:
        kernel, bound = script.call_of(kernel, script.parse_arguments(options.arg), options.lnc)
        bound.arguments.update(script.filled(bound.arguments))
        with reference_at(options) as reference:
            stage(f"running {kernel.__name__} step by step")
            found = first_difference(kernel, reference, bound.args, terms=options.terms, **bound.kwargs)
    if options.json:
        print(json.dumps(None if found is None else found.to_dict(), indent=2))
    elif found is None:
        print(f"{kernel.__name__} agrees with {script.target(options.reference).name}")
    else:
        show_message(str(found), first="bold red")
    options.code = 0 if found is None else WRONG_KERNEL
    return options.code


@contextmanager
def reference_at(options: argparse.Namespace) -> Iterator[Callable[..., Any]]:
    """Load the function of `--reference file.py:function`, for as long as it is used."""
    place = script.target(options.reference)
    if place.name is None:
        raise UsageError(f"--reference {options.reference}: write file.py:function")
    with script.loaded(place.place) as module:
        reference = getattr(module, place.name, None)
        if not callable(reference):
            raise UsageError(f"--reference: there is no function {place.name} in {place}")
        yield with_tensors(reference) if options.torch else reference


def with_tensors(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of arrays that calls a function of PyTorch's tensors."""
    import torch

    return lambda *arrays: reference(*(torch.as_tensor(a) if hasattr(a, "shape") else a for a in arrays))


def add_reference(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add the options that name a reference."""
    parser.add_argument(
        "--reference",
        required=required,
        metavar="file.py:function",
        help="what the results should be, from the same arguments in float64",
    )
    parser.add_argument("--torch", action="store_true", help="give the reference tensors of PyTorch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    add_reference(parser, required=True)
    parser.add_argument(
        "--terms", type=int, metavar="N", help="the length of its sums (default: from the shapes)"
    )


COMMAND = Command(
    "debug",
    "find the first tile that differs from a reference",
    """\
Run a kernel step by step on random numbers and compare its results with a reference. If they
differ by more than their dtype and the length of their sums allow, print the first wrong tile,
the line that wrote it and the lines that computed it with the range of their values. The exit
code is 1 if they differ.""",
    command_debug,
    add_arguments,
    """\
examples:
  nki debug softmax.py:softmax --arg x=float32[200,300] --reference check.py:reference""",
)
