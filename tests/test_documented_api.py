"""Every documented name of nki.language and nki.isa exists, with the documented parameters and defaults."""

from __future__ import annotations

import enum
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import nki.isa
import nki.language

API = json.loads((Path(__file__).parent / "data" / "documented_api.json").read_text())
MODULES = {"nki.language": nki.language, "nki.isa": nki.isa}


def parameters(function: Any, method: bool = False) -> list[list[str | None]]:
    """[name, default] of each parameter as the documentation writes them."""
    shown: list[list[str | None]] = []
    for p in list(inspect.signature(function).parameters.values())[1 if method else 0 :]:
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        shown.append([stars + p.name, None if p.default is p.empty else default(p.default)])
    return shown


def default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        is_region = isinstance(value, nki.language.MemoryRegion)
        return value.name if is_region else f"{type(value).__name__}.{value.name}"
    return repr(value).removeprefix("nl.")


def agree(function: Any, documented: list[list[str | None]], method: bool = False) -> None:
    actual = parameters(function, method)
    assert [name for name, _ in actual] == [name for name, _ in documented]
    for (name, found), (_, wanted) in zip(actual, documented, strict=True):
        left_open = wanted == "..." and found is not None
        assert found == wanted or left_open, name


FUNCTIONS = [(module, name) for module in MODULES for name in API[module]["functions"]]
CLASSES = [(module, name) for module in MODULES for name in API[module]["classes"]]
CONSTANTS = [(module, name) for module in MODULES for name in API[module]["constants"]]


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_a_function_has_the_documented_parameters(module, name):
    function = getattr(MODULES[module], name)
    assert callable(function) and inspect.getdoc(function)
    agree(function, API[module]["functions"][name])


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_a_class_has_the_documented_members_and_methods(module, name):
    cls, documented = getattr(MODULES[module], name), API[module]["classes"][name]
    for member, value in documented["members"].items():
        assert hasattr(cls, member), member
        if value is not None:
            assert repr(getattr(cls, member).value) == value, member
    for method, wanted in documented["methods"].items():
        agree(getattr(cls, method), wanted, method=True)


@pytest.mark.tiny
@pytest.mark.parametrize(("module", "name"), CONSTANTS)
def test_a_constant_exists(module, name):
    assert hasattr(MODULES[module], name)


def test_language_functions_are_exported():
    documented = set(API["nki.language"]["functions"]) | set(API["nki.language"]["constants"])
    assert documented <= set(nki.language.__all__)
