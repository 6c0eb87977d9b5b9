"""`neuronx_distributed` of one rank: its layers are torch's, its groups are none."""

from __future__ import annotations

import enum
from typing import TypeVar

import torch

from .missing import missing

T = TypeVar("T")


class ColumnParallelLinear(torch.nn.Linear):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        **_: object,
    ):
        super().__init__(input_size, output_size, bias=bias, dtype=dtype)


class RowParallelLinear(ColumnParallelLinear):
    pass


class ParallelEmbedding(torch.nn.Embedding):
    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **_: object):
        super().__init__(num_embeddings, embedding_dim, padding_idx=padding_idx)


def _one(*_: object, **__: object) -> int:
    return 1


def _zero(*_: object, **__: object) -> int:
    return 0


def _none(*_: object, **__: object) -> None: ...


get_tensor_model_parallel_size = get_data_parallel_size = get_pipeline_model_parallel_size = _one
get_tensor_model_parallel_rank = get_data_parallel_rank = get_pipeline_model_parallel_rank = _zero
get_tensor_model_parallel_group = get_data_parallel_group = get_world_group = _none
initialize_model_parallel = destroy_model_parallel = _none


def model_parallel_is_initialized() -> bool:
    return True


def _same(x: T, *_: object, **__: object) -> T:
    return x


copy_to_tensor_model_parallel_region = reduce_from_tensor_model_parallel_region = _same
scatter_to_tensor_model_parallel_region = gather_from_tensor_model_parallel_region = _same


def argmax(
    tensor: torch.Tensor, dim: int, gather_dim: int, keepdim: bool = False, **_: object
) -> torch.Tensor:
    """Return where the largest elements are; there is one rank, so there is nothing to gather."""
    return torch.argmax(tensor, dim, keepdim)


def topk(
    tensor: torch.Tensor, k: int, dim: int = -1, gather_dim: int = -1, **_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest elements and where they are."""
    values, places = torch.topk(tensor, k, dim)
    return values, places


def cpu_mode() -> bool:
    return True


class hardware(enum.Enum):
    TRN1 = "trn1"
    TRN2 = "trn2"
    TRN3 = "trn3"


__getattr__ = missing("neuronx_distributed")
