"""The pages of the reference for names that have a text: one page each, and an index per package."""

from __future__ import annotations

import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import declared
import patterns
import texts
from nki.cli.docs import source_links
from nki.cli.explaining import kind_link
from nki.machine.operators import Operator
from nki.reference import sections

DOCUMENTED = {"nki.isa": "nisa", "nki.language": "nl", "nki.collectives": "ncc"}
PRELUDE = "import numpy as np\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl"
RANKS = "\nimport nki.collectives as ncc\nfrom nki.ranks import run_ranks"
_HEAD = "---\nsearch:\n  boost: 4\nsource: {}\n---\n"  # a name's own page comes before pages that mention it
_ITEM = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*)$", re.MULTILINE)


@cache
def topics(package: str) -> tuple[tuple[str, dict[str, str]], ...]:
    """Return the title and the texts of each file of a package."""
    found = (texts.TEXTS / package.rpartition(".")[2]).glob("*.md")
    titled = (
        (f.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# "), sections(f)) for f in found
    )
    return tuple(sorted(titled, key=lambda topic: topic[0]))


def has_page(package: str, name: str) -> bool:
    return any(name in found for _, found in topics(package))


def pages() -> dict[str, str]:
    """Return the text of each page by its path below reference/."""
    return {
        f"{package}/{name}.md": _HEAD.format(source) + _page(prefix, name, found[name])
        for package, prefix in DOCUMENTED.items()
        for name, (source, found) in _sources(package).items()
    }


def _sources(package: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the file of each name's text, and the texts of that file."""
    files = (texts.TEXTS / package.rpartition(".")[2]).glob("*.md")
    read = [(file.relative_to(texts.TEXTS.parents[2]).as_posix(), sections(file)) for file in files]
    return {name: (path, found) for path, found in read for name in found}


def navigation() -> dict[str, list[Any]]:
    """Return the entries of the site's navigation by package: its index, then a list for each topic."""
    found: dict[str, list[Any]] = {}
    for package in DOCUMENTED:
        found[package] = [{"All names": f"reference/{package}.md"}]
        for title, entries in topics(package):
            listed = [{name: f"reference/{package}/{name}.md"} for name in sorted(entries)]
            found[package].append({title: listed})
    return found


def index(package: str) -> str:
    """Return tables of the names of a package by topic, and what every instruction reports."""
    parts = []
    for title, found in topics(package):
        rows = [
            f"| <a id='{name}'></a>[`{name}`]({package}/{name}.md) | {_cell(_summary(package, name))} |"
            for name in sorted(found)
        ]
        parts += [f"## {title}\n", "| name | meaning |", "|---|---|", *rows, ""]
    if package == "nki.isa":
        kinds = sorted(declared.of_every_instruction().kinds)
        parts += ["## Errors of every instruction\n", ", ".join(_kind(kind, "../") for kind in kinds) + ".\n"]
    return "\n".join(parts)


def _summary(package: str, name: str) -> str:
    value = getattr(texts.PACKAGES[DOCUMENTED[package]], name)
    return (inspect.getdoc(value) or "").split("\n")[0]


# ---- a page --------------------------------------------------------------------------------------


def _page(prefix: str, name: str, text: str) -> str:
    value = getattr(texts.PACKAGES[prefix], name)
    whole = inspect.getdoc(value) or ""
    before = whole[: whole.index(text)].strip() if text in whole else ""
    body, _, facts = text.partition("\nFacts:\n")
    body = _with_table(body, value)
    body = body.replace("Operation:\n\n", "## Operation\n\n", 1)
    prelude = PRELUDE + (RANKS if prefix == "ncc" else "")
    body = body.replace("Example:\n\n", f"## Example\n\n```python\n{prelude}\n```\n\n", 1)
    body = re.sub(r"^Members:$", "## Members", body, flags=re.MULTILINE)
    body = re.sub(r"^See also: .*$", lambda m: _see_also(m[0], prefix), body, flags=re.MULTILINE)
    drawn = patterns.drawings(f"{prefix}.{name}")
    body = body.replace("## Example\n", f"## Drawings\n\n{drawn}\n## Example\n", 1) if drawn else body
    parts = [
        f"# {prefix}.{name}\n",
        f"```python\n{_signature(prefix, name, value)}\n```\n",
        _plain(before),
        "",
    ]
    parts += [body.replace("```output", "```text"), ""]
    parts += [_in_numpy(prefix, name, value)]
    if facts:
        parts += ["## Facts\n", _linked(facts.strip("\n")), ""]
    return "\n".join(parts)


def _signature(prefix: str, name: str, value: Any) -> str:
    if isinstance(value, type) or not callable(value) or getattr(value, "kind", "") == "token":
        return f"{prefix}.{name}"
    parameters = inspect.signature(value).parameters.values()
    shown = [_parameter(p) for p in parameters]
    result = inspect.signature(value).return_annotation
    line = f"{prefix}.{name}({', '.join(shown)}) -> {result}"
    return (
        line if len(line) <= 88 else f"{prefix}.{name}(\n    " + ",\n    ".join(shown) + f",\n) -> {result}"
    )


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"


def _with_table(body: str, value: Any) -> str:
    """Return the text with its list of parameters as a table with types and defaults."""
    before, found, rest = body.partition("Parameters:\n\n")
    if not found:
        return body
    listed, _, after = rest.partition("\n\n")
    signature = inspect.signature(value).parameters
    rows = ["## Parameters\n", "| parameter | type and default | meaning |", "|---|---|---|"]
    for names, meaning in _ITEM.findall(listed):
        for name in re.findall(r"\w+", names):
            given = signature[name]
            default = "" if given.default is given.empty else f" = {given.default!r}"
            rows.append(f"| `{name}` | `{given.annotation}{default}` | {_cell(meaning)} |")
    return "\n".join([before + rows[0], *rows[1:], "", after])


def _in_numpy(prefix: str, name: str, value: Any) -> str:
    """Return the source of what computes the result."""
    issued = texts.classes(prefix, name)
    sources = [(cls.compute, cls) for cls in issued if "compute" in vars(cls)]
    if isinstance(value, Operator) and (value.formula or value.activation):
        formula: Any = value.formula or value.activation
        if not inspect.isfunction(formula):
            return f"## In numpy\n\n`np.{formula.__name__}`, on float32 arrays.\n"
        sources = [(formula, None)]
    elif not issued and inspect.isfunction(value) and value.__module__.startswith("nki.language"):
        sources = [(inspect.unwrap(value), None)]
    blocks = []
    for function, _ in sources[:1]:
        code = textwrap.dedent(inspect.getsource(function)).rstrip()
        code = re.sub(r'^    """.*?"""\n', "", code, count=1, flags=re.MULTILINE | re.DOTALL)
        place = Path(inspect.getfile(function)).as_posix().rpartition("/src/")[2]
        blocks.append(f"## In numpy\n\nFrom `src/{place}`:\n\n```python\n{code}\n```\n")
    return "\n".join(blocks)


# ---- links ---------------------------------------------------------------------------------------


def _see_also(line: str, prefix: str) -> str:
    return re.sub(
        r"`([\w.]+)`", lambda m: _name_link(m[1], prefix), line.replace("See also:", "**See also:**")
    )


def _name_link(name: str, prefix: str) -> str:
    """Return a link to the page of a name, or to its row in the index of its package."""
    home, _, rest = name.rpartition(".")
    package = next(p for p, short in DOCUMENTED.items() if short == (home or prefix))
    return (
        f"[`{name}`](../{package}/{rest}.md)"
        if has_page(package, rest)
        else f"[`{name}`](../{package}.md#{rest})"
    )


def _kind(kind: str, base: str) -> str:
    return f"[`{kind}`]({base}{kind_link(kind)})"


def _linked(facts: str) -> str:
    """Return the facts with links to kinds, sections of the specification and numbers of the machine."""
    lines = []
    for line in facts.splitlines():
        if line.startswith("- Errors"):
            line = re.sub(r"`([\w-]+)`", lambda m: _kind(m[1], "../../"), line)
            line = line.replace(
                "those of every instruction",
                "[those of every instruction](../nki.isa.md#errors-of-every-instruction)",
            )
            line = line.replace("`nl.ndarray`", "[`nl.ndarray`](../nki.language/ndarray.md)")
        elif line.startswith("- Limit"):
            line = re.sub(r"`(\w+)`", r"[`\1`](../machine.md)", line)
        elif line.startswith("- Issues"):
            line = re.sub(r"`(nisa\.\w+)`", lambda m: _name_link(m[1], "nisa"), line)
        line = re.sub(
            r"Source: (spec/\S+ [\d., ]*\d)",
            lambda m: f"Source: machine specification {source_links(m[1], '../../')}",
            line,
        )
        lines.append(_plain(line) if line.startswith("- Cost") else line)
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Escape Markdown outside backquotes and links."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "&#42;") for part in parts[::2]]
    return "`".join(parts)


def _cell(text: str) -> str:
    """Return a text for a cell of a table, where a bar ends a cell unless it is code."""
    return "`".join(p if i % 2 else p.replace("|", "\\|") for i, p in enumerate(_plain(text).split("`")))
