"""More of what a kernel's Python may read: classes of modules and classes, aliases of types, hidden state."""

from __future__ import annotations

from stale_sources import Source

MODULE = "class M(types.ModuleType):\n    @property\n    def v(self): return 7\n"
META = "class M(enum.EnumMeta):\n    def __getitem__(cls, name): return 7\nclass C(enum.Enum):\n    v = 1\n"
RECORD = "@dataclasses.dataclass\nclass R"

CLASSES = [
    # another class of a module or class
    Source(f"{MODULE}m = package('m', v=1)", "m.v", ("m.__class__ = M", "m.__class__ = types.ModuleType")),
    Source(
        f"{MODULE}sys.modules['stale_c'] = package('stale_c', v=1)\n"
        "def f():\n    import stale_c\n    return stale_c.v",
        "f()",
        ("sys.modules['stale_c'].__class__ = M", "sys.modules['stale_c'].__class__ = types.ModuleType"),
    ),
    Source(
        META,
        "str(C['v'])",
        ("type.__setattr__(C, '__class__', M)", "type.__setattr__(C, '__class__', enum.EnumMeta)"),
    ),
    # what reads attributes by text, from modules that are known
    Source(
        "B = 5\ndef f(): return 0\n"
        "def g():\n    o = operator\n    return o.attrgetter('__globals__')(f)['B']",
        "g()",
        ("B = new()",),
    ),
    Source(
        "B = 5\ndef f(): return 0\n"
        "def g():\n    from operator import attrgetter as get\n    return get('__globals__')(f)['B']",
        "g()",
        ("B = new()",),
    ),
    # objects that look like others
    Source(
        "class C:\n    v, func = 1, 3\n    def with_schedule(self): pass\nc = C()", "c.v", ("c.v = new()",)
    ),
    Source("class C:\n    v = 1\n    def with_schedule(self): pass\nc = C()", "c.v", ("C.v = new()",)),
    Source(
        "class C:\n    v, func = 1, 3\n    def with_schedule(self): pass\nc = C()",
        "given.v",
        ("c.v = new()",),
        arguments="c",
    ),
    Source(
        "class C:\n    v = 1\n    __class__ = property(lambda self: int)\nc = C()",
        "given.v",
        ("c.v = new()",),
        arguments="c",
    ),
    Source("class C:\n    v = 1\nC.__module__ = 'typing'\nc = C()", "c.v", ("c.v = new()",)),
    Source("T = typing.NewType('T', int)\nT.v = 1", "T.v", ("T.v = new()",)),
    # aliases of types
    Source(
        "T = typing.TypeVar('T')\nclass C(typing.Generic[T]):\n    v = 1\nA = C[int]", "A.v", ("C.v = new()",)
    ),
    Source(
        "class C:\n    v = 1\n    __class_getitem__ = classmethod(types.GenericAlias)\nA = C[int]",
        "A().v",
        ("C.v = new()",),
    ),
    # state that is in no __dict__, or in one that is easily forgotten
    Source("class C:\n    __slots__ = ('v',)\ndel C.__slots__\nc = C()\nc.v = 1", "c.v", ("c.v = new()",)),
    Source("A = collections.OrderedDict(a=1)\nA.v = 1", "A.v", ("A.v = new()",)),
    Source("A = collections.OrderedDict(a=1)\nA.v = 1", "given.v", ("A.v = new()",), arguments="A"),
    Source(
        f"{RECORD}:\n    __slots__ = ('v', 'w')\n    v: int\nr = R(1)\nr.w = 1",
        "given.w",
        ("r.w = new()",),
        arguments="r",
    ),
    Source(
        f"class D:\n    __slots__ = ('w',)\n{RECORD}(D):\n    v: int\nr = R(1)\nr.w = 1",
        "given.w",
        ("r.w = new()",),
        arguments="r",
    ),
    Source(
        f"{RECORD}(Exception):\n    v: int\nr = R(1)", "given.args", ("r.args = (new(),)",), arguments="r"
    ),
    Source(
        f"{RECORD}(float):\n    v: int = 1\n    def __init__(self, x): pass\nB = 1",
        "float(given)",
        ("B = new()",),
        arguments="R(B)",
    ),
    Source(
        "class C:\n    __abstractmethods__ = frozenset()\n"
        "def f():\n    try: return C() and 0\n    except TypeError: return 1",
        "f()",
        ("C.__abstractmethods__ = frozenset(['a'])", "C.__abstractmethods__ = frozenset()"),
    ),
    Source(
        "A = np.dtype((np.dtype([('a', 'i4')]), (2,)))", "A.base.names[0]", ("A.base.names = (str(new()),)",)
    ),
    Source(
        "class C:\n    v = 1\nc = C()",
        "copy.copy(c).v",
        ("copyreg.pickle(C, lambda c, v=new(): (types.SimpleNamespace, (), {'v': v}))",),
    ),
    # numbers that print alike
    Source("A = 1.0", "math.copysign(1, given)", ("A = -A",), arguments="math.copysign(math.nan, A)"),
    Source(
        "A = 1.0",
        "math.copysign(1, given.real)",
        ("A = -A",),
        arguments="complex(math.copysign(math.nan, A))",
    ),
]
