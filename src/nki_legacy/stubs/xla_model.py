"""`torch_xla.core.xla_model`: one replica on the CPU; steps run what waits for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from . import devices
from .missing import missing

T = TypeVar("T")

REDUCE_SUM, REDUCE_MAX, REDUCE_MIN, REDUCE_MUL = "sum", "max", "min", "mul"
_waiting: list[tuple[Callable, tuple]] = []


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    return devices.device(n)


def get_xla_supported_devices(*_: object, **__: object) -> list[str]:
    return ["xla:0"]


def xla_device_hw(device: object) -> str:
    return "NEURON"


def mark_step(wait: bool = False, **_: object) -> None:
    while _waiting:
        closure, args = _waiting.pop(0)
        closure(*args)


def wait_device_ops(devices: Sequence[object] = ()) -> None:
    mark_step()


def add_step_closure(closure: Callable, args: tuple = (), **_: object) -> None:
    _waiting.append((closure, tuple(args)))


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    return [payload]


def xrt_world_size(*_: object) -> int:
    return 1


def get_ordinal(*_: object) -> int:
    return 0


get_local_ordinal = get_ordinal


def is_master_ordinal(*_: object, **__: object) -> bool:
    return True


def master_print(*args: Any, **kwargs: Any) -> None:
    kwargs.pop("local", None)
    print(*args, **kwargs)


def all_reduce(
    kind: str, inputs: torch.Tensor | Sequence[torch.Tensor], scale: float = 1.0, *_: object, **__: object
) -> torch.Tensor | Sequence[torch.Tensor]:
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    for tensor in inputs:
        tensor.mul_(scale)
    return inputs


def all_gather(value: torch.Tensor, dim: int = 0, **_: object) -> torch.Tensor:
    return value


def reduce_scatter(kind: str, value: torch.Tensor, scale: float, dim: int, shards: int, **_: object) -> Any:
    _alone(shards)
    return value * scale


def all_to_all(value: torch.Tensor, split: int, concat: int, count: int, **_: object) -> Any:
    _alone(count)
    return value


def _alone(count: int) -> None:
    if count != 1:
        raise RuntimeError(f"the stub of Open NKI for torch_xla has one replica, not {count}")


def mesh_reduce(tag: str, data: T, reduce_fn: Callable) -> Any:
    return reduce_fn([data])


def optimizer_step(optimizer: torch.optim.Optimizer, *_: object, **kwargs: Any) -> Any:
    return optimizer.step(**kwargs.get("optimizer_args", {}))


def save(data: object, path: str | os.PathLike, **_: object) -> None:
    torch.save(data, path)


def set_rng_state(seed: int, device: object = None) -> None:
    torch.manual_seed(seed)


def get_rng_state(device: object = None) -> int:
    return torch.initial_seed()


__getattr__ = missing("torch_xla.core.xla_model")
