"""The waits that columns of accesses give are those of a history of each storage's accesses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.boxes import box, space_of
from nki.ir.dependences import RAW, WAR, WAW, AccessHistory, wait
from nki.timing.access_columns import AccessColumns, accesses
from nki.timing.entries import SignatureNumbers
from nki.timing.operation import SPACE
from nki.timing.operation_plan import OperationPlan
from support import target

X = nki.TensorSpec((512, 64), "float32")
SLICES = (slice(0, 64), slice(0, 32), slice(32, 64), slice(16, 48))


def program_of(steps):
    """Loads, sums, copies, products and stores on parts of a few tiles, in any order."""

    def kernel(x):
        out = nl.ndarray((512, 64), nl.float32, buffer=nl.shared_hbm)
        scratch = nl.ndarray((512, 64), nl.float32, buffer=nl.hbm)
        tiles = [nl.ndarray((128, 64), nl.float32) for _ in range(4)]
        placed = nl.ndarray((128, 64), nl.float32, address=(0, 4096))
        banks = [nl.ndarray((64, 64), nl.float32, buffer=nl.psum) for _ in range(2)]
        for tile in (*tiles, placed):
            nisa.memset(tile, 1.0)
        for what, i, j, part in steps:
            rows, columns = slice(128 * i, 128 * i + 128), SLICES[part]
            one, other = tiles[i][:, columns], tiles[j][:, columns]
            if what == "load":
                tiles[i] = nl.ndarray((128, 64), nl.float32)
                nisa.dma_copy(tiles[i], x[rows])
            elif what == "sum":
                nisa.tensor_tensor(one, other, placed[:, columns], nl.add)
            elif what == "place":
                nisa.tensor_copy(placed[:, columns], other)
            elif what == "product":
                nisa.nc_matmul(banks[i % 2][:, columns], tiles[j], other, accumulate=False)
                nisa.tensor_copy(tiles[i][:64, columns], banks[i % 2][:, columns])
            else:
                nisa.dma_copy(scratch[rows, columns], one)
                nisa.dma_copy(other, scratch[rows, columns])
        for i, tile in enumerate(tiles):
            nisa.dma_copy(out[128 * i : 128 * i + 128], tile)
        return out

    with target("trn2"):
        return nki.jit(kernel).trace(X)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["load", "sum", "place", "product", "store"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=30,
)


def planned(program, as_written):
    listed = SignatureNumbers().listed(program.cores[0], range(len(program)))
    found = AccessColumns(listed.instructions, program.columns, 0)
    plan = OperationPlan(program.machine, listed, found, as_written=as_written)
    plan.plan()
    return plan


class TensorAccesses:
    """The accesses of a tensor whose slices are not told apart; `apart` gets the waits that share no byte."""

    def __init__(self, apart):
        self.apart, self.writes, self.reads, self.is_written = apart, {}, {}, False

    def read(self, number, box, waits):
        for other, writer in self.writes.items():
            self._wait(number, writer, box.overlaps(other), RAW, waits)
        if self.is_written:
            self.reads, self.is_written = {}, False
        self.reads.setdefault(box, []).append(number)

    def write(self, number, box, waits):
        for other, readers in self.reads.items():
            for reader in readers:
                self._wait(number, reader, box.overlaps(other), WAR, waits)
        for other, writer in list(self.writes.items()):
            if box.overlaps(other):
                wait(waits, number, writer, WAW)
                if box.contains(other):
                    del self.writes[other]
        self.writes[box], self.is_written = number, True

    def _wait(self, number, other, shares, why, waits):
        if other != number and other not in waits and not shares:
            self.apart.setdefault(number, set()).add(other)
        wait(waits, number, other, why)


def expected_waits(plan, as_written):
    """The waits for data of each operation, and those that share no byte, one access after the other."""
    spaces, apart, found = {}, {}, []
    in_hbm = [
        {view.storage for i in plan.instructions for view in accesses(i)[way] if not view.on_chip}
        for way in (0, 1)
    ]
    for index, position in enumerate(plan.table.positions):
        found.append({})
        for way, views in enumerate(accesses(plan.instructions[position])):
            for view in views:
                storage = view.storage
                if storage in in_hbm[0] ^ in_hbm[1]:
                    continue
                is_tensor = as_written and storage.on_chip and storage.address is None
                new = TensorAccesses(apart) if is_tensor else AccessHistory()
                history = spaces.setdefault(space_of(storage), new)
                (history.write if way else history.read)(index, box(view), found[-1])
    return found, apart


@pytest.mark.parametrize("as_written", [True, False])
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_waits_are_those_of_the_history_of_accesses(as_written, steps):
    plan = planned(program_of(steps), as_written)
    waits, apart = expected_waits(plan, as_written)
    for op, expected in zip(plan.operations, waits, strict=True):
        found = dict(op.waits)
        space = {other for other, why in found.items() if why == SPACE}
        assert {other: why for other, why in found.items() if other not in space} == expected
        assert all(other < op.index for other in space)
    assert plan.apart == apart


def test_a_declared_edge_waits_for_the_result():
    plan = planned(program_of([("sum", 0, 1, 0)]), True)
    last = len(plan.operations) - 1
    plan.add_waits([(last, 0)])
    assert plan.operations[last].waits[0] == RAW
