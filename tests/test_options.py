"""Environment variables: read in one module, at each call (spec/language.md 5, 5.1)."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.options import VARIABLES as COMPARED
from nki.options import Options, _read, choose_machine, framework_debug, from_environment

VARIABLES = [
    "OPEN_NKI_STRICT",
    "OPEN_NKI_CACHE",
    "NKI_PRECISE_FP",
    "OPEN_NKI_MAX_ITERATIONS",
    "NEURON_RT_DEBUG_OUTPUT_DIR",
    "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE",
    "NEURON_LOGICAL_NC_CONFIG",
    "NEURON_RT_VIRTUAL_CORE_SIZE",
    "UNSAFE_FP8FNCAST",
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NKI_NC_VERSION",
    "OPEN_NKI_API",
]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.tiny
def test_an_empty_environment_gives_the_defaults():
    assert from_environment() == Options()
    assert (
        Options().precise_fp
        and Options().cache
        and not Options().strict
        and Options().max_iterations == 10_000_000
    )


def test_options_cannot_be_changed_and_take_keywords_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().strict = True
    with pytest.raises(TypeError):
        Options(True)


@pytest.mark.parametrize(
    "variable, field",
    [
        ("OPEN_NKI_STRICT", "strict"),
        ("NKI_PRECISE_FP", "precise_fp"),
        ("OPEN_NKI_CACHE", "cache"),
        ("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "reserve_psum_bank"),
        ("UNSAFE_FP8FNCAST", "unsafe_fp8"),
    ],
)
@pytest.mark.parametrize(
    "value, on",
    [("1", True), ("true", True), ("TRUE", True), ("0", False), ("false", False), (" no ", False)],
)
def test_switches(monkeypatch, variable, field, value, on):
    monkeypatch.setenv(variable, value)
    assert getattr(from_environment(), field) is on


@pytest.mark.parametrize("variable", VARIABLES)
def test_an_empty_variable_is_like_an_unset_one(monkeypatch, variable):
    monkeypatch.setenv(variable, "")
    assert from_environment() == Options() and choose_machine().name == "trn3"


@pytest.mark.parametrize("variable", ["NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"])
def test_the_configured_degree_has_two_spellings(monkeypatch, variable):
    monkeypatch.setenv(variable, "2")
    assert from_environment().logical_nc_config == 2


def test_the_newer_spelling_of_the_degree_wins(monkeypatch):
    monkeypatch.setenv("NEURON_RT_VIRTUAL_CORE_SIZE", "1")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert from_environment().logical_nc_config == 2


@pytest.mark.parametrize("variable", ["OPEN_NKI_MAX_ITERATIONS", "NEURON_LOGICAL_NC_CONFIG"])
@pytest.mark.parametrize("value", ["many", "1.5", "-1"])
def test_a_variable_that_must_be_a_number_is_checked(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(nki.NkiError) as caught:
        from_environment()
    assert caught.value.kind == "argument" and variable in str(caught.value) and value in str(caught.value)


def test_framework_debugging_is_not_an_option_of_a_call(monkeypatch):
    monkeypatch.setenv("NEURON_FRAMEWORK_DEBUG", "1")
    assert framework_debug() and from_environment() == Options()
    monkeypatch.setenv("NEURON_FRAMEWORK_DEBUG", "0")
    assert not framework_debug()


def test_text_and_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("OPEN_NKI_MAX_ITERATIONS", "12")
    monkeypatch.setenv("NEURON_RT_DEBUG_OUTPUT_DIR", str(tmp_path))
    assert from_environment().max_iterations == 12 and from_environment().debug_output_dir == str(tmp_path)


def test_the_platform_order(monkeypatch):
    assert choose_machine().name == "trn3" and choose_machine("trn1").name == "trn1"
    monkeypatch.setenv("NKI_NC_VERSION", "gen3")
    assert choose_machine().name == "trn2" and choose_machine("trn1").name == "trn1"
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen4")
    assert choose_machine().name == "trn3" == choose_machine("trn1").name


@pytest.mark.parametrize("value", ["0", "1"])
def test_ignored_variables_change_nothing(monkeypatch, value):
    for name in ("NKI_SIMULATOR", "NEURON_CC_FLAGS", "NKI_FRONTEND", "NEURON_RT_VISIBLE_CORES"):
        monkeypatch.setenv(name, value)
    assert from_environment() == Options() and nki.jit(lambda: 3)() == 3


def test_the_environment_is_read_at_each_call(monkeypatch):
    @nki.jit
    def kernel(x):
        nisa.tensor_copy(nl.ndarray((4, 4), nl.float32), nl.ndarray((4, 4), nl.float32))
        return nisa.get_nc_version().value

    x = np.zeros((1,), np.float32)
    with pytest.warns(nki.NkiWarning):
        assert kernel(x) == 4
    monkeypatch.setitem(os.environ, "OPEN_NKI_STRICT", "1")
    with pytest.raises(nki.NkiError, match="never written"):
        kernel(x)
    monkeypatch.delitem(os.environ, "OPEN_NKI_STRICT")
    monkeypatch.setitem(os.environ, "NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    with pytest.warns(nki.NkiWarning):
        assert kernel(x) == 2


def test_only_this_module_reads_the_environment():
    package = Path(nki.__file__).parent
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"os\.environ\b|getenv", path.read_text())
    }
    others = {
        "ranks/member.py",  # the process of a rank says how many of the cores are its own
        "tracebacks.py",  # the options use it
    }
    assert readers - others == {"options.py"}


def test_every_variable_that_makes_the_options_is_compared(monkeypatch):
    class Noting(dict):
        def get(self, name, default=None):
            names.add(name)
            return super().get(name, default)

    names: set[str] = set()
    monkeypatch.setattr(os, "environ", Noting())
    _read.__wrapped__(())
    assert names == set(COMPARED)
    os.environ["OPEN_NKI_THREADS"] = "3"  # not Python's own mapping
    assert from_environment().threads == 3
