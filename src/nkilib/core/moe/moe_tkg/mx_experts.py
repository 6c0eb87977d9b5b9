"""One expert's MLP with microscaling (MX) weights; `experts` has that with plain ones.

Gate and up give the middle as the MLP's MX path does. The down projection too keeps its weights stationary:
a few tokens cost little, and results stand spread over the partitions as without MX.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mx import MxScales, block_count, middle, quantize_middle
from nkilib.core.moe.moe_tkg.experts import Item, Middle, Tokens, add_down_bias, total_of
from nkilib.core.moe.moe_tkg.parameters import MoEParameters
from nkilib.core.moe.moe_tkg.tokens import exchange
from nkilib.core.moe.mx_slabs import Slab, SlabStream, fits_slab
from nkilib.core.moe.mx_weights import expert_mlp
from nkilib.core.utils.mx_projection import MxTokens, token_scales
from nkilib.core.utils.mx_weight_loads import MxWeights, WeightStream
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor

# ---- gate and up ---------------------------------------------------------------------------------


def mx_middles(p: MoEParameters, x: Tokens, items: list, core: int) -> list:
    """For each item the middles that this core then has: all of it. Cores share items, or one item's blocks.

    A list of lists, in the order of the items.
    """
    if x.cores == 1:
        return [[Middle(item_middle(p, x, items[0], 0, 1), 0)]]
    if len(items) == 2:
        own = item_middle(p, x, items[core], 0, 1)
        other = exchange(own, core)
        return [[Middle(own if core == 0 else other, 0)], [Middle(other if core == 0 else own, 0)]]
    own = item_middle(p, x, items[0], core, 2)
    other = exchange(own, core)
    rows, half, tokens = own.shape
    tile = nl.ndarray((rows, 2 * half, tokens), own.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile[:, core * half : (core + 1) * half, :], own)
    nisa.tensor_copy(tile[:, (1 - core) * half : (2 - core) * half, :], other)
    return [[Middle(tile, 0)]]


def item_middle(p: MoEParameters, x: Tokens, item: Item, part: int, parts: int) -> Any:
    """act(gate) * up of one of `parts` parts of the blocks, [rows, blocks, tokens]."""
    streams = None
    if parts == 1 and fits_slab(p):
        slab = Slab(p, item.expert)
        streams = (SlabStream(slab, 0), SlabStream(slab, 1))
    mlp = expert_mlp(p, item.expert, streams=streams)
    count = block_count(mlp) // parts
    first, last = item.token, item.token + item.tokens
    tokens = MxTokens(x.mx.words[:, :, first:last], x.mx.scales[:, :, first:last], x.mx.ones)
    return middle(mlp, MxScales(mlp, x.mx.ones), tokens, part * count, count)


# ---- down ----------------------------------------------------------------------------------------


def add_mx_expert(p: MoEParameters, total: Tensor, x: Tokens, item: Item, middles: list, part: int) -> None:
    """total[128, J, T] += weight * down(middle) of one part of H, in float32."""
    mlp = expert_mlp(p, item.expert)
    m = quantize_middle(mlp, MxScales(mlp, x.mx.ones), middles[0].tile)
    columns = p.down.shape[3] // x.cores
    first = part * columns
    words = p.down.select(0, item.expert)
    weights = MxWeights(words, p.down_scale.select(0, item.expert), True)
    stream = WeightStream(weights, first, columns, None)
    size, tokens, tile = columns // PMAX, m.words.shape[2], 0
    while tile < stream.count:
        stream.load(tile)
        for group in TiledRange(size, max(1, BANK_COLUMNS // tokens)):
            bank = nl.ndarray((PMAX, group.size, tokens), nl.float32, buffer=nl.psum)
            for j in range(group.size):
                add_features(bank[:, j, :], m, stream, group.start_offset + j, size)
            drain(total_of(total, item, group), bank, item, group.index)
        tile = stream.next
    if p.down_bias is not None:
        add_down_bias(p, total, x, item, part)


def add_features(sums: Tensor, m: MxTokens, stream: WeightStream, j: int, size: int) -> None:
    """sums[p, t] = the loaded tiles of the down projection, feature size p + j."""
    for tile in range(stream.first, stream.next):
        words = stream.words_of(tile, 0, stream.columns)
        scales = stream.scales_of(tile, 0, stream.columns, m.ones)
        nisa.nc_matmul_mx(
            sums,
            words.reshape_dim(1, (PMAX, size))[:, :, j],
            m.words[:, tile, :],
            scales.reshape_dim(1, (PMAX, size))[:, :, j],
            token_scales(m, tile, 0, m.words.shape[2]),
        )


def drain(dst: Tensor, bank: Tensor, item: Item, number: int) -> None:
    """dst += bank, times the affinity of each token. GpSimdE, which is slow, adds every third product."""
    if item.weight is None:
        nisa.tensor_tensor(dst, bank, dst, op=nl.add)
    elif item.chosen():
        nisa.scalar_tensor_tensor(dst, bank, nl.multiply, item.weight, nl.add, dst)
    else:
        value = nl.ndarray(bank.shape, nl.float32, buffer=nl.sbuf)
        weight = item.weight.expand_dim(1).broadcast(1, bank.shape[1])
        nisa.tensor_tensor(value, bank, weight, op=nl.multiply)
        engine = nisa.gpsimd_engine if number % 3 == 2 else nisa.vector_engine
        nisa.tensor_tensor(dst, value, dst, op=nl.add, engine=engine)
