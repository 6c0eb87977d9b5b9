"""`torch_neuronx.experimental.profiler`: on exit, a modelled profile of each kernel launched inside."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..call.bridges import TensorSpec
from ..call.jit import profile as model
from ..call.launches import listening
from ..tree import map_tree


class profile:
    """The context manager; its options are AWS's, of which output_dir has an effect."""

    def __init__(
        self, *_: Any, output_dir: str | None = None, neuron_tensorboard_plugin_dir: str = "", **__: Any
    ):
        self.folder = output_dir or neuron_tensorboard_plugin_dir or "output"
        self.calls: dict[Any, tuple[Any, tuple, dict]] = {}
        self._listening: Any = None

    def start(self) -> None:
        self._listening = listening(self._heard)
        self._listening.__enter__()

    def stop(self) -> None:
        self._listening.__exit__(None, None, None)
        os.makedirs(self.folder, exist_ok=True)
        for number, (kernel, args, kwargs) in enumerate(self.calls.values()):
            path = os.path.join(self.folder, f"{kernel.__name__}_{number}.json")
            model(kernel)(*args, **kwargs).save(path)
            print(f"nki run: wrote {path}, modelled, not measured (nki compare shows it)", file=sys.stderr)

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _heard(self, kernel: Any, args: tuple, kwargs: dict) -> None:
        described = [map_tree(_described, list(args)), map_tree(_described, dict(kwargs))]
        self.calls.setdefault((kernel.__name__, repr(described)), (kernel, tuple(described[0]), described[1]))


def _described(value: Any, path: str = "") -> Any:
    """An array as its shape and dtype."""
    if hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape):
        return TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return value
