"""Which release the edges should serve, per model, as the shared state says.

Read from keys `active/<model>` holding {"release": id}, and of each active release which of the cloud's
models it refers to. Fails open: while the store cannot be reached the last known releases stay in
force, and `fault` says so and since when. One key that cannot be read costs that key only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from urllib.parse import unquote

from cloud.releases import ACTIVE, known
from cloud.state.base import Entry, StateStore, StoreUnavailable
from wire.errors import WeirError

_log = logging.getLogger("weir.gateway")

POLL_S = 0.5


class ActiveReleases:
    """Follows the store by listing it; without a store there are no active releases."""

    def __init__(self, store: StateStore | None) -> None:
        self._store = store
        self._failing_since: float | None = None
        self._error = ""
        self.releases: Mapping[str, str] = {}
        self.cloud_models: Mapping[str, str] = {}  # edge model: the cloud's model its active release refers to

    @property
    def fault(self) -> str:
        """Empty while the store answers."""
        if self._failing_since is None:
            return ""
        age = time.monotonic() - self._failing_since
        return f"state store unreachable for {age:.0f} s ({self._error}); active releases are as of then"

    async def run(self) -> None:
        """Follows the store until cancelled."""
        while self._store is not None:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        """Reads the store once."""
        if self._store is None:
            return
        try:
            releases = await _read_all(self._store)
            self.cloud_models = await self._references(self._store, releases)
            self.releases = releases
        except WeirError as error:
            if self._failing_since is None:
                self._failing_since = time.monotonic()
                _log.warning("state store unreachable: %s", error.message)
            self._error = error.message
            return
        self._failing_since = None

    async def _references(self, store: StateStore, releases: Mapping[str, str]) -> dict[str, str]:
        found = {}
        for model, release in releases.items():
            if self.releases.get(model) == release and model in self.cloud_models:
                found[model] = self.cloud_models[model]
                continue
            try:
                found[model] = (await known(store, model, release)).cloud_model
            except StoreUnavailable:
                raise
            except WeirError as error:
                _log.warning("active release %s of %s: %s", release, model, error.message)
        return found

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


async def _read_all(store: StateStore) -> dict[str, str]:
    found: dict[str, str] = {}
    after = ""
    while True:
        listing = await store.list(ACTIVE, after=after)
        for entry in listing.entries:
            release = _release(entry)
            if release:
                found[unquote(entry.key.removeprefix(ACTIVE))] = release
        if not listing.more:
            return found
        after = listing.entries[-1].key


def _release(entry: Entry) -> str:
    """The release id of one entry; empty, with a log line, for one that says none."""
    try:
        release = json.loads(entry.value)["release"]
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("%s holds no release (%r); it is ignored", entry.key, error)
        return ""
    return release if isinstance(release, str) else ""
