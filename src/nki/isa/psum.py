"""PSUM: the banks a matmul may write, and the sums it leaves there (spec/isa_tensor.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..ir.context import current, current_machine, warn
from ..ir.instruction import Instruction, MatmulInstruction
from ..ir.view import View
from ..machine import dtypes
from ..machine.dtypes import f32
from ..machine.machine import Machine
from . import rules


def check_bank(ins: Instruction, dst: View, machine: Machine) -> None:
    """Before trn3, TensorE writes one PSUM bank per instruction."""
    if machine.matmul_bank_limited and crosses_bank(dst, machine):
        raise rules.fail(
            ins,
            "psum-bank",
            f"dst crosses a PSUM bank boundary ({machine.psum_bank_bytes} bytes per partition)",
            ["dst"],
            "one instruction writes one bank; slice dst at multiples of 512 float32 columns",
        )


def crosses_bank(dst: View, machine: Machine) -> bool:
    """True when an access of PSUM touches more than one bank."""
    bank = machine.psum_bank_bytes
    width = dst.dtype.itemsize
    base = dst.storage.address[1] if dst.storage.address else 0
    first = base + dst.free_offset * width
    reach = sum((n - 1) * s for n, s in zip(dst.shape[1:], dst.strides[1:], strict=True))
    return first // bank != (first + (reach + 1) * width - 1) // bank


class AccumulatingMatmul(MatmulInstruction):
    """A product into PSUM. The option `accumulate` is True, False, or None: add to what matmuls wrote."""

    if TYPE_CHECKING:
        dst: View
        accumulate: bool | None

    def check_accumulate(self) -> None:
        """The option is a bool or None."""
        if self.accumulate is not None and not isinstance(self.accumulate, (bool, np.bool_, int)):
            raise rules.fail(
                self, "argument", f"accumulate must be True, False or None, got {self.accumulate!r}"
            )

    def adds_to_dst(self) -> bool:
        return self.accumulate is not False

    def starts_sum(self) -> bool:
        return self.accumulate is None

    def overwrites(self, written: np.ndarray | bool | None) -> bool:
        """Return True if nothing is added to what dst holds."""
        return written is False if self.accumulate is None else not self.accumulate

    @staticmethod
    def written_before() -> np.ndarray | bool | None:
        """Return which elements of dst matmuls wrote before this one; see `EngineState.matmul_written`."""
        return current().engine_state.matmul_written  # type: ignore[no-any-return]

    def accumulate_into(self, dst: np.ndarray, product: np.ndarray) -> None:
        """Overwrite dst or add to it, as `accumulate` and the earlier matmuls of the tile ask for."""
        written = self.written_before()
        if self.overwrites(written):
            dtypes.store(dst, product, self.dst.dtype)
            return
        old = f32(dst, self.dst.dtype)
        if self.accumulate:
            self._warn_uninitialised(written)
        elif written is not True:
            warn(
                "psum-mixed",
                f"{self.public}: part of dst was written by a matmul before, part was not",
                notes=[f"dst: {self.dst.describe()}"],
                help="hardware has one flag per instruction; split the matmul",
            )
            old = np.where(written, old, np.float32(0))  # type: ignore[arg-type]
        if old is dst and self.dst.dtype == "float32":
            np.add(dst, product, out=dst)
        else:
            dtypes.store(dst, old + product, self.dst.dtype)

    def _warn_uninitialised(self, written: np.ndarray | bool | None) -> None:
        machine = current_machine()
        if written is None:
            what = "a region that nothing has written"
        elif written is not True and machine.generation < 4:
            what = f"a region no matmul has written, which {machine.name} does not define"
        else:
            return
        warn(
            "psum-uninit",
            f"{self.public}: accumulate=True onto {what}",
            notes=[f"dst: {self.dst.describe()}"],
            help="let the first matmul of a group pass accumulate=False (or None)",
        )
