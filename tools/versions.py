"""Sites of several versions side by side, with a menu on every page: python tools/versions.py [folder]

Copies build/site to build/versions/VERSION, or below another folder, and writes the menu of all versions that
are there. Nothing is fetched, so the menu works from a file system too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from nki.version import PACKAGE

ROOT = Path(__file__).parents[1]
SITE, VERSIONS = ROOT / "build" / "site", ROOT / "build" / "versions"
SCRIPT = "versions.js"  # in each site; its pages load it
MENU = Path(__file__).with_suffix(".js")


def write_list(site: Path, sites: list[Path], names: list[str]) -> None:
    """Write the menu of a site: the names of all versions, and where they are."""
    places = [os.path.relpath(other, site).replace(os.sep, "/") + "/" for other in sites]
    listed = json.dumps(list(zip(names, places, strict=True)))
    (site / SCRIPT).write_text(
        f"const VERSIONS = {listed};\n{MENU.read_text(encoding='utf-8')}", encoding="utf-8"
    )


def publish(site: Path, version: str, folder: Path = VERSIONS) -> list[str]:
    """Add a built site to a folder of versions; return all versions, the newest first."""
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(site, folder / version)
    found = sorted((path.parent for path in folder.glob(f"*/{SCRIPT}")), key=_number, reverse=True)
    names = [path.name for path in found]
    for one in found:
        write_list(one, found, names)
    first = f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html">'
    (folder / "index.html").write_text(f"<!doctype html>{first}<title>Open NKI</title>\n", encoding="utf-8")
    return names


def _number(folder: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", folder.name)]


if __name__ == "__main__":
    print(", ".join(publish(SITE, PACKAGE, Path(sys.argv[1]) if sys.argv[1:] else VERSIONS)))
