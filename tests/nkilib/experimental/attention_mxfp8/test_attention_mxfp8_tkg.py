import ml_dtypes
import mx_emulation
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, invalid, random, run

from nkilib.experimental.attention_mxfp8 import (
    attention_mxfp8_tkg,
    attention_mxfp8_tkg_ref,
    chunk_masks,
    pack_keys,
    pack_values,
)

BF16 = np.dtype(ml_dtypes.bfloat16)
DEPTH = 128


class Decode:
    """New tokens of some sequences, and a cache in which the blocks of each follow each other."""

    def __init__(self, lengths=(2000,), heads=64, steps=1, chunks=1, scale=DEPTH**-0.5):
        batch, tokens = len(lengths), 2048 * chunks
        self.lengths = np.array(lengths)
        self.q = (random((batch, heads, steps, DEPTH), BF16).astype(np.float32) * scale * 3).astype(BF16)
        self.new_k, self.new_v = (random((batch, steps, DEPTH), BF16, seed) for seed in (1, 2))
        self.k, self.v = (random((batch, tokens, DEPTH), BF16, seed) for seed in (3, 4))
        self.k_prior = np.concatenate([pack_keys(x) for x in self.k])
        self.v_prior = np.concatenate([pack_values(x) for x in self.v])
        self.mask = chunk_masks(self.lengths, tokens)
        self.seen = np.arange(tokens) < self.lengths[:, None]

    def run(self, lnc=1, flat=False, **changes):
        new = [x[:, 0] if flat else x for x in (self.new_k, self.new_v)]
        named = {"q": self.q, "k_active": new[0], "v_active": new[1], "mask": self.mask}
        named |= {"k_prior": self.k_prior, "v_prior": self.v_prior, **changes}
        return run(attention_mxfp8_tkg, lnc=lnc, on="trn3", **named)

    def expected(self):
        every = zip(self.q, self.k, self.v, self.new_k, self.new_v, self.seen, strict=True)
        return np.stack([emulated(*arguments) for arguments in every])

    def exact(self):
        every = zip(self.q, self.k, self.v, self.new_k, self.new_v, self.lengths, strict=True)
        return np.stack([attention_mxfp8_tkg_ref(*arguments) for arguments in every])


def rounded(x):
    return np.float64(np.float32(x).astype(BF16))


def quantized(rows):
    """Rows [F, 128 n] in float64, rounded to MXFP8 in blocks of 8 rows x 4 lanes of each 128 columns."""
    parts = np.split(rows, rows.shape[1] // 128, axis=1)
    return np.concatenate([mx_emulation.quantized(part).values for part in parts], axis=1)


def emulated(q, k, v, new_k, new_v, seen):
    """[H, s, d] in float64: the kernel's order of chunks, its roundings by the OCP specification."""
    keys, values = quantized(np.float64(k)), quantized(np.float64(v).T).T
    out = np.zeros(q.shape)
    for j in range(q.shape[1]):
        rows = np.float64(q[:, j])
        scores = rows @ np.float64(new_k[: j + 1]).T
        top = rounded(scores.max(1, keepdims=True))
        weights = np.exp(scores - top)
        total, sums = rounded(weights) @ np.float64(new_v[: j + 1]), weights.sum(1, keepdims=True)
        for start in range(0, len(k), 2048):
            scores = quantized(rows) @ keys[start : start + 2048].T
            scores -= 32768 * ~seen[start : start + 2048]
            before, top = top, np.maximum(top, rounded(scores.max(1, keepdims=True)))
            weights = quantized(rounded(np.exp(scores - top)))
            factor = np.exp(before - top)
            total = total * factor + weights @ values[start : start + 2048]
            sums = sums * factor + weights.sum(1, keepdims=True)
        out[:, j] = total / sums
    return out


def check(decode, lnc=1, **changes):
    out = decode.run(lnc, **changes)
    expected = decode.expected()
    close(out, expected[:, :, 0] if decode.q.shape[2] == 1 else expected)


@each_lnc
@pytest.mark.parametrize("lengths", [(2000,), (0,), (1, 2048), (77, 1500, 513)], ids=str)
def test_a_step_over_sequences_of_any_length(lengths, lnc):
    check(Decode(lengths, heads=4), lnc)


@each_lnc
def test_chunks_are_joined_by_the_online_softmax(lnc):
    check(Decode((5000,), chunks=3, heads=4), lnc)


@each_lnc
def test_new_tokens_of_speculative_decoding_see_those_before_them(lnc):
    check(Decode((700,), steps=4, heads=6), lnc)


def test_the_documented_sizes():
    check(Decode((4000,), chunks=2), flat=True)


@pytest.mark.parametrize("heads", [2, 34])
def test_fewer_heads(heads):
    check(Decode((900,), heads=heads), 2)


def test_blocks_come_from_a_table():
    decode = Decode((3000, 1000), chunks=2, heads=8)
    expected = decode.run()
    order = np.random.default_rng(0).permutation(70)[:64]
    for name in ("k_prior", "v_prior"):
        scattered = np.zeros((70, 32, 160), np.float32)
        scattered[order] = getattr(decode, name)
        setattr(decode, name, scattered)
    out = decode.run(2, active_blocks_table=order.reshape(2, 32).astype(np.int32))
    np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))


def test_an_identity_of_the_caller_is_used():
    decode = Decode((900,), heads=8)
    out = decode.run(identity_hbm=np.eye(128).astype(BF16))
    np.testing.assert_array_equal(out.view(np.uint16), decode.run().view(np.uint16))


def test_a_mask_may_hide_any_token():
    decode = Decode((2048,), heads=8)
    tokens = np.arange(2048)
    hidden = np.random.default_rng(5).random(2048) < 0.5
    i, g, lane, p = tokens // 128 % 4, tokens // 512, tokens // 32 % 4, tokens % 32
    decode.mask[0, 32 * i + p, 4 * g + lane] = ~hidden
    decode.seen = ~hidden[None]
    check(decode)


def test_the_result_is_close_to_attention_without_quantisation():
    decode = Decode((2000,), heads=16)
    assert cosine(decode.run(), decode.exact()[:, :, 0]) > 0.99


def test_the_reference_is_attention_of_pytorch():
    torch = pytest.importorskip("torch")
    decode = Decode((40,), heads=4, steps=3)
    keys, values = (
        torch.tensor(np.concatenate([old[0, :40], new[0]]).astype(np.float64))
        for old, new in ((decode.k, decode.new_k), (decode.v, decode.new_v))
    )
    seen = torch.ones(3, 43, dtype=torch.bool).tril(40)
    want = torch.nn.functional.scaled_dot_product_attention(
        torch.tensor(decode.q[0].astype(np.float64)),
        keys.expand(4, -1, -1),
        values.expand(4, -1, -1),
        seen,
        scale=1.0,
    )
    np.testing.assert_allclose(decode.exact()[0], want.numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"q": np.ones((1, 64, 128), BF16)}, "q: got shape"),
        ({"q": np.ones((1, 63, 1, 128), BF16)}, "q: got 63 heads"),
        ({"q": np.ones((1, 64, 1, 64), BF16)}, "q: got head dimension 64"),
        ({"q": np.ones((1, 64, 1, 128), np.float32)}, "q: got float32"),
        ({"k_active": np.ones((1, 64), BF16)}, "k_active: got shape"),
        ({"v_active": np.ones((2, 128), BF16)}, "v_active: got shape"),
        ({"k_prior": np.ones((16, 32, 128), np.float32)}, "k_prior: got shape"),
        ({"v_prior": np.ones((15, 32, 160), np.float32)}, "v_prior: got shape"),
        ({"mask": np.ones((1, 128, 1024), np.uint8)}, "mask: got shape"),
        ({"mask": np.ones((1, 128, 16), np.float32)}, "mask: got float32"),
        ({"identity_hbm": np.ones((64, 64), BF16)}, "identity_hbm: got shape"),
        ({"active_blocks_table": np.zeros((1, 15), np.int32)}, "active_blocks_table: got shape"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(change, text):
    with invalid(text):
        Decode().run(**change)


def test_the_compiler_accepts_it_and_the_example_runs():
    compiles_and_example_runs(attention_mxfp8_tkg)
