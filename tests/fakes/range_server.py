"""An HTTP server of a folder, with Range, on a real socket; counts every byte, and misbehaves where it is told to."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PIECE = 4096
_HOLD_AT_MOST_S = 30.0


@dataclass(slots=True)
class Asked:
    """One request: the path, the range that was sent (`end` excluded) and how many bytes of it went out."""

    path: str
    first: int
    end: int
    sent: int = 0


@dataclass(slots=True)
class RangeServer:
    """Serves `root`. A fault is a name from FAULTS, given by `fault(path)`; empty is none.

    `rate(path)` is the bytes a second of a body, None for at once; `changed` gets path and content and gives what is
    sent instead.
    """

    root: Path
    fault: Callable[[str], str] = lambda _path: ""
    changed: Callable[[str, bytes], bytes] = lambda _path, content: content
    rate: Callable[[str], float | None] = lambda _path: None
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    _stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[RangeServer]:
        state = self

        class Handler(_Handler):
            server_state = state

        server = _Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            self._stopping.set()
            server.shutdown()
            server.server_close()

    def objects(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.startswith("/objects/")]

    def sent_of(self, sha256: str) -> int:
        return sum(asked.sent for asked in self.asked if asked.path.endswith(sha256))

    def wait(self, seconds: float) -> None:
        """Or until the server is to stop."""
        self._stopping.wait(min(seconds, _HOLD_AT_MOST_S))


# what a server can get wrong
FAULTS = (
    "wrong_range",  # a range that was not asked for
    "no_range",  # 200 and the whole file, whatever was asked for
    "shorter_file",  # 200 and a file of another length
    "redirect",
    "endless",  # a body that never ends
    "truncated",  # less than the length it announced
    "encoded",  # as if compressed
    "silent",  # a head, and then nothing
    "trickle",  # a byte now and then
    "busy",  # 503
    "absent",  # 404
    "garbage",  # not HTTP
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are no news."""


class _Handler(BaseHTTPRequestHandler):
    server_state: RangeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        state, path = self.server_state, self.path.split("?")[0]
        fault = state.fault(path)
        file = state.root / path.lstrip("/")
        if fault == "absent" or not file.is_file():
            self.send_error(404)
        elif fault == "busy":
            self.send_error(503)
        elif fault == "redirect":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif fault == "garbage":
            self.wfile.write(b"\0\1\2 this is not HTTP\r\n\r\n")
            self.close_connection = True
        else:
            try:
                self._send(path, state.changed(path, file.read_bytes()), fault)
            except OSError:
                self.close_connection = True

    def _send(self, path: str, content: bytes, fault: str) -> None:
        if fault == "shorter_file":
            content = content[:-1]
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        first, end = 0, len(content)
        if found is not None and fault not in ("no_range", "shorter_file"):
            first, end = int(found[1]), min(len(content), int(found[2]) + 1 if found[2] else len(content))
            self.send_response(206)
            shift = 1 if fault == "wrong_range" else 0
            self.send_header("Content-Range", f"bytes {first + shift}-{end - 1 + shift}/{len(content)}")
        else:
            self.send_response(200)
        if fault == "encoded":
            self.send_header("Content-Encoding", "gzip")
        if fault != "endless":
            self.send_header("Content-Length", str(end - first))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        asked = Asked(path, first, end)
        self.server_state.asked.append(asked)
        self._body(content[first:end], asked, fault)

    def _body(self, body: bytes, asked: Asked, fault: str) -> None:
        state = self.server_state
        if fault == "truncated":
            body = body[: len(body) // 2]
        if fault == "silent":
            state.wait(_HOLD_AT_MOST_S)
            body = b""
        piece = 1 if fault == "trickle" else _PIECE
        for start in range(0, len(body), piece):
            if state._stopping.is_set():
                break
            data = body[start : start + piece]
            if fault == "trickle":
                state.wait(0.05)
            elif (rate := state.rate(asked.path)) is not None:
                time.sleep(len(data) / rate)
            self.wfile.write(data)
            asked.sent += len(data)
        while fault == "endless" and not state._stopping.is_set():
            self.wfile.write(b"\0" * _PIECE)
            asked.sent += _PIECE
        if fault in ("truncated", "silent", "endless"):
            self.close_connection = True
