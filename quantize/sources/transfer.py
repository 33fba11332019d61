"""One file over HTTP, resumed by Range and checked before it gets its name.

What has arrived stands in NAME.part and is never asked for again; NAME exists only with the right
digest. A line that breaks is taken up again a bounded number of times. Knows no hub.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from quantize.sources.cache import sha256_of
from quantize.sources.errors import NoNetwork, SourceError, WrongHash

_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.2
_PASSING = (429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to fetch. Its digest is a SHA-256, or git's own for files a hub keeps in git."""

    url: str
    name: str
    size: int
    sha256: str = ""
    git_sha1: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def fetch(client: httpx.Client, wanted: Wanted, folder: Path, advance: Callable[[int], None]) -> Path:
    """Raises NoNetwork when the line stays broken, WrongHash when the bytes are others (they are removed)."""
    target = folder / wanted.name
    if target.exists():
        advance(wanted.size)
        return target
    part = target.with_name(target.name + ".part")
    advance(part.stat().st_size if part.exists() else 0)
    pause = _FIRST_PAUSE_S
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _rest(client, wanted, part, advance)
            break
        except httpx.TransportError as error:
            if attempt == _ATTEMPTS:
                raise NoNetwork(
                    f"{wanted.name} stopped after {_size(part):,} of {wanted.size:,} bytes ({_why(error)}): "
                    "run the same command again to go on from there"
                ) from error
            time.sleep(pause)
            pause *= 2
    _check(wanted, part)
    part.rename(target)
    return target


def _rest(client: httpx.Client, wanted: Wanted, part: Path, advance: Callable[[int], None]) -> None:
    """Appends what is missing. A server that cannot resume sends all of it; then we begin anew."""
    have = _size(part)
    if have >= wanted.size and wanted.size:
        return
    headers = {**wanted.headers, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with client.stream("GET", wanted.url, headers=headers, follow_redirects=True) as response:
        if response.status_code in _PASSING:
            raise httpx.ReadError(f"the server answered {response.status_code}")
        if response.status_code not in (200, 206):
            raise SourceError(f"{wanted.name}: the server answered {response.status_code} {response.reason_phrase}")
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", f"bytes {have}-").startswith(f"bytes {have}-"):
            raise SourceError(f"{wanted.name}: the server resumed at the wrong place; remove {part} and try again")
        with part.open("ab" if resumed else "wb") as handle:
            if not resumed:
                advance(-have)
            for chunk in response.iter_raw():
                handle.write(chunk)
                handle.flush()
                advance(len(chunk))
                if handle.tell() > wanted.size:
                    break
    if _size(part) < wanted.size:
        raise httpx.ReadError("the answer ended early")


def _check(wanted: Wanted, part: Path) -> None:
    right = _size(part) == wanted.size
    if right and wanted.sha256:
        right = sha256_of(part) == wanted.sha256
    elif right and wanted.git_sha1:
        content = part.read_bytes()
        right = (
            hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == wanted.git_sha1
        )
    if not right:
        part.unlink()
        raise WrongHash(
            f"{wanted.name} is not the file that was promised (size or digest differ); it has been removed. "
            "Run the same command again; if it happens twice, do not trust this source"
        )


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
