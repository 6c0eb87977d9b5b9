"""`nki show --serve`: the viewer's page on this machine, with the values of every step."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..report.viewer import Viewer

ADDRESS = "127.0.0.1"  # no other machine reaches it


def serve(viewer: Viewer, port: int) -> None:
    """Serve the page of a run until Ctrl-C; port 0 is any free one."""
    with server(viewer, port) as made:
        print(
            f"http://{ADDRESS}:{made.server_port}/ shows {viewer.recording.summary()}; Ctrl-C ends it",
            file=sys.stderr,
        )
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)


def server(viewer: Viewer, port: int = 0) -> HTTPServer:
    """Return a server of the page of a run and of the values of its steps."""
    return HTTPServer((ADDRESS, port), partial(_Handler, viewer, viewer.html(live=True)))


class _Handler(BaseHTTPRequestHandler):
    """Answers `/` with the page and `/values/N` with the heat maps of step N."""

    def __init__(self, viewer: Viewer, page: str, *args: object) -> None:
        self.viewer, self.page = viewer, page
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        port = self.connection.getsockname()[1]
        if self.headers["Host"] not in (
            f"{ADDRESS}:{port}",
            f"localhost:{port}",
        ):  # a page of another site asks
            return self.send_error(HTTPStatus.FORBIDDEN)
        found = re.fullmatch(r"/values/(\d{1,9})", self.path)
        if self.path == "/":
            self._answer("text/html; charset=utf-8", self.page)
        elif found and 1 <= int(found[1]) <= self.viewer.finished:
            self._answer("application/json", json.dumps(self.viewer.maps(int(found[1]))))
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for each request."""
