"""From striped to contiguous: worker w gets tokens w S to (w + 1) S of the sequence."""

from __future__ import annotations

import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor


@nki.jit
def ring_attention_unpermute(
    x: Tensor, replica_groups: ReplicaGroups | None = None, num_workers: int = 1
) -> Tensor:
    """out [bs, S, d] = this worker's contiguous tokens, from x [bs, S, d], its striped ones.

    Token i of worker w is token w + i num_workers of the sequence before, and w S + i after. S must be a
    multiple of num_workers: each worker has S / num_workers tokens for every other, and they are exchanged.

    >>> from nki.ranks import run_ranks
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 4, 2, 1).swapaxes(1, 2)[0]
    >>> out = run_ranks(ring_attention_unpermute, 2, lambda rank: (x[rank][None], None, 2))
    >>> out[0].reshape(-1).tolist(), out[1].reshape(-1).tolist()
    ([0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0])
    """
    assert_tensors((("x", x),))
    kernel_assert(num_workers > 0, f"num_workers: got {num_workers}, allowed are positive numbers")
    kernel_assert(len(x.shape) == 3, f"x: got {len(x.shape)} dimensions, allowed are 3: [bs, S, d]")
    batch, tokens, width = x.shape
    kernel_assert(
        tokens % num_workers == 0, f"x: got {tokens} tokens, allowed are multiples of {num_workers}"
    )
    each = tokens // num_workers
    groups = [list(range(num_workers))] if replica_groups is None else replica_groups
    shape = (num_workers, batch, each, width)
    src, dst = named_tensor(shape, x.dtype, "src"), named_tensor(shape, x.dtype, "dst")
    out = named_tensor(x.shape, x.dtype, "out")
    first, end = program_share(batch)
    for b in range(first, end):  # part w of x, tokens w S / n on, is for worker w
        nisa.dma_copy(src[:, b], x[b].reshape((num_workers, each, width)))
    ncc.all_to_all([src], [dst], groups, 0)
    for b in range(first, end):  # a worker's tokens are num_workers apart in the sequence
        nisa.dma_copy(out[b].reshape((each, num_workers, width)), dst[:, b].permute((1, 0, 2)))
    return out


def ring_attention_unpermute_ref(parts: list) -> list:
    """Return the results of all workers for their x."""
    whole: np.ndarray = np.stack(parts, axis=2)  # [bs, S, workers, d]: token w + i n at [i, w]
    batch, tokens, workers, width = whole.shape
    return np.split(whole.reshape(batch, tokens * workers, width), workers, axis=1)
