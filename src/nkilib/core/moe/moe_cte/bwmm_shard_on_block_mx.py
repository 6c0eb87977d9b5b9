"""Entry points for microscaling weights, which are not built."""

from __future__ import annotations

from typing import Any, NoReturn

from nkilib.core.utils.kernel_assert import NotBuilt


class UnbuiltKernel:
    """Is launched like a kernel, and says that there is none."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getitem__(self, grid: Any) -> UnbuiltKernel:
        return self

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        why = "experts with microscaling weights are not built"
        raise NotBuilt(f"not-implemented-yet: {self.__name__} option MXFP4 and MXFP8 weights: {why}")


bwmm_shard_on_block_mx = UnbuiltKernel("bwmm_shard_on_block_mx")

__all__ = ["bwmm_shard_on_block_mx"]
