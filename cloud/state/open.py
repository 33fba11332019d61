"""From a URL to a store. Nothing is connected yet: the first call does that, and says so when it cannot."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from cloud.state.base import StateStore
from cloud.state.sqlite import SqliteStateStore
from runtime.config import ConfigError

FORMS = "sqlite:///PATH, redis://[USER:PASSWORD@]HOST[:PORT][/N], rediss://…"
_REDIS_OPTIONS = ("namespace", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def open_store(url: str) -> StateStore:
    """The store behind `url`. Raises ConfigError; never shows a password.

    sqlite:///state.db is relative to the working directory, sqlite:////var/lib/weir/state.db absolute.
    Redis takes ?namespace=NAME (several installations on one server) and, with rediss, ssl_ca_certs,
    ssl_certfile and ssl_keyfile.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return _open_sqlite(url)
    if parts.scheme in ("redis", "rediss"):
        return _open_redis(url)
    raise ConfigError(f"store_url with scheme {parts.scheme!r} is not known; use one of: {FORMS}")


def _open_sqlite(url: str) -> StateStore:
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or parts.query or not path:
        raise ConfigError(f"store_url = {url!r}: write sqlite:///relative.db or sqlite:////absolute/path.db")
    if path == ":memory:":
        raise ConfigError("store_url = 'sqlite:///:memory:': state must outlive a process; name a file")
    return SqliteStateStore(Path(path))


def _open_redis(url: str) -> StateStore:
    # Only here, so that a store in a file needs no redis package.
    try:
        from cloud.state.redis_store import RedisStateStore
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"store_url names Redis, which needs {error.name}: pip install 'weir-inference[gateway]'"
        ) from error

    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    unknown = sorted(set(options) - set(_REDIS_OPTIONS))
    if unknown:
        raise ConfigError(f"store_url: option {unknown[0]!r} is not known; there are {', '.join(_REDIS_OPTIONS)}")
    try:
        if not parts.hostname or (parts.port is not None and parts.port == 0):
            raise ValueError("no host or a bad port")
    except ValueError as error:
        raise ConfigError(f"store_url: {error}; use redis://HOST:PORT/N") from error
    if not re.fullmatch(r"/?\d*", parts.path):
        raise ConfigError(f"store_url: {parts.path!r} is not a Redis database number; use redis://HOST:PORT/N")
    namespace = options.pop("namespace", "weir")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", namespace):
        raise ConfigError(f"store_url: namespace {namespace!r} must be 1 to 64 of A-Z a-z 0-9 . _ -")
    return RedisStateStore(urlunsplit(parts._replace(query=urlencode(options))), namespace=namespace)
