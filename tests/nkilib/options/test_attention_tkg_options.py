"""Every documented option of `attention_tkg` and its config, one at a time, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.attention.attention_tkg import AttnTKGConfig, attention_tkg
from nkilib.core.utils.allocator import SbufManager
from nkilib.core.utils.common_types import DtypeMode

BF16, FP8, WIDE_FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2
B, H, A, S, D = 2, 3, 2, 256, 32  # sequences, heads, new tokens, keys, depth
TOLERANCE = 1e-4
CONFIG = AttnTKGConfig(B, H, A, S, S, D, tp_k_prior=True, qk_in_sb=True)


@nki.jit
def decode(
    q, k_active, v_active, k_prior, v_prior, mask, cfg, more, placed=False, values_in_sbuf=False, k_out=True
):
    """attention_tkg with q [B, H, s, d] and k_active [B, s, d] brought to where cfg wants them."""
    sbm = SbufManager(0, 196608) if placed else None
    if placed:
        sbm.open_scope()
    b, h, s, d = cfg.bs, cfg.q_head, cfg.s_active, cfg.d_head
    dtype = nl.float32
    result = nl.ndarray((b, h, d, s), dtype, buffer=nl.shared_hbm)
    keys = nl.ndarray((b, 1, d, s), nl.float32, buffer=nl.shared_hbm)
    if cfg.qk_in_sb:
        q, k_active = columns(q.reshape((b * h * s, d)), sbm), columns(k_active.reshape((b * s, d)), sbm)
    else:
        k_active = k_active.reshape((b, 1, s, d))
    v_active = v_active.reshape((b, 1, s, d))
    if values_in_sbuf:
        rows = tile((b * s, d), v_active.dtype, sbm)
        nisa.dma_copy(rows, v_active.reshape((b * s, d)))
        v_active = rows
    out = tile((d, b * h * s), dtype, sbm) if cfg.out_in_sb else result
    new = tile((d, b * s), nl.float32, sbm) if cfg.k_out_in_sb else keys
    operands = (q, k_active, v_active, k_prior, v_prior, mask, out, cfg, sbm)
    given = {"k_out": new} if cfg.fuse_rope and k_out else {}
    attention_tkg(*operands, **given, **more)
    if cfg.out_in_sb:
        nisa.dma_copy(result.reshape((b * h, d, s)).permute((1, 0, 2)), out.reshape_dim(1, (b * h, s)))
    if cfg.k_out_in_sb:
        nisa.dma_copy(keys.reshape((b, d, s)).permute((1, 0, 2)), new.reshape_dim(1, (b, s)))
    if placed:
        sbm.close_scope()
    return (result, keys) if cfg.fuse_rope and k_out else result


def columns(rows, sbm):
    found = tile((rows.shape[1], rows.shape[0]), rows.dtype, sbm)
    nisa.dma_copy(found, rows.permute((1, 0)))
    return found


def tile(shape, dtype, sbm):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf) if sbm is None else sbm.alloc_stack(shape, dtype)


def attended(**o: Any) -> Any:
    """Decode attention of one query at a time, written from its page."""
    cfg, more = o["cfg"], o["more"]
    b, h, s, d, total = cfg.bs, cfg.q_head, cfg.s_active, cfg.d_head, cfg.curr_sprior
    q, new, v = (o[name].astype(np.float64) for name in ("q", "k_active", "v_active"))
    if cfg.fuse_rope:
        angle = (
            more["rope_pos_ids"].astype(np.float64)[..., None] * more["inv_freqs"].astype(np.float64)[:, 0]
        )
        q, new = turned(q, angle[:, None]) / np.sqrt(d), turned(new, angle)
    out = np.zeros((b, h, d, s))
    for i in np.ndindex(b, h, s):
        keys, values = cached(o, i[0])
        keys[total - s :], values[total - s :] = new[i[0]], v[i[0]]
        seen = visible(o, *i)
        scores = np.where(seen, keys @ q[i], -np.inf)
        sink = more["sink"][i[1], 0] if "sink" in more else -np.inf
        top = max(scores.max(), sink)
        if np.isneginf(top):
            continue
        weights = np.exp(scores - top)
        out[i[0], i[1], :, i[2]] = weights @ values / (weights.sum() + np.exp(sink - top))
    if cfg.fuse_rope and o.get("k_out", True):
        return out, new.swapaxes(1, 2)[:, None]
    return out


def turned(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    pair = x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]
    pair = pair * np.exp(1j * angle)
    return np.concatenate([pair.real, pair.imag], -1)


def cached(o: dict, b: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [S, d] of one sequence, copied."""
    cfg, total = o["cfg"], o["cfg"].curr_sprior
    k, v = o["k_prior"].astype(np.float64), o["v_prior"].astype(np.float64)
    if cfg.block_len:
        blocks = np.maximum(o["more"]["active_blocks_table"][b].astype(np.int64), 0)
        if cfg.fp8_packed:
            k = k.transpose(0, 1, 3, 2).reshape(v.shape)
        return k[blocks].reshape(total, -1), v[blocks].reshape(total, -1)
    k = k[b, 0] if cfg.tp_k_prior else k[b, 0].T
    return k[:total].copy(), v[b, 0, :total].copy()


def visible(o: dict, b: int, h: int, i: int) -> np.ndarray:
    cfg, more, mask = o["cfg"], o["more"], o["mask"][:, b, h, i] != 0
    total, s, key = cfg.curr_sprior, cfg.s_active, np.arange(cfg.curr_sprior)
    seen = mask.copy()
    if cfg.use_pos_id:
        end = more["rope_pos_ids"][b, i if "start_pos_ids" in more else 0]
        seen = key < end
        if "start_pos_ids" in more:
            start = more["start_pos_ids"][b, i]
            seen = (key >= start) & (key < end) if start <= end else (key >= start) | (key < end)
    elif cfg.block_len:  # row 128 f + p is token (f // l) 128 l + p l + f % l
        length = o["piece"]
        f, p = key // 128, key % 128
        seen[f // length * 128 * length + p * length + f % length] = mask
    if "max_context_len" in more:
        seen = seen & ((key < int(more["max_context_len"].flat[0])) | (key >= total - s))
    if cfg.use_pos_id:
        seen[total - s :] = mask
    return seen


def operands(cfg: AttnTKGConfig, dtype: Any = np.float32, new: Any = None, **more: Any) -> dict[str, Any]:
    """Random operands of a config; `new` is the dtype of new tokens."""
    b, h, s, d, total = cfg.bs, cfg.q_head, cfg.s_active, cfg.d_head, cfg.curr_sprior
    new = dtype if new is None else new
    rng = np.random.default_rng(b + 10 * h + 100 * s + total)
    query = new if np.dtype(new).itemsize > 1 else BF16
    found: dict[str, Any] = {"cfg": cfg, "more": dict(more)}
    found["q"] = random((b, h, s, d), query, 1, 1.0 if cfg.fuse_rope else d**-0.5)
    found["k_active"], found["v_active"] = random((b, s, d), new, 2), random((b, s, d), new, 3)
    shape: tuple = (b + 1, 1, cfg.full_sprior, d)
    if cfg.block_len:
        blocks = total // cfg.block_len
        spare = b * blocks + 2
        shape = (spare, cfg.block_len, d)
        table = rng.permutation(spare)[: b * blocks].reshape(b, blocks).astype(np.int32)
        found["more"]["active_blocks_table"] = table
    found["k_prior"], found["v_prior"] = random(shape, dtype, 4), random(shape, dtype, 5)
    if not cfg.block_len and not cfg.tp_k_prior:
        found["k_prior"] = np.ascontiguousarray(found["k_prior"].swapaxes(2, 3))
    if cfg.fp8_packed:
        pairs = found["k_prior"].reshape(shape[0], cfg.block_len // 2, 2, d)
        found["k_prior"] = np.ascontiguousarray(pairs.swapaxes(2, 3))
    rows = s if cfg.use_pos_id else total
    found["mask"] = rng.integers(0, 2, (rows, b, h, s)).astype(np.uint8)
    found["mask"][-1] = 1
    if cfg.use_pos_id or cfg.fuse_rope:
        found["more"].setdefault(
            "rope_pos_ids", (rng.integers(40, 200, (b, 1)) + np.arange(s)).astype(np.float32)
        )
    if cfg.fuse_rope:
        found["more"]["inv_freqs"] = rng.uniform(0, 1, (d // 2, 1)).astype(np.float32)
    return found


def of(**fields: Any) -> AttnTKGConfig:
    return replace(CONFIG, **fields)


ROPE = of(fuse_rope=True, qk_in_sb=False)
POSITIONS = of(use_pos_id=True)
START = np.array([[30.0, 40.0], [240.0, 10.0]], np.float32)
END = np.array([[200.0, 35.0], [20.0, 255.0]], np.float32)


def dtypes() -> list[Option]:
    """Caches of one dtype, new tokens of another: nothing is rounded to the narrower one."""
    cases = []
    large = {"v_active": 1000 * random((B, A, D), seed=3)}
    for cache in (np.float32, BF16, np.float16, FP8, WIDE_FP8):
        for new in (np.float32, BF16, np.float16, FP8):
            name = f"{np.dtype(cache).name}-cache-{np.dtype(new).name}-tokens"
            wide = {np.dtype(np.float32)} == {np.dtype(cache), np.dtype(new)}
            tolerance = TOLERANCE if wide else 1e-2
            cases.append(Option(name, operands(CONFIG, cache, new), tolerance=tolerance))
            cases.append(
                Option(f"{name}-columns", operands(of(tp_k_prior=False), cache, new), tolerance=tolerance)
            )
    for new in (np.float32, BF16, np.float16):
        given = operands(CONFIG, FP8, new) | {"v_active": large["v_active"].astype(new)}
        cases.append(Option(f"values-above-those-of-fp8-{np.dtype(new).name}", given, tolerance=1e-2))
        placed = given | {"values_in_sbuf": True}
        cases.append(
            Option(f"values-on-chip-above-those-of-fp8-{np.dtype(new).name}", placed, tolerance=1e-2)
        )
    return cases


BLOCKS = of(block_len=32)
CASES = [
    Option("basic", operands(CONFIG)),
    Option("bs-1", operands(of(bs=1))),
    Option("q_head-1", operands(of(q_head=1))),
    Option("q_head-130", operands(of(q_head=130))),
    Option("s_active-1", operands(of(s_active=1))),
    Option("s_active-7", operands(of(s_active=7))),
    Option("few-keys", operands(of(curr_sprior=64, full_sprior=64))),
    Option("curr_sprior", operands(of(curr_sprior=128))),
    Option("full_sprior", operands(of(full_sprior=400))),
    Option("d_head-128", operands(of(d_head=128))),
    Option("d_head-odd", operands(of(d_head=33))),
    Option("tp_k_prior", operands(of(tp_k_prior=False))),
    Option("strided_mm1", operands(of(strided_mm1=False))),
    Option("use_gpsimd_sb2sb", operands(of(use_gpsimd_sb2sb=False))),
    Option("out_in_sb", operands(of(out_in_sb=True))),
    Option("enable_fa_s_prior_tiling", operands(of(enable_fa_s_prior_tiling=False))),
    Option("fuse_rope", operands(ROPE)),
    Option("fuse_rope-in-sbuf", operands(of(fuse_rope=True))),
    Option("fuse_rope-columns", operands(replace(ROPE, tp_k_prior=False))),
    Option("k_out_in_sb", operands(replace(ROPE, k_out_in_sb=True))),
    Option("fuse_rope-without-k_out", operands(ROPE) | {"k_out": False}),
    Option("use_pos_id", operands(POSITIONS)),
    Option("use_pos_id-columns", operands(replace(POSITIONS, tp_k_prior=False))),
    Option("use_pos_id-with-rope", operands(replace(ROPE, use_pos_id=True))),
    Option("start_pos_ids", operands(POSITIONS, start_pos_ids=START, rope_pos_ids=END)),
    Option("sink", operands(CONFIG, sink=random((H, 1), seed=6, scale=2.0))),
    Option("sink-with-positions", operands(POSITIONS, sink=random((H, 1), seed=6))),
    Option("block_len", operands(BLOCKS)),
    Option("block_len-with-positions", operands(replace(BLOCKS, use_pos_id=True))),
    Option("block_len-sink", operands(BLOCKS, sink=random((H, 1), seed=6))),
    Option(
        "fp8_packed",
        operands(of(block_len=64, fp8_packed=True, curr_sprior=512, full_sprior=512), FP8),
        tolerance=1e-2,
    ),
    Option(
        "fp8_packed-16-bit-tokens",
        operands(of(block_len=64, fp8_packed=True, curr_sprior=512, full_sprior=512), FP8, BF16),
        tolerance=1e-2,
    ),
    Option("max_context_len", operands(CONFIG, max_context_len=np.array([100], np.int32))),
    Option("max_context_len-with-positions", operands(POSITIONS, max_context_len=np.array([100], np.int32))),
    Option("dtype_mode", operands(CONFIG, dtype_mode=DtypeMode.AUTO)),
    Option("sbm", operands(CONFIG) | {"placed": True}),
    Option("values-on-chip", operands(CONFIG) | {"values_in_sbuf": True}),
    *dtypes(),
]
SEES_NOTHING = operands(CONFIG)
SEES_NOTHING["mask"] = np.zeros_like(SEES_NOTHING["mask"])
CASES.append(Option("queries-that-see-nothing", SEES_NOTHING))


def refused(
    name: str, argument: str, cfg: AttnTKGConfig = CONFIG, changes: Any = None, **more: Any
) -> Option:
    given = operands(cfg) | (changes or {})
    return Option(f"refuses-{name}", given | {"more": given["more"] | more}, argument)


POSITION = np.full((B, A), 100.0, np.float32)
REFUSED = [
    refused("mask-shape", "mask", changes={"mask": np.ones((5, B, H, A), np.uint8)}),
    refused("mask-none", "mask", changes={"mask": None}),
    refused("k_prior-none", "k_prior", changes={"k_prior": None}),
    refused("k_prior-shape", "k_prior", changes={"k_prior": random((B, 1, D, S))}),
    refused("v_prior-number", "v_prior", changes={"v_prior": 1.0}),
    refused("v_prior-dtype", "v_prior", changes={"v_prior": np.zeros((B + 1, 1, S, D), np.int32)}),
    refused("rope_pos_ids", "rope_pos_ids", rope_pos_ids=POSITION),
    refused("inv_freqs", "inv_freqs", inv_freqs=np.ones((D // 2, 1), np.float32)),
    refused("table", "active_blocks_table", active_blocks_table=np.zeros((B, 8), np.int32)),
    refused("positions-missing", "rope_pos_ids", POSITIONS, rope_pos_ids=None),
    refused("positions-shape", "rope_pos_ids", POSITIONS, rope_pos_ids=POSITION[:1]),
    refused("start-shape", "start_pos_ids", POSITIONS, start_pos_ids=POSITION[:1]),
    refused("frequencies-missing", "inv_freqs", ROPE, inv_freqs=None),
    refused("frequencies-shape", "inv_freqs", ROPE, inv_freqs=np.ones((D, 1), np.float32)),
    refused("table-missing", "active_blocks_table", BLOCKS, active_blocks_table=None),
    refused("sink-shape", "sink", sink=np.ones((1, H), np.float32)),
    refused("sink-number", "sink", sink=1.0),
    refused("max_context_len", "max_context_len", max_context_len=np.array([1, 2], np.int32)),
    refused("DBG_TENSORS-two", "DBG_TENSORS", DBG_TENSORS=(1, 2)),
    refused("DBG_TENSORS", "DBG_TENSORS", DBG_TENSORS=(1, 2, 3, 4)),
    refused("packed-flat", "cfg.block_len", changes={"cfg": of(fp8_packed=True)}),
    refused("keys", "cfg.curr_sprior", changes={"cfg": of(curr_sprior=200)}),
    refused("room", "cfg.curr_sprior", changes={"cfg": of(full_sprior=128)}),
    refused("rope-needed", "cfg.qk_in_sb", changes={"cfg": of(qk_in_sb=False)}),
]


@each(on_both(CASES) + REFUSED)
def test_attention_tkg(option: Option) -> None:
    length = option.changes["cfg"].curr_sprior // (
        128 * option.lnc
    )  # of pieces of blocks: one for each partition
    check(option, decode, {}, lambda **o: attended(**o, piece=length), TOLERANCE)
