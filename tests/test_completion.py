"""Editors complete public names, with their signatures and texts: what jedi finds by reading alone."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import signatures

jedi = pytest.importorskip("jedi")

BEGIN = '''\
import nki
import nki.isa as nisa
import nki.language as nl
import nki.collectives as ncc
from nkilib.core.cumsum import cumsum

tile = nl.ndarray((128, 512), nl.float32)


@nki.jit
def jitted(x):
    """Gives the same again."""
    return x


@nki.jit(platform_target="trn2")
def configured(x, y=2):
    """This is another one."""
    return x


'''


@pytest.mark.parametrize("path", signatures.files(), ids=str)
def test_the_stubs_match_the_code(path):
    made = signatures.files()[path]
    assert (signatures.SOURCES / path).read_text(encoding="utf-8") == made, "stale: run `make docs`"


def script(line: str):
    return jedi.Script(BEGIN + line), BEGIN.count("\n") + 1, len(line)


def completed(line: str) -> set[str]:
    asked, row, column = script(line)
    return {found.name for found in asked.complete(row, column)}


@pytest.mark.parametrize(
    "line, names",
    [
        ("nki.", {"jit", "profile", "show", "TensorSpec", "simulate"}),
        ("nisa.", {"nc_matmul", "dma_copy", "activation", "tensor_tensor"}),
        ("nl.", {"ndarray", "add", "affine_range", "float32", "shared_hbm", "tile_size"}),
        ("ncc.", {"all_reduce", "all_gather", "rank_id"}),
        ("tile.", {"shape", "dtype", "reshape"}),
        ("tile[0:64].", {"shape", "dtype", "reshape"}),
        ("nl.add(tile, tile).", {"shape", "dtype", "reshape"}),
        ("nl.tile_size.", {"pmax", "gemm_moving_fmax"}),
        ("jitted.", {"run", "trace", "profile"}),
    ],
)
def test_names_are_completed(line, names):
    assert names - completed(line) == set()


@pytest.mark.parametrize("short, module", [("nisa", "nki.isa"), ("nl", "nki.language")])
def test_nothing_private_is_completed(short, module):
    shown = {name for name in completed(f"{short}.") if not name.startswith("_")}
    home = importlib.import_module(module)
    modules = {info.name for info in pkgutil.iter_modules(home.__path__)}
    assert shown - modules - set(getattr(home, "_LEGACY", ())) == set(home.__all__) - modules


@pytest.mark.parametrize(
    "call, parameter, text",
    [
        ("nisa.nc_matmul(", "stationary", "stationary"),
        ("nl.add(", "x", "x + y"),
        ("nl.exp(", "dtype", "e to the power of x"),
        ("nl.ndarray(", "buffer", "undefined contents"),
        ("ncc.all_reduce(", "replica_group", "ranks"),
        ("nki.jit(", "fn", "kernel"),
        ("cumsum(", "axis", "summed in float32"),
        ("jitted(", "x", "the same again"),
        ("configured(", "y", "another one"),
    ],
)
def test_signatures_and_texts_are_shown(call, parameter, text):
    """Of a kernel those of its function, not of the class Kernel."""
    asked, row, column = script(call)
    (shown, *_) = asked.get_signatures(row, column)
    assert parameter in shown.to_string() and text in shown.docstring()


@pytest.mark.parametrize(
    "name", ["nisa.oob_mode", "nisa.engine", "nisa.VirtualRegister", "nl.NkiTensor", "ncc.ReplicaGroup"]
)
def test_the_text_of_a_class_is_what_help_shows(name):
    asked, row, column = script(name)
    (shown, *_) = asked.infer(row, column)
    home = {"nisa": "nki.isa", "nl": "nki.language", "ncc": "nki.collectives"}[name.partition(".")[0]]
    text = inspect.getdoc(getattr(importlib.import_module(home), name.partition(".")[2]))
    assert text in shown.docstring() and "Example:" in text and "See also:" in text
