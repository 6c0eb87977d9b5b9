"""Experiments with a documented outcome: section 13 of the machine specification, within 10 %."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

WITHIN = 0.10


def timeline_of(body, platform, **inputs):
    """The Timeline of a kernel whose body gets its inputs as HBM tensors."""

    def kernel(tensors):
        body(**tensors)

    with target(platform):
        return nki.profile(kernel)(inputs).timeline


def starts(timeline, name):
    return [bar.start for bar in timeline.bars if bar.name == name]


def spacing(timeline, name):
    """Median ns between consecutive instructions of a name."""
    return float(np.median(np.diff(starts(timeline, name))))


def durations(timeline, name):
    return [bar.end - bar.start for bar in timeline.bars if bar.name == name]


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    new = nl.ndarray(shape, dtype, buffer=buffer)
    nisa.memset(new, 0)
    return new


def matmuls(count, k, m, n, dtype, banks=8):
    """`count` independent matmuls on resident tiles, round the PSUM banks."""
    stationary, moving = tile((k, m), dtype), tile((k, n), dtype)
    psum = [nl.ndarray((m, n), nl.float32, buffer=nl.psum) for _ in range(banks)]
    for i in range(count):
        nisa.nc_matmul(psum[i % banks], stationary, moving, accumulate=False)


GAP_TRN1 = 86  # cycles between two matmuls, as the fastest published GEMMs show


def test_1_a_stream_of_bf16_matmuls_keeps_trn1_busy_at_512_cycles_and_a_gap_each():
    timeline = timeline_of(lambda: matmuls(400, 128, 128, 512, nl.bfloat16), "trn1")
    assert spacing(timeline, "nc_matmul") == pytest.approx((512 + GAP_TRN1) / 2.8, rel=WITHIN)
    active = timeline.intervals("tensor")
    assert timeline.active_ns("tensor") == pytest.approx(active[-1, 1] - active[0, 0], rel=0.01)


def test_2_a_matrix_is_better_stationary_than_moving_in_a_product_with_a_vector():
    moving_matrix = timeline_of(lambda: matmuls(200, 128, 1, 128, nl.bfloat16), "trn1")
    moving_vector = timeline_of(lambda: matmuls(200, 128, 128, 1, nl.bfloat16), "trn1")
    assert spacing(moving_matrix, "nc_matmul") == pytest.approx((128 + GAP_TRN1) / 2.8, rel=WITHIN)
    assert spacing(moving_vector, "nc_matmul") == pytest.approx((64 + GAP_TRN1) / 2.8, rel=WITHIN)


@pytest.mark.parametrize("platform", ["trn1", "trn2", "trn3"])
def test_3_float32_matmuls_take_four_times_as_long_as_bf16(platform):
    fp32 = timeline_of(lambda: matmuls(100, 128, 128, 512, nl.float32), platform)
    bf16 = timeline_of(lambda: matmuls(100, 128, 128, 512, nl.bfloat16), platform)
    assert spacing(fp32, "nc_matmul") / spacing(bf16, "nc_matmul") == pytest.approx(4, rel=WITHIN)


def test_4_dependent_one_element_activations_on_trn1_are_189_ns_apart():
    def body():
        x = tile((128, 1))
        for _ in range(20):
            nisa.activation(x, nl.exp, x)

    assert spacing(timeline_of(body, "trn1"), "activation") == pytest.approx(189, rel=WITHIN)


def load(shape, dtype):
    """A load of a whole HBM tensor into SBUF."""

    def body(x):
        sbuf = nl.ndarray(shape, dtype, buffer=nl.sbuf)
        nisa.dma_copy(sbuf, x)

    return body


def test_5_a_tile_of_four_partitions_uses_one_dma_engine_for_1416_ns():
    timeline = timeline_of(load((4, 4096), nl.bfloat16), "trn2", x=nki.TensorSpec((4, 4096), "bfloat16"))
    (transfer,) = timeline.cores[0].transfers.values()
    assert [engine for engine, _ in transfer.payload_ns] == [0]
    assert transfer.packet_ns == pytest.approx(1416, rel=WITHIN)


def test_6_a_small_tile_uses_all_sixteen_engines_for_97_ns_each_within_468_ns():
    timeline = timeline_of(load((128, 128), nl.bfloat16), "trn2", x=nki.TensorSpec((128, 128), "bfloat16"))
    (transfer,) = timeline.cores[0].transfers.values()
    assert len(transfer.payload_ns) == 16
    assert all(ns == pytest.approx(97, rel=WITHIN) for _, ns in transfer.payload_ns)
    (bar,) = timeline.bars
    assert bar.end - bar.start == pytest.approx(468, rel=WITHIN)


@pytest.mark.parametrize(("shape", "expected"), [((4, 4096), 3710), ((128, 128), 405)])
def test_7_an_exp_on_trn2_takes_its_elements_plus_a_table_load(shape, expected):
    def body():
        x = tile(shape)
        nisa.activation(x, nl.exp, x)

    timeline = timeline_of(body, "trn2")
    assert durations(timeline, "activation") == [pytest.approx(expected, rel=WITHIN)]
    ((begin, end, _),) = timeline.cores[0].table_loads
    assert end - begin == pytest.approx(1300, rel=WITHIN)


def test_8_a_512_wide_float32_add_of_psum_and_sbuf_takes_690_ns_on_trn2():
    def body():
        a, b = tile((128, 512)), tile((128, 512), buffer=nl.psum)
        nisa.tensor_tensor(a, a, b, op=nl.add)

    assert durations(timeline_of(body, "trn2"), "tensor_tensor") == [pytest.approx(690, rel=WITHIN)]


def test_9_one_activation_with_scale_and_bias_replaces_three_instructions():
    def fused():
        x, bias = tile((128, 4096)), tile((128, 1))
        nisa.activation(x, nl.exp, x, bias=bias, scale=2.0)

    def separate():
        x = tile((128, 4096))
        for op in (nl.copy, nl.copy, nl.exp):
            nisa.activation(x, op, x, scale=2.0)

    ratio = sum(durations(timeline_of(separate, "trn2"), "activation")) / sum(
        durations(timeline_of(fused, "trn2"), "activation")
    )
    assert ratio == pytest.approx(3, rel=WITHIN)


def test_10_two_reductions_of_half_the_partitions_take_twice_as_long_as_one():
    def reductions(parts):
        def body():
            for _ in range(parts):
                x = tile((128 // parts, 2048))
                sums = nl.ndarray((128 // parts, 1), nl.float32)
                nisa.tensor_reduce(sums, nl.add, x, axis=1)

        return body

    one = sum(durations(timeline_of(reductions(1), "trn2"), "tensor_reduce"))
    two = sum(durations(timeline_of(reductions(2), "trn2"), "tensor_reduce"))
    assert two / one == pytest.approx(2, rel=WITHIN)


def test_11_wide_bf16_instructions_on_trn2_take_what_the_published_profile_shows():
    def body():
        x = tile((128, 16384), nl.bfloat16)
        small = nl.ndarray((128, 1), nl.float32)
        narrow = nl.ndarray((128, 16384), nl.float8_e4m3)
        nisa.tensor_reduce(small, nl.maximum, x, axis=1)
        nisa.tensor_scalar(narrow, x, nl.multiply, 2.0)
        nisa.activation_reduce(x, nl.square, x, nl.add, small)

    timeline = timeline_of(body, "trn2")
    assert durations(timeline, "tensor_reduce") == [pytest.approx(17_200, rel=WITHIN)]
    assert durations(timeline, "tensor_scalar") == [pytest.approx(8_800, rel=WITHIN)]
    assert durations(timeline, "activation_reduce") == [pytest.approx(15_200, rel=WITHIN)]


@pytest.mark.parametrize("columns", [16, 128, 256])
def test_12_small_loads_with_dge_take_a_constant_time_each(columns):
    def body(x):
        for i in range(100):
            sbuf = nl.ndarray((128, columns), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(sbuf, x[i])

    timeline = timeline_of(body, "trn2", x=nki.TensorSpec((100, 128, columns), "float32"))
    last = max(bar.end for bar in timeline.bars)
    assert last / 100 == pytest.approx(600, rel=WITHIN)


def test_13_resident_matmuls_reach_the_published_rate_and_the_mix_does_not():
    full = timeline_of(lambda: matmuls(2048, 128, 128, 512, nl.bfloat16), "trn2")
    assert full.flops / full.active_ns("tensor") == pytest.approx(77_200, rel=WITHIN)

    def mix():
        matmuls(512, 128, 32, 512, nl.bfloat16)
        matmuls(512, 128, 128, 64, nl.bfloat16)
        matmuls(512, 32, 128, 512, nl.bfloat16)
        matmuls(512, 128, 128, 512, nl.bfloat16)

    mixed = timeline_of(mix, "trn2")
    assert mixed.flops / mixed.active_ns("tensor") == pytest.approx(30_800, rel=WITHIN)
