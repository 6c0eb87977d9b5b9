"""The accumulator registers (spec/isa.md 1.5): set V of the vector engine, set S of the scalar engine.

Lane i holds the value of partition i of the operand, so the lanes that hold something are always a prefix.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.context import current, warn
from ..ir.engine_state import Accumulators, EngineState
from ..ir.instruction import Instruction, OptionalOut, State
from ..ir.view import View
from ..machine import dtypes
from ..machine.operators import Operator
from . import rules
from .costs import VectorInstruction
from .enums import member, reduce_cmd
from .numerics import is_array

_IDLE, _RESET, _REDUCE = reduce_cmd.idle, reduce_cmd.reset, reduce_cmd.reduce
_RESET_REDUCE, _LOAD_REDUCE = reduce_cmd.reset_reduce, reduce_cmd.load_reduce
_REDUCING = (_REDUCE, _RESET_REDUCE, _LOAD_REDUCE)

_IDENTITIES = {
    "add": np.float32(0),
    "subtract": np.float32(0),
    "multiply": np.float32(1),
    "maximum": np.float32(-np.inf),
    "minimum": np.float32(np.inf),
    "abs_max": np.float32(0),
    "abs_min": np.float32(np.inf),
}
_REDUCTIONS = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


class ReducingInstruction(Instruction):
    """An instruction that may reduce its results into accumulator registers, and into `reduce_res`."""

    if TYPE_CHECKING:
        reduce_cmd: reduce_cmd
        reduce_res: OptionalOut

    @property
    def reduces(self) -> bool:
        """The registers take part: they are changed, or read out."""
        return self.reduce_cmd is not _IDLE or self.reduce_res is not None

    def dst_is_byproduct(self) -> bool:
        return self.reduces


class VectorReduction(ReducingInstruction, VectorInstruction):
    """One of VectorE."""

    state = (State.vector_accumulator,)


# ---- the rules of an instruction -----------------------------------------------------------------


def check(
    ins: ReducingInstruction,
    allowed: Collection[reduce_cmd],
    like: str,
    idle_reads: bool = False,
    res_floats: bool = False,
) -> None:
    """The command is accepted here, and `reduce_res` is a [P, 1] tile that it fills.

    `idle_reads`: an idle instruction may still read the registers out (activation).
    """
    command = check_command(ins, allowed)
    if ins.reduce_res is None:
        return
    check_result(ins, like, res_floats)
    if command is _IDLE and not idle_reads:
        raise rules.fail(
            ins,
            "reduce-cmd",
            "reduce_res is given, but reduce_cmd.idle reduces nothing",
            ["reduce_res"],
            "pass reduce_cmd=nisa.reduce_cmd.reset_reduce, or leave reduce_res out",
        )


def check_command(ins: ReducingInstruction, allowed: Collection[reduce_cmd]) -> reduce_cmd:
    """The command is one of reduce_cmd's, and accepted here."""
    command = member(ins.reduce_cmd, reduce_cmd, ins.public, "reduce_cmd")
    if command not in allowed:
        names = ", ".join(f"nisa.reduce_cmd.{c.name}" for c in allowed)
        raise rules.fail(ins, "reduce-cmd", f"takes no {command!r}", [], f"use one of {names}")
    return command


def check_result(ins: ReducingInstruction, like: str, floats: bool = False) -> None:
    """`reduce_res` is a [P, 1] tile of a dtype that float32 converts to."""
    res = ins.reduce_res
    if not isinstance(res, View):
        raise rules.not_a_tensor(ins, "reduce_res", res)
    rules.column(ins, "reduce_res", like)
    rules.castable(ins, "reduce_res")
    if floats and not res.dtype.is_float:
        raise rules.fail(
            ins,
            "dtype",
            f"reduce_res has dtype {res.dtype}, it takes a float",
            ["reduce_res"],
            "use nl.float32",
        )


def check_init(ins: ReducingInstruction, name: str, like: str, unset: object = None) -> None:
    """The start value belongs to load_reduce; beside another command it is not read."""
    value = getattr(ins, name)
    given = isinstance(value, View) or not (value is unset or value == unset)
    loads = ins.reduce_cmd is _LOAD_REDUCE
    if loads and value is None:
        raise rules.fail(ins, "reduce-cmd", f"reduce_cmd.load_reduce starts from {name}, which is missing")
    if given and not loads:
        warn(
            "reduce-cmd",
            f"{ins.public}: {name} is given, but only reduce_cmd.load_reduce starts from it",
            notes=[f"{name}: {value.describe()}"] if isinstance(value, View) else [],
            help=f"pass reduce_cmd=nisa.reduce_cmd.load_reduce, or leave {name} out",
        )
    rules.castable(ins, name)
    rules.float32_column(ins, name, like)


# ---- the registers ---------------------------------------------------------------------------------


def identity(op: Operator) -> np.float32:
    """The value a reset puts into the registers."""
    return _IDENTITIES[op.name]


def step(
    which: str,
    command: reduce_cmd,
    op: Operator,
    values: np.ndarray,
    init: object = None,
    user: str = "activation",
) -> np.ndarray:
    """Carry out one command with the float32 values [P, ...] of a tile; the registers afterwards, [P].

    The array returned is the registers themselves: do not write to it.
    """
    lanes = begin(which, command, op, len(values), init, user)
    if command in _REDUCING:
        lanes[...] = combine(op, lanes, reduced(op, values))
    return lanes


def begin(which: str, command: reduce_cmd, op: Operator, partitions: int, init: Any, user: str) -> np.ndarray:
    """Return the registers of the first `partitions` lanes, set to what the command starts from."""
    state: EngineState = current().engine_state
    vector = which == "vector"
    registers = state.vector if vector else state.scalar
    lanes = registers.values[:partitions]
    if command is _RESET_REDUCE or command is _RESET:
        lanes[...] = _IDENTITIES[op.name]
    elif command is _LOAD_REDUCE:
        lanes[...] = init.reshape(-1) if is_array(init) else np.float32(init)
    elif command is _REDUCE:
        _continue(registers, vector, partitions, user)
        return lanes
    elif vector:  # idle: the engine uses the registers for itself
        lanes[...] = np.nan
        registers.defined = 0
        return lanes
    else:
        return lanes
    registers.defined = max(registers.defined, partitions)
    registers.user = user
    return lanes


def _continue(registers: Accumulators, vector: bool, partitions: int, user: str) -> None:
    if registers.defined < partitions:
        warn(
            "acc-undefined",
            f"{user}: reduce_cmd.reduce continues with registers that hold nothing",
            notes=[f"{registers.defined} of {partitions} accumulator registers are defined"],
            help="begin the chain with reduce_cmd.reset_reduce",
        )
    elif vector and registers.user != user:
        warn(
            "acc-shared",
            f"{user}: reduce_cmd.reduce continues with what {registers.user} left behind",
            notes=["the instructions of the vector engine share one set of accumulator registers"],
            help="finish one chain before another instruction begins its own",
        )
    registers.user = user


def combine(op: Operator, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    assert op.formula is not None
    return op.formula(a, b)


def reduced(op: Operator, values: np.ndarray) -> np.ndarray:
    """Reduce `values` [P, ...] over all free elements, to [P]."""
    values = values.reshape(len(values), -1)
    ufunc = _REDUCTIONS.get(op.name)
    if ufunc is not None:
        return ufunc.reduce(values, axis=1)
    while values.shape[1] > 1:  # neighbours first, so that of equal magnitudes the last one stays
        odd = values[:, -1:] if values.shape[1] % 2 else values[:, :0]
        pairs = combine(op, values[:, 0:-1:2], values[:, 1::2])
        values = np.concatenate([pairs, odd], axis=1)
    return values[:, 0]


def start_value(value: Any, view: Any) -> Any:
    """The start value of load_reduce, copied: dst may lie over its tile."""
    return dtypes.f32(value, view.dtype).copy() if isinstance(view, View) else value


def read_out(
    ins: ReducingInstruction, acc: np.ndarray, reduce_res: np.ndarray | None, negate: bool = False
) -> None:
    """reduce_res = the registers, as the last thing the instruction writes."""
    if reduce_res is not None:
        values = -acc if negate else acc
        dtypes.store(reduce_res, values.reshape(reduce_res.shape), ins.reduce_res.dtype)
