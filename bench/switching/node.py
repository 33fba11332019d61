"""An edge node over a folder of releases, in processes of its own, as the launcher starts it.

It has no upstream and never plans its precision, so that only the benchmark changes what it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, write
from runtime.child import PARENT_VARIABLE
from wire.deadline import Deadline
from wire.errors import WeirError
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.service import Call

_START_S, _STOP_S, _POLL_S = 120.0, 15.0, 0.1
_NEVER_S = 86_400
_LOG_BYTES = 2000


class NodeFailed(Exception):
    """The node did not start, or ended."""


@dataclass(frozen=True, slots=True)
class Node:
    """A running node that serves: its front as clients see it, and the control of its engine."""

    inference: InferenceClient
    control: EngineControlClient
    engine_pid: int
    front_pid: int
    grpc: str  # host:port
    http: str  # host:port

    def resident_bytes(self) -> int:
        """What the engine process takes now, mapped files included."""
        return int(psutil.Process(self.engine_pid).memory_info().rss)


def second_release(first: Path, folder: Path) -> Path:
    """The same weights under another version: what is compared is the change, not the weights."""
    folder.mkdir(parents=True)
    manifest = read_manifest(first)
    for entry in manifest.files:
        (folder / entry.name).symlink_to((first / entry.name).resolve())
    later = dataclasses.replace(manifest, version=f"{manifest.version.split('-')[0]}-again")
    (folder / MANIFEST_NAME).write_text(write(later), encoding="utf-8")
    return folder


@asynccontextmanager
async def node(
    releases: Path,
    *,
    slots: int,
    threads: int,
    memory_budget_bytes: int | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> AsyncIterator[Node]:
    """Starts a node at 4 bits and stops it after the block; `more` are further settings. Raises NodeFailed."""
    # Not in the folder of releases: the path of a unix socket has at most 107 bytes.
    run_dir = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    settings = {
        "releases_dir": releases,
        "run_dir": run_dir,
        "http_address": "127.0.0.1:0",
        "grpc_address": "127.0.0.1:0",
        "precision": 4,
        "precision_interval_s": _NEVER_S,
        "slots": slots,
        "threads": threads,
        "context_length": 512,
        **({} if memory_budget_bytes is None else {"memory_budget_bytes": memory_budget_bytes}),
        **more,
    }
    launcher = _launch(run_dir, settings)
    try:
        async with _clients(launcher, run_dir) as running:
            yield running
    finally:
        launcher.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(launcher.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
        shutil.rmtree(run_dir, ignore_errors=True)


def _launch(run_dir: Path, settings: Mapping[str, object]) -> subprocess.Popen[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    with (run_dir / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "edge", *(f"{name}={value}" for name, value in settings.items())],
            stdout=log,
            stderr=log,
            env={**clean, PARENT_VARIABLE: str(os.getpid())},
        )


@asynccontextmanager
async def _clients(launcher: subprocess.Popen[bytes], run_dir: Path) -> AsyncIterator[Node]:
    control = EngineControlClient(f"unix:{run_dir / 'engine.sock'}")
    try:
        pid, addresses = await _started(launcher, run_dir, control)
        inference = InferenceClient(str(addresses["grpc"]))
        try:
            await _heard(inference)
            front = int(addresses["pid"])
            yield Node(inference, control, pid, front, str(addresses["grpc"]), str(addresses["http"]))
        finally:
            await inference.close()
    finally:
        await control.close()


async def _heard(front: InferenceClient) -> None:
    """Returns once the front has heard of its engine: until then it refuses."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with contextlib.suppress(WeirError):
            if (await front.describe(Call(Deadline.after(2.0)))).ready:
                return
        await asyncio.sleep(_POLL_S)
    raise NodeFailed("the node's front did not hear of its engine")


async def _started(
    launcher: subprocess.Popen[bytes], run_dir: Path, control: EngineControlClient
) -> tuple[int, dict[str, str | int]]:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and launcher.poll() is None:
        with contextlib.suppress(WeirError, OSError, ValueError):
            addresses = json.loads((run_dir / "front.json").read_text())
            status = await control.status(Call(Deadline.after(2.0)))
            if status.state == "ready":
                return status.pid, addresses
        await asyncio.sleep(_POLL_S)
    raise NodeFailed(f"the node did not start; the end of its log:\n{(run_dir / 'log').read_text()[-_LOG_BYTES:]}")
