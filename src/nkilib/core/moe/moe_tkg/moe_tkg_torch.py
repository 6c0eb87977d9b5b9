"""`moe_tkg_ref` of tensors of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from nkilib.core.moe.moe_tkg.reference import moe_tkg_ref


def moe_tkg_torch_ref(hidden_input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return what `moe_tkg` should, rounded to the dtype of its tokens; computed in float64."""
    values = [_array(value) for value in (hidden_input, *args)]
    named = {name: _array(value) for name, value in kwargs.items()}
    return torch.from_numpy(moe_tkg_ref(*values, **named)).to(hidden_input.dtype)


def _array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()
