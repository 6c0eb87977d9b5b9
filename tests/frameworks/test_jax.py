"""JAX: arrays, jit and the other transformations, the custom call (spec/frameworks.md 4)."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from support import target, unseen

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

from nki.frameworks import jax as bridge  # noqa: E402
from nki.frameworks.custom_call import read_config  # noqa: E402
from nki.frameworks.jax import differentiable, hlo  # noqa: E402

RUNS = []  # how often the Python ran
ran = unseen(RUNS)
DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
]


@nki.jit
def copy(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out


@nki.jit
def add(a, b, scale=1.0):
    ran("add")
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    left, right = nl.ndarray(a.shape, a.dtype), nl.ndarray(b.shape, b.dtype)
    nisa.dma_copy(left, a)
    nisa.dma_copy(right, b)
    nisa.tensor_tensor(left, left, right, nl.add)
    nisa.tensor_scalar(left, left, nl.multiply, scale)
    nisa.dma_copy(out, left)
    return out


@nki.jit
def increment(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    nisa.dma_copy(x, tile)
    return x


class Results(NamedTuple):
    total: object
    rest: list


@nki.jit
def several(a, b):
    return Results(add(a, b), [{"a": a, "none": None}, copy(b), 3])


@nki.jit
def gather(x, index):
    out = nl.ndarray((4, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    rows = nl.ndarray((4, 1), nl.int32)
    nisa.dma_copy(rows, index)
    nisa.dma_copy(out, x.vector_select(0, rows))
    return out


def numbers(dtype="float32", shape=(4, 6)):
    return (jnp.arange(24).reshape(shape) - 8).astype(dtype)


def same(a, b):
    return a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def configs(text):
    """The decoded configuration of every kernel in HLO or StableHLO text."""
    found = re.findall(r'AwsNeuronCustomNativeKernel.*?backend_config ?= ?"([^"]*)"', text)
    return [read_config(config) for config in found]


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_eagerly_and_in_jit(dtype, platform):
    x = numbers(dtype)
    with target(platform):
        for function in (copy, jax.jit(lambda x: copy(x))):
            result = function(x)
            assert isinstance(result, jax.Array) and result.devices() == x.devices()
            assert same(result, x)


def test_an_eager_call_returns_jax_arrays_in_their_structure():
    a, b = numbers(), numbers() + 1
    result = several(a, b)
    assert isinstance(result, Results) and same(result.total, a + b)
    assert same(result.rest[0]["a"], a) and result.rest[0]["none"] is None
    assert same(result.rest[1], b) and result.rest[2] == 3


def test_numpy_arrays_may_stand_beside_jax_arrays():
    a, b = numbers(), np.asarray(numbers())
    assert isinstance(add(a, b), jax.Array)
    assert same(jax.jit(lambda a: add(a, b))(a), a + b)


def test_dtype_objects_are_arguments():
    @nki.jit
    def cast(x, dtype):
        out = nl.ndarray(x.shape, dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    assert cast(numbers(), jnp.bfloat16).dtype == jnp.bfloat16
    assert jax.jit(lambda x: cast(x, jnp.float16))(numbers()).dtype == jnp.float16


def test_inputs_never_change_and_lost_writes_are_told():
    @nki.jit
    def forgets(x):
        increment(x)

    x = numbers()
    assert same(increment(x), x + 1) and same(x, numbers())
    for function in (forgets, jax.jit(lambda x: forgets(x))):
        with pytest.warns(nki.NkiWarning, match="wrote argument 'x'") as caught:
            function(x)
        assert caught[0].category.kind == "lost-write"
    assert same(x, numbers())


def test_wide_dtypes_scalars_and_empty_arrays_are_refused():
    def kind(x):
        with pytest.raises(nki.NkiError) as caught:
            copy(x)
        return caught.value.kind

    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
        assert kind(jnp.zeros((2, 2), "float64")) == "dtype"
        assert kind(jnp.zeros((2, 2), "int64")) == "dtype"
    assert kind(jnp.zeros(())) == "scalar-argument"
    assert kind(jnp.zeros((0, 4))) == "shape"


def test_arrays_of_other_devices_are_refused(monkeypatch):
    class Elsewhere:
        def devices(self):
            return {type("Device", (), {"platform": "gpu", "__str__": lambda self: "cuda:0"})()}

    with pytest.raises(nki.NkiError) as caught:
        bridge.to_numpy(Elsewhere())
    assert caught.value.kind == "device" and "jax.device_put" in str(caught.value)


def test_simulate_runs_at_once_and_refuses_tracers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(nki.simulate(copy)(numbers()), numbers())
        with pytest.raises(nki.NkiError) as caught:
            jax.jit(lambda x: nki.simulate(copy)(x))(numbers())
    assert caught.value.kind == "framework" and "inside jax.jit" in str(caught.value)


def test_the_same_bits_in_every_framework():
    rng = np.random.default_rng(0).standard_normal((4, 6))
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x = rng.astype(dtype)
        expected = add(x, x, 0.3)
        assert same(add(jnp.asarray(x), jnp.asarray(x), 0.3), expected)
        assert same(jax.jit(lambda x: add(x, x, 0.3))(jnp.asarray(x)), expected)


# ---- jit -----------------------------------------------------------------------------------------


def test_a_jitted_function_runs_the_python_once():
    RUNS.clear()
    function = jax.jit(lambda a, b: add(a, b, scale=3.0) * 2)
    for i in range(3):
        assert same(function(numbers() + i, numbers()), (numbers() + i + numbers()) * 6)
    assert RUNS == ["add"]


def test_structures_and_returned_arguments_in_jit():
    a, b = numbers(), numbers() + 1
    result = jax.jit(lambda a, b: several(a, b))(a, b)
    assert isinstance(result, Results) and same(result.total, a + b)
    assert same(result.rest[0]["a"], a) and result.rest[0]["none"] is None and same(result.rest[1], b)


def test_nested_jit_scan_cond_loops_and_checkpoint():
    a = numbers()
    inner = jax.jit(lambda x: add(x, x))
    assert same(jax.jit(lambda x: inner(inner(x)))(a), 4 * a)
    total, _ = jax.jit(lambda x: jax.lax.scan(lambda c, i: (add(c, a), None), x, jnp.arange(3)))(a)
    assert same(total, 4 * a)
    branch = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: add(x, x), lambda x: x, x))
    assert same(branch(True, a), 2 * a) and same(branch(False, a), a)
    assert same(jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: add(c, a), x))(a), 4 * a)
    assert same(jax.jit(jax.checkpoint(lambda x: add(x, x)))(a), 2 * a)


def test_shapes_are_known_without_values():
    shape = jax.eval_shape(lambda a, b: add(a, b), numbers(), numbers())
    assert shape.shape == (4, 6) and shape.dtype == jnp.float32


def test_vmap_equals_a_loop():
    x, y = jnp.stack([numbers() + i for i in range(3)]), numbers()
    expected = jnp.stack([add(row, y) for row in x])
    for function in (jax.vmap(add, in_axes=(0, None)), jax.jit(jax.vmap(add, in_axes=(0, None)))):
        assert same(function(x, y), expected)
    assert same(jax.vmap(add, in_axes=1)(x, x), jnp.moveaxis(x + x, 1, 0))


def test_donated_arrays_are_reused():
    function = jax.jit(lambda x: increment(x), donate_argnums=0)
    x = numbers() * 1
    assert same(function(x), numbers() + 1) and x.is_deleted()
    kept = jax.jit(lambda x: (increment(x), x))
    first, second = kept(numbers())
    assert same(first, numbers() + 1) and same(second, numbers())
    assert "output_to_operand_aliasing" in hlo(increment, numbers()) or "alias" in hlo(increment, numbers())


def test_arrays_with_a_sharding_of_one_device():
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()[:1]), "x"), jax.sharding.PartitionSpec("x")
    )
    x = jax.device_put(numbers(), sharding)
    assert same(add(x, x), 2 * numbers()) and same(jax.jit(lambda x: add(x, x))(x), 2 * numbers())


def test_a_traced_scalar_is_told_by_name():
    with pytest.raises(jax.errors.ConcretizationTypeError, match="argument 'scale' of kernel add") as caught:
        jax.jit(add)(numbers(), numbers(), 2.0)
    assert "static_argnums" in str(caught.value)
    assert same(jax.jit(add, static_argnums=2)(numbers(), numbers(), 2.0), 4 * numbers())


def test_kernels_with_dynamic_loops_see_the_data_of_each_call():
    @jax.jit
    @nki.jit
    def repeat(x, count):
        times = nisa.register_alloc(count[0:1])
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nl.fori_loop(0, times, lambda i: nisa.tensor_scalar(tile, tile, nl.add, 1.0) and None)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    for count in (0, 2, 5):
        assert same(
            repeat(jnp.zeros((4, 6)), jnp.array([count], jnp.int32)), jnp.full((4, 6), count, jnp.float32)
        )


def test_two_cores_in_jit():
    with target("trn2"):
        assert same(jax.jit(lambda x: add[2](x, x))(numbers()), 2 * numbers())


@nki.jit
def draw(x, shows=False):
    bits = nl.ndarray((4, 8), nl.uint32)
    nisa.rng(bits)
    out = nl.ndarray((4, 8), nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, bits)
    if shows:
        nl.device_print("bits are", bits)
    return out


def test_random_kernels_draw_anew_at_every_call():
    function = jax.jit(lambda x: draw(x))
    assert not same(function(numbers()), function(numbers()))
    assert "custom_call_has_side_effect=true" in hlo(draw, numbers())


def test_device_print_prints_at_every_execution(capsys):
    @nki.jit
    def shows(x):
        nl.device_print("x is", x)
        print("traced")
        return x

    function = jax.jit(lambda x: shows(x))
    for _ in range(2):
        function(numbers()).block_until_ready()
    out = capsys.readouterr().out
    assert out.count("x is float32[4, 6]") == 2 and out.count("traced") == 1


def test_an_error_inside_jit_shows_the_kernels_line_and_the_next_call_works():
    function = jax.jit(lambda x, i: gather(x, i))
    good, bad = jnp.zeros((4, 1), jnp.int32), jnp.full((4, 1), 99, jnp.int32)
    with pytest.raises(Exception, match="index 99 of row 0") as caught:
        function(numbers(), bad).block_until_ready()
    assert "x.vector_select(0, rows)" in str(caught.value) and "NkiError[index]" in str(caught.value)
    assert same(function(numbers(), good), numbers()[np.zeros(4, int)])
    with pytest.raises(nki.NkiError) as eager:
        gather(numbers(), bad)
    assert eager.value.kind == "index"


def test_errors_of_the_trace_are_the_kernels_own():
    with pytest.raises(nki.NkiError) as caught:
        jax.jit(lambda x: nki.jit(lambda x: nl.ndarray((200, 4), nl.float32))(x))(numbers())
    assert caught.value.kind == "partition-limit"

    @nki.jit
    def looks(x):
        return float(np.asarray(x)[0, 0])

    with pytest.raises(nki.NkiError) as caught:
        jax.jit(lambda x: looks(x))(numbers())
    assert caught.value.kind == "abstract-value" and "np.asarray(x)" in str(caught.value)


def test_threads_and_blas_inside_a_kernel_do_not_deadlock():
    @nki.jit
    def square(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        psum = nl.ndarray(x.shape, nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, tile, tile)
        result = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_copy(result, psum)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, result)
        return out

    function = jax.jit(lambda x: square(x) @ x)
    x = jnp.eye(128) * 2
    function(x).block_until_ready()
    wrong = []

    def work():
        for _ in range(20):
            if not np.array_equal(function(x), np.eye(128) * 8):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == [] and not any(thread.is_alive() for thread in threads)


def test_results_are_written_into_xlas_memory_without_a_copy():
    staged = add.stage(nki.TensorSpec((4, 6), "float32"), nki.TensorSpec((4, 6), "float32"))
    x, into = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    result = staged.run([x, x], [into]).result
    assert result.ctypes.data == into.ctypes.data and np.array_equal(into, 2 * x)


def test_the_fallback_without_a_custom_call(monkeypatch):
    lowering = functools.partial(bridge._call_back, kernel="add")
    staged = add.stage(nki.TensorSpec((4, 6), jnp.float32), nki.TensorSpec((4, 6), jnp.float32))
    key = bridge.programs.add(staged)
    (result,) = jax.jit(lambda a, b: lowering(a, b, key=key))(numbers(), numbers())
    assert same(result, 2 * numbers())

    def broken():
        raise OSError("no libstdc++")

    monkeypatch.setattr(bridge, "_operator_new", broken)
    monkeypatch.setattr(bridge.mlir, "register_lowering", lambda *args, **kwargs: None)
    assert bridge.LOWERING == "custom call" and bridge._register() == "jax.pure_callback"


@pytest.fixture
def called_back():
    """Inside jit, kernels run as they do on a processor that is no CPU."""
    bridge.mlir.register_lowering(bridge.nki_call_p, bridge._lower_call_back, platform="cpu")
    yield
    bridge.mlir.register_lowering(bridge.nki_call_p, bridge._lower, platform="cpu")


def test_without_a_custom_call_kernels_compute_draw_and_print_at_every_call(called_back, capsys):
    function = jax.jit(lambda x: (add(x, x), draw(x, True), draw(x, True)))
    text = function.lower(numbers()).as_text()
    assert text.count("python_cpu_callback") == 3 and bridge.TARGET not in text
    results = [function(numbers()) for _ in range(2)]
    drawn = {np.asarray(bits).tobytes() for _, *draws in results for bits in draws}
    jax.effects_barrier()
    assert len(drawn) == 4 and capsys.readouterr().out.count("bits are") == 4
    assert all(same(total, 2 * numbers()) for total, *_ in results)


def test_a_kernel_that_is_copied_to_the_host_inside_jit_says_so_once(monkeypatch):
    monkeypatch.setattr(bridge, "_on_host", set())
    monkeypatch.setattr(bridge.mlir, "lower_fun", lambda *args, **options: lambda *given, **params: "lowered")
    on_gpu = SimpleNamespace(module_context=SimpleNamespace(platforms=("cuda",)))
    with pytest.warns(nki.NkiWarning, match="add inside jax.jit runs on the CPU: what is on cuda") as caught:
        assert [bridge._lower_call_back(on_gpu, kernel="add") for _ in range(2)] == ["lowered"] * 2
    assert len(caught) == 1


# ---- gradients -----------------------------------------------------------------------------------


def test_a_bare_kernel_has_no_derivative():
    with pytest.raises(NotImplementedError, match="jax.custom_vjp") as caught:
        jax.grad(lambda x: add(x, x).sum())(numbers())
    assert "kernel add has no derivative" in str(caught.value)


def expected_gradients(a, b):
    return b * (a + b) + a * b, a * (a + b) + a * b


def test_the_script_of_the_guide():
    @jax.custom_vjp
    def kernel_add(a, b):
        return add(a, b)

    kernel_add.defvjp(lambda a, b: (kernel_add(a, b), (a, b)), lambda saved, dy: (dy, dy))

    @jax.jit
    def gradients(a, b):
        return jax.grad(lambda a, b: (a * b * kernel_add(a, b)).sum(), argnums=(0, 1))(a, b)

    a, b = numbers() / 7, numbers() / 5
    for found, expected in zip(gradients(a, b), expected_gradients(a, b), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_differentiable_ties_forward_and_backward():
    plus = differentiable(add, lambda dy, a, b: (dy, dy))
    a, b = numbers() / 7, numbers() / 5

    def loss(a, b):
        return (a * b * plus(a, b)).sum()

    for gradients in (jax.grad(loss, argnums=(0, 1)), jax.jit(jax.grad(loss, argnums=(0, 1)))):
        for found, expected in zip(gradients(a, b), expected_gradients(a, b), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert plus.__name__ == "add"


def test_differentiable_with_constants_outputs_and_several_results():
    def backward(dy, a, b, scale, result):
        np.testing.assert_array_equal(result, (a + b) * scale)
        return dy * scale, None

    scaled = differentiable(add, backward, outputs=True)
    da, db = jax.grad(lambda a, b: scaled(a, b, 3.0).sum(), argnums=(0, 1))(numbers(), numbers())
    assert same(da, jnp.full((4, 6), 3.0)) and same(db, jnp.zeros((4, 6)))
    both = differentiable(lambda a, b: (add(a, b), copy(a)), lambda d0, d1, a, b: (d0 + d1, d0))
    da, db = jax.grad(lambda a, b: (both(a, b)[0] + 2 * both(a, b)[1]).sum(), argnums=(0, 1))(
        numbers(), numbers()
    )
    assert same(da, numbers() * 0 + 3) and same(db, numbers() * 0 + 1)


# ---- the custom call -----------------------------------------------------------------------------


def test_hlo_and_stablehlo_show_the_kernel_as_one_custom_call():
    def function(a, b):
        return a * b * add(a, b)

    compiled, lowered = (
        hlo(function, numbers(), numbers()),
        jax.jit(function).lower(numbers(), numbers()).as_text(),
    )
    assert compiled.count('custom_call_target="AwsNeuronCustomNativeKernel"') == 1
    assert "f32[4,6]{1,0} custom-call(" in compiled
    assert "api_version=API_VERSION_STATUS_RETURNING_UNIFIED" in compiled
    assert re.search(r'op_name="[^"]*/add/nki_call"', compiled)
    assert Path(__file__).name in compiled
    line = function.__code__.co_firstlineno + 1
    assert re.search(rf"line={line}\b|source_line={line}\b", compiled)
    (config,), (same_config,) = configs(compiled), configs(lowered)
    assert config == same_config
    assert list(config) == [
        "kernel_version",
        "klir_binary",
        "func_name",
        "grid",
        "has_collectives",
        "open_nki",
    ]
    assert config["kernel_version"] == 1 and config["func_name"] == "add" and config["grid"] == []
    assert config["has_collectives"] is False
    assert re.fullmatch("open-nki:[0-9a-f]{32}", config["klir_binary"]["binary"])
    assert config["klir_binary"]["input_names"] == ["a", "b"]
    assert len(config["klir_binary"]["output_names"]) == 1
    assert config["open_nki"] == {"version": nki.__version__, "platform": "trn3"}


def test_the_configuration_follows_the_kernel():
    @nki.jit
    def collective(x):
        held = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="held")
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="result")
        nisa.dma_copy(held, x)
        ncc.all_reduce(srcs=[held], dsts=[out], replica_group=ncc.ReplicaGroup([[0]]), op=nl.add)
        return out, held

    (config,) = configs(hlo(collective, numbers()))
    assert config["has_collectives"] is True
    assert config["klir_binary"]["output_names"] == ["result.0", "held.1"]
    with target("trn2"):
        (config,) = configs(hlo(lambda x: add[2](x, x), numbers()))
    assert config["grid"] == [2] and config["open_nki"]["platform"] == "trn2"


def test_shared_constants_are_operands():
    @nki.jit
    def identity(x):
        out = nl.ndarray((16, 16), nl.uint8, buffer=nl.shared_hbm)
        nisa.dma_copy(out, nl.shared_identity_matrix(16))
        return out

    text = hlo(identity, numbers())
    assert re.search(r"u8\[16,16\]\{1,0\} custom-call\(%[\w.]+, %[\w.]+\)", text) and "u8[128,128]" in text
    (config,) = configs(text)
    assert config["klir_binary"]["input_names"] == ["x", "tmp.0"]
    assert same(jax.jit(lambda x: identity(x))(numbers()), np.eye(16, dtype=np.uint8))


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import jax.numpy as jnp
from frameworks.test_jax import add, configs, hlo
(config,) = configs(hlo(lambda a, b: add(a, b), jnp.zeros((4, 6)), jnp.zeros((4, 6))))
print(config["klir_binary"]["binary"])
"""


def test_the_text_is_the_same_in_every_process():
    (config,) = configs(hlo(lambda a, b: add(a, b), numbers(), numbers()))
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == config["klir_binary"]["binary"]


def test_different_programs_have_different_keys():
    keys = {
        configs(hlo(function, *[jnp.zeros(shape)] * 2))[0]["klir_binary"]["binary"]
        for shape in ((4, 6), (6, 4))
        for function in (lambda a, b: add(a, b), lambda a, b: add(a, b, 2.0))
    }
    assert len(keys) == 4


def test_code_compiled_in_another_process_says_what_is_missing(monkeypatch):
    function = jax.jit(lambda a: add(a, a, 11.0)).lower(numbers()).compile()
    monkeypatch.setattr(bridge, "_targets", {})
    monkeypatch.setattr(bridge.programs, "staged", {})
    with pytest.raises(Exception, match="program table of this process has no") as caught:
        function(numbers()).block_until_ready()
    assert "call the kernel once first" in str(caught.value)


def test_framework_debug_keeps_program_and_graph(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURON_FRAMEWORK_DEBUG", "1")

    @nki.jit
    def kept_by_jax(x):
        return copy(x), copy(x)

    jax.jit(lambda x: kept_by_jax(x))(numbers())
    kept_by_jax(numbers())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kept_by_jax.0.hlo.txt",
        "kept_by_jax.0.program.txt",
    ]
    assert "(f32[4,6]{1,0}, f32[4,6]{1,0}) custom-call" in (tmp_path / "kept_by_jax.0.hlo.txt").read_text()
