"""Findings about DMA: data that travels again, transfers too small, transfers that wait to be started."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...storage import SBUF, Storage
from ..operations import Operation
from ..transfer import Transfer
from .study import Study


class Loads:
    """How an HBM tensor comes to the SBUF of the cores."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.count = 0
        self.nbytes = 0
        self.again: dict[int, int] = {}  # a load -> the first one of the same bytes
        self.bytes_again = 0
        self.passed: list[int] = []  # bytes of the tensor that came between two loads of the same ones


def loads(study: Study) -> list[Loads]:
    """The loads of every HBM tensor. A region written in between is new data."""
    found: dict[int, Loads] = {}
    for core, planner in enumerate(study.timeline.planners):
        versions: Counter[int] = Counter()
        seen: dict[tuple, tuple[int, int]] = {}  # region -> (first load of it, bytes that had come by then)
        came: Counter[int] = Counter()
        moves = [op for op in planner.operations if op.kind == "dma"]
        for op in sorted(moves, key=lambda op: op.position):
            reads, writes = planner.accesses[op.position]
            for view in writes:
                if not view.on_chip:
                    versions[id(view.storage)] += 1
            if len(reads) != 1 or reads[0].on_chip or reads[0].indirection or writes[0].buffer is not SBUF:
                continue
            source, number, key = reads[0], study.replay.first[core] + op.index, id(reads[0].storage)
            tensor = found.setdefault(key, Loads(source.storage))
            region = (key, versions[key], source.offset, tuple(source.shape), source.strides)
            tensor.count += 1
            tensor.nbytes += source.nbytes
            first, before = seen.get(region, (number, came[key]))
            if first != number:
                tensor.again[number] = first
                tensor.bytes_again += source.nbytes
                tensor.passed.append(came[key] - before)
            seen[region] = (first, came[key])
            came[key] += source.nbytes
    return list(found.values())


def as_large(op: Operation, transfer: Transfer, machine: Any, shared: float) -> Transfer:
    """A transfer as its part of one that moves `dma_efficient_bytes` in every partition."""
    size = machine.dma_efficient_bytes
    part = transfer.nbytes / (size * machine.partitions)
    each = machine.dma_descriptor_ns + size / machine.dma_bytes_per_ns
    payload = part * machine.dma_partitions_per_engine * each
    if payload * machine.dma_engines > transfer.packet_ns:
        payload = transfer.packet_ns / machine.dma_engines
    return Transfer(
        transfer.mode,
        shared * transfer.issue_ns,
        transfer.dispatch_ns,
        transfer.notify_ns,
        tuple((engine, payload) for engine in range(machine.dma_engines)),
        transfer.nbytes,
        transfer.descriptors,
    )
