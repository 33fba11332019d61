"""The parent of an edge node: one engine process, one front process, each restarted by itself.

    launcher ─┬─ python -m edge.engine   weights, decoding; serves on unix:<run_dir>/engine.sock
              └─ python -m edge.front    gRPC, HTTP, cascade

It holds no weights, serves nothing and imports nothing heavy, so that it has nothing to die of. When
it goes, its children go: a signal stops them in order (front first, so that requests end before the
engine does), and a SIGKILL takes them along. What can never start (a taken port, the only release
that cannot be served) ends the node instead of being tried for ever. With a store that is still empty
the front starts alone and the engine as soon as there is something to serve.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge.config import EdgeConfig
from edge.events import LogSink
from edge.slot_file import SlotFile
from edge.starts import REASON_NAME, FolderStarts, NothingToServe, Starts, StoreStarts
from release.errors import ReleaseError
from release.store import Store
from runtime.child import ChildSpec, Group

# Of edge.engine.main.UNUSABLE and edge.front.main.UNSTARTABLE, which are not imported for their weight.
_UNUSABLE, _UNSTARTABLE = "exited with 69", "exited with 71"
_READY_S = 120.0
_LOOK_S = 0.25  # for something to serve
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
        with _alone_in(config.store_dir):
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


@contextmanager
def _alone_in(store_dir: Path | None) -> Iterator[None]:
    """Holds the store for this node. Raises OSError when another one does, or it cannot be made."""
    if store_dir is None:
        yield
        return
    try:
        Store(store_dir).prepare()
    except OSError as error:
        raise OSError(f"store_dir {store_dir} cannot be made: {error.strerror}") from error
    with (store_dir / ".node.lock").open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OSError(f"another node runs on store_dir {store_dir}; give each node its own") from error
        yield


def _starts(config: EdgeConfig) -> Starts:
    """Raises ReleaseError when there is nothing to serve and nothing to wait for."""
    if config.store_dir is not None:
        sink = LogSink(config.node)
        return StoreStarts(config, Store(config.store_dir), SlotFile(config.store_dir), sink, time.monotonic)
    if config.releases_dir is None:
        raise ReleaseError("neither releases_dir nor store_dir is set")
    return FolderStarts(config, config.releases_dir)


class Launcher:
    """Runs both groups until told to stop. `config.run_dir` is settled."""

    def __init__(self, config: EdgeConfig) -> None:
        """Raises ReleaseError when there is nothing to serve."""
        self._config = config
        self._starts = _starts(config)
        self._stopping = asyncio.Event()
        self._hopeless = ""
        self.engine = Group("engine", self._engine_specs, self._engine_ready, self._engine_changed)
        self.front = Group("front", self._front_specs, self._front_ready, self._front_changed)

    async def serve(self) -> int:
        """Returns the exit code: 0 after a signal, 1 when a part can never start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        engine = asyncio.create_task(self._run_engine())
        front = asyncio.create_task(self.front.run())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([engine, front, stop], return_when=asyncio.FIRST_COMPLETED)
        for part in (front, engine):
            if part.done() and not part.cancelled():
                _log.error("the node ends", exc_info=part.exception())
        for task in (stop, front, engine):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._stopping.is_set():
            self._starts.stopped()
        if self._hopeless:
            _log.error("giving up: %s", self._hopeless)
        return 0 if self._stopping.is_set() and not self._hopeless else 1

    async def _run_engine(self) -> None:
        """Keeps an engine running whenever there is something for it to serve."""
        told = False
        while True:
            while not await asyncio.to_thread(self._starts.there):
                if not told:
                    _log.info("no release here yet: the engine starts when there is one")
                    told = True
                await asyncio.sleep(_LOOK_S)
            try:
                await self.engine.run()
            except NothingToServe as error:
                _log.error("%s; waiting for another release", error)
                told = True

    def _engine_specs(self) -> Sequence[ChildSpec]:
        from edge.engine.config import EngineConfig

        config = self._config
        start = self._starts.next()
        release, precision = start.release, start.precision
        self._settle_folder()
        for name in (config.engine_socket, config.engine_socket.with_name(REASON_NAME)):
            name.unlink(missing_ok=True)
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
            memory_budget_bytes=config.memory_budget_bytes,
            log_level=config.log_level,
        )
        return [ChildSpec("engine", (sys.executable, "-m", "edge.engine", own.model_dump_json()))]

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
        if state != "down":
            return
        if name == "engine":
            goes_on = self._starts.ended(detail, unusable=detail.endswith(_UNUSABLE))
        else:
            goes_on = not detail.endswith(_UNSTARTABLE)
        if not goes_on:
            self._hopeless = f"{name}: {detail}; see its message above"
            self._stopping.set()

    @property
    def _addresses(self) -> Path:
        return self._config.engine_socket.with_name("front.json")
