"""What code names: as `dis` says it."""

from __future__ import annotations

import sys
import types

import pytest

from nki.kernel import global_names as names


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def sources():
    wide = "\n".join(f"name_{i} = module.part_{i}.item(other_{i})" for i in range(300))
    return [
        "import numpy as np\ndef f(x):\n    global y\n    y = np.random.rand(3)\n    return len(x).real",
        "class A:\n    b = c.d.e\n    def m(self):\n        return print(c.d(), *[c.f for c in self])",
        f"def large(module):\n    pass\n{wide}",
        "def inner():\n" + "\n".join(f"    v{i} = g{i}.a{i}.b{i}()" for i in range(300)),
    ]


@pytest.mark.skipif(sys.version_info[:2] not in names.KNOWN, reason="another form of bytes: dis is asked")
@pytest.mark.parametrize("source", range(4))
def test_the_bytes_say_what_dis_says(source):
    for code in codes(compile(sources()[source], "<test>", "exec")):
        assert names.by_bytes(code) == names.by_dis(code)


def test_names_come_with_the_attributes_that_are_taken_from_them():
    code = (lambda: numpy.random.rand(3)).__code__  # noqa: F821
    assert tuple(use[:3] for use in names.names_in(code)) == (("LOAD_GLOBAL", "numpy", ("random", "rand")),)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("getattr(x, 'v')", ["v"]),
        ("getattr(x.y.z, 'v', None)", ["v"]),
        ("hasattr(x, 'v') and getattr(x.y, 'w')", ["v", "w"]),
        ("'{0.a[b]}'.format(x)", ["0", "a", "b"]),
        ("format(x, 'd') + f'{x:3}'", []),
        ("getattr(x, y)", [None]),
        ("getattr(x, y, 'v')", [None]),
        ("getattr(x(), 'v')", [None]),
        ("map(getattr, [x], ['v'])", [None]),
        ("y.format(x)", [None]),
    ],
)
def test_attributes_are_found_by_their_texts_or_are_computed(expression, found):
    code = eval(f"lambda x, y: {expression}").__code__
    assert list(names.attributes_by_text(code)) == found
