"""nki explain: what a kind of error or warning means; and the pages that have every kind."""

from __future__ import annotations

import argparse
import json

from ..check.pages import PAGES, PRELUDE, SECTIONS, Page
from ..errors import suggestion
from .command import Command, add_json
from .script import UsageError
from .terminal import show_message


def command_explain(options: argparse.Namespace) -> int:
    """nki explain"""
    facts = explanation(options.kind)
    if options.json:
        print(json.dumps(facts, indent=2))
    elif options.kind is None:
        _list_kinds()
    else:
        lines = [facts["kind"], "", facts["meaning"]]
        for title in ("wrong", "right"):
            if facts[title]:
                lines += ["", f"{title}:", ""]
                lines += [f"    {line}".rstrip() for line in facts[title].rstrip("\n").splitlines()]
        show_message("\n".join(lines), first="bold")
    return 0


def explanation(kind: str | None) -> dict[str, str]:
    """Return the page of a kind as data; without one, the meaning of every kind."""
    if kind is None:
        return {name: page.meaning for name, page in PAGES.items()}
    kind = kind.strip().removeprefix("NkiError[").removeprefix("NkiWarning[").rstrip("]")
    if kind not in PAGES:
        hint = suggestion(kind, PAGES)
        raise UsageError(f"there is no kind {kind}{hint}\n  help: nki explain lists all of them")
    page = PAGES[kind]
    code = {"wrong": page.wrong_code, "right": page.right_code}
    return {"kind": kind, "meaning": page.meaning, **code, "target": page.target}


def _list_kinds() -> None:
    for title, pages in SECTIONS.items():
        print(title)
        for kind, page in sorted(pages.items()):
            first = page.meaning.split(". ")[0].rstrip(".")
            print(f"  {kind:22} {first[:74]}")


# ---- docs/kinds.md and docs/kinds ----------------------------------------------------------------

FOLDER = "kinds"
NOTE = (
    "<!-- Written by `make docs` (`python -m nki.cli.docs`). Do not edit: change the pages in "
    "`src/nki/check/pages`. -->"
)


def kinds_pages() -> dict[str, str]:
    """Return docs/kinds.md, a table of every kind, and docs/kinds, a page per section; by path below docs."""
    lines = [
        *("# Kinds of errors and warnings", "", NOTE, ""),
        "`nki explain KIND` prints one of these. A warning is an error in strict mode (`OPEN_NKI_STRICT=1`).",
        "",
    ]
    for title, pages in SECTIONS.items():
        lines += [f"## {title}", "", "| kind | meaning |", "|---|---|"]
        lines += [f"| [`{kind}`]({kind_link(kind)}) | {_sentence(pages[kind])} |" for kind in sorted(pages)]
        lines += [""]
    return {f"{FOLDER}.md": "\n".join(lines)} | {
        f"{FOLDER}/{_file(title)}": _section(title) for title in SECTIONS
    }


def kind_link(kind: str) -> str:
    """Return where a kind is explained, as a path below docs."""
    section = next(title for title, pages in SECTIONS.items() if kind in pages)
    return f"{FOLDER}/{_file(section)}#{kind}"


def _file(title: str) -> str:
    return f"{title.lower().replace(' ', '-').replace(chr(39), '')}.md"


def _sentence(page: Page) -> str:
    return page.meaning.split(". ")[0].rstrip(".").replace("\n", " ").replace("|", "\\|")


def _section(title: str) -> str:
    begin = ["The samples begin with:", "", "```py", PRELUDE.rstrip(), "```", ""]
    lines = [f"# {title}: kinds of errors and warnings", "", NOTE, "", *begin]
    for kind, page in sorted(SECTIONS[title].items()):
        lines += [f"## {kind}", "", page.meaning, ""]
        for word, code in (("Wrong", page.wrong_code), ("Right", page.right_code)):
            if code:
                lines += [f"{word}:", "", "```py", code.rstrip("\n"), "```", ""]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="as in NkiError[kind]; all of them are listed without it")
    add_json(parser)


COMMAND = Command(
    "explain",
    "what a kind of error or warning means",
    """\
Print what a kind of error or warning means, with a wrong kernel and a right one.""",
    command_explain,
    add_arguments,
)
