"""The pages of nkilib, one for each family: from the code, src/nkilib/reference and modelled times."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import statistics
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import layouts
from nkilib.catalogue import CatalogueEntry, kernels

ROOT = Path(__file__).parents[1]
TEXTS = ROOT / "src" / "nkilib" / "reference"
LEAST_BOUND_US = 2
TIMES = ROOT / "benchmarks" / "kernels" / "times.json"
_ARGUMENT = re.compile(r"^- `(\w+)`: (.*)$", re.MULTILINE)
_ARGS = re.compile(r"^Args:\n((?:    .*\n|\n(?=    ))+)", re.MULTILINE)
_LISTED = re.compile(r"^    ([\w*]+(?:, [\w*]+)*): ((?:.*\n?)(?:        .*\n?)*)", re.MULTILINE)


@dataclass(frozen=True)
class Family:
    """A text of src/nkilib/reference."""

    name: str
    title: str
    modules: tuple[str, ...]
    opening: str
    layouts: tuple[str, ...]
    arguments: dict[str, dict[str, str]]  # of a kernel, "" for all: what each argument is
    differences: str


@cache
def families() -> tuple[Family, ...]:
    """Return every family, by title."""
    found = map(_family, sorted(TEXTS.glob("*.md")))
    return tuple(sorted(found, key=lambda family: family.title))


def _family(file: Path) -> Family:
    head, _, rest = file.read_text(encoding="utf-8").partition("\n## Arguments\n")
    listed, _, differences = rest.partition("\n## Differences\n")
    shared, *own = listed.split("\n### ")
    arguments = {"": dict(_ARGUMENT.findall(shared))}
    for section in own:
        kernel, _, lines = section.partition("\n")
        arguments[kernel] = dict(_ARGUMENT.findall(lines))
    title, *paragraphs = [part.strip() for part in head.split("\n\n")]
    facts = {kind: re.findall(rf"^{kind}: (.*)$", head, re.MULTILINE) for kind in ("Modules", "Layout")}
    prose = [part for part in paragraphs if not part.startswith(("Modules:", "Layout:"))]
    modules = tuple(f"nkilib.{name}" for name in facts["Modules"][0].split(", "))
    opening = "\n\n".join(prose)
    return Family(
        file.stem,
        title.removeprefix("# "),
        modules,
        opening,
        tuple(facts["Layout"]),
        arguments,
        differences.strip(),
    )


def family_of(kernel: CatalogueEntry) -> Family | None:
    """Return the family whose list of modules names the kernel's most exactly; None if none does."""
    matches = [
        (len(module), family)
        for family in families()
        for module in family.modules
        if f"{kernel.module}.".startswith(f"{module}.")
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def members(family: Family) -> list[CatalogueEntry]:
    return [kernel for kernel in kernels() if kernel.is_built and family_of(kernel) is family]


@cache
def pages() -> dict[str, str]:
    """Return the text of each page by its path below reference/."""
    return {f"nkilib/{family.name}.md": _page(family) for family in families() if members(family)}


def navigation() -> list[dict[str, str]]:
    listed = [
        {family.title: f"reference/nkilib/{family.name}.md"} for family in families() if members(family)
    ]
    return [{"All kernels": "reference/nkilib.md"}, *listed]


def index() -> str:
    """Return the page that lists the families and their kernels."""
    parts = [
        "# nkilib\n",
        "The kernels of the library by family. [Kernel library](../library.md) is the list by import path.\n",
    ]
    for family in families():
        listed = [f"[`{k.name}`](nkilib/{family.name}.md#{k.name.lower()})" for k in members(family)]
        if listed:
            parts += [
                f"## [{family.title}](nkilib/{family.name}.md)\n",
                f"{family.opening}\n",
                ", ".join(listed) + ".\n",
            ]
    waiting = [f"`{kernel.name}`" for kernel in kernels() if not kernel.is_built]
    parts.append(_slow())
    return "\n".join([*parts, *([f"Not built yet: {', '.join(waiting)}.\n"] if waiting else [])])


# ---- a page --------------------------------------------------------------------------------------


def _page(family: Family) -> str:
    found = members(family)
    classes = [k for k in found if isinstance(k.target, type)]
    functions = [k for k in found if not isinstance(k.target, type)]
    head = f"---\nsource: src/nkilib/reference/{family.name}.md\n---\n"
    parts = [f"{head}# {family.title}\n", f"{family.opening}\n", *map(layouts.drawing, family.layouts)]
    parts += ["## Kernels\n", _overview(found), "## Modelled time\n", _times(functions)]
    for kernel in functions:
        parts += [f"## {kernel.name}\n", _kernel(family, kernel, functions)]
    for kernel in classes:
        parts += [
            f"## {kernel.name}\n",
            f"`from {kernel.module} import {kernel.name}`\n",
            _class(kernel.target),
        ]
    parts += ["## Differences from AWS's documentation\n", family.differences, ""]
    return "\n".join(parts)


def _overview(found: list[CatalogueEntry]) -> str:
    rows = ["| name | meaning | since | backward |", "|---|---|---|---|"]
    for kernel in found:
        name = f"[`{kernel.name}`](#{kernel.name.lower()})"
        since = f"SDK {kernel.release}" if kernel.release else "ours"
        rows.append(f"| {name} | {_cell(kernel.meaning)} | {since} | {backward(kernel)} |")
    return "\n".join(rows) + "\n"


def backward(kernel: CatalogueEntry) -> str:
    """Return which kernel computes the gradient, and the differentiable function, for a table."""
    ready = f"`{kernel.differentiable}`" if kernel.differentiable else ""
    of = f"`{kernel.backward}`" if kernel.backward else ""
    none = "" if isinstance(kernel.target, type) else "none"
    return ", ".join(filter(None, (of, ready))) or none


def times() -> list[dict[str, Any]]:
    return json.loads(TIMES.read_text(encoding="utf-8"))


def _times(functions: list[CatalogueEntry]) -> str:
    names = {kernel.name for kernel in functions}
    rows = [
        f"| `{row['kernel']}` | {row['size']} | {row['modelled_us']:,.1f} "
        f"| {row['bound_us']:,.1f} ({row['bound']}) | {_ratio(row):.2f} |"
        for row in times()
        if row["kernel"] in names
    ]
    if not rows:
        return "These are parts of other kernels; their time is counted there.\n"
    head = ["On trn2, one core, unless the size says otherwise; from `python -m benchmarks.kernels`.\n"]
    head += ["| kernel | size | modelled us | lower bound us | ratio |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _ratio(row: dict[str, Any]) -> float:
    return row["modelled_us"] / row["bound_us"]


def _slow() -> str:
    """Return the table of all sizes that take longer than twice their bound, and what limits them."""
    large = [row for row in times() if row["bound_us"] >= LEAST_BOUND_US]
    slow = sorted((row for row in large if _ratio(row) > 2), key=_ratio, reverse=True)
    mean = statistics.geometric_mean(map(_ratio, large))
    least = statistics.geometric_mean(
        row["modelled_us"] / max(row["bound_us"], row["limit_us"]) for row in large
    )
    parts = [
        "## Modelled time over its bound\n",
        "The lower bound of a size is what its memory traffic, its matmuls on TensorE or the links between "
        f"ranks need. The geometric mean of the ratios is {mean:.2f}, of the {len(large)} sizes whose bound "
        f"is {LEAST_BOUND_US} us or more, as long as one transfer takes; {least:.2f} over what the busiest "
        f"resource needs for the work of the kernel. {len(slow)} are above 2; the last column has that "
        "resource. A run has a fixed cost on the device, and a first load and a last store: the limit of "
        "small sizes. Starting transfers is the work of the queue whose descriptors software makes.\n",
        "| kernel | size | modelled us | lower bound us | ratio | limited by |",
        "|---|---|---|---|---|---|",
    ]
    for row in slow:
        waits = "" if row["limit_us"] > row["modelled_us"] / 2 else "; engines wait for each other"
        parts.append(
            f"| `{row['kernel']}` | {row['size']} | {row['modelled_us']:,.1f} | {row['bound_us']:,.1f} "
            f"({row['bound']}) | {_ratio(row):.2f} | {row['limit']}, {row['limit_us']:,.1f} us{waits} |"
        )
    return "\n".join([*parts, ""])


def _kernel(family: Family, kernel: CatalogueEntry, others: list[CatalogueEntry]) -> str:
    first = next(other for other in others if other.target is kernel.target)
    if first is not kernel:
        return f"Another name of [`{first.name}`](#{first.name.lower()}).\n"
    text = _ARGS.sub("", f"{inspect.getdoc(kernel.target) or ''}\n")
    parts = [f"`from {kernel.module} import {kernel.name}`\n", rendered(text)]
    rows = ["| argument | type and default | shape and dtype | meaning |", "|---|---|---|---|"]
    for name, parameter in inspect.signature(kernel.target).parameters.items():
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        kind = "" if parameter.annotation is parameter.empty else str(parameter.annotation)
        shape, meaning = argument(family, kernel, name)
        if name in kernel.options:
            meaning += f"; since SDK {kernel.options[name]}"
        rows.append(f"| `{name}` | `{kind}{default}` | {_cell(shape)} | {_cell(meaning)} |")
    return "\n".join([*parts, *rows, ""])


def argument(family: Family, kernel: CatalogueEntry, name: str) -> tuple[str, str]:
    """Return shape and dtype of an argument, and its meaning; empty where no text has them."""
    shared = family.arguments[""]
    text = (
        family.arguments.get(kernel.name, {}).get(name)
        or shared.get(name)
        or _from_docstring(kernel).get(name, "")
    )
    shape, bar, meaning = text.partition(" | ")
    return (shape, meaning) if bar else ("", text)


@cache
def _from_docstring(kernel: CatalogueEntry) -> dict[str, str]:
    """Return what the section `Args:` of a docstring has of each argument."""
    section = _ARGS.search(f"{inspect.getdoc(kernel.target) or ''}\n")
    found = _LISTED.findall(section[1]) if section else []
    return {name: " ".join(text.split()) for names, text in found for name in names.split(", ")}


def _class(cls: type) -> str:
    parts = [rendered(inspect.getdoc(cls) or "")]
    if issubclass(cls, enum.Enum):
        return "\n".join([*parts, "Members: " + ", ".join(f"`{member.name}`" for member in cls) + ".\n"])
    rows = ["| field | type and default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        default = "" if field.default is dataclasses.MISSING else f" = {_shown(field.default)}"
        rows.append(f"| `{field.name}` | `{field.type}{default}` | {_cell(field_meaning(cls, field.name))} |")
    return "\n".join([*parts, *rows, ""])


def field_meaning(cls: type, name: str) -> str:
    """Return the comment behind a field."""
    line = re.search(
        rf"^    {name}: [^#]*?(?:  # type:[^#]*)?(?:  # (?!type:)(.*))?$",
        inspect.getsource(cls),
        re.MULTILINE,
    )
    return (line[1] or "") if line else ""


# ---- Markdown ------------------------------------------------------------------------------------


def rendered(text: str) -> str:
    """Return a docstring as Markdown: examples and indented lines are code."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.rstrip()):
        if block.lstrip().startswith(">>>"):
            lines += ["```pycon", textwrap.dedent(block).strip("\n"), "```", ""]
        elif block.startswith("    "):
            lines += ["```text", textwrap.dedent(block).strip("\n"), "```", ""]
        else:
            lines += [escaped(block), ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Escape Markdown outside backquotes."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"[<*_]", lambda m: f"&#{ord(m[0])};", part) for part in parts[::2]]
    return "`".join(parts)


def _cell(text: str) -> str:
    return "`".join(p if i % 2 else p.replace("|", "\\|") for i, p in enumerate(escaped(text).split("`")))


def _shown(value: object) -> str:
    return str(value) if isinstance(value, enum.Enum) else repr(value)
