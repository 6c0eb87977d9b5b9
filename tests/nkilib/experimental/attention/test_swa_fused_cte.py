import ml_dtypes
import numpy as np
import pytest
from kernel_support import close, compiles_and_example_runs, cosine, each_lnc, fp8_steps, invalid, random, run

from nkilib.experimental.attention.swa_fused_cte import swa_fused_cte, swa_fused_cte_ref

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3)  # of trn2
E4M3FN = np.dtype(ml_dtypes.float8_e4m3fn)  # of trn3


class Block:
    """A block with random weights, a cache in which every position of the tables has a token."""

    def __init__(
        self,
        batch=1,
        tokens=200,
        hidden=320,
        q_heads=4,
        kv_heads=2,
        depth=64,
        window=128,
        block_size=32,
        prior=100,
        dtype=BF16,
        cache=None,
        half_angles=False,
    ):
        self.sizes = {"num_q_heads": q_heads, "num_kv_heads": kv_heads, "d_head": depth}
        self.sizes |= {"sliding_window": window, "block_size": block_size, "scale": 0.125}
        columns = (q_heads + 2 * kv_heads) * depth
        self.x = random((batch, tokens, hidden), dtype)
        self.wqkv = random((hidden, columns), dtype, 1, hidden**-0.5)
        self.wo = random((q_heads * depth, hidden), dtype, 2, (q_heads * depth) ** -0.5)
        self.bqkv, self.bo = random((1, columns), dtype, 3), random((1, hidden), dtype, 4)
        self.sink = random((q_heads, 1), "float32", 5)
        at = prior + np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(depth // 2) / (depth // 2))
        angles = np.cos(at), np.sin(at)
        copies = 1 if half_angles else 2
        self.cos, self.sin = (
            np.tile(np.tile(x, copies), (batch, 1, 1)).astype(np.float32).astype(dtype) for x in angles
        )
        self.prior = np.array([[prior]], np.int32)
        used = -(-(prior + tokens) // block_size)
        blocks = np.random.default_rng(6).permutation(batch * used + 3)[: batch * used]
        self.tables = np.full((batch, used + 2), -1, np.int32)
        self.tables[:, :used] = blocks.reshape(batch, used)
        self.scales = {}
        shape = (batch * used + 3, kv_heads, block_size, depth)
        keys, values = random(shape, dtype, 7), random(shape, dtype, 8)
        if cache is not None:
            self.scales = {"k_scale": np.full((1, 1), 0.03, np.float32)}
            self.scales |= {"v_scale": np.full((128, 1), 0.02, np.float32)}
            keys, values = (x.astype(np.float32) / 0.025 for x in (keys, values))
            keys, values = (x.astype(cache) for x in (keys, values))
            keys = packed(keys)
        self.k_cache, self.v_cache = keys, values

    def run(self, lnc=1, on="trn2", **changes):
        arguments = (self.x, self.wqkv, self.wo, self.k_cache.copy(), self.v_cache.copy(), self.tables,
                     self.cos, self.sin, self.sink, self.prior, self.bqkv, self.bo)  # fmt: skip
        return run(swa_fused_cte, *arguments, lnc=lnc, on=on, **self.sizes, **self.scales, **changes)

    def expected(self, **options):
        """(out, k_cache, v_cache): the reference, sequence by sequence."""
        k_cache, v_cache = self.k_cache.copy(), self.v_cache.copy()
        scales = [
            float(np.ravel(self.scales[name])[0]) if self.scales else None for name in ("k_scale", "v_scale")
        ]
        out = []
        prior = np.broadcast_to(self.prior.ravel(), len(self.x))
        for b, n in enumerate(prior):
            n = int(n)
            caches = [unpacked(k_cache) if self.scales else k_cache, v_cache]
            old = [tokens_of(c, self.tables[b])[:, :n] for c in caches]
            if self.scales:
                old = [(x * s).astype(np.float32).astype(BF16).astype(np.float64)
                       for x, s in zip(old, np.float32(scales), strict=True)]  # fmt: skip
            sizes = {name: self.sizes[name] for name in ("num_q_heads", "d_head", "sliding_window", "scale")}
            y, k, v = swa_fused_cte_ref(
                self.x[b], self.wqkv, self.wo, *old, self.cos[b], self.sin[b], self.sink,
                np.float64(self.bqkv[0]), np.float64(self.bo[0]), **{**sizes, **options},
            )  # fmt: skip
            out.append(y)
            for cache, new, scale in zip(caches, (k, v), scales, strict=True):
                put_tokens(cache, self.tables[b], n, new[:, n:], scale)
            k_cache = packed(caches[0]) if self.scales else caches[0]
        return np.stack(out), k_cache, v_cache


def packed(keys):
    blocks, heads, size, depth = keys.shape
    return keys.reshape(blocks, heads, size // 2, 2, depth).swapaxes(3, 4).copy()


def unpacked(keys):
    blocks, heads, half, depth, _ = keys.shape
    return keys.swapaxes(3, 4).reshape(blocks, heads, 2 * half, depth).copy()


def tokens_of(cache, table):
    """[heads, tokens, d] of a sequence, in float64."""
    found = cache[table[table >= 0]].astype(np.float64)
    return found.swapaxes(0, 1).reshape(cache.shape[1], -1, cache.shape[3])


def put_tokens(cache, table, first, tokens, scale):
    """Write [heads, n, d] to positions first ..., divided by the scale and clipped."""
    if scale is not None:
        largest = float(ml_dtypes.finfo(cache.dtype).max)
        tokens = np.clip(tokens / np.float32(scale), -largest, largest)
    for i in range(tokens.shape[1]):
        block, slot = divmod(first + i, cache.shape[2])
        cache[table[block], :, slot] = tokens[:, i].astype(np.float32).astype(cache.dtype)


def check(block, lnc=1, on="trn2", **changes):
    """The result is that of the reference; so are the caches, and untouched where nothing is new."""
    out, k_cache, v_cache = block.run(lnc, on, **changes)
    want, want_k, want_v = block.expected()
    assert out.dtype == block.x.dtype and cosine(out, want) > 0.9999
    np.testing.assert_allclose(np.float64(out), want, rtol=0.02, atol=0.01 * np.abs(want).max())
    fresh = new_slots(block)
    for got, expected, before in ((k_cache, want_k, block.k_cache), (v_cache, want_v, block.v_cache)):
        if got.ndim == 5:
            got, expected, before = unpacked(got), unpacked(expected), unpacked(before)
        np.testing.assert_array_equal(got.view(np.uint8)[~fresh], before.view(np.uint8)[~fresh])
        if block.scales:
            assert fp8_steps(got, expected) <= 1  # keys may be rounded to another neighbour before
        else:
            close(got, expected)


def new_slots(block):
    """Where a cache [blocks, heads, block_size, ...] has new tokens."""
    fresh = np.zeros(block.v_cache.shape[:3], bool)
    for b, first in enumerate(np.broadcast_to(block.prior.ravel(), len(block.x))):
        blocks, slots = np.divmod(first + np.arange(block.x.shape[1]), fresh.shape[2])
        fresh[block.tables[b, blocks], :, slots] = True
    return fresh


@each_lnc
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prior": 0},
        {"prior": 300, "tokens": 130, "block_size": 16},
        {"window": 40, "tokens": 77, "prior": 9},
        {"window": 200, "tokens": 300, "prior": 150, "block_size": 128},
        {"q_heads": 1, "kv_heads": 1, "depth": 128, "hidden": 130, "tokens": 1, "prior": 127},
    ],
    ids=str,
)
def test_windows_priors_and_odd_sizes(options, lnc):
    check(Block(**options), lnc)


@each_lnc
@pytest.mark.parametrize("prior, tokens", [(101, 50), (100, 51), (0, 2), (1, 300)])
def test_fp8_caches_hold_keys_in_pairs(prior, tokens, lnc):
    check(Block(prior=prior, tokens=tokens, cache=E4M3), lnc)


@pytest.mark.parametrize("dtype", [E4M3FN, np.dtype(ml_dtypes.float8_e5m2)])
def test_fp8_caches_of_trn3(dtype):
    check(Block(prior=33, tokens=40, cache=dtype), 2, "trn3")


def test_the_other_token_of_a_pair_may_be_nan():
    block = Block(prior=101, tokens=20, cache=E4M3)
    keys = unpacked(block.k_cache)
    blocks, slots = np.divmod(np.arange(121, 125), 32)
    keys[block.tables[0, blocks], :, slots] = np.nan
    block.k_cache = packed(keys)
    out, k_cache, _ = block.run()
    assert np.isfinite(out.astype(np.float32)).all()
    assert np.isnan(unpacked(k_cache)[block.tables[0, 3], :, 121 % 32].astype(np.float32)).all()


def test_values_of_unwritten_slots_do_not_count():
    block = Block(prior=5, tokens=30, window=128)
    for cache in (block.k_cache, block.v_cache):
        used = cache[block.tables[0, 0], :, :5].copy()
        cache[:] = np.nan
        cache[block.tables[0, 0], :, :5] = used
    assert np.isfinite(block.run()[0].astype(np.float32)).all()


def test_sequences_have_tables_and_priors_of_their_own():
    block = Block(batch=2, tokens=60, prior=90)
    check(block, 2)
    block.prior = np.array([90, 3], np.int32)
    check(block)


@pytest.mark.parametrize("on", ["trn2", "trn3"])
def test_float16_and_both_platforms(on):
    check(Block(dtype=np.dtype(np.float16), tokens=64), on=on)


def test_angles_of_half_a_head():
    whole, half = Block(tokens=40), Block(tokens=40, half_angles=True)
    np.testing.assert_array_equal(whole.run()[0].view(np.uint16), half.run()[0].view(np.uint16))


def test_sink_and_biases_may_be_missing():
    block = Block(tokens=40)
    arguments = (block.x, block.wqkv, block.wo, block.k_cache.copy(), block.v_cache.copy(), block.tables)
    out = run(swa_fused_cte, *arguments, block.cos, block.sin, None, block.prior, None, None, **block.sizes)[
        0
    ]
    block.sink, block.bqkv, block.bo = None, 0 * block.bqkv, 0 * block.bo
    assert cosine(out, block.expected()[0]) > 0.9999


def test_a_table_may_reuse_blocks_of_the_window():
    block = Block(tokens=32, prior=128, window=128, block_size=32)
    block.tables[0, 4] = block.tables[0, 0]  # new tokens overwrite the oldest ones
    close(block.run()[0], block.expected()[0], terms=4)


def test_the_reference_is_attention_of_pytorch_in_float64():
    torch = pytest.importorskip("torch")
    block = Block(tokens=70, prior=0, q_heads=2, kv_heads=1)
    double = {
        name: getattr(block, name).astype(np.float64) for name in ("x", "wqkv", "wo", "cos", "sin", "sink")
    }
    empty = np.zeros((1, 0, 64))
    out, k, v = swa_fused_cte_ref(
        double["x"][0], double["wqkv"], double["wo"], empty, empty, double["cos"][0], double["sin"][0],
        double["sink"], scale=0.125, sliding_window=20, num_q_heads=2,
    )  # fmt: skip
    rows = torch.tensor(double["x"][0] @ double["wqkv"]).reshape(70, 4, 64).float().double()
    cos, sin = (torch.tensor(double[name][0])[:, None] for name in ("cos", "sin"))
    rotate = lambda x: x * cos + torch.cat([-x[..., 32:], x[..., :32]], -1) * sin  # noqa: E731
    q, key, value = rotate(rows[:, :2]), rotate(rows[:, 2:3])[:, 0], rows[:, 3]
    i, j = torch.meshgrid(torch.arange(70), torch.arange(70), indexing="ij")
    scores = torch.einsum("qhd,kd->hqk", q, key) * 0.125
    scores = scores.masked_fill((j > i) | (i - j >= 20), -torch.inf)
    logits = torch.tensor(double["sink"])[:, :, None].expand(2, 70, 1)
    weights = torch.softmax(torch.cat([scores, logits], -1), -1)[..., :-1]
    want = torch.einsum("hqk,kd->qhd", weights, value).reshape(70, 128) @ torch.tensor(double["wo"])
    np.testing.assert_allclose(out, want.numpy(), rtol=1e-4, atol=1e-5)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, text",
    [
        ({"num_q_heads": 3}, "num_q_heads: got 3, allowed are multiples of num_kv_heads = 2"),
        ({"d_head": 63}, "d_head: got 63"),
        ({"sliding_window": 0}, "sliding_window: got 0"),
        ({"block_size": 64}, "v_cache: got shape"),
        ({"scale": -1.0}, "scale: got -1.0"),
        ({"k_scale": np.ones((1, 1), np.float32)}, "k_scale"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(change, text):
    block = Block(tokens=8)
    block.sizes |= change
    with invalid(text):
        block.run()


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("x", np.ones((1, 8, 320), np.float32), "hidden_states: got float32"),
        ("wqkv", np.ones((320, 100), BF16), "qkv_weight: got shape"),
        ("wo", np.ones((256, 320), np.float32), "op_weight: got float32"),
        ("bo", np.ones((1, 319), BF16), "op_bias: got shape"),
        ("cos", np.ones((1, 8, 16), BF16), "cos_cache: got shape"),
        ("k_cache", np.ones((4, 2, 16, 64, 2), E4M3), "k_cache: got float8_e4m3"),
        ("tables", np.ones((2, 9), np.int32), "block_tables: got shape"),
        ("prior", np.ones((1, 1), np.float32), "prior_tokens: got float32"),
        ("prior", np.ones((1, 3), np.int32), "prior_tokens: got shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(name, value, text):
    block = Block(tokens=8)
    setattr(block, name, value)
    with invalid(text):
        block.run()


def test_the_compiler_accepts_it_and_the_example_runs():
    compiles_and_example_runs(swa_fused_cte)
