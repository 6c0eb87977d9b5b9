"""`make site`: the documentation as pages, in build/site. Works without a network.

The sources are docs/, reference pages generated from the code, the tutorial as notebooks, and llms.txt, which
lists the pages for programs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import library_pages
import llms
import name_pages
import pages
import reference
import versions
from nki.version import PACKAGE

ROOT = Path(__file__).parents[1]
# the theme asks another server for what lets search run from a folder; docs/worker.js does it
ELSEWHERE = re.compile(r'<script src="?https://unpkg[^>]*></script>')
SOURCES, SITE = ROOT / "build" / "site-sources", ROOT / "build" / "site"


def prepare(target: Path = SOURCES) -> None:
    """Write all Markdown of the site below `target`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        (target / {"README.md": "about.md"}.get(name, name)).write_text(text, encoding="utf-8")
    (target / "reference").mkdir()
    for name, text in reference.pages().items():
        path = target / "reference" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    listed = json.dumps({**name_pages.navigation(), "nkilib": library_pages.navigation()})
    (target / "reference" / "navigation.json").write_text(listed, encoding="utf-8")
    chapters = sorted(str(path) for path in (ROOT / "docs" / "tutorial").glob("[0-9]*.md"))
    pages.main(["--notebooks", str(target / "tutorial" / "notebooks"), *chapters])
    for chapter in map(Path, chapters):
        with (target / "tutorial" / chapter.name).open("a", encoding="utf-8") as page:
            page.write(f"\n[This chapter as a notebook](notebooks/{chapter.stem}.ipynb)\n")
    (target / "llms.txt").write_text(llms.text(target), encoding="utf-8")


def main() -> int:
    prepare()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(SITE)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # hides an advertisement
    done = subprocess.run([*command, "--config-file", str(ROOT / "mkdocs.yml")], cwd=ROOT, env=quiet)
    if done.returncode == 0:
        for page in SITE.rglob("*.html"):
            up = "../" * (len(page.relative_to(SITE).parts) - 1)
            ours = "".join(f'<script src="{up}{name}"></script>' for name in ("worker.js", versions.SCRIPT))
            page.write_text(ELSEWHERE.sub(ours, page.read_text(encoding="utf-8")), encoding="utf-8")
        versions.write_list(SITE, [SITE], [PACKAGE])
        print(f"wrote {SITE.relative_to(ROOT)}: open {SITE.relative_to(ROOT)}/index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
