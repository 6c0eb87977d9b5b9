"""Arguments that are equal to those of the last call are not examined again: only equal ones are."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

import nki
import nki.typing as nt
from nki.kernel.arguments import bind


def kernel(a, b, scale=1.0, *, flag=False, name="x"):
    """Take arguments of all kinds."""


SIGNATURE = inspect.signature(kernel)


def bound(*args, **kwargs):
    """Return what `bind` finds, and the arguments that the function would get."""
    found = bind("kernel", kernel, SIGNATURE, args, kwargs)
    tensors = [tensor.value for tensor in found.tensors]
    got = found.call(lambda *values, **named: (values, named), tensors)
    expected = SIGNATURE.bind(*args, **kwargs)
    expected.apply_defaults()
    return found, got, (expected.args, expected.kwargs)


def array(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_equal_calls_have_one_key_and_their_own_tensors():
    first, second = bound(array(2), array(3), 0.5)[0], bound(array(2), array(3), 0.5)[0]
    assert first.key is second.key and first.structure is second.structure
    assert all(a.value is not b.value for a, b in zip(first.tensors, second.tensors, strict=True))


class Pretender:
    """Says that it is a bool, and equal to everything."""

    __class__ = property(lambda self: bool)
    __hash__ = None

    def __eq__(self, other):
        return True


def test_an_object_that_says_to_be_of_another_class_is_itself():
    pretender = Pretender()
    bound(array(2), array(3), flag=False)
    _, (_, named), _ = bound(array(2), array(3), flag=pretender)
    assert named["flag"] is pretender


@pytest.mark.parametrize(
    "other",
    [
        {"scale": 1},
        {"scale": True},
        {"scale": -1.0},
        {"flag": 0},
        {"flag": 1},
        {"name": "y"},
        {"a": array(3)},
        {"a": array(2, dtype=np.int32)},
        {"b": array(2, 3)},
        {"b": None},
        {"b": 2},
    ],
    ids=str,
)
def test_what_the_python_can_tell_apart_has_another_key(other):
    plain = {"a": array(2), "b": array(3), "scale": 1.0, "flag": False, "name": "x"}
    for given in (plain, plain | other, plain, plain | other):
        found, got, wanted = bound(**given)
        assert _same(got, wanted)
        assert (found.key == bound(**plain)[0].key) is (given is plain)


@pytest.mark.parametrize("number", [0.0, math.nan])
def test_the_sign_of_zero_and_of_a_nan_counts(number):
    signed = [math.copysign(number, sign) for sign in (1, -1, 1, -1)]
    keys = [bound(array(2), array(2), scale)[0].key for scale in signed]
    assert keys[0] == keys[2] != keys[1] == keys[3]


def test_one_array_twice_does_not_bind_two_parameters_together():
    x, y = array(2), array(2)
    bound(x, x)
    _, (values, _), _ = bound(x, y)
    assert values[0] is x and values[1] is y
    _, (values, _), _ = bound(y, x)
    assert values[0] is y and values[1] is x


def test_keywords_in_another_order_find_their_parameters():
    x, y = array(2), array(2)
    for given in ({"a": x, "b": y}, {"b": y, "a": x}, {"b": x, "a": y}):
        _, (values, _), _ = bound(**given)
        assert values[0] is given["a"] and values[1] is given["b"]


def test_an_array_whose_shape_is_changed_in_place_is_another_argument():
    x = array(2, 3)
    before = bound(x, x)[0].key
    x.shape = (3, 2)
    assert bound(x, x)[0].key != before


def test_containers_are_examined_at_every_call():
    sizes = [1, 2]
    before = bound(array(2), sizes)[0].key
    sizes.append(3)
    assert bound(array(2), sizes)[0].key != before


def test_an_aliased_argument_is_aliased_in_its_call_alone():
    x = array(2)
    named = {"b": x, "a.must_alias_input": x}
    assert [bind("kernel", kernel, SIGNATURE, (), kw).aliased for kw in (named, {"b": x, "a": x}, named)] == [
        frozenset("a"),
        frozenset(),
        frozenset("a"),
    ]


def test_declared_shapes_are_checked_for_the_next_shape_too():
    @nki.jit
    def declared(x: nt.tensor[4, 8]):
        return x

    assert declared.eval_shape(nki.TensorSpec((4, 8), "float32")).shape == (4, 8)
    declared(array(4, 8)), declared(array(4, 8))
    with pytest.raises(nki.NkiError, match="declared"):
        declared(array(8, 4))


def _same(got, wanted):
    flat = [(*values, *named.values()) for values, named in (got, wanted)]
    return all(a is b or (type(a) is type(b) and repr(a) == repr(b)) for a, b in zip(*flat, strict=True))
