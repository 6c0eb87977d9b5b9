"""Random numbers on VectorE and GpSimdE (spec/isa_vector.md, spec/isa_gpsimd.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..backends.reference.random import STATES, WORDS, generator, is_dead
from ..ir.context import current, warn
from ..ir.instruction import In, Instruction, InstructionCost, Operand, Out, State
from ..machine import dtypes
from ..machine.dtypes import bits, f32
from ..machine.machine import Machine
from . import rules
from .costs import VectorInstruction
from .enums import GPSIMD, VECTOR, engine
from .numerics import Values, column, moves_bits, shaped
from .public import public

INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
WORD_TYPES = ("uint32", "int32", "float32", "tfloat32")


def _random_state(ins: Instruction) -> tuple[State, ...]:
    """The generator of the engine that runs the instruction."""
    return (State.gpsimd_random if ins.runs_on is GPSIMD else State.vector_random,)


class Rng(Instruction):
    """Fill dst with random bits; a narrow dtype takes the low bits of a 32-bit word per element."""

    public = "rng"
    engines = (VECTOR, GPSIMD)
    state = (State.vector_random, State.gpsimd_random)
    cost_formula = "max(64, N); GpSimd 150 + N"
    cost_source = "spec/machine.md 6.2, 8"

    dst: Out
    engine: engine = VECTOR

    def check(self, machine: Machine) -> None:
        rules.dtype_in(self, "dst", INTEGERS, "generate uint32 words and convert them, or use nl.rand")
        if self.engine is GPSIMD:
            rules.generation(self, 3, machine, "engine.gpsimd")

    def touches(self) -> tuple[State, ...]:
        return _random_state(self)

    def compute(self, dst: np.ndarray) -> None:
        words = generator(current(), self.engine_name()).bits(dst.shape[0], self.dst.free_elements)
        bits(dst)[...] = shaped(words, dst).astype(self.dst.dtype.bits)

    def cost(self, m: Machine) -> InstructionCost:
        n = self.dst.free_elements
        if self.runs_on is GPSIMD:
            return InstructionCost(
                m.gpsimd_overhead_cycles + m.gpsimd_copy * n, m.fix_gpsimd_ns, ("gpsimd_copy",)
            )
        return InstructionCost(m.vector_rng * n, m.fix_vector_ns, ("vector_rng",), m.min_ii_cycles)


class Rand2(VectorInstruction):
    """Fill dst with uniform random numbers between min and max."""

    public = "rand2"
    since = 4
    state = (State.vector_random,)
    cost_formula = "max(64, N/4)"

    dst: Out
    min: Operand
    max: Operand

    def check(self, machine: Machine) -> None:
        rules.castable(self, "dst")
        for bound in ("min", "max"):
            if getattr(self, bound) is None:
                raise rules.not_a_tensor(self, bound, None)
            rules.castable(self, bound)
            rules.float32_column(self, bound, like="dst")
        if rules.is_number(self.min) and rules.is_number(self.max) and not self.min < self.max:
            raise rules.fail(self, "rand-range", f"min {self.min} must be below max {self.max}")

    def compute(self, dst: np.ndarray, low: Values, high: Values) -> None:
        low, high = column(low, self.min, dst.ndim), column(high, self.max, dst.ndim)
        if not np.less(low, high).all():
            warn(
                "rand-range",
                "rand2: min is not below max in every partition",
                notes=[f"dst: {self.dst.describe()}"],
            )
        u = shaped(generator(current(), "vector").uniform(dst.shape[0], self.dst.free_elements), dst)
        dtypes.store(dst, low + u * (high - low), self.dst.dtype)

    def cost(self, m: Machine) -> InstructionCost:
        cycles = m.vector_rand2 * self.dst.free_elements
        return InstructionCost(cycles, m.fix_vector_ns, ("fix_vector_ns",), m.min_ii_cycles)


class Dropout(VectorInstruction):
    """dst = data with each element zeroed with probability prob; the others are not rescaled."""

    public = "dropout"
    state = (State.vector_random,)
    cost_formula = "max(64, N)"

    dst: Out
    data: In
    prob: Operand

    def check(self, machine: Machine) -> None:
        rules.matching_values(self, "dst", "data")
        rules.same_dtype(self, "dst", "data")
        if self.prob is None:
            raise rules.not_a_tensor(self, "prob", None)
        rules.column(self, "prob", like="data")
        self._check_probability()

    def _check_probability(self) -> None:
        if rules.is_number(self.prob):
            if not 0 <= self.prob <= 1:
                warn("probability", f"dropout: prob is {self.prob}, a probability lies between 0 and 1")
        elif not self.data.dtype.is_float:
            rules.dtype_in(self, "prob", ("float32",), f"{self.data.dtype} data needs a float32 prob")
        elif not self.prob.dtype.is_float or not self.prob.dtype.castable:
            raise rules.fail(self, "dtype", f"prob has dtype {self.prob.dtype}, it must be a float", ["prob"])

    def compute(self, dst: np.ndarray, data: np.ndarray, prob: Values) -> None:
        u = shaped(generator(current(), "vector").uniform(dst.shape[0], self.dst.free_elements), dst)
        drop = u < column(prob, self.prob, dst.ndim)
        data = shaped(data, dst)
        if moves_bits(dst, self.dst.dtype, data, self.data.dtype):
            values = bits(data)
            bits(dst)[...] = np.where(drop, values.dtype.type(0), values)
        else:
            dtypes.store(dst, np.where(drop, np.float32(0), f32(data, self.data.dtype)), self.dst.dtype)

    def cost(self, m: Machine) -> InstructionCost:
        cycles = m.vector_dropout * self.data.free_elements
        return InstructionCost(cycles, m.fix_vector_ns, ("vector_dropout",), m.min_ii_cycles)


class SetRngSeed(VectorInstruction):
    """Seed all lanes of the vector engine's generator with the 32 bits of a [1, 1] tile."""

    public = "set_rng_seed"
    state = (State.vector_random,)
    cost_formula = "64"

    src_seeds: In

    def check(self, machine: Machine) -> None:
        rules.dtype_in(self, "src_seeds", WORD_TYPES, "a seed is one 32-bit word")
        if self.src_seeds.size != 1:
            raise rules.fail(
                self,
                "shape",
                f"src_seeds must hold one element, it has shape {tuple(self.src_seeds.shape)}",
                ["src_seeds"],
                "pass a [1, 1] tile; rand_set_state sets each lane by itself",
            )

    def compute(self, src_seeds: np.ndarray) -> None:
        generator(current(), "vector").seed(int(bits(src_seeds).reshape(-1)[0]))

    def cost(self, m: Machine) -> InstructionCost:
        return InstructionCost(m.min_ii_cycles, m.fix_vector_ns)


class StateInstruction(Instruction):
    """What reading and writing the state of a generator share."""

    engines = (GPSIMD, VECTOR)
    since = 3
    state = (State.vector_random, State.gpsimd_random)
    cost_formula = "64"
    cost_source = "spec/machine.md 6.2"

    if TYPE_CHECKING:
        engine: engine

    def check_state(self, name: str, machine: Machine) -> None:
        """A uint32 tile with the words of the engine's generator: 6, or 24 on VectorE."""
        which = "gpsimd"
        if self.engine is VECTOR:
            rules.generation(self, 4, machine, "engine.vector")
            which = "vector"
        rules.dtype_in(self, name, ("uint32",), "the words are bits; reinterpret them with t.view(nl.uint32)")
        rules.elements(self, name, WORDS * STATES[which], f", the words of the {which} engine's generator")

    def touches(self) -> tuple[State, ...]:
        return _random_state(self)

    def cost(self, m: Machine) -> InstructionCost:
        return InstructionCost(
            m.min_ii_cycles, m.fix_gpsimd_ns if self.runs_on is GPSIMD else m.fix_vector_ns
        )


class RandSetState(StateInstruction):
    """Set the generator of each lane to the words in that partition of src_seeds."""

    public = "rand_set_state"

    src_seeds: In
    engine: engine = GPSIMD

    def check(self, machine: Machine) -> None:
        rules.in_sbuf(self, "src_seeds")
        self.check_state("src_seeds", machine)

    def compute(self, src_seeds: np.ndarray) -> None:
        words = src_seeds.reshape(src_seeds.shape[0], -1)
        if is_dead(words):
            warn(
                "rng-dead",
                "rand_set_state: the first five words of a state are all zero, so it only counts",
                notes=[f"src_seeds: {self.src_seeds.describe()}"],
                help="give every lane a seed with some bits set",
            )
        generator(current(), self.engine_name()).set_state(words)


class RandGetState(StateInstruction):
    """dst = the words of the generator of each lane."""

    public = "rand_get_state"

    dst: Out
    engine: engine = GPSIMD

    def check(self, machine: Machine) -> None:
        self.check_state("dst", machine)

    def compute(self, dst: np.ndarray) -> None:
        dst[...] = shaped(generator(current(), self.engine_name()).state(dst.shape[0]), dst)


rng = public(Rng)
rand2 = public(Rand2)
dropout = public(Dropout)
set_rng_seed = public(SetRngSeed)
rand_set_state = public(RandSetState)
rand_get_state = public(RandGetState)
