"""The inverse of a listing: text to a Program. Nothing of the text is executed.

Each line is parsed by itself, and only the forms that a listing writes are understood. Every instruction
is validated again on the machine named, so that what was damaged is refused, with the number of its line.
"""

from __future__ import annotations

import ast
import base64
import binascii
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

import ml_dtypes  # noqa: F401  names of numpy dtypes
import numpy as np

from ..errors import NkiError, SourceLine, error
from ..machine import dtypes
from ..machine.engines import FastEnum
from ..machine.generations import find
from ..machine.machine import Machine
from ..machine.memories import MemoryRegion
from ..machine.operators import OPERATORS
from .context import provides, service
from .instruction import Instruction
from .instruction_class import INSTRUCTIONS
from .layout import Indirection, Shape, row_major
from .operand_access import OperandAccess
from .printer import FORMAT
from .program import Block, Diagnostic, Edge, Item, Loop, Program
from .storage import Storage
from .validation import validate
from .view import View

LOOPS = ("fori_loop", "dynamic_range", "while_loop")
VALUES: dict[str, Callable[..., Any]] = {}  # how options of other rooms are made from their fields
REGISTER: list[Callable[[Any], Any]] = []  # how a register is made
LARGEST = 1 << 48  # bytes, elements, positions: more than any of them can be


def register_value(name: str) -> Callable:
    """Let a record of this name in a listing be made by the decorated class."""

    def keep(cls: Any) -> Any:
        VALUES[name] = cls
        return cls

    return keep


class Damaged(Exception):
    """What stands there cannot be read."""


DAMAGE = (Damaged, NkiError, SyntaxError, ValueError, TypeError, LookupError, AttributeError, AssertionError)


@provides("program.parse")
def parse(text: str, constants: dict[str, np.ndarray] | None = None) -> Program:
    """The program of a text. `constants` has those that the text names by digest."""
    lines = text.splitlines()
    if not lines or lines[0] != FORMAT:
        raise error(
            "program-file",
            "this is not the text of a program",
            notes=[f"it begins with {(lines[0] if lines else '')[:40]!r}, not with {FORMAT!r}"],
            help="str(program) and Program.save write one",
        )
    service("program.vocabulary")()
    reader = Reader(constants or {})
    number = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the checks say was said when it was traced
            for line in lines[1:]:
                number += 1
                if line.strip():
                    reader.read(line)
            number += 1
            return reader.program()
    except (
        Damaged,
        NkiError,
        SyntaxError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
    ) as problem:
        what = getattr(problem, "message", None) or str(problem) or type(problem).__name__
    except (RecursionError, MemoryError, OverflowError) as problem:
        what = f"too deep or too large ({type(problem).__name__})"
    shown = lines[number - 1].strip()[:80] if number <= len(lines) else "the end"
    raise error(
        "program-file",
        f"line {number} of the program cannot be read: {what.splitlines()[0] if what else ''}",
        notes=[f"there: {shown}"],
        help="it was damaged, or written by another version: trace the kernel again",
    )


class Reader:
    """Reads a listing line by line."""

    def __init__(self, constants: dict[str, np.ndarray]):
        self.given = constants
        self.name = ""
        self.machine: Machine | None = None
        self.files: list[str] = []
        self.sources: dict[tuple[int, int], SourceLine] = {}
        self.storages: dict[str, Storage] = {}
        self.registers: dict[str, Any] = {}
        self.parameters: list[tuple[str, Storage]] = []
        self.constants: list[tuple[Storage, np.ndarray]] = []
        self.cores: list[list[Item]] = []
        self.open: list[tuple[int, list[Item], Callable[[], None] | None]] = []  # indent, items, at the end
        self.result: Any = None
        self.edges: list[Edge] = []
        self.blocks: list[Block] = []
        self.schedule: list[tuple[str, tuple[str, ...]]] = []
        self.trips: dict[int, tuple[int, ...]] = {}
        self.said: list[Diagnostic] = []

    # ---- lines -----------------------------------------------------------------------------------

    def read(self, line: str) -> None:
        indent = len(line) - len(line.lstrip(" "))
        while self.open and indent <= self.open[-1][0]:
            self._close()
        text = line.strip()
        if text.startswith("with "):
            self._block(indent, self._call(ast.parse(f"{text} pass").body[0].items[0].context_expr))  # type: ignore[attr-defined]
            return
        (statement,) = ast.parse(text).body
        if isinstance(statement, ast.Pass):
            return
        if isinstance(statement, ast.Assign):
            self._declare(statement)
        elif isinstance(statement, ast.Expr):
            name, args, kwargs = self._call(statement.value)
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
        _whole(number), _whole(step)
        for part in (index,) if name != "while_loop" else (index, lower, upper):
            if not getattr(part, "is_register", False):
                raise Damaged("a register is missing")

        def end() -> None:
            around.append(Loop(name, number, index, lower, upper, step, tuple(items), site))

        self.open.append((indent, items, end))

    def _statement(self, name: str, args: list, kwargs: dict) -> None:
        if name == "program":
            self.name, self.machine = _text(args[0]), find(_text(args[1]))
        elif name == "file":
            self.files.append(_text(args[0]))
        elif name == "line":
            file, number, text, function = args
            self.sources[file, number] = SourceLine(
                self.files[file], _whole(number), _text(text), _text(function)
            )
        elif name == "result":
            (self.result,) = args
        elif name == "edge":
            self.edges.append(Edge(*map(_whole, args)))
        elif name == "block":
            self.blocks.append(Block(*map(_whole, args)))
        elif name == "schedule":
            later, earlier = args
            self.schedule.append((_text(later), tuple(map(_text, earlier))))
        elif name == "trips":
            self.trips[_whole(args[0])] = tuple(map(_whole, args[1]))
        elif name == "said":
            kind, message, notes, help, core, before = args
            site = self._site(kwargs)
            self.said.append(Diagnostic(_text(kind), _text(message), list(notes), help, site, core, before))
        else:
            raise Damaged(f"no statement is called {name}")

    def _declare(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        if not isinstance(target, ast.Name):
            raise Damaged("no name is declared")
        name, args, kwargs = self._call(statement.value)
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
        shape = tuple(map(_size, shape))
        if not isinstance(buffer, MemoryRegion) or not isinstance(dtype, dtypes.DType) or not shape:
            raise Damaged("a storage has a memory, a dtype and a shape")
        address = kwargs.pop("address", None)
        parameter, data = kwargs.pop("parameter", None), kwargs.pop("constant", None)
        storage = Storage(
            buffer,
            shape,
            dtype,
            _text(kwargs.pop("name", parameter or "")),
            None if address is None else (_whole(address[0]), _whole(address[1])),
            self._site(kwargs),
            len(self.storages),
            parameter is not None,
            data is not None,
            _whole(kwargs.pop("loop", 0)),
        )
        if kwargs or storage.nbytes > LARGEST:
            raise Damaged(f"a storage of {storage.nbytes} bytes with {', '.join(kwargs) or 'no more'}")
        if self.machine is not None and storage.on_chip:
            self._check_place(storage)
        if parameter is not None:
            self.parameters.append((_text(parameter), storage))
        if data is not None:
            self.constants.append((storage, self._data(_text(data), storage)))
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
        instruction.name = None if label is None else _text(label)
        instruction.site = site
        instruction.handle = 0  # what waits for what is said by the program's edges
        for field in cls.registers:
            value = kwargs[field]
            if not (getattr(value, "is_register", False) or isinstance(value, int)):
                raise Damaged(f"{name}: {field} is no register")
        instruction.key()  # its options can be compared
        assert self.machine is not None
        instruction.runs_on = validate(instruction, self.machine)
        instruction.access = OperandAccess.of(instruction)
        instruction.cost(self.machine)  # whoever reads it later can price it
        return instruction

    def _site(self, kwargs: dict) -> Any:
        at = kwargs.pop("at", None)
        return None if at is None else self.sources[at]

    def program(self) -> Program:
        while self.open:
            self._close()
        if self.machine is None or not self.cores:
            raise Damaged("a program names its machine and has instructions")
        found = Program(
            self.name,
            self.machine,
            tuple(tuple(items) for items in self.cores),
            tuple(self.storages.values()),
            tuple(self.parameters),
            tuple(self.constants),
            self.result,
            tuple(self.edges),
            tuple(self.blocks),
            tuple(self.schedule),
            tuple(self.said),
            self.trips or None,
        )
        lengths = [sum(1 for _ in found.walk(core)) for core in range(len(found.cores))]
        for core, *positions in (*found.edges, *found.blocks):
            if max(positions) >= lengths[core]:
                raise Damaged("an edge beyond the last instruction")
        return found

    # ---- values ----------------------------------------------------------------------------------

    def _call(self, node: ast.expr) -> tuple[str, list, dict]:
        if not isinstance(node, ast.Call):
            raise Damaged("a call is missing")
        args = [self._value(arg) for arg in node.args]
        kwargs = {str(k.arg): self._value(k.value) for k in node.keywords}
        return ast.unparse(node.func), args, kwargs

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand)
            if not isinstance(value, (int, float)):
                raise Damaged("only numbers are negative")
            return -value
        if isinstance(node, (ast.Tuple, ast.List)):
            items = [self._value(item) for item in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else items
        if isinstance(node, ast.Dict):
            keys = [self._value(key) for key in node.keys if key is not None]
            return dict(zip(keys, map(self._value, node.values), strict=True))
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Subscript):
            return self._part(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._made(node)
        raise Damaged("a value of an unknown form")

    def _named(self, name: str) -> Any:
        if name in self.storages:
            storage = self.storages[name]
            return View(storage, 0, Shape(storage.shape), row_major(storage.shape), storage.dtype)
        if name in self.registers:
            return self.registers[name]
        if name in MemoryRegion.__members__:
            return MemoryRegion[name]
        return dtypes.resolve(name)

    def _part(self, node: ast.Subscript) -> View:
        whole, part = self._value(node.value), node.slice
        if not isinstance(whole, View) or not isinstance(part, ast.Slice):
            raise Damaged("no part of a storage")
        assert part.lower is not None and part.upper is not None and part.step is not None
        offset, shape = _whole(self._value(part.lower)), tuple(map(_size, self._value(part.upper)))
        strides = tuple(map(_whole, self._value(part.step)))
        if len(shape) != len(strides):
            raise Damaged("as many strides as sizes")
        return View(whole.storage, offset, Shape(shape), strides, whole.dtype)

    def _attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in ENUMS:
            return ENUMS[node.value.id][node.attr]
        view = self._value(node.value)
        if not isinstance(view, View):
            raise Damaged("only views have a dtype")
        return View(view.storage, view.offset, view.shape, view.strides, dtypes.resolve(node.attr))

    def _made(self, node: ast.Call) -> Any:
        name, args, kwargs = self._call(node)
        if name in ("scalar", "vector", "tensor") and args and isinstance(args[0], View):
            view, index, scale, dim, *base = args
            ind = Indirection(name, index, _whole(scale), dim, base[0] if base else None)
            return View(view.storage, view.offset, view.shape, view.strides, view.dtype, ind)
        if name == "number":
            return float(_text(args[0]))
        if name == "op":
            return OPERATORS[_text(args[0])]
        if name == "scalar":
            return np.frombuffer(bytes.fromhex(_text(args[1])), np.dtype(_text(args[0])))[0]
        if name == "record":
            made = VALUES.get(_text(args[0]))
            return Record.named(_text(args[0]), kwargs) if made is None else made(**kwargs)
        raise Damaged(f"{name} makes no value")


class Record:
    """A dataclass or named tuple among the results of a program that was read: a class of its name."""

    is_nki_object = True

    def __init__(self, fields: dict[str, Any]):
        self.__dict__.update(fields)

    @staticmethod
    def named(name: str, fields: dict[str, Any]) -> Record:
        return type(name, (Record,), {})(fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class _Enums(dict[str, Any]):
    """The enums of nki.isa by name, as they come to exist."""

    def __missing__(self, name: str) -> type[Enum]:
        for cls in FastEnum.__subclasses__():
            if cls.__name__ == name:
                self[name] = cls
                return cls
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(cls.__name__ == name for cls in FastEnum.__subclasses__())


ENUMS = _Enums()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _wrong("a text", value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        _wrong("a whole number", value)
    return value


def _size(value: Any) -> int:
    return _whole(value) or _wrong("a size", value)


def _wrong(wanted: str, value: Any) -> NoReturn:
    raise Damaged(f"{wanted} is missing, there is {str(value)[:40]!r}")
