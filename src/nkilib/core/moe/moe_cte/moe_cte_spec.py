"""Which implementation `moe_cte` is asked for, and its configuration."""

from __future__ import annotations

from dataclasses import dataclass

import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte_utils import BlockShardStrategy
from nkilib.core.utils.common_types import Enum
from nkilib.core.utils.types import Tensor


class MoECTEImplementation(Enum):
    """The documented ways to divide the work. All give the same result, and here are one engine."""

    shard_on_block = 0
    shard_on_i = 1
    shard_on_i_hybrid = 2
    shard_on_i_dropping = 3
    shard_on_block_mx = 4
    shard_on_i_mx = 5
    shard_on_i_mx_hybrid = 6


MX = (
    MoECTEImplementation.shard_on_block_mx,
    MoECTEImplementation.shard_on_i_mx,
    MoECTEImplementation.shard_on_i_mx_hybrid,
)


HYBRID = (MoECTEImplementation.shard_on_i_hybrid, MoECTEImplementation.shard_on_i_mx_hybrid)


@dataclass
class ShardOnBlockConfig(nl.NKIObject):
    """How blocks are divided among cores. Sizes decide here, so that the first two change nothing.

    slice_per_core (ours): two cores that accumulate return [T, 2, H], to be summed over the second dimension,
    as callers expect who give this configuration; the second slice is zeros. A spec without one returns
    [T, H], as in the manual.
    """

    block_sharding_strategy: BlockShardStrategy = BlockShardStrategy.PING_PONG  # without effect
    n_block_per_iter: int = 1  # without effect
    slice_per_core: bool = True  # two cores return [T, 2, H]


@dataclass
class ShardOnIConfig(nl.NKIObject):
    """What to store for a backward pass, and how many blocks are unrolled (hybrid)."""

    checkpoint_activation: bool = False  # return what blockwise_mm_bwd needs
    expert_affinity_multiply_on_I: bool = False  # affinities multiply act(g) u, not the result
    num_static_block: int | None = None  # hybrid: blocks before the loop; None: N - E


@dataclass
class QuantizationConfig(nl.NKIObject):
    """Scales of FP8 weights, for those who pass them in one object."""

    gate_up_proj_scale: Tensor | None = None  # [E or 1, 1, 2 I] float32
    down_proj_scale: Tensor | None = None  # [E or 1, 1, H] float32


@dataclass
class MoECTESpec(nl.NKIObject):
    """Which implementation, and its configuration; one that is not given has its defaults."""

    implementation: MoECTEImplementation  # how work is divided
    shard_on_block: ShardOnBlockConfig = None  # type: ignore[assignment]  # of shard_on_block
    shard_on_I: ShardOnIConfig = None  # type: ignore[assignment]  # of shard_on_i

    def __post_init__(self) -> None:
        if self.shard_on_block is None:
            self.shard_on_block = ShardOnBlockConfig(slice_per_core=False)
        if self.shard_on_I is None:
            self.shard_on_I = ShardOnIConfig()
