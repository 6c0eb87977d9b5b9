"""Random tile programs: what plans fuse and merge, in every order that a kernel might write it.

A seed chooses the operations. Tiles rotate, are written in pieces, transposed, widened, summed and stored;
numbers are small integers, so that sums are exact in any order unless a product of products grows too large.
"""

from __future__ import annotations

import random
import warnings

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from support import target

P, F = 8, 12  # partitions and elements of a tile
ROWS, COLUMNS = 4 * P, 4 * F
DTYPES = (nl.float32, nl.float32, nl.float32, nl.bfloat16, nl.int32)


class ProgramBuilder:
    """Issues random operations inside a kernel."""

    def __init__(self, a, b, out, scratch, seed, two=False):
        self.chance = random.Random(seed)
        self.a, self.b, self.out, self.scratch = a, b, out, scratch
        self.two = two
        self.tiles = []  # (tile, pieces written)
        self.shared = []  # tiles that are only read
        self.sums = []
        self.free = [(i, j) for i in range(4) for j in range(4)]
        self.chance.shuffle(self.free)
        for _ in range(3):
            self.load()

    # ---- what there is to choose from ------------------------------------------------------------

    def any_tile(self):
        return self.chance.choice(self.tiles)

    def float_tile(self):
        return self.chance.choice([t for t in self.tiles if t.dtype != nl.int32] or self.tiles[:1])

    def window(self, limit, whole=0.5):
        """A slice of a dimension, often all of it."""
        if self.chance.random() < whole:
            return slice(0, limit)
        first = self.chance.randrange(limit - 1)
        return slice(first, self.chance.randrange(first + 1, limit + 1))

    # ---- operations ------------------------------------------------------------------------------

    def load(self):
        dtype = self.chance.choice(DTYPES[:4])
        tile = nl.ndarray((P, F), dtype)
        self.fill(tile, self.chance.choice((1, 1, 2, 3)))
        self.tiles.append(tile)

    def reload(self):
        """A rotating buffer: as a whole, or in pieces."""
        self.fill(self.any_tile(), self.chance.choice((1, 2)))

    def refill_part(self):
        tile, where = self.any_tile(), self.window(F)
        nisa.dma_copy(tile[:, where], self.a[0:P, where])

    def fill(self, tile, pieces):
        source = self.chance.choice((self.a, self.b))
        row, column = P * self.chance.randrange(4), F * self.chance.randrange(4)
        for i in range(pieces):
            part = slice(F * i // pieces, F * (i + 1) // pieces)
            nisa.dma_copy(tile[:, part], source[row : row + P, column + part.start : column + part.stop])

    def chain(self):
        """Products into one PSUM tile; sometimes it is read in between, sometimes it continues later."""
        continues = self.sums and self.chance.random() < 0.4
        psum = self.chance.choice(self.sums) if continues else nl.ndarray((F, F), nl.float32, buffer=nl.psum)
        for i in range(self.chance.choice((1, 2, 3))):
            left, right = self.float_tile(), self.float_tile()
            if (left.dtype == nl.float32) != (right.dtype == nl.float32):
                right = left
            accumulate = None if i or self.chance.random() < 0.8 else False
            nisa.nc_matmul(psum, left, right, accumulate=accumulate)
        if not continues:
            self.sums.append(psum)

    def use_shared(self):
        """A sum or a product of a tile and one that is only read."""
        one, other = self.float_tile(), self.chance.choice(self.shared)
        if self.chance.random() < 0.5 and (one.dtype == nl.float32) == (other.dtype == nl.float32):
            psum = nl.ndarray((F, F), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum, *self.chance.choice(((one, other), (other, one))))
            self.sums.append(psum)
        else:
            found = nl.ndarray((P, F), nl.float32)
            nisa.tensor_tensor(found, one, other, nl.add)
            self.tiles.append(found)

    def parts_of_psum(self):
        bank = nl.ndarray((F, 2, F), nl.float32, buffer=nl.psum)
        tile = next((t for t in self.tiles if t.dtype == nl.float32), None)
        if tile is None:
            return
        for i in range(2):
            nisa.nc_matmul(bank[:, i, :], tile, tile, accumulate=False)
        both = nl.ndarray((F, 2 * F), nl.float32)
        nisa.tensor_copy(both, bank)
        nisa.tensor_scalar(both[:P, 0:F], both[:P, F:], nl.multiply, 0.5)
        small = nl.ndarray((P, F), nl.float32)
        nisa.tensor_copy(small, both[0:P, self.chance.choice((0, F, 5)) :][:, 0:F])
        self.tiles.append(small)

    def drain(self):
        if self.sums:
            tile = nl.ndarray((P, F), self.chance.choice(DTYPES[:4]))
            nisa.tensor_copy(tile, self.chance.choice(self.sums)[0:P])
            self.tiles.append(tile)

    def running_sum(self):
        """A sum in SBUF to which products are added."""
        total = nl.ndarray((F, F), nl.float32)
        nisa.memset(total, 0.0)
        floats = [t for t in self.tiles if t.dtype == nl.float32] or None
        if floats is None:
            return
        for _ in range(self.chance.choice((1, 2, 3))):
            psum = nl.ndarray((F, F), nl.float32, buffer=nl.psum)
            for _ in range(2):
                nisa.nc_matmul(psum, self.chance.choice(floats), self.chance.choice(floats))
            first, second = (total, psum) if self.chance.random() < 0.8 else (psum, total)
            nisa.tensor_tensor(total, first, second, op=nl.add)
            if self.chance.random() < 0.2:
                self.sums.append(psum)
        tile = nl.ndarray((P, F), nl.float32)
        nisa.tensor_copy(tile, total[0:P])
        self.tiles.append(tile)
        if self.chance.random() < 0.5 and self.free:
            i, j = self.free.pop()
            nisa.dma_copy(self.out[P * i : P * i + P, F * j : F * j + F], total[0:P])

    def transpose(self):
        tile = self.float_tile()
        psum = nl.ndarray((F, P), tile.dtype, buffer=nl.psum)
        nisa.nc_transpose(psum, tile, engine=nisa.tensor_engine)
        transposed = nl.ndarray((F, P), tile.dtype)
        nisa.tensor_copy(transposed, psum)
        if self.chance.random() < 0.5:
            product = nl.ndarray((P, P), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(product, transposed, transposed)
            new = nl.ndarray((P, F), nl.float32)
            nisa.memset(new, 1.0)
            nisa.tensor_copy(new[:, 0:P], product)
            self.tiles.append(new)
        else:
            nisa.tensor_scalar(transposed, transposed, nl.add, 1.0)
            new = nl.ndarray((P, F), tile.dtype)
            nisa.memset(new, 0.0)
            nisa.tensor_copy(new[:, 0:P], transposed[0:P])
            self.tiles.append(new)

    def combine(self):
        dst, x, y = self.any_tile(), self.any_tile(), self.any_tile()
        where = self.window(F)
        op = self.chance.choice((nl.add, nl.subtract, nl.maximum))
        nisa.tensor_tensor(dst[:, where], x[:, where], y[:, where], op)

    def strided(self):
        dst, src = self.any_tile(), self.any_tile()
        start = self.chance.randrange(2)
        nisa.tensor_copy(dst[:, start:F:2], src[:, 0 : F // 2])

    def shift(self):
        """A copy of a part over a part: of the same tile, perhaps of itself."""
        dst, src = self.any_tile(), self.any_tile()
        width = self.chance.randrange(1, F // 2)
        to, start = self.chance.randrange(F - width), self.chance.randrange(F - width)
        nisa.tensor_copy(dst[:, to : to + width], src[:, start : start + width])

    def halve(self):
        tile = self.any_tile()
        where = self.window(F)
        nisa.tensor_scalar(tile[:, where], tile[:, where], nl.minimum, 3.0)

    def as_bits(self):
        """Change some elements through a view as another dtype."""
        tile, where = self.any_tile(), self.window(F)
        if tile.dtype == nl.float32:
            bits = tile.view(nl.int32)
            nisa.tensor_scalar(bits[:, where], bits[:, where], nl.bitwise_and, 0x7FFF0000)

    def clear(self):
        nisa.memset(self.any_tile()[:, self.window(F)], self.chance.choice((0, 2)))

    def limit(self):
        """A column per partition, and a reduction."""
        tile, column = self.any_tile(), nl.ndarray((P, 1), nl.float32)
        nisa.tensor_reduce(column, nl.maximum, tile, axis=1)
        nisa.tensor_scalar(tile, tile, nl.minimum, column)

    def activate(self):
        """With the accumulator registers of ScalarE."""
        tile, total = self.any_tile(), nl.ndarray((P, 1), nl.float32)
        command = self.chance.choice((nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.idle))
        result = total if command is nisa.reduce_cmd.reset_reduce else None
        nisa.activation(tile, nl.copy, tile, reduce_op=nl.add, reduce_res=result, reduce_cmd=command)
        if result is not None:
            nisa.tensor_scalar(tile, tile, nl.maximum, total)

    def mask(self):
        """Keep what lies above a diagonal, or add the numbers of the columns; both begin anywhere."""
        tile, first = self.float_tile(), self.chance.randrange(-F, F)
        if self.chance.random() < 0.5:
            nisa.affine_select(
                tile,
                pattern=[[1, F]],
                offset=first,
                channel_multiplier=-1,
                on_true_tile=tile,
                on_false_value=1.0,
                cmp_op=nl.greater_equal,
            )
        else:
            numbers = nl.ndarray((P, F), nl.int32)
            nisa.iota(numbers, [[1, F]], first)
            nisa.tensor_tensor(tile, tile, numbers, nl.minimum)

    def predicated(self):
        dst, src = self.any_tile(), self.any_tile()
        mask = nl.ndarray((P, F), nl.uint8)
        nisa.tensor_scalar(mask, src, nl.greater, 0.0)
        if dst.dtype == src.dtype:
            nisa.tensor_copy_predicated(dst, src, mask)

    def store(self):
        if self.free:
            i, j = self.free.pop()
            nisa.dma_copy(self.out[P * i : P * i + P, F * j : F * j + F], self.any_tile())

    def packed_store(self):
        """Two tiles put together, then stored as one."""
        rows = [(i, j) for i, j in self.free if (i, j + 1) in self.free and j % 2 == 0]
        if not rows:
            return
        i, j = self.chance.choice(rows)
        self.free = [place for place in self.free if place not in ((i, j), (i, j + 1))]
        both = nl.ndarray((P, 2 * F), nl.float32)
        for half in range(2):
            source = self.any_tile()
            if self.sums and self.chance.random() < 0.5:
                source = self.chance.choice(self.sums)[0:P]
            nisa.tensor_copy(both[:, half * F : half * F + F], source)
        nisa.dma_copy(self.out[P * i : P * i + P, F * j : F * j + 2 * F], both)

    def through_hbm(self):
        """Written and read again, over and over."""
        row = P * self.chance.randrange(2)
        nisa.dma_copy(self.scratch[row : row + P], self.any_tile())
        first = self.chance.randrange(P)
        nisa.dma_copy(self.float_tile(), self.scratch[first : first + P])

    def overwrite_argument(self):
        nisa.dma_copy(self.b[0:P, 0:F], self.any_tile())

    def forget(self):
        """Read what was never written."""
        if self.chance.random() < 0.1:
            tile = nl.ndarray((P, F), nl.float32)
            nisa.memset(tile[:, 0:4], 1.0)
            nisa.tensor_tensor(self.any_tile(), tile, tile, nl.add)

    def placed(self):
        """Tiles that share bytes."""
        first = nl.ndarray((P, F), nl.float32, address=(0, self.chance.choice((0, 16, 96))))
        nisa.tensor_copy(first, self.any_tile())
        nisa.tensor_scalar(first[:, 0:4], first[:, 0:4], nl.add, 1.0)
        nisa.tensor_copy(self.any_tile(), first)

    def dynamic(self):
        """A fence: an address that is known at run time only."""
        tile, number = self.float_tile(), nl.ndarray((1, 1), nl.int32)
        nisa.memset(number, self.chance.randrange(3))
        register = nisa.register_alloc(number)
        nisa.dma_copy(tile[:, 0:4], self.a[0:P, nl.ds(register, 4)])

    def loop(self):
        tile = self.any_tile()

        def body(i):
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)

        nl.fori_loop(0, self.chance.choice((0, 2)), body)

    def meet(self):
        if self.two:
            nisa.core_barrier(self.scratch, (0, 1))


OFTEN = (
    "load",
    "reload",
    "chain",
    "chain",
    "chain",
    "running_sum",
    "drain",
    "transpose",
    "combine",
    "store",
    "packed_store",
)
SELDOM = (
    *(
        "refill_part",
        "parts_of_psum",
        "strided",
        "shift",
        "halve",
        "clear",
        "limit",
        "activate",
        "mask",
        "predicated",
        "as_bits",
    ),
    *("through_hbm", "overwrite_argument", "forget", "placed", "dynamic", "loop", "meet"),
)


@nki.jit
def random_kernel(a, b, seed, rare):
    """A kernel of random operations; on two cores each has its own half of the results."""
    two = nl.num_programs() > 1
    out = nl.ndarray((2 * ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm, name="out")
    scratch = nl.ndarray((4 * P, F), nl.float32, buffer=nl.shared_hbm, name="scratch")
    core = nl.program_id(0) if two else 0
    mine = scratch[2 * P * core : 2 * P * core + 2 * P]
    chance = random.Random(seed * 2 + core)
    names = random.Random(seed)  # both cores meet equally often
    zero = nl.ndarray((P, F), nl.float32)
    nisa.memset(zero, 0.0)
    for half in range(2):
        nisa.dma_copy(mine[P * half : P * half + P], zero)
    builder = ProgramBuilder(a, b, out[ROWS * core : ROWS * core + ROWS], mine, chance.random(), two)
    for _ in range(names.randrange(4, 28)):
        name = names.choice(SELDOM if names.random() < rare else OFTEN)
        getattr(builder, name)()
    if seed % 3:
        while builder.free:
            builder.store()
    if not two:
        nisa.dma_copy(out[ROWS:], a[0:ROWS])
    return out


def program_of(seed, rare=0.3, degree=1, platform="trn2"):
    """A traced program, and arrays to run it on."""
    chance = np.random.default_rng(seed)
    arrays = [chance.integers(-2, 3, (ROWS, COLUMNS)).astype(np.float32) for _ in range(2)]
    kernel = random_kernel[2] if degree == 2 else random_kernel
    with target(platform), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kernel.trace(*arrays, seed, rare), arrays


@nki.jit
def kernel_of_units(a, b, c, seed, rare, count, spoiled, groups):
    """Equal random programs on rows of their own, one after the other or in turns; one of them may differ.

    All share a tile, or none do; or each of some `groups` shares a tile of its own, which is loaded from `c`.
    """
    chance = random.Random(seed)
    out = nl.ndarray((count * ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm, name="out")
    scratch = nl.ndarray((count * 2 * P, F), nl.float32, buffer=nl.shared_hbm, name="scratch")
    shared = [ProgramBuilder(a, b, None, None, seed)] if chance.random() < 0.5 and not groups else []
    for row in range(0, groups * ROWS, ROWS):
        shared.append(ProgramBuilder(c[row : row + ROWS], c[row : row + ROWS], None, None, seed))
    moved = chance.random() < 0.5  # every one reads rows of b of its own
    first, step = (0, 1) if nl.num_programs() < 2 else (nl.program_id(0), 2)
    builders = []
    for unit in range(first, count, step):
        rows = slice(unit * ROWS, (unit + 1) * ROWS)
        place = scratch[2 * P * unit : 2 * P * (unit + 1)]
        builder = ProgramBuilder(a[rows], b[rows] if moved else b, out[rows], place, seed)
        if shared:
            tile = shared[unit * len(shared) // count].tiles[0]
            builder.shared.append(tile) if groups else builder.tiles.append(tile)
        builders.append(builder)
        if chance.random() < 0.2:
            nisa.memset(nl.ndarray((P, F), nl.float32), 1.0)  # in no unit
    names = [
        chance.choice(SELDOM[:9] if chance.random() < rare else OFTEN) for _ in range(chance.randrange(3, 16))
    ]
    names = [chance.choice((name, "use_shared")) for name in names] if groups else names
    steps = [(i, unit) for i in range(len(names)) for unit in range(len(builders))]
    if chance.random() < 0.5:
        steps.sort(key=lambda step: step[1])
    for i, unit in steps:
        builder = builders[unit]
        getattr(builder, "clear" if (i, unit) == spoiled else names[i])()
    for builder in builders:
        while builder.free:
            builder.store()
    return out


def program_of_units(seed, rare, count, spoiled=None, degree=1, groups=0):
    """A traced program, and arrays to run it on."""
    chance = np.random.default_rng(seed)
    arrays = [chance.integers(-2, 3, (count * ROWS, COLUMNS)).astype(np.float32) for _ in range(3)]
    kernel = kernel_of_units[2] if degree == 2 else kernel_of_units
    with target("trn2"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kernel.trace(*arrays, seed, rare, count, spoiled, groups), arrays
