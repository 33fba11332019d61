"""What a server, an address or the environment can do to a source: always a FetchFailed, which costs no loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge.updater.ledger import Ledger
from edge.updater.sources import HttpSource
from edge.updater.status import Status
from release.trust.errors import FetchFailed
from tests.fakes.repository import NOON


async def asked(url: str) -> None:
    source = HttpSource(url)
    try:
        await source.get("metadata/timestamp.json", 1000)
    finally:
        await source.close()


async def test_a_port_that_is_none_is_a_failed_fetch() -> None:
    with pytest.raises(FetchFailed, match="0-65535"):
        await asked("http://127.0.0.1:99999")


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1", "http://127.0.0.1:99999"])
async def test_a_proxy_that_is_none_is_a_failed_fetch(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(FetchFailed, match=r"prox|port"):
        await asked("http://releases.invalid")


@pytest.mark.parametrize("sent", ["bytes 0-" + "9" * 5000 + "/*", "bytes 0-9/" + "9" * 5000, "bytes \u0660-\u0669/*"])
async def test_a_range_of_absurd_numbers_is_a_failed_fetch(sent: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 206 Partial\r\nContent-Range: {sent}\r\nContent-Length: 10\r\n\r\n"
        writer.write(head.encode() + b"0123456789")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    source = HttpSource(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(FetchFailed, match="without a range"):
        async for _ in source.read("objects/aa/x", 0, 10, 100):
            pass
    await source.close()
    server.close()


@pytest.mark.parametrize("content", ['{"day": "2026-03-01", "bytes": 1e999}', "[" * 100_000, "[]", "{}", ""])
def test_a_ledger_that_cannot_be_read_is_nothing_spent(content: str, tmp_path: Path) -> None:
    (tmp_path / "spent.json").write_text(content)
    assert Ledger(tmp_path / "spent.json", lambda: NOON).spent_today == 0


def test_an_empty_node_says_why_it_fetches_nothing() -> None:
    assert Status(plan="budget_spent: more tomorrow").line == "budget_spent: more tomorrow"
    assert Status(plan="complete: all is here", held={"tiny@1": (4,)}).line == ""
