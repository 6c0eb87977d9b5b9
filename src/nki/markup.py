"""Makes pages out of text: all escaping, so that names, sources and labels stay what they are.

A page runs only the scripts whose hashes its policy lists: text that left its place would still not run.
"""

from __future__ import annotations

import re

_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_SCRIPT = str.maketrans({"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"})


def escape(text: object) -> str:
    """Return a text as HTML, for the content of an element or an attribute in quotes."""
    whole = str(text).encode("utf-8", "replace").decode("utf-8")  # without halves of surrogate pairs
    return whole.translate(_HTML)


def script_data(data: object) -> str:
    """Return data as JSON that cannot end the <script> that holds it, or begin a comment there."""
    import json  # `import nki` does without

    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_SCRIPT)


def fill(template: str, **parts: str) -> str:
    """Return a template with parts for its {{names}}. What is put in is not searched again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def frame(title: str, page: str, style: str = "") -> str:
    """Return a page in a frame that cannot reach the page around it."""
    return (
        f'<iframe title="{escape(title)}" sandbox="allow-scripts" style="{escape(style)}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )


def policy(*scripts: str, connects: bool = False) -> str:
    """Return the element that lets a page, and frames inside it, run these scripts and load nothing.

    If `connects`, scripts may ask the page's own server.
    """
    import hashlib
    from base64 import b64encode

    digests = [b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rules = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"
    if connects:
        rules += "; connect-src 'self'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'
