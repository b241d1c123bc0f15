"""The explorer, served to this machine's browser alone.

- It listens on the loopback interface. The page names no files and computes alone: whoever has an
  account on this machine may ask.
- Requests must name the address that it listens on: no other site's name leads here.
- The page loads and runs nothing but itself, and asks nobody but this server.
- Addresses hold no secret: what is chosen stands behind `#`, which no server is sent, and an
  address opens in anybody's explorer at the same port.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from bfpp.reports.explorer.answers import answer, opening
from bfpp.schedules.reading import NotJson, parsed
from bfpp.traces.page.html import document

HOST = "127.0.0.1"
USUAL_PORT = 8642
"""Port of every explorer that nobody gave another, so that addresses can be exchanged."""

PAGE, STEP = "/", "/step"
LONGEST = 2**22
"""Bytes of choices, most of them of pasted orders."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ExplorerServer(ThreadingHTTPServer):
    """Serves the page, and one answer at a time."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.page = document(opening(STEP), connect="'self'").encode()
        self._one = Lock()

    @property
    def host(self) -> str:
        """The address and port that it listens on."""
        return f"{HOST}:{self.server_address[1]}"

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://{self.host}{PAGE}"

    def answer(self, choices: Mapping[str, str]) -> bytes:
        """The answer to choices, as JSON."""
        try:
            with self._one:
                given = answer(choices)
        except Exception as error:  # the page would take silence for the server's end
            traceback.print_exc()
            given = {"wrong": {"reason": f"{type(error).__name__} is a fault of bfpp: {error}"}}
        return json.dumps(given, allow_nan=False).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True  # its last bytes would wait for its first ones' receipt

    def do_GET(self) -> None:
        """The page."""
        if self._may(PAGE) is None:
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """The answer to the choices in the body."""
        if self._may(STEP) is not None:
            return
        length = self.headers.get("Content-Length", "")
        # Python refuses to read numbers of thousands of digits.
        if not length.isdecimal() or len(length) > len(str(LONGEST)) or int(length) > LONGEST:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE if length else HTTPStatus.LENGTH_REQUIRED
            )
            return
        try:
            choices = parsed(self.rfile.read(int(length)))
        except NotJson:
            choices = None
        if not isinstance(choices, dict):
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        self._send(HTTPStatus.OK, self.server.answer(choices), "application/json")

    def _may(self, path: str) -> HTTPStatus | None:
        """The status with which the request was refused, or None if it may go on."""
        origin = self.headers.get("Origin", f"http://{self.server.host}")
        status = None
        if self.headers.get("Host") != self.server.host or origin != f"http://{self.server.host}":
            status = HTTPStatus.FORBIDDEN
        elif self.path != path:
            status = HTTPStatus.NOT_FOUND
        if status:
            self._refuse(status)
        return status

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self._send(status, status.phrase.encode(), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Requests are nobody's business."""
