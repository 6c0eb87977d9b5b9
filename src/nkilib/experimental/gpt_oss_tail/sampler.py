"""The next token of each row: one of its candidates, by temperature, top-k and top-p."""

from __future__ import annotations

import numpy as np

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import kernel_assert
from nkilib.core.utils.tile_io import load
from nkilib.core.utils.tiles import like, new_column
from nkilib.core.utils.types import Tensor

TOP_K, TOP_P, TEMPERATURE, UNIFORM = 0, 1, 2, 3  # columns of the parameters


def check_parameters(params: Tensor, rows: int) -> None:
    """The parameters are [rows, 3], or [rows, 4] with random numbers."""
    shape = tuple(params.shape)
    kernel_assert(
        shape in ((rows, UNIFORM), (rows, UNIFORM + 1)),
        f"sampling_params: got shape {shape}, expected ({rows}, 3) or ({rows}, 4)",
    )
    kernel_assert(params.dtype == nl.float32, f"sampling_params: got dtype {params.dtype}, expected float32")


def sample(values: Tensor, tokens: Tensor, params: Tensor) -> Tensor:
    """One of tokens [n, k], whose logits [n, k] fall, by parameters [n, 3 or 4] in HBM: float32 [n, 1]."""
    given = load(params)
    column = nl.ndarray(values.shape, nl.float32, buffer=nl.sbuf)
    nisa.iota(column, [[1, values.shape[1]]], 0, 0)
    powers = candidate_weights(values, column, given)
    sums = running_sums(powers)
    total = sums[:, values.shape[1] - 1 :]
    kept = kept_sum(powers, sums, total, given[:, TOP_P : TOP_P + 1])
    threshold = new_column(values.shape[0])
    nisa.tensor_tensor(threshold, kept, uniform_numbers(given), nl.multiply)
    return token_at(tokens, column, sums, threshold)


def candidate_weights(values: Tensor, column: Tensor, given: Tensor) -> Tensor:
    """exp((logit - the largest) / temperature) of the first top_k candidates, 0 of the others."""
    count, k = values.shape
    inverse, shift, bound = new_column(count), new_column(count), new_column(count)
    nisa.reciprocal(inverse, given[:, TEMPERATURE : TEMPERATURE + 1])
    nisa.tensor_scalar(shift, values[:, 0:1], nl.multiply, -1.0, op1=nl.multiply, operand1=inverse)
    top_k = given[:, TOP_K : TOP_K + 1]
    nisa.tensor_scalar(bound, top_k, nl.less, 0.5, op1=nl.multiply, operand1=float(k))  # 0: all
    nisa.tensor_tensor(bound, bound, top_k, nl.add)
    powers, seen = like(values, nl.float32), like(values, nl.float32)
    nisa.activation(powers, nl.exp, values, bias=shift, scale=inverse)
    nisa.tensor_scalar(seen, column, nl.less, bound)
    nisa.tensor_tensor(powers, powers, seen, nl.multiply)
    return powers


def running_sums(powers: Tensor) -> Tensor:
    """The sum of each row up to every column."""
    ones, sums = like(powers), like(powers)
    nisa.memset(ones, 1.0)
    nisa.tensor_tensor_scan(sums, ones, powers, 0.0, nl.multiply, nl.add)
    return sums


def kept_sum(powers: Tensor, sums: Tensor, total: Tensor, top_p: Tensor) -> Tensor:
    """The sum of the candidates before which less than top_p of the total stands; the first is one."""
    count = powers.shape[0]
    limit, kept = new_column(count), new_column(count)
    nisa.tensor_tensor(limit, total, top_p, nl.multiply)
    before, inside = like(powers), like(powers)
    nisa.tensor_tensor(before, sums, powers, nl.subtract)
    nisa.tensor_scalar(inside, before, nl.less, limit)
    nisa.tensor_tensor(inside, inside, powers, nl.multiply)
    nisa.tensor_reduce(kept, nl.add, inside, 1)
    nisa.tensor_tensor(kept, kept, powers[:, 0:1], nl.maximum)
    return kept


def uniform_numbers(given: Tensor) -> Tensor:
    """Numbers from 0 to below 1, [n, 1]: those given, or VectorE's."""
    if given.shape[1] == UNIFORM + 1:
        return given[:, UNIFORM : UNIFORM + 1]
    count = given.shape[0]
    words = nl.ndarray((count, 1), nl.uint32, buffer=nl.sbuf)
    nisa.rng(words)
    nisa.tensor_scalar(words, words, nl.right_shift, 8)  # 24 bits, which float32 holds
    numbers = new_column(count)
    nisa.tensor_scalar(numbers, words, nl.multiply, 2.0**-24)
    return numbers


def token_at(tokens: Tensor, column: Tensor, sums: Tensor, threshold: Tensor) -> Tensor:
    """The token of the first column whose sum exceeds the threshold."""
    count = tokens.shape[0]
    passed, chosen, token = like(sums), new_column(count), new_column(count)
    nisa.tensor_scalar(passed, sums, nl.less_equal, threshold)
    nisa.tensor_reduce(chosen, nl.add, passed, 1)
    nisa.tensor_scalar(chosen, chosen, nl.minimum, float(tokens.shape[1] - 1))
    picked = like(sums)
    nisa.scalar_tensor_tensor(picked, column, nl.equal, chosen, nl.multiply, tokens)
    nisa.tensor_reduce(token, nl.add, picked, 1)
    return token


def sample_ref(values: np.ndarray, tokens: np.ndarray, params: np.ndarray) -> np.ndarray:
    """Return the tokens [n] that parameters with random numbers [n, 4] choose, in float64."""
    found = []
    for logits, names, (top_k, top_p, temperature, uniform) in zip(
        values.astype(np.float64), tokens, params.astype(np.float64), strict=True
    ):
        powers = np.exp((logits - logits[0]) / temperature)
        powers[int(top_k) if top_k >= 1 else len(powers) :] = 0
        sums = np.cumsum(powers)
        kept = powers[sums - powers < top_p * sums[-1]].sum()
        found.append(names[min(int((sums <= uniform * kept).sum()), len(names) - 1)])
    return np.array(found, np.int32)
