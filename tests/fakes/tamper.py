"""A repository's HTTP server that can be told to lie: other bytes, an older state, endless data, silence.

On a real socket. What it serves is a copy of a folder, taken when `take` is called, so that an older state
can be served later. Lies are by path and stay until `honest` is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

State = dict[str, bytes]
_ENDLESS_AT_MOST = 256 << 20  # so that a client without a bound fails a test instead of a machine


def state_of(repository: Path) -> State:
    """Every metadata file and object of a repository in a folder, by path."""
    return {
        f"{part}/{path.relative_to(repository / part)}": path.read_bytes()
        for part in ("metadata", "objects")
        for path in sorted((repository / part).rglob("*"))
        if path.is_file()
    }


@dataclass(slots=True)
class TamperingServer:
    """`state` is served; `lies` change what is said of a path; `endless` paths never end; `down` answers 503."""

    state: State = field(default_factory=dict)
    lies: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    endless: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    down: bool = False
    sent: dict[str, int] = field(default_factory=dict)
    url: str = ""

    def take(self, repository: Path) -> State:
        """Serves the repository as it is now; returns that state, to be served again later."""
        self.state = state_of(repository)
        return self.state

    def honest(self) -> None:
        self.lies.clear()
        self.endless.clear()
        self.absent.clear()
        self.down = False

    def answer(self, path: str) -> bytes | None:
        content = self.state.get(path)
        if content is None or path in self.absent:
            return None
        return self.lies[path](content) if path in self.lies else content

    @contextmanager
    def running(self) -> Iterator[TamperingServer]:
        state = self

        class Handler(_Handler):
            tampering = state

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    tampering: TamperingServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        state, path = self.tampering, self.path.lstrip("/")
        if state.down:
            self.send_error(503)
            return
        content = state.answer(path)
        if path in state.endless:
            self._stream(path)
        elif content is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            state.sent[path] = state.sent.get(path, 0) + len(content)

    def _stream(self, path: str) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        piece, sent = b" " * 65536, 0
        try:
            while sent < _ENDLESS_AT_MOST:
                self.wfile.write(piece)
                sent += len(piece)
                self.tampering.sent[path] = sent  # at once: whoever was sent it may look before this ends
        except OSError:
            pass


def flipped(content: bytes, at: int, bit: int = 0) -> bytes:
    """The bytes with one bit turned."""
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
