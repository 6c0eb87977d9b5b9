"""Instructions that the manual lacks: one per engine, written as CONTRIBUTING says, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.ir.instruction import In, Instruction, InstructionCost, MatmulInstruction, Out
from nki.ir.instruction_class import INSTRUCTIONS
from nki.isa import rules
from nki.isa.dma import DmaInstruction, transfer
from nki.isa.enums import GPSIMD, SCALAR, TENSOR, VECTOR
from nki.isa.numerics import emit, shaped
from nki.launch.core import issue
from nki.machine.dtypes import f32
from support import target

X = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)


class Twice(Instruction):
    """dst = 2 data, on the engine that a subclass names."""

    cost_source = "spec/machine.md 6.2"

    def check(self, machine):
        rules.matching(self, "dst", "data")

    def compute(self, dst, data):
        emit(dst, self.dst.dtype, np.multiply, f32(shaped(data, dst), self.data.dtype), np.float32(2))

    def cost(self, machine):
        return InstructionCost(max(64, self.data.free_elements), 50.0)


class TwiceOnVector(Twice):
    public = "twice_on_vector"
    engines = (VECTOR,)
    dst: Out
    data: In


class TwiceOnScalar(Twice):
    public = "twice_on_scalar"
    engines = (SCALAR,)
    dst: Out
    data: In


class TwiceOnGpsimd(Twice):
    public = "twice_on_gpsimd"
    engines = (GPSIMD,)
    dst: Out
    data: In


class TwiceOnTensor(Twice, MatmulInstruction):
    public = "twice_on_tensor"
    engines = (TENSOR,)
    dst: Out
    data: In

    is_transpose = False

    def adds_to_dst(self):
        return False

    def array_flops(self):
        return 2 * self.data.size

    def array_operand(self):
        return self.data


class MovedTwice(DmaInstruction):
    public = "moved_twice"
    dst: Out
    src: In

    def check(self, machine):
        self.check_transfer(machine)
        self.check_count("src")

    def compute(self, dst, src):
        from nki.backends.reference.memories import memory_of

        transfer(memory_of(dst).write(dst), 2 * src, self.src.dtype, dst.dtype)


ENGINES = [(TwiceOnVector, "vector"), (TwiceOnScalar, "scalar"), (TwiceOnGpsimd, "gpsimd")]
ENGINES += [(TwiceOnTensor, "tensor"), (MovedTwice, "dma")]


def kernel_of(cls):
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile, doubled = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        issue(cls(doubled, tile))
        nisa.dma_copy(out, doubled)
        return out

    return kernel


@pytest.mark.parametrize("cls, engine", ENGINES, ids=[engine for _, engine in ENGINES])
def test_an_instruction_of_ones_own_runs_replays_and_profiles(cls, engine):
    with target("trn2"):
        kernel = kernel_of(cls)
        for _ in range(2):
            np.testing.assert_array_equal(kernel(X), 2 * X)
        profile = kernel.profile(X)
        (bar,) = [bar for bar in profile.timeline.bars if bar.name == cls.public]
        assert bar.engine == engine and bar.end > bar.start
        assert profile.summary() and profile.findings is not None and profile.html()
        program = nki.Program.parse(str(kernel.trace(X)))
        np.testing.assert_array_equal(program.run(X), 2 * X)
    assert INSTRUCTIONS[cls.public] is cls


def test_an_extension_is_marked_in_the_page_of_instructions():
    from nki.cli import docs

    def twice(dst, data):
        """dst = 2 data."""

    class Marked(TwiceOnVector):
        public = "marked_twice"
        extension = True

    assert "`nisa.twice` (extension)" in docs._row("nisa", "twice", twice, Marked)
    assert "(extension)" not in docs._row("nisa", "twice", twice, TwiceOnVector)
