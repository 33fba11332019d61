"""A real engine process on a unix socket, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from edge.engine.config import EngineConfig
from runtime.child import PARENT_VARIABLE
from wire.deadline import Deadline
from wire.engine import EngineStatus
from wire.errors import Unavailable
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.messages import Delta, Final, GenerateRequest, Message, Sampling
from wire.service import Call

START_S = 60.0


def call(seconds: float = 30.0) -> Call:
    return Call(Deadline.after(seconds))


def ask(text: str = "Where is my parcel?", tokens: int = 8, **more: object) -> GenerateRequest:
    return GenerateRequest(messages=(Message("user", text),), sampling=Sampling(max_tokens=tokens), **more)  # type: ignore[arg-type]


@dataclass
class Answer:
    """What came, and when: seconds since the request was sent."""

    text: str
    deltas: list[Delta]
    at: list[float]
    final: Final
    total_s: float


@dataclass
class Engine:
    """One running process and clients for it."""

    process: subprocess.Popen[bytes]
    config: EngineConfig
    inference: InferenceClient
    control: EngineControlClient

    async def answer(self, request: GenerateRequest, seconds: float = 30.0) -> Answer:
        began = time.monotonic()
        deltas, at, final = [], [], None
        async for event in self.inference.generate(request, call(seconds)):
            if isinstance(event, Delta):
                deltas.append(event)
                at.append(time.monotonic() - began)
            elif isinstance(event, Final):
                final = event
        assert final is not None, "every answer ends with a Final"
        return Answer("".join(d.text for d in deltas), deltas, at, final, time.monotonic() - began)

    async def status(self) -> EngineStatus:
        return await self.control.status(call(5))

    async def exit_code(self, within_s: float = 10.0) -> int:
        return await asyncio.to_thread(self.process.wait, within_s)


def start(config: EngineConfig, module: str = "edge.engine") -> subprocess.Popen[bytes]:
    """An engine process, not yet ready."""
    variables = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    return subprocess.Popen([sys.executable, "-m", module, config.model_dump_json()], env=variables)


@contextmanager
def process(
    release: Path, module: str = "edge.engine", **settings: object
) -> Iterator[tuple[subprocess.Popen[bytes], EngineConfig]]:
    """An engine process over `release`; ended when the block ends. See `connected`."""
    # Not pytest's folder: a unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        config = EngineConfig(socket=Path(folder) / "engine.sock", release_dir=release, **settings)  # type: ignore[arg-type]
        running = start(config, module)
        try:
            yield running, config
        finally:
            running.terminate()
            try:
                running.wait(15)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


@asynccontextmanager
async def connected(running: tuple[subprocess.Popen[bytes], EngineConfig]) -> AsyncIterator[Engine]:
    """Clients for an engine process, once it is ready."""
    target = f"unix:{running[1].socket}"
    inference, control = InferenceClient(target), EngineControlClient(target)
    try:
        engine = Engine(*running, inference, control)
        await _until_ready(engine)
        yield engine
    finally:
        await inference.close()
        await control.close()


@asynccontextmanager
async def engine(release: Path, module: str = "edge.engine", **settings: object) -> AsyncIterator[Engine]:
    """An engine process of its own, ready."""
    with process(release, module, **settings) as running:
        async with connected(running) as engine:
            yield engine


async def _until_ready(engine: Engine) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and engine.process.poll() is None:
        with contextlib.suppress(Unavailable):
            if (await engine.status()).state in ("ready", "draining"):
                return
        await asyncio.sleep(0.02)
    raise AssertionError(f"the engine did not become ready (exit code {engine.process.returncode})")
