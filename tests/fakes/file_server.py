"""An HTTP server of files held in memory, with Range, on a real socket, that can be told to misbehave."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HOLD_AT_MOST_S = 30.0


@dataclass(slots=True)
class Served:
    """One answered request: the first byte asked for and how many bytes of the body went out."""

    path: str
    first: int
    sent: int = 0


@dataclass(slots=True)
class FileServer:
    """`files` maps paths to contents.

    For a path: `status` is always answered; `busy` answers 503 so many times; `cut` drops the next answer
    after so many bytes; `hold` keeps it waiting there until `released`. For all: `mute` accepts requests and
    says nothing; `plain` ignores Range.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    hold: dict[str, int] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)
    mute: bool = False
    plain: bool = False
    seen: list[Served] = field(default_factory=list)
    url: str = ""

    def requests(self, ending: str) -> list[Served]:
        return [served for served in self.seen if served.path.endswith(ending)]

    @contextmanager
    def running(self) -> Iterator[FileServer]:
        state = self

        class Handler(_Handler):
            server_state = state

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_state: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        state = self.server_state
        path = self.path.split("?")[0]
        if state.mute:
            state.released.wait(_HOLD_AT_MOST_S)
            self.close_connection = True
            return
        if state.busy.get(path):
            state.busy[path] -= 1
            if not state.busy[path]:
                del state.busy[path]
            self.send_error(503)
            return
        content = state.files.get(path)
        if path in state.status or content is None:
            self.send_error(state.status.get(path, 404))
            return
        first = 0
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and not state.plain:
            first = int(asked.removeprefix("bytes=").split("-")[0])
        served = Served(path, first)
        state.seen.append(served)
        if first >= len(content) > 0:
            self.send_error(416)
            return
        self._head(content, first)
        self._body(content, first, served)

    def _head(self, content: bytes, first: int) -> None:
        self.send_response(206 if first else 200)
        html = content.startswith(b"<!DOCTYPE html>")
        self.send_header("Content-Type", "text/html" if html else "application/octet-stream")
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("Accept-Ranges", "none" if self.server_state.plain else "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()[:16]}"')
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()

    def _body(self, content: bytes, first: int, served: Served) -> None:
        state, path = self.server_state, served.path
        end = len(content)
        if path in state.cut:
            end = first + state.cut.pop(path)
        stop = first + state.hold.pop(path) if path in state.hold else end
        try:
            self.wfile.write(content[first:stop])
            self.wfile.flush()
            served.sent = stop - first
            if stop < end:
                state.held.set()
                state.released.wait(_HOLD_AT_MOST_S)
                self.wfile.write(content[stop:end])
                served.sent = end - first
        except OSError:
            self.close_connection = True
        if end < len(content):
            self.close_connection = True
