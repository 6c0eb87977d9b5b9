"""Reads the text form of a Program back. Nothing of the text is executed.

Each line is parsed by itself, and only the forms that a listing writes are understood. Every instruction is
validated again on the machine named, so that damage is an error, with the number of its line.
"""

from __future__ import annotations

import ast
import base64
import binascii
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import NkiError, SourceLine, error
from ..machine import dtypes
from ..machine.generations import find
from ..machine.machine import Machine
from ..machine.memories import MemoryRegion
from .instruction import Instruction
from .instruction_class import INSTRUCTIONS, LIBRARIES
from .items import Diagnostic, Edge, Item, Loop, OrderedBlock, run_length, walk
from .operand_access import OperandAccess
from .parser_values import (
    LARGEST,
    REGISTER,
    Damaged,
    ValueReader,
    as_count,
    as_name,
    as_size,
    as_text,
    as_whole,
    check_views,
)
from .printer import COMPILER_FLAGS, FORMAT
from .storage import Storage
from .validation import validate

LOOPS = ("fori_loop", "dynamic_range", "while_loop")
LONGEST_RUN = 1 << 26  # instructions, with the trips of loops whose bounds are numbers
DAMAGE = (
    *(Damaged, NkiError, SyntaxError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(ArithmeticError, NotImplementedError),
)


def parse(text: str, constants: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Return the fields of the Program of a text; `constants` holds those that the text names by digest."""
    lines = text.splitlines()
    if not lines or lines[0] != FORMAT:
        raise error(
            "program-file",
            "this is not the text of a program",
            notes=[f"it begins with {(lines[0] if lines else '')[:40]!r}, not with {FORMAT!r}"],
            help="str(program) and Program.save write one",
        )
    for load in LIBRARIES:
        load()
    reader = Reader(constants or {})
    number = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the trace has given the warnings of the checks
            for line in lines[1:]:
                number += 1
                if line.strip():
                    reader.read(line)
            number += 1
            return reader.fields()
    except DAMAGE as problem:
        what = getattr(problem, "message", None) or str(problem) or type(problem).__name__
    except (RecursionError, MemoryError) as problem:
        what = f"too deep or too large ({type(problem).__name__})"
    shown = lines[number - 1].strip()[:80] if number <= len(lines) else "the end"
    raise error(
        "program-file",
        f"line {number} of the program cannot be read: {what.splitlines()[0] if what else ''}",
        notes=[f"there: {shown}"],
        help="it was damaged, or written by another version: trace the kernel again",
    )


class Reader(ValueReader):
    """Reads a listing line by line."""

    def __init__(self, constants: dict[str, np.ndarray]):
        super().__init__()
        self.given = constants
        self.name = ""
        self.flags: dict[str, bool] = {}
        self.machine: Machine | None = None
        self.files: list[str] = []
        self.sources: dict[tuple[int, int], SourceLine] = {}
        self.parameters: list[tuple[str, Storage]] = []
        self.constants: list[tuple[Storage, np.ndarray]] = []
        self.cores: list[list[Item]] = []
        self.open: list[tuple[int, list[Item], Callable[[], None] | None]] = []  # indent, items, at the end
        self.result: Any = None
        self.edges: list[Edge] = []
        self.blocks: list[OrderedBlock] = []
        self.schedule: list[tuple[str, tuple[str, ...]]] = []
        self.trips: dict[int, tuple[int, ...]] = {}
        self.diagnostics: list[Diagnostic] = []

    # ---- lines -----------------------------------------------------------------------------------

    def read(self, line: str) -> None:
        indent = len(line) - len(line.lstrip(" "))
        while self.open and indent <= self.open[-1][0]:
            self._close()
        text = line.strip()
        if text.startswith("with "):
            self._block(indent, self.call(ast.parse(f"{text} pass").body[0].items[0].context_expr))  # type: ignore[attr-defined]
            return
        (statement,) = ast.parse(text).body
        if isinstance(statement, ast.Pass):
            return
        if isinstance(statement, ast.Assign):
            self._declare(statement)
        elif isinstance(statement, ast.Expr):
            name, args, kwargs = self.call(statement.value)
            if self.open:
                self.open[-1][1].append(self._instruction(name, args, kwargs))
            else:
                self._statement(name, args, kwargs)
        else:
            raise Damaged("no statement of a program")

    def _close(self) -> None:
        _, _, end = self.open.pop()
        if end is not None:
            end()

    def _block(self, indent: int, call: tuple[str, list, dict]) -> None:
        name, args, kwargs = call
        items: list[Item] = []
        if name == "core":
            if args != [len(self.cores)] or self.open:
                raise Damaged("cores come in order")
            self.cores.append(items)
            self.open.append((indent, items, None))
            return
        if name not in LOOPS or not self.open or len(args) != 5:
            raise Damaged(f"{name} opens no block")
        number, index, lower, upper, step = args
        around = self.open[-1][1]
        site = self._site(kwargs)
        as_count(number), as_size(step)
        for bound in (lower, upper):
            if not getattr(bound, "is_register", False):
                as_whole(bound)
        for part in (index,) if name != "while_loop" else (index, lower, upper):
            if not getattr(part, "is_register", False):
                raise Damaged("a register is missing")

        def end() -> None:
            around.append(Loop(name, number, index, lower, upper, step, tuple(items), site))

        self.open.append((indent, items, end))

    def _statement(self, name: str, args: list, kwargs: dict) -> None:
        if name == "program":
            self.name, self.machine = as_name(args[0]), find(as_text(args[1]))
            self.flags = {flag: kwargs.get(flag) is True for flag in COMPILER_FLAGS}
        elif name == "file":
            self.files.append(as_name(args[0]))
        elif name == "line":
            file, number, text, function = args
            self.sources[file, number] = SourceLine(
                self.files[as_count(file)], as_count(number), as_name(text), as_name(function)
            )
        elif name == "result":
            (self.result,) = args
            check_views(self.result)
        elif name == "edge":
            self.edges.append(Edge(*map(as_count, args)))
        elif name == "block":
            self.blocks.append(OrderedBlock(*map(as_count, args)))
        elif name == "schedule":
            later, earlier = args
            self.schedule.append((as_text(later), tuple(map(as_text, earlier))))
        elif name == "trips":
            self.trips[as_count(args[0])] = tuple(map(as_count, args[1]))
        elif name == "said":
            kind, message, notes, *rest = args
            help, core, before = rest
            found = Diagnostic(
                as_name(kind),
                as_name(message),
                list(map(as_name, notes)),
                None if help is None else as_name(help),
                self._site(kwargs),
                as_count(core),
                None if before is None else as_count(before),
            )
            self.diagnostics.append(found)
        else:
            raise Damaged(f"no statement is called {name}")

    def _declare(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        if not isinstance(target, ast.Name):
            raise Damaged("no name is declared")
        name, args, kwargs = self.call(statement.value)
        if target.id in self.storages or target.id in self.registers:
            raise Damaged(f"{target.id} is declared twice")
        if name == "register" and REGISTER:
            self.registers[target.id] = REGISTER[0](*args)
        elif name == "storage":
            self.storages[target.id] = self._storage(args, kwargs)
        else:
            raise Damaged(f"{name} declares nothing")

    def _storage(self, args: list, kwargs: dict) -> Storage:
        buffer, dtype, shape = args
        shape = tuple(map(as_size, shape))
        if not isinstance(buffer, MemoryRegion) or not isinstance(dtype, dtypes.DType) or not shape:
            raise Damaged("a storage has a memory, a dtype and a shape")
        address = kwargs.pop("address", None)
        parameter, data = kwargs.pop("parameter", None), kwargs.pop("constant", None)
        storage = Storage(
            buffer,
            shape,
            dtype,
            as_name(kwargs.pop("name", parameter or "")),
            None if address is None else (as_count(address[0]), as_count(address[1])),
            self._site(kwargs),
            len(self.storages),
            parameter is not None,
            data is not None,
            as_count(kwargs.pop("loop", 0)),
        )
        if kwargs or storage.nbytes > LARGEST:
            raise Damaged(f"a storage of {storage.nbytes} bytes with {', '.join(kwargs) or 'no more'}")
        if self.machine is not None and storage.on_chip:
            self._check_place(storage)
        if parameter is not None:
            self.parameters.append((as_name(parameter), storage))
        if data is not None:
            self.constants.append((storage, self._data(as_text(data), storage)))
        return storage

    def _check_place(self, storage: Storage) -> None:
        m = self.machine
        assert m is not None
        pitch = m.sbuf_bytes if storage.buffer is MemoryRegion.sbuf else m.psum_bytes
        partition, byte = storage.address or (0, 0)
        if storage.address is not None and (
            partition + storage.partitions > m.partitions or byte + storage.pitch > pitch
        ):
            raise Damaged(f"{storage!r} lies outside its memory")

    def _data(self, text: str, storage: Storage) -> np.ndarray:
        if text.startswith("sha256:"):
            if text not in self.given:
                raise Damaged(f"the constant {text[:20]}... is not there")
            raw = self.given[text]
        else:
            try:
                raw = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
            except binascii.Error:
                raise Damaged("a constant is not base64") from None
        if raw.nbytes != storage.nbytes:
            raise Damaged(f"a constant has {raw.nbytes} bytes, its storage {storage.nbytes}")
        return raw

    def _instruction(self, name: str, args: list, kwargs: dict) -> Instruction:
        cls = INSTRUCTIONS.get(name)
        if cls is None:
            raise Damaged(f"no instruction is called {name}")
        site, label = self._site(kwargs), kwargs.pop("_name", None)
        if args or set(kwargs) != set(cls.fields):
            raise Damaged(f"{name} takes {', '.join(cls.fields)}")
        instruction = cls(*(kwargs[field] for field in cls.fields))
        instruction.name = None if label is None else as_text(label)
        instruction.site = site
        instruction.handle = 0  # the edges of the program name what waits for what
        for field in cls.registers:
            value = kwargs[field]
            if not (getattr(value, "is_register", False) or isinstance(value, int)):
                raise Damaged(f"{name}: {field} is no register")
        check_views(kwargs)
        instruction.key()  # its options can be compared
        assert self.machine is not None
        instruction.runs_on = validate(instruction, self.machine)
        instruction.access = OperandAccess.of(instruction)
        instruction.cost(self.machine)  # it must have a cost
        return instruction

    def _site(self, kwargs: dict) -> Any:
        at = kwargs.pop("at", None)
        return None if at is None else self.sources[at]

    def fields(self) -> dict[str, Any]:
        """Return the fields of the Program, once all lines are read."""
        while self.open:
            self._close()
        if self.machine is None or not self.cores:
            raise Damaged("a program names its machine and has instructions")
        lengths = [sum(1 for _ in walk(items)) for items in self.cores]
        if max(run_length(items, self.trips) for items in self.cores) > LONGEST_RUN:
            raise Damaged(f"its loops run more than {LONGEST_RUN:,} instructions")
        for core, *positions in (*self.edges, *self.blocks):
            if max(positions) >= lengths[core]:
                raise Damaged("an edge beyond the last instruction")
        return {
            "name": self.name,
            "machine": self.machine,
            "cores": tuple(tuple(items) for items in self.cores),
            "storages": tuple(self.storages.values()),
            "parameters": tuple(self.parameters),
            "constants": tuple(self.constants),
            "result": self.result,
            "edges": tuple(self.edges),
            "blocks": tuple(self.blocks),
            "schedule": tuple(self.schedule),
            "diagnostics": tuple(self.diagnostics),
            "trips": self.trips or None,
            **self.flags,
        }
