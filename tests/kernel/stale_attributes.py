"""More of what a kernel's Python may read: names of functions, parts of classes, attributes by text."""

from __future__ import annotations

from stale_sources import Source

ATTRIBUTES = [
    # names, classes and objects
    Source("def f(): pass", "f.__name__", ("f.__name__ = str(new())",)),
    Source("def f(): pass", "f.__qualname__", ("f.__qualname__ = str(new())",)),
    Source("def f(): pass", "f.__doc__", ("f.__doc__ = str(new())",)),
    Source("def f(): pass", "f.__module__", ("f.__module__ = str(new())",)),
    Source("def f(x: int): pass", "str(f.__annotations__)", ("f.__annotations__['x'] = new()",)),
    Source("class C: pass", "C.__name__", ("C.__name__ = str(new())",)),
    Source("class C: pass", "C.__qualname__", ("C.__qualname__ = str(new())",)),
    Source("class C: pass", "C.__doc__", ("C.__doc__ = str(new())",)),
    Source("class C: pass", "C.__module__", ("C.__module__ = str(new())",)),
    Source("class C: pass", "repr(C)", ("C.__module__ = str(new())", "C.__qualname__ = str(new())")),
    Source("class C:\n    v: int = 1", "str(C.__annotations__)", ("C.__annotations__['v'] = new()",)),
    Source("class C: pass", "type(C()).__name__", ("C.__name__ = str(new())",)),
    Source(
        "B = 1\nclass E(enum.Enum):\n    X = 1\n    def __str__(self): return str(B)",
        "str(E.X)",
        ("B = new()",),
    ),
    Source(
        "B = 1\nclass E(enum.Enum):\n    X = 1\n    def __bool__(self): return B > 500",
        "bool(E.X)",
        ("B = new()",),
    ),
    Source(
        "B = 1\nclass E(enum.Enum):\n    X = 1\n    Y = 2\n"
        "    @classmethod\n    def _missing_(cls, v): return cls.X if B % 2 else cls.Y",
        "E(9).name",
        ("B = new()",),
    ),
    Source("class E(enum.Enum):\n    X = 1", "len(E)", ("E._member_names_.append('X')",)),
    Source("class E(enum.Enum):\n    X = 1", "'Y' in E._member_map_", ("E._member_map_['Y'] = E.X",)),
    Source(
        "class E(enum.Enum):\n    X = 1\n    Y = 2",
        "E(3 - 1).name",
        ("E._value2member_map_[2] = E.X", "E._value2member_map_[2] = E.Y"),
    ),
    Source("class E(enum.Enum):\n    X = 1\n    Y = 2", "[m.value for m in E]", ("E.X._value_ = new()",)),
    Source(
        "D = {'v': 1}\n@dataclasses.dataclass\nclass R:\n"
        "    v: int = dataclasses.field(default=1, metadata=D)",
        "dataclasses.fields(R)[0].metadata['v']",
        ("D['v'] = new()",),
    ),
    Source(
        "@dataclasses.dataclass\nclass R:\n    v: int = 1",
        "dataclasses.fields(R)[0].default",
        ("R.__dataclass_fields__['v'].default = new()",),
    ),
    Source(
        "@dataclasses.dataclass\nclass R:\n    v: float = dataclasses.field(default_factory=time.time)",
        "R().v",
        kind="later",
    ),
    Source(
        "class C:\n    __match_args__ = ('a', 'b')\n    a, b = 1, 2\nc = C()\n"
        "def f():\n    match c:\n        case C(v): return v",
        "f()",
        ("C.__match_args__ = ('a',)", "C.__match_args__ = ('b',)"),
    ),
    Source(
        "B = 5\nF = type(lambda: 0)\ndef f():\n    match f:\n        case F(__globals__=g): return g['B']",
        "f()",
        ("B = new()",),
    ),
    Source("B = 5\ndef f(): return B", "'{f.__globals__[B]}'.format_map({'f': f})", ("B = new()",)),
    Source("B = 5\ndef f(): return 0\nN = '__globals__'", "getattr(f, N)['B']", ("B = new()",)),
    Source("B = 5\ndef f(): return 0\nN = '{0.__globals__[B]}'", "N.format(f)", ("B = new()",)),
    Source("B = 5\ndef f(): return 0\nN = '__globals__'", "operator.attrgetter(N)(f)['B']", ("B = new()",)),
    Source("B = 5\ndef f(): return 0\nN = '_'", "getattr(f, N + N + 'globals' + N + N)['B']", ("B = new()",)),
    Source("B = 5\ndef f(): return 0", "getattr(f, given)['B']", ("B = new()",), arguments="'__globals__'"),
    Source(
        "B = 5\ndef f(): return 0",
        "string.Formatter().vformat('{0.__globals__[B]}', (f,), {})",
        ("B = new()",),
    ),
    Source("B = 5", "getattr((i for i in ()), 'gi_frame').f_globals['B']", ("B = new()",)),
    Source("B = 5", "operator.attrgetter('gi_frame.f_globals')((i for i in ()))['B']", ("B = new()",)),
    Source("B = 5\nf = functools.partial(int)", "getattr(f, 'v', 0)", ("f.v = new()",)),
    Source("f = functools.partial(int, 5)", "f()", ("f.__setstate__((int, (new(),), {}, None))",)),
    Source("s = staticmethod(len)", "getattr(s, 'v', 0)", ("s.v = new()",)),
    Source("class C: pass", "isinstance(C(), collections.abc.Sized)", ("collections.abc.Sized.register(C)",)),
    Source(
        "B = int\ndef f(x: 'B'): pass",
        "typing.get_type_hints(f)['x'].__name__",
        ("B = float", "B = str", "B = int"),
    ),
    Source("", "nl.tile_size.pmax", ("patch(nl.tile_size, 'pmax', new())", "restore()")),
    Source("", "str(nl.float32)", ("patch(nl, 'float32', nl.int32)", "restore()")),
    Source("", "getattr(nl.ndarray, 'v', 0)", ("nl.ndarray.v = new()",)),
    Source("", "secrets.randbits(60)", kind="other"),
    Source("r = secrets.token_bytes", "r(8)", kind="other"),
    Source("", "uuid.uuid1().int", kind="other"),
    Source("r = random.SystemRandom()", "r.random()", kind="other"),
    Source("r = np.random.default_rng(1)", "float(r.random())", kind="other"),
    Source("", "float(np.random.default_rng().random())", kind="other"),
    Source("", "os.environ['STALE_FUZZ']", ("os.environ['STALE_FUZZ'] = str(new())",)),
    Source("e = os.environ", "e['STALE_FUZZ']", ("os.environ['STALE_FUZZ'] = str(new())",)),
    Source("", "time.monotonic()", kind="later"),
    Source("", "time.process_time_ns()", kind="later"),
    Source("from datetime import datetime as dt", "dt.utcnow().timestamp()", kind="later"),
    Source("@functools.lru_cache\ndef f(v): return v + B\nB = 1", "f(1)", ("B = new()", "f.cache_clear()")),
    Source("def f(v=[]):\n    v.append(1)\n    return len(v)", "f()", kind="other"),
    Source("def f(v={}):\n    v[len(v)] = 1\n    return len(v)", "f()", kind="other"),
    Source("m = package('m')\nm.__getattr__ = lambda name: B\nB = 1", "m.anything", ("B = new()",)),
    Source("class P(property): pass\nB = 1\nclass C:\n    m = P(lambda s: B)", "C().m", ("B = new()",)),
    Source(
        "class M(type):\n    @property\n    def v(cls): return B\nclass C(metaclass=M): pass\nB = 1",
        "C.v",
        ("B = new()",),
    ),
    Source(
        "class D:\n    def __get__(self, i, o): return B\nclass C:\n    v = D()\nB = 1",
        "C().v",
        ("B = new()",),
    ),
    Source("class D:\n    def __getattribute__(self, n): return B\nc = D()\nB = 1", "c.x", ("B = new()",)),
    Source("class C:\n    def __add__(self, o): return B\nc = C()\nB = 1", "c + 1", ("B = new()",)),
    Source("class C:\n    def __class_getitem__(cls, o): return B\nB = 1", "C[1]", ("B = new()",)),
    Source(
        "class C:\n    def __init_subclass__(cls): cls.v = B\n"
        "B = 1\ndef f():\n    class D(C): pass\n    return D.v",
        "f()",
        ("B = new()",),
    ),
    Source("class C(abc.ABC):\n    v = 1", "C.v", ("C.v = new()",)),
    Source("class T(typing.NamedTuple):\n    v: int = 1", "T().v", ("T.__new__.__defaults__ = (new(),)",)),
    Source(
        "class T(typing.NamedTuple):\n    v: int = 1",
        "T._field_defaults['v']",
        ("T._field_defaults['v'] = new()",),
    ),
    Source(
        "N = collections.namedtuple('N', 'v', defaults=[1])", "N().v", ("N.__new__.__defaults__ = (new(),)",)
    ),
    Source(
        "@functools.singledispatch\ndef f(v): return 0", "f(1)", ("f.register(int, lambda v, r=new(): r)",)
    ),
    Source("def g():\n    while True: yield B\nB = 1\ng0 = g()", "next(g0)", ("B = new()",)),
    Source("A = array.array('i', [1])", "A[0]", ("A[0] = new()",)),
    Source("D = bytearray(b'abc')\nA = memoryview(D)", "A[0]", ("D[0] = new() % 256",)),
    Source("A = np.array(1.0)", "float(A)", ("A[...] = new()",)),
    Source("A = np.ma.array([1])", "int(A[0])", ("A[0] = new()",)),
    Source("A = collections.ChainMap({'v': 1})", "A['v']", ("A['v'] = new()",)),
    Source("A = collections.Counter('a')", "A['a']", ("A['a'] = new()",)),
    Source("A = collections.OrderedDict(a=1)", "A['a']", ("A['a'] = new()",)),
    Source(
        "A = collections.OrderedDict(a=1, b=2)", "next(iter(A))", ("A.move_to_end('a')", "A.move_to_end('b')")
    ),
    Source("A = collections.UserList([1])", "A[0]", ("A[0] = new()",)),
    Source(
        "@dataclasses.dataclass\nclass R:\n    v: int = 1\nr = R()\nr.extra = 1",
        "getattr(given, 'extra', 0)",
        ("r.extra = new()",),
        arguments="r",
    ),
    Source(
        "class R: pass\nr = R()\nr.extra = 1",
        "getattr(given, 'extra', 0)",
        ("r.extra = new()",),
        arguments="r",
    ),
    Source(
        "class R(tuple): pass\nr = R((1,))\nr.extra = 1",
        "getattr(given, 'extra', 0)",
        ("r.extra = new()",),
        arguments="r",
    ),
    Source(
        "class R(int): pass\nr = R(1)\nr.extra = 1",
        "getattr(given, 'extra', 0)",
        ("r.extra = new()",),
        arguments="r",
    ),
    Source(
        "class R(str): pass\nr = R(1)\nr.extra = 1",
        "getattr(given, 'extra', 0)",
        ("r.extra = new()",),
        arguments="r",
    ),
    Source("p = functools.partial(sum, B := [1])", "given()", ("B[0] = new()",), arguments="p"),
    Source("B = 1", "given()", ("B = new()",), arguments="lambda: B"),
    Source(
        "class C:\n    def m(self): return self.v\nc = C()\nc.v = 1",
        "given()",
        ("c.v = new()",),
        arguments="c.m",
    ),
    Source(
        "A = np.array([1, 2])",
        "int(given['a'][0]) if isinstance(given['a'], (list, tuple)) else 0",
        ("A[0] = new()",),
        arguments="{'a': A.tolist()}",
    ),
    Source("A = {1, 2}", "sum(given)", ("A.add(new())",), arguments="A"),
    Source("A = frozenset({1})", "sum(given)", ("A = frozenset({new()})",), arguments="A"),
    Source("A = slice(1)", "given.stop", ("A = slice(new())",), arguments="A"),
    Source("A = bytearray(b'a')", "given[0]", ("A[0] = new() % 256",), arguments="A"),
    Source("A = collections.deque([1])", "given[0]", ("A[0] = new()",), arguments="A"),
    Source("A = types.SimpleNamespace(v=1)", "given.v", ("A.v = new()",), arguments="A"),
    Source(
        "A = decimal.Decimal(1)", "decimal.Decimal(1) / 3", ("decimal.getcontext().prec = new() % 20 + 1",)
    ),
    Source("A = 1", "complex(A).real", ("A = new()",)),
    Source("A = '1'\nX = type('X', (), {'v': 1})", "X.v", ("X.v = new()",)),
    Source("X = type('X', (), {})\nX.f = lambda s: B\nB = 1", "X().f()", ("B = new()",)),
    Source(
        "B = 1\ndef dec(f):\n    f.v = 1\n    return f\n@dec\ndef g(): return g.v", "g()", ("g.v = new()",)
    ),
    Source("B = [1]\nclass C:\n    v = B", "C.v[0]", ("B[0] = new()",)),
    Source("class C:\n    v = np.zeros(1)", "float(C.v[0])", ("C.v[0] = new()",)),
    Source(
        "class C:\n    v = functools.cached_property(lambda s: B)\nB = 1\nc = C()",
        "c.v",
        ("B = new()", "vars(c).clear()"),
    ),
    Source("f = lambda: sys.getrecursionlimit()", "f()", ("sys.setrecursionlimit(1000 + new())",)),
    Source("", "sys.flags.optimize + len(sys.path)", ("sys.path = [*sys.path, 'x']", "sys.path.pop()")),
    Source("x = 1\ndef f():\n    class K:\n        v = x\n    return K.v", "f()", ("x = new()",)),
    Source("x = 1\nf = eval('lambda: x')", "f()", ("x = new()",)),
    Source(
        "B = 1\ndef f():\n    try: return int('x')\n"
        "    except ValueError as e: return e.__traceback__.tb_frame.f_globals['B']",
        "f()",
        ("B = new()",),
    ),
    Source("def f(*a, **k): return B, a, k\nB = 1", "f(1, x=2)[0]", ("B = new()",)),
    Source(
        "async def f(): return B\nB = 1\ndef run():\n    c = f()\n"
        "    try: c.send(None)\n    except StopIteration as e: return e.value",
        "run()",
        ("B = new()",),
    ),
    Source(
        "import fractions\nF = fractions.Fraction(1, 2)",
        "F.numerator",
        ("F = fractions.Fraction(new(), 2)", "F._numerator = new()"),
    ),
    Source("A = re.compile('a')", "A.pattern", ("A = re.compile(str(new()))",)),
    Source("m = package('m', f=lambda: 1)", "m.f()", ("m.f = lambda r=new(): r",)),
    Source("from math import sqrt", "sqrt(4)", ("sqrt = lambda v, r=new(): r",)),
    Source(
        "class Meta(enum.EnumMeta):\n    def __getitem__(cls, k): return B\n"
        "class E(enum.Enum, metaclass=Meta):\n    X = 1\nB = 1",
        "E['X']",
        ("B = new()",),
    ),
    Source(
        "class E(int, enum.Enum):\n    X = 1\n    def __int__(self): return B\nB = 1",
        "int(E.X)",
        ("B = new()",),
    ),
    Source(
        "class E(enum.Enum):\n    X = 1\n    def __call__(self): return B\nB = 1", "E.X()", ("B = new()",)
    ),
    Source(
        "class E(enum.Enum):\n    X = 1\n    def __call__(self): return B\nB = 1",
        "given()",
        ("B = new()",),
        arguments="E.X",
    ),
    # getattr and its kind under other names
    Source("B = 5\ndef f(): return 0\nG = getattr", "G(f, '__globals__')['B']", ("B = new()",)),
    Source("B = 5\ndef f(): return 0", "builtins.getattr(f, '__globals__')['B']", ("B = new()",)),
    Source("B = 5\ndef f(): return 0\nG = [getattr]", "G[0](f, '__globals__')['B']", ("B = new()",)),
    Source(
        "B = 5\ndef f(): return 0\ndef g(get=getattr): return get(f, '__globals__')['B']",
        "g()",
        ("B = new()",),
    ),
    Source(
        "B = 5\ndef f(): return 0\nG = functools.partial(getattr, f)", "G('__globals__')['B']", ("B = new()",)
    ),
    Source("B = 5\ndef f(): return 0", "next(map(getattr, [f], ['__globals__']))['B']", ("B = new()",)),
    Source("B = 5\ndef f(): return 0", "given(f, '__globals__')['B']", ("B = new()",), arguments="getattr"),
    Source("B = 5\ndef f(): return 0\nF = str.format", "F('{0.__globals__[B]}', f)", ("B = new()",)),
    Source("B = 5\ndef f(): return 0\nF = '{0.__globals__[B]}'.format", "F(f)", ("B = new()",)),
    Source(
        "B = 5\ndef f(): return 0\nF = str.format_map", "F('{f.__globals__[B]}', {'f': f})", ("B = new()",)
    ),
    Source(
        "G = object.__getattribute__\nB = 5\ndef f(): return 0", "G(f, '__globals__')['B']", ("B = new()",)
    ),
    Source(
        "S = type.__subclasses__\nclass C: pass",
        "len(S(C))",
        ("kept = [*globals().get('kept', ()), type('D', (C,), {})]",),
    ),
    Source(
        "B = 5\ndef f():\n    F = type(f)\n    match f:\n        case F(__globals__=g): return g['B']",
        "f()",
        ("B = new()",),
    ),
    # imports in the body
    Source("def f():\n    import time as t\n    return t.time_ns()", "f()", kind="later"),
    Source("def f():\n    from time import time_ns as now\n    return now()", "f()", kind="later"),
    Source("def f():\n    from os import urandom\n    return urandom(8)", "f()", kind="other"),
    Source(
        "def f():\n    from os import environ\n    return environ['STALE_FUZZ']",
        "f()",
        ("os.environ['STALE_FUZZ'] = str(new())",),
    ),
    Source(
        "sys.modules['stale_a'] = package('stale_a', b=package('stale_a.b', v=1))\n"
        "sys.modules['stale_a.b'] = sys.modules['stale_a'].b\n"
        "def f():\n    import stale_a.b as b\n    return b.v",
        "f()",
        ("sys.modules['stale_a'].b.v = new()", "sys.modules['stale_a'].b = package('b', v=new())"),
    ),
    Source(
        "B = 5\ndef g(): return 0\ndef f():\n    from builtins import getattr as get\n"
        "    return get(g, '__globals__')['B']",
        "f()",
        ("B = new()",),
    ),
    # files and the process
    Source("path.write_text('1' * 99)\nfile = open(path)", "file.read(1) + str(file.tell())", kind="other"),
    Source(
        "path.write_text('1')", "os.path.getsize(path)", ("path.write_text(str(new() * 10 ** (new() % 9)))",)
    ),
    Source(
        "path.write_text('1')",
        "os.path.exists(path)",
        ("path.unlink(missing_ok=True)", "path.write_text('')"),
    ),
    Source("path.write_text('1')", "int(np.loadtxt(path))", ("path.write_text(str(new()))",)),
    Source(
        "np.save(str(path) + '.npy', 1)",
        "int(np.load(str(path) + '.npy'))",
        ("np.save(str(path) + '.npy', new())",),
    ),
    Source(
        "path.write_bytes(b'1')", "np.fromfile(path, 'u1')[0]", ("path.write_bytes(bytes([new() % 256]))",)
    ),
    Source("path.write_text('1')\ntext = path.read_text", "text()", ("path.write_text(str(new()))",)),
    Source("s = io.StringIO('1')", "s.getvalue()", ("s = io.StringIO(str(new()))", "s.write(str(new()))")),
    Source("", "os.environb[b'STALE_FUZZ']", ("os.environ['STALE_FUZZ'] = str(new())",)),
    Source("get = os.getenv", "get('STALE_FUZZ')", ("os.environ['STALE_FUZZ'] = str(new())",)),
    Source("", "os.times().elapsed", kind="later"),
    Source("", "datetime.date.today().toordinal()", kind="later"),
    Source("g = random.Random(1)", "g.getstate()[1][:3]", ("g.seed(new())",)),
    Source("", "np.random.get_state()[1][0]", ("np.random.seed(new())",)),
    Source("", "random.randrange(10**9)", kind="other"),
    Source("", "int(np.random.randint(1 << 60))", kind="other"),
    Source("", "uuid.uuid4().hex", kind="other"),
]
