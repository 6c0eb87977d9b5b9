"""Every change of a function, cell, class or dict is found, by words of memory and by attributes alike."""

from __future__ import annotations

import enum
import gc
import random
import sys
import types
import weakref
from ctypes import c_void_p, sizeof

import pytest

from nki.kernel import identities, words


class Plain:
    pass


def make(content=0):
    def function(x, y=1, *, z=2):
        return x, content

    return function


def other(content=0):
    def function(x, y=1, *, z=2):
        return y, content

    return function


CHANGES = {
    "code": lambda f: setattr(f, "__code__", other().__code__),
    "defaults": lambda f: setattr(f, "__defaults__", (True,)),  # equal to the old ones
    "no defaults": lambda f: setattr(f, "__defaults__", None),
    "keyword defaults": lambda f: setattr(f, "__kwdefaults__", {"z": 2}),
    "attribute": lambda f: setattr(f, "mark", 1),
    "attributes": lambda f: setattr(f, "__dict__", {}),
    "name": lambda f: setattr(f, "__name__", "another"),
    "qualified name": lambda f: setattr(f, "__qualname__", "another"),
}


@pytest.fixture(params=[True, False], ids=["words", "attributes"])
def by_words(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(words, "HAS_WORDS", False)
        monkeypatch.setattr(words, "HAS_TAGS", False)


def states_of(functions=(), cells=(), classes=(), objects=(), empty=(), root=None):
    return identities.States(functions, cells, classes, objects, empty, root)


def test_this_python_has_words():
    known = sys.implementation.name == "cpython" and sizeof(c_void_p) == 8
    assert words.HAS_WORDS or not known
    with_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert words.HAS_TAGS or not (known and with_lock and sys.version_info[:2] in words.TAGGED)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_root", [True, False])
def test_a_change_of_a_function_is_found(by_words, change, is_root):
    functions = [make() for _ in range(3)]
    states = states_of(functions, root=functions[1] if is_root else None)
    assert states.hold() and states.hold()
    change(functions[1])
    assert not states.hold()


def test_a_change_of_a_cell_is_found(by_words):
    (cell,) = make(content := [1]).__closure__
    states = states_of(cells=[cell])
    cell.cell_contents = [1]
    assert not states.hold()
    cell.cell_contents = content
    assert states.hold()


@pytest.mark.parametrize("part, value", [("__bases__", (Plain,)), ("__name__", "A"), ("__qualname__", "A")])
def test_a_change_of_a_class_is_found(by_words, part, value):
    base = type("Base", (), {})
    derived = type("Derived", (base,), {})
    states = states_of(classes=[derived])
    assert states.hold()
    setattr(derived, part, value)
    assert not states.hold()


class Another:
    pass


class Tagged(enum.Enum):
    a = 1


class Number(int):
    pass


class Pair(tuple):
    pass


OBJECTS = [Plain(), Tagged.a, *map(Number, (0, 1, -7, 1 << 30, -(1 << 95))), Pair(), Pair((1, 2, 3))]


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: type(one).__name__)
def test_another_dict_of_an_object_is_found(by_words, one):
    attributes = vars(one)
    assert words.state_of(one, attributes) or not words.HAS_WORDS
    states = states_of(objects=[one, Plain()])
    assert states.hold()
    object.__setattr__(one, "__dict__", dict(attributes))
    assert not states.hold()
    object.__setattr__(one, "__dict__", attributes)
    assert states.hold()


@pytest.mark.parametrize("one", OBJECTS[:2], ids=lambda one: type(one).__name__)
def test_another_class_of_an_object_is_found(by_words, one):
    other = Plain()
    cls = type(one)
    states = states_of(objects=[one, other])
    assert states.hold()
    object.__setattr__(one, "__class__", Another)
    assert not states.hold()
    object.__setattr__(one, "__class__", cls)
    assert states.hold()


@pytest.mark.parametrize("container", [{}, [], set()], ids=["dict", "list", "set"])
def test_what_is_empty_stays_so(by_words, container):
    states = states_of(empty=[{}, container, []])
    assert states.hold()
    getattr(container, {dict: "setdefault", list: "append", set: "add"}[type(container)])(1)
    assert not states.hold()
    container.clear()
    assert states.hold()


def test_a_doc_string_is_no_state(by_words):
    function = make()
    states = states_of([function])
    function.__doc__ = "Another text."
    assert states.hold()


def test_the_root_is_not_kept_alive(by_words):
    root = make()
    states, gone = states_of([make(), root], root=root), weakref.ref(root)
    del root
    gc.collect()
    assert gone() is None
    with pytest.raises(AttributeError):
        states.hold()


# ---- dicts ---------------------------------------------------------------------------------------


def owners():
    """Yield objects with attributes, each with the dict that holds these."""
    module, cls, function = types.ModuleType("a_module"), type("A", (), {}), make()
    yield module, vars(module)
    yield cls, identities.dict_of(cls)
    yield function, vars(function)
    early, late = Plain(), Plain()
    yield early, vars(early)
    late.a = late.b = 0
    yield late, vars(late)


def store(owner, value):
    owner.a = value  # Python specialises this line when it has run often


def change(owner, holder, number):
    """Change an attribute by one of the ways that there are."""
    name, value = random.choice("abcd"), random.choice([number, str(number), None])
    ways = [
        lambda: store(owner, value),
        lambda: setattr(owner, name, value),
        lambda: delattr(owner, name) if name in holder else None,
        lambda: holder.update({name: value}),
        lambda: holder.setdefault(name, value),
        lambda: holder.pop(name, None),
        lambda: exec(f"{name} = value", {"value": value}, holder),
        lambda: holder.__ior__({name: value}),
    ]
    random.choice(ways)()


def present(holder, names):
    return [(name, id(holder[name])) for name in names if name in holder]


@pytest.mark.parametrize("number", range(5))
def test_random_changes_of_dicts_are_found(by_words, number):
    """What is compared: some names, all names, and whole dicts, each against a list made by hand."""
    random.seed(number)
    owner, holder = [*owners()][number]
    for _ in range(40):
        names = random.sample("abcd", random.randint(0, 4))
        values = {name: holder.get(name, identities.MISSING) for name in names}
        some = identities.Dicts([(holder, values)], [], [])
        whole = identities.Dicts([], [], [holder])
        before, all_before = present(holder, names), present(holder, list(holder))
        kept = list(holder.values())
        for step in range(10):
            assert _holds(some) == (present(holder, names) == before)
            assert _holds(whole) == (present(holder, list(holder)) == all_before)
            change(owner, holder, step)
            kept += holder.values()  # alive, so that an address is not used again


@pytest.mark.parametrize("number", range(5))
def test_each_store_of_a_line_that_runs_often_is_found(by_words, number):
    """Python specialises such a line, and then may not go through the functions of dicts."""
    owner, holder = [*owners()][number]
    owner.a = 0
    for step in range(300):
        dicts = identities.Dicts([(holder, {"a": owner.a})], [], [])
        assert dicts.hold()
        store(owner, str(step))
        assert not dicts.hold()


def test_words_of_classes_in_c_are_not_read(monkeypatch):
    def refuse(values, kind):
        raise AssertionError

    monkeypatch.setattr(identities, "places_of", refuse)
    states_of(classes=[Plain, int])
    if words.HAS_WORDS:
        with pytest.raises(AssertionError):
            states_of(classes=[Plain])


def test_a_class_gets_no_other_names(by_words):
    cls = type("A", (), {"a": 1})
    own = identities.dict_of(cls)
    dicts = identities.Dicts([(own, dict(own))], [cls], [])
    cls.__slotnames__ = []  # Python's own, when an object is copied
    assert dicts.hold()
    cls.b = 2
    assert not dicts.hold()


def _holds(dicts):
    try:
        return dicts.hold()
    except KeyError:
        return False


@pytest.mark.parametrize("items_follow", [True, False])
def test_addresses_are_those_of_the_objects(monkeypatch, items_follow):
    monkeypatch.setattr(identities, "ITEMS_FOLLOW", items_follow)
    values = [1, 1.0, True, "text", None, (1,), [2], make(), int]
    expected = b"".join(id(value).to_bytes(sizeof(c_void_p), sys.byteorder) for value in values)
    assert identities.addresses(values) == identities.addresses(iter(values)) == expected
    assert identities.addresses(()) == b""
