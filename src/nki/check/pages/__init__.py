"""The pages of `nki explain`, by kind."""

from __future__ import annotations

from ..python_rules import RULES
from . import instructions, memory, running, views
from .page import PRELUDE, Page
from .python import SAMPLES

SECTIONS: dict[str, dict[str, Page]] = {
    "Memories": memory.PAGES,
    "Shapes and views": views.PAGES,
    "Instructions": instructions.PAGES,
    "Running": running.PAGES,
    "Python that compilers refuse": {
        code: Page(f"{rule.summary}. {rule.help[0].upper()}{rule.help[1:]}.", *SAMPLES.get(code, ()))
        for code, rule in RULES.items()
    },
}
PAGES: dict[str, Page] = {kind: page for pages in SECTIONS.values() for kind, page in pages.items()}

__all__ = ["PAGES", "PRELUDE", "SECTIONS", "Page"]
