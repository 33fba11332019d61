"""Ranks that die, ranks that hang, widths that cannot be sharded, heads that do not divide."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.cloud_process import Host, ask, engine_host, talkative_model
from wire.errors import Unavailable

LONG = 480


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talkative_model(tmp_path_factory.mktemp("cloud") / "model")


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    run_dir = tmp_path_factory.mktemp("pair")
    with engine_host(model, run_dir, tensor_parallel_size=2, heartbeat_timeout_s=4) as host:
        yield host


async def serving(host: Host) -> bool:
    async with grpc.aio.insecure_channel(host.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="weir.v1.Inference"), timeout=5)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_a_killed_rank_fails_its_requests_at_once_and_the_group_comes_back(pair: Host) -> None:
    async with pair.client() as client:
        assert await serving(pair)
        before = await client.status()
        request = asyncio.create_task(client.answer(ask(tokens=LONG)))
        await asyncio.sleep(0.3)
        os.kill(before.ranks[1].pid, signal.SIGKILL)
        killed_at = time.monotonic()
        with pytest.raises(Unavailable, match="they are restarted"):
            await request
        assert time.monotonic() - killed_at < 2.0
        # The host may see its ranks' socket break a moment before it sees their deaths.
        with pytest.raises(Unavailable, match=r"down|starting|restarted"):
            await client.answer(ask())
        while await serving(pair):
            assert time.monotonic() - killed_at < 2.0
            await asyncio.sleep(0.02)
        after = await client.until_ready(restarts=before.restarts + 1)
        assert not {rank.pid for rank in before.ranks} & {rank.pid for rank in after.ranks}
        assert (await client.answer(ask())).final.usage.completion_tokens == 24
        assert await serving(pair)


async def test_a_stopped_rank_is_noticed_by_its_silence(pair: Host) -> None:
    async with pair.client() as client:
        before = await client.status()
        request = asyncio.create_task(client.answer(ask(tokens=LONG)))
        await asyncio.sleep(0.3)
        os.kill(before.ranks[1].pid, signal.SIGSTOP)
        with pytest.raises(Unavailable):
            await request
        await client.until_ready(restarts=before.restarts + 1)
        assert (await client.answer(ask())).final.usage.completion_tokens == 24
    assert "gave no sign of life" in pair.log.read_text()


async def test_a_host_that_is_killed_leaves_no_ranks(model: Path, tmp_path: Path) -> None:
    with engine_host(model, tmp_path / "run") as host:
        async with host.client() as client:
            (rank,) = (await client.status()).ranks
        host.process.kill()
        host.process.wait()
        end = time.monotonic() + 5
        while psutil.pid_exists(rank.pid) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        assert not psutil.pid_exists(rank.pid)


async def test_packed_widths_answer_on_one_rank(model: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        hosts = {
            name: stack.enter_context(engine_host(model, tmp_path / name, precision=name)) for name in ("int8", "nf4")
        }
        held, finals = {}, {}
        for name, host in hosts.items():
            async with host.client() as client:
                finals[name] = (await client.answer(ask())).final
                (rank,) = (await client.status()).ranks
                held[name] = rank.parameter_bytes
    assert (finals["int8"].precision, finals["int8"].weight_format) == (8, "bnb-int8")
    assert (finals["nf4"].precision, finals["nf4"].weight_format) == (4, "bnb-nf4")
    assert finals["int8"].weight_digest != finals["nf4"].weight_digest
    assert held["nf4"] < held["int8"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "int8", "tensor_parallel_size": "2"}, "int8 weights are packed per layer"),
        ({"precision": "nf4", "tensor_parallel_size": "2"}, "use tensor_parallel_size = 1, or precision float32"),
        ({"model_dir": "/nonexistent"}, "holds no readable config.json"),
        ({"precision": "int3"}, "precision = 'int3'"),
    ],
)
def test_what_can_never_run_is_refused_with_the_reason(model: Path, settings: dict[str, str], message: str) -> None:
    environment = {
        **os.environ,
        "WEIR_ENGINE__MODEL_DIR": str(model),
        **{f"WEIR_ENGINE__{key.upper()}": value for key, value in settings.items()},
    }
    done = subprocess.run(
        [sys.executable, "-m", "cloud.host"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr


def test_host_and_gateway_import_no_torch() -> None:
    code = (
        "import sys, cloud.host.main, cloud.gateway.main; "
        "sys.exit(bool({'torch', 'transformers', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
