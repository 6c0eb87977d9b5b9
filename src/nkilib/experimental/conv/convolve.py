"""Convolution as matmuls: out[o, i] = act(sum over taps k and channels c of f[k, c, o] x[c, i + k] + b[o]).

Filters are stationary, [channels, 128 output channels]; inputs are moving, [channels, 512 positions]. The
sums of a box of outputs stay in a PSUM bank until all taps and channels are added; bias and activation are
applied as they are drained. A tap that meets padding is multiplied only for the other outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.allocator import sizeinbytes
from nkilib.core.utils.common_types import ActFnType
from nkilib.core.utils.kernel_assert import assert_shape, kernel_assert
from nkilib.core.utils.kernel_helpers import div_ceil, get_nl_act_fn_from_type, program_share
from nkilib.core.utils.tile_io import hardware_queue
from nkilib.core.utils.tile_sizes import PMAX
from nkilib.core.utils.tiled_range import TiledRange
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.geometry import (
    ConvAxis,
    block_sizes,
    covered,
    positions,
    size_of,
    split,
    whole_tap,
)
from nkilib.experimental.conv.inputs import (
    ChannelPart,
    Convolution,
    InputPlan,
    Inputs,
    load_gathered,
    load_inputs,
    make_plan,
    moving,
    regions_of,
    whole_box,
)

DTYPES = (nl.bfloat16, nl.float16, nl.float32)
ACTIVATIONS = (
    ActFnType.SiLU,
    ActFnType.GELU,
    ActFnType.GELU_Tanh_Approx,
    ActFnType.Swish,
    ActFnType.ReLU,
)
SUM_BANKS = 4  # one group of sums: half of PSUM, so that the other half can be drained at the same time
CHUNK_BYTES = 8 * 1024  # of filters in each partition: 1 MiB for one transfer
FILTER_BYTES = 64 * 1024  # in each partition: filters up to this size stay, larger ones are streamed


def convolve(c: Convolution, lnc_shard: bool) -> None:
    """Fill c.out; with lnc_shard all cores share the work."""
    plan = make_plan(c, nl.num_programs(0) if lnc_shard else 1)
    share = core_share(c, regions_of(c, plan), lnc_shard)
    if not share.regions or share.first == share.end:
        return
    inputs = load_inputs(c, plan, share.regions[0])  # before the filters, of which the first few suffice
    filters = Filters(c, plan, share.first, share.end)
    for i in range(len(share.regions)):
        region = share.regions[i]
        if i > 0:
            inputs = load_inputs(c, plan, region)
        for sums in sum_groups(region, share, filters.stay):
            accumulate(c, plan, inputs, filters, sums)
            for number in range(len(sums)):
                finish(c, sums[number], filters, number)


# ---- division of the work ------------------------------------------------------------------------------


@dataclass
class CoreShare(nl.NKIObject):
    """The work of a core: output channels first ... end - 1 of these regions."""

    first: int
    end: int
    regions: list


def core_share(c: Convolution, regions: list, lnc_shard: bool) -> CoreShare:
    """Divide output channels or regions, whichever leaves a core less; without lnc_shard core 0 does all."""
    cores, columns = nl.num_programs(0), c.out.shape[1]
    if not lnc_shard:
        return CoreShare(0, columns, regions if nl.program_id(0) == 0 else [])
    by_columns = div_ceil(div_ceil(columns, cores), PMAX) * len(regions)
    by_regions = div_ceil(columns, PMAX) * div_ceil(len(regions), cores)
    if by_columns <= by_regions:
        first, end = program_share(columns)
        return CoreShare(first, end, regions)
    first, end = program_share(len(regions))
    return CoreShare(0, columns, regions[first:end])


@dataclass
class Sums(nl.NKIObject):
    """The sums of a box of outputs in PSUM, [columns, b, d, h, w], of output channels `column` onwards."""

    box: list
    column: int
    columns: int
    tile: Tensor = None
    started: bool = False


def sum_groups(region: list, share: CoreShare, filters_stay: bool) -> list:
    """Return the sums of a region in groups. Streamed filters serve two boxes, one after the other."""
    boxes = split(region, block_sizes(region))
    groups = []
    sums = []
    for few in TiledRange(len(boxes), 1 if filters_stay else 2):
        for column in TiledRange(share.end - share.first, PMAX):
            for i in range(few.start_offset, few.end_offset):
                sums.append(Sums(boxes[i], share.first + column.start_offset, column.size))
        if few.end_offset == len(boxes) or not filters_stay:
            for part in TiledRange(len(sums), SUM_BANKS):
                groups.append(sums[part.start_offset : part.end_offset])
            sums = []
    return groups


# ---- filters ------------------------------------------------------------------------------------------


@dataclass
class FilterChunk(nl.NKIObject):
    """Steps first ... end - 1 of part number `part`, loaded at once."""

    part: int
    first: int
    end: int


class Filters(nl.NKIObject):
    """The stationary operands of a core, and its biases."""

    def __init__(self, c: Convolution, plan: InputPlan, first: int, end: int):
        self.first = first
        self.end = end
        self.parts = plan.parts
        self.lead = whole_tap(c.axes, whole_box(c)) if plan.parts[0].taps_below == 0 else 0
        self.stay = filter_bytes(plan.parts, end - first) <= FILTER_BYTES
        self.chunks = make_chunks(plan.parts, self.lead, end - first if self.stay else SUM_BANKS * PMAX)
        self.bias = None if c.bias is None else load_bias(c.bias, first, end)
        self.tiles = []
        if self.stay:
            for chunk in self.chunks:
                self.tiles.append(load_filters(self.parts[chunk.part], chunk, first, end))


def filter_bytes(parts: list, columns: int) -> int:
    """Return the bytes that the filters of so many output channels take in each partition."""
    total = 0
    for part in parts:
        total = total + part.rows.shape[0] * part.tiles * columns * sizeinbytes(part.rows.dtype)
    return total


def make_chunks(parts: list, lead: int, columns: int) -> list:
    """Return all steps of all parts as chunks; step `lead` comes first, as it starts the sums."""
    chunks = []
    for i in range(len(parts)):
        if lead < parts[i].rows.shape[0]:
            chunks.append(FilterChunk(i, lead, lead + 1))
    for i in range(len(parts)):
        part = parts[i]
        at_once = max(1, CHUNK_BYTES // (part.tiles * columns * sizeinbytes(part.rows.dtype)))
        for span in ((0, min(lead, part.rows.shape[0])), (lead + 1, part.rows.shape[0])):
            first = span[0]
            while first < span[1]:  # small chunks first, so that the first matmuls start early
                end = min(first + min(at_once, div_ceil(len(chunks), len(parts))), span[1])
                chunks.append(FilterChunk(i, first, end))
                first = end
    return chunks


def load_filters(part: ChannelPart, chunk: FilterChunk, first: int, end: int) -> Tensor:
    """Load a chunk of filters for output channels first ... end - 1, [partitions, steps, tiles, columns]."""
    shape = (part.partitions, chunk.end - chunk.first, part.tiles, end - first)
    tile = nl.ndarray(shape, part.rows.dtype, buffer=nl.sbuf)
    rows = part.rows[chunk.first : chunk.end, :, first:end]
    rows = rows.reshape_dim(1, (part.partitions, part.tiles))
    nisa.dma_copy(tile, rows.permute((1, 0, 2, 3)))
    return tile


def load_bias(bias: Tensor, first: int, end: int) -> Tensor:
    """Load the bias in float32: bias[first + 128 t + p] at tile[p, t]."""
    full = (end - first) // PMAX
    rest = (end - first) % PMAX
    tile = nl.ndarray((PMAX, full + 1), nl.float32, buffer=nl.sbuf)
    if full > 0:
        columns = bias[first : first + full * PMAX].reshape((full, PMAX))
        nisa.dma_copy(tile[:, 0:full], columns.permute((1, 0)))
    if rest > 0:
        nisa.dma_copy(tile[0:rest, full : full + 1], bias[end - rest : end].reshape((rest, 1)))
    return tile


# ---- sums ---------------------------------------------------------------------------------------------


def accumulate(c: Convolution, plan: InputPlan, inputs: list, filters: Filters, sums: list) -> None:
    """Add the products of all steps. Streamed filters are loaded for the output channels of these sums."""
    for one in sums:
        box = one.box
        shape = (one.columns, size_of(box[0]), size_of(box[1]), size_of(box[2]), size_of(box[3]))
        one.tile = nl.ndarray(shape, nl.float32, buffer=nl.psum)
    first, end = filters.first, filters.end
    if not filters.stay:
        first, end = columns_of(sums)
    for i in range(len(filters.chunks)):
        chunk = filters.chunks[i]
        source = inputs[chunk.part]
        tile = filters.tiles[i] if filters.stay else load_filters(source.part, chunk, first, end)
        steps = []
        for step in range(chunk.first, chunk.end):
            steps.append(input_tile(c, plan, source, step))
        last = i == len(filters.chunks) - 1  # it completes the sums one after the other
        for some in by_one(sums) if last else [sums]:
            for step in range(chunk.first, chunk.end):
                x = steps[step - chunk.first]
                for j in range(source.part.tiles):
                    for one in some:
                        at = one.column - first
                        weights = tile[:, step - chunk.first, j, at : at + one.columns]
                        add(c, source, x, step, j, one, weights)
    for one in sums:
        if not one.started:
            start_with_zeros(c, one)


def by_one(sums: list) -> list:
    """Return one list for each element."""
    groups = []
    for one in sums:
        groups.append([one])
    return groups


def columns_of(sums: list) -> tuple[int, int]:
    """Return the range of output channels that these sums cover."""
    first, end = sums[0].column, sums[0].column
    for one in sums:
        first, end = min(first, one.column), max(end, one.column + one.columns)
    return first, end


def input_tile(c: Convolution, plan: InputPlan, inputs: Inputs, step: int) -> Tensor:
    """Return the tile that holds the inputs of a step."""
    if inputs.part.taps_below == 0:
        return inputs.tiles[0]
    return inputs.tiles[step] if plan.resident else load_gathered(c, inputs.part, inputs.region, step)


def add(c: Convolution, inputs: Inputs, x: Tensor, step: int, j: int, sums: Sums, stationary: Tensor) -> None:
    """Add the products of one step, for the outputs where its tap meets input."""
    box = covered(c.axes, step, sums.box) if inputs.part.taps_below == 0 else sums.box
    if box is None:
        return
    if not sums.started and positions(box) < positions(sums.box):
        start_with_zeros(c, sums)
    place = sums.tile
    for i in range(4):
        at = box[i].start - sums.box[i].start
        place = place.slice(i + 1, at, at + size_of(box[i]))
    nisa.nc_matmul(place, stationary, moving(c, inputs, x, step, j, box), accumulate=sums.started)
    sums.started = True


def start_with_zeros(c: Convolution, sums: Sums) -> None:
    """Set the sums to 0: PSUM accumulates only where a matmul has already written."""
    zeros = nl.ndarray((1, positions(sums.box) + PMAX), c.x.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, 0.0)
    nisa.nc_matmul(sums.tile, zeros[:, 0 : sums.columns], zeros[:, PMAX:], accumulate=False)
    sums.started = True


# ---- results ------------------------------------------------------------------------------------------


def finish(c: Convolution, sums: Sums, filters: Filters, index: int) -> None:
    """Apply bias and activation, and store the result to HBM."""
    box = sums.box
    result = nl.ndarray(sums.tile.shape, c.out.dtype, buffer=nl.sbuf)
    t = (sums.column - filters.first) // PMAX
    bias = None if filters.bias is None else filters.bias[0 : sums.columns, t : t + 1]
    apply(result, sums.tile, c.activation, bias, index % 2 == 0)
    place = c.out[
        box[0].start : box[0].end,
        sums.column : sums.column + sums.columns,
        box[1].start : box[1].end,
        box[2].start : box[2].end,
        box[3].start : box[3].end,
    ]
    queue = hardware_queue() if index % 2 == 1 else nisa.dge_mode.unknown  # alternate the queues
    nisa.dma_copy(place.permute((1, 0, 2, 3, 4)), result, dge_mode=queue)


def apply(
    result: Tensor, sums: Tensor, activation: ActFnType | None, bias: Tensor | None, on_vector: bool
) -> None:
    """Set result = activation(sums + bias), on VectorE where that is possible and `on_vector` is set."""
    linear = activation is None or activation == ActFnType.ReLU
    if on_vector and linear:
        shift = 0.0 if bias is None else bias
        if activation is None:
            nisa.tensor_scalar(result, sums, nl.add, shift)
        else:
            nisa.tensor_scalar(result, sums, nl.add, shift, op1=nl.maximum, operand1=0.0)
        return
    nisa.activation(result, activation_function(activation), sums, bias=bias)


def activation_function(activation: ActFnType | None) -> Callable[..., Tensor]:
    """Return the ScalarE function of an activation. Swish is SiLU here, elsewhere x * sigmoid(1.702 x)."""
    if activation is None:
        return nl.copy
    if activation == ActFnType.ReLU:
        return nl.relu
    return get_nl_act_fn_from_type(ActFnType.SiLU if activation == ActFnType.Swish else activation)


# ---- arguments ----------------------------------------------------------------------------------------


def check_operands(x: Tensor, filters: Tensor, bias: Tensor | None, activation: ActFnType | None) -> None:
    """Check that x [B, Ci, ...], filters [..., Ci, Co] of equal rank and bias [Co] agree, with one dtype."""
    rank = len(filters.shape)
    channels, columns = filters.shape[rank - 2], filters.shape[rank - 1]
    kernel_assert(
        x.shape[1] == channels,
        f"filters: got C_in = {channels} of {tuple(filters.shape)}, x_in has {x.shape[1]} channels",
    )
    kernel_assert(x.dtype in DTYPES, f"x_in: got {x.dtype}, allowed are {DTYPES}")
    kernel_assert(filters.dtype == x.dtype, f"filters: got {filters.dtype}, expected {x.dtype} like x_in")
    if bias is not None:
        assert_shape(bias, (columns,), "bias")
        kernel_assert(bias.dtype == x.dtype, f"bias: got {bias.dtype}, expected {x.dtype} like x_in")
    kernel_assert(
        activation is None or activation in ACTIVATIONS,
        f"activation_fn: got {activation}, allowed are None and {ACTIVATIONS}",
    )


def check_numbers(name: str, value: tuple, count: int, expected: str) -> None:
    """An argument is a sequence of so many numbers."""
    kernel_assert(
        isinstance(value, (tuple, list)) and len(value) == count, f"{name}: got {value}, expected {expected}"
    )


def check_axis(size: int, taps: int, stride: int, dilation: int, before: int, after: int) -> ConvAxis:
    """Check the parameters of one spatial axis and return it."""
    for step in (("stride", stride), ("dilation", dilation)):
        kernel_assert(
            isinstance(step[1], int) and step[1] >= 1, f"{step[0]}: got {step[1]}, allowed are 1 and more"
        )
    kernel_assert(
        min(before, after) >= 0, f"padding: got {before} and {after}, allowed are numbers of 0 and more"
    )
    reach, padded = dilation * (taps - 1) + 1, size + before + after
    kernel_assert(
        reach <= padded,
        f"filters: got {taps} taps with dilation {dilation}, which reach over {reach} elements, "
        f"more than the {padded} of the padded input",
    )
    return ConvAxis(size, taps, stride, dilation, before, after)
