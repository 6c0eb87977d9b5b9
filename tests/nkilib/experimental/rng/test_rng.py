from __future__ import annotations

import numpy as np
import pytest
from kernel_support import each_lnc, run

from nki.check import lint
from nkilib.experimental.rng import rng

pytestmark = pytest.mark.filterwarnings("error")

STATE = np.array([[0x12345678, 0x9ABCDEF0, 3, 0xFFFFFFFF, 0x80000000, 6]], np.uint32)


def generate(size, lnc=1, dtype=np.int32):
    return run(rng.generate_random, np.zeros((1, size), dtype), size, lnc=lnc)


def set_state(words=STATE, lnc=1):
    return run(rng.set_rng_state_gpsimd, words, lnc=lnc)


def get_state(lnc=1):
    return run(rng.get_rng_state_gpsimd, np.zeros_like(STATE), lnc=lnc)


@pytest.mark.tiny
def test_what_was_set_is_read_back_bit_by_bit():
    for actual in (set_state(), get_state()):
        assert actual.dtype == np.uint32
        np.testing.assert_array_equal(actual, STATE)


@each_lnc
def test_state_travels_as_int32_too(lnc):
    words = STATE.view(np.int32)
    np.testing.assert_array_equal(set_state(words, lnc), words)
    actual = run(rng.get_rng_state_gpsimd, words, lnc=lnc)
    assert actual.dtype == np.int32
    np.testing.assert_array_equal(actual, words)


@pytest.mark.parametrize("size", [1, 127, 128, 1000, 300_000])
def test_lanes_of_equal_state_generate_xorwow_words_in_the_documented_order(size):
    set_state()
    actual = generate(size)
    assert actual.shape == (1, size) and actual.dtype == np.int32
    np.testing.assert_array_equal(actual.view(np.uint32), rng.generate_random_ref(STATE, size))


@each_lnc
@pytest.mark.parametrize("size", [1, 128, 1000, 100_000])
def test_equal_state_gives_equal_words(size, lnc):
    set_state(lnc=lnc)
    first = generate(size, lnc)
    set_state(lnc=lnc)
    np.testing.assert_array_equal(generate(size, lnc), first)


def test_the_state_advances_by_one_step_for_each_word_of_a_lane():
    set_state()
    first, second = generate(128 * 7), generate(128 * 7)
    assert (first != second).all()
    np.testing.assert_array_equal(get_state()[0], rng.xorwow_ref(STATE, 14)[1])


@each_lnc
@pytest.mark.parametrize("before", [1, 5, 127, 129, 1000])
def test_get_and_set_repeat_the_sequence_after_any_number_of_words(before, lnc):
    set_state(lnc=lnc)
    generate(before, lnc)
    saved = get_state(lnc)
    wanted = generate(300, lnc)
    set_state(saved, lnc)
    np.testing.assert_array_equal(generate(300, lnc), wanted)


def test_setting_one_core_alone_leaves_the_other():
    set_state(lnc=2)
    set_state(STATE + np.uint32(1))
    np.testing.assert_array_equal(get_state(lnc=2), STATE + np.uint32(1))  # the first core's


def test_words_of_one_lane_are_evenly_distributed():
    set_state()
    words = np.concatenate(
        [generate(1).ravel() for _ in range(3)] + [generate(127).ravel() for _ in range(80)]
    )
    words = words.view(np.uint32)
    assert len(np.unique(words)) == len(words)
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 32).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 0.03  # of 10163 words, six standard deviations
    counts = np.bincount(words >> np.uint32(28), minlength=16)
    assert ((counts - len(words) / 16) ** 2 / (len(words) / 16)).sum() < 45  # chi-square, 15 degrees


def test_words_may_be_unsigned():
    set_state()
    signed = generate(1000)
    set_state()
    unsigned = generate(1000, dtype=np.uint32)
    assert unsigned.dtype == np.uint32
    np.testing.assert_array_equal(unsigned, signed.view(np.uint32))


@pytest.mark.parametrize("name", ["get_rng_state_gpsimd", "set_rng_state_gpsimd", "generate_random"])
def test_the_compiler_would_accept_the_kernel(name):
    assert [str(finding) for finding in lint(getattr(rng, name))] == []


def test_trn3_generates_the_same_words():
    run(rng.set_rng_state_gpsimd, STATE, on="trn3")
    actual = run(rng.generate_random, np.zeros((1, 500), np.uint32), 500, on="trn3")
    np.testing.assert_array_equal(actual, rng.generate_random_ref(STATE, 500))


# ---- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [rng.get_rng_state_gpsimd, rng.set_rng_state_gpsimd])
def test_a_state_of_wrong_shape_or_dtype_is_refused_by_name(kernel):
    with pytest.raises(
        AssertionError, match=r"NCC_INKI016.*tensor_state: got shape \(6,\), expected \(1, 6\)"
    ):
        run(kernel, STATE[0])
    with pytest.raises(AssertionError, match="tensor_state: got dtype float32, allowed are uint32 and int32"):
        run(kernel, STATE.astype(np.float32))


def test_wrong_outputs_are_refused_by_name():
    with pytest.raises(AssertionError, match=r"NCC_INKI016.*output: got shape \(1, 5\), expected \(1, 6\)"):
        run(rng.generate_random, np.zeros((1, 5), np.int32), 6)
    with pytest.raises(AssertionError, match="output: got dtype float32, allowed are int32 and uint32"):
        run(rng.generate_random, np.zeros((1, 5), np.float32), 5)


def test_trn1_has_no_such_generator():
    with pytest.raises(AssertionError, match="allowed are NeuronCore-v3"):
        run(rng.generate_random, np.zeros((1, 5), np.int32), 5, on="trn1")
