"""The viewer: a run as one page to step through, with its values. It needs nothing else.

The scripts in `page/` draw it. Cells of heat maps are unpacked in the browser, a chunk when a step needs it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import error
from ..markup import escape, fill, frame, policy, script_data
from .heatmaps import MOST_CELLS, Cells, coarsened, figures_of
from .html import asset, source
from .packed import to_blob
from .recording import MEMORIES, OperandValues, Recording, as_matrix

SCRIPTS = "elements columns python run heatmap chip listing breakpoints viewer open"
LIVE = SCRIPTS.replace("open", "live open")  # of a page that a server shows
EMBEDDED_HEIGHT = 780


class Viewer:
    """A recorded run as a page. A notebook shows it by itself."""

    def __init__(
        self,
        recording: Recording,
        error: Exception | None = None,
        replay: Callable[[int], list[OperandValues]] | None = None,
    ):
        self.recording = recording
        self.error = error  # what the kernel raised at the last step
        self._replay = replay

    @property
    def count(self) -> int:
        """The number of steps."""
        return self.recording.count

    @property
    def finished(self) -> int:
        """The number of steps that have values: none of a traced kernel, not the one that raised."""
        return 0 if self._replay is None else self.count - (self.error is not None)

    def __repr__(self) -> str:
        raised = f", the last raises {type(self.error).__name__}" if self.error else ""
        return f"<Viewer of {self.recording.name}: {self.count:,} steps{raised}>"

    def values(self, number: int) -> list[OperandValues]:
        """Return what the operands of a step held: before it what it reads, after it what it writes.

        Steps count from 1, as on the page. The step is computed again from the last checkpoint before it.
        """
        if self._replay is None:
            raise error("argument", "the kernel was traced: no step has values", help="pass arrays")
        if not 1 <= number <= self.finished:
            raise error("argument", f"there is no step {number}: the run has steps 1 to {self.finished}")
        return self._replay(number - 1)

    def maps(self, number: int) -> list[dict[str, Any]]:
        """Return the heat maps of a step for the page: figures, and cells of up to 262,144 elements."""
        found = []
        for held in self.values(number):
            matrix, unwritten = as_matrix(held)
            cells = coarsened(Cells(matrix, unwritten, True), MOST_CELLS)
            figures = np.array(figures_of(matrix, unwritten), "<f8").tobytes()
            texts = (base64.b64encode(raw).decode("ascii") for raw in (figures, cells.packed()))
            down, across = cells.values.shape
            sizes = {"width": cells.width, "down": down, "across": across}
            found.append({**sizes, **dict(zip(("figures", "cells"), texts, strict=True))})
        return found

    def html(self, live: bool = False) -> str:
        """Return the page; a live one asks its server for the values of steps that it does not hold."""
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
            "raised": run.raised,
            "cores": run.cores,
            "live": live,
            "sbuf_bytes": machine.sbuf_usable_bytes,
            "psum_bytes": machine.psum_bytes,
        }
        chunks = [
            f'<script type="text/plain" id="cells{number}">{chunk}</script>'
            for number, chunk in enumerate(maps.chunks(), 1)
        ]
        return fill(
            asset("viewer.html"),
            policy=policy(script(live), connects=live),
            style=asset("page.css") + asset("viewer.css"),
            kernel=escape(run.name),
            subtitle=escape(f"{machine.name} · {run.summary()}"),
            run=script_data(data),
            columns=blob,
            chunks="\n".join(chunks),
            script=script(live),
        )

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{EMBEDDED_HEIGHT}px;border:0"
        return frame(f"{self.recording.name}, step by step", self.html(), style)


@cache
def script(live: bool) -> str:
    """Return the program of the page."""
    return '"use strict";\n' + "\n".join(asset(f"{name}.js") for name in (LIVE if live else SCRIPTS).split())
