"""Blockwise experts whose hidden dimension is divided among cores."""

from __future__ import annotations

import nki
import nki.language as nl
from nkilib.core.moe.moe_cte.blocks import run_blocks
from nkilib.core.moe.moe_cte.moe_cte_parameters import (
    Arithmetic,
    BlockTables,
    ExpertCheckpoints,
    ExpertTensors,
    ExpertTerms,
    Limits,
    RowOptions,
    experts_parameters,
    matmul_dtype,
)
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.utils.common_types import ActFnType, ExpertAffinityScaleMode
from nkilib.core.utils.kernel_assert import assert_tensors, kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor


@nki.jit
def blockwise_mm_baseline_shard_hidden(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    block_size: int,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    gate_up_activations_T: Tensor | None = None,
    down_activations: Tensor | None = None,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    expert_affinities_scaling_mode: ExpertAffinityScaleMode = ExpertAffinityScaleMode.POST_SCALE,
    activation_dtype: DTypeLike | None = None,
    accum_dtype: DTypeLike | None = None,
) -> Tensor:
    """Return [T + 1, H], or [T, H] with skip_dma.skip_token: blockwise experts with SiLU as `moe_cte`.

    Blocks are any multiple of 128; down_proj_weight [E, I or more, H], rows from I on are padding.
    gate_up_activations_T [N, 2, I, B] and down_activations [N, B, H], given together, receive what enters
    the activation and the results before their affinity: what `blockwise_mm_bwd` reads.

    Two cores share I, then H, with the middle exchanged, as in `moe_cte`. The original has no page: arguments
    and their layouts are those of its public test; activation_dtype and accum_dtype, named in the release
    notes alone, may name the dtypes that this kernel has: that of the products, and float32 for sums.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shapes = [(129, 512), (129 * 2, 1), (2, 512, 2, 32), (2, 32, 512)]
    >>> tensors = [rng.standard_normal(shape, np.float32) / 8 for shape in shapes]
    >>> ids, owners = np.arange(128, dtype=np.int32), np.ones((1, 1), np.int32)
    >>> out = blockwise_mm_baseline_shard_hidden(*tensors, 128, ids, owners, compute_dtype=nl.float32)
    >>> gate_up = tensors[0] @ tensors[2][1].reshape(512, 64)
    >>> middle = gate_up[:, :32] / (1 + np.exp(-gate_up[:, :32])) * gate_up[:, 32:]
    >>> wanted = middle @ tensors[3][1] * tensors[1].reshape(129, 2)[:, 1:]
    >>> bool(np.allclose(out[:128], wanted[:128], atol=1e-4))
    True
    """
    assert_tensors((("gate_up_proj_weight", gate_up_proj_weight), ("down_proj_weight", down_proj_weight)))
    kept = gate_up_activations_T is not None
    kernel_assert(
        kept == (down_activations is not None),
        "gate_up_activations_T, down_activations: got one of them, expected both or none",
    )
    p = experts_parameters(
        ExpertTensors(
            hidden_states,
            expert_affinities_masked,
            gate_up_proj_weight,
            down_proj_weight[:, 0 : gate_up_proj_weight.shape[-1]],
        ),
        BlockTables(token_position_to_id, block_to_expert, block_size),
        ExpertTerms(None, None, None, None),
        Arithmetic(ActFnType.SiLU, compute_dtype, expert_affinities_scaling_mode),
        Limits(None, None, None, None),
        RowOptions(skip_dma, is_tensor_update_accumulating),
        ExpertCheckpoints(kept, False, gate_up_activations_T, down_activations),
    )
    kernel_assert(
        activation_dtype in (None, matmul_dtype(p)),
        f"activation_dtype: got {activation_dtype}, allowed are None and {matmul_dtype(p)}, that of products",
    )
    kernel_assert(
        accum_dtype in (None, nl.float32),
        f"accum_dtype: got {accum_dtype}, allowed are None and float32: sums are float32",
    )
    result = run_blocks(p, any_size=True)
    out: Tensor = result[0] if kept else result
    return out


__all__ = ["SkipMode", "blockwise_mm_baseline_shard_hidden"]
