"""The parent of an edge node: one engine process per model, one front process, each restarted by itself.

    launcher ─┬─ python -m edge.engine       a model that writes; serves on unix:<run_dir>/engine.sock
              ├─ python -m edge.classifier   a model that labels; of several models each has a folder in run_dir
              └─ python -m edge.front        gRPC, HTTP, cascades

It holds no weights, serves nothing and imports nothing heavy, so that it has nothing to die of. When
it goes, its children go: a signal stops them in order (front first, so that requests end before the
engine does), and a SIGKILL takes them along. What can never start (a taken port, the only release
that cannot be served) ends the node instead of being tried for ever; of several models one that cannot be
served is left out, loudly, and the others go on. With a store that is still empty
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from edge.config import SECRETS, EdgeConfig
from edge.engine.endings import REASON_NAME, UNUSABLE
from edge.engine_specs import engine_spec
from edge.events import LogSink
from edge.models import each, found_names, settled
from edge.slot_file import SlotFile
from edge.starts import FolderStarts, NothingToServe, Starts, StoreStarts
from release.errors import ReleaseError
from release.store import Store
from runtime.child import ChildSpec, Group

_UNUSABLE = f"exited with {UNUSABLE}"
_UNSTARTABLE = "exited with 71"  # edge.front.main.UNSTARTABLE, which is not imported for its weight
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
        whole = config.model_copy(update={"run_dir": run_dir.resolve()})
        with _alone_in(config.store_dir):
            launcher = Launcher(whole)
            for engine in launcher.engines:
                if len(str(engine.config.engine_socket).encode()) > _LONGEST_SOCKET:
                    raise OSError(f"run_dir {run_dir} is too long for a socket's path; use a shorter one")
            return asyncio.run(launcher.serve())
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


class ModelEngine:
    """One model's engine, kept running whenever there is something for it to serve. `run_dir` is settled."""

    def __init__(self, config: EdgeConfig, hopeless: Callable[[str], None]) -> None:
        """`hopeless` is told when it can never start. Raises ReleaseError when there is nothing to serve."""
        self.config, self._hopeless = config, hopeless
        self.name = f"engine {config.model}" if config.model else "engine"
        self.starts = _starts(config)
        self.group = Group("engine", self.specs, self._ready, self._changed)

    async def run(self) -> None:
        """Until cancelled."""
        told = False
        while True:
            while not await asyncio.to_thread(self.starts.there):
                if not told:
                    _log.info("%s: no release here yet: it starts when there is one", self.name)
                    told = True
                await asyncio.sleep(_LOOK_S)
            try:
                await self.group.run()
            except NothingToServe as error:
                _log.error("%s; waiting for another release", error)
                told = True

    def specs(self) -> Sequence[ChildSpec]:
        """What to start now. Raises NothingToServe."""
        config, start = self.config, self.starts.next()
        _make(config.engine_socket.parent)  # a cleaner of temporary files may have taken it since the last start
        for name in (config.engine_socket, config.engine_socket.with_name(REASON_NAME)):
            name.unlink(missing_ok=True)
        return [engine_spec(config, start)]

    async def _ready(self) -> None:
        """Returns once the engine listens; whether its model is loaded is the front's to ask."""
        async with asyncio.timeout(_READY_S):
            while True:
                try:
                    _, writer = await asyncio.open_unix_connection(str(self.config.engine_socket))
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                return

    def _changed(self, state: str, detail: str) -> None:
        _told(self.name, state, detail)
        if state == "down" and not self.starts.ended(detail, unusable=detail.endswith(_UNUSABLE)):
            self._hopeless(f"{self.name}: {detail}; see its message above")


class Launcher:
    """Runs all groups until told to stop. `config.run_dir` is settled."""

    def __init__(self, config: EdgeConfig) -> None:
        """Raises ReleaseError when there is nothing to serve."""
        self._config = config = settled(config, found_names(config))
        self._stopping = asyncio.Event()
        self._hopeless = ""
        self._left_out: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.engines = self._engines()
        self.front = Group("front", self._front_specs, self._front_ready, self._front_changed)

    def _engines(self) -> tuple[ModelEngine, ...]:
        made, faults = [], []
        for config in each(self._config):
            try:
                made.append(ModelEngine(config, partial(self._engine_hopeless, config.model)))
            except ReleaseError as error:
                faults.append(str(error))
        if not made:
            raise ReleaseError("; ".join(faults))
        for fault in faults:
            _log.error("a model is left out: %s", fault)
        return tuple(made)

    async def serve(self) -> int:
        """Returns the exit code: 0 after a signal, 1 when a part can never start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        engines = self._tasks = {e.config.model: asyncio.create_task(e.run()) for e in self.engines}
        front = asyncio.create_task(self.front.run())
        stop = asyncio.create_task(self._stopping.wait())
        waiting: set[asyncio.Task[Any]] = {front, stop, *engines.values()}
        while not stop.done() and not front.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task in done and not task.cancelled() for task in engines.values()):
                break
        for part in (front, *engines.values()):
            if part.done() and not part.cancelled():
                _log.error("the node ends", exc_info=part.exception())
        for group in ([stop], [front], list(engines.values())):
            for task in group:
                task.cancel()
            await asyncio.gather(*group, return_exceptions=True)
        if self._stopping.is_set():
            for engine in self.engines:
                engine.starts.stopped()
        if self._hopeless:
            _log.error("giving up: %s", self._hopeless)
        return 0 if self._stopping.is_set() and not self._hopeless else 1

    def _engine_hopeless(self, model: str, why: str) -> None:
        """One model that can never be served ends the node where it has no other."""
        self._left_out.add(model)
        if len(self._left_out) < len(self.engines):
            _log.error("%s: the other models go on without it", why)
            self._tasks[model].cancel()
            return
        self._hopeless = why
        self._stopping.set()

    def _front_specs(self) -> Sequence[ChildSpec]:
        _make(self._addresses.parent)
        self._addresses.unlink(missing_ok=True)
        config = self._config
        arguments = (sys.executable, "-m", "edge.front", config.to_json())
        return [ChildSpec("front", arguments, config.secrets(), withheld=SECRETS)]

    async def _front_ready(self) -> None:
        async with asyncio.timeout(_READY_S):
            while not self._addresses.exists():  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.05)

    def _front_changed(self, state: str, detail: str) -> None:
        _told("front", state, detail)
        if state == "down" and detail.endswith(_UNSTARTABLE):
            self._hopeless = f"front: {detail}; see its message above"
            self._stopping.set()

    @property
    def _addresses(self) -> Path:
        return self._config.engine_socket.with_name("front.json")


def _told(name: str, state: str, detail: str) -> None:
    _log.info("%s is %s%s", name, state, f": {detail}" if detail else "")
