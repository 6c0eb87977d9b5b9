"""Write reference pages from the code: every public name with its signature, docstring and facts."""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import library_pages
import name_pages
from nki.cli import parser
from nki.cli.docs import source_links
from nki.machine.dtypes import DType
from nki.machine.generations import MACHINES
from nki.machine.machine import Machine
from nki.machine.memories import MemoryRegion
from nki.machine.operators import Operator
from nki_mcp.reference import MODULES, commands, facts, group, parameters, public_names


@dataclass(frozen=True)
class Entry:
    """A public name."""

    name: str
    value: Any
    module: str


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    found = {f"{name}.md": _module_page(name) for name in MODULES}
    return {
        **found,
        **name_pages.pages(),
        **library_pages.pages(),
        "nkilib.md": library_pages.index(),
        "command-line.md": _command_page(),
        "machine.md": _machine_page(),
    }


# ---- modules -------------------------------------------------------------------------------------


def _module_page(name: str) -> str:
    module = importlib.import_module(name)
    entries = [Entry(n, getattr(module, n), name) for n in public_names(module)]
    parts = [f"# {name}\n", inspect.getdoc(module) or "", ""]
    if name in name_pages.DOCUMENTED:  # names with a page of their own, then the others
        parts.append(name_pages.index(name))
        entries = [entry for entry in entries if not name_pages.has_page(name, entry.name)]
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(group(entry.value), []).append(entry)
    for title in sorted(groups, key=_ORDER.index):
        parts.append(f"## {title}\n")
        parts += [_constants(groups[title])] if title in _TABLES else [_entry(e) for e in groups[title]]
    return "\n".join(parts) + "\n"


_ORDER = [
    "Functions", "Operators", "Classes", "Enumerations", "Data types", "Memories", "Other names",
]  # fmt: skip
_TABLES = ("Operators", "Data types", "Memories", "Other names")


def _constants(entries: list[Entry]) -> str:
    rows = "\n".join(f"| <a id='{e.name}'></a>`{e.name}` | {_cell(_described(e.value))} |" for e in entries)
    return f"| name | meaning |\n|---|---|\n{rows}\n"


def _described(value: Any) -> str:
    if isinstance(value, Operator):
        token = f"{value.kind} operator: pass it as `op=` to an instruction"
        return _escaped(_first(value)) if value.function else token
    if isinstance(value, DType):
        return f"{value.itemsize * 8} bits"
    if isinstance(value, (MemoryRegion, enum.Enum)):
        return f"`{value}`"
    return f"`{value!r}`" if len(repr(value)) < 80 else _first(type(value))


def _entry(entry: Entry) -> str:
    lines = [f"### {entry.name}\n", "```text", _signature(entry), "```\n"]
    lines += [_facts(entry.name), _text(entry.value)]
    if isinstance(entry.value, type) and issubclass(entry.value, enum.Enum):
        lines.append("Members: " + ", ".join(f"`{m.name}`" for m in entry.value) + "\n")
    elif isinstance(entry.value, type):
        lines += _members(entry.value)
    return "\n".join(line for line in lines if line)


def _facts(name: str) -> str:
    known = facts(name)
    if not known:
        return ""
    source = "machine specification " + source_links(known["source"], base="../")
    return "Engines: {engines}. Generations: {generations}. Cost: {cost}".format(**known) + f" ({source}).\n"


def _members(cls: type) -> Iterator[str]:
    for name, value in sorted(vars(cls).items()):
        if name.startswith("_") or not (
            inspect.isfunction(value) or isinstance(value, (property, staticmethod))
        ):
            continue
        value = value.__func__ if isinstance(value, staticmethod) else value
        shown = f"{name}{parameters(value)}" if inspect.isfunction(value) else name
        if _first(value):
            yield f"- `{shown}`: {_first(value)}"
    yield ""


def _signature(entry: Entry) -> str:
    whole = f"{entry.module}.{entry.name}{parameters(entry.value)}"
    return "\n".join(textwrap.wrap(whole, 84, subsequent_indent="    ", break_long_words=False))


def _text(value: Any) -> str:
    """The docstring, with its examples as code."""
    lines, inside = [], False
    for line in (inspect.getdoc(value) or "").splitlines():
        starts = line.lstrip().startswith(">>>")
        if starts and not inside:
            lines.append("\n```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.strip() if inside else _escaped(line))
    return "\n".join([*lines, *(["```"] if inside else []), ""])


def _escaped(line: str) -> str:
    """Escape Markdown outside backquotes."""
    parts = line.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "&#42;") for part in parts[::2]]
    return "`".join(parts)


def _first(value: Any) -> str:
    return (inspect.getdoc(value) or "").split("\n")[0]


def _cell(text: str) -> str:
    return re.sub(r"\|", r"\\|", text)


# ---- the command line ----------------------------------------------------------------------------


def _command_page() -> str:
    parts = ["# The command line\n", "```text", _help(parser()), "```\n"]
    for name, command in commands().items():
        parts += [f"## nki {name}\n", "```text", _help(command), "```\n"]
    return "\n".join(parts)


def _help(command: argparse.ArgumentParser) -> str:
    command.formatter_class = _at_100(command.formatter_class)
    return command.format_help().rstrip()


def _at_100(formatter: Any) -> Any:
    return lambda prog: formatter(prog, width=100)


# ---- the machine ---------------------------------------------------------------------------------

_FIELD = re.compile(r"^    (?:# --- (?P<title>.*)|(?P<name>\w+): .*?  # (?P<note>.*))$", re.MULTILINE)


def _machine_page() -> str:
    """Return every number of the timing model, with its comment in src/nki/machine/machine.py."""
    parts = [
        "# Numbers of the machine\n",
        "One core. The source is a section of the [machine specification](../spec/machine.md) with its "
        "evidence: [D] documents, [S] screenshots of the profiler, [X] arithmetic on those, [T] measurements "
        "by others, [C] public source of the compiler's front end, [U] unknown. *Italic* values are assumed "
        "on that generation.\n",
    ]
    for match in _FIELD.finditer(inspect.getsource(Machine)):
        if match["title"]:
            parts.append(f"\n## {match['title'][0].upper()}{match['title'][1:]}\n")
            parts += [f"| number | {' | '.join(MACHINES)} | source |", f"|---|{'---|' * len(MACHINES)}---|"]
        elif match["name"] != "assumed":
            values = " | ".join(_value(m, match["name"]) for m in MACHINES.values())
            parts.append(f"| `{match['name']}` | {values} | {_cell(_escaped(match['note']))} |")
    return "\n".join(parts) + "\n"


def _value(machine: Machine, name: str) -> str:
    value = getattr(machine, name)
    shown = (
        ", ".join(map(str, value))
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return f"*{shown}*" if name in machine.assumed else shown
