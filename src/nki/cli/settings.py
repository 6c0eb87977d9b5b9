"""What every command sets for as long as it runs: the platform, warnings, where its output goes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

from ..errors import NkiError, NkiWarning
from ..hardware import generations
from .script import UsageError

OVERRIDE = "NEURON_PLATFORM_TARGET_OVERRIDE"


@contextlib.contextmanager
def settings(options: argparse.Namespace) -> Iterator[None]:
    """The platform asked for; warnings kept for the report; stdout kept for the JSON object."""
    target = getattr(options, "target", None)
    with contextlib.ExitStack() as stack:
        if target is not None:
            stack.enter_context(platform(platform_named(target)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", NkiWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        if getattr(options, "json", False):
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def platform(name: str) -> Iterator[None]:
    """Kernels inside run on this platform."""
    before = os.environ.get(OVERRIDE)
    os.environ[OVERRIDE] = name
    try:
        yield
    finally:
        os.environ.pop(OVERRIDE, None)
        if before is not None:
            os.environ[OVERRIDE] = before


def platform_named(name: str) -> str:
    try:
        return generations.find(name).name
    except NkiError as problem:
        raise UsageError(f"--target: {problem.message}\n  help: {problem.help}") from None
