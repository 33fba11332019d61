"""Real engine hosts and gateways as processes, for tests. Nothing is left behind when a test run dies."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runtime.child import PARENT_VARIABLE
from tests.models import tiny_llama_folder
from wire.deadline import Deadline
from wire.engine import EngineStatus
from wire.errors import WeirError
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.messages import Committed, Delta, Final, GenerateEvent, GenerateRequest, Message, Sampling
from wire.service import Call

START_S = 90.0
EOS = 2


def soon(seconds: float = 30.0) -> Call:
    return Call(Deadline.after(seconds))


def ask(text: str = "Where is my parcel?", tokens: int = 24, **more: object) -> GenerateRequest:
    return GenerateRequest(messages=(Message("user", text),), sampling=Sampling(max_tokens=tokens), **more)  # type: ignore[arg-type]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def talkative_model(folder: Path) -> Path:
    """A random Llama whose greedy answers never end by themselves, so that lengths are known."""
    from safetensors.torch import load_file, save_file

    tiny_llama_folder(folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][EOS] = 0.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@contextmanager
def running(module: str, section: str, settings: dict[str, object], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m module` with `settings` in its environment, until the block ends."""
    environment = {
        **os.environ,
        **{f"WEIR_{section}__{key.upper()}": str(value) for key, value in settings.items()},
        PARENT_VARIABLE: str(os.getpid()),
    }
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", module], env=environment, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Answer:
    """What came and when: seconds since the request was sent."""

    events: list[GenerateEvent] = field(default_factory=list)
    first_delta_s: float = 0.0
    total_s: float = 0.0

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def final(self) -> Final:
        assert isinstance(self.events[0], Committed)
        (final,) = (event for event in self.events if isinstance(event, Final))
        return final


@dataclass
class Client:
    inference: InferenceClient
    control: EngineControlClient

    async def answer(self, request: GenerateRequest, seconds: float = 30.0) -> Answer:
        answer, began = Answer(), time.monotonic()
        async for event in self.inference.generate(request, soon(seconds)):
            answer.events.append(event)
            if isinstance(event, Delta) and not answer.first_delta_s:
                answer.first_delta_s = time.monotonic() - began
        answer.total_s = time.monotonic() - began
        return answer

    async def status(self) -> EngineStatus:
        return await self.control.status(soon(5.0))

    async def until_ready(self, restarts: int = 0) -> EngineStatus:
        """Waits until the group serves and has been restarted at least so often."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                status = await self.status()
                if status.state == "ready" and status.restarts >= restarts:
                    return status
            except WeirError:
                pass
            await asyncio.sleep(0.05)
        raise TimeoutError("the engine host did not become ready")


@dataclass
class Host:
    """An engine host process; clients belong to one test's event loop."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]

    @asynccontextmanager
    async def client(self, restarts: int = 0) -> AsyncIterator[Client]:
        client = Client(InferenceClient(self.address), EngineControlClient(self.address))
        try:
            await client.until_ready(restarts)
            yield client
        finally:
            await client.inference.close()
            await client.control.close()


@contextmanager
def engine_host(model_dir: Path, run_dir: Path, **settings: object) -> Iterator[Host]:
    """An engine host for `model_dir`, started but perhaps not ready yet."""
    address = f"127.0.0.1:{free_port()}"
    run_dir.mkdir(parents=True, exist_ok=True)
    everything = {
        "model_dir": model_dir,
        "address": address,
        "name": "tiny",
        "precision": "float32",
        "context_length": 512,
        "max_output_tokens": 480,
        "heartbeat_s": 0.25,
        "run_dir": run_dir,
        **settings,
    }
    log = run_dir / "host.log"
    with running("cloud.host", "ENGINE", everything, log) as process:
        yield Host(address, log, process)
