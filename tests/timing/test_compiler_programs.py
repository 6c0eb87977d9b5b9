"""Transformed programs compute what the program computes, bit for bit."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from nki.ir.effects import storages as storages_of
from nki.timing.compiler.compilation import Compilation
from nki.timing.compiler.stage import TRANSFORMATIONS, Part, compiled, described
from nki.timing.entries import SignatureNumbers
from nki.timing.hoisting import Hoisting
from nki.timing.schedule import schedule
from random_programs import outcome, rich_programs
from support import target

UNHURRIED = {"deadline": None, "suppress_health_check": list(HealthCheck)}
X = np.random.default_rng(7).integers(-4, 5, (128, 256)).astype(np.float32)


def transformed(program, without=()):
    """The program that the timing model sees, and what was changed."""
    cores, changes = [], []
    for items in program.unrolled():
        numbers = SignatureNumbers()
        found = Compilation(program.machine, numbers.listed(*zip(*items, strict=True)), numbers)
        changes.append(compiled(found, tuple(Part), without))
        cores.append(tuple(item.instruction for item in found.items))
    known = dict.fromkeys([*program.storages, *(s for items in cores for s in storages_of(items))])
    return replace(program, cores=tuple(cores), storages=tuple(known)), changes


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype, buffer=buffer)


def build(steps):
    """A kernel of loads, sums in PSUM, copies into columns, reductions and stores."""

    @nki.jit(platform_target="trn2")
    def kernel(x):
        out = nl.ndarray((6 * 128, 256), nl.float32, buffer=nl.shared_hbm)
        wide = [tile((128, 256)) for _ in range(3)]
        narrow = [tile((128, 64)) for _ in range(3)]
        for t in (*wide, *narrow):
            nisa.memset(t, 1.0)
        banks = [tile((128, 64), buffer=nl.psum) for _ in range(3)]
        for t in banks:
            nisa.memset(t, 0.0)
        for what, i, j in steps:
            step(x, out, wide, narrow, banks, what, i, j)
        for i, t in enumerate(wide):
            nisa.dma_copy(out[128 * i : 128 * i + 128], t)
        for i, t in enumerate(narrow):
            nisa.dma_copy(out[128 * (3 + i) : 128 * (4 + i), :64], t)
        return out

    return kernel


def step(x, out, wide, narrow, banks, what, i, j):
    columns = slice(64 * j, 64 * j + 64)
    if what == "load":
        fresh = tile((128, 64))
        nisa.dma_copy(fresh, x[:, columns])
        nisa.tensor_tensor(narrow[i], narrow[i], fresh, nl.add)
    elif what == "reload":
        nisa.dma_copy(narrow[i], x[:, columns])
    elif what == "zero":
        banks[i] = tile((128, 64), buffer=nl.psum)
        nisa.memset(banks[i], 0.0)
    elif what == "zero again":
        nisa.memset(banks[i], 0.0)
    elif what == "matmul":
        nisa.nc_matmul(banks[i], wide[j % 3][:, :128], narrow[j % 3])
    elif what == "transpose":
        fresh = tile((64, 128), buffer=nl.psum)
        nisa.nc_transpose(fresh, narrow[j % 3])
        nisa.tensor_copy(wide[i][:64, 128 * (j % 2) : 128 * (j % 2) + 128], fresh)
    elif what == "products":
        joined = tile((128, 256))
        for part in range(4):
            fresh = tile((128, 64), buffer=nl.psum)
            nisa.nc_matmul(fresh, wide[i][:, :128], narrow[(part + j) % 3])
            nisa.tensor_copy(joined[:, 64 * part : 64 * part + 64], fresh)
        nisa.tensor_tensor(wide[i], wide[i], joined, nl.add)
    elif what == "scores":
        fresh, copy, most = tile((128, 64), buffer=nl.psum), tile((128, 128)), tile((128, 1))
        nisa.nc_matmul(fresh, wide[i][:, :128], narrow[j % 3])
        nisa.tensor_copy(copy[:, 64:], fresh)
        nisa.tensor_reduce(most, nl.maximum, copy[:, 64:128], axis=1)
        nisa.tensor_scalar(narrow[i], copy[:, 64:128], nl.subtract, most)
    elif what == "blocks":
        for part in range(2 + i):
            fresh = tile((128, 64))
            nisa.dma_copy(fresh, x[:, 64 * part : 64 * part + 64])
            nisa.tensor_tensor(product := tile((128, 64)), fresh, narrow[part % 3], nl.multiply)
            nisa.dma_copy(out[128 * j : 128 * j + 128, 64 * part : 64 * part + 64], product)
    elif what == "rows":
        for row in (narrow[i], narrow[j % 3]):
            parts, least, factor = tile((128, 2)), tile((128, 1)), tile((128, 1))
            for part in range(2):
                halves = row[:, 32 * part : 32 * part + 32]
                nisa.tensor_reduce(parts[:, part : part + 1], nl.minimum, halves, axis=1)
            nisa.tensor_reduce(least, nl.minimum, parts, axis=1, negate=True)
            nisa.reciprocal(factor, least)
            nisa.tensor_scalar(row, row, nl.maximum, factor)
    elif what == "copy":
        nisa.tensor_copy(wide[i][:, columns], banks[j % 3])
    elif what == "again":
        nisa.tensor_tensor(fresh := tile((128, 64)), narrow[j % 3], narrow[j % 3], nl.multiply)
        nisa.tensor_tensor(narrow[i], narrow[i], fresh, nl.minimum)
    elif what == "store":
        nisa.dma_copy(out[128 * i : 128 * i + 128, columns], narrow[j % 3])
        nisa.dma_copy(narrow[j % 3], out[128 * i : 128 * i + 128, columns])
    elif what == "kept":
        kept = nl.ndarray((4 * 128, 64), nl.float32, buffer=nl.hbm)
        for part in range(3):
            nisa.dma_copy(kept[128 * part : 128 * part + 128], narrow[part % 3])
        for part in range(3):
            fresh, double = tile((128, 64)), tile((128, 64))
            nisa.dma_copy(fresh, kept[128 * part : 128 * part + 128])
            nisa.tensor_tensor(double, fresh, narrow[i], nl.maximum)
            nisa.dma_copy(kept[128 * (part + j % 2) : 128 * (part + j % 2) + 128], double)
        nisa.dma_copy(narrow[i], kept[128 : 2 * 128])


KINDS = (
    "load", "reload", "zero", "zero again", "matmul", "transpose", "products", "scores", "copy", "again",
    "store", "rows", "blocks", "kept",
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=25
)


def check(steps, without=()):
    program = build(steps).trace(nki.TensorSpec(X.shape, "float32"))
    other, changes = transformed(program, without)
    np.testing.assert_array_equal(other.run(X), program.run(X))
    return changes[0]


@settings(max_examples=60, **UNHURRIED)
@given(STEPS)
@pytest.mark.filterwarnings("ignore")
def test_random_programs_of_these_steps_compute_the_same(steps):
    check(steps)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_1000_random_programs_compute_the_same():
    seen = set()

    @settings(max_examples=1000, database=None, **UNHURRIED)
    @given(STEPS)
    def run(steps):
        seen.update(check(steps))

    run()
    assert seen >= {one.name for one in TRANSFORMATIONS} - {
        "engines",
        "broadcasts",
        "casts",
        "transposed-loads",
        "divisions",
        "scalings",
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["trn1", "trn2"])
def test_loads_of_columns_become_rows_and_transposes(platform, dtype):
    def kernel(x):
        out = nl.ndarray((64, 33), x.dtype, buffer=nl.shared_hbm)
        matrix, column = tile((64, 32), x.dtype), tile((64, 1), x.dtype)
        nisa.dma_copy(matrix, x[3:35, 5:69].permute((1, 0)))
        nisa.dma_copy(column, x[0, :64].reshape((64, 1)))
        nisa.dma_copy(out[:, :32], matrix)
        nisa.dma_copy(out[:, 32:], column)
        return out

    with target(platform):
        program = nki.jit(kernel).trace(nki.TensorSpec(X.shape, dtype))
    other, (changes,) = transformed(program)
    assert changes["transposed-loads"] == 2
    assert [i.public for i in other.walk()].count("nc_transpose") == 2
    data = X.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else X
    np.testing.assert_array_equal(other.run(data), program.run(data))
    assert "transposed-loads" not in transformed(program, ("transposed-loads",))[1][0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["trn1", "trn2"])
def test_stores_of_columns_become_transposes_and_rows(platform, dtype):
    def kernel(x):
        out = nl.ndarray((40, 64), x.dtype, buffer=nl.shared_hbm)
        t = tile((64, 32), x.dtype)
        nisa.dma_copy(t, x[:64, :32])
        nisa.dma_copy(out[4:36, :].permute((1, 0)), t)
        nisa.dma_copy(out[:4, :], x[:4, :64])
        nisa.dma_copy(out[36:, :], x[:4, :64])
        return out

    with target(platform):
        program = nki.jit(kernel).trace(nki.TensorSpec(X.shape, dtype))
    other, (changes,) = transformed(program)
    assert changes["transposed-loads"] == 1
    assert [i.public for i in other.walk()].count("nc_transpose") == 1
    data = X.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else X
    np.testing.assert_array_equal(other.run(data), program.run(data))


@pytest.mark.parametrize(("platform", "by_tensor_engine"), [("trn1", True), ("trn2", False)])
def test_only_trn1_has_no_dma_that_transposes(platform, by_tensor_engine):
    def kernel(x):
        out = nl.ndarray((64, 128), x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load_transpose2d(x[:, :64]))
        return out

    with target(platform):
        program = nki.jit(kernel).trace(nki.TensorSpec(X.shape, "float32"))
    other, _ = transformed(program)
    names = [i.public for i in other.walk()]
    assert ("nc_transpose" in names, "dma_transpose" in names) == (by_tensor_engine, not by_tensor_engine)
    np.testing.assert_array_equal(other.run(X), program.run(X))


@pytest.mark.parametrize(("platform", "scalar"), [("trn1", {"scaled", "shifted"}), ("trn2", set())])
def test_wide_tiles_are_scaled_where_that_is_faster_and_divided(platform, scalar):
    def kernel(x):
        out = nl.ndarray((128, 256), nl.float32, buffer=nl.shared_hbm)
        a, b, narrow = tile((128, 256)), tile((128, 256)), tile((128, 1))
        nisa.dma_copy(a, x)
        nisa.tensor_scalar(b, a, nl.multiply, 3.0, name="scaled")
        nisa.tensor_scalar(a, b, nl.multiply, 2.0, op1=nl.add, operand1=9.5, name="shifted")
        nisa.tensor_scalar(b, a, nl.maximum, 1.0, name="clipped")
        nisa.tensor_scalar(narrow, b[:, :1], nl.multiply, 3.0, name="narrow")
        nisa.tensor_scalar(a, b, nl.multiply, narrow, engine=nisa.engine.vector, name="named")
        nisa.reciprocal(b, a)
        nisa.dma_copy(out, b)
        return out

    with target(platform):
        program = nki.jit(kernel).trace(nki.TensorSpec(X.shape, "float32"))
    other, (changes,) = transformed(program)
    assert {i.name for i in other.walk() if i.engine_name() == "scalar"} == scalar
    assert changes.get("divisions", 0) == (platform == "trn1")
    assert ("reciprocal" in [i.public for i in other.walk()]) == (platform == "trn2")
    np.testing.assert_array_equal(other.run(X), program.run(X))


@pytest.mark.filterwarnings("ignore")
def test_the_cast_of_a_transpose_is_part_of_its_copy_on_trn1():
    def kernel(x):
        out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
        a = nl.load(x)
        nl.store(out, nl.copy(nl.matmul(a, a), dtype=nl.float32))
        return out

    with target("trn1"):
        program = nki.jit(kernel).trace(nki.TensorSpec((128, 128), "bfloat16"))
    other, (changes,) = transformed(program)
    assert changes["casts"] == 1
    data = np.eye(128).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(other.run(data), program.run(data))


def test_a_fill_that_is_overwritten_unread_is_left_out():
    def kernel(x):
        out = nl.ndarray((128, 256), nl.float32, buffer=nl.shared_hbm)
        t = tile((128, 256))
        nisa.memset(t, 7.0)
        nisa.dma_copy(t, x)
        nisa.dma_copy(out, t)
        return out

    with target("trn2"):
        program = nki.jit(kernel).trace(nki.TensorSpec(X.shape, "float32"))
    other, (changes,) = transformed(program)
    assert changes["zeros"] == 1 and "memset" not in [i.public for i in other.walk()]
    np.testing.assert_array_equal(other.run(X), X)


@nki.jit(platform_target="trn2")
def counts(x):
    out = nl.ndarray((8, 32), nl.float32, buffer=nl.shared_hbm)
    for start in (0, 1):
        count, total = tile((8, 16), nl.uint32), tile((8, 16))
        nisa.iota(count, [[1, 16]], offset=start)
        nisa.tensor_copy(total, count)
        nisa.dma_copy(out[:, 16 * start : 16 * start + 16], total)
    return out


def test_numbers_in_the_place_of_registers_make_other_values():
    program = counts.trace(X)
    np.testing.assert_array_equal(transformed(program)[0].run(X), program.run(X))
    hoisting = Hoisting()
    numbers = SignatureNumbers()
    hoisting(Compilation(program.machine, numbers.listed(program.cores[0], range(len(program))), numbers))
    assert hoisting.again == []


@settings(max_examples=40, **UNHURRIED)
@given(rich_programs())
@pytest.mark.filterwarnings("ignore")
def test_random_programs_of_every_instruction_compute_the_same(found):
    program, arrays = found
    if not program.loops and len(program.cores) == 1:
        assert outcome(transformed(program)[0], arrays) == outcome(program, arrays)


@pytest.mark.filterwarnings("ignore")
def test_each_transformation_can_be_left_out():
    steps = [(kind, i, j) for kind in KINDS for i, j in ((0, 1), (1, 1))] * 2
    everything = check(steps)
    for name in everything:
        assert name not in check(steps, [name])
    assert check(steps, ["all"]) == {}


def traced(body):
    """A transformed program of a kernel with the argument [1024, 512] in float32."""
    with target("trn2"):
        return replace(nki.jit(body).trace(nki.TensorSpec((1024, 512), "float32")), transformed=True)


def there_and_back(step):
    """A kernel that keeps blocks of rows in HBM, and writes each back to the block `step` rows later."""

    def kernel(x):
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        kept = nl.ndarray((5 * 128, 512), nl.float32, buffer=nl.hbm)
        for i in range(4):
            nisa.dma_copy(block := tile((128, 512)), x[128 * i : 128 * i + 128])
            nisa.dma_copy(kept[128 * i : 128 * i + 128], block)
        for i in range(4):
            nisa.dma_copy(block := tile((128, 512)), kept[128 * i : 128 * i + 128])
            nisa.activation(root := tile((128, 512)), nl.sqrt, block)
            nisa.dma_copy(kept[128 * i + step : 128 * i + step + 128], root)
        nisa.dma_copy(last := tile((128, 512)), kept[:128])
        nisa.dma_copy(out, last)
        return out

    return kernel


def transfers(timeline):
    return Counter(one.mode for one in timeline.cores[0].transfers.values())


def test_what_a_kernel_keeps_in_hbm_travels_by_hardware_descriptors():
    assert transfers(schedule(traced(there_and_back(0)))) == {"software": 3, "hardware": 7}
    with nki.options(without=("hardware-descriptors",)):
        assert transfers(schedule(traced(there_and_back(0)))) == {"software": 10}


def test_transfers_are_merged_past_others_of_the_same_tensor_unless_these_touch_their_bytes():
    merged = [schedule(traced(there_and_back(step))).plans[0].transformations for step in (0, 128)]
    assert [found["merged-transfers"] for found in merged] == [8, 4]


def test_merged_loads_of_single_rows_take_no_more_of_sbuf_than_those_of_whole_tiles():
    """A row of 2 KB takes a quarter of that in each partition; a merged tile may take 4 KB."""

    def kernel(x):
        out = nl.ndarray((1, 512), nl.float32, buffer=nl.shared_hbm)
        total = tile((1, 512))
        nisa.memset(total, 0.0)
        for i in range(16):
            nisa.dma_copy(row := tile((1, 512)), x[i : i + 1])
            nisa.tensor_tensor(total, total, row, nl.add)
        nisa.dma_copy(out, total)
        return out

    assert schedule(traced(kernel)).plans[0].transformations["merged-transfers"] == 14  # eight at a time


def products(columns):
    """A kernel that copies eight products of so many columns out of PSUM."""

    def kernel(x):
        nisa.dma_copy(block := tile((128, 512)), x[:128])
        for i in range(8):
            nisa.nc_matmul(bank := tile((128, columns), buffer=nl.psum), block[:, :128], block[:, :columns])
            nisa.tensor_copy(copy := tile((128, columns)), bank)
            nisa.dma_copy(x[128 * i : 128 * i + 128, :columns], copy)

    return kernel


@pytest.mark.parametrize(("columns", "engines"), [(512, "scalar vector " * 4), (128, "scalar " * 8)])
def test_scalar_engine_copies_products_and_vector_engine_those_it_would_be_late_for(columns, engines):
    operations = schedule(traced(products(columns))).operations
    copies = [op.kind for op in operations if op.instruction.public == "tensor_copy"]
    assert copies == engines.split()


def test_a_program_runs_as_written_unless_the_compiler_transforms_it():
    with target("trn2"):
        program = build([("products", 0, 0)]).trace(nki.TensorSpec(X.shape, "float32"))
    names = {one.name for one in TRANSFORMATIONS if one.part is Part.ANY}
    assert set(schedule(program).plans[0].transformations) <= names
    done = schedule(replace(program, transformed=True)).plans[0].transformations
    assert done["merged-copies"] == 3
    skipping = schedule(replace(program, transformed=True, skips_middle_end=True)).plans[0].transformations
    assert "merged-copies" not in skipping and skipping["spread-copies"]
    assert ("merged-copies", "copies merged with others", 3) in described([done])
    with nki.options(without=("merged-copies",)):
        assert "merged-copies" not in schedule(replace(program, transformed=True)).plans[0].transformations


def test_an_unknown_name_of_a_transformation_is_an_error():
    with target("trn2"):
        program = build([]).trace(nki.TensorSpec(X.shape, "float32"))
    with nki.options(without=("load",)), pytest.raises(NkiError, match="no transformation 'load'"):
        schedule(program)


def test_the_document_lists_every_transformation():
    page = (Path(__file__).parents[2] / "docs" / "compiler.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [one.name for one in TRANSFORMATIONS]
