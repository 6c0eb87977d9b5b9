"""`torch.neuron`, the module of PyTorch's device `neuron`: one device, which is the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch


class Stream:
    """A queue of work: here, all work is done when a call returns."""

    def __init__(self, *_: object, **__: object): ...

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Stream) -> None: ...


def stream(stream: Stream | None) -> nullcontext[Stream | None]:
    return nullcontext(stream)


def synchronize(*_: object) -> None: ...


def empty_cache() -> None: ...


def _lazy_init() -> None:
    """Some scripts start the device by this name."""


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device: object) -> None: ...


def get_device_name(device: object = None) -> str:
    return "Open NKI on the CPU"


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def __getattr__(name: str) -> Any:
    raise AttributeError(f"the stub of Open NKI for torch.neuron lacks torch.neuron.{name}")
