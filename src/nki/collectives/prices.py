"""What a collective costs on the links between ranks (spec/machine.md 11).

A rank has one link to the others. A group that spans chips or nodes is as slow as its slowest link. The
algorithm follows the documents: mesh below 1 MB, recursive halving up to 56 MB, KangaRing beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.transfer_instruction import Wire
from ..machine.machine import Machine

MESH_BYTES, HALVING_BYTES = 1 << 20, 56 << 20  # 11 [D]: from these sizes on the algorithm changes


def wire(
    groups: Sequence[Sequence[int]], nbytes: float, sent: float, rounds: int, machine: Machine, cores: int
) -> Wire:
    """Groups exchange `nbytes`, of which a rank's link carries `sent`, in so many rounds over the members.

    `cores` is how many a rank has; rounds 0: one hop to a neighbour.
    """
    ranks_per_chip = max(1, machine.cores_per_device // cores)
    ranks_per_node = ranks_per_chip * machine.devices_per_node
    within_chip = all(len({r // ranks_per_chip for r in group}) == 1 for group in groups)
    within_node = all(len({r // ranks_per_node for r in group}) == 1 for group in groups)
    if within_chip:
        hop, gbs, rests = machine.collective_chip_hop_ns, machine.collective_link_gbs, CHIP
    elif within_node:
        hop, gbs, rests = machine.collective_hop_ns, machine.collective_link_gbs, NODE
    else:
        hop, gbs, rests = machine.internode_hop_ns, machine.efa_gbs_per_core * cores, NODES
    hops = rounds * steps(len(groups[0]), nbytes) if rounds else 1
    return Wire(machine.collective_start_ns + hops * hop, sent / gbs, rests)


CHIP = ("collective_start_ns", "collective_chip_hop_ns", "collective_link_gbs")
NODE = ("collective_start_ns", "collective_hop_ns", "collective_link_gbs")
NODES = ("collective_start_ns", "internode_hop_ns", "efa_gbs_per_core")


def steps(ranks: int, nbytes: float) -> int:
    """Hops one after the other in one round over all members."""
    if ranks == 1:
        return 0
    if nbytes < MESH_BYTES:
        return 1
    if nbytes <= HALVING_BYTES:
        return math.ceil(math.log2(ranks))
    return math.ceil(ranks / 2)
