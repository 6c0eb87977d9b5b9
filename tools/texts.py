"""Write the outputs of examples and the facts of the code into the texts of public names.

python tools/texts.py [--check] [file ...]     write them, or report files that differ

The texts are src/nki/reference/*/*.md (nki.reference). What stands after `Facts:` is generated.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import declared
import nki.collectives
import nki.isa
import nki.language
import pages
from nki.cli.docs import FILES, instructions
from nki.ir.instruction import Instruction
from nki.ir.validation import GENERATION_NAMES
from nki.isa.alu import BINARY, BITWISE, LOGICAL, MAGNITUDES, SHIFTS
from nki.language import allocation, creation
from nki.machine.generations import MACHINES
from nki.machine.operators import Operator

TEXTS = Path(__file__).parents[1] / "src" / "nki" / "reference"
_ALU = {
    *BINARY,
    *BITWISE,
    *SHIFTS,
    *LOGICAL,
    *MAGNITUDES,
    "abs",
    "square",
    "relu",
    "rsqrt",
    "reciprocal",
    "invert",
}
PACKAGES = {"nisa": nki.isa, "nl": nki.language, "ncc": nki.collectives}
_SECTION = re.compile(r"(?<=^## )(\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_PARAMETERS = re.compile(r"(^Parameters:\n\n(?:- .*\n|  .*\n)*)", re.MULTILINE)
NAME = "- `name`: a label for schedules and reports."


def files() -> list[Path]:
    """Return every file of texts."""
    return sorted(TEXTS.glob("*/*.md"))


def prefix_of(file: Path) -> str:
    """Return how kernels import the package of a file: nisa, nl or ncc."""
    return next(p for p, module in PACKAGES.items() if module.__name__ == f"nki.{file.parent.name}")


def classes(prefix: str, name: str) -> list[type[Instruction]]:
    """Return the classes of the instructions that a public function issues, the usual one first."""
    for module in FILES.get(prefix, ()):
        if name in instructions(module):
            found = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Instruction)]
            own = [cls for cls in found if cls.public == name and cls.__module__ == module.__name__]
            return sorted(own, key=lambda cls: cls is not instructions(module)[name])
    return []


# ---- facts ---------------------------------------------------------------------------------------


_OF_TILES = declared.reached([(allocation.allocate, None)])  # reported by every function that makes a tile


def facts(prefix: str, name: str) -> Iterator[str]:
    """Yield what the code declares about a name, as lines of Markdown."""
    value = getattr(PACKAGES[prefix], name)
    issued = classes(prefix, name)
    if issued:
        yield from _of_class(issued[0])
        found = declared.of_instruction(value, issued)
    elif isinstance(value, Operator):
        yield _of_operator(value)
        found = declared.reached([(value.function, None)] if value.function else [])
    elif callable(value) and not isinstance(value, type):
        found = declared.reached([(function_of(value), None)])
    else:
        return
    rest = "those of every instruction" if issued else ""
    if not issued and function_of(value).__module__ != creation.__name__:
        found.kinds, found.limits = found.kinds - _OF_TILES.kinds, found.limits - _OF_TILES.limits
        rest = "those of `nl.ndarray`" if found.issues else ""
    for field, values in declared.limits(found):
        yield f"- Limit `{field}`: {_per_generation(values)}."
    if not issued and found.issues & set(nki.isa.__all__):
        shown = ", ".join(f"`nisa.{i}`" for i in sorted(found.issues & set(nki.isa.__all__)))
        yield f"- Issues, depending on the arguments: {shown}."
    kinds = ", ".join(f"`{kind}`" for kind in sorted(found.kinds))
    yield f"- Errors and warnings: {', and '.join(filter(None, (kinds, rest))) or 'none'}."


def function_of(value: Any) -> Any:
    """Return the Python function behind a public name."""
    return value if inspect.isfunction(value) or value is None else type(value).__call__


def _of_operator(op: Operator) -> str:
    """Return where an operator may be passed as `op=`."""
    since = ", ".join(shown for number, shown in GENERATION_NAMES.items() if number >= op.since)
    takes = [f"the ALU of VectorE and GpSimdE ({since})"] if op.name in _ALU else []
    takes += ["`nisa.activation`"] if op.activation is not None else []
    return f"- As `op=`: {' and '.join(takes) or 'the instructions that name it'}."


def _of_class(cls: type[Instruction]) -> Iterator[str]:
    engines = ", ".join(e.name for e in cls.engines) or ("sequencer" if cls.registers else "DMA")
    default = " (the first is the default)" if len(cls.engines) > 1 else ""
    since = ", ".join(shown for number, shown in GENERATION_NAMES.items() if number >= cls.since)
    yield f"- Engines: {engines}{default}. Generations: {since}."
    yield f"- Cost: {cls.cost_formula.rstrip('.')}. Source: {cls.cost_source}."


def _per_generation(values: tuple[Any, ...]) -> str:
    shown = [", ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in values]
    if len(set(shown)) == 1:
        return shown[0]
    return "; ".join(f"{value} on {name}" for name, value in zip(MACHINES, shown, strict=True))


# ---- the files -----------------------------------------------------------------------------------


def written(file: Path) -> str:
    """Return the text of a file with outputs and facts."""
    prefix = prefix_of(file)

    def section(match: re.Match[str]) -> str:
        name, text = match[1], match[2].split("\nFacts:\n")[0].strip("\n")
        value = getattr(PACKAGES[prefix], name)
        if "name" in parameters(value) and "\n- `name`:" not in text and prefix != "nl":
            text = _PARAMETERS.sub(rf"\1{NAME}\n", f"{text}\n").rstrip("\n")
        lines = "\n".join(facts(prefix, name))
        return f"{name}\n\n{text}\n\n" + (f"Facts:\n\n{lines}\n\n" if lines else "")

    return _SECTION.sub(section, pages.written(file)).rstrip("\n") + "\n"


def parameters(value: Any) -> list[str]:
    """Return the names of the parameters of a public name; none of an operator that cannot be called."""
    is_token = getattr(value, "kind", "") == "token"
    return (
        []
        if is_token or isinstance(value, type) or not callable(value)
        else list(inspect.signature(value).parameters)
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    options = parser.parse_args(arguments)
    differing = []
    for file in options.files or files():
        text = written(file)
        if text != file.read_text(encoding="utf-8"):
            differing.append(file.name)
            if not options.check:
                file.write_text(text, encoding="utf-8")
    print(f"{'differing' if options.check else 'written'}: {', '.join(differing) or 'none'}")
    return 1 if options.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
