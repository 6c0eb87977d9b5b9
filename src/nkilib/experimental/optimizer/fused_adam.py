"""One step of Adam or AdamW over a whole tensor.

    g' = g + wd * p              Adam: wd_factor is the weight decay;  p0 = p
    p0 = p * wd_factor           AdamW: wd_factor is 1 - lr * weight_decay;  g' = g
    m' = beta1 * m + (1 - beta1) * g'
    v' = beta2 * v + (1 - beta2) * g'^2
    V  = max(vmax, v') with amsgrad, else v'
    p' = p0 - step_size * m' / (sqrt(V) * inv_bc2_sqrt + eps)

Tensors are float32, bfloat16 or float16 of any shape; `numel` is their number of elements. Step t has
step_size = lr / (1 - beta1^t) and inv_bc2_sqrt = 1 / sqrt(1 - beta2^t); these and wd_factor are [128, 1] with
the same value in each row. Arithmetic is float32; every output is a new tensor in the dtype of its input.
max_exp_avg_sq_ptr is read with amsgrad only.

>>> p, g, m, v = np.ones(3, np.float32), np.full(3, 0.5, np.float32), *np.zeros((2, 3), np.float32)
>>> step_size, inv_bc2_sqrt, wd_factor = (
...     np.full((128, 1), x, np.float32) for x in (0.1 / (1 - 0.9), 1 / (1 - 0.999) ** 0.5, 1 - 0.1 * 0.01)
... )
>>> p, m, v = adamw_kernel(p, g, m, v, None, step_size, inv_bc2_sqrt, wd_factor, p.size, 0.9, 0.999, 1e-8)
>>> p.round(4)
array([0.899, 0.899, 0.899], dtype=float32)
"""

from __future__ import annotations

import functools

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_helpers import kernel_assert
from nkilib.core.utils.types import Tensor
from nkilib.experimental.foreach.flat_tiles import (
    FlatTile,
    check_data,
    check_scalar,
    flat_tiles,
    load_scalar,
)

TILE_COLUMNS = 1536  # small, so that the engines always have another tile to work on
# ScalarE's sqrt is not specified below this. Its root, 2^-58, is negligible compared to eps and to any v
# that matters; with eps = 0 it makes 0 / 0 a step of 0.
SMALLEST_ROOT_INPUT = 2.0**-116


@nki.jit
def adam_kernel(
    param_ptr: Tensor,
    grad_ptr: Tensor,
    exp_avg_ptr: Tensor,
    exp_avg_sq_ptr: Tensor,
    max_exp_avg_sq_ptr: Tensor,
    step_size_ptr: Tensor,
    inv_bc2_sqrt_ptr: Tensor,
    wd_factor_ptr: Tensor,
    numel: int,
    beta1: float,
    beta2: float,
    eps: float,
    amsgrad: bool = False,
) -> Tensor:
    """Adam, weight decay added to the gradient: (param, exp_avg, exp_avg_sq[, max_exp_avg_sq])."""
    state = (param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, max_exp_avg_sq_ptr)
    scalars = (step_size_ptr, inv_bc2_sqrt_ptr, wd_factor_ptr)
    return adam_step(state, scalars, numel, beta1, beta2, eps, amsgrad, False)


@nki.jit
def adamw_kernel(
    param_ptr: Tensor,
    grad_ptr: Tensor,
    exp_avg_ptr: Tensor,
    exp_avg_sq_ptr: Tensor,
    max_exp_avg_sq_ptr: Tensor,
    step_size_ptr: Tensor,
    inv_bc2_sqrt_ptr: Tensor,
    wd_factor_ptr: Tensor,
    numel: int,
    beta1: float,
    beta2: float,
    eps: float,
    amsgrad: bool = False,
) -> Tensor:
    """AdamW, weight decay apart from the gradient: (param, exp_avg, exp_avg_sq[, max_exp_avg_sq])."""
    state = (param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, max_exp_avg_sq_ptr)
    scalars = (step_size_ptr, inv_bc2_sqrt_ptr, wd_factor_ptr)
    return adam_step(state, scalars, numel, beta1, beta2, eps, amsgrad, True)


# ---- one step over all tiles ----------------------------------------------------------------------

STATE_NAMES = ("param_ptr", "grad_ptr", "exp_avg_ptr", "exp_avg_sq_ptr", "max_exp_avg_sq_ptr")
SCALAR_NAMES = ("step_size_ptr", "inv_bc2_sqrt_ptr", "wd_factor_ptr")


class Rates(nl.NKIObject):
    """Values that all tiles share; tensors are [128, 1] in SBUF."""

    def __init__(
        self, beta1: float, beta2: float, eps: float, step_size: Tensor, variance_scale: Tensor, decay: Tensor
    ):
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.step_size = step_size
        self.variance_scale = variance_scale  # inv_bc2_sqrt^2: it is applied below the root
        self.decay = decay


def adam_step(
    state: tuple,
    scalars: tuple,
    numel: int,
    beta1: float,
    beta2: float,
    eps: float,
    amsgrad: bool,
    decoupled: bool,
) -> tuple:
    """Run one step of either kernel; AdamW has `decoupled` weight decay."""
    used = state if amsgrad else state[0:4]
    check_arguments(used, scalars, numel, beta1, beta2, eps)
    outputs = []
    for i in range(len(used)):
        if STATE_NAMES[i] != "grad_ptr":
            outputs.append(nl.ndarray(used[i].shape, used[i].dtype, buffer=nl.shared_hbm))
    rates = load_rates(scalars, beta1, beta2, eps)
    for tile in flat_tiles(numel, TILE_COLUMNS):
        update_tile(used, outputs, tile, rates, decoupled)
    return tuple(outputs)


def check_arguments(state: tuple, scalars: tuple, numel: int, beta1: float, beta2: float, eps: float) -> None:
    for i in range(len(state)):
        kernel_assert(state[i] is not None, f"{STATE_NAMES[i]}: got None, expected a tensor")
        check_data(state[i], state[0], numel, STATE_NAMES[i])
    for i in range(len(scalars)):
        check_scalar(scalars[i], SCALAR_NAMES[i])
    kernel_assert(0 <= beta1 < 1, f"beta1: got {beta1}, allowed is 0 <= beta1 < 1")
    kernel_assert(0 <= beta2 < 1, f"beta2: got {beta2}, allowed is 0 <= beta2 < 1")
    kernel_assert(eps >= 0, f"eps: got {eps}, allowed is eps >= 0")


def load_rates(scalars: tuple, beta1: float, beta2: float, eps: float) -> Rates:
    variance_scale = load_scalar(scalars[1])
    nisa.tensor_tensor(variance_scale, variance_scale, variance_scale, op=nl.multiply)
    return Rates(beta1, beta2, eps, load_scalar(scalars[0]), variance_scale, load_scalar(scalars[2]))


def update_tile(state: tuple, outputs: list, tile: FlatTile, rates: Rates, decoupled: bool) -> None:
    param, grad = tile.load(state[0]), tile.load(state[1])
    if not decoupled:
        grad = decayed_gradient(tile, grad, param, rates)
    exp_avg = first_moment(tile, grad, tile.load(state[2]), rates)
    store_as(outputs[1], tile, exp_avg, nisa.engine.scalar)
    exp_avg_sq = second_moment(tile, grad, tile.load(state[3]), rates)
    store_as(outputs[2], tile, exp_avg_sq, nisa.engine.gpsimd)
    if len(state) > 4:
        largest = tile.new(nl.float32)
        nisa.tensor_tensor(largest, tile.load(state[4]), exp_avg_sq, op=nl.maximum)
        store_as(outputs[3], tile, largest, nisa.engine.scalar)
        exp_avg_sq = largest
    change = step_of(tile, exp_avg, exp_avg_sq, rates)
    apply_step(tile, param, change, rates, decoupled)
    tile.store(outputs[0], param)


# ---- the terms of one tile, divided so that no engine takes longer than the transfers --------------


def decayed_gradient(tile: FlatTile, grad: Tensor, param: Tensor, rates: Rates) -> Tensor:
    """Return g + wd * p, on ScalarE and GpSimdE."""
    decayed = tile.new(nl.float32)
    nisa.activation(decayed, op=nl.copy, data=param, scale=rates.decay[0 : tile.partitions])
    nisa.tensor_tensor(decayed, grad, decayed, op=nl.add, engine=nisa.engine.gpsimd)
    return decayed


def first_moment(tile: FlatTile, grad: Tensor, exp_avg: Tensor, rates: Rates) -> Tensor:
    """Return beta1 * m + (1 - beta1) * g, on ScalarE and VectorE."""
    moment = tile.new(nl.float32)
    nisa.activation(moment, op=nl.copy, data=grad, scale=1 - rates.beta1)
    decay_and_add(moment, exp_avg, rates.beta1)
    return moment


def second_moment(tile: FlatTile, grad: Tensor, exp_avg_sq: Tensor, rates: Rates) -> Tensor:
    """Return beta2 * v + (1 - beta2) * g^2, on ScalarE and VectorE."""
    moment = tile.new(nl.float32)
    nisa.activation(moment, op=nl.square, data=grad, scale=(1 - rates.beta2) ** 0.5)
    decay_and_add(moment, exp_avg_sq, rates.beta2)
    return moment


def decay_and_add(dst: Tensor, data: Tensor, beta: float) -> None:
    """dst += beta * data."""
    nisa.scalar_tensor_tensor(dst, data=data, op0=nl.multiply, operand0=beta, op1=nl.add, operand1=dst)


def step_of(tile: FlatTile, exp_avg: Tensor, variance: Tensor, rates: Rates) -> Tensor:
    """Return step_size * m / (sqrt(V) * inv_bc2_sqrt + eps), on ScalarE, GpSimdE and VectorE."""
    step = tile.new(nl.float32)
    scale, step_size = rates.variance_scale[0 : tile.partitions], rates.step_size[0 : tile.partitions]
    nisa.activation(step, op=nl.sqrt, data=variance, scale=scale, bias=SMALLEST_ROOT_INPUT)
    # the divisor is positive: power is as accurate as VectorE's reciprocal and leaves VectorE free
    nisa.tensor_scalar(step, step, op0=nl.add, operand0=rates.eps, op1=nl.power, operand1=-1.0)
    nisa.scalar_tensor_tensor(
        step, data=exp_avg, op0=nl.multiply, operand0=step_size, op1=nl.multiply, operand1=step
    )
    return step


def apply_step(tile: FlatTile, param: Tensor, step: Tensor, rates: Rates, decoupled: bool) -> None:
    """param -= step, after the weight decay of AdamW."""
    if not decoupled:
        nisa.tensor_tensor(param, param, step, op=nl.subtract)
        return
    decay = rates.decay[0 : tile.partitions]
    nisa.scalar_tensor_tensor(
        param, data=param, op0=nl.multiply, operand0=decay, op1=nl.subtract, operand1=step
    )


def store_as(tensor: Tensor, tile: FlatTile, values: Tensor, engine: nisa.engine) -> None:
    """Write float32 values in the dtype of the tensor; `engine` casts where needed."""
    if tensor.dtype != nl.float32:
        cast = tile.new(tensor.dtype)
        nisa.tensor_copy(cast, values, engine=engine)
        values = cast
    tile.store(tensor, values)


# ---- reference in float64 --------------------------------------------------------------------------


def adam_kernel_ref(
    param_ptr: np.ndarray,
    grad_ptr: np.ndarray,
    exp_avg_ptr: np.ndarray,
    exp_avg_sq_ptr: np.ndarray,
    max_exp_avg_sq_ptr: np.ndarray | None,
    step_size_ptr: np.ndarray,
    inv_bc2_sqrt_ptr: np.ndarray,
    wd_factor_ptr: np.ndarray,
    numel: int,
    beta1: float,
    beta2: float,
    eps: float,
    amsgrad: bool = False,
    decoupled: bool = False,
) -> tuple[np.ndarray, ...]:
    """Compute adam_kernel, or adamw_kernel with `decoupled` weight decay."""
    p, g, m, v = (
        np.asarray(t).astype(np.float64) for t in (param_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr)
    )
    step_size, inv_bc2_sqrt, wd_factor = (
        float(np.asarray(s)[0, 0]) for s in (step_size_ptr, inv_bc2_sqrt_ptr, wd_factor_ptr)
    )
    if decoupled:
        p = p * wd_factor
    else:
        g = g + wd_factor * p
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (g * g - v)
    inputs, results = [param_ptr, exp_avg_ptr, exp_avg_sq_ptr], [p, m, v]
    if amsgrad and max_exp_avg_sq_ptr is not None:
        v = np.maximum(np.asarray(max_exp_avg_sq_ptr).astype(np.float64), v)
        inputs, results = inputs + [max_exp_avg_sq_ptr], results + [v]
    results[0] = p - step_size * m / (np.sqrt(v) * inv_bc2_sqrt + eps)
    return tuple(r.astype(t.dtype) for r, t in zip(results, inputs, strict=True))


adamw_kernel_ref = functools.partial(adam_kernel_ref, decoupled=True)
