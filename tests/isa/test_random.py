"""rng, rand2, dropout, set_rng_seed, rand_set_state, rand_get_state, and the generators behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.reference import random
from nki.machine import dtypes
from nki.machine.generations import find
from support import refused_tiles as refused
from support import run_tiles

CASTABLE = [d for d in dtypes.ALL if d.castable]
INTEGERS = [d for d in dtypes.ALL if d.is_integer]
M32, M64 = 2**32 - 1, 2**64 - 1


@pytest.fixture(autouse=True)
def fresh_generators():
    random.reset()
    yield
    random.reset()


class Xorwow:
    """Marsaglia's generator on Python integers."""

    def __init__(self, words):
        self.words = [int(w) for w in words]

    def step(self):
        x, y, z, w, v, d = self.words
        t = x ^ (x >> 2)
        v_next = (v ^ (v << 4) ^ t ^ (t << 1)) & M32
        d = (d + 362437) & M32
        self.words = [y, z, w, v, v_next, d]
        return (v_next + d) & M32


def splitmix_words(seed, lane, count):
    state, words = (seed << 32) | (lane << 8), []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & M64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & M64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
        words.append((z ^ (z >> 31)) & M32)
    return words


def vector_stream(seed, lanes, *counts):
    """What VectorE draws after a seed: an array for each of several instructions."""
    states = [
        [Xorwow(splitmix_words(seed, p, 24)[6 * k : 6 * k + 6]) for k in range(4)] for p in range(lanes)
    ]
    return [
        np.array([[lane[k % 4].step() for k in range(count)] for lane in states], np.uint32)
        for count in counts
    ]


def uniform(words):
    return (words >> 8).astype(np.float64) / 2**24


def seeded(body, seed=5):
    """`body`, after the vector engine was seeded."""

    def run(*tiles):
        tile = nl.ndarray((1, 1), nl.uint32, buffer=nl.sbuf)
        nisa.memset(tile, seed)
        nisa.set_rng_seed(tile)
        body(*tiles)

    return run


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- the generators ------------------------------------------------------------------------------


def test_a_process_starts_as_after_seed_zero():
    [got] = run_tiles(lambda dst: nisa.rng(dst), outputs=[((3, 9), nl.uint32)])
    np.testing.assert_array_equal(got, vector_stream(0, 3, 9)[0])


def test_the_two_engines_draw_different_numbers():
    def body(a, b):
        nisa.rng(a)
        nisa.rng(b, engine=nisa.engine.gpsimd)

    a, b = run_tiles(body, outputs=[((4, 64), nl.uint32)] * 2)
    assert not np.isin(a, b).any()


def test_state_persists_across_kernels_until_it_is_reset():
    out = [((2, 6), nl.uint32)]
    first, second = (run_tiles(lambda dst: nisa.rng(dst), outputs=out)[0] for _ in range(2))
    for got, wanted in zip((first, second), vector_stream(0, 2, 6, 6), strict=True):
        np.testing.assert_array_equal(got, wanted)
    random.reset()
    np.testing.assert_array_equal(run_tiles(lambda dst: nisa.rng(dst), outputs=out)[0], first)


def test_each_core_of_a_launch_has_its_own_state():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 1, 8), nl.uint32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 8), nl.uint32, buffer=nl.sbuf)
        for _ in range(1 + nl.program_id(0)):  # core 1 draws twice
            nisa.rng(tile)
        nisa.dma_copy(out[nl.program_id(0)], tile)
        return out

    got = kernel[2](f32(1, 1))
    np.testing.assert_array_equal(got[:, 0], [words[0] for words in vector_stream(0, 1, 8, 8)])


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, M32),
    lanes=st.integers(1, 5),
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    states=st.sampled_from([1, 4]),
)
def test_generators_agree_with_marsaglias_definition(seed, lanes, counts, states):
    generator = random.Generator(states)
    generator.seed(seed)
    start = generator.state(random.LANES).copy()
    model = [[Xorwow(row[6 * k : 6 * k + 6]) for k in range(states)] for row in start[:lanes]]
    for count in counts:
        wanted = [[lane[k % states].step() for k in range(count)] for lane in model]
        np.testing.assert_array_equal(generator.bits(lanes, count), wanted)
    after = generator.state(random.LANES)
    np.testing.assert_array_equal(after[:lanes], [sum((s.words for s in lane), []) for lane in model])
    np.testing.assert_array_equal(after[lanes:], start[lanes:])


def test_seeding_fills_lanes_from_splitmix64():
    words = random.seed_words(0xDEADBEEF, 24)
    for lane in (0, 1, 77, 127):
        assert words[lane].tolist() == splitmix_words(0xDEADBEEF, lane, 24)
    assert len(np.unique(words)) == words.size


def test_numbers_are_spread_evenly_and_lanes_are_independent():
    generator = random.Generator(4)
    generator.seed(11)
    u = generator.uniform(128, 2048).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003
    assert abs(u.var() - 1 / 12) < 0.001
    counts = np.histogram(u, 64, (0, 1))[0]
    expected = u.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 130  # chi-square, 63 degrees of freedom
    correlation = np.corrcoef(u[:16])[np.triu_indices(16, 1)]
    assert np.abs(correlation).max() < 0.12


# ---- rng -----------------------------------------------------------------------------------------


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", INTEGERS)
def test_rng_takes_the_low_bits_of_one_word_per_element(dtype):
    [got] = run_tiles(seeded(lambda dst: nisa.rng(dst)), outputs=[((5, 13), dtype)])
    wanted = vector_stream(5, 5, 13)[0].astype(dtype.bits)
    np.testing.assert_array_equal(got.view(dtype.bits), wanted)


def test_rng_draws_in_stream_order_into_strided_psum_views():
    def body(dst, rest):
        nisa.rng(dst[:, :, 1:3])
        nisa.rng(rest)

    dst, rest = run_tiles(
        seeded(body), outputs=[np.zeros((128, 3, 4), np.uint32), ((128, 5), nl.uint32)], out_psum=[0]
    )
    first, second = vector_stream(5, 128, 6, 5)
    np.testing.assert_array_equal(dst[:, :, 1:3].reshape(128, 6), first)
    np.testing.assert_array_equal(dst[:, :, [0, 3]], 0)
    np.testing.assert_array_equal(rest, second)


def test_rng_on_gpsimd_steps_one_state_per_lane():
    seeds = np.random.default_rng(1).integers(0, 2**32, (7, 6), dtype=np.uint32)

    def body(dst, after, seeds):
        nisa.rand_set_state(seeds)
        nisa.rng(dst, engine=nisa.engine.gpsimd)
        nisa.rand_get_state(after)

    dst, after = run_tiles(body, [seeds], [((7, 10), nl.uint32), ((7, 6), nl.uint32)])
    lanes = [Xorwow(row) for row in seeds]
    np.testing.assert_array_equal(dst, [[lane.step() for _ in range(10)] for lane in lanes])
    np.testing.assert_array_equal(after, [lane.words for lane in lanes])


def test_rng_refuses_floats_psum_on_gpsimd_and_gpsimd_on_trn1():
    def draw(engine):
        return lambda dst: nisa.rng(dst, engine=engine)

    gpsimd, out = nisa.engine.gpsimd, [((4, 4), nl.uint32)]
    refused("dtype", "dst has dtype float32", draw(nisa.engine.vector), (), [((4, 4), nl.float32)])
    refused("buffer", "which the gpsimd engine cannot reach", draw(gpsimd), (), out, out_psum=[0])
    refused("generation", "engine.gpsimd needs trn2", draw(gpsimd), (), out, on="trn1")
    refused("engine", "cannot run on the scalar engine", draw(nisa.engine.scalar), (), out)
    refused("enum", "engine must be one of", draw(3), (), out)


# ---- set_rng_seed --------------------------------------------------------------------------------


@pytest.mark.tiny
def test_the_same_seed_gives_the_same_numbers():
    def body(a, b):
        seeded(lambda: nisa.rng(a))()
        seeded(lambda: nisa.rng(b))()

    a, b = run_tiles(body, outputs=[((128, 33), nl.uint32)] * 2)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, vector_stream(5, 128, 33)[0])


@pytest.mark.parametrize(
    "seed", [np.int32(-2), np.uint32(M32), np.float32(-1.5)], ids=["int32", "uint32", "float32"]
)
def test_a_seed_is_the_bits_of_any_32_bit_dtype_in_sbuf_or_psum(seed):
    def body(dst, seed):
        nisa.set_rng_seed(seed)
        nisa.rng(dst)

    bits = int(seed.view(np.uint32))
    for in_psum in ([], [0]):
        [got] = run_tiles(body, [np.full((1, 1), seed)], [((2, 3), nl.uint32)], in_psum=in_psum)
        np.testing.assert_array_equal(got, vector_stream(bits, 2, 3)[0])


def test_a_seed_does_not_reach_gpsimd():
    def body(a, b):
        nisa.rand_get_state(a)
        seeded(lambda: None, seed=99)()
        nisa.rand_get_state(b)

    a, b = run_tiles(body, outputs=[((128, 6), nl.uint32)] * 2)
    np.testing.assert_array_equal(a, b)


def test_set_rng_seed_refuses_other_sizes_and_widths():
    body = lambda seed: nisa.set_rng_seed(seed)  # noqa: E731
    refused("shape", "must hold one element", body, [np.zeros((1, 2), np.int32)])
    refused("shape", "must hold one element", body, [np.zeros((2, 1), np.int32)])
    refused("dtype", "a seed is one 32-bit word", body, [np.zeros((1, 1), np.int16)])
    with pytest.raises(nki.NkiError) as e:
        run_tiles(lambda: nisa.set_rng_seed(7))
    assert e.value.kind == "argument"
    assert "got the number 7" in str(e.value)


# ---- rand_set_state, rand_get_state --------------------------------------------------------------


@pytest.mark.parametrize("engine, words", [("gpsimd", 6), ("vector", 24)])
@pytest.mark.parametrize("p", [1, 50, 128])
def test_state_that_was_set_is_read_back_and_other_lanes_keep_theirs(engine, words, p):
    engine = nisa.engine[engine]
    seeds = np.random.default_rng(2).integers(0, 2**32, (p, words), dtype=np.uint32)

    def body(before, after, seeds):
        nisa.rand_get_state(before, engine=engine)
        nisa.rand_set_state(seeds, engine=engine)
        nisa.rand_get_state(after, engine=engine)

    before, after = run_tiles(body, [seeds], [((128, words), nl.uint32)] * 2, on="trn3")
    np.testing.assert_array_equal(after[:p], seeds)
    np.testing.assert_array_equal(after[p:], before[p:])


def test_vector_states_lie_one_after_the_other_and_serve_in_turns():
    seeds = np.arange(1, 49, dtype=np.uint32).reshape(2, 24)

    def body(dst, state, seeds):
        nisa.rand_set_state(seeds, engine=nisa.engine.vector)
        nisa.rng(dst)
        nisa.rand_get_state(state, engine=nisa.engine.vector)

    dst, state = run_tiles(
        body, [seeds], [((2, 6), nl.uint32), ((2, 4, 6), nl.uint32)], on="trn3", out_psum=[1]
    )
    lanes = [[Xorwow(row[6 * k : 6 * k + 6]) for k in range(4)] for row in seeds]
    np.testing.assert_array_equal(dst, [[lane[k % 4].step() for k in range(6)] for lane in lanes])
    np.testing.assert_array_equal(state, [[s.words for s in lane] for lane in lanes])


def test_a_state_of_zeros_is_accepted_with_a_warning():
    seeds = np.ones((3, 6), np.uint32)
    seeds[1, :5] = 0

    def body(dst, seeds):
        nisa.rand_set_state(seeds)
        nisa.rng(dst, engine=nisa.engine.gpsimd)

    with pytest.warns(UserWarning, match="all zero"):
        [got] = run_tiles(body, [seeds], [((3, 2), nl.uint32)])
    np.testing.assert_array_equal(got[1], [1 + 362437, 1 + 2 * 362437])


def test_state_instructions_refuse_wrong_words_dtypes_buffers_engines_and_generations():
    def set_state(engine=nisa.engine.gpsimd):
        return lambda seeds: nisa.rand_set_state(seeds, engine)

    def get_state(engine=nisa.engine.gpsimd):
        return lambda dst: nisa.rand_get_state(dst, engine)

    six, vector = np.ones((2, 6), np.uint32), nisa.engine.vector
    refused(
        "shape",
        "6 elements per partition, the words of the gpsimd",
        set_state(),
        [np.ones((2, 24), np.uint32)],
    )
    refused("shape", "must have 24 elements", set_state(vector), [six], on="trn3")
    refused("dtype", "allowed: uint32", set_state(), [np.ones((2, 6), np.int32)])
    refused("buffer", "must be in SBUF", set_state(), [six], in_psum=[0])
    refused(
        "buffer", "must be in SBUF", set_state(vector), [np.ones((2, 24), np.uint32)], in_psum=[0], on="trn3"
    )
    refused("generation", "engine.vector needs trn3", set_state(vector), [np.ones((2, 24), np.uint32)])
    refused("generation", "needs trn2", set_state(), [six], on="trn1")
    refused("engine", "cannot run on the scalar engine", set_state(nisa.engine.scalar), [six])
    refused("shape", "must have 6 elements", get_state(), (), [((2, 5), nl.uint32)])
    refused("dtype", "allowed: uint32", get_state(), (), [((2, 6), nl.float32)])
    refused("buffer", "gpsimd engine cannot reach", get_state(), (), [((2, 6), nl.uint32)], out_psum=[0])
    refused("generation", "engine.vector needs trn3", get_state(vector), (), [((2, 24), nl.uint32)])
    refused("generation", "needs trn2", get_state(), (), [((2, 6), nl.uint32)], on="trn1")


# ---- rand2 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
def test_rand2_scales_uniform_numbers_and_casts_them(dtype):
    [got] = run_tiles(seeded(lambda dst: nisa.rand2(dst, -3, 200.5)), outputs=[((9, 21), dtype)], on="trn3")
    exact = -3 + uniform(vector_stream(5, 9, 21)[0]) * 203.5
    wanted = dtypes.cast(exact.astype(np.float32), dtype).astype(np.float64)
    step = {"float32": 1e-5, "tfloat32": 0.13}.get(dtype, 0)  # one rounding more in float32
    np.testing.assert_allclose(got.astype(np.float64), wanted, atol=step, rtol=step and 1e-6)


def test_rand2_takes_a_bound_for_each_partition():
    low, high = f32(64, 1), 5 + np.abs(f32(64, 1, seed=1))

    def body(dst, low, high):
        nisa.rand2(dst, low, max=high)

    [got] = run_tiles(
        seeded(body), [low, high], [((64, 3, 5), nl.float32)], on="trn3", in_psum=[1], out_psum=[0]
    )
    u = uniform(vector_stream(5, 64, 15)[0]).reshape(64, 3, 5)
    wanted = low[:, None].astype(np.float64) + u * (high - low).astype(np.float64)[:, None]
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    p=st.integers(1, 128),
    f=st.integers(1, 30),
    low=st.floats(-1e6, 1e6, width=32),
    width=st.floats(0.125, 1e6, width=32),
)
def test_rand2_stays_between_its_bounds(p, f, low, width):
    high = np.float32(low) + np.float32(width)
    [got] = run_tiles(lambda dst: nisa.rand2(dst, low, high), outputs=[((p, f), nl.float32)], on="trn3")
    assert (got >= np.float32(low)).all() and (got <= high).all()


def test_rand2_refuses_empty_ranges_bad_bounds_and_older_generations():
    def draw(low, high):
        return lambda dst, *tiles: nisa.rand2(dst, low, high)

    out = [((4, 4), nl.float32)]
    refused("rand-range", "min 2 must be below max 2", draw(2, 2), (), out, on="trn3")
    refused("rand-range", "min nan", draw(float("nan"), 2), (), out, on="trn3")
    refused("generation", "needs trn3", draw(0, 1), (), out)
    refused("argument", "max must be a number or a [P, 1] tile", draw(0, "1"), (), out, on="trn3")
    refused("argument", "min is missing", draw(None, 1), (), out, on="trn3")
    refused("dtype", "no engine can convert", draw(0, 1), (), [((4, 4), nl.float8_e5m2_x4)], on="trn3")
    with_tile = lambda dst, low: nisa.rand2(dst, low, 1)  # noqa: E731
    refused("shape", "min must have one element per partition", with_tile, [f32(4, 2)], out, on="trn3")
    refused("shape", "min has 3 partitions", with_tile, [f32(3, 1)], out, on="trn3")


def test_rand2_warns_of_ranges_that_turn_out_empty_and_of_bounds_that_are_not_float32():
    with_tile = lambda dst, low: nisa.rand2(dst, low, 1)  # noqa: E731
    with pytest.warns(UserWarning, match="min is not below max"):
        run_tiles(with_tile, [np.full((4, 1), 2, np.float32)], [((4, 4), nl.float32)], on="trn3")
    with pytest.warns(UserWarning, match="min is int32, the engine reads float32"):
        run_tiles(with_tile, [np.zeros((4, 1), np.int32)], [((4, 4), nl.float32)], on="trn3")


# ---- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", CASTABLE)
def test_dropout_zeroes_where_the_random_number_is_below_prob_and_copies_bits_elsewhere(dtype):
    raw = np.random.default_rng(4).integers(0, 2 if dtype.is_bool else 256, (6, 20 * dtype.itemsize))
    x = raw.astype(np.uint8).view(dtype.bits)

    def body(dst, x):
        nisa.dropout(dst.view(dtype), x.view(dtype), 0.3)

    [got] = run_tiles(seeded(body), [x], [(x.shape, x.dtype)])
    drop = uniform(vector_stream(5, 6, 20)[0]) < np.float32(0.3)
    np.testing.assert_array_equal(got, np.where(drop, 0, x))


def test_dropout_by_zero_keeps_and_by_one_clears_everything():
    x = f32(128, 64)
    x[3, 4:6] = [np.nan, -0.0]

    def body(kept, cleared, x):
        nisa.dropout(kept, x, 0.0)
        nisa.dropout(cleared, x, prob=1)

    kept, cleared = run_tiles(body, [x], [((128, 64), nl.float32)] * 2)
    np.testing.assert_array_equal(kept.view(np.uint32), x.view(np.uint32))
    np.testing.assert_array_equal(cleared.view(np.uint32), 0)


@pytest.mark.parametrize("prob_dtype", [d for d in CASTABLE if d.is_float])
def test_dropout_takes_a_probability_for_each_partition(prob_dtype):
    prob = dtypes.cast(np.linspace(0, 1, 65, dtype=np.float32)[:, None], prob_dtype)
    x = np.ones((65, 4, 7), np.float32)

    def body(x, prob):
        nisa.dropout(x, x, prob)

    [got] = run_tiles(seeded(body), [prob], [x])
    u = uniform(vector_stream(5, 65, 28)[0])
    np.testing.assert_array_equal(got.reshape(65, 28), u >= prob.astype(np.float64))


def test_dropout_drops_the_given_share_and_does_not_rescale():
    x = np.full((128, 512), 3, np.float32)
    [got] = run_tiles(lambda t: nisa.dropout(t, t, 0.25), outputs=[x], out_psum=[0])
    assert set(np.unique(got)) == {0, 3}
    assert abs((got == 0).mean() - 0.25) < 0.01


def test_dropout_refuses_other_dtypes_shapes_and_probabilities():
    def body(dst, x, prob):
        nisa.dropout(dst, x, prob)

    def by(prob):
        return lambda dst, x: nisa.dropout(dst, x, prob)

    x, whole, out = f32(4, 6), np.ones((4, 6), np.int32), [((4, 6), nl.float32)]
    half = dtypes.cast(np.full((4, 1), 0.5, np.float32), dtypes.bfloat16)
    refused("dtype", "they must be equal", by(0.5), [x], [((4, 6), nl.bfloat16)])
    refused("dtype", "int32 data needs a float32 prob", body, [whole, half], [((4, 6), nl.int32)])
    refused("dtype", "prob has dtype int32, it must be a float", body, [x, whole[:, :1].copy()], out)
    refused("shape", "dst has 6 elements per partition, data has 5", by(0.5), [f32(4, 5)], out)
    refused("shape", "prob must have one element", body, [x, f32(4, 2)], out)
    refused("shape", "prob has 3 partitions", body, [x, f32(3, 1)], out)
    refused("argument", "prob must be a number", by("0.5"), [x], out)
    refused("argument", "prob is missing", by(None), [x], out)
    with pytest.warns(UserWarning, match="prob is 30, a probability lies between 0 and 1"):
        run_tiles(by(30), [x], out)


# ---- cost ----------------------------------------------------------------------------------------


def test_costs_follow_the_machine_tables():
    handles = []

    def body(dst, words, seeds):
        handles.append(nisa.rng(dst.view(nl.uint32)))
        handles.append(nisa.rng(dst.view(nl.uint32), engine=nisa.engine.gpsimd))
        handles.append(nisa.rand2(dst, 0, 1))
        handles.append(nisa.dropout(dst, dst, 0.5))
        handles.append(nisa.set_rng_seed(seeds[0:1, 0:1]))
        handles.append(nisa.rand_set_state(seeds))
        handles.append(nisa.rand_get_state(words))

    run_tiles(body, [np.ones((2, 6), np.uint32)], [((2, 400), nl.float32), ((2, 6), nl.uint32)], on="trn3")
    assert [h.cost(find("trn3")).cycles for h in handles] == [400, 550, 100, 400, 64, 64, 64]
