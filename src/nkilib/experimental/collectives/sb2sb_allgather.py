"""All-gather along columns, from SBUF to SBUF: rank r's columns begin at r * W of every row."""

from __future__ import annotations

import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import program_share
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups

SBUF_BYTES = 128 * 1024  # of a partition, for what is sent and what arrives


@nki.jit
def allgather_sb2sb(inp: Tensor, replica_groups: ReplicaGroups, tp_degree: int) -> Tensor:
    """out [H, W * tp_degree] = the columns of inp [H, W] of all ranks, for tensors that fit in SBUF.

    `replica_groups` is a ReplicaGroup or a list of lists of tp_degree ranks; all of them get the same.

    >>> from nki.ranks import run_ranks
    >>> x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    >>> out = run_ranks(allgather_sb2sb, 2, lambda rank: (x[rank], ((0, 1),), 2))
    >>> out[1].tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]
    """
    check(inp, replica_groups, tp_degree)
    kernel_assert(inp.shape[0] <= PMAX, f"inp: got {inp.shape[0]} rows, allowed are at most {PMAX}")
    out = result_of(inp, tp_degree)
    if nl.program_id(0) == 0:  # one tile is not worth dividing
        gather(out, inp, 0, inp.shape[0], replica_groups)
    return out


@nki.jit
def allgather_sb2sb_tiled(inp: Tensor, replica_groups: ReplicaGroups, tp_degree: int) -> Tensor:
    """out [M, K * tp_degree] = the columns of inp [M, K] of all ranks, a tile of 128 rows at a time.

    Two cores share the tiles, and each communicates with the same core of the other ranks.
    """
    check(inp, replica_groups, tp_degree)
    rows = inp.shape[0]
    kernel_assert(
        rows <= PMAX or rows % PMAX == 0,
        f"inp: got {rows} rows, allowed are at most {PMAX}, and multiples of {PMAX}",
    )
    out = result_of(inp, tp_degree)
    tile = min(rows, PMAX)
    first, end = program_share(rows // tile)
    for i in range(first, end):
        gather(out, inp, i * tile, tile, replica_groups)
    return out


def gather(out: Tensor, inp: Tensor, first: int, rows: int, groups: ReplicaGroups) -> None:
    """Gather the rows of all ranks by way of SBUF."""
    mine = load(inp[first : first + rows])
    gathered = nl.ndarray((rows, out.shape[1]), inp.dtype)
    ncc.all_gather([mine], [gathered], groups, collective_dim=1)
    nisa.dma_copy(out[first : first + rows], gathered)


def result_of(inp: Tensor, tp_degree: int) -> Tensor:
    return nl.ndarray((inp.shape[0], inp.shape[1] * tp_degree), inp.dtype, buffer=nl.shared_hbm, name="out")


def check(inp: Tensor, groups: ReplicaGroups, tp_degree: int) -> None:
    assert_tensors((("inp", inp),))
    kernel_assert(len(inp.shape) == 2, f"inp: got {len(inp.shape)} dimensions, allowed are 2")
    kernel_assert(
        len(groups[0]) == tp_degree,
        f"tp_degree: got {tp_degree}, allowed is the size of the groups, {len(groups[0])}",
    )
    width = inp.shape[1] * (tp_degree + 1) * sizeinbytes(inp.dtype)
    kernel_assert(
        width <= SBUF_BYTES,
        f"inp: got {width} bytes of a partition with what arrives, allowed are at most {SBUF_BYTES}",
    )


def allgather_sb2sb_ref(inputs: list, replica_groups: ReplicaGroups, tp_degree: int) -> list:
    """Return the results of all ranks for their inputs."""
    found = []
    for rank in range(len(inputs)):
        members = next(group for group in replica_groups if rank in group)
        found.append(np.concatenate([inputs[r] for r in members], axis=1))
    return found


allgather_sb2sb_tiled_ref = allgather_sb2sb_ref
