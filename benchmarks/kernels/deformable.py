"""Multi-scale deformable attention, forward and backward, of a detector's decoder."""

from __future__ import annotations

from nki import TensorSpec
from nkilib.experimental.deformable_attention import ms_deformable_attention, ms_deformable_attention_bwd

from . import Case

LEVELS = ((64, 64), (32, 32), (16, 16), (8, 8))
STARTS = (0, 4096, 5120, 5376)
CELLS, HEADS, SIZE, POINTS = 5440, 8, 32, 4
ISSUE_US = 1.79  # of a DMA that gathers 128 rows: software makes their descriptors one after the other


def sampled(queries: int, backward: bool) -> Case:
    """A DMA for 128 queries of each point; backward a second one, which adds."""
    samples = (1, queries, HEADS, len(LEVELS), POINTS)
    value = TensorSpec((1, CELLS, HEADS, SIZE), "bfloat16")
    places, weights = TensorSpec((*samples, 2), "float32"), TensorSpec(samples, "float32")
    given = (value, LEVELS, STARTS, places, weights)
    points = queries * HEADS * len(LEVELS) * POINTS
    transfers = -(-queries // 128) * HEADS * len(LEVELS) * POINTS / 2  # of each core
    label = f"{queries} queries, {len(LEVELS)} levels, {HEADS}x{SIZE} bf16"
    moved = points * (4 * SIZE * 2 + 12) + queries * HEADS * SIZE * 2
    if not backward:
        issued = ("GpSimd", transfers * ISSUE_US)
        return Case(
            "ms_deformable_attention", label, ms_deformable_attention, given, moved, other=issued, lnc=2
        )
    dy = TensorSpec((1, queries, HEADS * SIZE), "bfloat16")
    moved += points * (4 * SIZE * 4 + 12) + CELLS * HEADS * SIZE * 2
    issued = ("GpSimd", 2 * transfers * ISSUE_US)
    return Case(
        "ms_deformable_attention_bwd",
        label,
        ms_deformable_attention_bwd,
        (dy, *given),
        moved,
        other=issued,
        lnc=2,
    )


CASES = [sampled(300, False), sampled(900, False), sampled(300, True), sampled(900, True)]
