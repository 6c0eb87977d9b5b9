"""The table of the library, the names it gives out, and the examples in the docstrings."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import nkilib
from documented_kernels import checked
from nkilib import catalogue
from nkilib.catalogue.options import ADDED
from support import target

BUILT = [kernel for kernel in catalogue.kernels() if kernel.is_built]
VARYING = ("permute_a2av", "unpermute_a2av")  # all_to_all_v always warns of what hardware takes
MISSING = [kernel for kernel in catalogue.kernels() if not kernel.is_built]


@pytest.mark.tiny
def test_the_table_has_every_page_in_order():
    pages = [row.page for row in catalogue.TABLE if re.fullmatch(r"L\d\d", row.page)]
    assert pages == sorted(pages) and set(pages) == {f"L{n:02}" for n in range(1, 47)}


def test_every_documented_kernel_has_its_release_and_backwards_are_kernels():
    known = {kernel.name for kernel in catalogue.kernels()}
    for kernel in catalogue.kernels():
        assert kernel.is_extension or re.fullmatch(r"2\.\d\d", kernel.release), kernel.name
        assert not kernel.backward or kernel.backward in known


@pytest.mark.parametrize("release", ADDED)
def test_options_that_a_release_added_are_parameters_of_older_kernels(release):
    known = {kernel.name: kernel for kernel in BUILT}
    for name, options in ADDED[release].items():
        assert known[name].release < release, name
        assert set(options.split()) - inspect.signature(known[name].target).parameters.keys() == set(), name
        assert all(known[name].options[option] == release for option in options.split())


def test_the_differentiable_functions_are_those_of_autograd():
    pytest.importorskip("torch")
    autograd = importlib.import_module("nkilib.autograd")
    assert sorted(autograd.__all__) == sorted(catalogue.DIFFERENTIABLE)
    assert {kernel.name for kernel in catalogue.kernels() if kernel.differentiable} == set(autograd.__all__)


def test_every_name_occurs_once():
    names = [kernel.name for kernel in catalogue.kernels()]
    assert len(names) == len(set(names))


def test_every_entry_has_a_meaning_of_one_line():
    assert [k.name for k in catalogue.kernels() if not k.meaning] == []


@pytest.mark.parametrize("kernel", BUILT, ids=lambda k: k.name)
def test_a_built_kernel_is_found_by_its_name(kernel):
    kernels = importlib.import_module("nkilib.kernels")
    assert getattr(kernels, kernel.name) is getattr(importlib.import_module(kernel.module), kernel.name)
    assert kernel.name in dir(kernels)


@pytest.mark.parametrize("kernel", MISSING, ids=lambda k: k.name)
def test_a_kernel_that_is_not_built_raises_on_import(kernel):
    with pytest.raises(ImportError, match=kernel.name):
        exec(f"from nkilib.kernels import {kernel.name}")
    with pytest.raises(AttributeError, match=f"{kernel.name} .* is not built yet"):
        catalogue.find(kernel.name)


def test_an_unknown_kernel_raises():
    with pytest.raises(AttributeError, match="nkilib has no kernel named 'matmul'; `nki kernels` lists them"):
        catalogue.find("matmul")


def functions():
    return [kernel for kernel in BUILT if not inspect.isclass(kernel.target)]


@pytest.mark.parametrize("kernel", functions(), ids=lambda k: k.name)
def test_the_example_of_a_docstring_runs_and_passes_nki_check(kernel):
    """Of the kernel's own, or where one serves a family of its module's or of the module's first kernel's."""
    home = inspect.getmodule(kernel.target)
    first = next(other for other in BUILT if other.module == kernel.module)
    docstrings = map(inspect.getdoc, (kernel.target, home, first.target))
    texts = [text for text in docstrings if text and ">>>" in text]
    assert texts, f"{kernel.name}: neither its docstring nor its module's has an example"
    known = {"np": np, **vars(home)}
    example = doctest.DocTestParser().get_doctest(texts[0], known, kernel.name, None, 0)
    said: list[str] = []
    allowed = ("hardware-limit",) if kernel.name in VARYING else ()
    with target("trn2"), checked(Path(nkilib.__file__).parent, allowed):
        outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert outcome.failed == 0, "".join(said)


def test_a_kernel_that_the_documented_library_lacks_is_marked(monkeypatch):
    monkeypatch.setattr(catalogue, "TABLE", list(catalogue.TABLE))
    catalogue.register(catalogue.CatalogueRow(catalogue.EXTENSION, "core.cumsum.cumsum", "cumsum_ref"))
    try:
        added = catalogue.kernels()[-1]
        assert added.is_extension and added.is_built and added.name == "cumsum_ref"
        assert catalogue.find("cumsum_ref") is added.target
    finally:
        catalogue.kernels.cache_clear()
