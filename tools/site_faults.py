"""Open pages of the built site in Chromium and list what is wrong with them.

python tools/site_faults.py [page ...]     all pages of build/site, or those whose paths contain a word

Each page is opened light and dark, 1280 and 390 pixels wide. Faults are errors of the console, requests
that fail, pages wider than the window, code that is cut at 1280 pixels, and text with less contrast than
WCAG 2.1 AA asks for.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[1] / "build" / "site"
SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8").partition("\n")[2].rstrip().rstrip(";")
SCHEMES = {"light": "default", "dark": "slate"}
WIDTHS = (1280, 390)
FLAGS = ["--no-sandbox", "--disable-gpu"]
STILL = "* { transition: none !important; animation: none !important }"  # colours are final at once


def faults(browser: Any, pages: Iterable[Path]) -> Iterator[str]:
    """Yield the faults of pages, each as one line."""
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900})
    shown, reported = context.new_page(), []
    shown.on("console", lambda message: reported.append(message.text) if message.type == "error" else None)
    shown.on("pageerror", lambda problem: reported.append(str(problem)))
    shown.on("requestfailed", lambda request: reported.append(f"not loaded: {request.url}"))
    for page in pages:
        name = page.relative_to(SITE) if page.is_relative_to(SITE) else page.name
        shown.set_viewport_size({"width": WIDTHS[0], "height": 900})
        shown.goto(page.as_uri())
        shown.add_style_tag(content=STILL)
        for width in WIDTHS:
            shown.set_viewport_size({"width": width, "height": 900})
            for scheme, value in SCHEMES.items():
                shown.evaluate("value => document.body.dataset.mdColorScheme = value", value)
                found = shown.evaluate(SCRIPT, width == WIDTHS[0])
                yield from (f"{name}, {scheme}, {width} px: {one}" for one in found)
        yield from (f"{name}: {text}" for text in reported)
        reported.clear()
    context.close()


def main(words: list[str]) -> int:
    from playwright.sync_api import sync_playwright

    every = (page for page in SITE.rglob("*.html") if page.name != "404.html")  # a server alone shows it
    pages = sorted(page for page in every if not words or any(word in page.as_posix() for word in words))
    count = 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for count, fault in enumerate(faults(browser, pages), 1):  # noqa: B007
            print(fault, flush=True)
        browser.close()
    print(f"{count} faults on {len(pages)} pages")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
