"""nki explain-cache: whether a second call skips the kernel's Python, and if not, why."""

from __future__ import annotations

import argparse
import json

from . import script
from .command import Command, add_json, add_targets


def command_explain_cache(options: argparse.Namespace) -> int:
    """nki explain-cache"""
    found: list[tuple[str, str | None]] = []
    for spec in options.kernel:
        for target in script.targets(spec):
            with script.loaded(target.place) as module:
                kernels = script.kernels_of(module)
                if target.name or not (kernels or target.among_others):
                    kernel = script.find_kernel(module, target.place, target.name)
                    kernels = {kernel.__name__: kernel}
                found += [(name, kernel.cache_info().reason) for name, kernel in kernels.items()]
    if options.json:
        facts = [{"kernel": name, "cacheable": why is None, "reason": why} for name, why in found]
        print(json.dumps(facts, indent=2))
        return 0
    for name, reason in found:
        print(f"{name}: cached" if reason is None else f"{name}: its Python runs at every call\n  {reason}")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    add_json(parser, "list")


COMMAND = Command(
    "explain-cache",
    "why the Python of a kernel runs at every call",
    """\
From the second call on, the Python of a kernel is skipped if everything that it can read is
known: print, for each kernel, that it is, or the line that uses something else.""",
    command_explain_cache,
    add_arguments,
)
