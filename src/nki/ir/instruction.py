"""Instructions: the arguments, rules, meaning, cost and effects of each.

An instruction is a class. Its annotations are its operands and options, in the order of its public
function. The annotation declares what happens to an operand:

    Out          a tile it writes            InOut        a tile it reads and writes
    In           a tile it reads             Operand      a tile, or a number
    OptionalOut  a tile it writes, or None   OptionalIn   a tile it reads, or None
    RegisterOut  a register it writes        RegisterIn   a register it reads, or a number
    Accumulated  a PSUM tile it adds to, or overwrites

Every other annotation is an option. `Operand | None` may be left out. A field may have a default, which is
that of its parameter (`nki.isa.public`). `state` declares what the instruction touches beside its operands.
The effects follow from these (`nki.ir.effects`). `check`, `compute` and `cost` are methods of the class.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from ..errors import Site, error
from ..machine.engines import TENSOR, engine
from ..machine.machine import Machine
from .context import current
from .instruction_class import InstructionType
from .semantics import Meaning
from .view import View

Out = View
In = View
InOut = View
Operand = Any
OptionalOut = Any
OptionalIn = Any
RegisterOut = Any
RegisterIn = Any
Accumulated = View


class State(Enum):
    """What an instruction can read or change beside its operands.

    Instructions that touch one state keep their order.
    """

    vector_accumulator = "the accumulator registers of VectorE"
    scalar_accumulator = "the accumulator registers of ScalarE"
    vector_random = "the random state of VectorE"
    gpsimd_random = "the random state of GpSimdE"
    output = "what is printed"
    peer = "the other core"
    ranks = "the other ranks"
    loop = "the head of a dynamic loop"


class InstructionCost(NamedTuple):
    """What an instruction costs (spec/machine.md 4).

    `cycles` is its work in the clock of its engine, `fix_ns` how much later a consumer sees the result,
    and `shortest` the fewest cycles until the engine takes the next instruction; `gap` cycles it is held
    beyond its work. `rests_on` names the Machine fields used, so that a report can list the assumptions
    among them.
    """

    cycles: float
    fix_ns: float
    rests_on: tuple[str, ...] = ()
    shortest: float = 0
    gap: float = 0

    @property
    def interval(self) -> float:
        """Cycles the engine is held."""
        return max(self.cycles + self.gap, self.shortest)


class ProgramPosition(NamedTuple):
    """Where an instruction stands: its number in program order, and the dynamic loop bodies around it."""

    order: int
    loops: tuple = ()


class NkiInstruction:
    """The handle every instruction call returns. `handle` is its ProgramPosition, or just its number.

    Members:

    - `handle`: its number in the program, with the loops around it.
    - `depends_on`: `depends_on(*producers)` starts the instruction after these have finished; it changes
      times, never values.

    Example:

    ```python
    @nki.jit
    def ordered(x):
        tile, other = nl.load(x), nl.ndarray((1, 2), nl.float32)
        first = nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nisa.memset(other, 0.0).depends_on(first)
        nl.device_print("tile", tile)

    ordered(np.array([[1, 2]], np.float32))
    ```

    ```output
    tile float32[1, 2] sbuf
    [[2. 3.]]
    ```

    See also: `nl.no_reorder`.
    """

    __slots__ = ("handle",)

    def __init__(self, handle: Any):
        self.handle = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Start only after every producer has finished. Affects the schedule alone, never values."""
        current().add_dependencies(self, producers)
        return self


class Instruction(NkiInstruction, metaclass=InstructionType):
    """Base of every instruction; see the module's text."""

    # what it is
    public: ClassVar[str] = ""  # name of the public function
    engines: ClassVar[tuple[engine, ...]] = ()  # which may run it, default first
    since: ClassVar[int] = 2  # oldest generation: 2 trn1, 3 trn2, 4 trn3
    state: ClassVar[tuple[State, ...]] = ()  # what it touches beside its operands
    cost_formula: ClassVar[str] = ""  # for docs/isa.md
    cost_source: ClassVar[str] = ""

    # flags
    indirect: ClassVar[tuple[str, ...]] = ()  # these operands may be .indirect() views
    reaches_hbm: ClassVar[bool] = False  # operands may be in HBM
    lazy_output: ClassVar[bool] = False  # outputs are handed over as views: compute writes some elements
    zero_fills: ClassVar[bool] = False  # what was never written of an output in `parts` becomes 0
    simulator_only: ClassVar[bool] = False  # hardware has no such instruction, and it takes no time
    extension: ClassVar[bool] = False  # the manual has no such instruction: docs/isa.md marks it

    # derived from the annotations and methods
    listed_as: ClassVar[str] = ""  # in a listing: `public`, with a suffix where another class has it too
    fields: ClassVar[tuple[str, ...]]
    defaults: ClassVar[dict[str, Any]]  # of its fields, for the public function
    operand_names: ClassVar[tuple[str, ...]]
    read_at: ClassVar[tuple[int, ...]]
    write_at: ClassVar[tuple[int, ...]]
    accumulates: ClassVar[bool] = False  # its first operand is Accumulated
    partial: ClassVar[bool] = False  # it defines `parts`
    required: ClassVar[frozenset[str]]
    registers: ClassVar[tuple[str, ...]]
    registers_written: ClassVar[tuple[str, ...]]

    name: str | None  # label of the caller, for schedules and reports
    site: Site | None  # the user's line
    runs_on: engine | None  # the engine, once chosen
    access: Any  # how a backend reads and writes its operands, once validated

    if TYPE_CHECKING:

        def __init__(self, *fields: object) -> None: ...

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.partial = cls.parts is not Instruction.parts
        works_on_array = TENSOR in cls.engines and State.peer not in cls.state  # a barrier only waits there
        if cls.public and works_on_array and not issubclass(cls, MatmulInstruction):
            raise TypeError(
                f"{cls.__name__} runs on TensorE: derive it from nki.ir.instruction.MatmulInstruction, "
                "which declares how it uses the PE array"
            )

    # ---- rules, meaning and cost -----------------------------------------------------------------

    def check(self, machine: Machine) -> None:
        """Raise or warn when the operands break a rule. Depends on shapes, dtypes and buffers alone."""

    def choose_engine(self, machine: Machine) -> engine | None:
        """Return the engine that runs it when the caller names none."""
        return self.engines[0] if self.engines else None

    def meaning(self, machine: Machine) -> Meaning | None:
        """Return what a backend may take it for; None: only `compute` defines it."""
        return None

    def compute(self, *operands: Any) -> None:
        """Fill the outputs.

        Each operand is a numpy array, in the order of the annotations; a number or None stays as it is. The
        output of a `lazy_output` is a View. All else is found through the core: `current().engine_state`,
        `current().machine`.
        """
        raise error("not-implemented-yet", f"{self.public}: has no meaning yet")

    def cost(self, machine: Machine) -> InstructionCost:
        """Return the cycles on the engine that runs it (spec/machine.md)."""
        raise error("not-implemented-yet", f"{self.public}: has no cost yet")

    # ---- what it touches -------------------------------------------------------------------------

    def touches(self) -> tuple[State, ...]:
        """Return the part of `state` that this very instruction reads or changes."""
        return self.state

    def parts(self, index: int) -> list[View] | None:
        """Return the views through which operand `index` is read or written; None: all of it."""
        return None

    def dst_is_byproduct(self) -> bool:
        """Return True if the result goes elsewhere: then dst may repeat its elements."""
        return False

    # ---- for the timing model --------------------------------------------------------------------

    def engine_name(self) -> str:
        """Return the name of an engine, or "dma" for the sixteen DMA engines."""
        return self.runs_on.name if self.runs_on is not None else "sync"

    def other_engine(self) -> engine | None:
        """Return the engine that may do a copy instead, where the kernel names none."""
        return None

    def alternative(self, machine: Machine) -> Instruction | None:
        """Return what the compiler may issue in its place: the same on another engine, or another."""
        return None

    def grouped(self) -> Instruction | None:
        """Return it for operands with one more dimension after the partitions; None if that means another."""
        return None

    def activation_table(self) -> str | None:
        """Return the activation function whose table ScalarE needs."""
        return None

    def rendezvous(self) -> Hashable | None:
        """Return the point at which both cores wait: the n-th visit of one waits for the other's n-th."""
        return None

    def rendezvous_of(self, core: int) -> Hashable | None:
        """Return the point at which the core that issues it waits for the other one, whatever it costs."""
        return self.rendezvous()

    if TYPE_CHECKING:  # instructions that accumulate have it: see MatmulInstruction

        def adds_to_dst(self) -> bool: ...

    # ---- not to be overridden --------------------------------------------------------------------

    if TYPE_CHECKING:  # generated from the annotations

        @final
        def operands(self) -> tuple[Any, ...]: ...

        @final
        def key(self) -> tuple:
            """Return what checks may depend on."""

        @final
        def bare_key(self) -> tuple:
            """Return the key; the operands become views without a claim on bytes."""

    @final
    def writes_all(self) -> bool:
        """Return True if every element of every output is written, whatever the data are."""
        return not (self.lazy_output or self.partial or self.accumulates)

    @final
    def views(self) -> list[View]:
        """Return all operand views, index tiles of indirect ones included."""
        found = []
        for value in self.operands():
            if isinstance(value, View):
                found.append(value)
                ind = value.indirection
                if ind is not None and isinstance(ind.index, View):
                    found.append(ind.index)
        return found

    def __repr__(self) -> str:
        shown = ", ".join(f"{f}={_brief(getattr(self, f, None))}" for f in self.fields)
        return f"<{self.public}({shown}) at {self.site}>"

    def __reduce__(self) -> Any:
        slots = {name: getattr(self, name) for name in (*self.fields, "name", "site", "runs_on", "access")}
        return _rebuilt, (type(self), self.handle, slots)


def _rebuilt(cls: type[Instruction], handle: object, slots: Mapping[str, object]) -> Instruction:
    instruction = cls.__new__(cls)
    instruction.handle = handle
    for name, value in slots.items():
        setattr(instruction, name, value)
    return instruction


def _brief(value: object) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, View) else repr(value)


# ---- TensorE -------------------------------------------------------------------------------------


class PeTile(NamedTuple):
    """The rows and columns of the PE array that a matmul works on (spec/machine.md 5.2)."""

    rows: range
    columns: range

    def overlaps(self, other: PeTile) -> bool:
        return _intersect(self.rows, other.rows) and _intersect(self.columns, other.columns)


WHOLE_ARRAY = PeTile(range(128), range(128))
ARRAY_USE = ("adds_to_dst", "is_transpose", "array_flops", "array_operand")


def _intersect(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


class MatmulInstruction(Instruction):
    """An instruction that may run on TensorE. A subclass declares how it uses the PE array:

        adds_to_dst()    whether it may add to what dst holds; its dst is then `Accumulated`, and the option
                         `accumulate` is True (add), False (overwrite) or None (add to what matmuls wrote)
        is_transpose     whether it only moves data: its work counts as use of the array, not as flops
        array_flops()    2 x the multiply-adds that the array does
        array_operand()  the tile that the array holds: its partitions are the rows in use

    A class that leaves one of these out is refused, since its time would be wrong.
    """

    engines: ClassVar[tuple[engine, ...]] = (TENSOR,)
    float32_inputs: ClassVar[tuple[int, ...]] = ()  # handed over as float32, converted once per write

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        missing = [name for name in ARRAY_USE if not hasattr(cls, name)]
        if cls.public and missing:
            raise TypeError(f"{cls.__name__} runs on TensorE and does not declare {', '.join(missing)}")

    if TYPE_CHECKING:

        @property
        def is_transpose(self) -> bool: ...

        def adds_to_dst(self) -> bool: ...

        def array_flops(self) -> int: ...

        def array_operand(self) -> View: ...

    def starts_sum(self) -> bool:
        """Return True if it overwrites what no matmul has written, and adds to the rest."""
        return False

    def pe_tile(self) -> PeTile:
        """Return the part of the PE array it works on."""
        return WHOLE_ARRAY

    def is_onezero(self) -> bool:
        """Return True if an operand is declared to hold ones and zeros only: the array is faster then."""
        return False

    @final
    def flops(self) -> int:
        """Return 2 x the multiply-adds of a product; 0 for a transpose."""
        return 0 if self.is_transpose else self.array_flops()

    @final
    def array_rows(self) -> int:
        """Return the rows of the PE array that work."""
        return self.array_operand().shape[0]


def array_use(instruction: Instruction) -> tuple[int, PeTile]:
    """Return the rows of the PE array that work, and the part of it; 0 and all for other engines."""
    if isinstance(instruction, MatmulInstruction):
        return instruction.array_rows(), instruction.pe_tile()
    return 0, WHOLE_ARRAY
