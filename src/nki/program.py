"""Instructions and the Program they form.

An instruction is a class whose annotations are its operands and options, in the order of its public
function. The annotation says what happens to an operand:

    Out          a tile it writes            InOut        a tile it reads and writes
    In           a tile it reads             Operand      a tile, or a number
    OptionalOut  a tile it writes, or None   OptionalIn   a tile it reads, or None
    RegisterOut  a register it writes        RegisterIn   a register it reads, or a number

Everything else annotated is an option. `check`, `compute` and `cost` then stand beside each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .errors import Site, error
from .view import View

if TYPE_CHECKING:
    from .machine import Machine

Out = View
In = View
InOut = View
Operand = Any
OptionalOut = Any
OptionalIn = Any
RegisterOut = Any
RegisterIn = Any

READS = ("In", "InOut", "Operand", "OptionalIn")
WRITES = ("Out", "InOut", "OptionalOut")
REGISTERS = ("RegisterOut", "RegisterIn")


class Cost(NamedTuple):
    """What an instruction costs (machine.md 4).

    `cycles` is its work in the clock of its engine, `fix_ns` how much later a consumer sees the result,
    and `shortest` the fewest cycles until the engine takes the next instruction. `rests_on` names the
    Machine fields used, so that a report can say which of them are assumptions.
    """

    cycles: float
    fix_ns: float
    rests_on: tuple[str, ...] = ()
    shortest: float = 0

    @property
    def interval(self) -> float:
        """Cycles the engine is held."""
        return max(self.cycles, self.shortest)


def _signature(value: Any) -> Any:
    return value.sig if isinstance(value, View) else (value.__class__, value)


class _InstructionType(type):
    """Gives an instruction class its slots, initialiser, key and operand tables from its annotations."""

    def __new__(mcls, name, bases, namespace):
        fields = {
            k: v for k, v in namespace.get("__annotations__", {}).items() if not v.startswith("ClassVar")
        }
        namespace["__slots__"] = tuple(fields)
        cls = super().__new__(mcls, name, bases, namespace)
        if not fields:  # a variant that shares its parent's operands
            return cls
        cls.fields = tuple(fields)
        kinds = {k: v for k, v in fields.items() if v in READS or v in WRITES}
        cls.operand_names = tuple(kinds)
        cls.read_at = tuple(i for i, kind in enumerate(kinds.values()) if kind in READS)
        cls.write_at = tuple(i for i, kind in enumerate(kinds.values()) if kind in WRITES)
        cls.registers = tuple(k for k, v in fields.items() if v in REGISTERS)
        cls.required = frozenset(k for k, v in kinds.items() if v in ("In", "Out", "InOut"))
        _generate(cls, fields, kinds)
        return cls


def _generate(cls: Any, fields: dict[str, str], kinds: dict[str, str]) -> None:
    """Write `__init__`, `key` and `operands` as straight-line code: they run once per instruction."""
    if cls.__name__ == "Instruction":
        return
    parts = ["self"]
    for field in fields:
        if field in cls.required:
            parts.append(f"self.{field}._sig or self.{field}.sig")
        elif field in kinds:
            parts.append(f"_signature(self.{field})")
        elif field in cls.registers:  # a run-time value: no check may look at it
            parts.append(f"self.{field}.__class__")
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
    scope: dict[str, Any] = {"_signature": _signature}
    exec("\n".join(lines), scope)
    for method in ("__init__", "key", "operands"):
        scope[method].__qualname__ = f"{cls.__qualname__}.{method}"
        setattr(cls, method, scope[method])


class Place(NamedTuple):
    """Where an instruction stands: its number in program order, and the dynamic loop bodies around it."""

    order: int
    loops: tuple = ()


class NkiInstruction:
    """The handle every instruction call returns. `handle` is its Place, or just its number."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any):
        self.handle = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Start only after every producer has finished. Scheduling alone: values never change."""
        from .core import current

        current().add_dependencies(self, producers)
        return self


class Instruction(NkiInstruction, metaclass=_InstructionType):
    """Base of every instruction; see the module's text."""

    fields: ClassVar[tuple[str, ...]]
    operand_names: ClassVar[tuple[str, ...]]
    read_at: ClassVar[tuple[int, ...]]
    write_at: ClassVar[tuple[int, ...]]
    required: ClassVar[frozenset[str]]
    registers: ClassVar[tuple[str, ...]]

    public: ClassVar[str] = ""  # name of the public function
    engines: ClassVar[tuple[Any, ...]] = ()  # which may run it, default first
    since: ClassVar[int] = 2  # oldest generation: 2 trn1, 3 trn2, 4 trn3
    on_chip: ClassVar[bool] = True  # operands must be in SBUF or PSUM
    anywhere: ClassVar[bool] = False  # operands may be in HBM although no DMA moves them
    indirect: ClassVar[tuple[str, ...]] = ()  # operands that may be .indirect() views
    stateful: ClassVar[bool] = False  # compute gets the core as its first argument
    widened: ClassVar[tuple[int, ...]] = ()  # operands handed over as float32, converted once per write
    partial: ClassVar[tuple[int, ...]] = ()  # operands touched in part: `parts` says where
    opens: ClassVar[bool] = False  # outputs are handed over as views: compute knows which elements it writes
    places: ClassVar[tuple[str, ...]] = ()  # operands whose start partition `check` itself judges
    accumulates: ClassVar[bool] = False  # compute gets, last, which elements a matmul wrote before
    cost_formula: ClassVar[str] = ""  # for docs/isa.md
    cost_source: ClassVar[str] = ""

    name: str | None  # label of the caller, for schedules and reports
    site: Site | None  # the user's line
    runs_on: Any  # the engine, once chosen
    access: Any  # how the executor reads and writes its operands, once checked

    if TYPE_CHECKING:

        def __init__(self, *fields: Any) -> None: ...

    def operands(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def key(self) -> tuple:
        raise NotImplementedError

    def check(self, machine: Machine) -> None:
        """Raise or warn when the operands break a rule. Looks at shapes, dtypes and buffers alone."""

    def choose_engine(self, machine: Machine) -> Any:
        """The engine when the caller names none."""
        return self.engines[0] if self.engines else None

    def compute(self, *arrays: Any) -> None:
        """The meaning: numpy arrays in, the output arrays filled."""
        raise error("not-implemented-yet", f"{self.public}: has no meaning yet")

    def cost(self, machine: Machine) -> Cost:
        """Cycles on the engine that runs it (machine.md)."""
        raise error("not-implemented-yet", f"{self.public}: has no cost yet")

    def parts(self, index: int) -> list[View]:
        """The views through which an operand listed in `partial` is really read or written."""
        return [self.operands()[index]]

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

    def detach(self) -> Instruction:
        """Let go of the bytes: from now on the instruction holds descriptions only."""
        for field in self.operand_names:
            value = getattr(self, field)
            if isinstance(value, View):
                setattr(self, field, value.bare())
        return self

    def __repr__(self) -> str:
        shown = ", ".join(f"{f}={_brief(getattr(self, f, None))}" for f in self.fields)
        return f"<{self.public}({shown}) at {self.site}>"


def _brief(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, View) else repr(value)


class Program:
    """What a kernel did: its instructions in order, without data."""

    def __init__(self, machine: Machine, instructions: list[Instruction] | None = None):
        self.machine = machine
        self.instructions = [] if instructions is None else instructions
        self.dependencies: list[tuple[Instruction, Instruction]] = []  # (later, earlier)

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self):
        return iter(self.instructions)

    def __repr__(self) -> str:
        return f"<Program of {len(self)} instructions for {self.machine.name}>"
