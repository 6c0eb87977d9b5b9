"""How cores share experts: each computes a middle and sends it, both use it for their part of H."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.moe.moe_tkg.experts import Item, Middle, Tokens, add_expert, middles_of
from nkilib.core.moe.moe_tkg.mx_experts import add_mx_expert, mx_middles
from nkilib.core.moe.moe_tkg.parameters import MoEParameters, is_mx
from nkilib.core.moe.moe_tkg.tokens import exchange
from nkilib.core.utils.types import Tensor


@dataclass
class Ready(nl.NKIObject):
    """An item whose middle is known to this core."""

    item: Item
    middles: list


def add_ready(p: MoEParameters, total: Tensor, x: Tokens, waiting: list, core: int) -> None:
    for ready in waiting:
        add = add_mx_expert if is_mx(p) else add_expert
        add(p, total, x, ready.item, ready.middles, core)


def step_middles(p: MoEParameters, x: Tokens, items: list, core: int) -> list[Ready]:
    """The middles of one item for each core, or of one item whose columns the cores share."""
    if is_mx(p):
        found = mx_middles(p, x, items, core)
        results = []
        for i in range(len(items)):
            results.append(Ready(items[i], found[i]))
        return results
    if x.cores == 1:
        return [Ready(items[0], middles_of(p, x, items[0]))]
    if len(items) == 2:
        own = middles_of(p, x, items[core])
        other = swapped(own, core, 0)
        return [Ready(items[0], own if core == 0 else other), Ready(items[1], other if core == 0 else own)]
    item = items[0]
    if item.count % 2 == 1:
        return [Ready(item, middles_of(p, x, item))]
    half = item.count // 2
    mine = Item(item.expert, core * half, half, item.token, item.tokens, item.weight)
    own = middles_of(p, x, mine)
    return [Ready(item, own + swapped(own, core, (1 - 2 * core) * half))]


def swapped(own: list, core: int, shift: int) -> list:
    """The other core's middles, whose rows are `shift` further on."""
    others = []
    for m in own:
        others.append(Middle(exchange(m.tile, core), m.row + shift))
    return others
