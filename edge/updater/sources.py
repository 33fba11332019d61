"""Where files come from: an HTTP server with Range, or a folder with the same layout.

A source is never believed: what it sends is bounded by what was asked for, and checked by whoever asked.
Here only its manners are judged: it must answer in time, go on at a useful rate, send the range that was
asked for and not lead elsewhere. A server that knows no Range sends the whole file; what is here already
is passed over. Every fault is a FetchFailed that names the source and what it did.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from release.trust.errors import Absent, FetchFailed, TooLong

_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_GONE = (404, 410)
_BLOCK = 256 << 10
# What httpx lets through of addresses and proxies (in the environment) that nothing can connect to.
_UNUSABLE = (ValueError, ImportError, OverflowError, ExceptionGroup)
_HEADERS = {"accept-encoding": "identity", "user-agent": "weir-updater"}


@dataclass(frozen=True, slots=True)
class Manners:
    """What is asked of a server: seconds without a byte, and bytes a second once it has had time to start."""

    connect_s: float = 5.0
    silence_s: float = 10.0
    lowest_bytes_per_s: float = 200.0
    lowest_after_s: float = 20.0


def _nobody(_count: int) -> None:
    """Told of bytes where nobody counts them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one read may move at most (None: no matter), and who is told of bytes that came and were not wanted."""

    most_bytes: int | None = None
    passed_over: Callable[[int], None] = _nobody


UNBOUND = Bounds()


class Source(Protocol):
    """One place that has files."""

    @property
    def name(self) -> str: ...

    @property
    def costs(self) -> bool:
        """Whether its bytes come over the link to the repository."""
        ...

    async def get(self, path: str, most_bytes: int) -> bytes:
        """A whole small file. Raises Absent, TooLong, FetchFailed."""
        ...

    def read(self, path: str, first: int, end: int, size: int, bounds: Bounds = UNBOUND) -> AsyncGenerator[bytes, None]:
        """The bytes from `first` of a file of `size`: until `end` at most, or the file's own without Range.

        Fewer may come without an error. Raises Absent, FetchFailed.
        """
        ...

    async def close(self) -> None: ...


class HttpSource:
    """A static HTTP server."""

    def __init__(self, url: str, manners: Manners | None = None, *, costs: bool = True) -> None:
        self._url, self._manners, self.costs = url.rstrip("/"), manners or Manners(), costs
        self._client: httpx.AsyncClient | None = None

    @property
    def name(self) -> str:
        return self._url

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def get(self, path: str, most_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        async with aclosing(self._pieces(path, {})) as pieces:
            async for head, data in pieces:
                if head.status_code != 200:
                    raise FetchFailed(f"{self._url} answered {head.status_code} for {path}")
                size += len(data)
                if max(size, _length(head) or 0) > most_bytes:
                    raise TooLong(f"{self._url} sends more than the {most_bytes} bytes that {path} may have")
                parts.append(data)
        return b"".join(parts)

    async def read(
        self, path: str, first: int, end: int, size: int, bounds: Bounds = UNBOUND
    ) -> AsyncGenerator[bytes, None]:
        at: int | None = None
        async with aclosing(self._pieces(path, {"range": f"bytes={first}-{end - 1}"})) as pieces:
            async for head, data in pieces:
                if at is None:
                    at, end = self._begins_at(head, path, first, end, size)
                    self._demand_within(bounds, path, end - at)
                new = data[max(0, first - at) : end - at]
                at += len(data)
                if len(new) < len(data):
                    bounds.passed_over(len(data) - len(new))
                if new:
                    yield new
                if at >= end:
                    return

    def _demand_within(self, bounds: Bounds, path: str, count: int) -> None:
        """A budget holds for a server without Range as well, of which the whole file comes or nothing."""
        if bounds.most_bytes is not None and count > bounds.most_bytes:
            raise FetchFailed(
                f"{self._url} knows no Range, and {path} with {count} bytes is more than the {bounds.most_bytes} that "
                "may be fetched now: use a server with Range, or allow more a day"
            )

    def _begins_at(self, head: httpx.Response, path: str, first: int, end: int, size: int) -> tuple[int, int]:
        """Where in the file the body begins, and where to stop."""
        if head.status_code == 200:
            if _length(head) not in (None, size):
                raise FetchFailed(f"{self._url} has {_length(head)} bytes for {path}, not the {size} promised")
            return 0, size
        found = _RANGE.fullmatch(head.headers.get("content-range", ""))
        if head.status_code != 206 or found is None:
            raise FetchFailed(f"{self._url} answered {head.status_code} without a range for {path}")
        start, last, total = int(found[1]), int(found[2]), found[3]
        if start != first or not first <= last < end or total not in ("*", str(size)):
            asked = f"bytes {first} to {end - 1} of {size}"
            raise FetchFailed(f"{self._url} sent {found[0]} of {path} instead of {asked}")
        return start, last + 1

    async def _pieces(self, path: str, headers: dict[str, str]) -> AsyncGenerator[tuple[httpx.Response, bytes], None]:
        """The body as it comes, each time with the head; at least once, for an answer that is no fault."""
        manners = self._manners
        began, received = time.monotonic(), 0
        try:
            async with self._http().stream("GET", f"{self._url}/{path}", headers={**_HEADERS, **headers}) as head:
                self._demand_plain(head, path)
                yield head, b""
                async for data in head.aiter_raw():
                    received += len(data)
                    yield head, data
                    lasted = time.monotonic() - began
                    if lasted > manners.lowest_after_s and received < lasted * manners.lowest_bytes_per_s:
                        raise FetchFailed(f"{self._url} sent {received} bytes of {path} in {lasted:.0f} s: too slow")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            told = str(error) or type(error).__name__
            raise FetchFailed(f"{self._url} failed at {path} after {received} bytes: {told}") from error
        except _UNUSABLE as error:
            causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
            told = "; ".join(str(cause) or type(cause).__name__ for cause in causes)
            raise FetchFailed(f"{self._url} failed at {path}, its address or a proxy's: {told}") from error

    def _demand_plain(self, head: httpx.Response, path: str) -> None:
        status = head.status_code
        if status in _GONE:
            raise Absent(f"{self._url} has no {path}")
        if head.is_redirect:
            raise FetchFailed(f"{self._url} redirects {path}; redirects are not followed: give the address it leads to")
        if status not in (200, 206):
            raise FetchFailed(f"{self._url} answered {status} for {path}")
        if head.headers.get("content-encoding", "identity") != "identity":
            raise FetchFailed(f"{self._url} sent {path} encoded although that was not asked for")

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            manners = self._manners
            timeout = httpx.Timeout(manners.silence_s, connect=manners.connect_s, pool=manners.connect_s)
            self._client = httpx.AsyncClient(timeout=timeout, follow_redirects=False)
        return self._client


class FolderSource:
    """A repository on a disk."""

    costs = False

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return str(self._root)

    async def close(self) -> None:
        """Nothing is held."""

    async def get(self, path: str, most_bytes: int) -> bytes:
        content = await asyncio.to_thread(self._load, path, 0, most_bytes + 1)
        if len(content) > most_bytes:
            raise TooLong(f"{self._root / path} has more than {most_bytes} bytes")
        return content

    async def read(
        self,
        path: str,
        first: int,
        end: int,
        size: int,  # noqa: ARG002
        bounds: Bounds = UNBOUND,  # noqa: ARG002
    ) -> AsyncGenerator[bytes, None]:
        while first < end:
            data = await asyncio.to_thread(self._load, path, first, min(_BLOCK, end - first))
            if not data:
                raise FetchFailed(f"{self._root / path} ends at byte {first}, before {end}")
            yield data
            first += len(data)

    def _load(self, path: str, first: int, count: int) -> bytes:
        try:
            with (self._root / path).open("rb") as handle:
                handle.seek(first)
                return handle.read(count)
        except FileNotFoundError as error:
            raise Absent(f"there is no {self._root / path}") from error
        except OSError as error:
            raise FetchFailed(f"{self._root / path} cannot be read: {error.strerror}") from error


def source_at(place: str, *, costs: bool = True) -> Source:
    """What `repository` or one of `siblings` names."""
    if place.startswith(("http://", "https://")):
        return HttpSource(place, costs=costs)
    return FolderSource(Path(place))


def _length(head: httpx.Response) -> int | None:
    text = head.headers.get("content-length", "")
    return int(text) if text.isdecimal() else None
