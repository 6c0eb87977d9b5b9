"""`libneuronxla`: imported for its effect. There is no plugin for a device: frameworks run on the CPU."""

from __future__ import annotations

from .missing import missing

__version__ = "2.0+open.nki"


__getattr__ = missing("libneuronxla", ": there is no device")
