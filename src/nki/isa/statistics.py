"""Means and variances: bn_stats and bn_aggr (spec/isa_vector.md)."""

from __future__ import annotations

import numpy as np

from ..ir.instruction import In, Out
from ..machine.dtypes import f32, store
from ..machine.machine import Machine
from . import rules
from .costs import VectorInstruction
from .numerics import flat
from .public import public


class BnStats(VectorInstruction):
    """dst = count, mean and variance * count of the even elements of each partition, then of the odd ones."""

    public = "bn_stats"
    rate = "vector_bn_stats"
    cost_formula = "max(64, N)"

    dst: Out
    data: In

    def check(self, machine: Machine) -> None:
        rules.castable(self, "dst", "data")
        rules.at_most(
            self,
            "data",
            self.data.free_elements,
            machine.bn_stats_max,
            "elements per partition",
            "take pieces of nl.tile_size.bn_stats_fmax and combine them with nisa.bn_aggr",
        )
        _check_statistics(self, 6, " (count, mean, M2 of even and odd elements)")

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        x = flat(f32(data, self.data.dtype))
        result = np.zeros_like(x, shape=(len(x), 6))
        for half in (0, 1):
            values = x[:, half::2]
            if values.shape[1]:
                mean = values.mean(axis=1, keepdims=True, dtype=np.float32)
                result[:, 3 * half] = values.shape[1]
                result[:, 3 * half + 1] = mean[:, 0]
                result[:, 3 * half + 2] = np.square(values - mean).sum(axis=1)
        store(dst, result.reshape(dst.shape), self.dst.dtype)


class BnAggr(VectorInstruction):
    """dst = mean and population variance of what the (count, mean, M2) triples in data describe."""

    public = "bn_aggr"
    rate = "vector_bn_aggr"
    cost_formula = "max(64, 13 N/3)"

    dst: Out
    data: In

    def check(self, machine: Machine) -> None:
        rules.castable(self, "dst", "data")
        if self.data.free_elements % 3:
            raise rules.fail(
                self,
                "shape",
                f"data has {self.data.free_elements} elements per partition, not a multiple of 3",
                ["data"],
                "bn_stats writes two (count, mean, M2) triples per call",
            )
        _check_statistics(self, 2, " (mean, variance)")

    def compute(self, dst: np.ndarray, data: np.ndarray) -> None:
        triples = f32(data, self.data.dtype).reshape(len(data), -1, 3)
        count, mean, m2 = triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]
        total = count.sum(axis=1, keepdims=True)
        overall = (count * mean).sum(axis=1, keepdims=True) / total
        spread = (m2 + count * np.square(mean - overall)).sum(axis=1, keepdims=True)
        result = np.concatenate([overall, spread / total], axis=1)
        store(dst, result.reshape(dst.shape), self.dst.dtype)


def _check_statistics(ins: BnStats | BnAggr, count: int, what: str) -> None:
    if ins.dst.shape[0] != ins.data.shape[0]:
        raise rules.fail(
            ins,
            "shape",
            f"dst has {ins.dst.shape[0]} partitions, data has {ins.data.shape[0]}",
            ["dst", "data"],
        )
    rules.elements(ins, "dst", count, what)


bn_stats = public(BnStats)
bn_aggr = public(BnAggr)
