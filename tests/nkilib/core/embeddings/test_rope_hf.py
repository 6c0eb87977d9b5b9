import ml_dtypes
import numpy as np
import pytest
from kernel_support import compiles_and_example_runs, each_lnc, invalid, random, run
from ulps import within_ulps

from nkilib.core.embeddings.rope_hf import rope_hf, rope_hf_ref

BF16 = np.dtype(ml_dtypes.bfloat16)


def operands(batch, q_heads, k_heads, sequence, d, dtype=BF16):
    angles = 7 * random((batch, sequence, d), seed=1)
    q = random((batch, q_heads, sequence, d), dtype, 2)
    k = random((batch, k_heads, sequence, d), dtype, 3)
    return q, k, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def check(q, k, lnc=1, **options):
    results = np.full_like(q, 77), np.full_like(k, 77)
    got = run(rope_hf, q, k, *results, lnc=lnc, **options)
    for actual, expected in zip(got, rope_hf_ref(q, k, **options), strict=True):
        if actual.dtype == np.float32:
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
        else:
            within_ulps(actual, expected)


@each_lnc
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [BF16, np.dtype("float32")])
@pytest.mark.parametrize(
    "sizes",
    [(2, 4, 2, 128, 64), (1, 9, 1, 200, 128), (3, 1, 1, 5, 10), (1, 5, 1, 1101, 16), (1, 1, 1, 9, 256)],
)
def test_queries_and_keys_are_rotated(sizes, dtype, backward, lnc):
    q, k, cos, sin = operands(*sizes, dtype)
    check(q, k, lnc, cos=cos, sin=sin, backward=backward)


@pytest.mark.parametrize("backward", [False, True])
def test_angles_may_come_from_a_cache(backward):
    q, k, cos, sin = operands(2, 4, 2, 150, 64)
    check(q, k, rope_cache=np.concatenate([cos[0], sin[0]], axis=1), backward=backward)


def test_backward_is_the_transpose_of_forward():
    q, k, cos, sin = operands(1, 1, 1, 8, 16, np.dtype("float32"))
    forward, _ = rope_hf_ref(q, k, cos, sin)
    _, backward = rope_hf_ref(q, k, cos, sin, backward=True)
    assert np.sum(forward * k) == pytest.approx(np.sum(q * backward), rel=1e-5)


def refused(text, *args, **options):
    with invalid(text):
        run(rope_hf, *args, **options)


def test_wrong_arguments_raise():
    q, k, cos, sin = operands(1, 2, 1, 8, 16)
    refused("q: got head dimension 15, allowed are even numbers", q[..., :15], k, q, k, cos, sin)
    refused(r"q: got shape \(2, 8, 16\), expected \(B, heads, S, d\)", q[0], k, q, k, cos, sin)
    refused(r"k: got shape \(1, 1, 4, 16\), expected \(1, 1, 8, 16\)", q, k[:, :, :4], q, k, cos, sin)
    refused(r"q_out: got shape \(1, 1, 8, 16\), expected \(1, 2, 8, 16\)", q, k, k, k, cos, sin)
    refused(r"cos: got shape \(1, 8, 8\), expected \(1, 8, 16\)", q, k, q, k, cos[..., :8], sin)
    refused("cos, sin, rope_cache: got .*, allowed are cos and sin, or rope_cache", q, k, q, k, cos)
    refused(r"rope_cache: got shape \(8, 16\), expected \(8, 32\)", q, k, q, k, rope_cache=cos[0])
    refused("q: got dtype int32, allowed are", q.astype(np.int32), k, q, k, cos, sin)


def test_the_compiler_would_take_it():
    compiles_and_example_runs(rope_hf)
