"""nki new: a kernel and its test to start from."""

from __future__ import annotations

import argparse
import keyword
from pathlib import Path

from .command import Command
from .script import UsageError

KERNEL = '''\
"""{name}: y = 2 x. Write what it computes, its shapes and its dtypes here."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def {name}(x):
    # nki: check x=float32[200,512]
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for first in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - first)
        tile = nl.ndarray((count, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[first : first + count, :])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[first : first + count, :], src=tile)
    return out
'''
TEST = '''\
"""{name} against numpy in float64."""

import numpy as np
import pytest
from {name} import {name}


def reference(x):
    return 2 * x.astype(np.float64)


@pytest.mark.parametrize("shape", [(128, 512), (1, 1), (200, 300)])
def test_{name}(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose({name}(x), reference(x), rtol=1e-6)
'''
NEXT = {
    "pytest test_{name}.py": "is it right?",
    "nki check {name}.py": "would the compilers take it?",
    "nki profile {name}.py:{name}": "where would the time go?",
}


def command_new(options: argparse.Namespace) -> int:
    """nki new"""
    name = options.kernel
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name} is no name of a Python function")
    files = {Path(f"{name}.py"): KERNEL, Path(f"test_{name}.py"): TEST}
    for file in files:
        if file.exists():
            raise UsageError(f"there is a file {file} already; nothing was written")
    for file, text in files.items():
        file.write_text(text.format(name=name), encoding="utf-8")
        print(f"wrote {file}")
    commands = {command.format(name=name): question for command, question in NEXT.items()}
    print("next:")
    for command, question in commands.items():
        print(f"  {command:{max(map(len, commands))}}   {question}")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", metavar="NAME", help="the name of the kernel and of its file")


COMMAND = Command(
    "new",
    "write a kernel and its test to start from",
    """\
Write NAME.py with a kernel and test_NAME.py with its test, in this folder.""",
    command_new,
    add_arguments,
    """\
examples:
  nki new softmax && pytest test_softmax.py""",
)
