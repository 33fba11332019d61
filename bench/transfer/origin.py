"""An HTTP server of repositories, with Range, that remembers which bytes of which file went out.

Each repository has a name in the path, and its metadata can be exchanged while it is served, as publishing
does. Bytes count as they are handed to the socket, whose buffer is kept small: what was sent and never
arrived counts as sent. Must not know: releases, nodes, links.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from release.objects import is_metadata, object_digest

_PIECE_BYTES = 16 << 10
_SOCKET_BYTES = 32 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(slots=True)
class Sent:
    """One answer: bytes [first, first + count) of a file went out."""

    mount: str
    path: str
    first: int
    count: int = 0


@dataclass(slots=True)
class Mount:
    """A repository as it is served: metadata from one folder, objects from another."""

    metadata: Path
    objects: Path


@dataclass(slots=True)
class Origin:
    """Serves `mounts` at /<name>/…; use `running`."""

    mounts: dict[str, Mount] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    port: int = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[Origin]:
        origin = self

        class Handler(_Handler):
            state = origin

        server = _Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        self.port = server.server_address[1]
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def bytes_sent(self, mount: str) -> int:
        return sum(sent.count for sent in self.sent if sent.mount == mount)

    def sent_of(self, mount: str) -> list[Sent]:
        return [sent for sent in self.sent if sent.mount == mount]


def refetched_bytes(before: Sequence[Sent], after: Sequence[Sent]) -> int:
    """Bytes of objects in `after` that went out in `before` already. Metadata is asked for anew by design."""
    known: dict[str, list[tuple[int, int]]] = {}
    for sent in before:
        if object_digest(sent.path) is not None:
            known.setdefault(sent.path, []).append((sent.first, sent.first + sent.count))
    total = 0
    for sent in after:
        spans = _union(known.get(sent.path, []))
        total += sum(max(0, min(sent.first + sent.count, end) - max(sent.first, start)) for start, end in spans)
    return total


def chunks_of(count: int, chunk_bytes: int) -> int:
    """How many chunks' worth of bytes that is, a part counting as one."""
    return math.ceil(count / chunk_bytes)


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Origin

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        super().setup()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""

    def do_GET(self) -> None:
        file = self._file()
        if file is None or not file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = file.stat().st_size
        span = self._span(size)
        if span is None:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, last, ranged = span
        self.send_response(206 if ranged else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last - first + 1))
        if ranged:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        self._send(file, first, last)

    def _send(self, file: Path, first: int, last: int) -> None:
        _, mount, path = self.path.split("?")[0].split("/", 2)
        sent = Sent(mount, path, first)
        self.state.sent.append(sent)
        with file.open("rb") as handle:
            handle.seek(first)
            left = last - first + 1
            while left > 0 and (piece := handle.read(min(_PIECE_BYTES, left))):
                self.wfile.write(piece)
                sent.count += len(piece)
                left -= len(piece)

    def _file(self) -> Path | None:
        parts = self.path.split("?")[0].split("/", 2)
        mount = self.state.mounts.get(parts[1]) if len(parts) == 3 else None
        if mount is None:
            return None
        if is_metadata(parts[2]):
            return mount.metadata / Path(parts[2]).name
        return mount.objects.parent / parts[2] if object_digest(parts[2]) is not None else None

    def _span(self, size: int) -> tuple[int, int, bool] | None:
        """First and last byte to send, and whether they were asked for; None where there are none."""
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None:
            return 0, size - 1, False
        first, last = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
        return (first, last, True) if first <= last else None
