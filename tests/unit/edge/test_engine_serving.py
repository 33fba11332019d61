"""What an engine process does about a release that cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge.engine import serving
from edge.engine.endings import BROKEN, REASON_NAME, SHORT, UNUSABLE
from wire.errors import NotFound, Overloaded


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        (NotFound("no such release"), UNUSABLE, "no such release"),
        (Overloaded("too little memory"), SHORT, "too little memory"),
        (KeyError("nobody foresaw this"), BROKEN, ""),
    ],
)
async def test_every_way_a_load_may_fail_ends_the_process(
    tmp_path: Path, fault: Exception, code: int, reason: str
) -> None:
    codes, states = list[int](), list[bool]()

    async def load() -> None:
        raise fault

    async def said(serving: bool) -> None:
        states.append(serving)

    place = SimpleNamespace(socket=tmp_path / "engine.sock", default_deadline_s=1.0)
    service, health = SimpleNamespace(load=load), SimpleNamespace(set=said)
    await serving._load(place, cast(Any, service), cast(Any, health), codes.append)
    assert (codes, states) == ([code], [])
    told = tmp_path / REASON_NAME
    assert (told.read_text() if told.exists() else "") == reason
