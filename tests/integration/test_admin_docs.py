"""The examples of docs/admin.md, run as they stand there against a real admin."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from cloud.admin.main import AdminServer
from cloud.config import AdminConfig
from cloud.state.open import open_store
from tests.fakes.releases import write_release

GUIDE = Path(__file__).parents[2] / "docs" / "admin.md"
TOKEN = "a-token-for-the-examples"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_examples_of_the_guide_work(tmp_path: Path) -> None:
    write_release(tmp_path / "releases" / "tiny-1.0.0")
    store = open_store(f"sqlite:///{tmp_path}/state.db")
    config = AdminConfig(address="127.0.0.1:0", token=TOKEN, releases_dir=tmp_path / "releases")  # type: ignore[arg-type]
    server = AdminServer(config, store)
    await server.start()
    environment = {**os.environ, "ADMIN": f"http://{server.address}", "TOKEN": TOKEN}
    examples = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    answers = []
    for example in examples:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", example), env=environment, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            out, _ = await process.communicate()
        assert process.returncode == 0, example
        answers.append(out.decode())
    await server.stop()
    assert len(examples) == 6
    assert json.loads(answers[0])["status"] == "ok"
    assert json.loads(answers[4])["by"] == "anna"
    assert json.loads(answers[5]) == json.loads(answers[4]), "activating what is active changes nothing"
