"""Ring attention on several ranks, forward and backward, against plain attention in float64.

python examples/ring_attention.py --ranks 4 --tokens 256
"""

from __future__ import annotations

import argparse
import os
import warnings

import numpy as np

import nki
from nki.ranks import join, run_ranks, split
from nkilib.experimental.attention.ring_attention_bwd import (
    ring_attention_spmd_bwd,
    ring_attention_spmd_bwd_ref,
)
from nkilib.experimental.attention.ring_attention_fwd import ring_attention_spmd_fwd

HEADS, HEAD_DIM = 2, 64


def worst(parts: list, whole: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(join(parts, axis=3) - whole).max() / np.abs(whole).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="of each rank")
    args = parser.parse_args()
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    warnings.simplefilter("ignore")
    ranks, tokens = args.ranks, args.tokens

    # [batch, heads, d, tokens] of the whole sequence; q is scaled beforehand, as causal rings require
    rng = np.random.default_rng(0)
    q, k, v, dy = rng.standard_normal((4, 1, HEADS, HEAD_DIM, ranks * tokens), dtype=np.float32)
    q *= HEAD_DIM**-0.5
    o, _, dq, dk, dv = ring_attention_spmd_bwd_ref(q, k, v, dy, softmax_scale=1.0, use_causal_mask=True)

    parts = {name: split(x, ranks, axis=3) for name, x in (("q", q), ("k", k), ("v", v), ("dy", dy))}
    settings = {"num_workers": ranks, "softmax_scale": 1.0, "use_causal_mask": True}

    def forward(rank: int) -> dict:
        rows = np.ascontiguousarray(parts["v"][rank].swapaxes(2, 3))
        return {"q": parts["q"][rank], "k": parts["k"][rank], "v": rows, "training": True, **settings}

    results = run_ranks(ring_attention_spmd_fwd, ranks, forward)
    outs = [np.ascontiguousarray(out.swapaxes(2, 3)) for out, _ in results]
    print(f"{ranks} ranks of {tokens} tokens, causal: largest difference from plain attention in float64")
    print(f"  out {worst(outs, o):.1e}")

    def backward(rank: int) -> dict:
        return {
            "q_ref": parts["q"][rank],
            "k_ref": parts["k"][rank],
            "v_ref": parts["v"][rank],
            "o_ref": outs[rank],
            "dy_ref": parts["dy"][rank],
            "lse_ref": results[rank][1],
            **settings,
        }

    gradients = run_ranks(ring_attention_spmd_bwd, ranks, backward)
    for number, (name, whole) in enumerate((("dq", dq), ("dk", dk), ("dv", dv))):
        found = worst([gradient[number] for gradient in gradients], whole)
        print(f"  {name}  {found:.1e}")
        assert found < 1e-3
    world = nki.profile(ring_attention_spmd_fwd, ranks=ranks)(**forward(0))
    hidden = world.communication[0].hidden_percent
    print(f"modelled: forward {world.total_us:.0f} us, {hidden:.0f} % of the links hidden")


if __name__ == "__main__":
    main()
