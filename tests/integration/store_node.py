"""A node that updates itself, as processes over a store that outlives them, and a repository for it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil

from release.manifest import MANIFEST_NAME, Manifest, graph_name
from release.repository.publish import publish, withdraw
from tests.fakes.repository import Site
from tests.fakes.small_chunks import in_small_chunks
from tests.integration.edge_process import until

START_S = 60.0
MESSAGES: list[Any] = [{"role": "user", "content": "Where is my parcel?"}]


@dataclasses.dataclass
class Registry:
    """A signed repository in `folder`, with releases in small chunks. Its clock is the present."""

    folder: Path
    tiny: Path

    def __post_init__(self) -> None:
        from datetime import UTC, datetime

        self.folder.mkdir(parents=True)
        self.site = Site(self.folder, datetime.now(UTC))
        self.root = self.folder / "root.json"
        self.root.write_bytes(self.site.first_root)

    @property
    def repository(self) -> Path:
        return self.site.repository

    def publish(self, version: str, source: Path | None = None, chunk_bytes: int = 16 << 10) -> Manifest:
        folder = self.folder / "built" / version
        manifest = in_small_chunks(source or self.tiny, folder, version, chunk_bytes)
        publish(self.site.desk, folder, allow_unmeasured=True)
        return manifest

    def broken(self, version: str) -> Path:
        """A copy of the release whose 4-bit graph is none, and signed for all that."""
        folder = self.folder / "broken" / version
        shutil.copytree(self.tiny, folder)
        (folder / graph_name(4)).write_bytes(b"this is no graph")
        return folder

    def manifest_bytes(self, manifest: Manifest) -> int:
        return (self.folder / "built" / manifest.version / MANIFEST_NAME).stat().st_size

    def withdraw(self, release: str) -> None:
        withdraw(self.site.desk, release)


class StoreNode:
    """`folder` is its own and holds store/, run/ and log. `settings` override the usual ones."""

    def __init__(self, folder: Path, registry: Registry, place: str, **settings: object) -> None:
        self.folder = folder
        self.given: dict[str, object] = {
            "store_dir": folder / "store",
            "run_dir": folder / "run",
            "repository": place,
            "trusted_root": registry.root,
            "http_address": "127.0.0.1:0",
            "grpc_address": "127.0.0.1:0",
            "threads": 1,
            "context_length": 256,
            "update_interval_s": 0.5,
            "keep_free_bytes": 0,
            "bandwidth_share": 1.0,
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text() if file.exists() else ""

    def start(self, *, wait: bool = True) -> StoreNode:
        """Returns once the front listens, with `wait`."""
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        self._announced.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edge", *(f"{key}={value}" for key, value in self.given.items())],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"},
            )
        if wait:
            self.until(self._announced.exists)
        return self

    def kill(self) -> None:
        """All of it at once, as a power cut would."""
        if self._process is None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        psutil.wait_procs(children, 10)
        self._process = None

    def ended(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> int:
        """With SIGTERM; the exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(20)
        finally:
            self._process.kill()
            self._process = None

    def __enter__(self) -> StoreNode:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder / "run", ignore_errors=True)

    def until(self, condition: object, seconds: float = START_S) -> None:
        """Waits; the node must live meanwhile."""
        assert callable(condition)

        def met() -> bool:
            assert self._process is None or self._process.poll() is None, self.log[-4000:]
            return bool(condition())

        until(met, seconds, lambda: self.log[-6000:])

    def child(self, name: str) -> psutil.Process | None:
        assert self._process is not None
        found = psutil.Process(self._process.pid).children()
        return next((process for process in found if f"edge.{name}" in process.cmdline()), None)

    @property
    def http(self) -> str:
        return f"http://{json.loads(self._announced.read_text())['http']}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.http}{path}", timeout=10)

    def ask(self, **fields: Any) -> httpx.Response:
        body = {"model": "", "messages": MESSAGES, "max_tokens": 4, "weir": {"constraint": "edge_only"}, **fields}
        return httpx.post(f"{self.http}/v1/chat/completions", json=body, timeout=30)

    def served(self) -> dict[str, Any]:
        """What answered just now; empty when nothing did."""
        try:
            answer = self.ask()
        except (httpx.TransportError, OSError, KeyError, ValueError):
            return {}
        return dict(answer.json()["weir"]) if answer.is_success else {}

    def serves(self, release: str, precision: int | None = None) -> bool:
        served = self.served()
        return served.get("release") == release and precision in (None, served.get("precision"))

    def slots(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.store / "slots.json").read_text())["models"].get("tiny", {}))
        except (OSError, ValueError):
            return {}

    def status(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.store / "status.json").read_text()))
        except (OSError, ValueError):
            return {}

    def events(self, name: str) -> list[dict[str, Any]]:
        """Those of that name in the log, in order."""
        lines = (line.partition(" INFO ")[2] for line in self.log.splitlines() if "weir.edge.events INFO" in line)
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def wait_gone(self, release: str, seconds: float = START_S) -> None:
        self.until(lambda: not (self.store / "releases" / release).exists(), seconds)

    @property
    def _announced(self) -> Path:
        return self.folder / "run" / "front.json"
