"""PSUM banks: what a matmul may write at once (spec/isa_tensor.md)."""

from __future__ import annotations

from typing import Any

from ..ir.view import View
from ..machine.machine import Machine
from . import rules


def check_bank(ins: Any, machine: Machine) -> None:
    """Before trn3, TensorE writes one PSUM bank per instruction."""
    if machine.matmul_bank_limited and crosses_bank(ins.dst, machine):
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
