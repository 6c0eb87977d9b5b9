"""The end of a decode step in one kernel: RMSNorm, this rank's part of the head, an exchange, top-k, a token.

Every rank has all tokens and a part of the vocabulary. One all-to-all gives it all logits of its part of the
tokens. Two cores share the vocabulary for the head, then the tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nkilib.core.mlp.rows import castable
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert, not_built
from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, program_share
from nkilib.core.utils.norms import row_scale
from nkilib.core.utils.projection import Activations, span_columns
from nkilib.core.utils.projection_results import ColumnTerms, broadcast_row, new_rows, project_into
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.tiles import like
from nkilib.core.utils.transposes import transpose_rows
from nkilib.core.utils.types import Tensor
from nkilib.experimental.collectives.rings import ReplicaGroups, named_tensor
from nkilib.experimental.gpt_oss_tail.sampler import check_parameters, sample, sample_ref
from nkilib.experimental.topk.chunked_topk import chunked_topk, create_chunked_topk_config

MAX_TOKENS = 512  # sums of the head in half of PSUM
COLUMNS_TOGETHER = 512


@nki.jit
def gpt_oss_tail_chunked_megakernel(
    hidden_states: Tensor,
    gamma: Tensor,
    lm_head_weight_t: Tensor,
    eps: float = 1e-5,
    hidden_actual: int | None = None,
    zero_interleaved_pad: bool = True,
    k: int = 256,
    sampling_params: Tensor | None = None,
    replica_groups: ReplicaGroups | None = None,
    hop_meshes: tuple | None = None,
    dummy_collectives: bool = False,
    emit_logits: bool = True,
    debug_taps: bool = False,
    deferred_rms: bool = True,
    skip_nan_fold: bool = True,
    a2a_batch_groups: int = 1,
) -> tuple:
    """Return (token int32 [T, 1], values bfloat16 [T, k], columns int32 [T, k], logits bfloat16 [T, V]).

    hidden_states is [gbs, H], the same on every rank, gbs <= 512; gamma [H] or [1, H]; lm_head_weight_t
    [H, V / ranks] bfloat16 or float32, this rank's columns of the vocabulary. A rank returns its T =
    gbs / ranks tokens, and numbers of columns in the whole vocabulary. Logits are those of RMSNorm(hidden)
    gamma; values and columns are the k largest, the largest first. Without emit_logits they stay out.

    sampling_params is float32 [T, 3]: top_k (0: all k), top_p and temperature (above 0) of each token; a
    fourth column has the number from 0 to below 1 that chooses, instead of VectorE's generator. None: the
    first candidate.

    hidden_actual is the size that the mean of squares divides by, where H is padded with zeros. deferred_rms
    divides the logits by the root mean square, False the tokens. a2a_batch_groups exchanges in so many parts;
    with dummy_collectives, a rank's own logits stand for those of all. Refused are hop_meshes, debug_taps,
    zero_interleaved_pad=False and skip_nan_fold=False.

    Read of the page: the signature, hidden_states and its dtypes, the steps, that a single all-to-all brings
    the vocabulary to each rank and chunked_topk searches it. The other shapes, the results and what the
    options do are ours.

    >>> import ml_dtypes
    >>> x, head = np.ones((1, 4), np.float32), np.zeros((4, 9), ml_dtypes.bfloat16)
    >>> head[:, 5] = 1
    >>> token, values, columns, logits = gpt_oss_tail_chunked_megakernel(x, x[0], head, k=2)
    >>> token.tolist(), values.tolist()
    ([[5]], [[4.0, 0.0]])
    """
    cores = get_verified_program_sharding_info("gpt_oss_tail_chunked_megakernel", (0, 1), 2)[1]
    refuse_options(zero_interleaved_pad, hop_meshes, debug_taps, skip_nan_fold)
    ranks = 1 if replica_groups is None else len(replica_groups[0])
    rows = check(hidden_states, gamma, lm_head_weight_t, hidden_actual, ranks, a2a_batch_groups)
    size = hidden_states.shape[1] if hidden_actual is None else hidden_actual
    head = Head(hidden_states, gamma, lm_head_weight_t, size, eps, deferred_rms)
    part = head.logits()
    if cores == 2:
        nisa.core_barrier(part, (0, 1))
    logits = part
    if replica_groups is not None:
        groups: Any = None if dummy_collectives else replica_groups
        logits = whole_vocabulary(part, ranks, rows, groups, a2a_batch_groups)
        if cores == 2:
            nisa.core_barrier(logits, (0, 1))
    config = create_chunked_topk_config(logits.shape, logits.dtype, k, num_programs=cores)
    values, columns = chunked_topk(logits, config)
    token = next_tokens(values, columns, sampling_params)
    return (token, values, columns, logits) if emit_logits else (token, values, columns)


def refuse_options(zero_pad: bool, hop_meshes: tuple | None, debug_taps: bool, skip_nan_fold: bool) -> None:
    """Refuse what the page names and its readable part does not explain."""
    if not zero_pad:
        not_built("zero_interleaved_pad", "padded channels are zeros here; where others stand is not known")
    if hop_meshes is not None:
        not_built("hop_meshes", "their form is not known")
    if debug_taps:
        not_built("debug_taps", "what they return is not known")
    if not skip_nan_fold:
        not_built("skip_nan_fold", "logits must not be NaN")


def check(x: Tensor, gamma: Tensor, weight: Tensor, actual: int | None, ranks: int, batch_groups: int) -> int:
    """Return T, the tokens of a rank."""
    assert_tensors((("hidden_states", x), ("gamma", gamma), ("lm_head_weight_t", weight)))
    shape = tuple(x.shape)
    kernel_assert(
        len(shape) == 2 and 1 <= shape[0] <= MAX_TOKENS and shape[0] % ranks == 0,
        f"hidden_states: got shape {shape}, expected (gbs <= {MAX_TOKENS}, H), gbs a multiple of {ranks}",
    )
    kernel_assert(
        x.dtype in (nl.float32, nl.float16, nl.bfloat16),
        f"hidden_states: got dtype {x.dtype}, allowed are float32, float16 and bfloat16",
    )
    kernel_assert(gamma.size == shape[1], f"gamma: got shape {tuple(gamma.shape)}, expected ({shape[1]},)")
    kernel_assert(
        weight.dtype in (nl.bfloat16, nl.float32),
        f"lm_head_weight_t: got dtype {weight.dtype}, allowed are bfloat16 and float32",
    )
    assert_shape(weight, (shape[1], weight.shape[len(weight.shape) - 1]), "lm_head_weight_t")
    kernel_assert(
        actual is None or 1 <= actual <= shape[1],
        f"hidden_actual: got {actual}, allowed are 1 to {shape[1]}",
    )
    rows = shape[0] // ranks
    kernel_assert(
        batch_groups >= 1 and rows % batch_groups == 0,
        f"a2a_batch_groups: got {batch_groups}, allowed are divisors of the {rows} tokens of a rank",
    )
    return rows


# ---- norm and head ---------------------------------------------------------------------------------


class Head(nl.NKIObject):
    """All tokens with the hidden dimension in the partitions, and what their logits are multiplied by."""

    def __init__(self, x: Tensor, gamma: Tensor, weight: Tensor, size: int, eps: float, deferred: bool):
        tokens, hidden = x.shape
        self.weight = weight
        self.tokens = tokens
        self.factors: list = []  # [tokens <= 128, 1] each, where deferred
        factor_row = gamma.reshape((1, hidden))
        columns = nl.ndarray((PMAX, div_ceil(hidden, PMAX), tokens), weight.dtype, buffer=nl.sbuf)
        for tile in TiledRange(tokens, PMAX):
            rows = castable(load(x[tile.start_offset : tile.end_offset]), nl.float32)
            scale = row_scale(rows, size, eps)
            weights = broadcast_row(factor_row, 0, hidden, tile.size)
            normal = like(rows, weight.dtype)
            if deferred:
                self.factors.append(scale)
                nisa.tensor_tensor(normal, rows, weights, nl.multiply)
            else:
                nisa.scalar_tensor_tensor(normal, rows, nl.multiply, scale, nl.multiply, weights)
            transpose_rows(columns, 0, tile.start_offset, normal)
        self.part = Activations(columns, hidden)

    def logits(self) -> Tensor:
        """[tokens, columns of the weight] in bfloat16; cores share the columns."""
        out = named_tensor((self.tokens, self.weight.shape[1]), nl.bfloat16, "logits")
        first, end = program_share(self.weight.shape[1], COLUMNS_TOGETHER)
        for span in TiledRange(end - first, span_columns(self.part, self.weight)):
            start = first + span.start_offset
            sums = new_rows(self.tokens, span.size, nl.float32)
            project_into(sums, 0, [self.part], self.weight, ColumnTerms(), start, span.size)
            for i in range(len(sums)):
                ready = like(sums[i], nl.bfloat16)
                if len(self.factors) > 0:
                    nisa.activation(ready, nl.copy, sums[i], scale=self.factors[i])
                else:
                    nisa.activation(ready, nl.copy, sums[i])
                place = slice(i * PMAX, i * PMAX + ready.shape[0])
                nisa.dma_copy(out[place, start : start + span.size], ready)
        return out


# ---- exchange and choice -----------------------------------------------------------------------------


def whole_vocabulary(part: Tensor, ranks: int, rows: int, groups: Any, batch_groups: int) -> Tensor:
    """All logits [rows, V] of this rank's tokens, of parts [gbs, V / ranks]; groups None: of its own part."""
    columns, each = part.shape[1], rows // batch_groups
    by_rank = part.reshape((ranks, rows, columns))
    whole = named_tensor((rows, ranks * columns), part.dtype, "whole")
    for group in range(batch_groups):
        some = slice(group * each, (group + 1) * each)
        received = by_rank[:, some]
        if groups is not None:
            sent = named_tensor((ranks * each, columns), part.dtype, f"sent{group}")
            dst = named_tensor(sent.shape, part.dtype, f"received{group}")
            place = sent.reshape((ranks, each, columns))
            if nl.program_id(0) == 0:
                nisa.dma_copy(place, received)
            ncc.all_to_all([sent], [dst], groups, 0)
            received = dst.reshape((ranks, each, columns))
        if nl.program_id(0) == 0:
            nisa.dma_copy(whole[some].reshape((each, ranks, columns)), received.permute((1, 0, 2)))
    return whole


def next_tokens(values: Tensor, columns: Tensor, params: Tensor | None) -> Tensor:
    """The token of each row, int32 [T, 1]; cores share the rows as chunked_topk does."""
    count, k = values.shape
    out = nl.ndarray((count, 1), nl.int32, buffer=nl.shared_hbm)
    if params is not None:
        assert_tensors((("sampling_params", params),))
        check_parameters(params, count)
    first, end = program_share(count)
    for tile in TiledRange(end - first, PMAX):
        rows = slice(first + tile.start_offset, first + tile.end_offset)
        if params is None:
            nisa.dma_copy(out[rows], columns[rows, 0:1])
            continue
        token = nl.ndarray((tile.size, 1), nl.int32, buffer=nl.sbuf)
        names = load(columns[rows], nl.float32)
        nisa.tensor_copy(token, sample(load(values[rows], nl.float32), names, params[rows]))
        nisa.dma_copy(out[rows], token)
    return out


def gpt_oss_tail_ref(
    hidden_states: np.ndarray,
    gamma: np.ndarray,
    lm_head_weight_t: np.ndarray,
    eps: float = 1e-5,
    k: int = 256,
    sampling_params: np.ndarray | None = None,
) -> tuple:
    """Return (tokens [T], values [T, k], columns [T, k], logits [T, V]) in float64, of one rank."""
    x = np.asarray(hidden_states, np.float64)
    normal = x / np.sqrt((x**2).mean(1, keepdims=True) + eps) * np.asarray(gamma, np.float64).reshape(-1)
    logits = normal @ np.asarray(lm_head_weight_t, np.float64)
    columns = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(logits, columns, 1)
    tokens = columns[:, 0] if sampling_params is None else sample_ref(values, columns, sampling_params)
    return tokens, values, columns, logits
