"""Instructions: what one is called with, demands, means, costs, and touches.

An instruction is a class whose annotations are its operands and options, in the order of its public
function. The annotation says what happens to an operand:

    Out          a tile it writes            InOut        a tile it reads and writes
    In           a tile it reads             Operand      a tile, or a number
    OptionalOut  a tile it writes, or None   OptionalIn   a tile it reads, or None
    RegisterOut  a register it writes        RegisterIn   a register it reads, or a number
    Accumulated  a PSUM tile it adds to, or overwrites

Everything else annotated is an option. What it touches beside its operands is `state`. From these the
effects follow (`nki.ir.effects`). `check`, `compute` and `cost` then stand beside each other.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..errors import Site, error
from ..machine.engines import engine
from ..machine.machine import Machine
from .context import current
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

READS = ("In", "InOut", "Operand", "OptionalIn")
WRITES = ("Out", "InOut", "OptionalOut", "Accumulated")
REGISTERS = ("RegisterOut", "RegisterIn")


class State(Enum):
    """What an instruction can read or change beside its operands. An instruction that touches a state
    keeps its order among all that touch it."""

    vector_accumulator = "the accumulator registers of VectorE"
    scalar_accumulator = "the accumulator registers of ScalarE"
    vector_random = "the random state of VectorE"
    gpsimd_random = "the random state of GpSimdE"
    output = "what is printed"
    peer = "the other core"
    ranks = "the other ranks"
    loop = "the head of a dynamic loop"


class PeTile(NamedTuple):
    """The rows and columns of the PE array that a matmul works on (spec/machine.md 5.2)."""

    rows: range
    columns: range

    def overlaps(self, other: PeTile) -> bool:
        return _meet(self.rows, other.rows) and _meet(self.columns, other.columns)


WHOLE_ARRAY = PeTile(range(128), range(128))


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


class Cost(NamedTuple):
    """What an instruction costs (spec/machine.md 4).

    `cycles` is its work in the clock of its engine, `fix_ns` how much later a consumer sees the result,
    and `shortest` the fewest cycles until the engine takes the next instruction; `gap` cycles it is held
    beyond its work. `rests_on` names the Machine fields used, so that a report can say which of them are
    assumptions.
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


class Wire(NamedTuple):
    """What an instruction asks of the link between this rank and others (spec/machine.md 11)."""

    latency_ns: float  # of all hops
    busy_ns: float  # the link carries this rank's bytes
    rests_on: tuple[str, ...] = ()


def _signature(value: Any) -> Any:
    return value.sig if isinstance(value, View) else (value.__class__, value)


def _typed(value: Any) -> Any:
    """An option for a key: 1, 1.0 and True are different options, inside tuples too."""
    if value.__class__ is tuple:
        return tuple([_typed(v) for v in value])
    return value.__class__, value


INSTRUCTIONS: dict[str, type[Instruction]] = {}  # by the name a listing calls them


class _InstructionType(type):
    """Gives an instruction class its slots, initialiser, key and operand tables from its annotations."""

    def __new__(mcls, name, bases, namespace):
        fields = {
            k: v for k, v in namespace.get("__annotations__", {}).items() if not v.startswith("ClassVar")
        }
        namespace["__slots__"] = tuple(fields)
        cls = super().__new__(mcls, name, bases, namespace)
        if cls.public:
            known = INSTRUCTIONS.get(cls.public)
            taken = known is not None and (known.__module__, known.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            )
            cls.listed_as = f"{cls.public}.{name}" if taken else cls.public
            INSTRUCTIONS[cls.listed_as] = cls
        if not fields:  # a variant that shares its parent's operands
            return cls
        cls.fields = tuple(fields)
        kinds = {k: v for k, v in fields.items() if v in READS or v in WRITES}
        cls.operand_names = tuple(kinds)
        cls.read_at = tuple(i for i, kind in enumerate(kinds.values()) if kind in READS)
        cls.write_at = tuple(i for i, kind in enumerate(kinds.values()) if kind in WRITES)
        cls.accumulates = "Accumulated" in kinds.values()  # its dst: the first operand
        cls.registers = tuple(k for k, v in fields.items() if v in REGISTERS)
        cls.registers_written = tuple(k for k, v in fields.items() if v == "RegisterOut")
        cls.required = frozenset(k for k, v in kinds.items() if v in ("In", "Out", "InOut", "Accumulated"))
        if name != "Instruction":
            for method in _WRITTEN:
                setattr(cls, method, _written_when_used(cls, method, fields, kinds))
        return cls


_WRITTEN = ("__init__", "key", "operands")


def _written_when_used(cls: Any, method: str, fields: dict[str, str], kinds: dict[str, str]) -> Any:
    """In the place of a method until it is called: few programs use every instruction."""

    def first(self: Any, *args: Any, **named: Any) -> Any:
        _generate(cls, fields, kinds)
        return getattr(cls, method)(self, *args, **named)

    return first


def _generate(cls: Any, fields: dict[str, str], kinds: dict[str, str]) -> None:
    """Write `__init__`, `key` and `operands` as straight-line code: they run once per instruction."""
    parts = ["self"]
    for field in fields:
        if field in cls.required:
            parts.append(f"self.{field}._sig or self.{field}.sig")
        elif field in kinds:
            parts.append(f"_signature(self.{field})")
        elif field in cls.registers:  # a run-time value: no check may look at it
            parts.append(f"self.{field}.__class__")
        elif fields[field].startswith(("tuple", "Any")):
            given = f"self.{field}"
            parts.append(f"{given} if {given} is None or {given} is _NONE else _typed({given})")
        else:
            parts.append(f"self.{field}.__class__, self.{field}")
    lines = [
        f"def __init__(self, {', '.join(fields)}{', ' if fields else ''}name=None):",
        *(f"    self.{field} = {field}" for field in fields),
        "    self.name = name",
        "def key(self):",
        f"    return (self.__class__, {', '.join(parts[1:])})",
        "def operands(self):",
        f"    return ({''.join(f'self.{k}, ' for k in kinds)})",
    ]
    scope: dict[str, Any] = {"_signature": _signature, "_typed": _typed, "_NONE": ()}
    exec("\n".join(lines), scope)
    for method in _WRITTEN:
        scope[method].__qualname__ = f"{cls.__qualname__}.{method}"
        setattr(cls, method, scope[method])


class ProgramPosition(NamedTuple):
    """Where an instruction stands: its number in program order, and the dynamic loop bodies around it."""

    order: int
    loops: tuple = ()


class NkiInstruction:
    """The handle every instruction call returns. `handle` is its ProgramPosition, or just its number."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any):
        self.handle = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Start only after every producer has finished. Scheduling alone: values never change."""
        current().add_dependencies(self, producers)
        return self


class Instruction(NkiInstruction, metaclass=_InstructionType):
    """Base of every instruction; see the module's text."""

    # from the annotations
    fields: ClassVar[tuple[str, ...]]
    operand_names: ClassVar[tuple[str, ...]]
    read_at: ClassVar[tuple[int, ...]]
    write_at: ClassVar[tuple[int, ...]]
    accumulates: ClassVar[bool] = False  # compute gets, last, which elements a matmul wrote before
    required: ClassVar[frozenset[str]]
    registers: ClassVar[tuple[str, ...]]
    registers_written: ClassVar[tuple[str, ...]]

    public: ClassVar[str] = ""  # name of the public function
    listed_as: ClassVar[str] = ""  # in a listing: the public name, if another class has it with a suffix
    engines: ClassVar[tuple[engine, ...]] = ()  # which may run it, default first
    since: ClassVar[int] = 2  # oldest generation: 2 trn1, 3 trn2, 4 trn3
    on_chip: ClassVar[bool] = True  # operands must be in SBUF or PSUM
    anywhere: ClassVar[bool] = False  # operands may be in HBM although no DMA moves them
    indirect: ClassVar[tuple[str, ...]] = ()  # operands that may be .indirect() views
    state: ClassVar[tuple[State, ...]] = ()  # beside its operands; if any, compute gets the core first
    widened: ClassVar[tuple[int, ...]] = ()  # operands handed over as float32, converted once per write
    partial: ClassVar[tuple[int, ...]] = ()  # operands touched in part: `parts` says where
    zeroed: ClassVar[tuple[int, ...]] = ()  # of those, whose other elements read as 0 if nobody wrote them
    lazy_output: ClassVar[bool] = False  # outputs are handed over as views: compute writes some elements
    places: ClassVar[tuple[str, ...]] = ()  # operands whose start partition `check` itself judges
    counted: ClassVar[bool] = True  # False: hardware knows no such instruction, we watch something
    extension: ClassVar[bool] = False  # the manual has no such instruction: docs/isa.md says so
    cost_formula: ClassVar[str] = ""  # for docs/isa.md
    cost_source: ClassVar[str] = ""

    name: str | None  # label of the caller, for schedules and reports
    site: Site | None  # the user's line
    runs_on: engine | None  # the engine, once chosen
    access: Any  # how the executor reads and writes its operands, once checked

    if TYPE_CHECKING:

        def __init__(self, *fields: Any) -> None: ...

    def operands(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def key(self) -> tuple:
        raise NotImplementedError

    # ---- what it demands, means and costs --------------------------------------------------------

    def check(self, machine: Machine) -> None:
        """Raise or warn when the operands break a rule. Looks at shapes, dtypes and buffers alone."""

    def choose_engine(self, machine: Machine) -> engine | None:
        """The engine when the caller names none."""
        return self.engines[0] if self.engines else None

    def meaning(self, machine: Machine) -> Meaning | None:
        """What a planner may take it for; None: only `compute` knows."""
        return None

    def compute(self, *arrays: Any) -> None:
        """The meaning: numpy arrays in, the output arrays filled."""
        raise error("not-implemented-yet", f"{self.public}: has no meaning yet")

    def cost(self, machine: Machine) -> Cost:
        """Cycles on the engine that runs it (spec/machine.md)."""
        raise error("not-implemented-yet", f"{self.public}: has no cost yet")

    # ---- what it touches -------------------------------------------------------------------------

    def touches(self) -> tuple[State, ...]:
        """Of `state`, what this very instruction reads or changes."""
        return self.state

    def parts(self, index: int) -> list[View]:
        """The views through which an operand listed in `partial` is really read or written."""
        return [self.operands()[index]]

    def adds(self) -> bool:
        """An accumulating instruction that may read what its dst holds."""
        return self.accumulates

    def writes_all(self) -> bool:
        """Every element of every output is written, whatever the data say."""
        return not (self.lazy_output or self.partial or self.accumulates)

    def dst_is_byproduct(self) -> bool:
        """What matters goes elsewhere: dst may repeat its elements."""
        return False

    # ---- what the timing model asks --------------------------------------------------------------

    def engine_name(self) -> str:
        """Who works: an engine, or "dma" for the sixteen DMA engines."""
        return self.runs_on.name if self.runs_on is not None else "sync"

    def other_engine(self) -> engine | None:
        """Who else the compiler may give it to, by workload, where the kernel names no engine."""
        return None

    def copies_bits(self) -> bool:
        """It only moves one tile to another of the same dtype, and the kernel names no engine for that."""
        return False

    def flops(self) -> int:
        """2 x MACs of a product; 0 for everything else, transposes included."""
        return 0

    def array_flops(self) -> int:
        """2 x MACs the PE array does, transposes included."""
        return self.flops()

    def array_operand(self) -> View | None:
        """What the PE array holds still or turns over; None for instructions of other engines."""
        return None

    def array_rows(self) -> int:
        """Rows of the PE array that work."""
        operand = self.array_operand()
        return 0 if operand is None else operand.shape[0]

    def turns_over(self) -> bool:
        """The PE array only transposes."""
        return False

    def is_onezero(self) -> bool:
        """An operand is said to hold ones and zeros only, which the PE array multiplies faster."""
        return False

    def uses_default_dge(self) -> bool:
        """A transfer that leaves open who makes its descriptors."""
        return True

    def pe_tile(self) -> PeTile:
        """The part of the PE array it works on."""
        return WHOLE_ARRAY

    def table(self) -> str | None:
        """The activation function whose table ScalarE needs."""
        return None

    def meets(self) -> Hashable | None:
        """The point at which it meets the other core: its n-th visit meets the other's n-th."""
        return None

    def meeting(self, core: int) -> Hashable | None:
        """The point at which it meets the other core of the one that issues it, whatever it costs."""
        return self.meets()

    def wire(self, machine: Machine, cores: int) -> Wire | None:
        """What it asks of the link to other ranks, of which each has so many cores; None: nothing."""
        return None

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks that take part with this one, in index order; none: it takes no part."""
        return ()

    def views(self) -> list[View]:
        """All operand views, index tiles of indirect ones included."""
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


def _rebuilt(cls: type[Instruction], handle: Any, slots: dict[str, Any]) -> Instruction:
    instruction = cls.__new__(cls)
    instruction.handle = handle
    for name, value in slots.items():
        setattr(instruction, name, value)
    return instruction


def _brief(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, View) else repr(value)
