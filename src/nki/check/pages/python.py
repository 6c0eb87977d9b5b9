"""Python that compilers refuse: a sample of each rule, the lines of a kernel (x, y, n)."""

SAMPLES: dict[str, tuple[str, str]] = {
    "py-inner-def": (
        "@nki.jit\ndef kernel(x, y, n):\n    def twice(v): return v",
        "@nki.jit\ndef kernel(x, y, n):\n    def body(i): nisa.memset(x, 0)\n    nl.fori_loop(0, n, body)",
    ),
    "py-lambda": (
        "@nki.jit\ndef kernel(x, y, n):\n    f = lambda v: v",
        "@nki.jit\ndef kernel(x, y, n):\n    f = nl.add",
    ),
    "py-class-in-function": (
        "@nki.jit\ndef kernel(x, y, n):\n    class Local: pass",
        "@nki.jit\ndef kernel(x, y, n):\n    box = NKIObject()",
    ),
    "py-comprehension": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = [i for i in range(n)]",
        "@nki.jit\ndef kernel(x, y, n):\n    v = []\n    for i in range(n):\n        v.append(i)",
    ),
    "py-try": (
        "@nki.jit\ndef kernel(x, y, n):\n    try:\n        n = 1\n    finally:\n        n = 2",
        "@nki.jit\ndef kernel(x, y, n):\n    n = 1 if n else 2",
    ),
    "py-raise": (
        "@nki.jit\ndef kernel(x, y, n):\n    raise ValueError",
        "@nki.jit\ndef kernel(x, y, n):\n    assert n > 0, 'positive'",
    ),
    "py-import": (
        "@nki.jit\ndef kernel(x, y, n):\n    import math",
        "@nki.jit\ndef kernel(x, y, n):\n    v = math.sqrt(n)",
    ),
    "py-global": (
        "@nki.jit\ndef kernel(x, y, n):\n    global counter\n    counter = 1",
        "@nki.jit\ndef kernel(x, y, n):\n    counter = 1",
    ),
    "py-nonlocal": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = 0\n    def body(i):\n        nonlocal v\n    nl.fori_loop(0, n, body)",
        "@nki.jit\ndef kernel(x, y, n):\n    v = {}\n    def body(i):\n        v['i'] = 1\n    nl.fori_loop(0, n, body)",
    ),
    "py-del": ("@nki.jit\ndef kernel(x, y, n):\n    del n", "@nki.jit\ndef kernel(x, y, n):\n    n = None"),
    "py-match": (
        "@nki.jit\ndef kernel(x, y, n):\n    match n:\n        case 1: pass",
        "@nki.jit\ndef kernel(x, y, n):\n    if n == 1: pass",
    ),
    "py-type-alias": (
        "@nki.jit\ndef kernel(x, y, n):\n    type T = int",
        "@nki.jit\ndef kernel(x, y, n):\n    v: int = 0",
    ),
    "py-async": ("async def kernel(x): pass", "def kernel(x): pass"),
    "py-yield": (
        "@nki.jit\ndef kernel(x, y, n):\n    yield n",
        "@nki.jit\ndef kernel(x, y, n):\n    return n",
    ),
    "py-walrus": (
        "@nki.jit\ndef kernel(x, y, n):\n    if (v := n): pass",
        "@nki.jit\ndef kernel(x, y, n):\n    v = n\n    if v: pass",
    ),
    "py-await": ("async def kernel(x): await x", "def kernel(x): x()"),
    "py-for-else": (
        "@nki.jit\ndef kernel(x, y, n):\n    for i in range(n): pass\n    else: n = 1",
        "@nki.jit\ndef kernel(x, y, n):\n    for i in range(n): pass",
    ),
    "py-while-else": (
        "@nki.jit\ndef kernel(x, y, n):\n    while n: n -= 1\n    else: n = 1",
        "@nki.jit\ndef kernel(x, y, n):\n    while n: n -= 1",
    ),
    "py-for-target": (
        "@nki.jit\ndef kernel(x, y, n):\n    for a, b in y: pass",
        "@nki.jit\ndef kernel(x, y, n):\n    for pair in y:\n        a = pair[0]",
    ),
    "py-starred": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = min(*y)",
        "@nki.jit\ndef kernel(x, y, n):\n    v = min(y[0], y[1])",
    ),
    "py-varargs": ("def kernel(*args): pass", "def kernel(args): pass"),
    "kw-only-separator": ("def kernel(x, *, flag=True): pass", "def kernel(x, flag=True): pass"),
    "py-is": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = n is True",
        "@nki.jit\ndef kernel(x, y, n):\n    v = n is None or n is not None",
    ),
    "py-in": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = n in {'a': 1}",
        "@nki.jit\ndef kernel(x, y, n):\n    v = n in (1, 2) or n in [1] or n in 'text' or n in y",
    ),
    "py-matmul-operator": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = x @ y",
        "@nki.jit\ndef kernel(x, y, n):\n    v = nl.matmul(x, y)",
    ),
    "py-tile-arithmetic": (
        "@nki.jit\ndef kernel(x, y, n):\n    t = nl.load(x)\n    u = t * 2",
        "@nki.jit\ndef kernel(x, y, n):\n    t = nl.load(x)\n    u = nl.multiply(t, 2)",
    ),
    "py-tile-setitem": (
        "@nki.jit\ndef kernel(x, y, n):\n    t = nl.ndarray((1, 1), y)\n    t[0, 0] = 1",
        "@nki.jit\ndef kernel(x, y, n):\n    t = []\n    t[0] = 1",
    ),
    "py-mutating-targets": (
        "@nki.jit\ndef kernel(x, y, n):\n    x[0], y[0] = 1, 2",
        "@nki.jit\ndef kernel(x, y, n):\n    a, b = 1, 2",
    ),
    "py-attribute-target": (
        "@nki.jit\ndef kernel(x, y, n):\n    t = nl.load(x)\n    t.tag = 1",
        "@nki.jit\ndef kernel(x, y, n):\n    box = NKIObject()\n    box.tag = 1",
    ),
    "py-with": (
        "@nki.jit\ndef kernel(x, y, n):\n    with open(n) as f: pass",
        "@nki.jit\ndef kernel(x, y, n):\n    with nl.no_reorder(): pass",
    ),
    "py-decorator": (
        "def plain(f): return f\n@plain\ndef kernel(x): pass",
        "@nki.jit(platform_target='trn2')\ndef kernel(x): pass",
    ),
    "py-base-class": (
        "class Box(dict): pass\ndef kernel(x): Box()",
        "class Box(NKIObject): pass\nclass Pair(NamedTuple):\n    a: int\nclass Mode(Enum):\n    A = 1\ndef kernel(x): Box(); Pair(1); Mode.A",
    ),
    "py-class-keywords": (
        "class Box(NKIObject, metaclass=type): pass\ndef kernel(x): Box()",
        "class Box(NKIObject): pass\ndef kernel(x): Box()",
    ),
    "py-class-statement": (
        "class Box(NKIObject):\n    if True: a = 1\ndef kernel(x): Box()",
        "class Box(NKIObject):\n    'A box.'\n    a: int = 1\n    b = 2\ndef kernel(x): Box()",
    ),
    "py-fstring-spec": (
        "@nki.jit\ndef kernel(x, y, n):\n    assert n, f'{n:.2f}'",
        "@nki.jit\ndef kernel(x, y, n):\n    assert n, f'{n} {n!r} {n=}'",
    ),
    "py-string-subscript": (
        "@nki.jit\ndef kernel(x, y, n):\n    s = 'abc'\n    v = s[0]",
        "@nki.jit\ndef kernel(x, y, n):\n    s = ['a', 'b']\n    v = s[0]",
    ),
    "py-dict-key": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = {1: 2}",
        "@nki.jit\ndef kernel(x, y, n):\n    v = {'one': 2}",
    ),
    "py-set": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = {1, 2}",
        "@nki.jit\ndef kernel(x, y, n):\n    v = (1, 2)",
    ),
    "py-bytes": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = b'a'",
        "@nki.jit\ndef kernel(x, y, n):\n    v = 'a'",
    ),
    "py-complex": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = 2j",
        "@nki.jit\ndef kernel(x, y, n):\n    v = 2.0",
    ),
    "py-builtin": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = sorted(y)",
        "@nki.jit\ndef kernel(x, y, n):\n    v = divmod(len(y), 2)",
    ),
    "py-list-method": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = [2, 1]\n    v.sort()",
        "@nki.jit\ndef kernel(x, y, n):\n    v = [2, 1]\n    v.append(n)",
    ),
    "py-dict-method": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = {'a': 1}\n    v.update(y)",
        "@nki.jit\ndef kernel(x, y, n):\n    v = {'a': 1}\n    w = v.get('a')",
    ),
    "py-slice-negative-step": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = x[::-1]",
        "@nki.jit\ndef kernel(x, y, n):\n    v = x[::2]",
    ),
    "py-out-of-range-slice": (
        "@nki.jit\ndef kernel(x, y, n):\n    v = [1, 2]\n    w = v[0:3]",
        "@nki.jit\ndef kernel(x, y, n):\n    v = [1, 2]\n    w = v[-2:2]",
    ),
    "py-numpy-call": (
        "@nki.jit\ndef kernel(x, y, n):\n    t = nl.load(x)\n    v = np.sqrt(t)",
        "@nki.jit\ndef kernel(x, y, n):\n    t = nl.load(x)\n    v = np.sqrt(t.shape[0])",
    ),
    "py-runtime-branch": (
        "@nki.jit\ndef kernel(x, y, n):\n    r = nisa.register_alloc(1)\n    if r: pass",
        "@nki.jit\ndef kernel(x, y, n):\n    r = nisa.register_alloc(1)\n    while r: pass",
    ),
    "py-closure-mutable": (
        "def make():\n    v = []\n    v.append(1)\n    def kernel(x): return v\n    return kernel\nkernel = make()",
        "def make():\n    v = [1]\n    def kernel(x): return v\n    return kernel\nkernel = make()",
    ),
    "py-global-read": (
        "size = 1\nsize = 2\ndef kernel(x): return size",
        "size = 1\ndef kernel(x): return size",
    ),
    "py-shadow-nl": (
        "@nki.jit\ndef kernel(x, y, n):\n    nl = n",
        "@nki.jit\ndef kernel(x, y, n):\n    length = n",
    ),
    "py-big-int": (
        "@nki.jit\ndef kernel(x, y, n):\n    nisa.memset(x, 1 << 40)",
        "@nki.jit\ndef kernel(x, y, n):\n    nisa.memset(x, 1 << 31)",
    ),
    "legacy-namespace": (
        "if False:\n    import neuronxcc.nki.language as old\ndef kernel(x): old.load(x)",
        "def kernel(x): nl.load(x)",
    ),
    "py-object-eq": (
        "class Box(NKIObject): pass\ndef kernel(x): return Box() == Box()",
        "@dataclass\nclass Box(NKIObject): pass\ndef kernel(x): return Box() == Box()",
    ),
    "nested-dynamic-range": (
        "@nki.jit\ndef kernel(x, y, n):\n    for i in nl.dynamic_range(n):\n        for j in nl.dynamic_range(n): pass",
        "@nki.jit\ndef kernel(x, y, n):\n    for i in nl.dynamic_range(n):\n        for j in range(n): pass\n    for i in nl.dynamic_range(n): pass",
    ),
}
