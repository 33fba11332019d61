"""What `weir keys`, `weir publish` and `weir bundle` have in common: options, passphrases, a remote source.

Passphrases come from the environment only: a command line is seen by every process on a box.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from release.objects import is_metadata, object_digest
from release.trust.errors import Absent, FetchFailed, TooLong

if TYPE_CHECKING:
    from release.repository.keys import Keys
    from release.repository.session import Desk

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
Repository = Annotated[
    Path, typer.Option("--repository", envvar="WEIR_REPOSITORY", help="Folder of the repository.", show_default=False)
]
KeyFolder = Annotated[
    Path, typer.Option("--keys", envvar="WEIR_KEYS", help="Folder of the everyday keys.", show_default=False)
]
RootFolders = Annotated[
    list[Path] | None,
    typer.Option("--root-keys", help="Folder of root keys, if kept apart; repeat it for several holders."),
]
TrustClock = Annotated[bool, typer.Option("--trust-clock", help="Sign although the clock looks wrong.")]

_TIMEOUT_S, _MOST_S = 30.0, 300.0


def key_folders(keys: Path, root_keys: list[Path] | None) -> Keys:
    """The folders with the passphrases of the environment."""
    from release.repository.keys import Keys

    secret = os.environ.get("WEIR_KEY_PASSPHRASE") or None
    return Keys(keys, tuple(root_keys or ()), secret, os.environ.get("WEIR_ROOT_KEY_PASSPHRASE") or secret)


def desk(repository: Path, keys: Path, root_keys: list[Path] | None = None, trust_clock: bool = False) -> Desk:
    """A publisher's desk, now."""
    from release.repository.session import Desk

    return Desk(repository, key_folders(keys, root_keys), datetime.now(UTC), trust_clock)


class HttpSource:
    """A repository behind a URL, as a release.trust.source.Fetch. For metadata and manifests; reads no further than "
    "asked."""

    def __init__(self, url: str) -> None:
        import httpx  # here: every command would wait for it

        self._url = url.rstrip("/")
        self._client = httpx.Client(timeout=_TIMEOUT_S, follow_redirects=True)
        self._faults = httpx.HTTPError

    def close(self) -> None:
        self._client.close()

    def __call__(self, path: str, most_bytes: int) -> bytes:
        if not is_metadata(path) and object_digest(path) is None:
            raise Absent(f"{path} is no path of a repository")
        address = f"{self._url}/{path}"
        content = bytearray()
        ends = time.monotonic() + _MOST_S
        try:
            with self._client.stream("GET", address, headers={"Accept-Encoding": "identity"}) as response:
                if response.status_code in (403, 404, 410):  # a bucket says 403 for what it does not have
                    raise Absent(f"{address} does not exist (HTTP {response.status_code})")
                if response.status_code != 200:
                    raise FetchFailed(f"{address} answered HTTP {response.status_code}: try again later")
                for piece in response.iter_bytes():
                    content += piece
                    if time.monotonic() > ends:
                        raise FetchFailed(f"{address} took longer than {_MOST_S:.0f} s: try again later")
                    if len(content) > most_bytes:
                        raise TooLong(f"{address} sends more than the {most_bytes} bytes it may have")
        except self._faults as error:
            raise FetchFailed(
                f"{address} cannot be fetched ({type(error).__name__}: {error}): try again later"
            ) from error
        return bytes(content)


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def numbers(text: str, known: tuple[str, ...]) -> Mapping[str, int]:
    """`name=number,…` as given on a command line. Raises BadUse."""
    from weir.cli.report import BadUse

    found: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, number = part.partition("=")
        if name not in known or not number.isascii() or not number.isdecimal():
            raise BadUse(f"{part!r}: write {known[0]}=9 and so on, with names of {', '.join(known)}")
        found[name] = int(number)
    return found
