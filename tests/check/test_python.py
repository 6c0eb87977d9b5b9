"""The supported-Python lint: one bad and one good sample per rule, and how far it looks."""

import functools
import importlib.util
import itertools
import sys
import textwrap

import pytest

from nki.check import RULES, Finding, lint

# Imports that the lint reads and Python never runs; `nki` at run time is a stub.
PRELUDE = """\
import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

if False:
    import numpy as np
    import nki
    import nki.isa as nisa
    import nki.language as nl
    import nki.collectives as ncc


class nki:
    jit = staticmethod(lambda function=None, **options: function or (lambda inner: inner))


class NKIObject:
    pass


@nki.jit
def helper(part=None):
    pass


"""
# In the order of its table
SECTION_16 = """
    py-inner-def py-lambda py-class-in-function py-comprehension py-try py-raise py-import py-global
    py-nonlocal py-del py-match py-type-alias py-async py-yield py-walrus py-await py-for-else
    py-while-else py-for-target py-starred py-varargs kw-only-separator py-is py-in py-matmul-operator
    py-tile-arithmetic py-tile-setitem py-mutating-targets py-attribute-target py-with py-decorator
    py-base-class py-class-keywords py-class-statement py-fstring-spec py-string-subscript py-dict-key
    py-set py-bytes py-complex py-builtin py-list-method py-dict-method py-slice-negative-step
    py-out-of-range-slice py-numpy-call py-runtime-branch py-closure-mutable py-global-read py-shadow-nl
    py-big-int legacy-namespace py-object-eq
"""
numbers = itertools.count()


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write a module below tmp_path and import it: inspect needs a file."""

    def load_module(text, name=None, prelude=PRELUDE):
        name = name or f"linted_{next(numbers)}"
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(prelude + textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_module


@pytest.fixture
def check(load):
    """Findings of a sample: a whole module with a `kernel`, or the body of `kernel(x, y, n)`."""

    def check_sample(sample, **options):
        sample = textwrap.dedent(sample).strip("\n")
        if "def kernel" not in sample:
            sample = "@nki.jit\ndef kernel(x, y, n):\n" + textwrap.indent(sample, "    ")
        return lint(load(sample + "\n").kernel, **options)

    return check_sample


def codes(findings):
    return [finding.code for finding in findings]


# code, a sample that breaks the rule, a sample that says the same in supported Python
SAMPLES = [
    ("py-inner-def", "def twice(v): return v", "def body(i): nisa.memset(x, 0)\nnl.fori_loop(0, n, body)"),
    ("py-lambda", "f = lambda v: v", "f = nl.add"),
    ("py-class-in-function", "class Local: pass", "box = NKIObject()"),
    ("py-comprehension", "v = [i for i in range(n)]", "v = []\nfor i in range(n):\n    v.append(i)"),
    ("py-comprehension", "v = {i: i for i in range(n)}", "v = {}"),
    ("py-comprehension", "v = tuple(i for i in range(n))", "v = tuple(range(n))"),
    ("py-try", "try:\n    n = 1\nfinally:\n    n = 2", "n = 1 if n else 2"),
    ("py-raise", "raise ValueError", "assert n > 0, 'positive'"),
    ("py-import", "import math", "v = math.sqrt(n)"),
    ("py-global", "global counter\ncounter = 1", "counter = 1"),
    (
        "py-nonlocal",
        "v = 0\ndef body(i):\n    nonlocal v\nnl.fori_loop(0, n, body)",
        "v = {}\ndef body(i):\n    v['i'] = 1\nnl.fori_loop(0, n, body)",
    ),
    ("py-del", "del n", "n = None"),
    ("py-match", "match n:\n    case 1: pass", "if n == 1: pass"),
    pytest.param(
        "py-type-alias",
        "type T = int",
        "v: int = 0",
        marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in 3.12"),
    ),
    ("py-async", "async def kernel(x): pass", "def kernel(x): pass"),
    ("py-async", "async def inner(): pass", "pass"),
    ("py-yield", "yield n", "return n"),
    ("py-walrus", "if (v := n): pass", "v = n\nif v: pass"),
    ("py-await", "async def kernel(x): await x", "def kernel(x): x()"),
    ("py-for-else", "for i in range(n): pass\nelse: n = 1", "for i in range(n): pass"),
    ("py-while-else", "while n: n -= 1\nelse: n = 1", "while n: n -= 1"),
    ("py-for-target", "for a, b in y: pass", "for pair in y:\n    a = pair[0]"),
    ("py-starred", "v = min(*y)", "v = min(y[0], y[1])"),
    ("py-starred", "v = dict(**y)", "v = dict(a=1)"),
    ("py-starred", "v = {**y}", "v = {'a': 1}"),
    ("py-starred", "a, *b = y", "a = y[0]"),
    ("py-varargs", "def kernel(*args): pass", "def kernel(args): pass"),
    ("kw-only-separator", "def kernel(x, *, flag=True): pass", "def kernel(x, flag=True): pass"),
    ("py-is", "v = n is True", "v = n is None or n is not None"),
    ("py-in", "v = n in {'a': 1}", "v = n in (1, 2) or n in [1] or n in 'text' or n in y"),
    ("py-in", "table = dict()\nv = n not in table", "table = {'a': 1}\nv = n not in table.keys()"),
    ("py-matmul-operator", "v = x @ y", "v = nl.matmul(x, y)"),
    ("py-matmul-operator", "x @= y", "x = nl.matmul(x, y)"),
    ("py-tile-arithmetic", "t = nl.load(x)\nu = t * 2", "t = nl.load(x)\nu = nl.multiply(t, 2)"),
    ("py-tile-arithmetic", "t = nl.zeros((128, 1), y)\nt += 1", "t = x\nt += 1"),
    ("py-tile-arithmetic", "t = -nl.exp(x)", "t = nl.negative(nl.exp(x))"),
    ("py-tile-arithmetic", "r = nisa.register_alloc(0)\nu = r + 1", "r = 0\nu = r + 1"),
    ("py-tile-setitem", "t = nl.ndarray((1, 1), y)\nt[0, 0] = 1", "t = []\nt[0] = 1"),
    ("py-tile-setitem", "t = nl.ndarray((1, 1), y)\nt[...] += n", "t = [1]\nt[0] += n"),
    ("py-mutating-targets", "x[0], y[0] = 1, 2", "a, b = 1, 2"),
    ("py-mutating-targets", "x[0] = y[0] = 1", "a = b = 1"),
    ("py-attribute-target", "t = nl.load(x)\nt.tag = 1", "box = NKIObject()\nbox.tag = 1"),
    (
        "py-attribute-target",
        "class Box:\n    def __init__(self): self.a = 1\ndef kernel(x): box = Box()",
        "class Box(NKIObject):\n    def __init__(self): self.a = 1\ndef kernel(x): box = Box()",
    ),
    ("py-with", "with open(n) as f: pass", "with nl.no_reorder(): pass"),
    ("py-with", "with nl.no_reorder() as order: pass", "with nl.no_reorder(): nisa.memset(x, 0)"),
    ("py-with", "with helper(): pass", "helper()"),
    (
        "py-decorator",
        "def plain(f): return f\n@plain\ndef kernel(x): pass",
        "@nki.jit(platform_target='trn2')\ndef kernel(x): pass",
    ),
    (
        "py-decorator",
        "class Box(NKIObject):\n    @property\n    def a(self): pass\ndef kernel(x): Box()",
        "@dataclass(frozen=True)\nclass Box(NKIObject):\n    @staticmethod\n    def a(): pass\n"
        "def kernel(x): Box.a()",
    ),
    (
        "py-base-class",
        "class Box(dict): pass\ndef kernel(x): Box()",
        "class Box(NKIObject): pass\nclass Pair(NamedTuple):\n    a: int\nclass Mode(Enum):\n    A = 1\n"
        "def kernel(x): Box(); Pair(1); Mode.A",
    ),
    (
        "py-class-keywords",
        "class Box(NKIObject, metaclass=type): pass\ndef kernel(x): Box()",
        "class Box(NKIObject): pass\ndef kernel(x): Box()",
    ),
    (
        "py-class-statement",
        "class Box(NKIObject):\n    if True: a = 1\ndef kernel(x): Box()",
        "class Box(NKIObject):\n    'A box.'\n    a: int = 1\n    b = 2\ndef kernel(x): Box()",
    ),
    ("py-fstring-spec", "assert n, f'{n:.2f}'", "assert n, f'{n} {n!r} {n=}'"),
    ("py-string-subscript", "s = 'abc'\nv = s[0]", "s = ['a', 'b']\nv = s[0]"),
    ("py-dict-key", "v = {1: 2}", "v = {'one': 2}"),
    ("py-dict-key", "v = {n: 2}", "v = {}\nv[n] = 2"),
    ("py-dict-key", "v = {}\nv[1] = 2", "v = {}\nv['one'] = 2"),
    ("py-set", "v = {1, 2}", "v = (1, 2)"),
    ("py-bytes", "v = b'a'", "v = 'a'"),
    ("py-complex", "v = 2j", "v = 2.0"),
    ("py-builtin", "v = sorted(y)", "v = divmod(len(y), 2)"),
    ("py-builtin", "v = math.prod(y)", "v = math.ceil(math.pi)"),
    ("py-list-method", "v = [2, 1]\nv.sort()", "v = [2, 1]\nv.append(n)"),
    ("py-dict-method", "v = {'a': 1}\nv.update(y)", "v = {'a': 1}\nw = v.get('a')"),
    ("py-slice-negative-step", "v = x[::-1]", "v = x[::2]"),
    ("py-slice-negative-step", "v = x[slice(0, 4, -1)]", "v = x[slice(0, 4, 1)]"),
    ("py-out-of-range-slice", "v = [1, 2]\nw = v[0:3]", "v = [1, 2]\nw = v[-2:2]"),
    ("py-out-of-range-slice", "w = (1, 2)[-3:]", "v = [1, 2]\nv.append(3)\nw = v[0:3]"),
    ("py-numpy-call", "t = nl.load(x)\nv = np.sqrt(t)", "t = nl.load(x)\nv = np.sqrt(t.shape[0])"),
    (
        "py-runtime-branch",
        "r = nisa.register_alloc(1)\nif r: pass",
        "r = nisa.register_alloc(1)\nwhile r: pass",
    ),
    ("py-runtime-branch", "r = ncc.rank_id()\nassert r == 0", "r = ncc.rank_id()\nassert r != None"),
    ("py-runtime-branch", "assert nl.equal(x, y)", "assert nl.add(x, y)"),
    ("py-runtime-branch", "t = nl.load(x)\nv = 1 if t > 0 else 2", "v = 1 if n > 0 else 2"),
    ("py-runtime-branch", "r = ncc.rank_id()\nv = [x, y][r]", "r = ncc.rank_id()\nv = nl.load(x)[r]"),
    (
        "py-runtime-branch",
        "r = nisa.register_alloc(x)\nfor i in range(r): pass",
        "r = nisa.register_alloc(x)\nfor i in nl.dynamic_range(r): pass",
    ),
    (
        "py-closure-mutable",
        "def make():\n    v = []\n    v.append(1)\n    def kernel(x): return v\n    return kernel\n"
        "kernel = make()",
        "def make():\n    v = [1]\n    def kernel(x): return v\n    return kernel\nkernel = make()",
    ),
    (
        "py-global-read",
        "size = 1\nsize = 2\ndef kernel(x): return size",
        "size = 1\ndef kernel(x): return size",
    ),
    (
        "py-global-read",
        "cache = {}\ndef fill(): cache['a'] = 1\ndef kernel(x): return cache['a']",
        "cache = {}\ndef fill(cache): cache['a'] = 1\ndef kernel(x): return cache['a']",
    ),
    (
        "py-global-read",
        "size = 1\ndef grow():\n    global size\n    size = 2\ndef kernel(x): return size",
        "if math.pi > 3:\n    size = 1\nelse:\n    size = 2\ndef kernel(x): return size",
    ),
    (
        "py-global-read",
        "def start():\n    global state\n    state = 1\ndef kernel(x): return state",
        "state = 1\ndef start():\n    state = 1\ndef kernel(x): return state",
    ),
    ("py-shadow-nl", "nl = n", "length = n"),
    ("py-shadow-nl", "def kernel(x, nisa): pass", "def kernel(x, isa): pass"),
    ("py-big-int", "nisa.memset(x, 1 << 40)", "nisa.memset(x, 1 << 31)"),
    ("py-big-int", "big = 2 ** 33\nnisa.memset(x, value=-big)", "big = 2 ** 31\nnisa.memset(x, value=-big)"),
    (
        "legacy-namespace",
        "if False:\n    import neuronxcc.nki.language as old\ndef kernel(x): old.load(x)",
        "def kernel(x): nl.load(x)",
    ),
    ("legacy-namespace", "from neuronxcc import nki as old", "pass"),
    (
        "py-object-eq",
        "class Box(NKIObject): pass\ndef kernel(x): return Box() == Box()",
        "@dataclass\nclass Box(NKIObject): pass\ndef kernel(x): return Box() == Box()",
    ),
    (
        "nested-dynamic-range",
        "for i in nl.dynamic_range(n):\n    for j in nl.dynamic_range(n): pass",
        "for i in nl.dynamic_range(n):\n    for j in range(n): pass\nfor i in nl.dynamic_range(n): pass",
    ),
]


@pytest.mark.parametrize(("code", "bad", "good"), SAMPLES)
def test_the_bad_sample_breaks_the_rule_and_the_good_one_breaks_none(check, code, bad, good):
    found = {finding.code: finding for finding in check(bad)}
    assert code in found
    assert found[code].level == RULES[code].level
    assert found[code].help == RULES[code].help
    assert check(good) == []


@pytest.mark.tiny
def test_every_code_of_the_specification_is_a_rule_in_its_order_and_has_samples():
    specified = SECTION_16.split()
    assert list(RULES)[: len(specified)] == specified
    assert all(rule.code == code and rule.summary and rule.help for code, rule in RULES.items())
    sampled = {getattr(sample, "values", sample)[0] for sample in SAMPLES}
    assert sampled == set(RULES)


@pytest.mark.parametrize("sample", ["s = 'abc'\nv = s.upper()", "def kernel(x, **options): pass"])
def test_rules_with_two_levels_warn_about_the_milder_construct(check, sample):
    assert [finding.level for finding in check(sample)] == ["W"]


@pytest.mark.tiny
def test_a_finding_shows_the_line_a_caret_and_the_help():
    finding = Finding(
        code="py-lambda",
        level="E",
        message="lambda",
        filename="softmax.py",
        line=7,
        column=9,
        text="    f = lambda v: v",
        help="define a function at module level",
    )
    assert str(finding) == (
        "NkiError[py-lambda]: lambda\n"
        "  --> softmax.py:7\n"
        "   |     f = lambda v: v\n"
        "   |         ^\n"
        "  help: define a function at module level"
    )
    assert str(Finding("py-is", "W", "`is`", "k.py", 1, 1, "x", "h")).startswith("NkiWarning[py-is]: `is`\n")


def test_findings_know_their_place_also_behind_wide_characters(load):
    module = load("def kernel(x):\n    é = 'ß'; f = lambda: é\n", prelude="")
    (finding,) = lint(module.kernel)
    assert (finding.filename, finding.line, finding.column) == (module.__file__, 2, 18)
    assert finding.text == "    é = 'ß'; f = lambda: é"


# how far it looks


def test_it_follows_functions_classes_and_modules_of_the_same_tree(load):
    helpers = load("def inner(v): return sorted(v)\ndef outer(v): return inner(v)\n", prelude="")
    boxes = load("class Box:\n    def grow(self): return (lambda: 1)\n", prelude="")
    kernels = load(
        f"""
        import {helpers.__name__} as helpers
        from {boxes.__name__} import Box

        def unused(): return [i for i in range(3)]

        def kernel(x):
            helpers.outer(x)
            return Box().grow()
        """,
        prelude="",
    )
    found = lint(kernels.kernel)
    assert [(finding.code, finding.filename) for finding in found] == [
        ("py-builtin", helpers.__file__),
        ("py-lambda", boxes.__file__),
    ]
    assert lint(kernels.kernel, follow=False) == []


def test_it_follows_closures_partials_and_wrapped_functions(check):
    found = check(
        """
        import functools

        def logged(f):
            @functools.wraps(f)
            def wrapper(*args): return f(*args)
            return wrapper

        def wrapped(v): return sorted(v)
        wrapped = logged(wrapped)
        def part(v): return reversed(v)
        half = functools.partial(part)

        def make():
            def captured(v): return v @ v
            def kernel(x): return captured(wrapped(half(x)))
            return kernel

        kernel = make()
        """
    )
    assert sorted(codes(found)) == ["py-builtin", "py-builtin", "py-matmul-operator"]


def test_it_leaves_libraries_and_other_directories_alone(load, tmp_path):
    load("def other(v): return sorted(v)\n", "elsewhere/other", prelude="")
    installed = "below/site-packages/vendored"
    load("def vendored(v): return sorted(v)\n", installed, prelude="")
    text = """
    import sys, textwrap
    other = sys.modules["elsewhere/other"].other
    vendored = sys.modules["below/site-packages/vendored"].vendored

    def kernel(x):
        return textwrap.dedent(x), other(x), vendored(x)
    """
    assert lint(load(text, "below/kernels", prelude="").kernel) == []


def test_recursion_and_shared_helpers_are_reported_once(check):
    found = check("def again(x): return kernel(x), sorted(x)\ndef kernel(x): return again(x), again(x)")
    assert codes(found) == ["py-builtin"]


def test_findings_are_sorted_by_file_and_line(check):
    found = check("v = sorted(y)\nw = lambda: v\nu = n @ n")
    assert [finding.line for finding in found] == sorted(finding.line for finding in found)
    assert codes(found) == ["py-builtin", "py-lambda", "py-matmul-operator"]


def test_kernel_objects_partials_and_methods_are_unwrapped(load):
    module = load("def kernel(x, y=1): return sorted(x)\n")

    class Kernel:
        def __init__(self, func):
            self.func = func

    class Holder:
        method = module.kernel

    forms = [Kernel(module.kernel), functools.partial(module.kernel, y=2), Holder().method]
    for form in [*forms, Kernel(functools.partial(module.kernel))]:
        assert codes(lint(form)) == ["py-builtin"]


def test_a_function_without_source_gives_no_findings():
    namespace = {}
    exec("def kernel(x): return sorted(x)", namespace)
    assert [lint(thing) for thing in (namespace["kernel"], len, 3, int, lambda: sorted([]))] == [[]] * 5


# profiles


def test_the_tracer_keeps_values_purity_and_names_and_drops_syntax(check):
    sample = """
    t = nl.load(x)
    v = [i for i in range(n)]
    t[0, 0] = t + 1
    if nl.less(t, 0): nisa = 3
    """
    assert {"py-comprehension", "py-tile-setitem"} < set(codes(check(sample)))
    assert codes(check(sample, profile="tracer")) == [
        "py-tile-arithmetic",
        "py-runtime-branch",
        "py-shadow-nl",
    ]


def test_an_unknown_profile_is_refused(check):
    with pytest.raises(ValueError, match="profile 'strict': expected one of parser, tracer"):
        check("pass", profile="strict")


# what it infers, and what it leaves alone


@pytest.mark.parametrize(
    "sample",
    [
        "u = nl.load(x)[0:1] + 1",
        "t = nl.load(x)\nt = t.reshape((1, 2))\nu = t + 1",
        "t = None\nif n: t = nl.load(x)\nu = t + 1",
        "a, b = nl.load(x), n\nu = a + b",
        "t = nl.zeros_like(x) if n else nl.load(x)\nu = t.ap([[1, 2]]) + 1",
        "for i in nl.dynamic_range(n):\n    u = i * 128",
        "def body(i):\n    u = i * 128\nnl.fori_loop(0, n, body)",
        "t = nl.load(x)\ndef body(i):\n    u = t * 128\nnl.fori_loop(0, n, body)",
    ],
)
def test_tiles_and_registers_are_known_through_views_branches_and_loops(check, sample):
    assert codes(check(sample)) == ["py-tile-arithmetic"]


@pytest.mark.parametrize(
    "sample",
    [
        "if x: y = x\nassert x != None\nwhile n > 1: n = n // 2",
        "t = None\nif n: t = nl.load(x)\nif t: n = 1\nif t != None and t.shape[0] > 1: n = 2",
        "t = nl.load(x)\nt = n\nu = t + 1",
        "x = nl.load(x)\nu = x + 1",
        "t = nl.load(x)\nu = t.shape[0] * 2 + t.ndim\nassert t.dtype == y",
        "tiles = []\ntiles.append(nl.load(x))\ntiles = tiles + [nl.load(y)] * 2\nassert len(tiles) > 1",
        "for i in nl.affine_range(n):\n    nisa.dma_copy(dst=x[i * 128], src=y[nl.ds(i * 128, 128)])",
        "y.scale = n\nx[0] = n\nv = n[0:100]\nw = n.split(',')\nz = n in y",
        "load = helper\nt = load(x)\nu = t + 1",
        "message = 'tile %s' % nl.load(x)",
        "v = [1]\nhelper(v)\nw = v[0:3]",
    ],
)
def test_unknown_kinds_and_compile_time_values_are_not_reported(check, sample):
    assert check(sample) == []


def test_names_are_followed_through_any_import_form(check):
    sample = """
    if False:
        import nki.language
        from nki import language as lang
        from nki.language import load as fetch

    def kernel(x):
        return fetch(x) + 1, lang.load(x) + 1, nki.language.load(x) + 1
    """
    assert codes(check(sample)) == ["py-tile-arithmetic"] * 3


def test_a_star_import_that_hides_builtins_is_reported(check):
    sample = "if False:\n    from nki.language import load\n{}\ndef kernel(x): return max(x, 1)"
    assert check(sample.format("")) == []
    # a star import is legal at module level alone, and nki.language need not exist for the lint
    hidden = sample.format("if False:\n    from nki.language import *")
    (finding,) = check(hidden)
    assert (finding.code, finding.message) == (
        "py-shadow-nl",
        "`max` is `nl.max`: the star import hides Python's own",
    )
