from __future__ import annotations

import numpy as np
import pytest
from kernel_support import each_lnc, random, run

import nki
from nki.check import lint
from nki.machine.generations import TRN2
from nkilib.experimental.pad import pad as exported
from nkilib.experimental.pad.pad import MODES, pad, pad_ref

pytestmark = pytest.mark.filterwarnings("error")

each_mode = pytest.mark.parametrize("mode", MODES)
SPECIFIED = [
    ((2, 3, 17), (1, 2)),
    ((1, 16, 33, 20), (3, 3, 1, 0)),
    ((1, 4, 5, 8, 9), (1, 1, 2, 2, 0, 3)),
    ((128, 512), (0, 7)),
]
OTHERS = [
    ((5,), (2, 3)),  # no leading dimension
    ((3, 4), (1, 1, 1, 2)),
    ((150, 3, 4), (1, 0, 0, 0, 2, 1)),  # three padded dimensions, the middle one by nothing
    ((700, 3, 2), (1, 1)),  # several rows in each partition, and a remainder
    ((300, 6, 6), (1, 1, 1, 1)),  # several planes in each partition, and a remainder
    ((2, 200, 3), (1, 1, 3, 3)),  # rows in the partitions
    ((2, 7, 140, 5), (0, 1, 3, 0, 2, 2)),
    ((2, 3), (0, 0)),
    ((3, 2500), (5, 2)),  # rows longer than a tile
    ((130, 2, 1100), (3, 3, 1, 1)),
    ((2, 3, 40, 50), (0, 0, 0, 0, 1, 2)),
]


def check(x, padding, mode, value=0, lnc=1):
    actual = run(pad, x, padding, mode, value, lnc=lnc)
    expected = pad_ref(x, padding, mode, value)
    assert actual.dtype == x.dtype and actual.shape == expected.shape
    np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8))


@each_lnc
@each_mode
@pytest.mark.parametrize(("shape", "padding"), SPECIFIED + OTHERS)
def test_padding_is_exact(shape, padding, mode, lnc):
    check(random(shape), padding, mode, 2.5, lnc)


@each_mode
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
def test_every_float_dtype_keeps_its_bits(dtype, mode):
    check(random((2, 3, 9, 11), dtype), (2, 1, 1, 2), mode, 1.5)


@each_mode
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_every_integer_dtype_keeps_its_bits(dtype, mode):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, (2, 3, 9, 11), dtype, endpoint=True)
    check(x, (2, 1, 1, 2), mode, 77)


@each_mode
def test_booleans_stay_booleans(mode):
    check(random((3, 9)) > 0, (2, 1), mode, True)


@each_lnc
@pytest.mark.parametrize("padding", [(-2, -3), (-1, 4), (3, -5, -1, 2), (1, 1, -2, 0, -1, 3)])
def test_negative_paddings_crop_with_mode_constant(padding, lnc):
    check(random((2, 4, 6, 10)), padding, "constant", 9.0, lnc)


def test_rows_longer_than_a_tile_may_be_cropped_and_filled():
    check(random((2, 3, 3000)), (-7, 2000, 1, 0), "constant", 9.0)
    check(random((3, 5)), (4000, 100), "constant", 9.0)
    check(random((3, 1500)), (1499, 1499), "reflect")
    check(random((3, 1500)), (1500, 1500), "circular")
    check(random((3, 5)), (4000, 1), "replicate")


@pytest.mark.tiny
def test_the_default_repeats_the_edges():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(exported, x, (1, 2)), np.pad(x, ((0, 0), (1, 2)), mode="edge"))


def test_calls_by_keyword_leave_the_input_unchanged():
    x = random((3, 4))
    before = x.copy()
    actual = run(pad, x_ref=x, padding=(1, 1), mode="constant", value=float("-inf"))
    np.testing.assert_array_equal(actual, np.pad(x, ((0, 0), (1, 1)), constant_values=-np.inf))
    np.testing.assert_array_equal(x, before)


@each_mode
@pytest.mark.parametrize(("shape", "padding"), [SPECIFIED[0], SPECIFIED[1], SPECIFIED[2]])
def test_padding_equals_torch(shape, padding, mode):
    torch = pytest.importorskip("torch")
    x = random(shape)
    theirs = torch.nn.functional.pad(
        torch.from_numpy(x), padding, mode, *((2.5,) if mode == "constant" else ())
    )
    np.testing.assert_array_equal(run(pad, x, padding, mode, 2.5), theirs.numpy())


def test_trn3_gives_the_same_and_the_compiler_would_accept_the_kernel():
    x = random((3, 4, 5))
    np.testing.assert_array_equal(run(pad, x, (1, 2, 3, 1), on="trn3"), pad_ref(x, (1, 2, 3, 1)))
    assert [str(finding) for finding in lint(pad)] == []


# ---- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "mode: got mirror, allowed are ('constant', 'replicate', 'reflect', 'circular')": ((1, 1), "mirror"),
    "padding: got 3 numbers, allowed are pairs": ((1, 1, 1), "replicate"),
    "padding: got 8 numbers, allowed are 2, 4 or 6 for one to three axes": ((1,) * 8, "replicate"),
    "padding: got 0 numbers, allowed are 2, 4 or 6 for one to three axes": ((), "replicate"),
    "padding: got 6 numbers, allowed are 4 for shape (4, 5)": ((1,) * 6, "replicate"),
    "padding: got (5, 0) for dimension 1 of size 5, allowed are at most 4 with mode reflect": (
        (5, 0),
        "reflect",
    ),
    "padding: got (0, 5) for dimension 0 of size 4, allowed are at most 4 with mode circular": (
        (0, 0, 0, 5),
        "circular",
    ),
    "padding: got (-1, 0) for dimension 1 of size 5, negative paddings are allowed with mode constant only": (
        (-1, 0),
        "replicate",
    ),
    "padding: got (-3, -2) for dimension 1 of size 5, allowed is to crop at most 4 elements": (
        (-3, -2),
        "constant",
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_wrong_arguments_are_refused_by_name(text):
    padding, mode = REFUSED[text]
    with pytest.raises(AssertionError) as refusal:
        run(pad, np.ones((4, 5), np.float32), padding, mode)
    assert f"[NCC_INKI016] Kernel validation exception: {text}" in str(refusal.value)


def test_integers_are_not_filled_with_floats():
    with pytest.raises(AssertionError, match="value: got 1.5, allowed is an int for dtype int32"):
        run(pad, np.ones((4, 5), np.int32), (1, 1), "constant", 1.5)
    check(np.ones((4, 5), np.int32), (1, 1), "replicate", 1.5)  # other modes do not read it


# ---- speed -----------------------------------------------------------------------------------------


@each_mode
def test_a_padded_video_passes_at_the_rate_of_memory(mode, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    profile = nki.profile(pad)(nki.TensorSpec((1, 128, 4, 256, 256), "bfloat16"), (1, 1, 1, 1, 2, 0), mode)
    elements = 128 * (4 * 256 * 256 + 6 * 258 * 258)
    assert elements * 2 / (TRN2.dma_engines * TRN2.dma_bytes_per_ns) / 1e3 / profile.total_us > 0.88
