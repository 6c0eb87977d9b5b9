"""`torch_xla.runtime` and the small modules beside it: one process, no device metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from . import xla_model


def world_size() -> int:
    return 1


def global_ordinal() -> int:
    return 0


local_ordinal = process_index = global_ordinal


def global_device_count() -> int:
    return 1


def device_type() -> str:
    return "NEURON"


def set_device_type(kind: str) -> None: ...


def metrics_report() -> str:
    return "no device metrics: Open NKI runs on the CPU"


def start_server(port: int, **_: object) -> None: ...


@contextlib.contextmanager
def trace(*_: object, **__: object) -> Iterator[None]:
    yield


def spawn(fn: Callable[..., Any], args: tuple = (), **_: object) -> Any:
    return fn(0, *args)


class MpDeviceLoader:
    """A loader whose batches are on the device; a step after each."""

    def __init__(self, loader: Collection[Any], device: object, **_: object):
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield batch
            xla_model.mark_step()

    def __len__(self) -> int:
        return len(self.loader)


ParallelLoader = MpDeviceLoader
