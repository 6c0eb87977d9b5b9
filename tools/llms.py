"""llms.txt: the pages of the site as one list for programs, each with its first sentence (https://llmstxt.org)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # mkdocs needs it too

CONFIGURATION = Path(__file__).parents[1] / "mkdocs.yml"
LONGEST = 200
HEAD = """\
# {site_name}

> {site_description}. Open NKI runs, checks, profiles and grades NKI kernels without a Trainium device.

Agents start with agents.html: `nki mcp`, commands with `--json`, skills. Times are modelled, not measured.
"""


def text(sources: Path) -> str:
    """Return the list, from the navigation in mkdocs.yml and the sources of the pages."""
    configuration = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    lines = [HEAD.format(**configuration)]
    for section in configuration["nav"]:
        ((title, content),) = section.items()
        lines += [f"## {title}", "", *_links(title, content, sources), ""]
    return "\n".join(lines)


def _links(title: str, content: Any, sources: Path) -> Iterator[str]:
    """Yield a line for a page, or for each page of a part."""
    if isinstance(content, str):
        first = first_sentence((sources / content).read_text(encoding="utf-8"))
        yield f"- [{title}]({content.removesuffix('.md')}.html)" + (f": {first}" if first else "")
        return
    for part in content:
        for name, inner in part.items():
            yield from _links(name, inner, sources)


def first_sentence(page: str) -> str:
    """Return the first sentence of the first paragraph of a page, without Markdown's links."""
    page = re.sub(r"```.*?```|<!--.*?-->", "", page, flags=re.DOTALL)
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", page))
    prose = (part for part in paragraphs if part and part[0] not in "#|!-*<>")
    sentence = re.split(r"(?<=[.!?:]) (?=[A-Z`])", next(prose, ""))[0]
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)[:LONGEST].rstrip(" :")
