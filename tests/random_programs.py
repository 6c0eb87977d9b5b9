"""Random programs: lists of operations that hypothesis generates, and a machine that issues them in a kernel.

An operation is a tuple: the name of a method of `Machine`, and its arguments.
"""

from __future__ import annotations

import contextlib
import io
import warnings

import numpy as np
from hypothesis import strategies as st

import nki
import nki.collectives as nccl
import nki.isa as nisa
import nki.language as nl
from nki.backends.reference import random as random_state
from nki.check.races import races
from nki.collectives.instruction import Collective
from nki.language.dynamic_loop import LoopIteration
from passes.dead_code import without_dead_code
from passes.renaming import renamed
from passes.reordering import reordered
from support import target

ROWS, COLUMNS, TILES = 8, 16, 4
DTYPES = (
    *("float32", "float32", "float32", "bfloat16", "float16", "tfloat32", "int32", "uint32"),
    *("int16", "uint16", "int8", "uint8", "bool_", "float8_e4m3", "float8_e5m2"),
)
OPERATORS = ("add", "multiply", "maximum", "subtract")
COMMANDS = ("idle", "reset", "reduce", "reset_reduce", "load_reduce")
# by name: the cache compares tables; a kernel that computes the name of an attribute runs its Python again
DTYPE_OF = {name: getattr(nl, name) for name in DTYPES}
OPERATOR_OF = {name: getattr(nl, name) for name in OPERATORS}
COMMAND_OF = {name: getattr(nisa.reduce_cmd, name) for name in COMMANDS}

tile = st.integers(0, TILES - 1)
columns = st.sampled_from([(0, COLUMNS), (0, 8), (4, 12), (8, 16), (3, 4)])
register = st.integers(0, 1)
number = st.integers(0, 12)
place = st.integers(0, 7)
command = st.sampled_from(COMMANDS)
flag = st.booleans()


def op(name, *arguments):
    return st.tuples(st.just(name), *arguments)


PLAIN = {
    "load": op("load", tile, columns),
    "store": op("store", tile, columns),
    "memset": op("memset", tile, columns, st.sampled_from([0.0, 1.5, -2.0])),
    "combine": op("combine", tile, tile, tile, st.sampled_from(OPERATORS)),
    "scale": op("scale", tile, tile, columns, st.sampled_from([2.0, -1.0])),
    "reduce": op("reduce", tile, tile),
    "matmul": op("matmul", tile, tile, flag),
    "fresh": op("fresh", tile, flag),
    "gather": op("gather", tile, flag),
    "register": op("register", tile, number),
    "random": op("random", tile),
    "write": op("write", tile),
    "constant": op("constant", tile),
    "placed": op("placed", tile, st.sampled_from([0, 32, 64])),
}

MORE = {
    "copy": op("copy", tile, tile),
    "rotate": op("rotate", st.integers(1, 3)),
    "window": op("window", tile, st.sampled_from([1, 2, 4]), st.integers(0, 7)),
    "by_column": op("by_column", tile, tile, place),
    "product": op("product", tile, tile, st.sampled_from([None, True, False]), columns),
    "drain": op("drain", tile, columns),
    "clear_sum": op("clear_sum", columns),
    "transpose": op("transpose", tile, tile),
    "skip_gather": op("skip_gather", tile, number, flag),
    "place_as": op(
        "place_as", tile, st.sampled_from([0, 16, 48, 64]), st.sampled_from(["bfloat16", "int32"])
    ),
    "predicated": op("predicated", tile, tile),
    "mask": op("mask", tile, columns),
    "activate": op("activate", tile, tile, command, st.one_of(st.none(), place)),
    "reduce_with": op("reduce_with", tile, tile, command, st.one_of(st.none(), place)),
    "running": op("running", tile, tile, command),
    "select": op("select", tile, tile, command, st.one_of(st.none(), place)),
    "shuffle": op("shuffle", tile, tile, st.integers(0, 3)),
    "nonzero": op("nonzero", tile),
    "replace": op("replace", tile, tile, tile, flag),
    "pick": op("pick", tile, tile, number),
    "sum": op("sum", tile, st.lists(tile, min_size=2, max_size=4).map(tuple)),
    "add_rows": op("add_rows", tile),
    "indirect": op("indirect", tile, tile, flag),
    "print": op("print", tile),
    "seed": op("seed", st.integers(0, 3)),
    "sample": op("sample", flag),
    "state": op("state", tile),
    "drop": op("drop", tile, tile),
    "move": op("move", register, st.one_of(number, st.just("other"))),
    "read": op("read", register, place),
    "store_register": op("store_register", register, place),
    "slide": op("slide", tile, register),
    "shift": op("shift", tile, tile, register, flag),
    "count": op("count", tile, register),
    "all_reduce": op("all_reduce", tile, tile),
    "together": op("together", tile, tile),
    "edge": op("edge", st.integers(0, 5), st.integers(0, 5)),
}

MEETINGS = {
    "exchange": op("exchange", tile, tile),
    "barrier": op("barrier"),
    "publish": op("publish", tile),
    "look_over": op("look_over", tile),
    "only": op("only", register, st.one_of(*PLAIN.values())),
}


def nested(plain):
    """Operations, and dynamic loops around some of them."""
    body = st.lists(st.one_of(*plain, inner_loops(plain)), min_size=1, max_size=5).map(tuple)
    return st.one_of(*plain, *plain, op("loop", st.integers(0, 3), flag, body), op("until", number, body))


def inner_loops(plain):
    return op("loop", st.integers(0, 2), flag, st.lists(st.one_of(*plain), max_size=3).map(tuple))


OPERATIONS = st.one_of(*PLAIN.values())
RICH = nested([*PLAIN.values(), *MORE.values()])
ON_TWO_CORES = nested([*PLAIN.values(), *MORE.values(), *MEETINGS.values(), *MEETINGS.values()])


class Machine:
    """Issues operations inside a kernel."""

    def __init__(self, x, index, out, dtypes=("float32",) * TILES, rich=False):
        self.x, self.index, self.out = x, index, out
        self.dtypes = [DTYPE_OF[name] for name in dtypes]
        self.tiles = [nl.ndarray((ROWS, COLUMNS), dtype) for dtype in self.dtypes]
        self.psum = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
        if rich:
            self._more()

    def _more(self):
        """What the operations beyond the plain ones work with."""
        self.counts = nl.ndarray((1, 8), nl.int32)
        nisa.dma_copy(self.counts, self.index.reshape((1, ROWS)))
        self.rows = nl.ndarray((ROWS, 1), nl.int32)
        nisa.dma_copy(self.rows, self.index)
        self.columns = nl.ndarray((ROWS, 8), nl.float32)
        self.predicate = nl.ndarray((ROWS, COLUMNS), nl.uint8)
        self.places = nl.ndarray((ROWS, 8), nl.uint32)
        self.found = nl.ndarray((ROWS, COLUMNS + 1), nl.int32)
        self.bits = nl.ndarray((ROWS, 8), nl.uint32)
        self.transposed = nl.ndarray((COLUMNS, ROWS), nl.float32, buffer=nl.psum)
        self.registers = [nisa.register_alloc(3), nisa.VirtualRegister(5)]
        self.shared = nl.ndarray((2 * ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm, name="shared")
        self.issued = []
        self.core = nl.program_id(0) if nl.num_programs() > 1 else 0
        for column in (self.columns, self.predicate, self.found, self.bits):
            nisa.memset(column, 0)

    def do(self, name, *args):
        """Issue an operation; what the rules refuse is left out."""
        with contextlib.suppress(nki.NkiError):
            STEPS[name](self, *args)

    # ---- plain ones ------------------------------------------------------------------------------

    def load(self, t, part):
        nisa.dma_copy(self.tiles[t][:, part[0] : part[1]], self.x[0:ROWS, part[0] : part[1]])

    def store(self, t, part):
        nisa.dma_copy(self.out[:, part[0] : part[1]], self.tiles[t][:, part[0] : part[1]])

    def memset(self, t, part, value):
        nisa.memset(self.tiles[t][:, part[0] : part[1]], value)

    def combine(self, dst, a, b, op):
        nisa.tensor_tensor(self.tiles[dst], self.tiles[a], self.tiles[b], OPERATOR_OF[op])

    def scale(self, dst, src, part, factor):
        window = slice(*part)
        nisa.tensor_scalar(self.tiles[dst][:, window], self.tiles[src][:, window], nl.multiply, factor)

    def reduce(self, dst, src):
        column = nl.ndarray((ROWS, 1), nl.float32)
        nisa.tensor_reduce(column, nl.add, self.tiles[src], axis=1)
        nisa.tensor_copy(self.tiles[dst][:, 0:1], column)

    def matmul(self, a, b, drain):
        nisa.nc_matmul(self.psum[:, 0:COLUMNS], self.tiles[a][:, 0:ROWS], self.tiles[b])
        if drain:
            nisa.tensor_copy(self.tiles[a], self.psum)

    def fresh(self, t, in_place):
        self.tiles[t] = nl.ndarray((ROWS, COLUMNS), self.dtypes[t])
        if in_place:
            nisa.memset(self.tiles[t][0:ROWS, 0:4], 1.0)

    def gather(self, t, scatter):
        rows = nl.ndarray((ROWS, 1), nl.int32)
        nisa.dma_copy(rows, self.index)
        if scatter:
            nisa.dma_copy(self.out.vector_select(0, rows), self.tiles[t])
        else:
            nisa.dma_copy(self.tiles[t], self.x.vector_select(0, rows))

    def register(self, t, start):
        register = nisa.register_alloc(start)
        nisa.dma_copy(self.tiles[t][:, 0:4], self.x[0:ROWS, nl.ds(register, 4)])
        loaded = nisa.register_alloc(self.index[0:1, 0:1])
        nisa.dma_copy(self.tiles[t][:, 4:8], self.x[0:ROWS, nl.ds(loaded, 4)])

    def random(self, t):
        nisa.rng(self.tiles[t].view(nl.uint32))
        nisa.tensor_scalar(self.tiles[t].view(nl.uint32), self.tiles[t].view(nl.uint32), nl.bitwise_and, 7)

    def write(self, t):
        nisa.dma_copy(self.x[0:ROWS], self.tiles[t])

    def constant(self, t):
        table = nl.shared_constant(np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS))
        nisa.dma_copy(self.tiles[t], table)

    def placed(self, t, byte):
        self.tiles[t] = nl.ndarray((ROWS, COLUMNS), self.dtypes[t], address=(0, byte))

    # ---- tiles -----------------------------------------------------------------------------------

    def copy(self, dst, src):
        nisa.tensor_copy(self.tiles[dst], self.tiles[src])

    def rotate(self, by):
        self.tiles = self.tiles[by:] + self.tiles[:by]
        self.dtypes = self.dtypes[by:] + self.dtypes[:by]

    def window(self, t, width, start):
        dtype = {1: nl.uint8, 2: nl.uint16, 4: nl.uint32}[width]
        view = self.tiles[t].view(dtype)
        nisa.memset(view[2:6, start : start + 3], 5)
        nisa.tensor_copy(view[:, 0:2], view[:, start : start + 2])

    def by_column(self, dst, src, c):
        nisa.tensor_scalar(self.tiles[dst], self.tiles[src], nl.add, self.columns[:, c : c + 1])

    def product(self, a, b, accumulate, part):
        window = slice(*part)
        moving = self.tiles[b][:, window]
        nisa.nc_matmul(self.psum[:, window], self.tiles[a][:, 0:ROWS], moving, accumulate=accumulate)

    def drain(self, t, part):
        nisa.tensor_copy(self.tiles[t][:, part[0] : part[1]], self.psum[:, part[0] : part[1]])

    def clear_sum(self, part):
        nisa.memset(self.psum[:, part[0] : part[1]], 0.0)

    def transpose(self, dst, src):
        nisa.nc_transpose(self.transposed, self.tiles[src])
        nisa.tensor_copy(self.tiles[dst][:, 0:ROWS], self.transposed[0:ROWS, :])

    def skip_gather(self, t, start, scatter):
        nisa.tensor_scalar(self.rows, self.rows, nl.add, start)
        skip = nisa.oob_mode.skip
        if scatter:
            nisa.dma_copy(self.out.vector_select(0, self.rows), self.tiles[t], oob_mode=skip)
        else:
            nisa.dma_copy(self.tiles[t], self.x.vector_select(0, self.rows), oob_mode=skip)
        nisa.dma_copy(self.rows, self.index)

    def place_as(self, t, byte, dtype):
        self.dtypes[t] = DTYPE_OF[dtype]
        self.tiles[t] = nl.ndarray((ROWS, COLUMNS), self.dtypes[t], address=(0, byte))

    def predicated(self, dst, src):
        nisa.tensor_copy_predicated(self.tiles[dst], self.tiles[src], self.predicate)

    def mask(self, t, part):
        window = slice(*part)
        nisa.tensor_scalar(self.predicate[:, window], self.tiles[t][:, window], nl.greater, 0.0)

    def shuffle(self, dst, src, which):
        mask = [(3, 255, 0, 7), (255, 255, 1, 255), (0, 1, 2, 3), (7, 6, 255, 4)][which]
        nisa.nc_stream_shuffle(self.tiles[dst], self.tiles[src], [*mask, *mask, *[255] * 24])

    def nonzero(self, t):
        nisa.nonzero_with_count(self.found, self.tiles[t])
        nisa.tensor_copy(self.tiles[t][0:1], self.found[0:1, 1:])

    def replace(self, dst, src, values, places):
        eight = self.tiles[values][:, 0:8]
        found = self.places if places else None
        nisa.nc_match_replace8(self.tiles[dst], self.tiles[src], eight, -1.0, found)
        if places:
            nisa.tensor_copy(self.columns, self.places)

    def pick(self, dst, src, start):
        indices = nl.ndarray((ROWS, COLUMNS), nl.uint32)
        nisa.iota(indices, [[0, COLUMNS]], start)
        nisa.nc_n_gather(self.tiles[dst], self.tiles[src], indices)

    def sum(self, dst, sources):
        nisa.dma_compute(self.tiles[dst], [self.tiles[t] for t in sources], nl.add)

    def add_rows(self, t):
        rows = self.out.vector_select(0, self.rows)
        nisa.dma_compute(rows, [rows, self.tiles[t]], nl.add)

    def indirect(self, dst, src, scatter):
        index = nl.ndarray((16, 1), nl.uint16)
        nisa.iota(index, [[1, 1]], 1, 1)
        nisa.tensor_copy(index[0:1], self.counts[0:1, 0:1])
        if scatter:
            nisa.tensor_copy(self.tiles[dst].indirect(index, 8), self.tiles[src][:, 0:8])
        else:
            nisa.tensor_copy(self.tiles[dst][:, 0:8], self.tiles[src].indirect(index, 8))

    # ---- state -----------------------------------------------------------------------------------

    def _result(self, place):
        return None if place is None else self.columns[:, place : place + 1]

    def activate(self, dst, src, command, place):
        nisa.activation(
            self.tiles[dst],
            nl.tanh,
            self.tiles[src],
            bias=self.columns[:, 7:8],
            reduce_op=nl.add,
            reduce_res=self._result(place),
            reduce_cmd=COMMAND_OF[command],
        )

    def reduce_with(self, dst, src, command, place):
        loads = command == "load_reduce"
        nisa.tensor_scalar_reduce(
            self.tiles[dst],
            self.tiles[src],
            nl.add,
            1.0,
            nl.add,
            self._result(place),
            reduce_cmd=COMMAND_OF[command],
            reduce_init=self.columns[:, 0:1] if loads else None,
        )

    def running(self, dst, src, command):
        nisa.tensor_scalar_cumulative(
            self.tiles[dst],
            self.tiles[src],
            nl.multiply,
            nl.add,
            0.5,
            2.0 if command == "load_reduce" else None,
            reduce_cmd=COMMAND_OF[command],
        )

    def select(self, dst, src, command, place):
        nisa.select_reduce(
            self.tiles[dst],
            self.predicate,
            self.tiles[src],
            -3.0,
            reduce_res=self._result(place),
            reduce_cmd=COMMAND_OF[command],
        )

    def print(self, t):
        nl.device_print(f"tile {t}", self.tiles[t])

    def seed(self, value):
        seed = nl.ndarray((1, 1), nl.int32)
        nisa.memset(seed, value)
        nisa.set_rng_seed(seed)

    def sample(self, gpsimd):
        nisa.rng(self.bits, engine=nisa.engine.gpsimd if gpsimd else nisa.engine.vector)
        nisa.tensor_scalar(self.bits, self.bits, nl.bitwise_and, 15)
        nisa.tensor_copy(self.columns, self.bits)

    def state(self, t):
        words = nl.ndarray((ROWS, 6), nl.uint32)
        nisa.rand_get_state(words)
        nisa.tensor_scalar(words, words, nl.bitwise_and, 255)
        nisa.tensor_copy(self.tiles[t][:, 0:6], words)

    def drop(self, dst, src):
        nisa.dropout(self.tiles[dst], self.tiles[src], 0.5)

    def all_reduce(self, dst, src):
        group = nccl.ReplicaGroup([[0]])
        nccl.all_reduce([self.tiles[src]], [self.tiles[dst]], group, nl.add)

    # ---- registers -------------------------------------------------------------------------------

    def move(self, r, value):
        nisa.register_move(self.registers[r], self.registers[1 - r] if value == "other" else value)

    def read(self, r, place):
        nisa.register_load(self.registers[r], self.counts[0:1, place : place + 1])

    def store_register(self, r, place):
        nisa.register_store(self.counts[0:1, place : place + 1], self.registers[r])

    def slide(self, t, r):
        nisa.dma_copy(self.tiles[t][:, 0:4], self.x[0:ROWS, nl.ds(self.registers[r], 4)])

    def shift(self, dst, src, r, writes):
        window = nl.ds(self.registers[r], 4)
        if writes:
            nisa.tensor_copy(self.tiles[dst][:, window], self.tiles[src][:, 0:4])
        else:
            nisa.tensor_copy(self.tiles[dst][:, 0:4], self.tiles[src][:, window])

    def count(self, t, r):
        nisa.iota(self.tiles[t], [[1, COLUMNS]], self.registers[r], 2)

    # ---- order -----------------------------------------------------------------------------------

    def together(self, a, b):
        with nl.no_reorder():
            nisa.memset(self.tiles[a][:, 0:2], 2.0)
            self.issued.append(nisa.memset(self.tiles[b][:, 2:4], 3.0))
            nisa.memset(self.tiles[a][:, 4:6], 4.0)

    def edge(self, later, earlier):
        if later != earlier and max(later, earlier) < len(self.issued):
            self.issued[max(later, earlier)].depends_on(self.issued[min(later, earlier)])

    def loop(self, trips, dynamic, body):
        upper = trips
        if dynamic:
            upper = nisa.register_alloc(trips)
        tiles, issued = list(self.tiles), list(self.issued)

        def run(i):
            self.registers.append(i)
            for name, *args in body:
                self.do(name, *args)
            held = nl.ndarray((ROWS, 1), nl.float32)
            nisa.memset(held, 1.0)
            nisa.tensor_copy(self.columns[:, nl.ds(i, 1)], held)
            self.registers.pop()

        dtypes = list(self.dtypes)
        nl.fori_loop(0, upper, run)
        self.tiles, self.dtypes, self.issued = tiles, dtypes, issued  # those of the body have ended

    def until(self, start, body):
        """A while loop that counts down from the number of trips."""
        left = nl.ndarray((1, 1), nl.int32)
        nisa.memset(left, start % 3)
        tiles, dtypes, issued = list(self.tiles), list(self.dtypes), list(self.issued)

        def run(condition):
            for name, *args in body:
                self.do(name, *args)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            return nisa.register_alloc(left)

        nl.while_loop(nisa.register_alloc(left), run)
        self.tiles, self.dtypes, self.issued = tiles, dtypes, issued

    # ---- two cores -------------------------------------------------------------------------------

    def exchange(self, dst, src):
        other = 1 - self.core
        nisa.sendrecv(self.tiles[src], self.tiles[dst], other, other, 0)

    def barrier(self):
        nisa.core_barrier(self.shared, (0, 1))

    def publish(self, t):
        rows = slice(self.core * ROWS, (self.core + 1) * ROWS)
        nisa.dma_copy(self.shared[rows], self.tiles[t])

    def look_over(self, t):
        rows = slice((1 - self.core) * ROWS, (2 - self.core) * ROWS)
        nisa.dma_copy(self.tiles[t], self.shared[rows])

    def only(self, core, operation):
        if core == self.core:
            self.do(*operation)


@nki.jit
def rich_kernel(x, y, index, operations, dtypes, shown):
    """All operations; `out` and `y` hold what each core found, of the tiles the first `shown`."""
    out = nl.ndarray((2 * ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm, name="out")
    ends = [nl.ndarray((2 * ROWS, COLUMNS), nl.float32, buffer=nl.shared_hbm, name=n) for n in "abcd"[:shown]]
    two = nl.num_programs() > 1
    first = ROWS * nl.program_id(0) if two else 0
    machine = Machine(x, index, out[first : first + ROWS], dtypes, rich=True)
    nisa.dma_copy(machine.shared[first : first + ROWS], x[0:ROWS])
    nisa.memset(machine.psum, 0.0)
    for t in machine.tiles:
        nisa.dma_copy(t, x[0:ROWS])
    nisa.dma_copy(out[first : first + ROWS], x[0:ROWS])
    if not two:
        nisa.dma_copy(out[ROWS:], x[0:ROWS])
    if two:
        nisa.core_barrier(machine.shared, (0, 1))
    for name, *args in operations:
        machine.do(name, *args)
    if two:
        nisa.core_barrier(machine.shared, (0, 1))
    nisa.dma_copy(y[first : first + ROWS, 0:8], machine.columns)
    nisa.dma_copy(y[first : first + 1, 8:16], machine.counts)
    for end, t in zip(ends, machine.tiles, strict=False):
        nisa.dma_copy(end[first : first + ROWS], t)
    return out, [y, ends]


def data(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 5, (rows, COLUMNS)).astype(np.float32)


def rich_arguments(seed):
    index = np.random.default_rng(seed + 9).permutation(ROWS).reshape(ROWS, 1).astype(np.int32)
    return data(seed, 12), data(seed + 1, 2 * ROWS), index


@st.composite
def rich_programs(draw, operations=None, cores=None, size=16, dtypes=DTYPES):
    """A traced program, and arrays to run it on."""
    degree = draw(st.sampled_from((1, 1, 2))) if cores is None else cores
    strategy = operations if operations is not None else (ON_TWO_CORES if degree == 2 else RICH)
    chosen = draw(st.lists(strategy, min_size=1, max_size=size).map(tuple))
    kinds = draw(st.tuples(*[st.sampled_from(dtypes)] * TILES))
    platform = draw(st.sampled_from(("trn2", "trn3")))
    shown = draw(st.integers(1, TILES))
    return traced(chosen, kinds, draw(st.integers(0, 3)), degree, platform, shown)


def traced(operations, dtypes=("float32",) * TILES, seed=0, degree=1, platform="trn2", shown=TILES):
    arrays = rich_arguments(seed)
    kernel = rich_kernel[2] if degree == 2 else rich_kernel
    with target(platform), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kernel.trace(*arrays, operations, dtypes, shown), arrays


def outcome(program, arrays):
    """All that a caller can see of a run: results, arguments, printed text, random state; or the error."""
    random_state.reset()
    arrays = [a.copy() for a in arrays]
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        try:
            result = program.run(*arrays)
        except nki.NkiError as problem:
            return f"{problem.kind}: {problem.message}"
    state = {key: words.tobytes() for key, words in sorted(random_state._left.items())}
    return [_bytes(result), _bytes(arrays), printed.getvalue(), state]


def assert_unchanged(program, arrays, seed=0):
    """Every pass, and all of them together, leave what the program does.

    False where it fails by itself, or where its cores race: what it does then is not defined.
    """
    expected = outcome(program, arrays)
    if isinstance(expected, str) or races(program):
        return False
    small, apart = without_dead_code(program), renamed(program)
    every = reordered(without_dead_code(apart), seed + 1)
    for name, other in (
        ("reordered", reordered(program, seed)),
        ("without_dead_code", small),
        ("renamed", apart),
        ("all", every),
    ):
        assert outcome(other, arrays) == expected, f"{name} changes what the program does"
        assert_order_kept(program, other, name)
    return True


def assert_order_kept(program, other, name):
    """What hardware and other ranks see beside values."""
    for core in range(len(program.cores)):
        sent = [[i.public for i in p.walk(core) if isinstance(i, Collective)] for p in (program, other)]
        assert sent[0] == sent[1], f"{name} changes what other ranks see"
    for loop in other.loops:
        heads = [isinstance(i, LoopIteration) for i in loop.body]
        assert heads[:1] == [True] and sum(heads) == 1, f"{name} moves the head of a loop"
    assert all(edge.earlier < edge.later for edge in other.edges), f"{name} reverses an edge"
    blocks = program.blocks if len(other.blocks) == len(program.blocks) else ()  # some may be dead code
    for block, before in zip(other.blocks, blocks, strict=False):
        assert block.last - block.first <= before.last - before.first, f"{name} tears a block apart"
    for p in (program, other):
        assert set(p.storages) >= {v.storage for i in all_instructions(p) for v in i.views()}


def all_instructions(program):
    return [i for core in range(len(program.cores)) for i in program.walk(core)]


def _bytes(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return [_bytes(v) for v in value] if isinstance(value, (list, tuple)) else value


# by name, as above
STEPS = {name: step for name, step in vars(Machine).items() if not name.startswith("_")}
