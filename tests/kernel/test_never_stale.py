"""A call never answers with what an earlier call meant: whatever Python can read may change in between."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import types
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.kernel import words
from support import target, unseen

X = np.arange(8, dtype=np.float32).reshape(2, 4)
RUNS = []
ran = unseen(RUNS)


@pytest.fixture(autouse=True)
def empty_cache():
    nki.kernel.cache.clear()
    RUNS.clear()


def scaled(x, factor):
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, nl.float32)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, float(factor))
    nisa.dma_copy(out, tile)
    return out


def factor_of(kernel, *args):
    return float(kernel(X, *args)[0, 1])


def changes(kernel, change, *args, before=2.0, after=3.0):
    """The kernel scales by `before`, twice, and by `after` once something has changed."""
    assert [factor_of(kernel, *args) for _ in range(2)] == [before, before]
    change()
    assert [factor_of(kernel, *args) for _ in range(2)] == [after, after]


# ---- arguments -----------------------------------------------------------------------------------


class Equal:
    """All of them are equal to each other."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


class Settings:
    factor = 2.0


def test_objects_with_their_own_idea_of_equality():
    kernel = nki.jit(lambda x, o: scaled(x, o.value))
    assert [factor_of(kernel, Equal(v)) for v in (2.0, 3.0)] == [2.0, 3.0]


def test_classes(monkeypatch):
    kernel = nki.jit(lambda x, cls: scaled(x, cls.factor))
    changes(kernel, lambda: monkeypatch.setattr(Settings, "factor", 3.0), Settings)


def test_modules():
    module = types.ModuleType("numbers_of_mine")
    module.factor = 2.0
    kernel = nki.jit(lambda x, m: scaled(x, m.factor))
    changes(kernel, lambda: setattr(module, "factor", 3.0), module)


FACTOR = 2.0


def reads_a_constant():
    return FACTOR


def test_functions_that_read_a_module_constant(monkeypatch):
    kernel = nki.jit(lambda x, f: scaled(x, f()))
    changes(kernel, lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0), reads_a_constant)


def test_sets_of_numbers_of_other_types():
    kernel = nki.jit(lambda x, s: scaled(x, 2.0 if isinstance(next(iter(s)), int) else 3.0))
    assert [factor_of(kernel, s) for s in (frozenset({1}), frozenset({1.0}))] == [2.0, 3.0]


def test_a_set_that_the_kernel_changes_is_changed_by_every_call():
    kernel = nki.jit(lambda x, s: s.add(2) or scaled(x, len(s)))
    sets = [{1}, {1}, {1}]
    assert [factor_of(kernel, s) for s in sets] == [2.0, 2.0, 2.0]
    assert sets == [{1, 2}] * 3


# ---- functions -----------------------------------------------------------------------------------


def helper_of(value):
    def helper():
        return value

    return helper


def test_a_helper_whose_code_changed():
    def helper():
        return 2.0

    def other():
        return 3.0

    kernel = nki.jit(lambda x: scaled(x, helper()))
    changes(kernel, lambda: setattr(helper, "__code__", other.__code__))


def test_a_helper_whose_default_changed():
    def helper(value=2.0):
        return value

    kernel = nki.jit(lambda x: scaled(x, helper()))
    changes(kernel, lambda: setattr(helper, "__defaults__", (3.0,)))


def test_a_helper_whose_keyword_default_changed():
    def helper(*, value=2.0):
        return value

    kernel = nki.jit(lambda x: scaled(x, helper()))
    changes(kernel, lambda: helper.__kwdefaults__.update(value=3.0))


def test_a_helper_whose_closure_changed():
    helper = helper_of(2.0)
    kernel = nki.jit(lambda x: scaled(x, helper()))
    changes(kernel, lambda: setattr(helper.__closure__[0], "cell_contents", 3.0))


class WithMethod:
    def factor(self):
        return FACTOR


def test_a_method_that_reads_a_module_constant(monkeypatch):
    kernel = nki.jit(lambda x: scaled(x, WithMethod().factor()))
    changes(kernel, lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0))


def test_an_attribute_of_a_function():
    def helper():
        return helper.factor

    helper.factor = 2.0
    kernel = nki.jit(lambda x: scaled(x, helper()))
    changes(kernel, lambda: setattr(helper, "factor", 3.0))


def test_the_constant_of_a_decorator(monkeypatch):
    def decorated(function):
        def wrapper(x):
            return function(x, FACTOR)

        return wrapper

    kernel = nki.jit(decorated(scaled))
    changes(kernel, lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0))


# ---- what modules hold ---------------------------------------------------------------------------

TABLE = np.full(1, 2.0)
NUMBERS = [2.0]
BY_NAME = {"factor": 2.0}


@dataclass
class Record:
    factor: float


RECORD = Record(2.0)
INSTANCE = Equal(2.0)


def test_an_array_that_was_rebound(monkeypatch):
    kernel = nki.jit(lambda x: scaled(x, TABLE[0]))
    changes(kernel, lambda: monkeypatch.setitem(globals(), "TABLE", np.full(1, 3.0)))


@pytest.mark.parametrize(
    "read, change",
    [
        (lambda: TABLE[0], lambda v: TABLE.__setitem__(0, v)),
        (lambda: NUMBERS[0], lambda v: NUMBERS.__setitem__(0, v)),
        (lambda: BY_NAME["factor"], lambda v: BY_NAME.__setitem__("factor", v)),
        (lambda: RECORD.factor, lambda v: setattr(RECORD, "factor", v)),
        (lambda: INSTANCE.value, lambda v: setattr(INSTANCE, "value", v)),
        (lambda: Settings.factor, lambda v: setattr(Settings, "factor", v)),
    ],
    ids=["array", "list", "dict", "record", "instance", "class attribute"],
)
def test_what_a_module_variable_holds(read, change):
    kernel = nki.jit(lambda x: scaled(x, read()))
    try:
        changes(kernel, lambda: change(3.0))
    finally:
        change(2.0)


def test_an_instance_that_was_rebound(monkeypatch):
    kernel = nki.jit(lambda x: scaled(x, INSTANCE.value))
    changes(kernel, lambda: monkeypatch.setitem(globals(), "INSTANCE", Equal(3.0)))


def package(name, **values):
    module = types.ModuleType(name)
    vars(module).update(values)
    return module


PKG = package("pkg", conf=package("pkg.conf", s=2.0))


def test_a_chain_of_modules():
    kernel = nki.jit(lambda x: scaled(x, PKG.conf.s))
    try:
        changes(kernel, lambda: setattr(PKG.conf, "s", 3.0))
        changes(kernel, lambda: setattr(PKG, "conf", package("pkg.conf", s=4.0)), before=3.0, after=4.0)
    finally:
        PKG.conf = package("pkg.conf", s=2.0)


def test_an_import_inside_the_kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "settings_of_mine", package("settings_of_mine", factor=2.0))

    @nki.jit
    def kernel(x):
        import settings_of_mine

        return scaled(x, settings_of_mine.factor)

    changes(kernel, lambda: setattr(sys.modules["settings_of_mine"], "factor", 3.0))


def imports_module(x):
    import pack.conf

    return scaled(x, pack.conf.s)


def imports_module_by_another_name(x):
    import pack.conf as conf

    return scaled(x, conf.s)


def imports_name(x):
    from pack.conf import s

    return scaled(x, s)


def imports_module_from_package(x):
    from pack import conf

    return scaled(x, conf.s)


IMPORTING = (imports_module, imports_module_by_another_name, imports_name, imports_module_from_package)


@pytest.fixture
def pack(monkeypatch):
    """A package with a module that kernels import in their bodies."""
    conf = package("pack.conf", s=2.0)
    monkeypatch.setitem(sys.modules, "pack", package("pack", conf=conf))
    monkeypatch.setitem(sys.modules, "pack.conf", conf)
    return sys.modules["pack"]


@pytest.mark.parametrize("body", IMPORTING, ids=lambda body: body.__name__)
def test_what_a_kernel_takes_from_modules_that_it_imports(body, pack, monkeypatch):
    kernel = nki.jit(body)
    changes(kernel, lambda: setattr(pack.conf, "s", 3.0))
    new = package("pack.conf", s=4.0)
    monkeypatch.setitem(sys.modules, "pack.conf", new)
    pack.conf = new
    assert factor_of(kernel) == 4.0
    monkeypatch.setitem(sys.modules, "pack", package("pack", conf=package("pack.conf", s=5.0)))
    monkeypatch.setitem(sys.modules, "pack.conf", sys.modules["pack"].conf)
    assert factor_of(kernel) == 5.0
    assert kernel.cache_info().hits == 2  # in `changes`, before and after


@pytest.mark.parametrize("body", IMPORTING, ids=lambda body: body.__name__)
def test_imports_of_known_modules_let_a_program_be_used_again(body, pack):
    kernel = nki.jit(body)
    assert [factor_of(kernel) for _ in range(3)] == [2.0, 2.0, 2.0]
    assert kernel.cache_info().hits == 2


def test_a_variable_that_is_not_only_an_import_is_not_followed(pack):
    def sets_it(x):
        import pack.conf as conf

        if x.shape[0] > 100:
            conf = PKG.conf
        return scaled(x, conf.s)

    def uses_it_inside(x):
        import pack.conf as conf

        return scaled(x, (lambda: conf.s)())

    def imports_twice(x):
        import pack.conf as conf

        if x.shape[0] > 100:
            import pkg.conf as conf
        return scaled(x, conf.s)

    def imports_what_is_not_there(x):
        if x.shape[0] > 100:
            import no_such_module  # noqa: F401
        return scaled(x, 2.0)

    for body in (sets_it, uses_it_inside, imports_twice, imports_what_is_not_there):
        kernel = nki.jit(body)
        assert factor_of(kernel) == factor_of(kernel) == 2.0
        assert kernel.cache_info().hits == 0 and "import in its body" in kernel.cache_info().reason


def test_the_clock_of_an_imported_module_runs_at_every_call():
    def kernel(x):
        import time

        return scaled(x, 0 * time.time() + 2)

    kernel = nki.jit(kernel)
    assert factor_of(kernel) == factor_of(kernel) == 2.0
    assert kernel.cache_info().hits == 0 and "time.time" in kernel.cache_info().reason


VARIABLE = contextvars.ContextVar("factor", default=2.0)


def test_context_variables():
    kernel = nki.jit(lambda x: scaled(x, VARIABLE.get()))
    token = VARIABLE.set(2.0)
    try:
        changes(kernel, lambda: VARIABLE.set(3.0))
    finally:
        VARIABLE.reset(token)


def test_the_environment_and_the_random_numbers_of_numpy(monkeypatch):
    monkeypatch.setenv("MY_FACTOR", "2.0")
    kernel = nki.jit(lambda x: scaled(x, float(os.environ["MY_FACTOR"])))
    changes(kernel, lambda: monkeypatch.setenv("MY_FACTOR", "3.0"))
    draws = nki.jit(lambda x: scaled(x, np.random.rand()))
    assert factor_of(draws) != factor_of(draws)


def test_a_global_that_the_kernel_counts_up():
    namespace = {"scaled": scaled, "count": 1.0}
    exec("def kernel(x):\n    global count\n    count += 1\n    return scaled(x, count)\n", namespace)
    kernel = nki.jit(namespace["kernel"])
    assert [factor_of(kernel) for _ in range(3)] == [2.0, 3.0, 4.0]


def test_a_list_that_the_kernel_itself_grows():
    counts = [1.0]

    @nki.jit
    def kernel(x):
        counts.append(1.0)
        return scaled(x, sum(counts))

    assert [factor_of(kernel) for _ in range(3)] == [2.0, 3.0, 4.0]


# ---- files and errors ----------------------------------------------------------------------------


def test_a_constant_of_a_file_that_changed(tmp_path):
    path = str(tmp_path / "table.npy")

    @nki.jit
    def kernel(x):
        ran()
        out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, nl.shared_constant(path))
        return out

    for factor in (2.0, 3.0):
        np.save(path, X * factor / X[0, 1])
        assert [factor_of(kernel), factor_of(kernel)] == [factor, factor]
    assert len(RUNS) == 2  # once for each content
    os.remove(path)
    with pytest.raises(nki.NkiError, match="cannot be read"):
        kernel(X)


def test_an_error_of_the_data_that_the_kernel_caught():
    @nki.jit
    def kernel(x, index):
        out = nl.ndarray((1, 4), nl.float32, buffer=nl.shared_hbm)
        row, place = nl.ndarray((1, 4), nl.float32), nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(place, index)
        try:
            nisa.dma_copy(row, x.select(0, place).expand_dim(0))
        except nki.NkiError:
            nisa.memset(row, -1.0)
        nisa.dma_copy(out, row)
        return out

    def row(index):
        return kernel(X, np.array([[index]], np.int32))[0]

    for _ in range(2):
        np.testing.assert_array_equal(row(1), X[1])
        np.testing.assert_array_equal(row(9), -1)
        np.testing.assert_array_equal(row(0), X[0])


def test_integers_that_lose_bits_are_told_whenever_the_data_are_such():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, nl.int32, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, nl.int32)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(out, nl.add(tile, tile))
        return out

    def kinds(value):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [d.kind for d in kernel.run(np.full((2, 4), value, np.int32)).diagnostics]

    assert [kinds(v) for v in (1, 1 << 25, 1, 1 << 25)] == [[], ["int-precision"]] * 2


# ---- known Python is not run again ---------------------------------------------------------------


class Mode:
    """A class with everything that a class may have and that is known."""

    limit = 4
    table = (1, 2.0)

    def __init__(self, factor):
        self._factor = factor

    @property
    def factor(self):
        return self._factor

    @classmethod
    def of(cls, factor):
        return cls(min(factor, cls.limit))

    @staticmethod
    def name():
        return "mode"


SIZES = {"a": [1, 2], "b": (np.float32(3), nl.bfloat16)}


def test_known_python_runs_once():
    @nki.jit
    def kernel(x, record):
        ran(Mode.name())
        sizes = SIZES["a"][0] * len(Mode.table)
        return scaled(x, Mode.of(record.factor).factor * sizes / 2)

    for _ in range(3):
        assert factor_of(kernel, Record(2.0)) == 2.0
    assert len(RUNS) == 1


def test_asserts_that_pytest_rewrote_are_known():
    @nki.jit
    def kernel(x):
        ran()
        assert x.shape[0] > 0, "rows"
        return scaled(x, 2.0)

    for _ in range(3):
        kernel(X)
    assert len(RUNS) == 1


def test_the_kernels_of_the_library_are_known():
    from nkilib.core.cumsum import cumsum

    misses = nki.kernel.cache.programs.misses
    for _ in range(3):
        np.testing.assert_allclose(cumsum(X), np.cumsum(X, axis=-1))
    assert nki.kernel.cache.programs.misses == misses + 1


# ---- threads, forks, contexts --------------------------------------------------------------------


def in_threads(count, work):
    problems = []

    def guarded(i):
        try:
            work(i)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_first_calls_from_several_threads():
    kernel = nki.jit(scaled)

    def work(i):
        for j in range(40):
            assert factor_of(kernel, float(i * 100 + j)) == i * 100 + j

    in_threads(4, work)


@pytest.mark.skipif(not words.HAS_TAGS, reason="only tags of dicts tell it")
@pytest.mark.parametrize(
    "read, put",
    [
        (lambda: FACTOR, lambda v: globals().__setitem__("FACTOR", v)),
        (lambda: BY_NAME["factor"], lambda v: BY_NAME.__setitem__("factor", v)),
        (lambda: Settings.factor, lambda v: setattr(Settings, "factor", v)),
        (lambda: PKG.conf.s, lambda v: setattr(PKG.conf, "s", v)),
    ],
    ids=["global", "dict", "class attribute", "module"],
)
def test_what_another_thread_changed_for_a_while_is_not_cached(read, put):
    def during_a_call(value):
        thread = threading.Thread(target=lambda: put(value))
        thread.start()
        thread.join()

    before, values = read(), []
    namespace = {"__name__": "nki.language.tests", "values": values, "change": during_a_call}
    exec("def others_run():\n    if values: change(values.pop())\n", namespace)
    others_run = namespace["others_run"]

    @nki.jit
    def kernel(x):
        others_run()
        factor = read()
        others_run()
        return scaled(x, factor)

    values += [before, 3.0]
    assert [factor_of(kernel) for _ in range(3)] == [3.0, 2.0, 2.0]
    assert kernel.cache_info().hits == 1


def test_nothing_is_written_back_by_a_call_that_fails():
    @nki.jit
    def kernel(x, y, index):
        place = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(place, index)
        nisa.dma_copy(x, y)
        nisa.dma_copy(y[0:1], y.select(0, place).expand_dim(0))

    x, y = X.copy(), X + 1
    with pytest.raises(nki.NkiError, match="reaches outside"):
        kernel(x, y, np.array([[7]], np.int32))
    np.testing.assert_array_equal(x, X)
    y.flags.writeable = False
    with pytest.raises(nki.NkiError, match="read-only"):
        kernel(x, y, np.array([[0]], np.int32))
    np.testing.assert_array_equal(x, X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_another_thread_runs_a_kernel():
    kernel, stop = nki.jit(scaled), threading.Event()

    def busy():
        factor = 0.0
        while not stop.is_set():
            factor += 1
            kernel(X, factor)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that is what this test does
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    right = factor_of(kernel, 3.0) == 3.0
                    os._exit(0 if right else 1)
                _, status = os.waitpid(child, 0)
                assert status == 0
    finally:
        stop.set()
        thread.join()


def test_two_cores_see_the_context_of_the_caller():
    seen = []

    @nki.jit
    def kernel(x):
        seen.append(VARIABLE.get())
        repr(x)  # a look at values: the cores run in threads of their own
        return x

    token = VARIABLE.set(7.0)
    try:
        with target("trn2"), contextlib.suppress(nki.NkiError):
            kernel[2](X.copy())
    finally:
        VARIABLE.reset(token)
    assert set(seen) == {7.0} and len(seen) >= 2


def test_a_kernel_that_sets_its_seed_draws_the_same_whatever_other_threads_do():
    @nki.jit
    def draws(x):
        seed, words = nl.ndarray((1, 1), nl.int32), nl.ndarray((2, 4), nl.uint32)
        out = nl.ndarray((2, 4), nl.uint32, buffer=nl.shared_hbm)
        nisa.memset(seed, 5)
        nisa.set_rng_seed(seed)
        for _ in range(20):
            nisa.rng(words)
        nisa.dma_copy(out, words)
        return out

    expected = draws(X)
    in_threads(3, lambda i: [np.testing.assert_array_equal(draws(X), expected) for _ in range(20)])


# ---- objects that hold nothing -------------------------------------------------------------------


class Factor:
    """A callable that stands for a function."""

    def __call__(self):
        return 2.0


class WithSlots(Factor):
    __slots__ = ("extra",)


factor = Factor()
with_slots = WithSlots()


def test_an_object_without_contents_is_known_by_its_class(monkeypatch):
    @nki.jit
    def kernel(x):
        ran(1)
        return scaled(x, factor())

    assert [factor_of(kernel) for _ in range(2)] == [2.0, 2.0] and len(RUNS) == 1
    monkeypatch.setattr(Factor, "__call__", lambda self: 3.0)
    assert [factor_of(kernel) for _ in range(2)] == [3.0, 3.0] and len(RUNS) == 2


def test_an_object_that_gets_contents_is_noticed():
    @nki.jit
    def kernel(x):
        return scaled(x, getattr(factor, "now", 2.0))

    try:
        changes(kernel, lambda: setattr(factor, "now", 3.0))
    finally:
        vars(factor).clear()


def test_an_object_with_slots_is_not_known():
    @nki.jit
    def kernel(x):
        ran(1)
        return scaled(x, with_slots())

    assert [factor_of(kernel) for _ in range(2)] == [2.0, 2.0] and len(RUNS) == 2
