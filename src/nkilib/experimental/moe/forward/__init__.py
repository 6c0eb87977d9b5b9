"""Blockwise experts for training and prefill."""

from nkilib.experimental.moe.forward.bwmm_shard_on_H import SkipMode, blockwise_mm_baseline_shard_hidden

__all__ = ["SkipMode", "blockwise_mm_baseline_shard_hidden"]
