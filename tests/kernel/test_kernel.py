"""Kernels: nki.jit, launching, arguments, results, aliasing, the platform (spec/language.md 2 to 5)."""

from __future__ import annotations

import enum
import functools
import inspect
import pydoc
import typing
import warnings
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt
from support import refused, target

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def double(x):
    """Twice its argument."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    nisa.dma_copy(out, tile)
    return out


def fill(tensor, value):
    tile = nl.ndarray((tensor.shape[0], *(tensor.shape[1:] or (1,))), tensor.dtype)
    nisa.memset(tile, value)
    nisa.dma_copy(tensor, tile)


def received(*args, degree=None, **kwargs):
    """What a kernel sees of its arguments: [args, kwargs]."""
    seen = []

    @nki.jit
    def kernel(*args, **kwargs):
        seen.append([args, kwargs])

    (kernel if degree is None else kernel[degree])(*args, **kwargs)
    return seen[0]


# ---- nki.jit -------------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize(
    "make",
    [
        nki.jit,
        lambda f: nki.jit()(f),
        lambda f: nki.jit(f),
        lambda f: nki.jit(fn=f),
        nki.Kernel,
        nki.simulate,
    ],
    ids=["@nki.jit", "@nki.jit()", "nki.jit(fn)", "nki.jit(fn=)", "nki.Kernel", "nki.simulate"],
)
def test_every_form_makes_the_same_kernel(make):
    kernel = make(double)
    assert isinstance(kernel, nki.Kernel) and kernel.func is double
    np.testing.assert_array_equal(kernel(X), 2 * X)


def test_jit_takes_its_function_and_a_platform_together():
    with pytest.warns(DeprecationWarning, match="platform_target"):
        kernel = nki.jit(double, platform_target="trn2")
    assert "target=trn2" in repr(kernel)
    np.testing.assert_array_equal(kernel(X), 2 * X)


@pytest.mark.parametrize("value", ["trn1", "TRN2", "gen4", "inf2"])
def test_platform_target_is_accepted_with_a_deprecation_warning(value):
    with pytest.warns(DeprecationWarning, match="NEURON_PLATFORM_TARGET_OVERRIDE"):

        @nki.jit(platform_target=value)
        def kernel(x):
            return nisa.get_nc_version().value

    assert kernel(X) == {"trn1": 2, "TRN2": 3, "gen4": 4, "inf2": 2}[value]


def test_an_unknown_platform_target_is_refused_even_under_the_override():
    refused("platform", "no platform 'trn9'", lambda: nki.jit(double, platform_target="trn9"))
    with target("trn2"):
        refused("platform", "no platform 'trn9'", lambda: nki.jit(double, platform_target="trn9"))


@pytest.mark.parametrize("mode", ["auto", "trace", "simulation", "torchxla", "jax", "baremetal", "benchmark"])
def test_mode_is_ignored_with_a_deprecation_warning(mode):
    with pytest.warns(DeprecationWarning, match="mode="):
        kernel = nki.jit(double, mode=mode)
    np.testing.assert_array_equal(kernel(X), 2 * X)


@pytest.mark.parametrize("name", ["experimental_flags", "additional_compile_opt"])
def test_compiler_options_are_ignored_with_a_warning(name):
    with pytest.warns(Warning, match=name):
        kernel = nki.jit(double, **{name: "-O2"})
    np.testing.assert_array_equal(kernel(X), 2 * X)


@pytest.mark.parametrize("name", ["debug_kernel", "show_compiler_tb"])
def test_debugging_options_are_ignored_silently(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = nki.jit(double, **{name: True})
    np.testing.assert_array_equal(kernel(X), 2 * X)


def test_grid_is_the_default_launch_degree():
    assert nki.jit(double, grid=[2]).lnc == 2 and nki.jit(double, grid=[2]).grid == (2,)
    assert nki.jit(grid=2)(double).lnc == 2
    assert nki.jit(double, grid=None).grid == () == nki.jit(double, grid=()).grid
    assert nki.jit(double, grid=[2])[1].lnc == 1
    refused("launch-grid", "positive", lambda: nki.jit(double, grid=0))


def test_kernel_return_false_drops_the_result():
    assert nki.jit(double, kernel_return=False)(X) is None
    np.testing.assert_array_equal(nki.jit(double, kernel_return=True)(X), 2 * X)


def test_an_unknown_keyword_lists_what_is_accepted():
    error = refused(
        "argument", "nki.jit: unknown keyword 'platform'", lambda: nki.jit(double, platform="trn2")
    )
    assert isinstance(error, TypeError) and error.help == "did you mean platform_target?"
    for name in (
        "platform_target",
        "grid",
        "mode",
        "kernel_return",
        "debug_kernel",
        "additional_compile_opt",
    ):
        assert name in error.notes[0]


def test_what_is_not_callable_is_no_kernel():
    refused("argument", "a kernel is a function, got 3", lambda: nki.jit(3))
    with pytest.raises(TypeError):
        nki.simulate("x")


def test_a_kernel_given_to_jit_is_unwrapped():
    kernel = nki.jit(nki.jit(double)[2])
    assert kernel.func is double and kernel.grid == ()


# ---- the Kernel object ---------------------------------------------------------------------------


def test_a_kernel_presents_itself_as_the_users_function():
    kernel = nki.jit(double)
    assert kernel.__name__ == "double" and kernel.__qualname__ == "double"
    assert kernel.__module__ == __name__ and kernel.__doc__ == "Twice its argument."
    assert kernel.__wrapped__ is double and inspect.signature(kernel) == inspect.signature(double)
    assert kernel.grid == () and kernel.lnc == 1 and kernel[2].grid == (2,) and kernel[2].lnc == 2
    text = pydoc.render_doc(kernel, renderer=pydoc.plaintext)
    assert "double(x)" in text and "Twice its argument." in text


def test_repr_names_function_degree_and_platform():
    kernel = nki.jit(double)
    assert repr(kernel) == "<nki.Kernel double target=trn3>"
    with target("trn2"):
        assert repr(kernel[2]) == "<nki.Kernel double[2] target=trn2>"
        assert repr(kernel[1]) == "<nki.Kernel double[1] target=trn2>"


def test_a_function_that_wraps_itself_is_refused():
    def first(x):
        return x

    def second(x):
        return x

    first.__wrapped__, second.__wrapped__ = second, first
    refused("argument", "wraps itself", lambda: nki.jit(first))


@pytest.mark.parametrize(
    "name", ["func", "grid", "lnc", "target", "anything", "__name__", "__doc__", "_state"]
)
def test_a_kernel_is_immutable(name):
    kernel = nki.jit(double)
    with pytest.raises(AttributeError):
        setattr(kernel, name, 1)
    with pytest.raises(AttributeError):
        delattr(kernel, name)


def test_kernels_are_equal_and_hashed_by_what_they_do():
    assert nki.jit(double) == nki.Kernel(double) and hash(nki.jit(double)) == hash(nki.Kernel(double))
    assert nki.jit(double)[2] != nki.jit(double) != double
    assert len({nki.jit(double), nki.jit(double)[1], nki.jit(double)[2], nki.jit(double)}) == 3


def test_brackets_make_a_new_kernel():
    kernel = nki.jit(double)
    assert kernel[2] is not kernel and kernel.grid == () and kernel[2].func is double


# ---- launching -----------------------------------------------------------------------------------


@nki.jit
def programs():
    return nl.num_programs(0), nl.program_ndim()


@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
def test_a_plain_call_is_one_program_without_dimensions(platform):
    with target(platform):
        assert programs() == (1, 0) and programs[1]() == (1, 1)


@pytest.mark.parametrize("platform", ["trn2", "trn3"])
@pytest.mark.parametrize("grid", [2, (2,), [2], np.int64(2)], ids=repr)
def test_two_programs(platform, grid):
    with target(platform):
        assert programs[grid]() == (2, 1)


@pytest.mark.parametrize("platform, degree", [("trn1", 2), ("trn2", 3), ("trn2", 4), ("trn3", 8)])
def test_a_degree_the_platform_lacks_is_refused(platform, degree):
    with target(platform):
        error = refused("launch-grid", f"programs[{degree}]: {platform} launches", lambda: programs[degree]())
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("grid", [0, -1, (), (1, 2), [2, 1]], ids=repr)
def test_wrong_numbers_of_cores_are_value_errors(grid):
    assert isinstance(refused("launch-grid", "one positive number", lambda: programs[grid]), ValueError)


@pytest.mark.parametrize("grid", ["2", 2.0, None, True, slice(2), object()], ids=lambda g: type(g).__name__)
def test_other_launch_grids_are_type_errors(grid):
    error = refused("launch-grid", "takes the number of cores", lambda: programs[grid])
    assert isinstance(error, TypeError) and "kernel[2]" in error.help


@pytest.mark.parametrize("variable", ["NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"])
def test_a_launch_unlike_the_configured_one_warns_and_is_refused_in_strict_mode(monkeypatch, variable):
    monkeypatch.setenv(variable, "2")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        programs[2]()
        assert not caught
        programs[1]()
        programs()
    assert [type(w.message).kind for w in caught] == ["lnc-config"] * 2
    assert issubclass(caught[0].category, nki.NkiWarning)
    with nki.options(strict=True):
        refused("lnc-config", "hardware would refuse", programs)


# ---- nested kernels, methods, partials, wrappers --------------------------------------------------


@nki.jit
def inner(x, factor=2.0):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_scalar(tile, x, nl.multiply, factor)
    return tile


def test_a_nested_kernel_is_inlined_and_may_return_tiles():
    @nki.jit
    def outer(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        tile = inner(tile, factor=3.0)
        assert tile.buffer is nl.sbuf
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, inner[1](tile))
        return out

    np.testing.assert_array_equal(outer(X), 6 * X)


def test_the_bracket_of_a_nested_call_must_be_the_running_degree():
    @nki.jit
    def outer(x):
        return inner[2](x)

    error = refused("launch-grid", "inner[2] is called by a kernel", lambda: outer(X))
    assert "leave out the brackets" in error.help


def test_the_target_of_a_nested_kernel_is_ignored_with_a_warning():
    with pytest.warns(DeprecationWarning):
        other = nki.jit(lambda: nisa.get_nc_version().value, platform_target="trn1")
    same = nki.jit(lambda: other())
    with pytest.warns(nki.NkiWarning, match="platform_target='trn1' is ignored"):
        assert same() == 4
    with target("trn1"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same() == 2


def test_a_wrong_call_of_a_nested_kernel_is_pythons_own_error():
    @nki.jit
    def outer(x):
        return inner(x, 1, 2, 3)

    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments but 4 were given"):
        outer(X)


class Layer:
    factor = 3.0

    @nki.jit
    def scaled(self, x):
        """A method."""
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.tensor_scalar(tile, tile, nl.multiply, self.factor)
        nisa.dma_copy(out, tile)
        return out

    @staticmethod
    @nki.jit
    def doubled(x):
        return double(x)


def test_methods_are_kernels():
    layer = Layer()
    np.testing.assert_array_equal(layer.scaled(X), 3 * X)
    np.testing.assert_array_equal(layer.doubled(X), 2 * X)
    np.testing.assert_array_equal(nki.simulate(layer.scaled)(X), 3 * X)
    assert layer.scaled == layer.scaled and hash(layer.scaled) == hash(layer.scaled)
    assert layer.scaled != Layer().scaled
    assert layer.scaled.__name__ == "scaled" and list(layer.scaled.__signature__.parameters) == ["x"]
    assert layer.scaled.__doc__ == "A method." and layer.scaled[1].grid == (1,)
    assert isinstance(Layer.scaled, nki.Kernel)


def test_partials_are_kernels():
    def scale(factor, x):
        """Scales."""
        return Layer.scaled.func(type("S", (), {"factor": factor}), x)

    for make in (nki.jit, nki.simulate):
        kernel = make(functools.partial(scale, 4.0))
        np.testing.assert_array_equal(kernel(X), 4 * X)
        assert kernel.__name__ == "scale" and kernel.__doc__ == "Scales." and "scale" in repr(kernel)


def test_a_function_wrapped_by_another_decorator_is_called_through_it():
    calls = []

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return wrapper

    kernel = nki.jit(logged(double))
    np.testing.assert_array_equal(kernel(X), 2 * X)
    assert (
        calls == ["double"] and kernel.__name__ == "double" and list(kernel.__signature__.parameters) == ["x"]
    )


def test_a_callable_object_is_a_kernel():
    class Twice:
        """Doubles."""

        def __call__(self, x):
            return double(x)

    kernel = nki.jit(Twice())
    np.testing.assert_array_equal(kernel(X), 2 * X)
    assert kernel.__name__ == "Twice"


# ---- calls ---------------------------------------------------------------------------------------


@nki.jit
def many(a, b=2, *, c=3, **rest):
    return a, b, c, rest


def test_arguments_bind_as_in_python():
    assert many(1) == (1, 2, 3, {})
    assert many(1, c=4, b=5, d=6) == (1, 5, 4, {"d": 6})


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: nki.jit(double)(), "double() missing a required argument: 'x'"),
        (lambda: nki.jit(double)(X, X), "double() too many positional arguments"),
        (lambda: nki.jit(double)(y=X), "double() missing a required argument: 'x'"),
        (lambda: nki.jit(double)(X, x=X), "double() multiple values for argument 'x'"),
        (lambda: nki.jit(double)(X, xx=X), "double() got an unexpected keyword argument 'xx'"),
    ],
)
def test_wrong_arguments_are_type_errors_with_the_kernels_name(call, text):
    error = refused("argument", text, call)
    assert isinstance(error, TypeError) and error.notes == ["accepted: x"]


def test_a_kernel_named_like_an_instruction_is_not_mistaken_for_it():
    @nki.jit
    def tensor_copy(x, y):
        return None

    assert refused("argument", "tensor_copy() missing", lambda: tensor_copy(X)).notes == ["accepted: x, y"]

    def softmax(x):
        return x

    @nki.jit
    def kernel(x):
        return softmax(x, 1)

    with pytest.raises(TypeError) as caught:
        kernel(X)
    assert not isinstance(caught.value, nki.NkiError)  # the user's own function


def test_a_call_without_arguments_works():
    assert nki.jit(lambda: 7)() == 7 and nki.simulate(lambda: 7)() == 7


def test_run_returns_result_statistics_and_diagnostics():
    run = nki.jit(double).run(X)
    np.testing.assert_array_equal(run.result, 2 * X)
    assert run.machine.name == "trn3" and run.statistics.instructions == 3 and run.diagnostics == []


def test_what_runs_belongs_to_one_call():
    kernel = nki.jit(double)
    first, second = kernel(X), kernel(X)
    first[...] = 0
    np.testing.assert_array_equal(second, 2 * X)


# ---- with_schedule -------------------------------------------------------------------------------


@nki.jit
def named(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, name="tile")
    nisa.dma_copy(tile, x, name="load")
    nisa.tensor_scalar(tile, tile, nl.add, 1.0, name="plus1")
    nisa.dma_copy(out, tile, name="store")
    return out


def test_a_schedule_changes_no_values_and_makes_a_new_kernel():
    ordered = named.with_schedule([("store", "plus1"), ("plus1", ["load", "tile"])])
    assert ordered != named and ordered.schedule == (("store", ("plus1",)), ("plus1", ("load", "tile")))
    np.testing.assert_array_equal(ordered(X), X + 1)
    assert ordered.with_schedule(()) == named and ordered[1].schedule == ordered.schedule


def test_a_schedule_names_what_exists():
    error = refused("schedule", "named 'plus2'", lambda: named.with_schedule([("plus2", "load")])(X))
    assert error.help == "did you mean 'plus1'?" and isinstance(error, ValueError)


@pytest.mark.parametrize(
    "edges", [[("a", "b"), ("b", "a")], [("a", "a")], [("a", ["b"]), ("b", ["c"]), ("c", "a")]]
)
def test_a_schedule_cannot_go_round(edges):
    refused("schedule", "would wait for itself", lambda: named.with_schedule(edges))


@pytest.mark.parametrize(
    "edges", ["ab", [("a",)], [("a", 1)], [(1, "a")], [("a", [])], [("a", [None])], 3, ["ab"]]
)
def test_an_edge_is_a_pair_of_names(edges):
    refused("schedule", "with_schedule: ", lambda: named.with_schedule(edges))


# ---- nt.tensor -----------------------------------------------------------------------------------


def test_declared_shapes_are_compared():
    @nki.jit
    def kernel(x: nt.tensor[4, 6], y: nt.tensor[None, 6] = None, z: typing.Optional[nt.tensor[1]] = None):  # noqa: UP045
        return 1

    assert kernel(X) == kernel(X, X[0:2]) == kernel(X, z=X[0, 0:1]) == 1
    error = refused(
        "shape", "argument 'x' has shape (2, 6), declared nt.tensor[4, 6]", lambda: kernel(X[0:2])
    )
    assert isinstance(error, AssertionError) and isinstance(error, ValueError)
    refused("shape", "argument 'x' has shape (24,)", lambda: kernel(X.reshape(-1)))
    refused("shape", "declared nt.tensor[None, 6]", lambda: kernel(X, X.T))
    refused("shape", "argument 'z' has shape (2,)", lambda: kernel(X, z=X[0, 0:2]))


KM, KN = nt.tensor["k", "m"], nt.tensor["k", "n"]


def test_symbols_must_agree_within_a_call():
    @nki.jit
    def kernel(a: KM, b: KN):
        return 1

    assert kernel(X, X[:, 0:2]) == 1 and kernel(X.T.copy(), X.T.copy()) == 1
    error = refused("shape", "argument 'b' has shape (2, 6)", lambda: kernel(X, X[0:2]))
    assert error.notes == ["'k' is 4 in argument 'a'"]


def test_other_annotations_are_never_enforced():
    @nki.jit
    def kernel(x: nt.tensor, y: int, z: "no such name" = 1, w: "nt.tensor[broken" = 2):  # noqa: F722
        return 1

    assert kernel(X, "text", X, X) == 1
    assert repr(nt.tensor["k", None, 3]) == "nt.tensor['k', None, 3]"
    refused("argument", "a size is an int", lambda: nt.tensor[1.5])


# ---- arguments (spec/language.md 3.1) -----------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"]
    + [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    + [ml_dtypes.float8_e8m0fnu],
    ids=str,
)
def test_arrays_arrive_as_hbm_tensors_of_their_dtype(dtype):
    x = np.ones((2, 3), dtype)
    [[tensor], _] = received(x)
    assert tensor.shape == (2, 3) and tensor.dtype == x.dtype.name and tensor.buffer is nl.hbm
    [[shared], _] = received(x, degree=2)
    assert shared.buffer is nl.shared_hbm


def test_tensors_are_named_after_their_parameters():
    @dataclass
    class Config:
        weights: list

    seen = {}

    @nki.jit
    def kernel(x, xs, table, config, *more, **rest):
        seen["names"] = [
            x.name,
            xs[1].name,
            table["a"].name,
            config.weights[0].name,
            more[0].name,
            rest["z"].name,
        ]

    kernel(X, [X, X], {"a": X}, Config([X]), X, z=X)
    assert seen["names"] == ["x", "xs[1]", "table['a']", "config.weights[0]", "more[0]", "z"]


def test_a_0_d_array_is_refused():
    error = refused("scalar-argument", "argument 'args[0]' is a 0-d array", lambda: received(np.array(2.0)))
    assert "reshape it to (1,)" in error.help and isinstance(error, ValueError)


def test_numpy_scalars_arrive_as_python_numbers():
    [args, _] = received(np.float32(2.5), np.int64(3), np.bool_(True), ml_dtypes.bfloat16(1.5))
    assert args == (2.5, 3, True, 1.5) and [type(a) for a in args] == [float, int, bool, float]


def test_python_values_arrive_as_they_are():
    [args, _] = received(1, 2.5, True, "text", None)
    assert args == (1, 2.5, True, "text", None) and [type(a) for a in args][:3] == [int, float, bool]


@pytest.mark.parametrize(
    "dtype, wanted",
    [
        (nl.bfloat16, nl.bfloat16),
        (np.float32, nl.float32),
        (np.dtype("int16"), nl.int16),
        (ml_dtypes.float8_e4m3, nl.float8_e4m3),
        (np.dtype(ml_dtypes.bfloat16), nl.bfloat16),
    ],
    ids=str,
)
def test_dtype_objects_arrive_as_nki_dtypes(dtype, wanted):
    assert received(dtype)[0][0] is wanted


def test_an_unsupported_dtype_object_is_refused_by_name():
    refused("dtype", "argument 'args[0]': float64 is not an NKI dtype", lambda: received(np.float64))


class Mode(enum.Enum):
    FAST = 1


class Priority(enum.IntEnum):
    HIGH = 3


def test_enums_operators_functions_and_kernels_arrive_as_they_are():
    values = (Mode.FAST, Priority.HIGH, nl.sbuf, nl.add, nisa.engine.vector, double, named, object)
    [args, _] = received(*values)
    assert all(a is b for a, b in zip(args, values, strict=True))


class Pair(typing.NamedTuple):
    first: typing.Any
    second: typing.Any


def test_containers_are_rebuilt_around_tensors():
    given = [X, (X, Pair(X, 1)), {"a": {"b": [X]}}]
    [[found], _] = received(given)
    assert found is not given and isinstance(found[0], nl.NkiTensor) and isinstance(given[0], np.ndarray)
    assert type(found[1]) is tuple and type(found[1][1]) is Pair and found[1][1].second == 1
    assert isinstance(found[1][1].first, nl.NkiTensor) and isinstance(found[2]["a"]["b"][0], nl.NkiTensor)


@dataclass(frozen=True)
class Frozen:
    x: typing.Any
    size: int = 3


@dataclass(slots=True)
class Slotted:
    x: typing.Any
    size: int = 3


@dataclass
class Deep:
    inner: Frozen
    extras: list = field(default_factory=list)


class Settings(nl.NKIObject):
    x: typing.Any
    size: int = 3


@pytest.mark.parametrize("make", [Frozen, Slotted, Settings])
def test_records_arrive_as_copies_with_tensors_inside(make):
    given = make(X)
    [[found], _] = received(given)
    assert type(found) is make and found is not given and found.size == 3
    assert isinstance(found.x, nl.NkiTensor) and given.x is X


def test_records_nest_and_the_kernels_changes_stay_in_the_kernel():
    given = Deep(Frozen(X), [X, 2])

    @nki.jit
    def kernel(config):
        assert isinstance(config.inner.x, nl.NkiTensor) and config.extras[1] == 2
        config.extras.append(1)
        config.extras = None
        config.other = 5
        fill(config.inner.x, 9.0)  # contents of arrays are seen by the caller

    x = X.copy()
    given = Deep(Frozen(x), [X, 2])
    kernel(given)
    assert len(given.extras) == 2 and not hasattr(given, "other") and (x == 9).all()


def test_other_objects_pass_through():
    class Opaque:
        x = X

    opaque = Opaque()
    assert received(opaque)[0][0] is opaque


@pytest.mark.parametrize(
    "array, text, help",
    [
        (np.ones(3, np.int64), "argument 'args[0]' has dtype int64", "x.astype(np.int32)"),
        (np.ones(3, np.uint64), "uint64", "np.uint32"),
        (np.ones(3), "argument 'args[0]' has dtype float64", "x.astype(np.float32)"),
        (np.ones(3, np.complex64), "complex64", "x.real"),
        (np.array([None, 1]), "object", ""),
        (np.ones(3, [("a", "f4")]), "", ""),
        (np.ones(3, ">f4"), ">f4", "newbyteorder"),
        (np.array(["a"]), "<U1", ""),
    ],
    ids=lambda a: str(a.dtype) if isinstance(a, np.ndarray) else None,
)
def test_arrays_of_other_dtypes_are_refused_with_the_cast_to_write(array, text, help):
    error = refused("dtype", text, lambda: received(array))
    assert isinstance(error, TypeError) and help in (error.help or "") and "args[0]" in str(error)


def test_zero_size_arrays_are_refused():
    refused("shape", "argument 'args[0]' has shape (3, 0)", lambda: received(np.ones((3, 0), np.float32)))


def test_masked_arrays_are_refused_and_subclasses_are_plain():
    refused("argument", "masked arrays", lambda: received(np.ma.masked_array([1.0], dtype=np.float32)))
    assert received(X.view(np.recarray))[0][0].shape == (4, 6)


def test_a_tensor_larger_than_hbm_is_refused_at_once():
    huge = np.broadcast_to(np.zeros(1, np.float32), (1 << 40,))
    assert isinstance(refused("memory", "argument 'args[0]' takes", lambda: received(huge)), MemoryError)


def test_non_contiguous_inputs_are_read_right():
    big = np.arange(96, dtype=np.float32).reshape(8, 12)
    for view in (big[::2, ::3], big.T, np.asfortranarray(big), np.broadcast_to(big[0], (4, 12)), big[::-1]):
        np.testing.assert_array_equal(nki.jit(double)(view), 2 * view)


# ---- e4m3fn on trn1 and trn2 (spec/language.md 6.3) ----------------------------------------------------

SMALL = np.array([[1.5, -240, 0.25, 0]], ml_dtypes.float8_e4m3fn)


@nki.jit
def copied(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out, str(x.dtype)


@pytest.mark.parametrize(
    "platform, label", [("trn1", "float8_e4m3"), ("trn2", "float8_e4m3"), ("trn3", "float8_e4m3fn")]
)
def test_e4m3fn_keeps_its_bits_under_the_name_the_core_knows(platform, label):
    with target(platform):
        out, inside = copied(SMALL)
    assert inside == label and out.dtype == ml_dtypes.float8_e4m3fn
    np.testing.assert_array_equal(out.view(np.uint8), SMALL.view(np.uint8))


@pytest.mark.parametrize("value", [256, 448, np.nan])
def test_values_e4m3_lacks_are_refused_unless_told_otherwise(value, monkeypatch):
    x = np.array([[value]], ml_dtypes.float8_e4m3fn)
    with target("trn2"):
        error = refused("fp8-range", "argument 'x'", lambda: copied(x))
        assert isinstance(error, TypeError) and "UNSAFE_FP8FNCAST=1" in error.help
        monkeypatch.setenv("UNSAFE_FP8FNCAST", "1")
        assert copied(x)[0].view(np.uint8) == x.view(np.uint8)
    with target("trn3"):
        copied(x)


def test_a_written_e4m3fn_argument_is_written_back():
    @nki.jit
    def kernel(x):
        fill(x, 2.0)
        return x

    x = SMALL.copy()
    with target("trn2"):
        assert kernel(x) is x
    assert (x == 2).all()


# ---- results (spec/language.md 3.2) -------------------------------------------------------------------


def returned(make, *args):
    @nki.jit
    def kernel(*tensors):
        return make(*tensors)

    return kernel(*args)


def output(value=1.0, shape=(4, 6), dtype=nl.float32):
    out = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
    fill(out, value)
    return out


def test_containers_come_back_with_arrays_inside():
    result = returned(
        lambda: (output(1.0), None, [output(2.0), 3], {"a": output(4.0), "b": "text"}, Pair(output(), True))
    )
    assert type(result) is tuple and result[1] is None and result[2][1] == 3 and result[3]["b"] == "text"
    assert (result[0] == 1).all() and (result[2][0] == 2).all() and (result[3]["a"] == 4).all()
    assert type(result[4]) is Pair and result[4].second is True and (result[4].first == 1).all()


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", True, ()])
def test_plain_values_come_back_as_they_are(value):
    assert returned(lambda: value) == value


def test_a_kernel_without_return_gives_none():
    @nki.jit
    def kernel(x):
        pass

    assert kernel(X) is None


def test_results_are_fresh_writable_and_contiguous():
    result = nki.jit(double)(X)
    assert result.flags.c_contiguous and result.flags.writeable and not np.shares_memory(result, X)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.reshape((24,)),
        lambda t: t[1:3, ::2],
        lambda t: t.permute((1, 0)),
        lambda t: t[0:1].broadcast(0, 3),
        lambda t: t.view(nl.int32),
        lambda t: t.ap([[1, 4]], offset=7),
    ],
    ids=["reshape", "slice", "permute", "broadcast", "view", "ap"],
)
@pytest.mark.parametrize("source", ["allocated", "argument"])
def test_views_come_back_materialised(view, source):
    wanted = []

    @nki.jit
    def kernel(x):
        out = x
        if source == "allocated":
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(out, x)
        wanted.append(np.asarray(view(x)))
        return view(out)

    result = kernel(X.copy())
    assert result.dtype == wanted[0].dtype and result.flags.c_contiguous
    np.testing.assert_array_equal(result, wanted[0])


def test_two_results_of_one_storage_do_not_share_memory():
    def make():
        out = output()
        return out, out, out.reshape((24,))

    a, b, c = returned(make)
    a[...] = 5
    assert (b == 1).all() and (c == 1).all()


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum], ids=str)
def test_a_tile_cannot_be_returned(buffer):
    @nki.jit
    def kernel(x):
        tile = nl.ndarray((4, 6), nl.float32, buffer=buffer, name="acc")
        nisa.memset(tile, 1.0)
        return [tile]

    error = refused("output-buffer", f"kernel returns a tensor in {buffer.value}", lambda: kernel(X))
    assert isinstance(error, AssertionError) and isinstance(error, TypeError)
    assert "nl.shared_hbm" in error.help and error.site.text == "return [tile]"
    assert "'acc'" in error.notes[0] and "allocated at test_kernel.py" in error.notes[0]


def test_private_hbm_is_returned_with_a_warning():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(out, x)
        return out

    with pytest.warns(nki.NkiWarning, match="private HBM"):
        run = kernel.run(X)
    assert [d.kind for d in run.diagnostics] == ["output-buffer"]
    np.testing.assert_array_equal(run.result, X)


@pytest.mark.parametrize(
    "dtype, storage",
    [(nl.bool_, np.bool_), (nl.bfloat16, ml_dtypes.bfloat16), (nl.float8_e5m2, ml_dtypes.float8_e5m2)]
    + [
        (nl.int8, np.int8),
        (nl.tfloat32, np.float32),
        (nl.float8_e4m3fn_x4, np.uint32),
        (nl.float4_e2m1fn_x4, np.uint16),
    ],
    ids=str,
)
def test_results_have_the_numpy_dtype_of_theirs(dtype, storage):
    assert returned(lambda: output(0, dtype=dtype)).dtype == storage


# ---- written inputs (spec/language.md 3.4) ------------------------------------------------------------


@nki.jit
def overwrite(x, y=None):
    fill(x, 7.0)
    return x


def test_a_written_argument_holds_the_new_contents_and_is_itself_returned():
    x = X.copy()
    assert overwrite(x) is x and (x == 7).all()


def test_a_pure_reshape_of_a_returned_argument_shares_its_memory():
    @nki.jit
    def kernel(x):
        fill(x, 7.0)
        return x.reshape((24,)), x.view(nl.int32), x[0:2]

    x = X.copy()
    flat, bits, part = kernel(x)
    assert flat.shape == (24,) and np.shares_memory(flat, x) and (flat == 7).all()
    assert bits.dtype == np.int32 and not np.shares_memory(bits, x) and not np.shares_memory(part, x)
    assert (bits == np.float32(7).view(np.int32)).all() and (part == 7).all()


def test_an_unwritten_argument_is_returned_as_it_is():
    x = X.copy()
    x.flags.writeable = False
    assert returned(lambda t: t, x) is x


def test_non_contiguous_arguments_are_written_back():
    big = np.zeros((8, 12), np.float32)
    assert overwrite(big[::2, ::3]) is not None
    assert (big[::2, ::3] == 7).all() and big.sum() == 7 * 16

    @nki.jit
    def flat(x):
        fill(x, 8.0)
        return x.reshape((16,))

    result = flat(big[::2, ::3])
    assert (result == 8).all() and (big[::2, ::3] == 8).all()


def test_tensors_inside_containers_are_written_back():
    @nki.jit
    def kernel(xs, table):
        for i, x in enumerate([*xs, table["a"]]):
            fill(x, float(i))

    arrays = [X.copy() for _ in range(3)]
    kernel(arrays[:2], {"a": arrays[2]})
    assert [a.flat[0] for a in arrays] == [0, 1, 2]


def test_a_part_written_leaves_the_rest():
    @nki.jit
    def kernel(x):
        fill(x[1:3, 2:4], 9.0)

    x, wanted = X.copy(), X.copy()
    wanted[1:3, 2:4] = 9
    kernel(x)
    np.testing.assert_array_equal(x, wanted)


def test_a_read_only_array_cannot_be_written():
    x, y = X.copy(), X.copy()
    x.flags.writeable = False

    @nki.jit
    def kernel(y, x):
        fill(y, 1.0)
        fill(x, 2.0)

    error = refused("read-only-input", "'x'", lambda: kernel(y, x))
    assert isinstance(error, ValueError)
    np.testing.assert_array_equal(y, X)  # nothing was copied back


@pytest.mark.parametrize("other", [lambda x: x, lambda x: x[1:], lambda x: x.reshape(-1)[3:5], lambda x: x.T])
def test_overlapping_arguments_cannot_be_written(other):
    x = X.copy()
    refused("read-only-input", "overlaps argument 'y'", lambda: overwrite(x, other(x)))
    np.testing.assert_array_equal(x, X)


def test_overlapping_arguments_can_be_read_and_interleaved_ones_written():
    x = X.copy()
    np.testing.assert_array_equal(returned(lambda a, b: double(b), x, x), 2 * X)
    overwrite(x[:, ::2], x[:, 1::2])
    assert (x[:, ::2] == 7).all() and (x[:, 1::2] == X[:, 1::2]).all()


def test_nothing_is_written_when_the_kernel_fails():
    @nki.jit
    def kernel(x, fail):
        fill(x, 7.0)
        if fail == "python":
            raise KeyError("mine")
        if fail == "nki":
            nisa.dma_copy(x, x[0:2])
        return nl.ndarray((4, 4), nl.float32) if fail == "return" else x

    x = X.copy()
    for fail, wanted in (("python", KeyError), ("nki", nki.NkiError), ("return", nki.NkiError)):
        with pytest.raises(wanted):
            kernel(x, fail)
        np.testing.assert_array_equal(x, X)
    assert kernel(x, "") is x and (x == 7).all()


def test_must_alias_input_binds_the_name_before_it():
    x = X.copy()
    assert overwrite(**{"x.must_alias_input": x}) is x and (x == 7).all()
    refused("argument", "twice", lambda: overwrite(X.copy(), **{"y": x, "y.must_alias_input": x}))
    refused("argument", "multiple values", lambda: overwrite(x, **{"x.must_alias_input": x}))


# ---- nki.simulate (spec/language.md 4) ----------------------------------------------------------------


def test_simulate_takes_kernels_launched_kernels_and_functions():
    with target("trn2"):
        assert nki.simulate(programs)() == (1, 0) and nki.simulate(programs[2])() == (2, 1)
        assert nki.simulate(programs)[2]() == (2, 1)
        assert nki.simulate(programs.func)() == (1, 0)


def test_simulate_lints_and_a_plain_call_does_not():
    @nki.jit
    def kernel(x):
        total = sum(n for n in x.shape)
        return total

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert kernel(X) == 10
        assert not caught
        assert nki.simulate(kernel)(X) == 10
    assert any(w.category.__name__ == "NkiWarning[py-comprehension]" for w in caught)
    assert all(issubclass(w.category, nki.NkiWarning) for w in caught)


def test_simulate_warns_of_a_line_once():
    @nki.jit
    def kernel(x):
        return sum(n for n in x.shape)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert [nki.simulate(kernel)(X) for _ in range(3)] == [10, 10, 10]
    assert len(caught) == len({(w.category, w.lineno, str(w.message)) for w in caught}) > 0


# ---- the platform (spec/language.md 5) ----------------------------------------------------------------


@nki.jit
def generation():
    return nisa.get_nc_version().value


def test_the_platform_is_chosen_at_each_call_in_the_documented_order(monkeypatch):
    assert generation() == 4
    monkeypatch.setenv("NKI_NC_VERSION", "gen2")
    assert generation() == 2
    with pytest.warns(DeprecationWarning):
        targeted = nki.jit(generation.func, platform_target="trn2")
    assert targeted() == 3
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    assert targeted() == 4 == generation()


@pytest.mark.parametrize(
    "spelling, number",
    [
        ("trn1", 2),
        ("inf2", 2),
        ("gen2", 2),
        ("trn2", 3),
        ("GEN3", 3),
        ("Trn3", 4),
        ("gen4", 4),
        (" trn1 ", 2),
    ],
)
def test_platform_spellings(spelling, number):
    with target(spelling):
        assert generation() == number


@pytest.mark.parametrize("value", ["2", "3", "4", "gen3"])
def test_nki_nc_version_spellings(monkeypatch, value):
    monkeypatch.setenv("NKI_NC_VERSION", value)
    assert generation() == int(value[-1])


def test_an_unknown_platform_lists_the_names():
    with target("trn7"):
        error = refused("platform", "there is no platform 'trn7'", generation)
    assert isinstance(error, ValueError) and all(
        name in error.help for name in ("trn1", "inf2", "gen3", "trn3")
    )


@pytest.mark.parametrize("before", ["nothing", "trace", "call"])
def test_a_call_with_a_description_is_an_error_at_its_line_also_when_the_program_is_cached(before):
    kernel, spec = nki.jit(double), nki.TensorSpec(X.shape, "float32")
    if before == "trace":
        nki.profile(kernel)(spec)
    elif before == "call":
        kernel(X)
    with pytest.raises(nki.NkiError, match="argument 'x' is a TensorSpec, which has no data") as caught:
        kernel(spec)  # here
    assert caught.value.kind == "argument" and "kernel(spec)  # here" in str(caught.value)
