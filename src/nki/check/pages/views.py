"""Shapes and views: slices, patterns, run-time addresses."""

from .page import Page

GATHER = """
@nki.jit
def kernel(x, rows):
    out = nl.ndarray((4, 512), x.dtype, buffer=nl.shared_hbm)
    places, tile = nl.ndarray((4, 1), nl.int32), nl.ndarray((4, 512), x.dtype)
    nisa.dma_copy(places, rows)
    {lines}
    nisa.dma_copy(out, tile)
    return out

kernel(np.ones((128, 512), np.float32), np.array([[3], [1], [4], [2]], np.int32))
"""


def gather(lines: str) -> str:
    return GATHER.replace("{lines}", lines)


PAGES: dict[str, Page] = {
    "shape": Page(
        "Shapes do not match, or an entry of a shape is not a positive number.",
        "nisa.tensor_tensor(tile, tile, tile[:, 0:256], nl.add)",
        "nisa.tensor_tensor(tile, tile, tile, nl.add)",
    ),
    "axis": Page(
        "The tensor does not have this axis, or the instruction cannot reduce it. `nl.sum` and `nl.max` "
        "also reduce partitions, with a warning.",
        "nisa.tensor_reduce(nl.ndarray((128, 1), x.dtype), nl.add, tile, axis=3)",
        "nisa.tensor_reduce(nl.ndarray((128, 1), x.dtype), nl.add, tile, axis=1)",
    ),
    "index": Page(
        "An index or a slice is outside the tensor. Nothing is clamped.",
        "nisa.memset(tile[:, 500:600], 0.0)",
        "nisa.memset(tile[:, 500:512], 0.0)",
    ),
    "free-limit": Page(
        "The operand has more elements per partition than the instruction accepts.",
        "nisa.nc_matmul(nl.ndarray((128, 512), nl.float32, buffer=nl.psum), tile[:, 0:256], tile)",
        "nisa.nc_matmul(nl.ndarray((128, 512), nl.float32, buffer=nl.psum), tile[:, 0:128], tile)",
    ),
    "layout": Page(
        "The view would need its elements in another order than they have in memory.",
        "tile[:, 0:512:2].view(nl.bfloat16)",
        "tile.view(nl.bfloat16)",
    ),
    "pattern": Page(
        "A pattern of steps and counts, or a permutation, is malformed.",
        "tile.ap([[512, 128], [1, 0]])",
        "tile.ap([[512, 128], [1, 256]])",
    ),
    "ap-dims": Page(
        "An operand needs more than four free dimensions to address, even after dimensions that are "
        "contiguous in memory were merged.",
    ),
    "alignment": Page(
        "The bytes do not start at an address that is aligned for the dtype.",
        "tile.view(nl.uint8)[:, 1:5].view(nl.float32)",
        "tile.view(nl.uint8)[:, 4:8].view(nl.float32)",
    ),
    "partition-dim": Page(
        "Dimension 0 of a tile is the partition dimension: it cannot be moved or merged. `reshape` copies "
        "the elements to a new tile if it must, with a warning.",
        "tile.permute((1, 0))",
        "tile.reshape((128, 2, 256)).permute((0, 2, 1))",
    ),
    "partition-step": Page(
        "A slice of dimension 0 must have step 1: partitions cannot be skipped.",
        "nisa.memset(tile[0:128:2], 0.0)",
        "nisa.memset(tile[0:64], 0.0)",
    ),
    "partition-stride": Page(
        "The partitions of an operand are not consecutive.",
    ),
    "partition-dynamic": Page(
        "On chip, a run-time index selects in a free dimension, not among partitions.",
        """
        number = nisa.register_alloc(3)
        nisa.memset(tile[nl.ds(number, 4), 0:4], 0.0)
        """,
        """
        number = nisa.register_alloc(3)
        nisa.memset(tile[0:4, nl.ds(number, 4)], 0.0)
        """,
    ),
    "start-partition": Page(
        "Engines access partitions in groups: an operand of more than 32 partitions starts at 0 or 64, "
        "one of more than 64 at 0.",
        "nisa.memset(tile[32:96], 0.0)",
        "nisa.memset(tile[64:128], 0.0)",
    ),
    "indirect-dim": Page(
        "A vector of run-time indices selects rows: it applies to dimension 0.",
        gather("nisa.dma_copy(tile, x.ap([[512, 4], [1, 512]], vector_offset=places, indirect_dim=1))"),
        gather("nisa.dma_copy(tile, x.ap([[512, 4], [1, 512]], vector_offset=places, indirect_dim=0))"),
    ),
    "indirect-twice": Page(
        "A view can have only one run-time index.",
        gather("x.vector_select(0, places).vector_select(0, places)"),
        gather("nisa.dma_copy(tile, x.vector_select(0, places))"),
    ),
    "indirect-view": Page(
        "The instruction does not accept an operand with a run-time index.",
        """
        @nki.jit
        def kernel(x, columns):
            tile, index = nl.ndarray((16, 32), x.dtype), nl.ndarray((16, 2), nl.uint16)
            nisa.dma_copy(tile, x)
            nisa.dma_copy(index, columns)
            nisa.tensor_scalar(tile, tile.indirect(index, 32), nl.add, 1)
            nisa.dma_copy(x, tile)

        kernel(np.ones((16, 32), np.int32), np.zeros((16, 2), np.uint16))
        """,
        """
        @nki.jit
        def kernel(x, columns):
            tile, index = nl.ndarray((16, 32), x.dtype), nl.ndarray((16, 2), nl.uint16)
            nisa.dma_copy(tile, x)
            nisa.dma_copy(index, columns)
            nisa.tensor_copy(tile, tile.indirect(index, 32))
            nisa.dma_copy(x, tile)

        kernel(np.ones((16, 32), np.float32), np.zeros((16, 2), np.uint16))
        """,
        target="trn3",
    ),
    "indirect-align": Page(
        "The index tile of an on-chip gather starts at another partition than the data.",
        """
        @nki.jit
        def kernel(x, columns):
            tile, index = nl.ndarray((64, 32), x.dtype), nl.ndarray((64, 2), nl.uint16)
            nisa.dma_copy(tile, x)
            nisa.dma_copy(index, columns)
            nisa.tensor_copy(nl.ndarray((16, 32), x.dtype), tile[0:16].indirect(index[32:48], 32))
            nisa.dma_copy(x, tile)

        kernel(np.ones((64, 32), np.float32), np.zeros((64, 2), np.uint16))
        """,
        """
        @nki.jit
        def kernel(x, columns):
            tile, index = nl.ndarray((64, 32), x.dtype), nl.ndarray((64, 2), nl.uint16)
            nisa.dma_copy(tile, x)
            nisa.dma_copy(index, columns)
            nisa.tensor_copy(nl.ndarray((16, 32), x.dtype), tile[32:48].indirect(index[32:48], 32))
            nisa.dma_copy(x, tile)

        kernel(np.ones((64, 32), np.float32), np.zeros((64, 2), np.uint16))
        """,
        target="trn3",
    ),
    "ap-drops-indirection": Page(
        "`.ap` makes a new pattern over the whole tensor and drops the view's run-time index.",
        gather("nisa.dma_copy(tile, x.vector_select(0, places).ap([[512, 4], [1, 512]]))"),
        gather("nisa.dma_copy(tile, x.ap([[512, 4], [1, 512]], vector_offset=places))"),
    ),
    "oob-skip": Page(
        "`oob_mode.skip` skips rows whose run-time index is out of bounds; without such an index there is "
        "nothing to skip.",
        "nisa.dma_copy(tile, x, oob_mode=nisa.oob_mode.skip)",
        "nisa.dma_copy(tile, x)",
    ),
    "scatter-dup": Page(
        "Two rows of a scatter have the same target. Here the last one wins; DMA queues guarantee no order.",
        """
        @nki.jit
        def kernel(x, rows):
            out = nl.zeros((8, 512), x.dtype, buffer=nl.shared_hbm)
            places, tile = nl.ndarray((4, 1), nl.int32), nl.ndarray((4, 512), x.dtype)
            nisa.dma_copy(places, rows)
            nisa.dma_copy(tile, x)
            nisa.dma_copy(out.vector_select(0, places), tile)
            return out

        kernel(np.ones((4, 512), np.float32), np.array([[0], [1], [1], [2]], np.int32))
        """,
        """
        @nki.jit
        def kernel(x, rows):
            out = nl.zeros((8, 512), x.dtype, buffer=nl.shared_hbm)
            places, tile = nl.ndarray((4, 1), nl.int32), nl.ndarray((4, 512), x.dtype)
            nisa.dma_copy(places, rows)
            nisa.dma_copy(tile, x)
            nisa.dma_copy(out.vector_select(0, places), tile)
            return out

        kernel(np.ones((4, 512), np.float32), np.array([[0], [1], [3], [2]], np.int32))
        """,
    ),
    "broadcast": Page(
        "An `nl` function repeats an operand to the shape of the other one, which needs a copy that the "
        "code does not show.",
        "nl.add(tile, nl.zeros((1, 512), nl.float32))",
        "nl.add(tile, nl.zeros((128, 1), nl.float32))",
    ),
}
