"""A Program as text: one statement a line, in Python's syntax, the same in every process.

`nki.ir.parser` reads it back.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from math import isfinite
from typing import Any

import numpy as np

from ..machine.dtypes import DType
from ..machine.operators import Operator
from .instruction import Instruction
from .items import Item, Loop
from .layout import row_major
from .storage import Storage
from .tree import is_record, record_fields
from .view import View

FORMAT = "# nki program 1"
COMPILER_FLAGS = ("transformed", "skips_middle_end")  # of a program, written where they are set
INDENT = "    "


class Listing:
    """Writes a program line by line. Storages and registers are numbered in order of appearance."""

    def __init__(self, program: Any, constants: bool = True):
        self.program = program
        self.constants = constants
        self.names = {storage: f"s{i}" for i, storage in enumerate(program.storages)}
        self.registers: dict[Any, str] = {}
        self.files: dict[str, int] = {}
        self.sources: dict[tuple[int, int], tuple[str, str]] = {}

    def lines(self) -> Iterator[str]:
        p = self.program
        body = [line for core in range(len(p.cores)) for line in self._core(core)]
        storages = list(self._storages())
        tail = list(self._tail())
        registers = [f"{name} = register({self.show(r._first)})" for r, name in self.registers.items()]
        yield FORMAT
        flags = "".join(f", {name}=True" for name in COMPILER_FLAGS if getattr(p, name))
        yield f"program({json.dumps(p.name)}, {json.dumps(p.machine.name)}{flags})"
        yield from (f"file({json.dumps(name)})" for name in self.files)
        for (file, number), (text, function) in self.sources.items():
            yield f"line({file}, {number}, {json.dumps(text)}, {json.dumps(function)})"
        yield from storages
        yield from registers
        yield from body
        yield from tail

    # ---- declarations ----------------------------------------------------------------------------

    def _storages(self) -> Iterator[str]:
        names = {storage: name for name, storage in self.program.parameters}
        data = {storage: raw for storage, raw in self.program.constants}
        for storage, label in self.names.items():
            parts = [f"{storage.buffer.value}, {storage.dtype}, {tuple(storage.shape)!r}"]
            if storage in names:
                parts.append(f"parameter={json.dumps(names[storage])}")
            elif storage.name:
                parts.append(f"name={json.dumps(storage.name)}")
            if storage.address is not None:
                parts.append(f"address={tuple(storage.address)!r}")
            if storage.loop:
                parts.append(f"loop={storage.loop}")
            if storage in data:
                parts.append(f"constant={self._constant(data[storage])}")
            yield f"{label} = storage({', '.join(parts)}{self._at(storage.site)})"

    def _constant(self, raw: np.ndarray) -> str:
        if self.constants:
            return json.dumps(base64.b64encode(raw.tobytes()).decode())
        return json.dumps(f"sha256:{hashlib.sha256(raw.tobytes()).hexdigest()}")

    def _tail(self) -> Iterator[str]:
        p = self.program
        yield f"result({self.show(p.result)})"
        yield from (f"edge({e.core}, {e.later}, {e.earlier})" for e in p.edges)
        yield from (f"block({b.core}, {b.first}, {b.last})" for b in p.blocks)
        yield from (f"schedule({self.show(later)}, {self.show(earlier)})" for later, earlier in p.schedule)
        for number, counts in (p.trips or {}).items():
            yield f"trips({number}, {tuple(counts)!r})"
        for d in p.diagnostics:
            parts = (d.kind, d.message, list(d.notes), d.help, d.core, d.before)
            yield f"said({', '.join(map(self.show, parts))}{self._at(d.site)})"

    # ---- instructions ----------------------------------------------------------------------------

    def _core(self, core: int) -> Iterator[str]:
        yield f"with core({core}):"
        yield from self._items(self.program.cores[core], INDENT)

    def _items(self, items: tuple[Item, ...], indent: str) -> Iterator[str]:
        for item in items:
            if isinstance(item, Loop):
                bounds = ", ".join(map(self.show, (item.index, item.lower, item.upper, item.step)))
                yield f"{indent}with {item.function}({item.number}, {bounds}{self._at(item.site)}):"
                yield from self._items(item.body, indent + INDENT)
            else:
                yield indent + self.instruction(item)
        if not items:
            yield f"{indent}pass"

    def instruction(self, instruction: Instruction) -> str:
        parts = [f"{field}={self.show(getattr(instruction, field))}" for field in instruction.fields]
        if instruction.name is not None:
            parts.append(f"_name={json.dumps(instruction.name)}")
        return f"{instruction.listed_as}({', '.join(parts)}{self._at(instruction.site, bool(parts))})"

    def _at(self, site: Any, comma: bool = True) -> str:
        if site is None:
            return ""
        file = self.files.setdefault(site.filename, len(self.files))
        self.sources.setdefault((file, site.lineno), (site.text, site.function))
        return f"{', ' if comma else ''}at=({file}, {site.lineno})"

    # ---- values ----------------------------------------------------------------------------------

    def show(self, value: object) -> str:
        if isinstance(value, View):
            return self.view(value)
        if getattr(value, "is_register", False):
            return self.registers.setdefault(value, f"r{len(self.registers)}")
        if isinstance(value, (bool, type(None), int)) and value.__class__ in (bool, type(None), int):
            return repr(value)
        if value.__class__ is float:
            return repr(value) if isfinite(value) else f"number({json.dumps(repr(value))})"
        if value.__class__ is str:
            return json.dumps(value)
        if isinstance(value, DType):
            return str(value)
        if isinstance(value, Operator):
            return f"op({json.dumps(value.name)})"
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, np.generic):
            return f"scalar({json.dumps(value.dtype.name)}, {json.dumps(value.tobytes().hex())})"
        if isinstance(value, (tuple, list)) and hasattr(value, "_fields"):
            fields = [f"{name}={self.show(item)}" for name, item in zip(value._fields, value, strict=True)]
            return self._record(value, fields)
        if isinstance(value, tuple):
            return f"({''.join(f'{self.show(item)}, ' for item in value).rstrip(' ') or ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.show, value))}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.show(k)}: {self.show(v)}' for k, v in value.items())}}}"
        if is_record(value):
            return self._record(value, [f"{n}={self.show(getattr(value, n))}" for n in record_fields(value)])
        return f"other({json.dumps(repr(value))})"

    def _record(self, value: object, fields: list[str]) -> str:
        return f"record({', '.join([json.dumps(type(value).__name__), *fields])})"

    def view(self, view: View) -> str:
        """`s3` for all of a storage, else `s3[offset:shape:strides]`; with its dtype where it is another."""
        text = self.names[view.storage]
        if not _is_whole(view):
            text += f"[{view.offset}:{tuple(view.shape)!r}:{tuple(view.strides)!r}]"
        if view.dtype != view.storage.dtype:
            text += f".{view.dtype}"
        ind = view.indirection
        if ind is None:
            return text
        base = "" if ind.base is None else f", {self.view(ind.base)}"
        return f"{ind.kind}({text}, {self.show(ind.index)}, {ind.scale}, {ind.dim!r}{base})"


def _is_whole(view: View) -> bool:
    storage: Storage = view.storage
    same = tuple(view.shape) == tuple(storage.shape) and view.dtype == storage.dtype
    return same and view.offset == 0 and tuple(view.strides) == row_major(storage.shape)


def text(program: Any, constants: bool) -> str:
    """Return the listing of a program; without `constants`, only the digests of their contents."""
    return "\n".join(Listing(program, constants).lines()) + "\n"


def as_dict(program: Any) -> dict[str, Any]:
    """Return a program as plain data: the parts of the lines of its listing."""
    listing = Listing(program, constants=False)
    cores = []
    for core in range(len(program.cores)):
        cores.append(
            [
                {
                    "instruction": i.public,
                    "engine": i.engine_name(),
                    "name": i.name,
                    "operands": {f: listing.show(getattr(i, f)) for f in i.fields},
                    "file": i.site and i.site.filename,
                    "line": i.site and i.site.lineno,
                }
                for i in program.walk(core)
            ]
        )
    names = {storage: name for name, storage in program.parameters}
    storages = [
        {
            "storage": label,
            "memory": storage.buffer.value,
            "dtype": str(storage.dtype),
            "shape": list(storage.shape),
            "name": storage.name or None,
            "parameter": names.get(storage),
            "address": storage.address and list(storage.address),
            "loop": storage.loop or None,
        }
        for storage, label in listing.names.items()
    ]
    return {
        "name": program.name,
        "machine": program.machine.name,
        "digest": program.digest,
        "storages": storages,
        "cores": cores,
        "result": listing.show(program.result),
        "diagnostics": [str(d) for d in program.diagnostics],
    }
