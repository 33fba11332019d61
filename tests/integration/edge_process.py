"""An edge node as users start it: the launcher in a process of its own, on free ports."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, Calibration, Manifest, write
from router.confidence import FEATURES

_START_S = 60.0


@dataclass(frozen=True)
class EdgeProcess:
    """A running node. `log` is what all of its processes wrote."""

    launcher: subprocess.Popen[bytes]
    run_dir: Path
    http: str
    grpc: str
    log: Path

    def child(self, name: str) -> psutil.Process:
        """The engine or front process that runs now."""
        for process in psutil.Process(self.launcher.pid).children():
            if f"edge.{name}" in process.cmdline():
                return process
        raise LookupError(f"no {name} process")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.launcher.pid).children(recursive=True)

    def wait_ready(self, precision: int | None = None, release: str = "") -> None:
        """Returns once the engine serves (at that precision, with that release)."""

        def there() -> bool:
            served = self.served()
            return (
                bool(served)
                and httpx.get(f"{self.http}/readyz").status_code == 200
                and precision in (None, served.get("precision"))
                and release in ("", served.get("release"))
            )

        until(there, _START_S, lambda: self.log.read_text()[-4000:])

    def served(self) -> dict[str, object]:
        """The `weir` part of the first model; empty while nothing is served."""
        try:
            data = httpx.get(f"{self.http}/v1/models").json()["data"]
        except httpx.TransportError:
            return {}
        return dict(data[0]["weir"]) if data else {}


def until(condition: object, seconds: float, explain: object = None) -> None:
    """Waits for `condition()`. Raises AssertionError with `explain()`."""
    assert callable(condition)
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise AssertionError(f"not within {seconds} s: {explain() if callable(explain) else ''}")
        time.sleep(0.05)


@contextmanager
def edge_process(releases_dir: Path, **settings: object) -> Iterator[EdgeProcess]:
    """Starts a node, yields it once it answers, and stops it with SIGTERM."""
    run_dir = Path(tempfile.mkdtemp(prefix="weir-test-"))
    log = run_dir / "log"
    given = {
        "releases_dir": releases_dir,
        "run_dir": run_dir,
        "http_address": "127.0.0.1:0",
        "grpc_address": "127.0.0.1:0",
        "threads": 1,
        "context_length": 512,
        **settings,
    }
    with log.open("wb") as sink:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "edge", *(f"{key}={value}" for key, value in given.items())],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"},
        )
    try:
        file = run_dir / "front.json"
        until(lambda: file.exists() or launcher.poll() is not None, _START_S, log.read_text)
        assert launcher.poll() is None, log.read_text()
        addresses = json.loads(file.read_text())
        node = EdgeProcess(launcher, run_dir, f"http://{addresses['http']}", addresses["grpc"], log)
        node.wait_ready()
        yield node
    finally:
        launcher.send_signal(signal.SIGTERM)
        try:
            launcher.wait(20)
        except subprocess.TimeoutExpired:
            launcher.kill()
            raise
        finally:
            shutil.rmtree(run_dir, ignore_errors=True)


def calibrated_release(source: Path, folder: Path, version: str, confidence_logit: float) -> Manifest:
    """A copy of a release whose calibrators say the same of every answer. `folder` must be new."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name != MANIFEST_NAME:
            (folder / file.name).symlink_to(file)
    width = len(FEATURES)
    calibrations = tuple(
        Calibration(
            id=f"{version}-{bits}-{rule}",
            precision=bits,
            cpu_class="any",
            commit_rule=rule,
            mean=(0.0,) * width,
            scale=(1.0,) * width,
            coefficients=(0.0,) * width,
            intercept=confidence_logit,
            threshold=0.5,
            features=FEATURES,
            n=100,
            n_agree=50,
            auroc=None,
            max_disagreement=0.1,
            escalation_share=0.3,
        )
        for bits in (4, 8)
        for rule in ("end", "prefix:8")
    )
    manifest = dataclasses.replace(read_manifest(source), version=version, calibrations=calibrations)
    (folder / MANIFEST_NAME).write_text(write(manifest))
    return read_manifest(folder)
