"""Memories: where tensors live, how large they are, who writes them."""

from .page import Page

PAGES: dict[str, Page] = {
    "partition-limit": Page(
        "SBUF and PSUM have 128 partitions, and the first dimension of a tile is its partition.",
        "big = nl.ndarray((256, 8), x.dtype)",
        "big = [nl.ndarray((128, 8), x.dtype) for _ in range(2)]",
    ),
    "capacity": Page(
        "A tile is larger than SBUF or PSUM, or more tiles are live at once than fit. A tile is live from "
        "the first instruction that uses it to the last. The device's compiler spills SBUF to HBM, which "
        "costs time, or refuses the kernel; the notes name the lines that fill the memory. A warning; an "
        "error in strict mode and in `nki check`.",
        """
        tiles = [nl.ndarray((128, 16384), x.dtype) for _ in range(4)]  # 4 x 64 KiB of each partition
        for t in tiles:
            nisa.memset(t, 1.0)
        for t in tiles:
            nisa.tensor_copy(tile, t[:, 0:512])
        """,
        """
        for _ in range(4):
            t = nl.ndarray((128, 16384), x.dtype)  # done with before the next one begins
            nisa.memset(t, 1.0)
            nisa.tensor_copy(tile, t[:, 0:512])
        """,
    ),
    "memory": Page(
        "A tensor is larger than the HBM of a core.",
        "nl.ndarray((1 << 20, 1 << 20), nl.float32, buffer=nl.private_hbm)",
        "nl.ndarray((1 << 10, 1 << 10), nl.float32, buffer=nl.private_hbm)",
    ),
    "address": Page(
        "An explicit address (partition, byte) is out of range, misaligned, or given for a tensor in HBM.",
        "nl.ndarray((128, 512), x.dtype, address=(0, 1 << 20))",
        "nl.ndarray((128, 512), x.dtype, address=(0, 4096))",
    ),
    "psum-bank-start": Page(
        "PSUM has eight banks of 2 KiB in each partition, and a tile should start at the beginning of a "
        "bank.",
        "nl.ndarray((128, 64), nl.float32, buffer=nl.psum, address=(0, 1024))",
        "nl.ndarray((128, 64), nl.float32, buffer=nl.psum, address=(0, 2048))",
    ),
    "buffer": Page(
        "The instruction cannot access the memory of this operand. Engines work on SBUF and PSUM; "
        "`nisa.dma_copy` accesses HBM.",
        "nisa.tensor_tensor(tile, x, x, nl.add)",
        "nisa.tensor_tensor(tile, tile, tile, nl.add)",
    ),
    "output-buffer": Page(
        "A kernel must return tensors in HBM that outlive it: SBUF and PSUM end with the kernel, and "
        "private HBM belongs to one core.",
        """
        @nki.jit
        def kernel(x):
            tile = nl.ndarray(x.shape, x.dtype)
            nisa.dma_copy(tile, x)
            return tile

        kernel(np.ones((128, 512), np.float32))
        """,
        "nisa.tensor_scalar(tile, tile, nl.add, 1.0)",
    ),
    "no-effect": Page(
        "The kernel has tensor arguments, returns nothing and writes none of them, so its results are lost.",
        """
        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(out, x)

        kernel(np.ones((128, 512), np.float32))
        """,
        """
        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(out, x)
            return out

        kernel(np.ones((128, 512), np.float32))
        """,
    ),
    "uninitialised": Page(
        "An instruction reads memory that was never written. Here it reads as NaN; on the device it holds "
        "old data.",
        "nisa.tensor_copy(tile, nl.ndarray((128, 512), nl.float32))",
        "nisa.tensor_copy(tile, nl.zeros((128, 512), nl.float32))",
    ),
    "stale-read": Page(
        "Two tiles have the same address, and this one is read after the other was written.",
        """
        a = nl.ndarray((128, 512), nl.float32, address=(0, 0))
        b = nl.ndarray((128, 512), nl.float32, address=(0, 0))
        nisa.memset(a, 1.0)
        nisa.memset(b, 2.0)
        nisa.tensor_copy(tile, a)
        """,
        """
        a = nl.ndarray((128, 512), nl.float32, address=(0, 0))
        b = nl.ndarray((128, 512), nl.float32, address=(0, 2048))
        nisa.memset(a, 1.0)
        nisa.memset(b, 2.0)
        nisa.tensor_copy(tile, a)
        """,
    ),
    "alias-shift": Page(
        "An instruction writes a tile that it also reads, at another offset. Here everything is read "
        "first; an engine streams, and may read back what it has just written.",
        "nisa.tensor_copy(tile[:, 1:512], tile[:, 0:511])",
        """
        shifted = nl.ndarray((128, 511), x.dtype)
        nisa.tensor_copy(shifted, tile[:, 0:511])
        nisa.tensor_copy(tile[:, 1:512], shifted)
        """,
    ),
    "write-broadcast": Page(
        "The destination repeats an element (stride 0), which would be written several times.",
        "nisa.memset(tile.ap([[512, 128], [0, 4]]), 1.0)",
        "nisa.memset(tile.ap([[512, 128], [1, 4]]), 1.0)",
    ),
    "constant-write": Page(
        "A shared constant holds the same data for every call and cannot be written.",
        """
        ones = nl.shared_constant(np.ones((128, 512), np.float32))
        nisa.dma_copy(ones, tile)
        """,
        """
        ones = nl.shared_constant(np.ones((128, 512), np.float32))
        nisa.dma_copy(tile, ones)
        """,
    ),
    "untested-on-hardware": Page(
        "Constants of this dtype are accepted, but they are not among those that are tested on devices.",
    ),
    "block-dimension": Page(
        "Older kernels gave tiles dimensions before the partition dimension (`nl.par_dim`). Now the first "
        "dimension is the partition dimension.",
        "nl.ndarray((4, nl.par_dim(128), 512), x.dtype)",
        "nl.ndarray((128, 4, 512), x.dtype)",
    ),
    "one-dimensional-tile": Page(
        "A tile must have a partition dimension and at least one free dimension.",
        "nl.ndarray((128,), x.dtype)",
        "nl.ndarray((128, 1), x.dtype)",
    ),
    "rank": Page(
        "The tensor has too many dimensions, or too few.",
        "nl.ndarray((128, 2, 2, 2, 2, 2), x.dtype)",
        "nl.ndarray((128, 2, 2, 2, 4), x.dtype)",
    ),
    "placeholder": Page(
        "A tensor that was described without data, as in old code, is used as an operand.",
    ),
    "other-call": Page(
        "A tensor belongs to the call that made it; it was stored in a variable and used in another call.",
        """
        kept = []

        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            if not kept:
                kept.append(nl.zeros(x.shape, x.dtype))
            nisa.dma_copy(out, kept[0])
            return out

        kernel(np.ones((128, 512), np.float32))
        kernel(np.ones((128, 512), np.float32))
        """,
        """
        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(out, nl.zeros(x.shape, x.dtype))
            return out

        kernel(np.ones((128, 512), np.float32))
        kernel(np.ones((128, 512), np.float32))
        """,
    ),
    "psum-bank": Page(
        "Before trn3, one matmul writes into one PSUM bank: 512 float32 columns.",
        """
        sums = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums[:, 256:768], tile[:, 0:128], tile)
        """,
        """
        sums = nl.ndarray((128, 1024), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums[:, 512:1024], tile[:, 0:128], tile)
        """,
    ),
    "psum-both": Page(
        "VectorE reads one operand from PSUM, not two.",
        """
        a, b = nl.zeros((128, 512), nl.float32, buffer=nl.psum), nl.zeros((128, 512), nl.float32, buffer=nl.psum)
        nisa.tensor_tensor(tile, a, b, nl.add)
        """,
        """
        a = nl.zeros((128, 512), nl.float32, buffer=nl.psum)
        nisa.tensor_tensor(tile, a, tile, nl.add)
        """,
    ),
    "psum-mixed": Page(
        "A matmul writes a region that was only partly written by a matmul before: hardware has one "
        "accumulate flag for the whole instruction.",
        """
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums[:, 0:256], tile[:, 0:128], tile[:, 0:256])
        nisa.nc_matmul(sums, tile[:, 0:128], tile)
        """,
        """
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums, tile[:, 0:128], tile)
        nisa.nc_matmul(sums, tile[:, 0:128], tile)
        """,
    ),
    "psum-uninit": Page(
        "`accumulate=True` adds to a region that no matmul has written.",
        """
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums, tile[:, 0:128], tile, accumulate=True)
        """,
        """
        sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(sums, tile[:, 0:128], tile, accumulate=False)
        """,
    ),
}
