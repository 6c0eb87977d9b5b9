"""`libneuronxla`: imported for its effect. There is no plugin for a device: frameworks run on the CPU."""

from __future__ import annotations

from typing import Any

__version__ = "2.0+open.nki"


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"the stub of Open NKI for libneuronxla lacks libneuronxla.{name}: there is no device"
    )
