"""nki advise: what would make a kernel faster, and what a device may refuse in it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from . import script
from .command import Command, add_kernel
from .profiling import make_profile
from .settings import settings
from .terminal import Stages, show

PARTS = ("kernel", "target", "cores", "total_us", "findings", "diagnostics")


def command_advise(options: argparse.Namespace) -> int:
    """nki advise"""
    with Stages() as stage, settings(options):
        made = make_profile(options.kernel, options, script.parse_arguments(options.arg), stage)
        stage("looking for advice")
        figures = made.to_dict()
    if options.json:
        print(json.dumps(advice(figures), indent=2))
        return 0
    from ..report.text import diagnostics, findings

    print(f"{figures['kernel']} on {figures['target']}: {figures['total_us']:.1f} us modelled")
    for part in (diagnostics(figures), findings(figures)):
        if part is not None:
            show(part)
    return 0


def advice(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the advice among the figures of a profile, and what limits the kernel."""
    return {**{name: figures[name] for name in PARTS}, "bound": figures["roofline"]["bound"]}


COMMAND = Command(
    "advise",
    "what would make a kernel faster",
    """\
Model the run of a kernel, as nki profile does, and print what would make it faster: each
finding with its lines and the time that it would gain.""",
    command_advise,
    add_kernel,
    """\
examples:
  nki advise matmul.py:tiled --arg lhsT=float32[8192,4096] --arg rhs=float32[8192,8192]""",
)
