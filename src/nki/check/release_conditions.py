"""The conditions in brackets of `releases.md`: where a traced program has what a row speaks of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from ..errors import Site
from ..ir.boxes import Box, box, space_of
from ..ir.effects import effects
from ..ir.instruction import Instruction
from ..ir.program import Program
from ..ir.tree import leaves
from ..ir.view import View

Condition = Callable[[Program], Iterator[Site | None]]


def each(test: Callable[[Any], bool], *public: str) -> Condition:
    """Return the condition that a test holds of an instruction with one of these names; none: of any."""

    def sites(program: Program) -> Iterator[Site | None]:
        for core in range(len(program.cores)):
            for instruction in program.walk(core):
                if (not public or instruction.public in public) and test(instruction):
                    yield instruction.site

    return sites


def _indexed(view: View, kind: str) -> bool:
    return view.indirection is not None and view.indirection.kind == kind


def _skips(instruction: Any) -> bool:
    return instruction.oob_mode.name == "skip"


def _transposed_by_hardware(instruction: Any) -> bool:
    shape = instruction.src.shape
    return instruction.dge_mode.name == "hwdge" and (shape[0] != 16 or shape[-1] % 128 != 0)


def _converts_to_integers(instruction: Instruction) -> bool:
    done = effects(instruction)
    return any(view.dtype.is_integer for view in done.written) and any(
        view.dtype.is_float for view in done.reads
    )


def _reduces_into_dst(instruction: Any) -> bool:
    return instruction.reduce_res is not None and instruction.reduce_res.storage is instruction.dst.storage


def _scale_is_a_part(instruction: Any) -> bool:
    scales = [getattr(instruction, name, None) for name in ("dst_scale", "stationary_scale", "moving_scale")]
    return any(isinstance(scale, View) and not scale.covers_storage() for scale in scales)


def _has_different_ranks(instruction: Instruction) -> bool:
    return len({view.ndim for view in instruction.views()}) > 1


def _is_float_sentinel(instruction: Any) -> bool:
    return isinstance(instruction.on_false_value, float) and instruction.dst.dtype != "float32"


def _is_reinterpreted(instruction: Instruction) -> bool:
    return any(_indexed(view, "vector") and view.dtype != view.storage.dtype for view in instruction.views())


def _overlapping_accumulation(program: Program) -> Iterator[Site | None]:
    """Products into one PSUM tile whose destinations overlap without being equal."""
    for core in range(len(program.cores)):
        written: dict[Hashable, set[Box]] = {}
        for instruction in program.walk(core):
            if instruction.public == "nc_matmul":
                dst = instruction.dst  # type: ignore[attr-defined]
                here, before = box(dst), written.setdefault(space_of(dst.storage), set())
                if any(other != here and other.overlaps(here) for other in before):
                    yield instruction.site
                before.add(here)


def _loop_index_as_offset(program: Program) -> Iterator[Site | None]:
    indices = {id(loop.index) for loop in program.loops if loop.function == "dynamic_range"}
    for core in range(len(program.cores)):
        for instruction in program.walk(core):
            used = [view.indirection.index for view in instruction.views() if view.indirection is not None]
            if any(id(index) in indices for index in used):
                yield instruction.site


def _bool_result(program: Program) -> Iterator[Site | None]:
    if any(view.dtype.is_bool for view in leaves(program.result, View)):
        yield None


CONDITIONS: dict[str, Condition] = {
    "[transpose by hardware of rows other than 16 or 128 columns]": each(
        _transposed_by_hardware, "dma_transpose"
    ),
    "[float to integer]": each(_converts_to_integers),
    "[reduce_res inside dst]": each(_reduces_into_dst, "activation", "activation_reduce"),
    "[part of an MX scale tile]": each(_scale_is_a_part, "quantize_mx", "nc_matmul_mx"),
    "[double_row]": each(lambda i: i.perf_mode.name.startswith("double_row"), "nc_matmul"),
    "[overlapping accumulation]": _overlapping_accumulation,
    "[operands of different ranks]": each(_has_different_ranks, "tensor_copy_predicated", "select_reduce"),
    "[float as on_false_value]": each(_is_float_sentinel, "range_select", "affine_select"),
    "[gathered operand]": each(lambda i: any(_indexed(view, "tensor") for view in i.views())),
    "[bfloat16 result of more than 4096 elements]": each(
        lambda i: i.dst.dtype == "bfloat16" and i.dst.free_elements > 4096, "nc_matmul"
    ),
    "[transpose with a scalar offset that skips]": each(
        lambda i: _skips(i) and _indexed(i.src, "scalar"), "dma_transpose"
    ),
    "[skipping copy of packed elements]": each(lambda i: _skips(i) and i.src.dtype.is_packed, "dma_copy"),
    "[matmul of more than 2 dimensions]": each(
        lambda i: max(i.stationary.ndim, i.moving.ndim) > 2, "nc_matmul"
    ),
    "[skipping gather transpose]": each(lambda i: _skips(i) and _indexed(i.src, "vector"), "dma_transpose"),
    "[vector index of a reinterpreted view]": each(_is_reinterpreted),
    "[square or relu as op0]": each(
        lambda i: i.op0.name in ("square", "relu"), "tensor_scalar", "tensor_scalar_reduce"
    ),
    "[float8_e4m3fn operand of a matmul]": each(
        lambda i: "float8_e4m3fn" in (i.stationary.dtype, i.moving.dtype), "nc_matmul"
    ),
    "[sendrecv of partitions other than 16, 32, ...]": each(lambda i: i.src.shape[0] % 16 != 0, "sendrecv"),
    "[gather transpose of other than 128 columns]": each(
        lambda i: _indexed(i.src, "vector") and i.src.shape[-1] != 128, "dma_transpose"
    ),
    "[transpose into another rank]": each(lambda i: i.dst.ndim > len(i.dst.storage.shape), "dma_transpose"),
    "[skipping copy of integers]": each(lambda i: _skips(i) and i.src.dtype.is_integer, "dma_copy"),
    "[shuffle mask 255]": each(lambda i: 255 in i.shuffle_mask, "nc_stream_shuffle"),
    "[quantize to float8_e4m3fn_x4]": each(lambda i: i.dst.dtype == "float8_e4m3fn_x4", "quantize_mx"),
    "[register as offset of a pattern]": each(
        lambda i: getattr(i.offset, "is_register", False), "iota", "affine_select"
    ),
    "[packed 8-bit operand]": each(
        lambda i: any(view.dtype in ("float8_e4m3fn_x4", "float8_e5m2_x4") for view in i.views())
    ),
    "[bool result]": _bool_result,
    "[device_print of 1 dimension in HBM]": each(
        lambda i: i.tensor.ndim == 1 and not i.tensor.on_chip, "device_print"
    ),
    "[dynamic_range index as offset]": _loop_index_as_offset,
}
