"""One kernel, three generations: each obeys its own limits, and says which rule was broken."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.cli.docs
import nki.isa as nisa
import nki.language as nl
from support import target

GENERATIONS = {"trn1": 2, "trn2": 3, "trn3": 4}
F32, BF16 = nl.float32, nl.bfloat16


def refused(kernel, *args):
    with pytest.raises(nki.NkiError) as caught:
        kernel(*args)
    return caught.value


def sbuf(shape, dtype=F32, value=0):
    tile = nl.ndarray(shape, dtype)
    nisa.memset(tile, value)
    return tile


# ---- a matmul as wide as the platform allows -----------------------------------------------------


def product(a, b, width=None, accumulator=F32):
    """a.T @ b, `width` columns at a time; by default as many as the generation multiplies at once."""
    width = width or (4096 if nisa.get_nc_version() >= nisa.nc_version.gen4 else 512)
    m, n = a.shape[1], b.shape[1]
    out = nl.ndarray((m, n), F32, buffer=nl.shared_hbm)
    stationary = nl.load(a)
    for start in range(0, n, width):
        columns = slice(start, min(start + width, n))
        moving = nl.load(b[:, columns])
        psum = nl.ndarray((m, moving.shape[1]), accumulator, buffer=nl.psum)
        nisa.nc_matmul(psum, stationary, moving)
        tile = nl.ndarray(psum.shape, F32)
        nisa.tensor_copy(tile, psum)
        nisa.dma_copy(out[:, columns], tile)
    return out


def operands(dtype=np.float32, columns=5000):
    generator = np.random.default_rng(7)
    a, b = generator.integers(-3, 4, (64, 32)), generator.integers(-3, 4, (64, columns))
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.tiny
@pytest.mark.parametrize("platform, instructions", [("trn1", 10), ("trn2", 10), ("trn3", 2)])
def test_the_same_kernel_gives_the_same_result_in_steps_that_fit_the_platform(platform, instructions):
    a, b = operands()
    with target(platform):
        run = nki.jit(product).run(a, b)
    assert run.machine.name == platform
    assert np.array_equal(run.result, a.T @ b)  # small integers: exact
    assert run.statistics.by_instruction["nc_matmul"] == instructions


@pytest.mark.parametrize(
    "platform, largest",
    [("trn1", 512), ("trn2", 512), ("trn3", 4096)],
)
def test_one_matmul_moves_at_most_what_the_generation_takes(platform, largest):
    a, b = operands()
    with target(platform):
        assert np.array_equal(nki.jit(product)(a, b[:, :largest], largest), a.T @ b[:, :largest])
        problem = refused(nki.jit(product), a, b, largest + 1)
    assert problem.kind == "free-limit"


@pytest.mark.parametrize("platform", GENERATIONS)
def test_bfloat16_accumulators_begin_with_trn3(platform):
    a, b = operands(ml_dtypes.bfloat16, 64)
    with target(platform):
        if platform == "trn3":
            exact = a.astype(np.float32).T @ b.astype(np.float32)
            assert np.array_equal(nki.jit(product)(a, b, 64, BF16), exact.astype(ml_dtypes.bfloat16))
        else:
            problem = refused(nki.jit(product), a, b, 64, BF16)
            assert problem.kind == "dtype" and f"{platform} accumulates in float32" in str(problem)


# ---- how the platform is chosen ------------------------------------------------------------------


def generation():
    return int(nisa.get_nc_version())


@pytest.mark.parametrize("platform, number", GENERATIONS.items())
def test_the_platform_comes_from_the_kernel_the_environment_or_the_default(platform, number, monkeypatch):
    for variable in ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_NC_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    assert nki.jit(generation)() == 4
    with pytest.warns(DeprecationWarning):
        chosen = nki.jit(generation, platform_target=platform)
    assert chosen() == number
    monkeypatch.setenv("NKI_NC_VERSION", f"gen{number}")
    assert nki.jit(generation)() == number
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert nki.jit(generation)() == chosen() == 3


# ---- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", GENERATIONS)
def test_float8_e4m3fn_arrives_under_the_name_the_core_knows(platform):
    def name_of(x):
        return str(x.dtype)

    x = np.array([[240.0, -1.5]], ml_dtypes.float8_e4m3fn)
    with target(platform):
        assert nki.jit(name_of)(x) == ("float8_e4m3fn" if platform == "trn3" else "float8_e4m3")
        a, b = operands(ml_dtypes.float8_e4m3fn, 40)
        assert np.array_equal(nki.jit(product)(a, b), a.astype(np.float32).T @ b.astype(np.float32))


@pytest.mark.parametrize("platform", ["trn1", "trn2"])
def test_float8_e4m3fn_beyond_240_has_no_meaning_before_trn3(platform):
    a, b = operands(ml_dtypes.float8_e4m3fn, 40)
    b[0, 0] = 448
    with target(platform):
        problem = refused(nki.jit(product), a, b)
    assert problem.kind == "fp8-range" and platform in str(problem)
    with target("trn3"):
        assert np.array_equal(nki.jit(product)(a, b), a.astype(np.float32).T @ b.astype(np.float32))


@pytest.mark.parametrize("platform", GENERATIONS)
def test_float8_e4m3fn_tiles_are_multiplied_on_trn3_only(platform):
    def kernel():
        tile = sbuf((32, 32), nl.float8_e4m3fn)
        nisa.nc_matmul(nl.ndarray((32, 32), F32, buffer=nl.psum), tile, tile)

    with target(platform):
        if platform == "trn3":
            nki.jit(kernel)()
        else:
            assert refused(nki.jit(kernel)).kind == "dtype"


# ---- instructions and forms that not every generation has ----------------------------------------


def scales():
    return sbuf((32, 32), nl.uint8, 127)


def packed(dtype=nl.float8_e4m3fn_x4):
    return sbuf((32, 32), dtype)


def psum(shape=(32, 32), dtype=F32):
    return nl.ndarray(shape, dtype, buffer=nl.psum)


def partner():
    return 1 - nl.program_id(0)


def shared():
    out = nl.ndarray((4, 4), F32, buffer=nl.shared_hbm, name="shared")
    nisa.dma_copy(out, sbuf((4, 4)))
    return out


def bounds(value):
    return sbuf((16, 1), F32, value)


INSTRUCTIONS = {  # name: a call of it
    "range_select": lambda: nisa.range_select(
        sbuf((16, 8)), sbuf((16, 8)), nl.greater_equal, nl.less, bounds(2), bounds(5), reduce_res=bounds(0)
    ),
    "nonzero_with_count": lambda: nisa.nonzero_with_count(
        nl.ndarray((16, 9), nl.int32), sbuf((16, 8), nl.float32, 1)
    ),
    "rand_get_state": lambda: nisa.rand_get_state(nl.ndarray((128, 6), nl.uint32)),
    "rand_set_state": lambda: nisa.rand_set_state(sbuf((128, 6), nl.uint32, 1)),
    "quantize_mx": lambda: nisa.quantize_mx(packed(), sbuf((32, 128), BF16, 1), scales()),
    "nc_matmul_mx": lambda: nisa.nc_matmul_mx(psum(), packed(), packed(), scales(), scales()),
    "exponential": lambda: nisa.exponential(sbuf((16, 8)), sbuf((16, 8))),
    "activate2": lambda: nisa.activate2(sbuf((16, 8)), nl.copy, sbuf((16, 8)), 1.0, 2.0, nl.multiply, nl.add),
    "rand2": lambda: nisa.rand2(nl.ndarray((16, 8), F32), 0.0, 1.0),
    "core_barrier": lambda: nisa.core_barrier(shared(), (0, 1)),
    "sendrecv": lambda: nisa.sendrecv(sbuf((16, 8)), nl.ndarray((16, 8), F32), partner(), partner(), 0),
}
TWO_CORES = ("core_barrier", "sendrecv")


def younger_than_trn1():
    found = {}
    for module in nki.cli.docs.FILES["nisa"]:
        found |= {name: cls.since for name, cls in nki.cli.docs.instructions(module).items() if cls.since > 2}
    return found


def test_every_instruction_that_trn1_lacks_is_tried_here():
    assert set(younger_than_trn1()) == set(INSTRUCTIONS)


@pytest.mark.parametrize("platform, number", GENERATIONS.items())
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction_runs_from_its_first_generation_on(name, platform, number):
    @nki.jit
    def kernel():
        INSTRUCTIONS[name]()

    since = younger_than_trn1()[name]
    launched = kernel[2] if name in TWO_CORES and number >= since else kernel
    with target(platform):
        if number >= since:
            launched()
            return
        problem = refused(launched)
    assert problem.kind == "generation" and isinstance(problem, NotImplementedError)
    first = {3: "trn2", 4: "trn3"}[since]
    assert f"{name}: needs {first}, this kernel targets {platform}" in str(problem)


def double_row():
    tile = sbuf((128, 2, 128), nl.float8_e4m3)
    nisa.nc_matmul(psum((128, 128)), tile, tile, perf_mode=nisa.matmul_perf_mode.double_row)


def small_pe_tile():
    tile = sbuf((32, 32), BF16)
    nisa.nc_matmul(psum(), tile, tile, tile_position=(0, 0), tile_size=(32, 32))


def indirect():
    sbuf((16, 8)).indirect(sbuf((16, 4), nl.uint16))


def vector_state():
    nisa.rand_get_state(nl.ndarray((128, 24), nl.uint32), engine=nisa.engine.vector)


def larger_magnitude():
    nisa.tensor_tensor(sbuf((16, 8)), sbuf((16, 8)), sbuf((16, 8)), nl.abs_max)


def any_operator_on_scalar():
    nisa.tensor_scalar(sbuf((16, 8)), sbuf((16, 8)), nl.maximum, 1.0, engine=nisa.engine.scalar)


def hardware_descriptors():
    nisa.dma_copy(sbuf((16, 8)), sbuf((16, 8)), dge_mode=nisa.dge_mode.hwdge)


def random_bits_on_gpsimd():
    nisa.rng(nl.ndarray((16, 8), nl.uint32), engine=nisa.engine.gpsimd)


FORMS = [  # a use of something, the first generation that has it, the kind of the refusal before
    (double_row, 3, "perf-mode"),
    (small_pe_tile, 3, "shape"),
    (hardware_descriptors, 3, "generation"),
    (random_bits_on_gpsimd, 3, "generation"),
    (indirect, 4, "generation"),
    (vector_state, 4, "generation"),
    (larger_magnitude, 4, "generation"),
    (any_operator_on_scalar, 4, "engine"),
]


@pytest.mark.parametrize("platform, number", GENERATIONS.items())
@pytest.mark.parametrize("body, since, kind", FORMS, ids=lambda value: getattr(value, "__name__", None))
def test_a_form_of_an_instruction_is_refused_before_its_first_generation(body, since, kind, platform, number):
    with target(platform):
        if number >= since:
            nki.jit(body)()
            return
        problem = refused(nki.jit(body))
    assert problem.kind == kind and platform in str(problem)


# ---- memory and cores ----------------------------------------------------------------------------


@pytest.mark.parametrize("platform, kib", [("trn1", 192), ("trn2", 224), ("trn3", 256)])
def test_a_tile_may_be_as_large_as_the_sbuf_of_the_generation(platform, kib, monkeypatch):
    monkeypatch.setenv("OPEN_NKI_STRICT", "1")

    def kernel(size):
        nl.ndarray((1, size), nl.uint8)

    with target(platform):
        nki.jit(kernel)(nl.tile_size.sbuf_fmax_bytes)
        assert refused(nki.jit(kernel), kib * 1024 + 1).kind == "capacity"


@pytest.mark.parametrize("platform, degrees", [("trn1", (1,)), ("trn2", (1, 2)), ("trn3", (1, 2))])
def test_a_kernel_is_launched_on_as_many_cores_as_the_generation_joins(platform, degrees):
    def programs():
        return nl.num_programs(0)

    with target(platform):
        for degree in (1, 2, 4):
            if degree in degrees:
                assert nki.jit(programs)[degree]() == degree
            else:
                problem = refused(nki.jit(programs)[degree])
                assert problem.kind == "launch-grid" and platform in str(problem)
