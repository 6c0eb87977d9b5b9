from __future__ import annotations

import numpy as np
import pytest
from kernel_support import each_lnc, random, run
from ulps import within_ulps

import nki
from nki.check import lint
from nki.machine.generations import TRN2
from nkilib.experimental.optimizer import fused_adam

pytestmark = pytest.mark.filterwarnings("error")

BETA1, BETA2, EPS, LR = 0.9, 0.999, 1e-8, 1e-3
each_kernel = pytest.mark.parametrize("name", ["adam_kernel", "adamw_kernel"])
each_amsgrad = pytest.mark.parametrize("amsgrad", [False, True])


def scalar(value):
    return np.full((128, 1), value, np.float32)


def arguments(name, shape, dtype="float32", step=10, decay=0.01, amsgrad=False):
    state = [random(shape, dtype, seed=seed) for seed in range(3)]
    squares = [np.abs(random(shape, dtype, seed=seed)) for seed in (3, 4)]
    rates = [
        LR / (1 - BETA1**step),
        (1 - BETA2**step) ** -0.5,
        1 - LR * decay if name == "adamw_kernel" else decay,
    ]
    size = int(np.prod(shape))
    largest = squares[1] if amsgrad else None
    return [*state, squares[0], largest, *map(scalar, rates), size, BETA1, BETA2, EPS, amsgrad]


def check(name, args, lnc=1):
    actual = run(getattr(fused_adam, name), *args, lnc=lnc)
    expected = getattr(fused_adam, f"{name}_ref")(*args)
    assert len(actual) == len(expected) == (4 if args[-1] else 3)
    compare(actual[0], expected[0], absolute=1e-6 * LR)
    for mine, theirs in zip(actual[1:], expected[1:], strict=True):
        compare(mine, theirs, absolute=1e-7)  # sums of terms of about 1 that may cancel


def compare(actual, expected, absolute):
    """Compare float32 up to rounding, 16-bit dtypes up to one step."""
    if expected.dtype == np.float32:
        assert actual.dtype == np.float32 and actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=absolute)
    else:
        within_ulps(actual, expected, absolute=absolute)


@each_lnc
@each_amsgrad
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@each_kernel
def test_a_matrix_with_a_ragged_end_agrees_with_the_reference(name, dtype, amsgrad, lnc):
    check(name, arguments(name, (300, 70), dtype, amsgrad=amsgrad), lnc)


@each_lnc
@pytest.mark.parametrize("size", [1, 127, 128])
@each_kernel
def test_fewer_elements_than_one_tile_agree_with_the_reference(name, size, lnc):
    check(name, arguments(name, (size,), amsgrad=True), lnc)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("step", [1, 10, 1000])
@each_kernel
def test_early_and_late_steps_agree_with_the_reference(name, step, decay):
    check(name, arguments(name, (2, 150), step=step, decay=decay))


@pytest.mark.slow
@each_lnc
@each_kernel
def test_large_tensors_agree_with_the_reference(name, lnc):
    check(name, arguments(name, (1_000_003,)), lnc)
    check(name, arguments(name, (4096, 4096), "bfloat16"), lnc)


@pytest.mark.tiny
def test_the_first_step_moves_every_parameter_by_the_learning_rate():
    args = arguments("adam_kernel", (300,), step=1, decay=0.0)
    args[2][:] = args[3][:] = 0
    param, _, _ = run(fused_adam.adam_kernel, *args)
    np.testing.assert_allclose(param, args[0] - LR * np.sign(args[1]), atol=1e-6)


def test_zero_gradients_leave_zero_state_and_the_parameter():
    args = arguments("adamw_kernel", (300,), decay=0.0)
    for tensor in args[1:4]:
        tensor[:] = 0
    param, exp_avg, exp_avg_sq = run(fused_adam.adamw_kernel, *args)
    np.testing.assert_array_equal(param, args[0])
    assert not exp_avg.any() and not exp_avg_sq.any()


def test_inputs_are_unchanged():
    args = arguments("adam_kernel", (300,), amsgrad=True)
    before = [a.copy() for a in args[:5]]
    run(fused_adam.adam_kernel, *args)
    for old, new in zip(before, args[:5], strict=True):
        np.testing.assert_array_equal(old, new)


def test_each_output_has_the_dtype_of_its_input():
    args = arguments("adamw_kernel", (300,), "float32", amsgrad=True)
    args[1], args[2] = args[1].astype("bfloat16"), args[2].astype("float16")
    check("adamw_kernel", args)


def test_a_dummy_maximum_is_ignored_without_amsgrad():
    args = arguments("adam_kernel", (300,))
    expected = run(fused_adam.adam_kernel, *args)
    args[4] = np.ones((1,), np.int32)
    for mine, theirs in zip(run(fused_adam.adam_kernel, *args), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@each_amsgrad
@each_kernel
def test_ten_steps_follow_torch(name, amsgrad):
    torch = pytest.importorskip("torch")
    decay, start = 0.01, random((257,), seed=7)
    param = torch.nn.Parameter(torch.from_numpy(start.copy()))
    make = torch.optim.AdamW if name == "adamw_kernel" else torch.optim.Adam
    theirs = make([param], lr=LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=decay, amsgrad=amsgrad)
    state = [start, *(np.zeros(257, np.float32) for _ in range(3))]
    for step in range(1, 11):
        grad = random((257,), seed=100 + step)
        param.grad = torch.from_numpy(grad.copy())
        theirs.step()
        args = arguments(name, (257,), step=step, decay=decay, amsgrad=amsgrad)
        args[:5] = [state[0], grad, *state[1:]]
        state[: 3 + amsgrad] = run(getattr(fused_adam, name), *args)
    np.testing.assert_allclose(state[0], param.detach().numpy(), rtol=1e-6, atol=1e-6 * LR * 10)


@each_kernel
def test_trn3_gives_the_same_and_the_compiler_would_accept_the_kernel(name):
    kernel = getattr(fused_adam, name)
    args = arguments(name, (300,))
    expected = run(kernel, *args)
    for mine, theirs in zip(run(kernel, *args, on="trn3"), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [str(finding) for finding in lint(kernel)] == []


# ---- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "numel: got 299, expected 300, the size of param_ptr": (8, 299),
    "grad_ptr: got shape (299,), expected (300,)": (1, np.ones(299, np.float32)),
    "exp_avg_ptr: got dtype int32, allowed are float32, bfloat16 and float16": (2, np.ones(300, np.int32)),
    "exp_avg_sq_ptr: got shape (3, 100), expected (300,)": (3, np.ones((3, 100), np.float32)),
    "max_exp_avg_sq_ptr: got None, expected a tensor": (4, None),
    "step_size_ptr: got shape (1, 1), expected (128, 1)": (5, np.ones((1, 1), np.float32)),
    "inv_bc2_sqrt_ptr: got shape (128,), expected (128, 1)": (6, np.ones(128, np.float32)),
    "wd_factor_ptr: got dtype int32": (7, np.ones((128, 1), np.int32)),
    "beta1: got 1.0, allowed is 0 <= beta1 < 1": (9, 1.0),
    "beta2: got -0.1, allowed is 0 <= beta2 < 1": (10, -0.1),
    "eps: got -1.0, allowed is eps >= 0": (11, -1.0),
}


@pytest.mark.parametrize("text", REFUSED)
@each_kernel
def test_wrong_arguments_are_refused_by_name(name, text):
    args = arguments(name, (300,), amsgrad=True)
    position, value = REFUSED[text]
    args[position] = value
    with pytest.raises(AssertionError) as refusal:
        run(getattr(fused_adam, name), *args)
    assert f"[NCC_INKI016] Kernel validation exception: {text}" in str(refusal.value)


# ---- speed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "share"), [("adam_kernel", 0.9), ("adamw_kernel", 0.95)])
def test_16_million_parameters_pass_at_the_rate_of_memory(name, share, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    size = 1 << 24
    tensor, rate = nki.TensorSpec((size,), "bfloat16"), nki.TensorSpec((128, 1), "float32")
    kernel = getattr(fused_adam, name)
    profile = nki.profile(kernel)(*[tensor] * 4, None, *[rate] * 3, size, BETA1, BETA2, EPS)
    bound = 7 * size * 2 / (TRN2.dma_engines * TRN2.dma_bytes_per_ns) / 1e3
    assert bound / profile.total_us > share
