"""The parent of an edge node: one engine process, one front process, each restarted by itself.

    launcher ─┬─ python -m edge.engine   weights, decoding; serves on unix:<run_dir>/engine.sock
              └─ python -m edge.front    gRPC, HTTP, cascade

It holds no weights, serves nothing and imports nothing heavy, so that it has nothing to die of. When
it goes, its children go: a signal stops them in order (front first, so that requests end before the
engine does), and a SIGKILL takes them along. What can never start (a taken port, a release that
cannot be served) ends the node instead of being tried for ever.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from edge.config import EdgeConfig
from edge.releases import find, precisions_here, start_with
from edge.remembered import forget, remembered
from release.errors import ReleaseError
from release.listing import Found
from runtime.child import ChildSpec, Group

# Of edge.engine.main.UNUSABLE and edge.front.main.UNSTARTABLE, which are not imported for their weight.
_HOPELESS = ("exited with 69", "exited with 71")
_READY_S = 120.0
_LONGEST_SOCKET = 100  # bytes; the kernel allows 107

_log = logging.getLogger("weir.edge")


def run(config: EdgeConfig) -> int:
    """Blocks until SIGTERM or SIGINT; returns the exit code."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    own = config.run_dir is None
    run_dir = Path(tempfile.mkdtemp(prefix="weir-edge-")) if config.run_dir is None else config.run_dir
    try:
        _make(run_dir)
        if len(str((run_dir / "engine.sock").resolve()).encode()) > _LONGEST_SOCKET:
            raise OSError(f"run_dir {run_dir} is too long for a socket's path; use a shorter one")
        settled = config.model_copy(update={"run_dir": run_dir.resolve()})
        return asyncio.run(Launcher(settled).serve())
    except (ReleaseError, OSError) as error:
        _log.error("%s", error)
        return 1
    finally:
        if own:
            shutil.rmtree(run_dir, ignore_errors=True)


def _make(run_dir: Path) -> None:
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"run_dir {run_dir} cannot be made: {error.strerror}") from error


class Launcher:
    """Runs both groups until told to stop. `config.run_dir` is settled."""

    def __init__(self, config: EdgeConfig) -> None:
        """Raises ReleaseError when there is nothing to serve."""
        self._config = config
        self._release = start_with(config.releases_dir, config.model)
        self._stopping = asyncio.Event()
        self._hopeless = ""
        self.engine = Group("engine", self._engine_specs, self._engine_ready, self._engine_changed)
        self.front = Group("front", self._front_specs, self._front_ready, self._front_changed)

    async def serve(self) -> int:
        """Returns the exit code: 0 after a signal, 1 when a part can never start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        engine = asyncio.create_task(self.engine.run())
        front = asyncio.create_task(self.front.run())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([engine, front, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in (stop, front, engine):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._hopeless:
            _log.error("giving up: %s", self._hopeless)
        return 0 if self._stopping.is_set() and not self._hopeless else 1

    def _engine_specs(self) -> Sequence[ChildSpec]:
        from edge.engine.config import EngineConfig

        config = self._config
        release, precision = self._to_serve()
        self._settle_folder()
        config.engine_socket.unlink(missing_ok=True)
        own = EngineConfig(
            socket=config.engine_socket,
            release_dir=release.path,
            precision=precision,
            model=config.model or release.manifest.name,
            node=config.node,
            threads=config.threads,
            slots=config.slots,
            context_length=config.context_length,
            max_queue=config.max_queue,
            max_output_tokens=config.max_output_tokens,
            default_deadline_s=config.default_deadline_s,
            log_level=config.log_level,
        )
        return [ChildSpec("engine", (sys.executable, "-m", "edge.engine", own.model_dump_json()))]

    def _to_serve(self) -> tuple[Found, Literal[4, 8]]:
        """What was in force last in this run_dir; else the first choice, with the pinned or the first bits."""
        last = remembered(self._config.engine_socket.parent)
        found = find(self._config.releases_dir, last.release) if last is not None else None
        release = found or self._release
        here, pinned = precisions_here(release), self._config.precision
        wanted = last.precision if found is not None and last is not None else self._first_bits(release)
        if pinned != "auto":
            wanted = int(pinned)
        return release, 8 if wanted == 8 and (8 in here or pinned == "8") else 4

    def _first_bits(self, release: Found) -> int:
        """4 where the plan can weigh them against 8 and unsure answers have somewhere to go, else 8.

        The 4-bit plane is the lighter one and the first to arrive; the plan moves on when that clearly gains.
        """
        return 4 if self._config.upstream and release.manifest.calibrations else 8

    def _front_specs(self) -> Sequence[ChildSpec]:
        self._settle_folder()
        self._addresses.unlink(missing_ok=True)
        return [ChildSpec("front", (sys.executable, "-m", "edge.front", self._config.to_json()))]

    def _settle_folder(self) -> None:
        """A cleaner of temporary files may have taken it since the last start."""
        _make(self._config.engine_socket.parent)

    async def _engine_ready(self) -> None:
        """Returns once the engine listens; whether its model is loaded is the front's to ask."""
        async with asyncio.timeout(_READY_S):
            while True:
                try:
                    _, writer = await asyncio.open_unix_connection(str(self._config.engine_socket))
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                return

    async def _front_ready(self) -> None:
        async with asyncio.timeout(_READY_S):
            while not self._addresses.exists():  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.05)

    def _engine_changed(self, state: str, detail: str) -> None:
        self._told("engine", state, detail)

    def _front_changed(self, state: str, detail: str) -> None:
        self._told("front", state, detail)

    def _told(self, name: str, state: str, detail: str) -> None:
        _log.info("%s is %s%s", name, state, f": {detail}" if detail else "")
        if state != "down" or not detail.endswith(_HOPELESS):
            return
        run_dir = self._config.engine_socket.parent
        if name == "engine" and remembered(run_dir) is not None:
            _log.warning("what was in force last cannot be served: back to %s", self._release.manifest.id)
            forget(run_dir)
        else:
            self._hopeless = f"{name}: {detail}; see its message above"
            self._stopping.set()

    @property
    def _addresses(self) -> Path:
        return self._config.engine_socket.with_name("front.json")
