"""States of functions: every change is found, by the collector's report and by the attributes alike."""

from __future__ import annotations

import gc
import sys
import weakref
from ctypes import c_void_p, sizeof

import pytest

from nki.kernel import identities


def make():
    def function(x, y=1, *, z=2):
        return x

    return function


def other(x, y=1, *, z=2):
    return y


CHANGES = {
    "code": lambda f: setattr(f, "__code__", other.__code__),
    "defaults": lambda f: setattr(f, "__defaults__", (True,)),  # equal to the old ones
    "no defaults": lambda f: setattr(f, "__defaults__", None),
    "keyword defaults": lambda f: setattr(f, "__kwdefaults__", {"z": 2}),
    "attribute": lambda f: setattr(f, "mark", 1),
    "attributes": lambda f: setattr(f, "__dict__", {}),
    "name": lambda f: setattr(f, "__name__", "another"),
    "qualified name": lambda f: setattr(f, "__qualname__", "another"),
}


@pytest.fixture(params=[True, False], ids=["reported", "by attribute"])
def is_reported(request, monkeypatch):
    monkeypatch.setattr(identities, "IS_STATE_REPORTED", request.param)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_root", [True, False])
def test_a_change_of_a_function_is_found(is_reported, change, is_root):
    functions = [make() for _ in range(3)]
    states = identities.FunctionStates(functions, functions[1] if is_root else None)
    assert states.hold() and states.hold()
    change(functions[1])
    assert not states.hold()


def test_a_doc_string_is_no_state(is_reported):
    function = make()
    states = identities.FunctionStates([function], None)
    function.__doc__ = "Another text."
    assert states.hold()


def test_the_root_is_not_kept_alive(is_reported):
    root = make()
    states, gone = identities.FunctionStates([make(), root], root), weakref.ref(root)
    del root
    gc.collect()
    assert gone() is None
    with pytest.raises(AttributeError):
        states.hold()


@pytest.mark.parametrize("items_follow", [True, False])
def test_addresses_are_those_of_the_objects(monkeypatch, items_follow):
    monkeypatch.setattr(identities, "ITEMS_FOLLOW", items_follow)
    values = [1, 1.0, True, "text", None, (1,), [2], make(), int]
    expected = b"".join(id(value).to_bytes(sizeof(c_void_p), sys.byteorder) for value in values)
    assert identities.addresses(values) == identities.addresses(iter(values)) == expected
    assert identities.addresses(()) == b""
