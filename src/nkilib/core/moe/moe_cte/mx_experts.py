"""The MLP of one expert with microscaling (MX) weights, for a unit of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.mx import MxScales, block_count, middle, quantize_middle
from nkilib.core.moe.moe_cte.moe_cte_parameters import ExpertsParameters, hidden_size
from nkilib.core.moe.moe_cte.outputs import Outputs
from nkilib.core.moe.moe_cte.routing import TokenUnit
from nkilib.core.moe.mx_weights import expert_mlp
from nkilib.core.utils.common_types import GateUpDim
from nkilib.core.utils.mx_layout import LANES, TILE
from nkilib.core.utils.mx_projection import MxTokens, ones_tile, project_rows_mx, quantize_tokens
from nkilib.core.utils.mx_weight_loads import MxWeights, load_scales
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import Tensor

if TYPE_CHECKING:
    from nkilib.core.utils.tiled_range import TiledRangeIterator


def mx_middle(
    p: ExpertsParameters, unit: TokenUnit, x: Tensor, row: Tensor | None, out: Outputs, cores: int, core: int
) -> MxTokens:
    """act(gate) * up of tokens x [128, H / 128, tokens], in FP8. Cores compute half of the blocks each.

    `row` [128, tokens]: what x is multiplied by, or None. Gate and up are stored if `out` asks for them.
    """
    if row is not None:
        nisa.tensor_tensor(x, x, row.expand_dim(1).broadcast(1, x.shape[1]), op=nl.multiply)
    lanes = x.reshape((PMAX, LANES, hidden_size(p) // TILE, x.shape[2])).permute((0, 2, 3, 1))
    tokens = quantize_tokens(lanes, ones_tile(BANK_COLUMNS))
    mlp = expert_mlp(p, unit.expert, p.skip_gate)
    if out.gate_up is not None:
        mlp.gate.stored = stored_features(out, GateUpDim.GATE, unit)
        mlp.up.stored = stored_features(out, GateUpDim.UP, unit)
    scales = MxScales(mlp, tokens.ones)
    count = block_count(mlp) // cores
    own = middle(mlp, scales, tokens, core * count, count)
    if cores == 1:
        return quantize_middle(mlp, scales, own)
    m = nl.ndarray((own.shape[0], 2 * count, own.shape[2]), own.dtype, buffer=nl.sbuf)
    other = nl.ndarray(own.shape, own.dtype, buffer=nl.sbuf)
    nisa.sendrecv(own, other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.tensor_copy(m[:, core * count : (core + 1) * count, :], own)
    nisa.tensor_copy(m[:, (1 - core) * count : (2 - core) * count, :], other)
    return quantize_middle(mlp, scales, m)


def stored_features(out: Outputs, which: GateUpDim, unit: TokenUnit) -> Any:
    """Where gate or up of a unit are stored, [I, tokens]."""
    return out.gate_up[unit.block][which.value, :, :][:, unit.first : unit.first + unit.size]


class MxDown(nl.NKIObject):
    """Columns `column` ... of the down projection of an expert, to be contracted with its middle."""

    def __init__(self, p: ExpertsParameters, expert: Tensor, m: MxTokens, column: int, columns: int):
        self.m = m
        self.column = column
        self.weights = MxWeights(p.down.select(0, expert), p.down_scale.select(0, expert), True)
        self.scales = load_scales(self.weights, column, columns, None)

    def add(self, blocks: list, span: TiledRangeIterator) -> None:
        """The products of some columns, to the sums."""
        first = self.column + span.start_offset
        project_rows_mx(self.m, self.weights, blocks, first, span.size, self.scales)
