"""What settings may name as a place: where to listen, who is asked, where releases come from.

Pure: nothing is looked up.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

_WEB = ("http://", "https://")


def _address(value: str) -> str:
    if value.startswith(_WEB):
        return value
    host, _, port = value.rpartition(":")
    if not value or value.startswith("unix:"):
        return value
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("must be host:port (port 0 picks a free one)")
    return value


def _upstream(value: str) -> str:
    if "://" not in value:
        return value
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment or "@" in url.netloc:
        raise ValueError("must be host:port, or a URL like https://host/v1 without a key in it")
    return value.rstrip("/")


def urls(value: tuple[str, ...]) -> tuple[str, ...]:
    """Every one a URL. Raises ValueError."""
    for url in value:
        if not url.startswith(_WEB):
            raise ValueError(f"{url!r} must begin with http:// or https://")
    return value


def _repository(value: str) -> str:
    if "://" in value and not value.startswith(_WEB):
        raise ValueError(f"{value!r} must be http://…, https://… or a folder")
    return value


Address = Annotated[str, AfterValidator(_address)]
Upstream = Annotated[str, AfterValidator(_upstream), AfterValidator(_address)]
Repository = Annotated[str, AfterValidator(_repository)]
