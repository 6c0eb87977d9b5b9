"""The viewer: a run as one page to step through, with its values. It needs nothing else.

The scripts in `page/` draw it. Cells of heat maps are unpacked in the browser, a chunk when a step needs it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..markup import escape, fill, frame, policy, script_data
from .html import asset, source
from .packed import to_blob
from .recording import MEMORIES, Recording

SCRIPTS = "elements columns python run heatmap chip listing breakpoints viewer"
EMBEDDED_HEIGHT = 780


class Viewer:
    """A recorded run as a page. A notebook shows it by itself."""

    def __init__(self, recording: Recording):
        self.recording = recording

    @property
    def count(self) -> int:
        """The number of steps."""
        return self.recording.count

    def __repr__(self) -> str:
        return f"<Viewer of {self.recording.name}: {self.count:,} steps>"

    def html(self) -> str:
        """Return the page."""
        run = self.recording
        table, columns = run.packed()
        layout, blob = to_blob(columns)
        machine, maps = run.machine, run.maps
        data = {
            "layout": layout,
            **table,
            "memories": MEMORIES,
            "files": [source(path, run.files.named.get(path)) for path in run.files.paths],
            "has_values": run.values is not None,
            "every": maps.every,
            "window": None if maps.steps is None else [maps.steps.start, maps.steps.stop],
            "agreements": run.agreements,
            "sbuf_bytes": machine.sbuf_usable_bytes,
            "psum_bytes": machine.psum_bytes,
        }
        chunks = [
            f'<script type="text/plain" id="cells{number}">{chunk}</script>'
            for number, chunk in enumerate(maps.chunks(), 1)
        ]
        return fill(
            asset("viewer.html"),
            policy=policy(script()),
            style=asset("page.css") + asset("viewer.css"),
            kernel=escape(run.name),
            subtitle=escape(f"{machine.name} · {run.summary()}"),
            run=script_data(data),
            columns=blob,
            chunks="\n".join(chunks),
            script=script(),
        )

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{EMBEDDED_HEIGHT}px;border:0"
        return frame(f"{self.recording.name}, step by step", self.html(), style)


@cache
def script() -> str:
    """Return the program of the page."""
    return '"use strict";\n' + "\n".join(asset(f"{name}.js") for name in SCRIPTS.split())
