"""`torch_xla` on the CPU: one replica, everything at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import devices, xla_model
from .missing import missing

__version__ = f"{torch.__version__.split('+')[0]}+open.nki"
devices.install()


def device(index: int | None = None) -> torch.device:
    return devices.device(index)


def real_devices() -> list[str]:
    return ["CPU:0"]


def sync(wait: bool = False, **_: object) -> None:
    xla_model.mark_step()


def manual_seed(seed: int, **_: object) -> None:
    torch.manual_seed(seed)


def launch(fn: Callable[..., Any], args: tuple = (), **_: object) -> Any:
    return fn(0, *args)


class _XLAC:
    """The C++ half; scripts switch its debugging on."""

    @staticmethod
    def _set_ir_debug(on: bool) -> None: ...


__getattr__ = missing("torch_xla")
