"""One layer of a Llama on 1, 2, 4 and 8 ranks: the same result, and the speed-up.

Each rank has some of the query heads and some of the columns of the MLP; the updates of the hidden
states are summed over the ranks, twice a layer. Run it directly, or as ranks of torch.distributed:

    python examples/tensor_parallel.py
    torchrun --nproc-per-node 2 examples/tensor_parallel.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import warnings

import numpy as np

import nki
from nki.ranks import attach, run_ranks
from nkilib.experimental.transformer.transformer_tkg import transformer_tkg

BATCH, HEADS, HEAD_DIM, WINDOW = 2, 8, 64, 256


def layer(hidden: int, inner: int) -> dict:
    """The tensors of one layer."""
    rng = np.random.default_rng(0)

    def weight(rows: int, columns: int) -> list:
        return [(rng.standard_normal((rows, columns)) * rows**-0.5).astype(np.float16)]

    angle = rng.uniform(0, 6, (HEAD_DIM // 2, BATCH, 1))
    mask = np.ones((WINDOW, BATCH, HEADS, 1), np.uint8)
    mask[100] = 0  # where the new token goes
    return {
        "X": rng.standard_normal((BATCH, 1, hidden)).astype(np.float16),
        "W_qkvs": weight(hidden, (HEADS + 2) * HEAD_DIM),
        "W_outs": weight(HEADS * HEAD_DIM, hidden),
        "W_gates": weight(hidden, inner),
        "W_ups": weight(hidden, inner),
        "W_downs": weight(inner, hidden),
        "W_gamma_qkvs": [np.ones((1, hidden), np.float16)],
        "W_gamma_mlps": [np.ones((1, hidden), np.float16)],
        "K_caches": [rng.standard_normal((BATCH, 1, HEAD_DIM, WINDOW)).astype(np.float16)],
        "V_caches": [rng.standard_normal((BATCH, 1, WINDOW, HEAD_DIM)).astype(np.float16)],
        "RoPE_cos": np.cos(angle).astype(np.float16),
        "RoPE_sin": np.sin(angle).astype(np.float16),
        "attention_mask": mask,
        "position_ids": np.full((BATCH, 1), 100, np.int32),
        "num_layers": 1,
    }


def shard(whole: dict, rank: int, ranks: int) -> dict:
    """Return a rank's query heads and columns of the MLP; all ranks share the key head and the cache."""
    heads, inner = HEADS // ranks, whole["W_gates"][0].shape[1] // ranks
    mine = slice(rank * heads * HEAD_DIM, (rank + 1) * heads * HEAD_DIM)
    columns = slice(rank * inner, (rank + 1) * inner)
    qkv = whole["W_qkvs"][0]
    return whole | {
        "W_qkvs": [np.concatenate([qkv[:, mine], qkv[:, HEADS * HEAD_DIM :]], axis=1)],
        "W_outs": [whole["W_outs"][0][mine]],
        "W_gates": [whole["W_gates"][0][:, columns]],
        "W_ups": [whole["W_ups"][0][:, columns]],
        "W_downs": [whole["W_downs"][0][columns]],
        "K_caches": [whole["K_caches"][0].copy()],
        "V_caches": [whole["V_caches"][0].copy()],
        "attention_mask": np.ascontiguousarray(whole["attention_mask"][:, :, :heads]),
        "replica_groups": (tuple(range(ranks)),),
    }


def difference(result: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value."""
    a, b = result.astype(np.float64), reference.astype(np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare(hidden: int, inner: int, most: int) -> None:
    """Print a line for each number of ranks: difference from one rank, speed-up, overlap of communication."""
    whole = layer(hidden, inner)
    (alone,) = run_ranks(transformer_tkg, 1, [shard(whole, 0, 1)])
    one_us = None
    print(f"one layer, hidden {hidden}, MLP {inner}, {HEADS} heads, {BATCH} tokens")
    print("ranks  difference  modelled us  speed-up  links us  hidden")
    for ranks in (1, 2, 4, 8):
        if ranks > most:
            continue
        parts = [shard(whole, rank, ranks) for rank in range(ranks)]
        results = run_ranks(transformer_tkg, ranks, parts)
        worst = max(difference(result, alone) for result in results)
        assert worst < 1e-2, worst
        found = nki.profile(transformer_tkg, ranks=max(ranks, 2))(**parts[0])
        spent = found.communication[0]
        one_us = one_us or found.total_us
        print(
            f"{ranks:>5}{worst:>12.1e}{found.total_us:>13.1f}{one_us / found.total_us:>9.2f}x"
            f"{spent.total / 1e3:>10.1f}{spent.hidden_percent:>6.0f} %"
        )


def attached(hidden: int, inner: int) -> None:
    """Run this process as one of the ranks that torchrun started."""
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    whole = layer(hidden, inner)
    alone = transformer_tkg(**shard(whole, 0, 1))
    with attach() as world:
        mine = transformer_tkg(**shard(whole, world.rank, world.size))
    print(f"rank {world.rank} of {world.size}: difference {difference(mine, alone):.1e}", flush=True)
    assert difference(mine, alone) < 1e-2
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=3584)
    parser.add_argument("--most", type=int, default=8, help="ranks at most")
    args = parser.parse_args()
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with warnings.catch_warnings(), contextlib.suppress(BrokenPipeError):
        warnings.simplefilter("ignore")
        if "TORCHELASTIC_RUN_ID" in os.environ:
            attached(args.hidden, args.inner)
        else:
            compare(args.hidden, args.inner, args.most)


if __name__ == "__main__":
    main()
