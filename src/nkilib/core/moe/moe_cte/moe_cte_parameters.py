"""The arguments of the blockwise expert kernels in one object, and what is demanded of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nki.language as nl
from nkilib.core.mlp.mlp_parameters import Linear
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.moe.mx_weights import (
    MxNames,
    hidden_size,
    intermediate_size,
    is_mx,
)
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import (
    assert_tensors,
)
from nkilib.core.utils.projection import BANK_COLUMNS, FP8
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor

FLOATS = (nl.bfloat16, nl.float16, nl.float32)
MAX_TOKENS = 32 * 1024
MAX_INDEX = 1 << 24  # indices are computed in float32
MX_NAMES = MxNames(
    "gate_up_proj_weight",
    "down_proj_weight",
    "gate_up_proj_scale",
    "down_proj_scale",
    "gate_and_up_proj_bias",
    "down_proj_bias",
)
SBUF_BYTES = 144 * 1024  # of each partition, for tokens and what becomes of them; the rest is for weights


# ---- arguments -----------------------------------------------------------------------------------


@dataclass
class ExpertTensors(nl.NKIObject):
    """Tokens, and the weights of all experts."""

    hidden: Tensor  # [T + 1, H], or [T, H] with skip_token
    affinities: Tensor  # [(T + 1) E, 1] or [T E, 1]
    gate_up: Tensor  # [E, H, 2, I]
    down: Tensor  # [E, I, H]


@dataclass
class BlockTables(nl.NKIObject):
    """Which tokens and which expert each of N blocks has."""

    position_to_id: Tensor  # [N B]
    block_to_expert: Tensor  # [N, 1]
    block_size: int  # B
    conditions: Tensor | None = None  # [N + 1]


@dataclass
class ExpertTerms(nl.NKIObject):
    """What is added to products, and what they are multiplied by."""

    gate_up_bias: Tensor | None  # [E, 2, I]
    down_bias: Tensor | None  # [E, H]
    gate_up_scale: Tensor | None  # [E or 1, 1, 2 I]
    down_scale: Tensor | None  # [E or 1, 1, H]


@dataclass
class Arithmetic(nl.NKIObject):
    act_fn: ActFnType
    compute_dtype: DTypeLike
    scaling: ExpertAffinityScaleMode


@dataclass
class Limits(nl.NKIObject):
    """To what gate and up are clamped."""

    gate_upper: float | None
    gate_lower: float | None
    up_upper: float | None
    up_lower: float | None


@dataclass
class RowOptions(nl.NKIObject):
    """How rows are read and the result is written."""

    skip_dma: SkipMode | None
    accumulating: bool


@dataclass
class ExpertCheckpoints(nl.NKIObject):
    """What is stored for a backward pass, and where."""

    enabled: bool = False
    multiply_on_I: bool = False  # then down is not stored
    gate_up: Tensor | None = None  # pre-allocated [N, 2, I, B]
    down: Tensor | None = None  # pre-allocated [N, B, H]


@dataclass
class BlockRun(nl.NKIObject):
    """Neighbouring blocks: those before `fixed` are unrolled, the others are left to a dynamic loop."""

    first: int
    fixed: int
    last: int


@dataclass
class ExpertsParameters(nl.NKIObject):
    """What the caller asked for. The weights of the projections are those of all experts."""

    hidden: Tensor
    affinities: Tensor
    gate_up: Tensor
    down: Tensor
    position_to_id: Tensor
    block_to_expert: Tensor
    block_size: int
    conditions: Tensor | None
    gate: Linear  # the limits of the gate; its weight, bias and scale stand in gate_up
    up: Linear
    gate_up_bias: Tensor  # or None
    down_bias: Tensor  # or None
    gate_up_scale: Tensor  # or None
    down_scale: Tensor  # or None
    act_fn: ActFnType
    skip_token: bool
    compute_dtype: DTypeLike
    accumulating: bool
    scaling: ExpertAffinityScaleMode
    skip_gate: bool
    checkpoint: bool
    checkpoint_down: bool
    gate_up_checkpoint: Tensor | None
    down_checkpoint: Tensor | None
    static_blocks: int | None  # the others are left to a dynamic loop; None: there are no others
    slices: int  # of the result: [T, 2, H] is asked for where cores would have one each
    runs: Any = None  # which blocks are processed, a list of BlockRun; None: all, as static_blocks says
    condition_blocks: int = 1  # 2: a condition stands for a block of each of two cores
    high_low: bool = False  # these are one of each half of the blocks, else neighbours
    bias_ranks: int = 1  # that share the columns of the bias of down
    bias_rank: int = 0
    affinity_columns: int = 0  # of the result, behind H
    keeps_down: bool = False  # down_checkpoint is written, and not returned


def assert_given(tensors: ExpertTensors, tables: BlockTables) -> None:
    """Refuse what is no tensor, by its name."""
    assert_tensors(
        (
            ("hidden_states", tensors.hidden),
            ("expert_affinities_masked", tensors.affinities),
            ("gate_up_proj_weight", tensors.gate_up),
            ("down_proj_weight", tensors.down),
            ("token_position_to_id", tables.position_to_id),
            ("block_to_expert", tables.block_to_expert),
        ),
        (("conditions", tables.conditions),),
    )


def experts_parameters(
    tensors: ExpertTensors,
    tables: BlockTables,
    terms: ExpertTerms,
    arithmetic: Arithmetic,
    limits: Limits,
    rows: RowOptions,
    checkpoints: ExpertCheckpoints | None = None,
    static_blocks: int | None = None,
    slices: int = 1,
    skip_gate: bool = False,
) -> ExpertsParameters:
    """Return what an entry point was asked for, in one object."""
    assert_given(tensors, tables)
    checkpoints = ExpertCheckpoints() if checkpoints is None else checkpoints
    return ExpertsParameters(
        hidden=tensors.hidden,
        affinities=tensors.affinities,
        gate_up=tensors.gate_up,
        down=tensors.down,
        position_to_id=tables.position_to_id,
        block_to_expert=tables.block_to_expert,
        block_size=tables.block_size,
        conditions=tables.conditions,
        gate=Linear(None, upper=limits.gate_upper, lower=limits.gate_lower),
        up=Linear(None, upper=limits.up_upper, lower=limits.up_lower),
        gate_up_bias=terms.gate_up_bias,
        down_bias=terms.down_bias,
        gate_up_scale=terms.gate_up_scale,
        down_scale=terms.down_scale,
        act_fn=arithmetic.act_fn,
        skip_token=rows.skip_dma is not None and rows.skip_dma.skip_token,
        compute_dtype=arithmetic.compute_dtype,
        accumulating=rows.accumulating,
        scaling=arithmetic.scaling,
        skip_gate=skip_gate,
        checkpoint=checkpoints.enabled,
        checkpoint_down=not checkpoints.multiply_on_I,
        gate_up_checkpoint=checkpoints.gate_up,
        down_checkpoint=checkpoints.down,
        static_blocks=static_blocks,
        slices=slices,
    )


def static_block_count(asked: int | None, block_to_expert: Tensor, gate_up: Tensor) -> int:
    """Return how many blocks are unrolled: as asked for, or all but one for each expert."""
    assert_tensors((("block_to_expert", block_to_expert), ("gate_up_proj_weight", gate_up)))
    return max(0, block_to_expert.size - gate_up.shape[0]) if asked is None else asked


def slices_of_cores(accumulating: bool) -> int:
    """Return 2 where each of two cores has a slice of the result: when they add to it."""
    return 2 if accumulating and nl.num_programs(0) == 2 else 1


# ---- sizes and dtypes ----------------------------------------------------------------------------


def expert_count(p: ExpertsParameters) -> int:
    return p.gate_up.shape[0]


def block_count(p: ExpertsParameters) -> int:
    return p.block_to_expert.size


def token_count(p: ExpertsParameters) -> int:
    """T: without skip_token the last row of hidden is the padding token's."""
    return p.hidden.shape[0] if p.skip_token else p.hidden.shape[0] - 1


def matmul_dtype(p: ExpertsParameters) -> Any:
    """What activations are multiplied in: 16-bit ones stay, float32 ones go by compute_dtype."""
    if p.compute_dtype == nl.float32 and p.gate_up.dtype not in FP8 and not is_mx(p):
        return nl.float32
    if p.hidden.dtype != nl.float32:
        return p.hidden.dtype
    return nl.bfloat16 if p.compute_dtype == nl.float32 else p.compute_dtype


def tokens_per_pass(p: ExpertsParameters) -> int:
    """How many tokens of a block pass over the weights together: what a PSUM bank and SBUF hold."""
    width = 4 if matmul_dtype(p) == nl.float32 else 2
    each = 2 * width * hidden_size(p) // PMAX + 3 * width * intermediate_size(p) // PMAX
    tokens = min(BANK_COLUMNS, p.block_size)
    while tokens > PMAX and (tokens * each > SBUF_BYTES or p.block_size % tokens != 0):
        tokens -= PMAX
    return tokens
