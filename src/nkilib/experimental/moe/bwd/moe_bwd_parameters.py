"""The options and arguments of the backward pass of blockwise experts, and their checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.common_types import ActFnType, Enum
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.projection import BANK_COLUMNS
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.clamp_limits import ClampLimits

FLOATS = (nl.bfloat16, nl.float16, nl.float32)
BLOCK_SIZES = (128, 256, 512, 1024)
MAX_INDEX = 1 << 24  # indices are computed in float32
SBUF_BYTES = 140 * 1024  # of each partition, for tokens and intermediate results; the rest is for weights

_DERIVATIVES = (
    (ActFnType.SiLU, nl.silu_dx),
    (ActFnType.GELU, nl.gelu_dx),
    (ActFnType.Swish, nl.gelu_apprx_sigmoid_dx),
)
ACTIVATIONS = (ActFnType.SiLU, ActFnType.GELU, ActFnType.Swish, ActFnType.SquaredReLU)


class ShardOption(Enum):
    """The documented ways to divide the work. All give the same result and run the same code here."""

    AUTO = 0
    SHARD_ON_HIDDEN = 1
    SHARD_ON_INTERMEDIATE = 2
    SHARD_ON_FREE = 3
    SHARD_ON_BLOCK = 4


class AffinityOption(Enum):
    """Where the forward pass multiplied by affinities: in rows of H, or in the middle."""

    AFFINITY_ON_H = 0
    AFFINITY_ON_I = 1


class KernelTypeOption(Enum):
    """Whether experts drop tokens."""

    DROPLESS = 0
    DROPPING = 1


@dataclass
class MOEBwdDroplessBlockingParams(nl.NKIObject):
    """Tile sizes of another implementation; this kernel ignores them."""

    block_tile_size: int | None = None


@dataclass
class BackwardParameters(nl.NKIObject):
    """The arguments of the backward pass."""

    hidden: Tensor  # [T, H], or [T + 1, H] without skip_token
    affinities: Tensor
    gate_up: Tensor  # [E, H, 2, I]
    down: Tensor  # [E, I, H]
    gate_up_checkpoint: Tensor  # [N, 2, I, B]
    down_checkpoint: Tensor  # [N, B, H], or None
    position_to_id: Tensor
    block_to_expert: Tensor
    out_grad: Tensor  # as hidden
    block_size: int
    skip_token: bool
    compute_dtype: DTypeLike
    accumulating: bool
    initialized: bool
    on_hidden: bool  # affinities were multiplied in rows of H
    limits: ClampLimits | None
    bias: bool
    act_fn: ActFnType
    accumulation_dtype: DTypeLike | None
    skip_gate: bool


# ---- sizes and dtypes ----------------------------------------------------------------------------


def expert_count(p: BackwardParameters) -> int:
    return p.gate_up.shape[0]


def hidden_size(p: BackwardParameters) -> int:
    return p.gate_up.shape[1]


def intermediate_size(p: BackwardParameters) -> int:
    return p.gate_up.shape[3]


def block_count(p: BackwardParameters) -> int:
    return p.block_to_expert.size


def token_count(p: BackwardParameters) -> int:
    """Return T; without skip_token the last row of hidden belongs to the padding token."""
    return p.hidden.shape[0] if p.skip_token else p.hidden.shape[0] - 1


def matmul_dtype(p: BackwardParameters) -> DTypeLike:
    """Return the dtype of matmuls: 16-bit tensors use their own, float32 ones compute_dtype."""
    if p.compute_dtype == nl.float32 or p.hidden.dtype == nl.float32:
        return p.compute_dtype
    return p.hidden.dtype


def derivative(act_fn: ActFnType) -> Callable[..., Tensor] | None:
    """Return the ScalarE function that is the derivative of an activation, or None."""
    for known in _DERIVATIVES:
        if act_fn == known[0]:
            return known[1]
    return None


def tokens_per_pass(p: BackwardParameters, columns: int) -> int:
    """Return how many tokens of a block are processed together, when a core has so many columns of H."""
    width = 2 if matmul_dtype(p) == nl.float32 else 1
    each = width * (8 * columns + 22 * intermediate_size(p)) // PMAX
    tokens = min(BANK_COLUMNS, p.block_size)
    while tokens > PMAX and (tokens * each > SBUF_BYTES or p.block_size % tokens != 0):
        tokens -= PMAX
    return tokens


# ---- checks --------------------------------------------------------------------------------------


def check(p: BackwardParameters, cores: int) -> None:
    """Check everything that follows from shapes, dtypes and options."""
    kernel_assert(
        len(p.gate_up.shape) == 4 and p.gate_up.shape[2] == 2,
        f"gate_up_proj_weight: got shape {tuple(p.gate_up.shape)}, expected (E, H, 2, I)",
    )
    size, inner, experts, blocks = hidden_size(p), intermediate_size(p), expert_count(p), block_count(p)
    assert_shape(p.down, (experts, inner, size), "down_proj_weight")
    kernel_assert(
        len(p.hidden.shape) == 2 and p.hidden.shape[1] == size,
        f"hidden_states: got shape {tuple(p.hidden.shape)}, expected (T + 1, {size}), "
        "with skip_dma.skip_token (T, H)",
    )
    kernel_assert(size % cores == 0, f"hidden_states: got H = {size}, expected a multiple of {cores} cores")
    assert_shape(p.out_grad, p.hidden.shape, "output_hidden_states_grad")
    kernel_assert(
        p.affinities.size in (p.hidden.shape[0] * experts, token_count(p) * experts),
        f"expert_affinities_masked: got {p.affinities.size} elements, expected "
        f"{p.hidden.shape[0] * experts}, as many as rows of hidden_states times experts",
    )
    kernel_assert(
        p.affinities.size < MAX_INDEX,
        f"expert_affinities_masked: got {p.affinities.size} elements, allowed are less than {MAX_INDEX}",
    )
    check_blocks(p)
    assert_shape(p.gate_up_checkpoint, (blocks, 2, inner, p.block_size), "gate_up_proj_act_checkpoint_T")
    if p.on_hidden:
        kernel_assert(
            p.down_checkpoint is not None, "down_proj_act_checkpoint: got None, needed by AFFINITY_ON_H"
        )
        assert_shape(p.down_checkpoint, (blocks, p.block_size, size), "down_proj_act_checkpoint")
    check_options(p)


def check_blocks(p: BackwardParameters) -> None:
    kernel_assert(p.block_size in BLOCK_SIZES, f"block_size: got {p.block_size}, allowed are {BLOCK_SIZES}")
    kernel_assert(
        p.position_to_id.size == block_count(p) * p.block_size,
        f"token_position_to_id: got {p.position_to_id.size} elements, expected N * B = "
        f"{block_count(p)} * {p.block_size}",
    )
    kernel_assert(
        p.position_to_id.dtype == nl.int32,
        f"token_position_to_id: got {p.position_to_id.dtype}, expected int32",
    )
    kernel_assert(
        p.block_to_expert.dtype == nl.int32, f"block_to_expert: got {p.block_to_expert.dtype}, expected int32"
    )


def check_options(p: BackwardParameters) -> None:
    for named in (
        ("hidden_states", p.hidden),
        ("gate_up_proj_weight", p.gate_up),
        ("down_proj_weight", p.down),
        ("output_hidden_states_grad", p.out_grad),
    ):
        kernel_assert(named[1].dtype in FLOATS, f"{named[0]}: got {named[1].dtype}, allowed are {FLOATS}")
    kernel_assert(p.compute_dtype in FLOATS, f"compute_dtype: got {p.compute_dtype}, allowed are {FLOATS}")
    kernel_assert(
        p.accumulation_dtype is None or p.accumulation_dtype in FLOATS,
        f"accumulation_dtype: got {p.accumulation_dtype}, allowed are None and {FLOATS}",
    )


__all__ = [
    "ActFnType",
    "AffinityOption",
    "BackwardParameters",
    "ClampLimits",
    "KernelTypeOption",
    "MOEBwdDroplessBlockingParams",
    "ShardOption",
    "SkipMode",
]
