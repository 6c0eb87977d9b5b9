"""Hooks of MkDocs: pages of the reference go below their package, and each page names its source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nki.version import NKI, PACKAGE

RENAMED = {"about.md": "README.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}


def on_config(config: Any) -> Any:
    """Replace the entry of each package by the list that tools/build_site.py wrote."""
    config["copyright"] = f"Open NKI {PACKAGE}, for NKI {NKI}"
    config["repo_url"] = os.environ.get("OPEN_NKI_REPOSITORY")  # its address adds links to edit pages
    config["repo_name"] = "Open NKI"
    file = Path(config["docs_dir"]) / "reference" / "navigation.json"
    listed = json.loads(file.read_text(encoding="utf-8"))
    for tab in config["nav"]:
        entries = tab.get("Reference", [])
        entries[:] = [{name: listed.get(name, page)} for entry in entries for name, page in entry.items()]
    return config


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Add the file that a page is made from, and let the theme's link edit it."""
    path = page.file.src_uri
    made = "" if path.startswith("reference/") else f"docs/{path}"
    source = page.meta.get("source") or RENAMED.get(path) or made
    if config["repo_url"] and source:
        page.edit_url = f"{config['repo_url'].rstrip('/')}/edit/main/{source}"
    return html + (f'<p class="source">Source: <code>{source}</code></p>' if source else "")
