"""The arguments of the attention block of decode, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import nki.language as nl
from nkilib.core.utils.allocator import BufferManager
from nkilib.core.utils.common_types import DtypeMode, QuantizationType
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.kernel_helpers import is_hbm_buffer
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups
from nkilib.experimental.transformer.attention_block_tkg_sharding import CPCollectiveMode, KVDPCollectiveMode

DEFAULT_EPS = 1e-6
INPUT_EPS = 1e-3  # of the norm of X, as its page documents it


@dataclass
class BlockCaches(nl.NKIObject):
    """The caches: flat [B, (1,) Smax, d], keys also [B, (1,) d, Smax]; or blocks [n, block_len, d]."""

    keys: Tensor
    values: Tensor
    keys_transposed: bool
    table: Tensor | None = None  # [B, blocks of a sequence]
    update: bool = False
    index: Tensor = None  # [B, 1]: the slots of the new tokens; None without update
    scales: tuple = (None, None)
    packed: bool = False  # keys of blocks are [n, block_len / 2, d, 2]


@dataclass
class BlockSizes(nl.NKIObject):
    """B, S, N, d; keys to attend to, capacity of the caches; tokens of a cache block, 0 if flat."""

    batch: int
    active: int
    heads: int
    depth: int
    window: int
    room: int
    block_len: int

    def tokens(self) -> int:
        return self.batch * self.active


@dataclass
class QuantizedWeights(nl.NKIObject):
    """The quantisation of weights, with the scales of weights and inputs."""

    kind: QuantizationType = QuantizationType.NONE
    w_scale: Tensor | None = None
    in_scale: Tensor | None = None


@dataclass
class BlockInputNorm(nl.NKIObject):
    """RMSNorm of the new tokens; hidden_actual counts the elements that are not padding."""

    enabled: bool = False
    eps: float = INPUT_EPS
    gamma: Tensor | None = None
    hidden_actual: int | None = None


@dataclass
class BlockInput(nl.NKIObject):
    """The new tokens and their projection to queries, keys and values."""

    x: Tensor
    w_qkv: Tensor
    bias: Tensor | None = None
    norm: BlockInputNorm = field(default_factory=BlockInputNorm)
    quantized: QuantizedWeights = field(default_factory=QuantizedWeights)
    transposed: bool = False  # x is [128, n, H / (128 n), B S]
    transposed_by_4: bool = False


@dataclass
class HeadNormOptions(nl.NKIObject):
    """RMSNorm of the heads of queries and keys."""

    enabled: bool = False
    eps: float = DEFAULT_EPS
    q_gamma: Tensor | None = None
    k_gamma: Tensor | None = None


@dataclass
class RotaryTables(nl.NKIObject):
    """cos and sin [d / 2, B, S], or None without RoPE; `contiguous`: of pairs (i, i + d / 2)."""

    cos: Tensor | None = None
    sin: Tensor | None = None
    contiguous: bool = True


@dataclass
class BlockMasks(nl.NKIObject):
    """The mask of attention, or the positions that define it; and options of the computation."""

    mask: Tensor | None
    pos_ids: Tensor | None = None
    start_pos_ids: Tensor | None = None
    sink: Tensor | None = None
    max_context_len: Tensor | None = None
    tiled: bool = True
    sbm: BufferManager | None = None
    statistics: dict[str, Tensor] | None = None  # receives maxima and sums of a partial float32 result
    packed: bool = False  # the positions are bounds, whose lower ends name sequences


@dataclass
class BlockOutput(nl.NKIObject):
    """The output projection, and the layout of the result."""

    weights: Tensor | None
    bias: Tensor | None = None
    quantized: QuantizedWeights = field(default_factory=QuantizedWeights)
    transposed: bool = False
    in_sbuf: bool = False


@dataclass
class RankShare(nl.NKIObject):
    """Ranks that share sequences or keys; `place`: a tensor with the rank's index in its group, or None."""

    ranks: int = 1
    groups: ReplicaGroups | None = None
    mode: KVDPCollectiveMode | CPCollectiveMode | None = None
    place: Tensor | None = None


@dataclass
class AttentionBlock(nl.NKIObject):
    """The arguments of an attention block."""

    input: BlockInput
    caches: BlockCaches
    masks: BlockMasks
    output: BlockOutput
    rotary: RotaryTables
    norm_before: HeadNormOptions = field(default_factory=HeadNormOptions)  # before RoPE
    norm_after: HeadNormOptions = field(default_factory=HeadNormOptions)
    kvdp: RankShare = field(default_factory=RankShare)  # shares the sequences
    cp: RankShare = field(default_factory=RankShare)  # shares the keys
    softmax_scale: float | None = None
    skip_attention: bool = False
    s_ctx: int | None = None
    dtype_mode: DtypeMode = DtypeMode.NON_OCP


def sizes_of(b: AttentionBlock) -> BlockSizes:
    """Return the sizes that the arguments give together."""
    x, c, mask = b.input.x, b.caches, b.masks.mask
    depth = c.values.shape[len(c.values.shape) - 1]
    heads = b.input.w_qkv.shape[1] // depth - 2
    if is_hbm_buffer(x) and not b.input.transposed:
        batch, active = x.shape[0], x.shape[1]
    else:
        tokens = x.shape[3] if b.input.transposed else x.shape[1]
        batch = batch_of(b, tokens)
        active = tokens // batch
    block_len = 0 if c.table is None else c.values.shape[1]
    room = c.values.shape[len(c.values.shape) - 2] if c.table is None else c.table.shape[1] * block_len
    window = room
    if c.table is None and b.s_ctx is not None:
        ranks = b.cp.ranks
        kernel_assert(
            b.s_ctx % ranks == 0, f"S_ctx: got {b.s_ctx}, allowed with CP={ranks} are multiples of that"
        )
        window = b.s_ctx // ranks
    elif c.table is None and mask is not None and b.masks.pos_ids is None:
        window = mask.shape[0]
    return BlockSizes(batch, active, heads, depth, window, room, block_len)


def batch_of(b: AttentionBlock, tokens: int) -> int:
    """Return B for tokens whose shape does not give it; kvdp.ranks share the batches."""
    ranks, c = b.kvdp.ranks, b.caches
    if b.masks.mask is not None:
        return b.masks.mask.shape[1] * ranks
    if b.rotary.cos is not None:
        return b.rotary.cos.shape[1]
    if c.index is not None:
        return c.index.shape[0] * ranks
    return tokens if c.table is None else c.table.shape[0] * ranks
