"""What every command sets while it runs: the platform, warnings, and where its output goes."""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Iterator

from ..errors import NkiError, NkiWarning
from ..machine import generations
from ..options import options as chosen
from .script import UsageError


@contextlib.contextmanager
def settings(options: argparse.Namespace) -> Iterator[None]:
    """Select the platform, silence warnings, and reserve stdout for the JSON object."""
    target = getattr(options, "target", None)
    with contextlib.ExitStack() as stack:
        if target is not None:
            stack.enter_context(chosen(target=platform_named(target)))
        if getattr(options, "without", ()):
            stack.enter_context(chosen(without=tuple(options.without)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", NkiWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        if getattr(options, "json", False):
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def platform_named(name: str) -> str:
    try:
        return generations.find(name).name
    except NkiError as problem:
        raise UsageError(f"--target: {problem.message}\n  help: {problem.help}") from None
