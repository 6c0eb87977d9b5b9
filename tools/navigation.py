"""A hook of MkDocs: pages of the reference go below their package in the navigation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Replace the entry of each package by the list that tools/build_site.py wrote."""
    file = Path(config["docs_dir"]) / "reference" / "navigation.json"
    listed = json.loads(file.read_text(encoding="utf-8"))
    for tab in config["nav"]:
        entries = tab.get("Reference", [])
        entries[:] = [{name: listed.get(name, page)} for entry in entries for name, page in entry.items()]
    return config
