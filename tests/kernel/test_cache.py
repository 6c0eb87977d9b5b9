"""The program cache: which calls replay, and which run the kernel's Python again (spec/language.md 3.5)."""

from __future__ import annotations

import copyreg
import enum
import functools
import gc
import multiprocessing
import sys
import threading
import time
import types
import warnings
from collections import namedtuple
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.kernel.cache
import nki.language as nl
from support import target, unseen

X = np.arange(24, dtype=np.float32).reshape(4, 6)
RUNS = []  # how often the Python ran
ran = unseen(RUNS)
FACTOR = 2.0


@pytest.fixture(autouse=True)
def empty_cache():
    nki.kernel.cache.clear()
    RUNS.clear()


def scaled(x, factor=2.0):
    ran(factor)
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, nl.float32)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nisa.dma_copy(out, tile)
    return out


def runs_of(*calls):
    """How often the Python ran during some calls."""
    RUNS.clear()
    for call in calls:
        call()
    return len(RUNS)


def copied(function):
    return types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


# ---- equal calls ---------------------------------------------------------------------------------


@pytest.mark.tiny
def test_a_second_call_with_the_same_shapes_does_not_run_the_python():
    kernel = nki.jit(scaled)
    for factor in range(3):
        np.testing.assert_array_equal(kernel(X * factor), 2 * X * factor)
    assert RUNS == [2.0]


@pytest.mark.parametrize(
    "again",
    [
        lambda kernel: kernel(X.copy()),
        lambda kernel: kernel(x=X),
        lambda kernel: kernel(X, 2.0),
        lambda kernel: kernel(X, factor=np.float64(2)),
        lambda kernel: kernel(np.asfortranarray(X)),
        lambda kernel: nki.jit(scaled)(X),
    ],
    ids=["copy", "keyword", "default given", "numpy scalar", "strides", "another Kernel of it"],
)
def test_calls_that_mean_the_same_share_a_program(again):
    kernel = nki.jit(scaled)
    assert runs_of(lambda: kernel(X), lambda: np.testing.assert_array_equal(again(kernel), 2 * X)) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda kernel: kernel(X[:2]),
        lambda kernel: kernel(X.reshape(6, 4)),
        lambda kernel: kernel(X.astype(ml_dtypes.bfloat16)),
        lambda kernel: kernel(X, 3.0),
        lambda kernel: kernel[1](X),
        lambda kernel: nki.jit(copied(scaled))(X),
    ],
    ids=["size", "shape", "dtype", "number", "bracket", "another function"],
)
def test_other_calls_have_a_program_of_their_own(other):
    kernel = nki.jit(scaled)
    assert runs_of(lambda: kernel(X), lambda: other(kernel)) == 2


def test_numbers_of_different_types_are_different_arguments():
    @nki.jit
    def kernel(x, value):
        ran(value)
        return value

    values = [1, 1.0, True, "1", 0.0, -0.0, float("nan"), None, (1,), [1], (1.0,)]
    for _ in range(2):
        for value in values:
            assert repr(kernel(X, value)) == repr(value)
    assert repr(RUNS) == repr(values)


def test_the_platform_the_mode_and_the_schedule_are_part_of_the_key(monkeypatch):
    @nki.jit
    def kernel(x):
        ran(nisa.get_nc_version())
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x, name="load")
        nisa.dma_copy(x, tile, name="store")
        return x

    for _ in range(2):
        for platform in ("trn1", "trn2", "trn3"):
            with target(platform):
                kernel(X.copy())
    assert [version.value for version in RUNS] == [2, 3, 4]
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    ordered = kernel.with_schedule([("store", "load")])
    assert runs_of(*[lambda: kernel(X.copy()), lambda: ordered(X.copy())] * 2) == 2


# ---- compile-time arguments ----------------------------------------------------------------------


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


@dataclass
class Config:  # not hashable
    mode: Mode
    sizes: list
    weight: np.ndarray = None


class Plain:
    def __init__(self, value):
        self.value = value


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "equal, different",
    [
        ((Mode.FAST, Mode.FAST), Mode.EXACT),
        ((nl.float32, np.float32), nl.bfloat16),
        ((nl.add, nl.add), nl.multiply),
        (({"a": [1, 2]}, {"a": [1, 2]}), {"a": [1, 2.0]}),
        ((Pair(1, 2), Pair(1, 2)), (1, 2)),
        ((Config(Mode.FAST, [1]), Config(Mode.FAST, [1])), Config(Mode.FAST, [2])),
        ((Config(Mode.FAST, [1], X), Config(Mode.FAST, [1], X + 1)), Config(Mode.FAST, [1], X[:2])),
        ((scaled, scaled), copied(scaled)),
        ((nl.sbuf, nl.sbuf), nl.psum),
        ((frozenset([1]), frozenset([1])), frozenset([2])),
    ],
    ids=[
        "enum",
        "dtype",
        "operator",
        "dict",
        "namedtuple",
        "dataclass",
        "field",
        "function",
        "buffer",
        "set",
    ],
)
def test_values_that_are_equal_make_equal_calls(equal, different):
    @nki.jit
    def kernel(x, value):
        ran(value)

    assert runs_of(*[lambda v=v: kernel(X, v) for v in (*equal, *equal)]) == 1
    assert runs_of(lambda: kernel(X, different)) == 1


@pytest.mark.parametrize(
    "value",
    [iter(()), Plain(X), Plain(1), sys],
    ids=["iterator", "array in an object", "object", "module"],
)
def test_arguments_that_cannot_be_compared_are_not_cached(value):
    @nki.jit
    def kernel(x, value):
        ran(value)

    assert runs_of(lambda: kernel(X, value), lambda: kernel(X, value)) == 2


def test_a_container_that_holds_itself_is_not_cached():
    @nki.jit
    def kernel(x, value):
        ran()

    value = Config(Mode.FAST, [])
    value.weight = value
    assert runs_of(lambda: kernel(X, 1), lambda: kernel(X, 1)) == 1
    with pytest.raises(RecursionError):
        kernel(X, value)


# ---- the function --------------------------------------------------------------------------------


def test_a_changed_closure_runs_the_python_again():
    def make():
        factor = 2.0

        @nki.jit
        def kernel(x):
            return scaled(x, factor)

        def change(value):
            nonlocal factor
            factor = value

        return kernel, change

    kernel, change = make()
    assert runs_of(lambda: kernel(X), lambda: kernel(X)) == 1
    change(3.0)
    np.testing.assert_array_equal(kernel(X), 3 * X)
    change(2.0)
    np.testing.assert_array_equal(kernel(X), 2 * X)
    assert len(RUNS) == 3


def test_closures_over_functions_kernels_and_arrays():
    table = np.ones(3)
    inner = nki.jit(scaled)
    with_kernel = nki.jit(lambda x: inner(x, 3.0))
    with_function = nki.jit(lambda x: scaled_by(x))
    with_array = nki.jit(lambda x: scaled(x, float(table[0])))

    def scaled_by(x, factor=4.0):
        return scaled(x, factor)

    assert runs_of(lambda: with_kernel(X), lambda: with_kernel(X)) == 1
    assert runs_of(lambda: with_function(X), lambda: with_function(X)) == 1
    scaled_by.__defaults__ = (5.0,)
    np.testing.assert_array_equal(with_function(X), 5 * X)
    with_array(X)
    table[0] = 7.0
    np.testing.assert_array_equal(with_array(X), 7 * X)


def test_changed_defaults_and_code_run_the_python_again():
    function = copied(scaled)
    kernel = nki.jit(function)
    kernel(X)
    function.__defaults__ = (3.0,)
    kernel = nki.jit(function)  # a Kernel remembers its signature
    np.testing.assert_array_equal(kernel(X), 3 * X)

    def other(x, factor=2.0):
        return scaled(x, 2 * factor)

    function.__code__ = other.__code__
    np.testing.assert_array_equal(kernel(X), 6 * X)


def test_partials_and_methods():
    class Model:
        def __init__(self, factor):
            self.factor = factor

        @nki.jit
        def kernel(self, x):
            return scaled(x, self.factor)

    partial = nki.jit(functools.partial(scaled, factor=3.0))
    assert runs_of(lambda: partial(X), lambda: partial(X)) == 1
    model = Model(4.0)
    # the contents of an object are unknown
    assert runs_of(lambda: model.kernel(X), lambda: model.kernel(X)) == 2
    model.factor = 5.0
    np.testing.assert_array_equal(model.kernel(X), 5 * X)
    np.testing.assert_array_equal(Model(6.0).kernel(X), 6 * X)


def helper(x):
    return scaled(x, FACTOR)


@nki.jit
def calls_helper(x):
    return helper(x)


def test_a_redefined_helper_or_module_constant_runs_the_python_again(monkeypatch):
    assert runs_of(lambda: calls_helper(X), lambda: calls_helper(X)) == 1
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    np.testing.assert_array_equal(calls_helper(X), 5 * X)
    monkeypatch.setitem(globals(), "helper", lambda x: scaled(x, 7.0))
    np.testing.assert_array_equal(calls_helper(X), 7 * X)
    assert runs_of(lambda: calls_helper(X)) == 0


def test_a_helper_of_another_module_is_looked_at_too(monkeypatch):
    module = types.ModuleType("helpers")
    module.grow = lambda x: scaled(x, 2.0)
    namespace = dict(globals(), module=module)
    exec("def kernel(x):\n    return module.grow(x)\n", namespace)
    kernel = nki.jit(namespace["kernel"])
    assert runs_of(lambda: kernel(X), lambda: kernel(X)) == 1
    module.grow = lambda x: scaled(x, 3.0)
    np.testing.assert_array_equal(kernel(X), 3 * X)


# ---- kernels whose Python must run ---------------------------------------------------------------


def prints(x):
    print("hello")


@pytest.mark.parametrize("body", [prints, lambda x: prints(x)], ids=["itself", "through a helper"])
def test_a_kernel_that_prints_prints_at_every_call(body, capsys):
    kernel = nki.jit(body)
    for _ in range(3):
        kernel(X)
    assert capsys.readouterr().out == "hello\n" * 3


def reads_tile(x):
    ran(0)
    repr(x)


def asks_register(x):
    ran(0)
    bool(nisa.register_alloc(1))


def loops(x):
    ran(0)
    nl.fori_loop(0, 3, lambda i: None)


@pytest.mark.parametrize("body", [reads_tile, asks_register], ids=lambda f: f.__name__)
def test_run_time_values_are_not_cached(body):
    kernel = nki.jit(body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # the first call is traced, then starts again; the second is eager at once
        assert runs_of(lambda: kernel(X), lambda: kernel(X)) == 3


def test_two_cores_are_cached():
    with target("trn2"):
        kernel = nki.jit(scaled)[2]
        assert runs_of(lambda: kernel(X), lambda: kernel(X)) == 2  # once on each core
        np.testing.assert_array_equal(kernel(X + 1), 2 * (X + 1))


def test_a_dynamic_loop_is_cached_for_as_many_trips_as_its_python_was_seen_to_take():
    @nki.jit
    def kernel(x, count):
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        total = nl.ndarray((1, 1), nl.int32)
        nisa.memset(total, 0)

        def body(i):
            ran()
            nisa.tensor_scalar(total, total, nl.add, 2)

        nl.fori_loop(0, nisa.register_alloc(count), body)
        nisa.dma_copy(out, total)
        return out

    def trips(n):
        return int(kernel(X, np.full((1, 1), n, np.int32))[0, 0])

    assert trips(3) == 6 and len(RUNS) == 4  # three iterations, and one for the Program
    assert runs_of(lambda: trips(3), lambda: trips(2), lambda: trips(0)) == 0
    assert [trips(n) for n in (2, 0, 1)] == [4, 0, 2]
    assert trips(5) == 10 and len(RUNS) > 4
    assert runs_of(lambda: trips(5), lambda: trips(4)) == 0


def test_a_failed_call_is_not_cached():
    @nki.jit
    def kernel(x):
        ran(0)
        raise ValueError("not today")

    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            kernel(X)
    assert len(RUNS) == 2 and not nki.kernel.cache.programs


def test_the_switch_turns_the_cache_off(monkeypatch):
    monkeypatch.setenv("OPEN_NKI_CACHE", "0")
    kernel = nki.jit(scaled)
    assert runs_of(lambda: kernel(X), lambda: kernel(X)) == 2


def test_a_debugger_meets_its_breakpoints_at_every_call():
    kernel = nki.jit(scaled)
    kernel(X)
    before = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        assert runs_of(lambda: kernel(X)) == 1
    finally:
        sys.settrace(before)


LEAKED = []


def test_a_tensor_of_another_call_is_refused():
    @nki.jit
    def leaks(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        LEAKED.append(tile)

    @nki.jit
    def uses(x):
        nisa.dma_copy(x, LEAKED[-1])
        return x

    leaks(X)
    try:
        for _ in range(2):
            with pytest.raises(nki.NkiError, match="belongs to an earlier call") as caught:
                uses(X * 0)
            assert caught.value.kind == "other-call" and "LEAKED" in str(caught.value)
    finally:
        LEAKED.clear()


# ---- how much is kept ----------------------------------------------------------------------------


def repeats(x, count):
    ran(count)
    tile = nl.ndarray((1, 1), nl.float32)
    for _ in range(count):
        nisa.memset(tile, 0.0)


def bytes_of(*lengths):
    """The bytes of programs of so many instructions."""
    return sum(nki.kernel.cache.ENTRY_BYTES + n * nki.kernel.cache.INSTRUCTION_BYTES for n in lengths)


def limit_cache(monkeypatch, size):
    monkeypatch.setenv("OPEN_NKI_CACHE_BYTES", str(size))


def test_long_programs_are_not_cached(monkeypatch):
    limit_cache(monkeypatch, bytes_of(10))
    kernel = nki.jit(repeats)
    assert runs_of(lambda: kernel(X, 10), lambda: kernel(X, 10)) == 1
    assert runs_of(lambda: kernel(X, 11), lambda: kernel(X, 11)) == 2


def test_a_trace_that_is_too_long_starts_again_in_eager_mode(monkeypatch):
    monkeypatch.setattr("nki.launch.launch.LONGEST_TRACE", 10)
    kernel = nki.jit(repeats)
    assert runs_of(lambda: kernel(X, 10)) == 1
    assert runs_of(lambda: kernel(X, 11)) == 2


def test_the_least_recently_used_program_is_evicted_first(monkeypatch):
    limit_cache(monkeypatch, bytes_of(3, 3))
    kernel = nki.jit(repeats)
    for count in (1, 2, 1, 3):
        kernel(X, count)
    assert RUNS == [1, 2, 3] and kernel.cache_info().entries == 2
    assert runs_of(lambda: kernel(X, 1), lambda: kernel(X, 3)) == 0
    assert runs_of(lambda: kernel(X, 2)) == 1


def test_the_bytes_of_all_programs_are_bounded(monkeypatch):
    limit_cache(monkeypatch, bytes_of(7, 8))
    kernel = nki.jit(repeats)
    for count in (5, 6, 7, 8):
        kernel(X, count)
    assert 0 < kernel.cache_info().bytes <= bytes_of(7, 8)
    assert runs_of(lambda: kernel(X, 7), lambda: kernel(X, 8)) == 0
    assert runs_of(*[lambda: kernel(X, 80)] * 2) == 2


def test_big_constants_weigh(monkeypatch):
    limit_cache(monkeypatch, bytes_of(25))

    @nki.jit
    def kernel(x):
        ran(0)
        nisa.dma_copy(x, nl.shared_constant(np.zeros((4, 6, 3000), np.float32))[:, :, 0])

    assert runs_of(lambda: kernel(X.copy()), lambda: kernel(X.copy())) == 2
    assert kernel.cache_info().entries == 0


def test_more_than_256_kernels_and_shapes_stay_cached():
    kernel = nki.jit(repeats)
    for _ in range(2):
        for count in range(300):
            kernel(X, count)
    assert len(RUNS) == 300


def test_a_cache_that_is_too_small_warns_once(monkeypatch):
    limit_cache(monkeypatch, bytes_of(9) * 4)
    kernel = nki.jit(repeats)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(20):
            for count in range(10):
                kernel(X, count)
    told = [w for w in found if "program cache" in str(w.message)]
    assert len(told) == 1 and told[0].filename == __file__ and "OPEN_NKI_CACHE_BYTES" in str(told[0].message)


def test_programs_of_functions_that_are_gone_are_forgotten():
    cache = nki.kernel.cache.programs
    for factor in range(5):
        nki.jit(lambda x, f=factor: scaled(x, f))(X)
    gc.collect()
    nki.jit(scaled)(X)
    assert len(cache) <= 2


def test_methods_that_are_gone_are_not_counted_for_ever(monkeypatch):
    class Model:
        @nki.jit
        def kernel(self, x):
            ran(time.time())

    monkeypatch.setattr(nki.kernel.cache, "MANY", 10)
    for _ in range(50):
        Model().kernel(X)
    assert len(nki.kernel.cache.programs._usage) <= 12


# ---- what the cache did --------------------------------------------------------------------------


def test_cache_info_counts_calls():
    kernel = nki.jit(scaled)
    assert kernel.cache_info() == nki.kernel.cache.CacheInfo(0, 0, 0, 0, True, None)
    for _ in range(3):
        kernel(X)
    kernel(X[:2])
    info = kernel.cache_info()
    assert (info.hits, info.misses, info.entries, info.cacheable) == (2, 2, 2, True) and info.bytes > 0


show = print


def shows(x):
    show("hello")


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_cache_info_names_the_line_that_is_not_known(calls):
    kernel = nki.jit(lambda x: shows(x))
    for _ in range(calls):
        kernel(X)
    info = kernel.cache_info()
    line = shows.__code__.co_firstlineno + 1
    assert not info.cacheable and info.entries == 0
    assert info.reason == (
        f"{__file__}:{line}: shows uses show: built-in function print is not on the list of what is known"
    )


@pytest.mark.parametrize("value, text", [(sys, "argument 'value' is a builtins.module"), (print, "print")])
def test_cache_info_names_the_argument_that_is_not_known(value, text):
    kernel = nki.jit(lambda x, value: None)
    kernel(X, value)
    assert text in kernel.cache_info().reason


def test_cache_info_reports_values_that_python_reads():
    kernel = nki.jit(asks_register)
    kernel(X)
    assert kernel.cache_info().reason == "its Python reads values of tensors"


def test_a_kernel_that_becomes_known_is_cached_again():
    namespace = {"scaled": scaled, "table": np.ones(3)}
    exec("def kernel(x):\n    return scaled(x, float(table[0]))\n", namespace)
    kernel = nki.jit(namespace["kernel"])
    for _ in range(4):
        kernel(X)
    namespace["table"] = (5.0,)
    for _ in range(8):
        np.testing.assert_array_equal(kernel(X), 5 * X)
    assert kernel.cache_info().cacheable and kernel.cache_info().hits > 0


# ---- threads and processes -----------------------------------------------------------------------


def test_threads_share_the_cache():
    kernel = nki.jit(scaled)
    wrong = []

    def work():
        for i in range(30):
            if not np.array_equal(kernel(X + i, float(i % 3)), (X + i) * (i % 3)):
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(nki.kernel.cache.programs) == 3


def in_a_child(queue):
    queue.put([nki.jit(scaled)(X), nki.jit(scaled)(X), len(RUNS)])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(method):
    nki.jit(scaled)(X)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    with nki.kernel.cache.programs.lock:  # another thread may hold it when the process forks
        process = context.Process(target=in_a_child, args=(queue,))
        process.start()
    first, second, runs = queue.get(timeout=60)
    process.join()
    np.testing.assert_array_equal(first, 2 * X)
    np.testing.assert_array_equal(second, 2 * X)
    assert runs == 1  # the fork found the program of its parent, after one run there


@dataclass
class Sizes:
    """What a kernel copies with another factor."""

    factor: float = 2.0


def test_how_other_classes_are_copied_does_not_count(monkeypatch):
    @nki.jit
    def kernel(x):
        return scaled(x, replace(Sizes(), factor=3.0).factor)

    kernel(X)
    monkeypatch.setitem(copyreg.dispatch_table, type("Other", (), {}), lambda _: (object, ()))
    np.testing.assert_array_equal(kernel(X), 3 * X)
    assert len(RUNS) == 1 and kernel.cache_info().hits == 1
    monkeypatch.setitem(copyreg.dispatch_table, Sizes, lambda _: (Sizes, (4.0,)))
    kernel(X)
    assert len(RUNS) == 2
