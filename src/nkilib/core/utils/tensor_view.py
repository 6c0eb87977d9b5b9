"""TensorView: views of a tensor, built step by step. Nothing moves."""

from __future__ import annotations

from typing import Any

import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.types import DTypeLike, Tensor


class TensorView(nl.NKIObject):
    """A view of an HBM, SBUF or PSUM tensor. Every method returns another view; get_view() is the tensor.

    Dimensions count from 0; on chip, dimension 0 is the partitions and stays where it is.
    """

    def __init__(self, base_tensor: Tensor):
        self.tensor = base_tensor
        self.shape = tuple(base_tensor.shape)
        self.strides = tuple(base_tensor.strides)
        self.dtype = base_tensor.dtype

    def get_view(self) -> Any:
        """The NKI tensor with this view's access pattern."""
        return self.tensor

    def is_sbuf(self) -> bool:
        return self.tensor.buffer == nl.sbuf

    def has_dynamic_access(self) -> bool:
        """True once an index is a run-time value."""
        return self.tensor.is_indirect()

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> TensorView:
        """Elements start, start+step, ... below end of a dimension; end is clamped to its size."""
        self._check_dim("slice", dim)
        end = min(end, self.shape[dim])
        kernel_assert(
            0 <= start < end and step >= 1,
            f"slice: got start {start}, end {end}, step {step} of dimension {dim} with size "
            f"{self.shape[dim]}, expected 0 <= start < end and step >= 1",
        )
        return TensorView(self.tensor.slice(dim, start, end, step))

    def permute(self, dims: tuple) -> TensorView:
        """Dimensions in another order."""
        given = list(dims)
        for dim in range(len(self.shape)):
            kernel_assert(
                len(given) == len(self.shape) and dim in given,
                f"permute: got {tuple(given)}, expected every dimension of {self.shape} once",
            )
        kernel_assert(
            given[0] == 0 or not self._is_on_chip(),
            f"permute: got {tuple(given)}, the partition dimension 0 must stay first",
        )
        return TensorView(self.tensor.permute(given))

    def broadcast(self, dim: int, size: int) -> TensorView:
        """A dimension of size 1 repeated without copying."""
        self._check_dim("broadcast", dim)
        self._check_size_one("broadcast", dim)
        self._check_free("broadcast", dim)
        return TensorView(self.tensor.broadcast(dim, size))

    def reshape_dim(self, dim: int, shape: tuple) -> TensorView:
        """A dimension split into several; one size may be -1."""
        self._check_dim("reshape_dim", dim)
        product, unknown = 1, 0
        for size in shape:
            product = product * (1 if size == -1 else size)
            unknown = unknown + (1 if size == -1 else 0)
        total = self.shape[dim]
        fits = total % product == 0 if unknown == 1 else unknown == 0 and product == total
        kernel_assert(
            fits, f"reshape_dim: got {tuple(shape)}, expected sizes that make {total}, at most one of them -1"
        )
        if len(shape) > 1:
            self._check_free("reshape_dim", dim)
        return TensorView(self.tensor.reshape_dim(dim, shape))

    def flatten_dims(self, start_dim: int, end_dim: int) -> TensorView:
        """Dimensions start_dim to end_dim (inclusive) as one; they must follow each other in memory."""
        self._check_dim("flatten_dims", start_dim)
        self._check_dim("flatten_dims", end_dim)
        kernel_assert(
            start_dim <= end_dim, f"flatten_dims: got {start_dim} to {end_dim}, expected start <= end"
        )
        if start_dim < end_dim:
            self._check_free("flatten_dims", start_dim)
        for dim in range(start_dim, end_dim):
            follows = self.strides[dim] == self.strides[dim + 1] * self.shape[dim + 1]
            kernel_assert(
                follows or 1 in self.shape[dim : dim + 2],
                f"flatten_dims: dimensions {dim} and {dim + 1} of {self.shape} are not contiguous, "
                f"strides are {self.strides}",
            )
        return TensorView(self.tensor.flatten_dims(start_dim, end_dim))

    def expand_dim(self, dim: int) -> TensorView:
        """A new dimension of size 1 before `dim`."""
        kernel_assert(
            0 <= dim <= len(self.shape), f"expand_dim: got dim {dim}, allowed are 0 to {len(self.shape)}"
        )
        self._check_free("expand_dim", dim)
        return TensorView(self.tensor.expand_dim(dim))

    def squeeze_dim(self, dim: int) -> TensorView:
        """The view without a dimension of size 1."""
        self._check_dim("squeeze_dim", dim)
        self._check_size_one("squeeze_dim", dim)
        self._check_free("squeeze_dim", dim)
        return TensorView(self.tensor.squeeze_dim(dim))

    def select(self, dim: int, index: Any) -> TensorView:
        """One index of a dimension, which goes: an int, or a tile or register with a run-time index."""
        self._check_dim("select", dim)
        if isinstance(index, int):
            kernel_assert(
                0 <= index < self.shape[dim],
                f"select: got index {index} of dimension {dim}, allowed are 0 to {self.shape[dim] - 1}",
            )
            self._check_free("select", dim)
        else:
            kernel_assert(
                not self.has_dynamic_access(), "select: a view takes one run-time index, this is its second"
            )
        return TensorView(self.tensor.select(dim, index))

    def rearrange(self, src_pattern: Any, dst_pattern: Any, fixed_sizes: Any = None) -> TensorView:
        """Split, permute and merge by names: ("b", ("h", "w")) to ("b", "w", "h") with {"h": 4}."""
        kernel_assert(
            len(src_pattern) == len(self.shape),
            f"rearrange: got {len(src_pattern)} names for the {len(self.shape)} dimensions of {self.shape}",
        )
        return TensorView(self.tensor.rearrange(src_pattern, dst_pattern, fixed_sizes))

    def reshape(self, new_shape: tuple) -> TensorView:
        """Another shape, where the layout allows it without a copy."""
        return TensorView(self.tensor.reshape(new_shape))

    def reinterpret_cast(self, dtype: DTypeLike) -> TensorView:
        """The same bytes read as another dtype; the last dimension grows or shrinks."""
        return TensorView(self.tensor.reinterpret_cast(dtype))

    # ---- checks

    def _is_on_chip(self) -> bool:
        return self.tensor.buffer in (nl.sbuf, nl.psum)

    def _check_dim(self, method: str, dim: int) -> None:
        kernel_assert(
            0 <= dim < len(self.shape), f"{method}: got dim {dim}, allowed are 0 to {len(self.shape) - 1}"
        )

    def _check_free(self, method: str, dim: int) -> None:
        kernel_assert(
            dim != 0 or not self._is_on_chip(), f"{method}: not possible on the partition dimension 0"
        )

    def _check_size_one(self, method: str, dim: int) -> None:
        kernel_assert(
            self.shape[dim] == 1, f"{method}: dimension {dim} has size {self.shape[dim]}, expected 1"
        )


def key_in_dict(key: Any, dictionary: Any) -> bool:
    """`key in dictionary`, which the NKI compiler does not know for dictionaries."""
    return key in list(dictionary.keys())
