"""Which triton-viz this is: its number stays 3.0 between releases, so the commit says more."""

import importlib.metadata
import json

_installed = importlib.metadata.distribution("triton-viz")
_origin = json.loads(_installed.read_text("direct_url.json") or "{}")
_commit = _origin.get("vcs_info", {}).get("commit_id", "")
VERSION = f"triton-viz {_installed.version}" + (f" ({_commit[:7]})" if _commit else "")
