"""A kernel for each condition of releases.md, with x of float32[128, 512]."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki import TensorSpec

X = TensorSpec((128, 512), "float32")


def tile(shape, dtype=nl.float32, buffer=nl.sbuf, value=0):
    made = nl.ndarray(shape, dtype, buffer=buffer)
    nisa.memset(made, value if dtype in (nl.uint8, nl.uint16, nl.int32, nl.uint32) else float(value))
    return made


def packed(shape, dtype=nl.float8_e4m3fn_x4):
    made = nl.ndarray(shape, dtype)
    nisa.memset(made, 0)
    return made


def hardware_transpose(x):
    nisa.dma_transpose(
        nl.ndarray((64, 16), nl.bfloat16), tile((16, 64), nl.bfloat16), dge_mode=nisa.dge_mode.hwdge
    )


def float_to_integer(x):
    nisa.tensor_copy(nl.ndarray((128, 8), nl.int32), tile((128, 8)))


def reduces_into_dst(x):
    out = tile((128, 16))
    nisa.activation(out, nl.exp, tile((128, 16)), reduce_op=nl.add, reduce_res=out[:, 0:1])


def sliced_scale(x):
    scale = tile((128, 64), nl.uint8)
    nisa.quantize_mx(packed((128, 16)), tile((128, 64), nl.bfloat16), scale[:, 0:16])


def double_row(x):
    left, right = tile((128, 2, 128), nl.float8_e4m3), tile((128, 2, 512), nl.float8_e4m3)
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(out, left, right, perf_mode=nisa.matmul_perf_mode.double_row)


def overlapping(x):
    square, out = tile((128, 128)), nl.ndarray((128, 192), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(out[:, :128], square, square)
    nisa.nc_matmul(out[:, 64:], square, square)


def ranks(x):
    nisa.tensor_copy_predicated(tile((128, 4, 4)), tile((128, 16)), tile((128, 16), nl.uint8))


def float_sentinel(x):
    data = tile((128, 16), nl.bfloat16)
    nisa.affine_select(nl.ndarray((128, 16), nl.bfloat16), [[1, 16]], 0, data, -1.5)


def gathered(x):
    index = tile((128, 1), nl.uint16)
    nisa.tensor_copy(nl.ndarray((128, 16), nl.float32), tile((128, 64)).indirect(index, 16))


def large_bfloat16(x):
    out = nl.ndarray((128, 8, 1024), nl.bfloat16, buffer=nl.psum)
    nisa.nc_matmul(out, tile((128, 128), nl.bfloat16), tile((128, 8, 1024), nl.bfloat16))


def transpose_skips(x):
    offset = nisa.register_alloc(0)
    src = x.ap([[512, 32], [1, 64]], scalar_offset=offset, indirect_dim=0)
    nisa.dma_transpose(nl.ndarray((64, 32), nl.float32), src, oob_mode=nisa.oob_mode.skip)


def packed_skips(x, like=nl.float8_e4m3fn_x4):
    table = nl.ndarray((256, 16), like, buffer=nl.hbm)
    nisa.dma_copy(table[:128], packed((128, 16)) if like is nl.float8_e4m3fn_x4 else tile((128, 16), like))
    source = table.ap([[16, 128], [1, 16]], vector_offset=tile((128, 1), nl.uint32), indirect_dim=0)
    nisa.dma_copy(nl.ndarray((128, 16), like), source, oob_mode=nisa.oob_mode.skip)


def integers_skip(x):
    packed_skips(x, nl.int32)


def matmul_of_3_dimensions(x):
    out = nl.ndarray((128, 4, 64), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(out, tile((128, 128)), tile((128, 4, 64)))


def gather_transpose(x, columns=128, mode=nisa.oob_mode.skip):
    table = nl.ndarray((512, columns), nl.bfloat16, buffer=nl.hbm)
    for start in range(0, 512, 128):
        nisa.dma_copy(table[start : start + 128], tile((128, columns), nl.bfloat16))
    source = table.ap([[columns, 128], [1, columns]], vector_offset=tile((128, 1), nl.uint32), indirect_dim=0)
    nisa.dma_transpose(nl.ndarray((columns, 128), nl.bfloat16), source, oob_mode=mode)


def narrow_gather_transpose(x):
    gather_transpose(x, 64, nisa.oob_mode.error)


def reinterpreted(x):
    table = nl.ndarray((512, 16), nl.float32, buffer=nl.hbm)
    nisa.dma_copy(table[:128], tile((128, 16)))
    rows = table.reinterpret_cast(nl.int32).vector_select(0, tile((128, 1), nl.uint32))
    nisa.dma_copy(nl.ndarray((128, 16), nl.int32), rows)


def square(x):
    nisa.tensor_scalar(nl.ndarray((128, 8), nl.float32), tile((128, 8)), nl.square, None)


def ocp_float8(x):
    data = tile((128, 128), nl.float8_e4m3fn)
    nisa.nc_matmul(nl.ndarray((128, 128), nl.float32, buffer=nl.psum), data, data)


def sendrecv_of_8(x):
    other = 1 - nl.program_id(0)
    nisa.sendrecv(tile((8, 8)), nl.ndarray((8, 8), nl.float32), other, other, 0)


def lower_rank(x):
    nisa.dma_transpose(nl.ndarray((64, 32), nl.float32), tile((32, 1, 64)))


def shuffle_keeps(x):
    mask = [*range(31), 255]
    nisa.nc_stream_shuffle(tile((32, 8)), tile((32, 8)), mask)


def quantizes(x):
    nisa.quantize_mx(packed((128, 16)), tile((128, 64), nl.bfloat16), tile((128, 16), nl.uint8))


def register_offset(x):
    nisa.iota(nl.ndarray((128, 8), nl.int32), [[1, 8]], offset=nisa.register_alloc(3))


def packed_copy(x):
    nisa.tensor_copy(nl.ndarray((128, 16), nl.float8_e4m3fn_x4), packed((128, 16)))


def bool_result(x):
    out = nl.ndarray((128, 8), nl.bool_, buffer=nl.shared_hbm)
    nisa.dma_copy(out, nl.less(tile((128, 8)), tile((128, 8)), dtype=nl.bool_))
    return out


def prints(x):
    flat = nl.ndarray((64,), nl.float32, buffer=nl.hbm)
    nl.device_print("flat", flat)


def loop_offset(x):
    out = nl.ndarray((128, 8), nl.float32)
    for i in nl.dynamic_range(4):
        nisa.dma_copy(out, x.ap([[512, 128], [1, 8]], scalar_offset=i, indirect_dim=1))


CASES = {
    "[transpose by hardware of rows other than 16 or 128 columns]": hardware_transpose,
    "[float to integer]": float_to_integer,
    "[reduce_res inside dst]": reduces_into_dst,
    "[part of an MX scale tile]": sliced_scale,
    "[double_row]": double_row,
    "[overlapping accumulation]": overlapping,
    "[operands of different ranks]": ranks,
    "[float as on_false_value]": float_sentinel,
    "[gathered operand]": gathered,
    "[bfloat16 result of more than 4096 elements]": large_bfloat16,
    "[transpose with a scalar offset that skips]": transpose_skips,
    "[skipping copy of packed elements]": packed_skips,
    "[skipping copy of integers]": integers_skip,
    "[matmul of more than 2 dimensions]": matmul_of_3_dimensions,
    "[skipping gather transpose]": gather_transpose,
    "[gather transpose of other than 128 columns]": narrow_gather_transpose,
    "[vector index of a reinterpreted view]": reinterpreted,
    "[square or relu as op0]": square,
    "[float8_e4m3fn operand of a matmul]": ocp_float8,
    "[sendrecv of partitions other than 16, 32, ...]": sendrecv_of_8,
    "[transpose into another rank]": lower_rank,
    "[shuffle mask 255]": shuffle_keeps,
    "[quantize to float8_e4m3fn_x4]": quantizes,
    "[register as offset of a pattern]": register_offset,
    "[packed 8-bit operand]": packed_copy,
    "[bool result]": bool_result,
    "[device_print of 1 dimension in HBM]": prints,
    "[dynamic_range index as offset]": loop_offset,
}


def traced(body, release):
    """The program of a body on trn3, as a release behaves."""
    with nki.options(target="trn3", api=release):
        return nki.jit(body)[2].trace(X) if body is sendrecv_of_8 else nki.jit(body).trace(X)


@nki.jit
def plain(x):
    """Nothing that a release lacks."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    held = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(held, x)
    nisa.activation(held, nl.exp, held)
    nisa.dma_copy(out, held)
    return out
