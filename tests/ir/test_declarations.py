"""Declarations tell the truth: an instruction touches no byte, and depends on none, that it does not name.

Each instruction of a random program runs twice on the same declared inputs: once as it is, once with every
other byte changed. What it writes must be the same, and lie where it says.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import nki.isa as nisa
import nki.language as nl
from nki.backends.reference.executor import Executor
from nki.backends.reference.memory import FRESH, Memory
from nki.ir.effects import effects, overwrites
from random_programs import outcome, rich_programs, traced
from support import run_tiles, target

execute = Executor.__call__


def bytes_of(memory, views):
    """A mask of the bytes that the views may touch."""
    mask = np.zeros(memory.raw.size, np.bool_)
    for view in views:
        width = view.dtype.itemsize
        strides = [*(stride * width for stride in view.strides), 1]
        if view.indirection is not None:
            mask[:] = True
        else:
            np.ndarray((*view.shape, width), np.bool_, mask, view.offset * width, strides)[...] = True
    return mask


class Audit:
    """An executor that runs each instruction twice; `faults` says what it found."""

    def __init__(self):
        self.faults: list[str] = []
        self.audited: set[str] = set()
        self.random = np.random.default_rng(0)

    def __call__(self, executor, instruction):
        done = effects(instruction)
        memories = {view.storage: executor.memories[view.storage] for view in instruction.views()}
        plain = all(type(m) is Memory and not m.storage.constant for m in memories.values())
        if done.state or not plain or not memories:  # accumulators and generators: the random programs
            execute(executor, instruction)
            return
        for memory in memories.values():
            if memory.borrowed:
                memory._own()
            if memory.state == FRESH:
                memory.poison()
        before = {s: m.raw.copy() for s, m in memories.items()}
        knows = {s: (m.state, m.map, m.matmul) for s, m in memories.items()}
        others = {s: self._others(m, before[s], done.seen) for s, m in memories.items()}
        for storage, memory in memories.items():
            memory.raw[...] = others[storage]
            memory.floats.clear()
        self._watch(memories, knows)
        execute(executor, instruction)
        again = {s: m.raw.copy() for s, m in memories.items()}
        for storage, memory in memories.items():
            memory.raw[...] = before[storage]
            memory.floats.clear()
            memory.state, memory.map, memory.matmul = knows[storage]
        execute(executor, instruction)
        for storage, memory in memories.items():
            self._compare(instruction, memory, before[storage], others[storage], again[storage])
        self.audited.add(instruction.public)

    def _others(self, memory, raw, seen):
        """The bytes of a memory with all changed that are not declared to be read."""
        free = ~bytes_of(memory, [view for view in seen if view.storage is memory.storage])
        changed = raw.copy()
        changed[free] ^= self.random.integers(1, 256, int(free.sum()), dtype=np.uint8)
        return changed

    def _watch(self, memories, knows):
        """What is known about the memories changes as they are written: let the first run have its own."""
        for storage, memory in memories.items():
            for name, flags in zip(("map", "matmul"), knows[storage][1:], strict=True):
                if hasattr(flags, "flags"):
                    copy = type(flags).__new__(type(flags))
                    copy.granule, copy.rows, copy.missing = flags.granule, flags.rows, flags.missing
                    copy.flags = flags.flags.copy()
                    setattr(memory, name, copy)

    def _compare(self, instruction, memory, before, other, again):
        after, storage = memory.raw, memory.storage
        written = bytes_of(memory, [v for v in effects(instruction).written if v.storage is storage])
        kept = (after == before) & (again == other)
        if ((after != before) & ~written).any():
            self.faults.append(f"{instruction.public} writes bytes it does not declare")
        if (written & (after != again) & ~kept).any():
            self.faults.append(f"{instruction.public} depends on bytes it does not declare")
        if overwrites(instruction, storage) and (after != again).any():
            self.faults.append(f"{instruction.public} does not overwrite all that it says")


@pytest.fixture
def audit(monkeypatch):
    found = Audit()
    monkeypatch.setattr(Executor, "__call__", lambda executor, instruction: found(executor, instruction))
    return found


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(found=rich_programs(cores=1, size=20))
def test_instructions_of_random_programs_do_what_they_declare(audit, found):
    outcome(*found)
    assert audit.faults == []


@pytest.mark.parametrize("name", ["writes", "reads", "overwrites"])
def test_the_audit_sees_a_wrong_declaration(name, audit, monkeypatch):
    here = globals()
    if name == "overwrites":
        monkeypatch.setitem(here, "overwrites", lambda instruction, storage: True)
    else:
        monkeypatch.setitem(here, "effects", lambda i: declared(i)._replace(**{name: ()}))
    outcome(*traced((("shuffle", 0, 1, 0), ("scale", 2, 1, (0, 8), 2.0))))
    assert audit.faults


declared = effects


def test_a_gathered_operand_that_counts_in_parts_is_all_of_its_tile():
    """nc_matmul_mx reads the scale rows of each quadrant; where an index tile picks, whatever it names."""
    seen = []

    def body(dst, s, v, s_scale, v_scale, index):
        packed = v.view(nl.float8_e5m2_x4).indirect(index, 5)
        moved = nisa.nc_matmul_mx(
            dst, s.view(nl.float8_e4m3fn_x4), packed, s_scale, v_scale.indirect(index, 5)
        )
        seen.append(effects(moved))

    rng = np.random.default_rng(0)
    words = [rng.integers(0, 60, (64, n), dtype=np.uint32) for n in (4, 6)]
    scales = [np.full((64, n), 127, np.uint8) for n in (4, 6)]
    inputs = [*words, *scales, np.zeros((64, 1), np.int32)]
    with target("trn3"):
        run_tiles(body, inputs, [((4, 5), nl.float32)], on="trn3", out_psum=[0])
    gathered = [view for view in seen[0].reads if view.indirection is not None]
    assert len(gathered) == 2 and len(seen[0].adds_to) == 1
