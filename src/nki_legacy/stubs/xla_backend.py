"""`torch.distributed.init_process_group` with the backends of the device: they make a group of gloo."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

_real = dist.init_process_group


def _init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    if backend not in ("xla", "neuron"):
        _real(backend, *args, **kwargs)
    elif "WORLD_SIZE" in os.environ:
        _real("gloo", *args, **kwargs)
    else:
        _real("gloo", store=dist.HashStore(), rank=0, world_size=1)


def install() -> None:
    """Accept the names of these backends, from now on in this process."""
    dist.init_process_group = _init
