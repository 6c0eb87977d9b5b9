"""`nki run`: a script, or a module, that was written for a Trainium machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nki.cli.command import Command
from nki.cli.script import UsageError, run_as_main

from ..older_names import allow_in_scripts

IGNORED = ("NEURON_CC_FLAGS", "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "XLA_SAVE_TENSORS_FILE")
NARROWING = ("XLA_DOWNCAST_BF16", "XLA_USE_BF16", "NEURON_RT_STOCHASTIC_ROUNDING_EN")
CLOCKS = "latencies and profiles of kernels are modelled, a script's own clock measures this machine"
DROPPED = {"PJRT_DEVICE": "NEURON", "JAX_PLATFORMS": "NEURON"}


def command_run(options: argparse.Namespace) -> int:
    """nki run"""
    from .. import stubs  # slow to import: `nki --help` does without

    if not options.what:
        raise UsageError("name a script: nki run script.py [args], or a module: nki run -m pytest [args]")
    for name in options.without:
        if name not in stubs.ROOTS:
            raise UsageError(f"--without {name}: there is no such stub; there are {', '.join(stubs.ROOTS)}")
    prepare_environment()
    stubs.install(without=options.without)
    allow_in_scripts()
    try:
        with tools_on_path():
            return run_as_main(options.what, options.module)
    finally:
        allow_in_scripts(False)
        if stubs.used():
            print(
                f"nki run: import stubs of Open NKI used: {', '.join(stubs.used())}; {CLOCKS}",
                file=sys.stderr,
            )


def prepare_environment() -> None:
    """Report the variables that have no effect here; child processes get the stubs too."""
    for name in [n for n in IGNORED if n in os.environ]:
        print(f"nki run: {name} has no effect here", file=sys.stderr)
    for name in [n for n in NARROWING if os.environ.get(n, "0") not in ("0", "")]:
        print(f"nki run: {name} is ignored: values keep their dtype, rounding is to nearest", file=sys.stderr)
    for name, value in DROPPED.items():
        if os.environ.get(name, "").upper() == value:
            del os.environ[name]
            print(f"nki run: {name}={value} is dropped: frameworks run on the CPU", file=sys.stderr)
    children = str(Path(__file__).parent.parent / "stubs" / "children")
    paths = [children, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@contextlib.contextmanager
def tools_on_path() -> Iterator[None]:
    """Add `neuron-profile` and `neuron-explorer` to the path, where they are not installed."""
    missing = [tool for tool in ("neuron-profile", "neuron-explorer") if shutil.which(tool) is None]
    before = os.environ.get("PATH", "")
    with tempfile.TemporaryDirectory(prefix="nki-run-") as folder:
        for tool in missing:
            path = Path(folder) / tool
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nki {tool} "$@"\n')
            path.chmod(0o755)
            path.with_suffix(".cmd").write_text(f'@"{sys.executable}" -m nki {tool} %*\n')  # for Windows
        os.environ["PATH"] = os.pathsep.join([before, folder])
        try:
            yield
        finally:
            os.environ["PATH"] = before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="use no stub for this package"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("what", nargs=argparse.REMAINDER, metavar="script.py [args]", help="what to run")


COMMAND = Command(
    "run",
    "run a script written for a device",
    """\
Run a script, or with -m a module, that was written for a Trainium machine. Packages of
Neuron that are not installed have import stubs: neuronxcc (the old NKI), torch_xla,
torch_neuronx, neuronx_distributed. The exit code is the script's.""",
    command_run,
    add_arguments,
    """\
examples:
  nki run train.py --steps 3
  nki run -m pytest tests/test_kernels.py
  nki run --without torch_xla script.py""",
)
