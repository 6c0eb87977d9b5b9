"""The selection of NOAUX_TC: sigmoid scores, a bias that only selects, experts of the best groups alone.

The rule is that of DeepSeek-V3 (technical report arXiv:2412.19437, section 2.1.2, and `topk_method: noaux_tc`
of its configuration), which the documentation of flashinfer.fused_moe.fused_topk_deepseek gives step by step:

    score  = sigmoid(logits)
    choice = score + bias                                  e_score_correction_bias
    group  = sum of its two largest choices; the topk_group largest groups stay
    top k  = largest choices in these groups; they weigh score / (sum of their scores) * routed_scaling_factor
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.tiles import new_column
from nkilib.core.utils.types import Tensor

from ..utils.kernel_assert import kernel_assert

MAX8 = 8  # what max8 finds, and the fewest columns it takes
LOWEST = -3.0e38  # the choice of an expert that is left out
MARK = 3.0e38  # in place of what was chosen
SMALLEST_SUM = 1.0e-20


class NoAux(nl.NKIObject):
    """The groups of experts and what their affinities are multiplied by; `bias` [128, E] float32 in SBUF."""

    def __init__(self, groups: int, selected_groups: int, factor: float):
        self.groups = groups
        self.selected_groups = selected_groups
        self.factor = factor
        self.bias: Any = None


def check_noaux(rule: NoAux, experts: int, k: int, w_bias: Tensor) -> None:
    kernel_assert(w_bias is not None, "w_bias: got None, NOAUX_TC needs the e_score_correction_bias")
    groups, selected = rule.groups, rule.selected_groups
    kernel_assert(
        groups >= 1 and experts % groups == 0,
        f"n_group: got {groups}, allowed are divisors of {experts}, the number of experts",
    )
    kernel_assert(
        groups == 1 or experts // groups >= 2,
        f"n_group: got {groups} of {experts} experts, allowed are groups of at least 2",
    )
    most = min(MAX8, groups)
    kernel_assert(1 <= selected <= most, f"topk_group: got {selected}, allowed are 1 to {most}")
    kernel_assert(
        k <= selected * (experts // groups),
        f"k: got {k}, allowed are at most {selected * (experts // groups)}, the experts of {selected} groups",
    )


def choices(rule: NoAux, scores: Tensor) -> Tensor:
    """What the top k are taken of, [tokens, at least 8]: score + bias; LOWEST in groups that are left out."""
    count, experts = scores.shape
    size = experts // rule.groups
    width = max(MAX8, size)
    by_group = nl.ndarray((count, rule.groups, width), nl.float32, buffer=nl.sbuf)
    if size < width:
        nisa.memset(by_group, LOWEST)
    nisa.tensor_tensor(
        by_group[:, :, 0:size],
        scores.reshape_dim(1, (rule.groups, size)),
        rule.bias[0:count].reshape_dim(1, (rule.groups, size)),
        nl.add,
    )
    if rule.selected_groups < rule.groups:
        penalty = group_penalties(rule, by_group)
        wide = penalty[:, 0 : rule.groups].expand_dim(2).broadcast(2, width)
        nisa.tensor_tensor(by_group, by_group, wide, nl.add)
    choice = nl.ndarray((count, max(MAX8, experts)), nl.float32, buffer=nl.sbuf)
    if experts < MAX8:
        nisa.memset(choice, LOWEST)
    nisa.tensor_copy(choice[:, 0:experts].reshape_dim(1, (rule.groups, size)), by_group[:, :, 0:size])
    return choice


def group_penalties(rule: NoAux, by_group: Tensor) -> Tensor:
    """0 for the best groups, LOWEST for the others; of equal groups the first stay."""
    count, groups = by_group.shape[0], rule.groups
    best = nl.ndarray((count, groups, MAX8), nl.float32, buffer=nl.sbuf)
    totals = nl.ndarray((count, max(MAX8, groups)), nl.float32, buffer=nl.sbuf)
    if groups < MAX8:
        nisa.memset(totals, LOWEST)
    for group in range(groups):
        nisa.max8(best[:, group, :], by_group[:, group, :])
    nisa.tensor_reduce(totals[:, 0:groups], nl.add, best[:, :, 0:2], 2)
    nisa.max8(best[:, 0, :], totals)
    marked = mark_first(totals, best[:, 0, :], rule.selected_groups)
    penalty = nl.ndarray(marked.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(penalty, marked, nl.not_equal, MARK, op1=nl.multiply, operand1=LOWEST)
    return penalty


def mark_first(values: Tensor, best: Tensor, k: int) -> Tensor:
    """values with MARK in the places of the first k of `best`, which is overwritten behind them."""
    marked = nl.ndarray(values.shape, nl.float32, buffer=nl.sbuf)
    if k < MAX8:
        nisa.memset(best[:, k:MAX8], MARK)  # matches nothing
    nisa.nc_match_replace8(marked, values, best, MARK)
    return marked


class NoAuxAffinities(nl.NKIObject):
    """Of all experts, 0 where not chosen, and, if wanted, of the top k in order."""

    def __init__(self, rule: NoAux, scores: Tensor, choice: Tensor, best: Tensor, k: int, normalize: bool):
        count, experts = scores.shape
        marked = mark_first(choice, best, k)
        self.all = nl.ndarray((count, experts), nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(self.all, marked[:, 0:experts], nl.equal, MARK, nl.multiply, scores)
        self.factor = None
        if normalize:
            total = new_column(count)
            self.factor = new_column(count)
            nisa.tensor_reduce(total, nl.add, self.all, 1)
            nisa.tensor_scalar(total, total, nl.add, SMALLEST_SUM)
            nisa.reciprocal(self.factor, total)
        scale = 1.0 if self.factor is None else self.factor
        nisa.tensor_scalar(self.all, self.all, nl.multiply, scale, op1=nl.multiply, operand1=rule.factor)

    def of_top(self, places: Tensor, k: int) -> Tensor:
        """[tokens, k]: the affinity in each of the places, found by comparing them with a row of numbers."""
        count, experts = self.all.shape
        numbers = nl.ndarray((count, experts), nl.float32, buffer=nl.sbuf)
        nisa.iota(numbers, [[1, experts]])
        wanted = nl.ndarray((count, k), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(wanted, places[:, 0:k])
        top = nl.ndarray((count, k), nl.float32, buffer=nl.sbuf)
        for rank in range(k):
            picked = nl.ndarray((count, experts), nl.float32, buffer=nl.sbuf)
            place = wanted[:, rank : rank + 1]
            nisa.scalar_tensor_tensor(picked, numbers, nl.equal, place, nl.multiply, self.all)
            nisa.tensor_reduce(top[:, rank : rank + 1], nl.add, picked, 1)
        return top


def select(rule: NoAux, logits: Tensor, k: int, normalize: bool) -> tuple:
    """Return (affinities, places uint32 [tokens, 8] of the best experts) of logits [tokens, E]."""
    count = logits.shape[0]
    scores = nl.ndarray(logits.shape, nl.float32, buffer=nl.sbuf)
    nisa.activation(scores, nl.sigmoid, logits)
    choice = choices(rule, scores)
    best = nl.ndarray((count, MAX8), nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((count, MAX8), nl.uint32, buffer=nl.sbuf)
    nisa.max8(best, choice)
    nisa.nc_find_index8(places, choice, best)
    return NoAuxAffinities(rule, scores, choice, best, k, normalize), places


def noaux_tc_ref(
    logits: np.ndarray,
    bias: Any,
    k: int,
    n_group: int = 1,
    topk_group: int = 1,
    routed_scaling_factor: float = 1.0,
    normalize: bool = False,
):
    """(index, affinities) of logits [T, E] in float64: sorts, group by group."""
    scores = 1.0 / (1.0 + np.exp(-np.asarray(logits, np.float64)))
    choice = scores + np.reshape(bias, (1, -1)).astype(np.float64)
    groups = choice.reshape(len(choice), n_group, -1)
    totals = -np.sort(-groups, axis=2)[:, :, :2].sum(axis=2)
    selected = np.argsort(-totals, axis=1, kind="stable")[:, :topk_group]
    limited = np.full(groups.shape, -np.inf)
    for token, groups_of_token in enumerate(selected):
        limited[token, groups_of_token] = groups[token, groups_of_token]
    index = np.argsort(-limited.reshape(choice.shape), axis=1, kind="stable")[:, :k]
    top = np.take_along_axis(scores, index, axis=1)
    if normalize:
        top = top / top.sum(axis=1, keepdims=True)
    affinities = np.zeros(scores.shape)
    np.put_along_axis(affinities, index, top * routed_scaling_factor, axis=1)
    return index, affinities
