"""The columns of a program are what a walk over its objects finds."""

import random

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.backends.lowered import Lowered
from nki.check.capacity import _fit_at_once
from nki.check.psum import PsumWatch, _may_continue
from nki.ir import columns as module
from nki.ir.columns import ProgramColumns
from nki.ir.liveness import lifetimes, peak
from nki.machine.memories import SBUF


@nki.jit
def gathered(x, index):
    """Run-time addresses and a loop: the number of views differs between instructions."""
    out = nl.ndarray((4, 8), x.dtype, buffer=nl.shared_hbm)
    rows = nl.ndarray((4, 1), nl.int32)
    nisa.dma_copy(rows, index)
    tile = nl.ndarray((4, 8), x.dtype)
    nisa.dma_copy(tile, x.vector_select(0, rows))
    for _ in nl.dynamic_range(2):
        nisa.tensor_tensor(tile, tile, tile, nl.add)
        other = nl.ndarray((4, 8), x.dtype)
        nisa.tensor_copy(other, tile)
    nisa.dma_copy(out, tile)
    return out


def sums(seed):
    """Matmuls, copies and writes on a few PSUM tiles and their parts, in any order."""

    @nki.jit
    def kernel(x):
        chance = random.Random(seed)
        left, right = nl.ndarray((128, 128), nl.bfloat16), nl.ndarray((128, 64), nl.bfloat16)
        nisa.memset(left, 1.0)
        nisa.memset(right, 1.0)
        sbuf = nl.ndarray((128, 64), nl.float32)
        nisa.memset(sbuf, 0.0)
        for _ in range(chance.choice((1, 3))):
            psum = nl.ndarray((128, 64), nl.float32, buffer=nl.psum)
            for _ in range(chance.randint(1, 5)):
                part = chance.choice((psum, psum[:, 0:32]))
                columns = part.shape[1]
                if chance.random() < 0.6:
                    nisa.nc_matmul(part, left, right[:, 0:columns], accumulate=chance.choice((None, False)))
                elif chance.random() < 0.5:
                    nisa.tensor_copy(sbuf[:, 0:columns], part)
                else:
                    nisa.tensor_copy(part, sbuf[:, 0:columns])
        return x

    return kernel.trace(nki.TensorSpec((128, 8), "float32"))


def program_of_gathers():
    return gathered.trace(nki.TensorSpec((16, 8), "float32"), nki.TensorSpec((4, 1), "int32"))


@pytest.mark.parametrize("make", [program_of_gathers, lambda: sums(3)])
def test_columns_hold_the_signature_and_the_views_of_every_instruction(make):
    program = make()
    columns, items = program.columns.of(0), [*program.walk()]
    assert [columns.samples[n].access for n in columns.signature] == [item.access for item in items]
    assert len({id(sample.access) for sample in columns.samples}) == len(columns.samples)
    places = [(position, v.storage, v.offset) for position, i in enumerate(items) for v in i.views()]
    storages = [program.columns.storages[number] for number in columns.storage]
    assert [*zip(columns.positions(), storages, columns.offset, strict=True)] == places
    assert program.columns.has_loops == [any(item not in items for item in program.cores[0])]


def test_operands_are_numbered_over_all_signatures():
    program = sums(5)
    columns = program.columns.of(0)
    names = [(sample.access, name) for sample in columns.samples for name in sample.access.views]
    walked = [(item.access, name) for item in program.walk() for name in item.access.views]
    assert [(id(names[n][0]), names[n][1]) for n in columns.operands()] == [
        (id(a), name) for a, name in walked
    ]


def test_storages_are_of_one_kind_if_they_differ_in_name_and_line_alone():
    @nki.jit
    def kernel(x):
        for shape, dtype in [
            ((8, 4), nl.float32),
            ((8, 4), nl.float32),
            ((4, 8), nl.float32),
            ((8, 4), nl.int32),
        ]:
            nisa.memset(nl.ndarray(shape, dtype), 0.0)
        nisa.memset(nl.ndarray((8, 4), nl.float32, address=(0, 0)), 0.0)
        return x

    program = kernel.trace(nki.TensorSpec((8, 4), "float32"))
    kinds, known = program.columns.storage_kinds
    assert kinds.tolist() == [0, 1, 1, 2, 3, 4] and len(known) == 5


def test_a_storage_that_the_program_does_not_list_has_a_number_too():
    program = sums(1)
    columns = ProgramColumns(program.cores, program.storages[:1])
    assert set(columns.storages) == set(program.storages) and columns.storages[0] is program.storages[0]
    found = [columns.storages[number] for number in columns.of(0).storage]
    assert found == [view.storage for item in program.walk() for view in item.views()]


@pytest.mark.parametrize("few", (0, module.FEW))
def test_products_that_go_on_are_never_missed(few, monkeypatch):
    monkeypatch.setattr(module, "FEW", few)  # 0: columns are used for short programs, too
    decided = set()
    for seed in range(60):
        program = sums(seed)
        watch = PsumWatch({})
        for instruction in program.walk():
            watch(instruction)
        may = _may_continue(program, 0, {})
        assert may or not watch.found
        decided.add((may, bool(watch.found)))
    assert decided == {(False, False), (True, False), (True, True)}


def test_an_empty_program_has_empty_columns():
    columns = ProgramColumns([()], []).of(0)
    found = columns.signature, columns.storage, columns.offset, columns.positions(), columns.operands()
    assert [(column.size, column.dtype) for column in found] == [(0, np.int64)] * 5


@pytest.fixture
def always(monkeypatch):
    """Columns are used for short programs, too."""
    monkeypatch.setattr(module, "FEW", 0)


def test_signatures_are_those_of_the_items(always):
    lowered = Lowered(sums(7))
    assert lowered.kinds[0] == [lowered.signature(item) for item in lowered.items[0]]
    lowered = Lowered(program_of_gathers())  # with a loop
    assert lowered.kinds[0].count(None) == 1


def reused_tiles(seed, addresses):
    @nki.jit
    def kernel(x):
        chance, tiles = random.Random(seed), []
        for number in range(30):
            address = (0, 64 * number) if addresses and chance.random() < 0.2 else None
            tiles.append(nl.ndarray((chance.choice((32, 128)), 4), nl.float32, address=address))
            nisa.memset(tiles[-1], 0.0)
            tile = chance.choice(tiles[-6:])
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        return x

    return kernel.trace(nki.TensorSpec((8, 4), "float32"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("addresses", [False, True])
def test_what_is_live_at_once_fits_exactly_from_its_peak_on(always, seed, addresses):
    program = reused_tiles(seed, addresses)
    lives = {s: life for s, life in lifetimes(program.cores[0]).items() if s.buffer is SBUF}
    most = peak(lives, lambda storage: storage.taken(program.machine)).nbytes
    assert _fit_at_once(program, SBUF, most) and not _fit_at_once(program, SBUF, most - 1)


def test_short_programs_and_loops_are_walked():
    assert not _fit_at_once(reused_tiles(0, False), SBUF, 1 << 20)
    assert not program_of_gathers().columns.pays(0)
