"""What a kernel's Python may read and what changes it, for `stale_kernels`.

A `Source` is Python that a kernel reads: `setup` is executed in the kernel's module, `read` is an expression
in the kernel, and each of `changes` is executed between calls. `kind` says how its values compare: "equal" to
that of an uncached call just before, "later" than it (a clock), or "other" than any before (random numbers).
"""

from __future__ import annotations

import abc
import array
import builtins
import collections
import contextlib
import contextvars
import copy
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
import math
import operator
import os
import random
import re
import secrets
import string
import sys
import threading
import time
import types
import typing
import uuid
import weakref


@dataclasses.dataclass(frozen=True)
class Source:
    setup: str
    read: str
    changes: tuple[str, ...] = ()
    kind: str = "equal"
    arguments: str = ""  # an expression: what the kernel gets as its argument `given`


SOURCES = [
    # values of the module
    Source("A = 2", "A", ("A = new()", "A = 2.0", "A = True", "A = -0.0", "A = 0.0")),
    Source("A = (1, 2)", "A[0]", ("A = (new(), 2)",)),
    Source("A = [1, 2]", "A[0] + len(A)", ("A[0] = new()", "A.append(1)", "A = [new()]")),
    Source("A = {'x': 1}", "sum(A.values())", ("A['x'] = new()", "A[new()] = new()")),
    Source("A = {'x': 1, 'y': 2}", "next(iter(A))", ("A['x'] = A.pop('x')", "A['y'] = A.pop('y')")),
    Source("A = {1, 2}", "sum(A)", ("A.add(new())", "A.discard(1)")),
    Source("A = (1, [2])", "A[1][0]", ("A[1][0] = new()",)),
    Source("A = ({'x': 1},)", "A[0]['x']", ("A[0]['x'] = new()",)),
    Source("A = frozenset([(1, 2)])", "sum(sum(t) for t in A)", ("A = frozenset([(new(), 2)])",)),
    Source("A = np.array([1, 2])", "int(A[0])", ("A[0] = new()",)),
    Source("A = bytearray(b'a')", "A[0]", ("A[0] = new() % 256",)),
    Source("A = slice(1, 2)", "A.stop", ("A = slice(1, new())",)),
    Source("A = iter(range(10**6))", "next(A)", kind="other"),
    Source("A = itertools.count()", "next(A)", kind="other"),
    Source("A = (i for i in range(10**6))", "next(A)", kind="other"),
    # functions
    Source("B = 2\ndef f(): return B", "f()", ("B = new()", "f = lambda v=new(): v")),
    Source("def f(v=1): return v", "f()", ("f.__defaults__ = (new(),)",)),
    Source("def f(*, v=1): return v", "f()", ("f.__kwdefaults__['v'] = new()",)),
    Source(
        "def f(): return 1", "f()", ("f.__code__ = (lambda: 2).__code__", "f.__code__ = (lambda: 3).__code__")
    ),
    Source("def f(): return f.v\nf.v = 1", "f()", ("f.v = new()",)),
    Source("def f(): return getattr(f, 'v', 0)", "f()", ("f.v = new()", "f.__dict__.clear()")),
    Source(
        "def make():\n    v = 1\n    def put(x):\n        nonlocal v\n        v = x\n"
        "    return lambda: v, put\nf, put = make()",
        "f()",
        ("put(new())",),
    ),
    Source(
        "def wrap(g):\n    @functools.wraps(g)\n    def inner(): return g() + B\n    return inner\n"
        "B = 1\n@wrap\ndef f(): return B",
        "f()",
        ("B = new()",),
    ),
    Source("B = [1]\nf = functools.partial(sum, B)", "f()", ("B[0] = new()",)),
    Source(
        "f = functools.partial(max, 0)",
        "f(5)",
        ("f.keywords['key'] = lambda v: -v", "f.keywords.pop('key', 0)"),
    ),
    Source("B = 1\n@functools.cache\ndef f(): return B", "f()", ("B = new()", "f.cache_clear()")),
    Source("n = 0\ndef f():\n    global n\n    n += 1\n    return n", "f()", kind="other"),
    Source("n = [0]\ndef f():\n    n.append(1)\n    return len(n)", "f()", kind="other"),
    Source(
        "@contextlib.contextmanager\ndef f():\n    yield B\nB = 1\ndef g():\n    with f() as v: return v",
        "g()",
        ("B = new()",),
    ),
    # names that appear and go
    Source(
        "def f():\n    try: return LATE\n    except NameError: return 0",
        "f()",
        ("LATE = new()", "LATE = None"),
    ),
    Source("B = 1", "abs(-5)", ("abs = lambda v, r=new(): r", "abs = __builtins__['abs']")),
    Source("B = 5", "globals()['B']", ("B = new()",)),
    Source("B = 5", "eval('B')", ("B = new()",)),
    Source("B = 5\ndef f(): return B", "f.__globals__['B']", ("B = new()",)),
    Source("B = 5\ndef f(): return B", "getattr(f, '__globals__')['B']", ("B = new()",)),
    Source("B = 5", "(i for i in ()).gi_frame.f_globals['B']", ("B = new()",)),
    Source("class C:\n    v = 1\nc = C()", "int('{0.v}'.format(c))", ("c.v = new()", "C.v = new()")),
    Source(
        "class C:\n    v = 1\nc = C()",
        "operator.attrgetter('v')(c)",
        ("c.v = new()", "C.v = new()"),
    ),
    # classes and objects
    Source("class C:\n    v = 1", "C.v", ("C.v = new()",)),
    Source("class D:\n    v = 1\nclass C(D): pass", "C.v", ("D.v = new()", "C.v = new()")),
    Source("class C: pass", "getattr(C, 'v', 0)", ("C.v = new()",)),
    Source("class C:\n    v, dtype = 1, np.dtype('f4')", "C.v", ("C.v = new()",)),
    Source("class C(np.float32): pass\nc = C(1)", "getattr(c, 'v', 0)", ("c.v = new()", "C.v = new()")),
    Source("A = np.array([(1, 2)], 'i4,f4')[0]", "int(A['f0'])", ("A['f0'] = new()",)),
    Source("class C: pass\nc = C()", "getattr(c, 'v', 0)", ("c.v = new()", "C.v = new()")),
    Source(
        "class C:\n    def m(self): return B\nB = 1",
        "C().m()",
        ("B = new()", "C.m = lambda s, v=new(): v"),
    ),
    Source("class C:\n    @property\n    def m(self): return B\nB = 1", "C().m", ("B = new()",)),
    Source("class C:\n    @staticmethod\n    def m(): return B\nB = 1", "C.m()", ("B = new()",)),
    Source("class C:\n    def __getattr__(self, name): return B\nB = 1\nc = C()", "c.x", ("B = new()",)),
    Source("class C:\n    def __call__(self): return self.v\nc = C()\nc.v = 1", "c()", ("c.v = new()",)),
    Source("class C:\n    __slots__ = ('v',)\nc = C()\nc.v = 1", "c.v", ("c.v = new()",)),
    Source("class C:\n    def m(self): return self.v\nc = C()\nc.v = 1\nf = c.m", "f()", ("c.v = new()",)),
    Source("class C(list): pass\nc = C([1])", "c[0]", ("c[0] = new()",)),
    Source(
        "class D: v = 1\nclass E: v = 2\nclass C(D): pass",
        "C.v",
        ("C.__bases__ = (E,)", "C.__bases__ = (D,)"),
    ),
    Source("class D: v = 1\nclass E: v = 2\nc = D()", "c.v", ("c.__class__ = E", "c.__class__ = D")),
    Source(
        "@dataclasses.dataclass\nclass R:\n    v: int = 1\nr = R()",
        "r.v",
        ("r.v = new()", "r = R(new())"),
    ),
    Source(
        "@dataclasses.dataclass(frozen=True)\nclass R:\n    v: int = 1\nr = R()",
        "r.v",
        ("object.__setattr__(r, 'v', new())",),
    ),
    Source("N = collections.namedtuple('N', 'v')\nn = N([1])", "n.v[0]", ("n.v[0] = new()",)),
    Source("class E(enum.Enum):\n    X = 1", "E.X.value", ("E.X._value_ = new()",)),
    Source("class E(enum.Enum):\n    X = [1]", "E.X.value[0]", ("E.X.value[0] = new()",)),
    Source("class E(enum.IntEnum):\n    X = 1", "getattr(E.X, 'v', 0)", ("E.X.v = new()",)),
    Source("d = collections.defaultdict(lambda: B)\nB = 1", "d.get(1, B)", ("B = new()",)),
    Source("q = collections.deque([1])", "q[0]", ("q[0] = new()",)),
    Source("ns = types.SimpleNamespace(v=1)", "ns.v", ("ns.v = new()",)),
    Source("m = types.MappingProxyType(D := {'v': 1})", "m['v']", ("D['v'] = new()",)),
    # modules
    Source("m = package('m', v=1)", "m.v", ("m.v = new()", "m = package('m', v=new())")),
    Source(
        "m = package('m', s=package('m.s', v=1))",
        "m.s.v",
        ("m.s.v = new()", "m.s = package('s', v=new())"),
    ),
    Source("m = package('m', v=1)", "(lambda o: o.v)(m)", ("m.v = new()",)),
    Source("m = package('m', v=1)", "getattr(m, 'w', 0)", ("m.w = new()",)),
    Source("m = package('m', v=1)", "vars(m)['v']", ("m.v = new()",)),
    Source(
        "sys.modules['stale_fuzz'] = package('stale_fuzz', v=1)\n"
        "def f():\n    import stale_fuzz\n    return stale_fuzz.v",
        "f()",
        ("sys.modules['stale_fuzz'].v = new()",),
    ),
    Source(
        "def f():\n    from math import sqrt\n    return sqrt(4)",
        "f()",
        ("patch(math, 'sqrt', lambda v, r=new(): r)", "restore()"),
    ),
    Source("", "math.sqrt(4)", ("patch(math, 'sqrt', lambda v, r=new(): r)", "restore()")),
    Source("", "math.pi", ("patch(math, 'pi', new())", "restore()")),
    Source("", "int(np.prod((2, 3)))", ("patch(np, 'prod', lambda v, r=new(), **k: r)", "restore()")),
    Source("", "int(np.square(3))", ("patch(np, 'square', lambda v, r=new(): r)", "restore()")),
    Source("", "operator.add(1, 2)", ("patch(operator, 'add', lambda a, b, r=new(): r)", "restore()")),
    Source("", "nl.num_programs(0)", ("patch(nl, 'num_programs', lambda a, r=new(): r)", "restore()")),
    Source(
        "",
        "(lambda m: m.num_programs(0))(nl)",
        ("patch(nl, 'num_programs', lambda a, r=new(): r)", "restore()"),
    ),
    Source(
        "",
        "nl.tile_size.pmax",
        ("patch(nl, 'tile_size', types.SimpleNamespace(pmax=new()))", "restore()"),
    ),
    Source("", "oct(8)", ("patch(builtins, 'oct', lambda v, r=new(): r)", "restore()")),
    Source("", "getattr(math, 'late', 0)", ("math.late = new()", "math.__dict__.pop('late', 0)")),
    # the world outside
    Source("", "time.time_ns()", kind="later"),
    Source("now = time.time_ns", "now()", kind="later"),
    Source("now = functools.partial(time.time_ns)", "now()", kind="later"),
    Source("def f(clock=time.time_ns): return clock()", "f()", kind="later"),
    Source("", "time.perf_counter_ns()", kind="later"),
    Source("", "datetime.datetime.now().timestamp()", kind="later"),
    Source("class C: now = staticmethod(time.time_ns)", "C.now()", kind="later"),
    Source("clocks = (time.time_ns,)", "clocks[0]()", kind="later"),
    Source("def f(clock): return clock()", "f(given)", kind="later", arguments="time.time_ns"),
    Source("", "int.from_bytes(os.urandom(8), 'big')", kind="other"),
    Source("", "uuid.uuid4().int", kind="other"),
    Source("", "float(np.random.rand())", kind="other"),
    Source("r = np.random.rand", "float(r())", kind="other"),
    Source("def f():\n    import numpy\n    return float(numpy.random.rand())", "f()", kind="other"),
    Source("", "random.random()", kind="other"),
    Source("r = random.random", "r()", kind="other"),
    Source("r = random.Random(5)", "r.random()", kind="other"),
    Source("r = np.random.RandomState(5)", "float(r.rand())", kind="other"),
    Source("", "os.environ.get('STALE_FUZZ', '0')", ("os.environ['STALE_FUZZ'] = str(new())",)),
    Source("", "os.getenv('STALE_FUZZ', '0')", ("os.environ['STALE_FUZZ'] = str(new())",)),
    Source("path.write_text('1')", "open(path).read()", ("path.write_text(str(new()))",)),
    Source("path.write_text('1')", "path.read_text()", ("path.write_text(str(new()))",)),
    Source("", "path.exists()", ("path.write_text('1')", "path.unlink(missing_ok=True)")),
    Source("v = contextvars.ContextVar('v', default=1)", "v.get()", ("v.set(new())",)),
    Source("t = threading.local()\nt.v = 1", "t.v", ("t.v = new()",)),
    Source("", "len(sys.argv)", ("sys.argv = [*sys.argv, 'x']", "sys.argv = sys.argv[:1]")),
    Source("class C: pass\nc = C()\nr = weakref.ref(c)", "r() is None", ("c = None",)),
    # what it prints
    Source("", "print('a')"),
    Source("p = print", "p('a')"),
    Source("", "sys.stdout.write('a')"),
    Source("def f(p): p('a')", "f(given)", arguments="print"),
    Source("f = functools.partial(print, 'a')", "f()"),
    # arguments
    Source("class C:\n    v = 1", "given.v", ("C.v = new()",), arguments="C"),
    Source("B = 1\ndef f(): return B", "given()", ("B = new()",), arguments="f"),
    Source("B = 1", "given[1]", ("B = new()",), arguments="collections.defaultdict(lambda b=B: b)"),
    Source("B = 1", "given", ("B = new()", "B = 1.0", "B = True"), arguments="B"),
    Source("B = [1]", "given['x'][0]", ("B[0] = new()",), arguments="{'x': B}"),
    Source("m = package('m', v=1)", "given.v", ("m.v = new()",), arguments="m"),
    Source(
        "class E(enum.Enum):\n    X = 1\n    def m(self): return B\nB = 1",
        "given.m()",
        ("B = new()",),
        arguments="E.X",
    ),
]
FORMS = [  # ways to read
    "{}",
    "(lambda: {})()",
    "[{} for _ in range(1)][0]",
    "next(v for v in ({},))",
    "max([0], key=lambda _: 0) or {}",
]
MODULES = [
    contextlib,
    random,
    sys,
    types,
    builtins,
    collections,
    contextvars,
    copy,
    copyreg,
    dataclasses,
    abc,
    array,
    datetime,
    decimal,
    enum,
    fractions,
    re,
    secrets,
    string,
    typing,
    functools,
    io,
    itertools,
    math,
    operator,
    os,
    threading,
    time,
    uuid,
    weakref,
]
