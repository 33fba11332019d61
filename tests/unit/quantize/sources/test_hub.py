"""Models from a hub: the real client code against a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantize.sources.cache import Cache
from quantize.sources.errors import BadModel, NoNetwork, UnknownArchitecture, UnknownModel, WrongHash
from quantize.sources.hub import Hub, NoAnswer, Refused, chosen
from quantize.sources.resolve import Sources, resolve
from tests.fakes import hub as fake
from tests.fakes.file_server import FileServer
from tests.fakes.progress import Recorder
from tests.models import tiny_llama_folder

MODEL = "org/tiny-llama"
WEIGHTS = fake.file_path(MODEL, "model.safetensors")
PULL = "import sys; from quantize.sources.resolve import resolve; resolve(sys.argv[1])"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_folder(tmp_path_factory.mktemp("source") / "tiny-llama")


@pytest.fixture
def server(tiny: Path) -> Iterator[FileServer]:
    with FileServer().running() as running:
        fake.add_model(running, MODEL, tiny)
        yield running


def environment(server: FileServer, cache: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": server.url, "WEIR_CACHE": str(cache), "WEIR_MIRRORS": "off"}


def test_a_hub_id_becomes_a_folder_with_its_provenance(server: FileServer, tiny: Path, tmp_path: Path) -> None:
    progress = Recorder()
    source = resolve(MODEL, progress, environment(server, tmp_path))
    assert source.folder == tmp_path / "models" / "org--tiny-llama"
    assert (source.folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert (source.licence, source.origin) == ("apache-2.0", f"hub: {MODEL}@{fake.COMMIT[:12]}")
    stated = json.loads((source.folder / "source.json").read_text())
    assert (stated["sha256"], stated["licence"]) == (source.sha256, "apache-2.0")
    assert stated["date"].endswith("+00:00")
    task = "download org--tiny-llama"
    assert progress.totals[task] == progress.done[task] > 0
    assert any("licence apache-2.0" in note for note in progress.notes)
    assert any(source.sha256 in note for note in progress.notes)
    assert not list((tmp_path / "downloads").iterdir())


def test_the_second_time_nothing_is_asked(server: FileServer, tmp_path: Path) -> None:
    first = resolve(MODEL, None, environment(server, tmp_path))
    asked = len(server.seen)
    assert resolve(MODEL, None, environment(server, tmp_path)) == first
    assert len(server.seen) == asked


def test_a_line_that_breaks_is_taken_up_where_it_broke(server: FileServer, tmp_path: Path) -> None:
    server.cut[WEIGHTS] = 100_000
    source = resolve(MODEL, None, environment(server, tmp_path))
    size = (source.folder / "model.safetensors").stat().st_size
    first, second = server.requests("model.safetensors")
    assert (first.sent, second.first, second.sent) == (100_000, 100_000, size - 100_000)


def test_a_killed_pull_goes_on_from_where_it_was(server: FileServer, tmp_path: Path) -> None:
    server.hold[WEIGHTS] = 100_000
    settings = {**os.environ, **environment(server, tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PULL, MODEL], env=settings) as pull:
        assert server.held.wait(30)
        part = tmp_path / "downloads" / "org--tiny-llama" / f"hub-{fake.COMMIT[:12]}" / "model.safetensors.part"
        ends = time.monotonic() + 10
        while not (part.exists() and part.stat().st_size == 100_000) and time.monotonic() < ends:
            time.sleep(0.02)
        pull.kill()
    server.released.set()
    assert not (tmp_path / "models").exists()
    source = resolve(MODEL, None, environment(server, tmp_path))
    size = (source.folder / "model.safetensors").stat().st_size
    last = server.requests("model.safetensors")[-1]
    assert (last.first, last.sent) == (100_000, size - 100_000)
    assert len(server.requests("/config.json")) == 1


def test_a_server_without_range_sends_it_all_again(server: FileServer, tiny: Path, tmp_path: Path) -> None:
    server.plain = True
    server.cut[WEIGHTS] = 100_000
    progress = Recorder()
    source = resolve(MODEL, progress, environment(server, tmp_path))
    assert (source.folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert progress.done["download org--tiny-llama"] == progress.totals["download org--tiny-llama"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_bytes_that_were_not_promised_are_removed(server: FileServer, tmp_path: Path, name: str) -> None:
    right = server.files[fake.file_path(MODEL, name)]
    server.files[fake.file_path(MODEL, name)] = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(WrongHash, match=f"{name} is not the file that was promised"):
        resolve(MODEL, None, environment(server, tmp_path))
    assert not (tmp_path / "models").exists()
    assert not list((tmp_path / "downloads").rglob(f"{name}*"))
    server.files[fake.file_path(MODEL, name)] = right
    assert resolve(MODEL, None, environment(server, tmp_path)).folder.is_dir()


def test_an_unknown_family_is_refused_before_its_weights_are_fetched(
    server: FileServer, tiny: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    for file in tiny.iterdir():
        (odd / file.name).write_bytes(file.read_bytes())
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    fake.add_model(server, "org/odd", odd)
    with pytest.raises(UnknownArchitecture, match=r"MambaForCausalLM.*LlamaForCausalLM, Qwen2ForCausalLM"):
        resolve("org/odd", None, environment(server, tmp_path / "cache"))
    assert not server.requests("org/odd/resolve/" + fake.COMMIT + "/model.safetensors")


def test_pickled_weights_are_not_loaded(server: FileServer, tiny: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_bytes((tiny / "config.json").read_bytes())
    (pickled / "pytorch_model.bin").write_bytes(b"pickle")
    fake.add_model(server, "org/pickled", pickled)
    with pytest.raises(BadModel, match="pickled weights are not loaded"):
        resolve("org/pickled", None, environment(server, tmp_path / "cache"))


@pytest.mark.parametrize(
    ("status", "told"), [(404, "check the spelling"), (401, "HF_TOKEN"), (403, "accept its terms")]
)
def test_a_hub_that_says_no_is_quoted(server: FileServer, tmp_path: Path, status: int, told: str) -> None:
    server.status[fake.api_path(MODEL)] = status
    with pytest.raises(UnknownModel, match=told):
        resolve(MODEL, None, environment(server, tmp_path))


def test_a_hub_that_is_silent_is_left_in_time(tmp_path: Path) -> None:
    with FileServer(mute=True).running() as server:
        began = time.monotonic()
        with pytest.raises(NoAnswer, match=r"no hub answered"):
            Hub(server.url, answer_within_s=0.4).look_up(MODEL)
        assert time.monotonic() - began < 1.5
    assert Hub(server.url)._within_s == 5.0


def test_a_hub_id_without_a_hub_says_what_else_there_is(tmp_path: Path) -> None:
    sources = Sources(cache=Cache(tmp_path), hub=Hub("http://127.0.0.1:9"))
    with pytest.raises(NoNetwork, match=r"HF_ENDPOINT.*smollm2-135m-instruct"):
        sources.resolve("org/anything")
    assert not (tmp_path / "models").exists()


def test_what_is_no_hub_counts_as_no_answer(server: FileServer) -> None:
    server.files[fake.api_path("org/portal")] = b"<!DOCTYPE html>please sign in"
    with pytest.raises(NoAnswer, match="not a hub"):
        Hub(server.url).look_up("org/portal")
    with pytest.raises(Refused):
        Hub(server.url).look_up("org/none")


def test_a_server_that_is_busy_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    path = fake.file_path(MODEL, "tokenizer.json")
    server.busy[path] = 2
    assert resolve(MODEL, None, environment(server, tmp_path)).folder.is_dir()
    assert path not in server.busy


def test_a_hub_with_several_gguf_files_is_asked_for_one(server: FileServer, tmp_path: Path) -> None:
    folder = tmp_path / "ggufs"
    folder.mkdir()
    for name in ("a-Q4_0.gguf", "a-Q8_0.gguf", "README.md"):
        (folder / name).write_bytes(b"x")
    fake.add_model(server, "org/ggufs", folder)
    repository = Hub(server.url).look_up("org/ggufs")
    assert [file.name for file in chosen(repository, "a-Q8_0.gguf")] == ["a-Q8_0.gguf"]
    with pytest.raises(BadModel, match=r"several GGUF files; name one as org/ggufs:FILE, of a-Q4_0.gguf, a-Q8_0.gguf"):
        resolve("org/ggufs", None, environment(server, tmp_path / "cache"))
    with pytest.raises(BadModel, match=r"holds no b.gguf; its GGUF files: a-Q4_0.gguf, a-Q8_0.gguf"):
        resolve("org/ggufs:b.gguf", None, environment(server, tmp_path / "cache"))
    with pytest.raises(BadModel, match=r"a-Q4_0.gguf is not a GGUF file"):
        resolve("org/ggufs:a-Q4_0.gguf", None, environment(server, tmp_path / "cache"))
