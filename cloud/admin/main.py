"""The admin process: one HTTP server over one state store, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from cloud.admin.app import Admin, build
from cloud.admin.guard import Guard
from cloud.config import AdminConfig
from cloud.state.base import StateStore
from cloud.state.open import open_store
from runtime.config import ConfigError
from runtime.http_server import HttpServer

_log = logging.getLogger(__name__)


class AdminServer:
    """The API on its address, for as long as it is started. Raises OSError when the address is taken."""

    def __init__(self, config: AdminConfig, store: StateStore) -> None:
        self._store = store
        api = build(Admin(store=store, releases_dir=config.releases_dir))
        self._http = HttpServer(Guard(api, config.token.get_secret_value()), config.address)

    @property
    def address(self) -> str:
        return self._http.address

    async def start(self) -> None:
        await self._http.start()

    async def stop(self) -> None:
        """Lets running requests finish for a few seconds; then closes the store."""
        await self._http.stop()
        await self._store.close()


def run(config: AdminConfig) -> int:
    """Serves until SIGTERM or SIGINT; the exit code."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return asyncio.run(_serve(config))
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"admin: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1


async def _serve(config: AdminConfig) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = AdminServer(config, open_store(config.store_url))
    await server.start()
    _log.info("admin serves on http://%s", server.address)
    await stop.wait()
    await server.stop()
    return 0
