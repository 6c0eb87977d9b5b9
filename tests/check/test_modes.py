"""Every kind of error and warning is reported alike in every mode: kind, text and line.

The kernels are the wrong ones of the pages of `nki explain`. A mode changes how a call runs, not what is
wrong with the kernel. Where a mode cannot show a kind, or shows it in other words, the reason is listed here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import linecache
import os
import re
import warnings
from typing import NamedTuple

import numpy as np
import pytest

import nki
from nki.check.pages import PAGES, PRELUDE
from nki.check.python_rules import RULES
from nki.ranks import run_ranks

# what AWS's front ends and releases refuse is found in the source, by `nki check`; no call reports it
STATIC = {*RULES, *(kind for kind in PAGES if kind.startswith("release-"))}
SAMPLES = {kind: page for kind, page in PAGES.items() if page.wrong and kind not in STATIC}


class Found(NamedTuple):
    """A warning or an error of a sample."""

    kind: str
    text: str  # with the line
    raised: bool


# ---- running a sample ----------------------------------------------------------------------------


class Rewritten(ast.NodeTransformer):
    """Calls of kernels by `call_kernel`; `reads`: kernels read a value first. Lines stay as they are."""

    def __init__(self, reads):
        self.reads = reads

    def visit_FunctionDef(self, node):
        is_kernel = node.name == "kernel" and node.args.args
        if self.reads and is_kernel:
            read = ast.parse(f"repr({node.args.args[0].arg})").body[0]
            for part in ast.walk(read):
                ast.copy_location(part, node.body[0])
            node.body.insert(0, read)
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        if not re.match(r"kernel(\[.*\]|\.with_schedule\(.*\))?\(", ast.unparse(node)):
            return node
        name = ast.Name("call_kernel", ast.Load())
        return ast.copy_location(ast.Call(name, [node.func, *node.args], node.keywords), node)


def called(kernel, *args):
    return kernel(*args)


def called_twice(kernel, *args):
    with contextlib.suppress(nki.NkiError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel(*args)
    return kernel(*args)


def called_on_two_cores(kernel, *args):
    return (kernel if kernel.grid else kernel[2])(*args)


def called_on_two_ranks(kernel, *args):
    copies = [args, tuple({id(a): np.copy(a) for a in args}[id(a)] for a in args)]
    return run_ranks(kernel, 2, copies)


def findings(kind, call=called, reads=False, **environment):
    """What the wrong kernel of a page reports, in order."""
    page = SAMPLES[kind]
    name, source = f"<sample {kind}>", PRELUDE + page.wrong_code
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    tree = ast.fix_missing_locations(Rewritten(reads).visit(ast.parse(source)))
    before = os.environ.copy()
    os.environ.update(environment, NEURON_PLATFORM_TARGET_OVERRIDE=page.target)
    raised = []
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            exec(compile(tree, name, "exec"), {"__name__": "sample", "call_kernel": call})
    except nki.NkiError as problem:
        raised.append(Found(problem.kind, shown(problem), True))
    finally:
        os.environ.clear()
        os.environ.update(before)
    ours = [w for w in warned if issubclass(w.category, nki.NkiWarning)]
    return [Found(w.category.kind, shown(w.message), False) for w in ours] + raised


def shown(message):
    """The text without what names a core or a rank, and without lines of this file."""
    text = re.sub(r"\A(rank=\d+: )", "", str(message))
    text = re.sub(r"\n  = (raised on core|rank \d also failed).*", "", text)
    return re.sub(rf"\n  --> {re.escape(__file__)}.*\n.*", "", text)


@functools.cache
def expected(kind):
    return findings(kind)


# ---- modes ---------------------------------------------------------------------------------------

UNCACHED = {"OPEN_NKI_CACHE": "0"}
MODES = {
    "cached": {"call": called_twice},
    "uncached": UNCACHED,
    "eager": {"reads": True},
    "reference": {"OPEN_NKI_EXECUTOR": "reference"},
    "fused": {"OPEN_NKI_EXECUTOR": "fused"},
    "torch": {"OPEN_NKI_EXECUTOR": "torch"},
    "two cores": {"call": called_on_two_cores},
    "ranks": {"call": called_on_two_ranks},
    "uncached ranks": {"call": called_on_two_ranks, **UNCACHED},
}

# kinds that cannot occur in a mode, and why
NO_TWO_CORES = "trn1 launches kernels on one core"
ONE_RANK = "its group or its error is about one rank"
WITHOUT_KERNEL = "no kernel is called"
CANNOT = {
    "two cores": {
        **dict.fromkeys(["generation", "bias-constant", "scalar-copy", "nan-transpose"], NO_TWO_CORES),
        "lnc": "the instruction needs two cores: on two it is right",
        "lnc-config": "the variable asks for two cores",
        "no-effect": "the race of the two cores is reported, and it is a hint where nothing else is found",
        "loop-local-tensor": "a shared tensor of two cores belongs to no loop",
    },
    "eager": {
        "no-effect": "a kernel that reads values may print or store them",
    },
    "ranks": {
        **dict.fromkeys(["collective-io-tensor", "collective-unnamed"], ONE_RANK),
        **dict.fromkeys(["priority-ignored", "lnc-one-sided"], ONE_RANK),
        "deadlock": "the error is a table of all ranks",
        "read-only-input": "every rank has inputs of its own",
    },
}
NEVER_STRICT = {
    "no-effect": "no compiler refuses it",
    "inner-target": "strict mode refuses platform_target= before",
}
FILES = "about a file or an installation, not a kernel"
FRAMEWORKS = "about arguments of PyTorch or JAX: tests/frameworks"
NO_KERNEL = {
    **dict.fromkeys(
        ["baseline-file", "costs-file", "profile-file", "program-file", "missing-package"], FILES
    ),
    **dict.fromkeys(["no-compiler", "python-error", "tune-space"], FILES),
    **dict.fromkeys(["framework", "framework-mix", "device", "device-copy", "lost-write"], FRAMEWORKS),
    **dict.fromkeys(["no-backward", "gradient"], FRAMEWORKS),
    **dict.fromkeys(["rank-lost", "rank-timeout"], "about processes: tests/ranks/test_attach.py"),
    **dict.fromkeys(["hardware-limit", "not-supported"], "tests/collectives/test_one_rank.py"),
    "device-graph": "about a GPU: tests/backends/torch/test_graphs.py",
    "cache-size": "about the cache of the process: tests/kernel/test_cache.py",
    "untested-on-hardware": "numpy has no array of these dtypes outside of nki.mx",
    "ap-dims": "no tile has more than four free dimensions: a larger machine might",
    "partition-stride": "kept for older code that catches it",
    "not-implemented-yet": "about instructions that are being written",
    "loop-trips": "of profiles from shapes: tests/ir/test_program.py",
}
CANNOT["uncached ranks"] = CANNOT["ranks"]


def reason(mode, kind):
    """Why a kind is not compared in a mode; "" if it is."""
    if kind == "other-call":
        return "the sample itself calls twice, and depends on which call is the first" * (mode == "cached")
    code = SAMPLES[kind].wrong_code
    if "def kernel" not in code:
        return WITHOUT_KERNEL * bool(MODES[mode].keys() & {"call", "reads"})
    if not re.search(r"^kernel(\[\d\]|\.with_schedule\(.*\))?\(", code, re.MULTILINE):
        return "the sample does not call the kernel itself" * ("call" in MODES[mode])
    return CANNOT.get(mode, {}).get(kind, "")


def compared(mode, kind, found):
    """What is compared: a kernel that two cores run alike races as well, a torch device copies."""
    if mode == "two cores":
        found = [f._replace(text=f.text.replace("shared_hbm, arg", "private_hbm, arg")) for f in found]
        return [f for f in found if f.kind == kind]
    return [f for f in found if f.kind != "device-copy"]


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_kind_is_reported_alike_in_every_mode(kind):
    assert kind in [f.kind for f in expected(kind)]
    for mode, settings in MODES.items():
        if not reason(mode, kind):
            found = findings(kind, **settings)
            assert compared(mode, kind, found) == compared(mode, kind, expected(kind)), mode


STRICT = {"traced": {}, **MODES}
del STRICT["two cores"]  # the first finding may be the race


@pytest.mark.parametrize("kind", [kind for kind in SAMPLES if kind not in NEVER_STRICT])
def test_strict_mode_raises_what_is_a_warning_else(kind):
    first = expected(kind)[0]._replace(raised=True)
    for mode, settings in STRICT.items():
        if mode == "traced" or not reason(mode, kind):
            found = findings(kind, **settings, OPEN_NKI_STRICT="1")
            assert [f for f in found if f.raised] == [first], mode


def test_a_hint_stays_a_warning_in_strict_mode():
    assert findings("no-effect", OPEN_NKI_STRICT="1") == expected("no-effect")


def test_the_reasons_are_about_kinds_with_a_kernel():
    assert all(kinds.keys() <= SAMPLES.keys() for kinds in [*CANNOT.values(), NEVER_STRICT])


@pytest.mark.parametrize("kind", [kind for kind, page in PAGES.items() if not page.wrong])
def test_a_kind_without_a_kernel_has_a_reason(kind):
    assert kind in NO_KERNEL
