"""Random worlds: a few collectives on random groups, and what spec/collectives.md 2 says they leave behind.

The model below is written from the specification, in numpy, and knows nothing of nki.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl

DTYPES = ["float32", "bfloat16", "float16", "int32", "int8", "uint8", "uint16"]
REDUCTIONS = {"add": np.add, "minimum": np.minimum, "maximum": np.maximum}
GATHERS = ("all_gather", "reduce_scatter", "all_reduce", "implicit", "implicit_reduce")
OPERATIONS = (*GATHERS, "all_to_all", "permute", "all_gather_v", "all_to_all_v")


class Step(NamedTuple):
    """One collective. Shapes are those of src and dst; with SBUF operands each core has its own tiles."""

    operation: str
    dtype: str
    src: tuple[int, ...]
    dst: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]  # of a permute: pairs
    dim: int
    op: str
    sbuf: bool
    known: bool = False


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def random_world(seed: int) -> tuple[int, int, tuple[Step, ...]]:
    """(ranks, cores of each, steps)."""
    pick = random.Random(seed)
    world, cores = pick.randint(2, 8), pick.choice([1, 1, 2])
    return world, cores, tuple(_step(pick, world) for _ in range(pick.randint(1, 3)))


def _step(pick: random.Random, world: int) -> Step:
    operation = pick.choice(OPERATIONS)
    groups = _groups(pick, world)
    n = len(groups[0])
    sbuf = operation in GATHERS and pick.random() < 0.5
    rows, columns, dim = pick.randint(1, 4), pick.randint(1, 7), 0
    src = dst = (rows * n if operation in ("reduce_scatter", "all_to_all") else rows, columns)
    if operation == "all_gather":
        dim = pick.choice([0, 1]) if sbuf else 0
        dst = (rows * n, columns) if dim == 0 else (rows, columns * n)
    elif operation == "reduce_scatter":
        dst = (rows, columns)
    elif operation == "permute":
        groups = _pairs(pick, world)
    elif operation.endswith("_v"):
        src, dst = (rows * columns * n,), (columns * n,)
    op = pick.choice(list(REDUCTIONS))
    return Step(operation, pick.choice(DTYPES), src, dst, groups, dim, op, sbuf, pick.random() < 0.5)


def _groups(pick: random.Random, world: int) -> tuple[tuple[int, ...], ...]:
    n = pick.choice([k for k in range(1, world + 1)])
    ranks = pick.sample(range(world), world)
    count = pick.randint(1, world // n)
    return tuple(tuple(ranks[i * n : (i + 1) * n]) for i in range(count))


def _pairs(pick: random.Random, world: int) -> tuple[tuple[int, int], ...]:
    n = pick.randint(1, world)
    return tuple(zip(pick.sample(range(world), n), pick.sample(range(world), n), strict=True))


# ---- the kernel ----------------------------------------------------------------------------------


@nki.jit
def world_kernel(steps, tensors):
    """Each step on its own src and dst; returns what every dst (and table of counts) holds afterwards."""
    core, cores = nl.program_id(0), nl.num_programs()
    results = []
    for number, (step, given) in enumerate(zip(steps, tensors, strict=True)):
        src0, src1, dst0, table0 = given
        out = nl.ndarray(dst0.shape, dst0.dtype, buffer=nl.shared_hbm, name=f"out{number}")
        if step.sbuf:
            src, other, dst = (nl.ndarray(s, dst0.dtype) for s in (step.src, step.src, step.dst))
            for tile, values in ((src, src0), (other, src1), (dst, dst0)):
                nisa.dma_copy(tile, values[core])
        else:
            names = ((step.src, "src"), (step.src, "other"), (step.dst, "dst"))
            src, other, dst = (
                nl.ndarray(s, dst0.dtype, buffer=nl.shared_hbm, name=f"{n}{number}") for s, n in names
            )
            for tensor, values in ((src, src0), (other, src1), (dst, dst0)):
                copy_half(tensor, values[0], core, cores)
        table = nl.ndarray(table0.shape, table0.dtype, buffer=nl.shared_hbm, name=f"table{number}")
        copy_half(table, table0, core, cores)
        collective(step, src, other, dst, table)
        if step.sbuf:
            nisa.dma_copy(out[core], dst)
        else:
            copy_half(out[0], dst, core, cores)
        results += [out, table]
    return results


def copy_half(dst, src, core, cores):
    """The rows that are this core's to copy."""
    half = -(-dst.shape[0] // cores)
    begin, end = core * half, min(dst.shape[0], (core + 1) * half)
    if begin < end:
        nisa.dma_copy(dst[begin:end], src[begin:end])


def collective(step, src, other, dst, table):
    op, groups = getattr(nl, step.op), step.groups
    if step.operation == "all_reduce":
        ncc.all_reduce([src], [dst], groups, op)
    elif step.operation == "all_gather":
        ncc.all_gather([src], [dst], groups, step.dim)
    elif step.operation == "reduce_scatter":
        ncc.reduce_scatter([src], [dst], groups, 0, op)
    elif step.operation == "all_to_all":
        ncc.all_to_all([src], [dst], groups, 0)
    elif step.operation == "permute":
        ncc.collective_permute([src], [dst], groups)
    elif step.operation == "implicit":
        ncc.collective_permute_implicit([[src]], [[dst]], groups)
    elif step.operation == "implicit_reduce":
        ncc.collective_permute_implicit_reduce([[src]], [[other]], [[dst]], groups, op)
    else:
        call = getattr(ncc, step.operation)
        call([src], [dst], groups, table, recv_counts_known=step.known)


# ---- data ----------------------------------------------------------------------------------------


def data_of(step: Step, world: int, seed: int) -> list[tuple[np.ndarray, ...]]:
    """(src, other src, dst before, table) of each rank; all but the table with one entry per core."""
    generator = np.random.default_rng(seed)
    dtype, n = numpy_dtype(step.dtype), len(step.groups[0])
    reduces = step.operation in ("all_reduce", "reduce_scatter", "implicit_reduce")

    def values(shape: tuple[int, ...]) -> np.ndarray:
        if not reduces:
            return generator.integers(0, 256, (2, *shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
        if dtype.kind in "iu":
            return generator.integers(0, 10, (2, *shape)).astype(dtype)
        return generator.standard_normal((2, *shape)).astype(np.float32).astype(dtype)

    found = []
    for _ in range(world):
        slot = step.dst[0] // n
        counts = generator.integers(0, slot + 1, n) if step.operation.endswith("_v") else np.zeros(n, int)
        starts = [int(generator.integers(0, step.src[0] - c + 1)) for c in counts]
        table = np.stack([counts, starts, generator.integers(0, 99, n)]).astype(np.uint32)
        found.append((values(step.src), values(step.src), values(step.dst), table))
    return found


# ---- the model -----------------------------------------------------------------------------------


def expected(step: Step, given: list[tuple[np.ndarray, ...]], rank: int, core: int) -> tuple:
    """What dst and table of a rank hold after the step (spec/collectives.md 2)."""
    src = [g[0][core] for g in given]
    dst, table = given[rank][2][core].copy(), given[rank][3].copy()
    if step.operation == "permute":
        for source, target in step.groups:
            if target == rank:
                dst = src[source]
        return dst, table
    g = next((members for members in step.groups if rank in members), None)
    if g is None:
        return dst, table
    n, k = len(g), g.index(rank)

    def fold(arrays: list[np.ndarray]) -> np.ndarray:
        if len(arrays) == 1:
            return arrays[0]
        total = arrays[0].astype(np.float32)
        for array in arrays[1:]:
            total = REDUCTIONS[step.op](total, array.astype(np.float32))
        return total.astype(arrays[0].dtype)

    if step.operation == "all_reduce":
        dst = fold([src[s] for s in g])
    elif step.operation == "all_gather":
        dst = np.concatenate([src[s] for s in g], step.dim)
    elif step.operation == "reduce_scatter":
        dst = fold([np.split(src[s], n)[k] for s in g])
    elif step.operation == "all_to_all":
        dst = np.concatenate([np.split(src[s], n)[k] for s in g])
    elif step.operation == "implicit":
        dst = src[g[(k - 1) % n]]
    elif step.operation == "implicit_reduce":
        before = g[(k - 1) % n]
        dst = fold([src[before], given[before][1][core]])
    else:
        slot = dst.size // n
        for j, s in enumerate(g):
            column = 0 if step.operation == "all_gather_v" else k
            count, start = (int(v) for v in given[s][3][:2, column])
            dst[j * slot : j * slot + count] = src[s][start : start + count]
            if not step.known:
                table[2, j] = count
    return dst, table


def check_world(seed: int, run: Any) -> None:
    """Run the world of a seed and compare every bit of every rank."""
    world, cores, steps = random_world(seed)
    given = [data_of(step, world, seed * 10 + i) for i, step in enumerate(steps)]
    inputs = [(steps, [g[rank] for g in given]) for rank in range(world)]
    results = run(world_kernel if cores == 1 else world_kernel[2], world, inputs)
    for rank in range(world):
        for i, step in enumerate(steps):
            out, table = results[rank][2 * i : 2 * i + 2]
            for core in range(cores if step.sbuf else 1):
                dst, counts = expected(step, given[i], rank, core)
                same = out[core].tobytes() == np.ascontiguousarray(dst).tobytes()
                assert same and np.array_equal(table, counts), (seed, rank, core, step)
