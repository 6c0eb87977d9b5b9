"""The backward pass of blockwise experts."""

from __future__ import annotations

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.moe.moe_cte.moe_cte_utils import SkipMode
from nkilib.core.moe.moe_cte.moe_ref import activation_ref, sigmoid
from nkilib.core.moe.moe_cte.routing import ExpertRouting, Repeats, RoutingSource, TokenUnit
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import (
    assert_members,
    assert_tensors,
    kernel_assert,
    refuse_without_effect,
    warn_without_effect,
)
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import DTypeLike, Tensor
from nkilib.experimental.clamp_limits import ClampBounds, ClampLimits, gate_bounds, up_bounds
from nkilib.experimental.moe.bwd.gradients import Given, Gradients
from nkilib.experimental.moe.bwd.moe_bwd_parameters import (
    ACTIVATIONS,
    AffinityOption,
    BackwardParameters,
    KernelTypeOption,
    MOEBwdDroplessBlockingParams,
    ShardOption,
    block_count,
    check,
    expert_count,
    hidden_size,
    token_count,
    tokens_per_pass,
)
from nkilib.experimental.moe.bwd.stages import BlockRows, first_half, second_half, weight_grads

SHARD_OPTIONS = ("AUTO", "SHARD_ON_HIDDEN", "SHARD_ON_INTERMEDIATE", "SHARD_ON_FREE", "SHARD_ON_BLOCK")


@nki.jit
def blockwise_mm_bwd(
    hidden_states: Tensor,
    expert_affinities_masked: Tensor,
    gate_up_proj_weight: Tensor,
    down_proj_weight: Tensor,
    gate_up_proj_act_checkpoint_T: Tensor,
    down_proj_act_checkpoint: Tensor | None,
    token_position_to_id: Tensor,
    block_to_expert: Tensor,
    output_hidden_states_grad: Tensor,
    block_size: int,
    skip_dma: SkipMode | None = None,
    compute_dtype: DTypeLike = nl.bfloat16,
    is_tensor_update_accumulating: bool = True,
    skip_grad_initialization: bool = False,
    shard_option: ShardOption = ShardOption.SHARD_ON_HIDDEN,
    affinity_option: AffinityOption = AffinityOption.AFFINITY_ON_H,
    kernel_type_option: KernelTypeOption = KernelTypeOption.DROPLESS,
    clamp_limits: ClampLimits | None = None,
    bias: bool = False,
    activation_type: ActFnType = ActFnType.SiLU,
    block_tile_size: int | None = None,
    blocking_params: MOEBwdDroplessBlockingParams | None = None,
    hidden_states_grad_out: Tensor | None = None,
    expert_affinities_masked_grad_out: Tensor | None = None,
    gate_up_proj_weight_grad_out: Tensor | None = None,
    down_proj_weight_grad_out: Tensor | None = None,
    accumulation_dtype: DTypeLike | None = None,
    skip_gate_proj: bool = False,
) -> tuple:
    """Gradients of blockwise experts: of tokens, affinities, both weights and, with `bias`, both biases.

    Of each block of `moe_cte`, with tokens t, expert e, w = affinity[t, e], g and u from the checkpoint
    [N, 2, I, B], a = act(g), m = a * u, dy = output_hidden_states_grad[t]:

        dWd[e] += (m w)^T dy          dm' = dy Wd[e]^T        dm = dm' w
        du = dm a                     dg = dm u act'(g)       # 0 where u or g reached a limit
        dWgu[e] += X^T [dg | du]      dX[t] += [dg | du] Wgu[e]^T
        dAff[t, e] += sum over H of dy * down checkpoint [N, B, H]     # AFFINITY_ON_I: over I of dm' m
        dbd[e] += sum over t of dy w  dbgu[e] += sum over t of [dg | du]

    Returns (dX, dAff, dWgu, dWd), with `bias` also (dbgu [E, 2, I], dbd [E, H]), each like what it is the
    gradient of. clamp_limits: linear ones of u, non-linear ones of g. skip_gate_proj: m = act(u), dg = 0, no
    limits. With AFFINITY_ON_I dAff lacks what a bias of down adds, which is not among the arguments. Ids,
    padding and dtypes are as in `moe_cte`: hidden [T + 1, H], with skip_dma.skip_token [T, H]. Positions of
    one block that name the same token have the same checkpoints.

    Without is_tensor_update_accumulating a token occurs in one block, whose dX is stored. The *_grad_out are
    written instead of new tensors; with skip_grad_initialization gradients are added to their contents
    (zeros, by the manual). With accumulation_dtype the sums over blocks use that dtype and are rounded at the
    end.

    Every shard_option gives the same result: two cores have half of H each, and exchange the one sum over H.
    block_tile_size and blocking_params are tile sizes of other implementations and change nothing.

    >>> rng = np.random.default_rng(0)
    >>> shapes = [(129, 256), (129 * 2, 1), (2, 256, 2, 32), (2, 32, 256), (1, 2, 32, 128), (1, 128, 256)]
    >>> tensors = [rng.standard_normal(shape, np.float32) / 8 for shape in shapes]
    >>> routing = np.arange(128, dtype=np.int32), np.array([[1]], np.int32)
    >>> grads = blockwise_mm_bwd(*tensors, *routing, tensors[0], 128, compute_dtype=nl.float32)
    >>> wanted = blockwise_mm_bwd_ref(*tensors, *routing, tensors[0], 128)
    >>> all(np.allclose(a, b, atol=1e-4) for a, b in zip(grads, wanted))
    True
    """
    assert_members(
        ("shard_option", shard_option, ShardOption),
        ("affinity_option", affinity_option, AffinityOption),
        ("kernel_type_option", kernel_type_option, KernelTypeOption),
        ("activation_type", activation_type, ActFnType),
    )
    check_choices(shard_option, affinity_option, kernel_type_option)
    assert_tensors(
        (
            ("hidden_states", hidden_states),
            ("expert_affinities_masked", expert_affinities_masked),
            ("gate_up_proj_weight", gate_up_proj_weight),
            ("down_proj_weight", down_proj_weight),
            ("gate_up_proj_act_checkpoint_T", gate_up_proj_act_checkpoint_T),
            ("token_position_to_id", token_position_to_id),
            ("block_to_expert", block_to_expert),
            ("output_hidden_states_grad", output_hidden_states_grad),
        )
    )
    p = BackwardParameters(
        hidden=hidden_states,
        affinities=expert_affinities_masked,
        gate_up=gate_up_proj_weight,
        down=down_proj_weight,
        gate_up_checkpoint=gate_up_proj_act_checkpoint_T,
        down_checkpoint=down_proj_act_checkpoint,
        position_to_id=token_position_to_id,
        block_to_expert=block_to_expert,
        out_grad=output_hidden_states_grad,
        block_size=block_size,
        skip_token=skip_dma is not None and skip_dma.skip_token,
        compute_dtype=compute_dtype,
        accumulating=is_tensor_update_accumulating,
        initialized=skip_grad_initialization,
        on_hidden=affinity_option.name == "AFFINITY_ON_H",
        limits=clamp_limits,
        bias=bias,
        act_fn=known_activation(activation_type),
        accumulation_dtype=accumulation_dtype,
        skip_gate=skip_gate_proj,
    )
    cores, core = get_verified_program_sharding_info("blockwise_mm_bwd", (0, 1), 2)[1:]
    check(p, cores)
    given = Given(
        hidden_states_grad_out,
        expert_affinities_masked_grad_out,
        gate_up_proj_weight_grad_out,
        down_proj_weight_grad_out,
    )
    check_effects(p, given)
    source = routing_source(p, cores)
    routing = ExpertRouting(source)
    repeats = Repeats(source)
    gradients = Gradients(p, given, cores, core)
    gradients.start(p)
    run_units(p, routing, repeats, gradients)
    gradients.finish(p)
    return gradients.results(p)


def check_effects(p: BackwardParameters, given: Given) -> None:
    """What would have no effect in this call is not given."""
    has_output = given.hidden is not None or given.affinities is not None
    has_output = has_output or given.gate_up is not None or given.down is not None
    asked = True if p.initialized else None
    warn_without_effect(has_output, "a *_grad_out", (("skip_grad_initialization", asked),))
    limited = gate_bounds(p.limits) + up_bounds(p.limits) != (None, None, None, None)
    refuse_without_effect(
        not p.skip_gate, "skip_gate_proj=False", (("clamp_limits", p.limits if limited else None),)
    )


def check_choices(
    shard_option: ShardOption, affinity_option: AffinityOption, kernel_type_option: KernelTypeOption
) -> None:
    """Check the options by name, so that another library's enumerations are accepted too."""
    kernel_assert(
        shard_option.name in SHARD_OPTIONS, f"shard_option: got {shard_option}, allowed are {SHARD_OPTIONS}"
    )
    kernel_assert(
        affinity_option.name in ("AFFINITY_ON_H", "AFFINITY_ON_I"),
        f"affinity_option: got {affinity_option}, allowed are AFFINITY_ON_H and AFFINITY_ON_I",
    )
    kernel_assert(
        kernel_type_option.name == "DROPLESS",
        f"kernel_type_option: got {kernel_type_option}, allowed is DROPLESS",
    )


def known_activation(activation_type: ActFnType) -> ActFnType:
    """Return the activation of this name, so that another library's enumeration is accepted too."""
    found = activation_type
    for known in ACTIVATIONS:
        if activation_type.name == known.name:
            found = known
    kernel_assert(found in ACTIVATIONS, f"activation_type: got {activation_type}, allowed are {ACTIVATIONS}")
    return found


def routing_source(p: BackwardParameters, cores: int) -> RoutingSource:
    return RoutingSource(
        p.position_to_id,
        p.block_to_expert,
        p.affinities,
        None,
        token_count(p),
        expert_count(p),
        p.block_size,
        tokens_per_pass(p, hidden_size(p) // cores),
        p.skip_token,
    )


def run_units(p: BackwardParameters, routing: ExpertRouting, repeats: Repeats, gradients: Gradients) -> None:
    """Run all units.

    The first half of a unit is issued before the second half of the previous one: TensorE works on it while
    the cores exchange the gradient of the middle.
    """
    units: list = []
    middles: list = []
    rows = BlockRows([], [], [], [], [])
    for position in range(block_count(p) * routing.passes + 1):
        if position < block_count(p) * routing.passes:
            unit = real_unit(routing, position // routing.passes, position % routing.passes)
            units.append(unit)
            middles.append(first_half(p, unit, gradients))
        done = position - 1
        if done >= 0:
            rows = BlockRows([], [], [], [], []) if done % routing.passes == 0 else rows
            second_half(p, units[done], middles[done], gradients, repeats, rows, done == 0)
            if position % routing.passes == 0:
                weight_grads(p, units[done].expert, rows, gradients, position == routing.passes)


def real_unit(routing: ExpertRouting, block: int, number: int) -> TokenUnit:
    """Return a unit in which the affinity of padding is 0."""
    unit = routing.unit(block, number)
    nisa.tensor_tensor(unit.affinity, unit.affinity, unit.is_real, op=nl.multiply)
    return unit


# ---- reference -----------------------------------------------------------------------------------


def slope_ref(act_fn: ActFnType, x: np.ndarray) -> np.ndarray:
    """Return the derivative of an activation function, by the formula or by a central difference."""
    if act_fn in (ActFnType.SiLU, ActFnType.Swish):
        z = 1.702 * x if act_fn == ActFnType.Swish else x
        return sigmoid(z) * (1.0 + z * (1.0 - sigmoid(z)))
    step = 1e-6
    return (activation_ref(act_fn, x + step) - activation_ref(act_fn, x - step)) / (2.0 * step)


def inside_ref(x: np.ndarray, bounds: ClampBounds) -> np.ndarray:
    """Return True where x is strictly inside its bounds, rounded to its dtype."""
    lower, upper = (None if bound is None else x.dtype.type(bound) for bound in bounds)
    return (x > (-np.inf if lower is None else lower)) & (x < (np.inf if upper is None else upper))


def blockwise_mm_bwd_ref(
    hidden: np.ndarray,
    affinities: np.ndarray,
    gate_up: np.ndarray,
    down: np.ndarray,
    gate_up_checkpoint: np.ndarray,
    down_checkpoint: np.ndarray | None,
    position_to_id: np.ndarray,
    block_to_expert: np.ndarray,
    out_grad: np.ndarray,
    block_size: int,
    skip_token: bool = False,
    on_hidden: bool = True,
    limits: ClampLimits | None = None,
    act_fn: ActFnType = ActFnType.SiLU,
    skip_gate: bool = False,
) -> tuple[np.ndarray, ...]:
    """Return (dX, dAff, dWgu, dWd, dbgu, dbd) in float64."""
    experts = len(gate_up)
    tokens = hidden.shape[0] - (not skip_token)
    shapes = (hidden, affinities, gate_up, down, gate_up[:, 0], down[:, 0])
    grads: list[np.ndarray] = [np.zeros(x.shape) for x in shapes]
    dx, daff, dwgu, dwd, dbgu, dbd = grads
    daff = daff.reshape(-1, experts)
    weights = np.asarray(affinities, np.float64).reshape(-1, experts)
    for n, ids in enumerate(position_to_id.reshape(-1, block_size)):
        e = int(np.ravel(block_to_expert)[n])
        real = (ids >= 0) & (ids < tokens)
        if e >= experts or not real.any():
            continue
        t = ids[real]
        saved = gate_up_checkpoint[n][:, :, real].transpose(0, 2, 1)
        g, u = np.asarray(saved, np.float64)
        wgu, wd = np.asarray(gate_up[e], np.float64), np.asarray(down[e], np.float64)
        w, dy, x = weights[t, e][:, None], np.float64(out_grad[t]), np.float64(hidden[t])
        source = u if skip_gate else g
        active, slope = activation_ref(act_fn, source), slope_ref(act_fn, source)
        m = active if skip_gate else active * u
        dm = dy @ wd.T
        by_token = (dm * m).sum(1)
        if on_hidden and down_checkpoint is not None:
            by_token = (dy * np.float64(down_checkpoint[n][real])).sum(1)
        np.add.at(daff, (t, e), by_token)
        dwd[e] += (m * w).T @ dy
        dbd[e] += (dy * w).sum(0)
        dm = dm * w
        du, dg = dm * slope if skip_gate else dm * active, np.zeros_like(dm)
        if not skip_gate:
            du = du * inside_ref(saved[1], up_bounds(limits))
            dg = dm * u * slope * inside_ref(saved[0], gate_bounds(limits))
        both = np.stack([dg, du], 1)
        dwgu[e] += np.einsum("th,tgi->hgi", x, both)
        dbgu[e] += both.sum(0)
        np.add.at(dx, t, np.einsum("tgi,hgi->th", both, wgu))
    return tuple(grads)
