"""`python -m nki.cli.docs` writes docs/isa.md (every instruction), docs/kinds and docs/release-changes.md.

It runs in a checkout: the source of each cost is a link to a section of docs/spec.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .. import collectives, isa
from ..check import releases
from ..collectives import operations, ranks, varying
from ..ir.instruction import Instruction
from ..ir.validation import GENERATION_NAMES
from ..isa import (
    affine,
    computing_dma,
    copies,
    dma,
    gather,
    gpsimd,
    mx,
    random,
    reduce,
    registers,
    scalar,
    scan,
    search,
    select,
    statistics,
    sync,
    tensor,
    transpose,
    transposing_dma,
    vector,
)
from .explaining import kinds_pages

PAGE = Path("docs/isa.md")
DOCS = Path(__file__).parents[3] / "docs"
FILES = {
    "nisa": (
        *(tensor, transpose, mx, copies, vector, reduce, scan, select, statistics, search, scalar),
        *(affine, gpsimd, gather, random, dma, transposing_dma, computing_dma, registers, sync),
    ),
    "ncc": (operations, varying, ranks),
}
_HOMES: dict[str, types.ModuleType] = {"nisa": isa, "ncc": collectives}

_INTRODUCTION = """\
# Instructions

<!-- Written by `make docs` (`python -m nki.cli.docs`). Do not edit: change the code and run it again. -->

This page is generated: `make docs` reads the instruction classes in `src/nki/isa` and `src/nki/collectives`,
and `tests/test_docs.py` fails when the page and the code differ. An instruction's signature, rules, meaning
and cost stand together in the file named above its table; `help(nki.isa.tensor_copy)` shows the signature.

- **engines**: those that may run it, the default first. *DMA* instructions run on the DMA engines,
  *sequencer* ones where instructions are issued.
- **generations**: where it exists. trn1 is NeuronCore-v2 (`gen2`), trn2 is v3 (`gen3`), trn3 is v4 (`gen4`).
- **cost**: how long the engine is held, in its cycles unless stated otherwise. N and F are the elements per
  partition, P the partitions; a name in `code` is a field of `nki.machine.machine.Machine`. `nki.profile`
  uses it. *Assumed*: no public source gives it.
- **source**: the sections of the [machine specification](spec/machine.md) that the cost comes from.
"""
_HEADINGS = ("instruction", "engines", "generations", "cost", "source", "meaning")


def page() -> str:
    """Return the text of docs/isa.md."""
    sections = [_section(module, prefix) for prefix, modules in FILES.items() for module in modules]
    return "\n".join([_INTRODUCTION, *sections, _helpers()])


def instructions(module: types.ModuleType) -> dict[str, type[Instruction]]:
    """Return the instruction classes of a module, by the name of their public function."""
    found: dict[str, type[Instruction]] = {}
    for value in vars(module).values():
        is_instruction = isinstance(value, type) and issubclass(value, Instruction)
        is_public = is_instruction and isinstance(value.public, str) and value.public
        if is_public and value.__module__ == module.__name__:
            found.setdefault(value.public, value)
    return found


def _functions(module: types.ModuleType, prefix: str) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public functions that a module defines, in its order."""
    public = vars(_HOMES[prefix])
    for name, value in vars(module).items():
        if isinstance(value, types.FunctionType) and value == public.get(name):
            yield name, value


def _section(module: types.ModuleType, prefix: str) -> str:
    """One file of instructions: its heading and its table."""
    title = _summary(module).split(" (")[0].rstrip(".")
    classes = instructions(module)
    rows = [_row(prefix, name, f, classes[name]) for name, f in _functions(module, prefix) if name in classes]
    file = f"src/{module.__name__.replace('.', '/')}.py"
    return "\n".join([f"## {title}\n", f"`{file}`\n", _line(_HEADINGS), _line(["---"] * 6), *rows, ""])


def _row(prefix: str, name: str, function: Callable[..., object], cls: type[Instruction]) -> str:
    cost = re.sub(r"\b\w+_\w+\b", r"`\g<0>`", cls.cost_formula)  # fields of Machine, other instructions
    facts = [_engines(cls), _generations(cls), cost, source_links(cls.cost_source)]
    label = f"`{prefix}.{name}`{' (extension)' if cls.extension else ''}"
    return _line([label, *facts, _summary(function)])


def source_links(source: str, base: str = "") -> str:
    """`spec/machine.md 4, 7` as links to these sections; `base` is the way from the page to docs/."""
    page, _, numbers = source.partition(" ")
    anchors = section_anchors((DOCS / page).read_text(encoding="utf-8"))
    return ", ".join(f"[{n}]({base}{page}#{anchors[n]})" for n in numbers.split(", "))


def section_anchors(text: str) -> dict[str, str]:
    """Return the anchor of every numbered heading of a page, as GitHub and MkDocs make it."""
    titles = re.findall(r"^#+ ((\d+(?:\.\d+)*)\.? .*)$", text, re.MULTILINE)
    return {
        number: re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title)).lower() for title, number in titles
    }


def _engines(cls: type[Instruction]) -> str:
    if cls.engines:
        return ", ".join(engine.name for engine in cls.engines)
    return "sequencer" if cls.registers else "DMA"


def _generations(cls: type[Instruction]) -> str:
    return ", ".join(name for number, name in GENERATION_NAMES.items() if number >= cls.since)


def _helpers() -> str:
    """Functions that issue nothing: queries, and the allocation of registers."""
    lines = ["## Functions that issue no instruction\n", _line(["function", "meaning"]), _line(["---"] * 2)]
    for prefix, modules in FILES.items():
        for module in modules:
            classes = instructions(module)
            for name, function in _functions(module, prefix):
                if name not in classes:
                    lines.append(_line([f"`{prefix}.{name}`", _summary(function)]))
    return "\n".join([*lines, ""])


def _summary(documented: object) -> str:
    return (inspect.getdoc(documented) or "").split("\n")[0]


def _line(cells: Iterable[str]) -> str:
    escaped = [re.sub("[|<]", r"\\\g<0>", cell) for cell in cells]
    return f"| {' | '.join(escaped)} |"


RELEASE_PAGE = Path("docs/release-changes.md")


def release_page() -> str:
    """Return the text of docs/release-changes.md: the tables that `nki check --for` reads."""
    note = "<!-- Written by `make docs`. Do not edit: change src/nki/check/releases.md. -->"
    title, rest = releases.TABLE.read_text(encoding="utf-8").split("\n", 1)
    return f"{title}\n\n{note}\n{rest}"


def main(arguments: list[str]) -> None:
    """Write the page to docs/isa.md, or to the file named."""
    path = Path(arguments[0]) if arguments else PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page())
    print(f"wrote {path}")
    if not arguments:
        RELEASE_PAGE.write_text(release_page())
        (path.parent / "kinds").mkdir(exist_ok=True)
        for name, text in kinds_pages().items():
            (path.parent / name).write_text(text)
        print(f"wrote {RELEASE_PAGE} and {path.parent / 'kinds'}")


if __name__ == "__main__":
    main(sys.argv[1:])
