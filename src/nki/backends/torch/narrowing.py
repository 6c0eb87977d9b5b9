"""Products that are rounded and stored, and not used otherwise: computed at their destination.

A product of bfloat16 factors is summed in float32 and rounded once. cuBLAS does both, where the product is
one matrix in HBM; else a step would read all of the float32 sums again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...ir.semantics import Move
from ...machine.dtypes import bfloat16
from ...machine.machine import Machine
from ..fused.products import Factor, Gemm, matrix_of
from ..fused.tracking import Node
from ..fused.values import SSAValue


def narrowed(gemm: Gemm, inside: Collection[Node], machine: Machine) -> tuple[Gemm, list[Node]]:
    """Return a product that is rounded to bfloat16 in HBM, and the instructions which that replaces.

    `inside` are the nodes of the window. Returns the product itself where it does not apply.
    """
    if gemm.result is None or gemm.copies or not (_is_narrow(gemm.left) and _is_narrow(gemm.right)):
        return gemm, []
    blocks, readers = [], []
    for node in gemm.nodes:
        value: SSAValue = node.outputs[0][1]
        stored = [reader for reader in value.readers if _is_rounding(reader, value, machine)]
        if len(value.readers) != 1 or not stored or stored[0] not in inside:
            return gemm, []
        assert value.in_product is not None
        _, first, pitch = value.in_product
        height = value.view.shape[0]
        place = (*divmod(first, pitch), height, value.size // height)
        blocks.append((stored[0].outputs[0][1].stored_at, *place))
        readers += stored
    target = matrix_of(blocks, gemm.left.columns, gemm.right.columns)
    if target is None:
        return gemm, []
    return gemm._replace(target=target, result=None), readers


def _is_narrow(factor: Factor) -> bool:
    parts = [tile.elements for tile in factor.tiles] if factor.view is None else [factor.view]
    return all(part.dtype is bfloat16 for part in parts)


def _is_rounding(node: Node, value: SSAValue, machine: Machine) -> bool:
    """Return whether a node stores all of a value in HBM as bfloat16, and does nothing else."""
    if node.kind != "compute" or len(node.outputs) != 1 or len(node.reads) != 1:
        return False
    meaning: Any = node.instruction.meaning(machine)
    ((_, out, before),), ((_, source),) = node.outputs, node.reads
    return (
        meaning.__class__ is Move
        and meaning.order is None
        and before is None
        and source == value.whole()
        and out.__class__ is SSAValue
        and out.dtype is bfloat16
        and out.stored_at is not None  # then nothing else reads it
    )
