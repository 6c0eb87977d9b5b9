"""`torch_neuronx.profiling`: a trace of `torch.profiler` gets a modelled profile of each kernel beside it."""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig

from .profiler import profile


class ProfileMode(enum.Enum):
    """What a device would record. Here every mode gives the modelled profile."""

    DEVICE = "device"
    RUNTIME = "runtime"
    CPU_UTIL = "cpu_util"
    HOST_MEMORY = "host_memory"


class NeuronConfig(_ExperimentalConfig):
    """The options of a profile, of which profile_output_dir has an effect."""

    def __init__(
        self,
        modes: Sequence[ProfileMode] = (ProfileMode.DEVICE, ProfileMode.RUNTIME),
        profile_output_dir: str | os.PathLike = "output",
        **_: Any,
    ):
        super().__init__()
        self.modes, self.profile_output_dir = list(modes), os.fspath(profile_output_dir)


class NeuronProfiler:
    """Notes the kernels that are called from now on; `export_trace` writes their profiles."""

    def __init__(self, config: NeuronConfig):
        self.folder = config.profile_output_dir
        self.kernels = profile(output_dir=self.folder)
        self.kernels.start()

    def export_trace(self, trace: torch.profiler.profile) -> None:
        """Write the framework's trace, and profiles of kernels called since the last one."""
        os.makedirs(self.folder, exist_ok=True)
        trace.export_chrome_trace(os.path.join(self.folder, "framework_trace.json"))
        self.kernels.stop()
        self.kernels = profile(output_dir=self.folder)
        self.kernels.start()
