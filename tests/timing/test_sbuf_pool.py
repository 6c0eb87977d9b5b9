"""SBUF in program order: what is evicted, and what operations wait for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.timing.operation_plan import OperationPlan
from nki.timing.schedule import plan
from support import target

X = nki.TensorSpec((1024, 1024), "float32")
TILES, BYTES = 8, 4096  # of a partition, each


def program_of(steps):
    """A kernel of loads into new tiles, sums of two of them and stores; a step is its kind and two tiles."""

    def kernel(x):
        out = nl.ndarray((len(steps) * 128, 1024), nl.float32, buffer=nl.shared_hbm)
        tiles = [nl.zeros((128, 1024), nl.float32, buffer=nl.sbuf) for _ in range(TILES)]
        for number, (kind, a, b) in enumerate(steps):
            if kind == "load":
                tiles[a] = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(tiles[a], x[128 * b : 128 * b + 128, :])
            elif kind == "sum":
                total = nl.ndarray((128, 1024), nl.float32, buffer=nl.sbuf)
                nisa.tensor_tensor(total, tiles[a], tiles[b], op=nl.add)
                tiles[a] = total
            elif kind == "half":
                nisa.tensor_copy(tiles[a][:, :512], tiles[b][:, 512:])
            else:
                nisa.dma_copy(out[128 * number : 128 * number + 128, :], tiles[a])
        return out

    with target("trn2"):
        return nki.jit(kernel).trace(X)


def with_space_for(program, tiles):
    return replace(program, machine=replace(program.machine, sbuf_usable_bytes=tiles * BYTES))


def reachable(operations):
    """The operations that each must come after, by its waits and theirs."""
    found = []
    for op in operations:
        found.append(set(op.waits).union(*(found[i] for i in op.waits if i < op.index)))
    return found


STEPS = st.lists(
    st.tuples(st.sampled_from(["load", "sum", "half", "store"]), st.integers(0, 7), st.integers(0, 7)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.integers(3, 12))
def test_tiles_made_once_wait_as_the_history_of_their_accesses_says(steps, space):
    program = with_space_for(program_of(steps), space)
    (fast,) = plan(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OperationPlan, "_made_once", lambda self, whole: np.zeros_like(whole))
        (slow,) = plan(program)
    assert [(op.kind, op.position) for op in fast.operations] == [
        (op.kind, op.position) for op in slow.operations
    ]
    assert reachable(fast.operations) == reachable(slow.operations)


def test_a_deferred_load_does_not_evict_an_operand_of_the_instruction_that_needs_it():
    program = with_space_for(program_of([("load", 0, 0), ("load", 1, 1), ("sum", 0, 1), ("store", 0, 0)]), 1)
    (planned,) = plan(program)
    assert [op.kind for op in planned.operations][-4:] == ["dma", "dma", "vector", "dma"]
