"""Calls with numpy arrays on a device that the options name. Devices are imported when one is asked for."""

from __future__ import annotations

from typing import Any

from ..options import chosen_device


class Elsewhere:
    """Runs such calls, in the place of a bridge."""

    @staticmethod
    def call(kernel: Any, args: tuple, kwargs: dict) -> Any:
        from ..frameworks.torch_devices import run_arrays

        found = run_arrays(kernel, args, kwargs, chosen_device())
        return found[0] if found else kernel.run(*args, **kwargs).result


def elsewhere() -> type[Elsewhere] | None:
    """Who runs calls with numpy arrays, if the options say where; None: numpy."""
    return None if chosen_device() in ("", "cpu") else Elsewhere


__all__ = ["elsewhere"]
