"""A real engine process on a unix socket, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from edge.engine.config import EngineConfig
from runtime.child import PARENT_VARIABLE
from wire.deadline import Deadline
from wire.errors import Unavailable
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.messages import Delta, EngineStatus, Final, GenerateRequest, Message, Sampling
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
    process: asyncio.subprocess.Process
    inference: InferenceClient
    control: EngineControlClient
    config: EngineConfig

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

    async def until_ready(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.returncode is None:
            with contextlib.suppress(Unavailable):
                if (await self.status()).state == "ready":
                    return
            await asyncio.sleep(0.02)
        raise AssertionError(f"the engine did not become ready (exit code {self.process.returncode})")


async def spawn(config: EngineConfig, environment: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    variables = {**os.environ, PARENT_VARIABLE: str(os.getpid()), **(environment or {})}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "edge.engine", config.model_dump_json(), env=variables
    )


@asynccontextmanager
async def engine(release: Path, **settings: object) -> AsyncIterator[Engine]:
    """An engine over `release`, ready; ended when the block ends."""
    # Not pytest's folder: a unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        config = EngineConfig(socket=Path(folder) / "engine.sock", release_dir=release, **settings)  # type: ignore[arg-type]
        process = await spawn(config)
        target = f"unix:{config.socket}"
        running = Engine(process, InferenceClient(target), EngineControlClient(target), config)
        try:
            await running.until_ready()
            yield running
        finally:
            await running.inference.close()
            await running.control.close()
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 15)
            except TimeoutError:
                process.kill()
                await process.wait()
