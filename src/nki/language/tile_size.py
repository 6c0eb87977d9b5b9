"""`nl.tile_size`: sizes of the hardware a kernel tiles for (spec/language.md 8)."""

from __future__ import annotations

import sys
import warnings

from ..ir.context import current_machine, running
from ..machine.machine import Machine
from ..options import from_environment
from .nki_object import NKIObject


class _TileSize(NKIObject):
    """Sizes of the platform of the running call; outside a kernel, of the one a call would choose."""

    pmax = Machine.partitions
    psum_bank_fmax = Machine.psum_bank_bytes // 4  # float32 elements
    psum_bank_fmax_bytes = Machine.psum_bank_bytes
    gemm_stationary_fmax = Machine.matmul_stationary_max
    gemm_moving_fmax = Machine.gemm_moving_fmax
    bn_stats_fmax = Machine.bn_stats_max
    psum_min_align = Machine.psum_min_align
    sbuf_min_align = Machine.sbuf_min_align

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks a kernel may use."""
        core = running()
        options = from_environment() if core is None else core.execution.options
        machine = current_machine()
        return machine.psum_banks_pe_dma_transpose if options.reserve_psum_bank else machine.psum_banks

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF, all partitions together."""
        machine = current_machine()
        return machine.sbuf_bytes * machine.partitions

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of SBUF a kernel may use in each partition."""
        return current_machine().sbuf_usable_bytes

    @property
    def sbuf_fmax(self) -> int:
        """float32 elements of SBUF a kernel may use in each partition."""
        return self.sbuf_fmax_bytes // 4

    @property
    def psum_fmax(self) -> int:
        """Old name of `psum_bank_fmax`."""
        _deprecated("psum_fmax", "psum_bank_fmax")
        return self.psum_bank_fmax

    @property
    def total_available_sbuf_size(self) -> int:
        """Old name of `sbuf_fmax_bytes`."""
        _deprecated("total_available_sbuf_size", "sbuf_fmax_bytes")
        return self.sbuf_fmax_bytes

    def __repr__(self) -> str:
        return f"nl.tile_size of {current_machine().name}"


def _deprecated(name: str, instead: str) -> None:
    core, user = running(), sys._getframe(2)
    if core is not None and core.execution.diagnostics.is_repeat((name, id(user.f_code), user.f_lineno)):
        return  # kernels read sizes in their inner loops
    warnings.warn(
        f"nl.tile_size.{name} is deprecated, use nl.tile_size.{instead}",
        PendingDeprecationWarning,
        stacklevel=3,
    )


tile_size = _TileSize()
