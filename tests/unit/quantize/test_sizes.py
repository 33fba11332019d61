"""A model is sized before it is fetched or built, from its config, and comes out as the release will."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantize.encoder.build import build_classifier, compensating
from quantize.errors import UnsupportedArchitecture
from quantize.sizes import expected_manifest
from quantize.sources.catalogue import shipped
from quantize.sources.errors import NoNetwork, SourceError, UnknownModel
from quantize.sources.look import look
from quantize.speed import expected_per_s, probe, weights_per_step
from release.folder import open_release
from release.manifest import BASE, PLANE_HI, PLANE_LO
from runtime.ort.steady import engine_bytes, kv_bytes_per_token, peak_bytes, session_bytes
from tests import releases
from tests.fakes import hub as fake
from tests.fakes.file_server import FileServer
from tests.models import FAMILY_SETTINGS, tiny_encoder_folder, tiny_qwen2_folder
from tests.tiny_gguf import write_qwen2_gguf
from tests.unit.quantize.test_encoder import write_items

_PADDING = 32_000  # between the tensors of a file, which matters in tiny ones alone


def config_of(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "config.json").read_text())
    return content


@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_planes_are_as_large_as_a_builds(family: str) -> None:
    folder = releases.tiny_family(family)
    built, expected = open_release(folder / "release").manifest, expected_manifest(family, config_of(folder / "hf"))
    assert expected.architecture == built.architecture
    assert expected.file(PLANE_HI).bytes == built.file(PLANE_HI).bytes
    # Rounding to nearest keeps no divisors, which the expectation counts.
    assert 1 <= expected.file(PLANE_LO).bytes / built.file(PLANE_LO).bytes < 1.06
    assert expected.file(BASE).bytes == pytest.approx(built.file(BASE).bytes, rel=0.1, abs=_PADDING)
    assert weights_per_step(expected, 4) == weights_per_step(built, 4)


def test_a_classifier_is_sized_like_its_build(tmp_path: Path) -> None:
    source, items = tiny_encoder_folder(tmp_path / "hf"), write_items(tmp_path / "items.csv")
    built = build_classifier(source, tmp_path / "out", name="tiny", csv=items, nester=compensating)
    expected = expected_manifest("tiny", config_of(source))
    assert (expected.task, expected.architecture) == (built.task, built.architecture)
    assert expected.file(PLANE_HI).bytes == built.file(PLANE_HI).bytes
    assert expected.file(PLANE_LO).bytes == pytest.approx(built.file(PLANE_LO).bytes, rel=0.01)
    assert expected.file(BASE).bytes == pytest.approx(built.file(BASE).bytes, rel=0.1)
    assert kv_bytes_per_token(expected) == 0


@pytest.mark.parametrize("name", [entry.name for entry in shipped().entries])
def test_every_catalogue_model_is_sized_offline(name: str, tmp_path: Path) -> None:
    found = look(name, {"WEIR_CACHE": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"})
    manifest = expected_manifest(found.name, found.config, found.tokenizer_bytes)
    assert manifest.matrices
    assert list(tmp_path.iterdir()) == []


def test_more_slots_a_longer_context_and_both_precisions_take_more() -> None:
    entry = shipped().find("smollm2-135m-instruct")
    assert entry is not None
    manifest = expected_manifest(entry.name, entry.config, entry.tokenizer_bytes)
    assert kv_bytes_per_token(manifest) == 2 * 30 * 3 * 64 * 4

    def taken(*precisions: int, slots: int = 1, context: int = 512) -> int:
        return engine_bytes(manifest, precisions, slots=slots, context=context)

    assert taken(4) < taken(8) < taken(4, 8)
    assert taken(4, slots=3, context=700) - taken(4, slots=1, context=100) == 2000 * kv_bytes_per_token(manifest)
    assert peak_bytes(manifest, (4,), slots=1, context=128) >= taken(4, slots=1, context=128)
    assert session_bytes(manifest, 4, slots=1, context=128) < session_bytes(manifest, 8, slots=1, context=128)


@pytest.mark.parametrize("kind", ["mamba", None, "deberta"])
def test_what_cannot_be_built_is_not_sized(kind: str | None) -> None:
    with pytest.raises(UnsupportedArchitecture, match=f"{kind!r}; Weir builds releases from llama"):
        expected_manifest("org/other", {"model_type": kind})


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer().running() as running:
        fake.add_model(running, "org/tiny", releases.tiny_hf())
        yield running


def test_of_a_hub_model_only_the_config_is_fetched(server: FileServer, tmp_path: Path) -> None:
    found = look("org/tiny", {"HF_ENDPOINT": server.url, "WEIR_CACHE": str(tmp_path)})
    assert found.config == config_of(releases.tiny_hf())
    assert found.tokenizer_bytes == (releases.tiny_hf() / "tokenizer.json").stat().st_size
    assert [Path(served.path).name for served in server.seen if "/resolve/" in served.path] == ["config.json"]


def test_a_hub_that_does_not_answer_and_a_name_nobody_knows_are_told_apart(tmp_path: Path) -> None:
    settings = {"HF_ENDPOINT": "http://127.0.0.1:9", "WEIR_CACHE": str(tmp_path)}
    with pytest.raises(NoNetwork, match="size a folder or a name of the catalogue"):
        look("org/tiny", settings)
    with pytest.raises(UnknownModel, match="no model, folder or file 'nothing'"):
        look("nothing", settings)
    with pytest.raises(SourceError):
        look(str(tmp_path), settings)


def test_a_gguf_is_sized_by_its_header(tmp_path: Path) -> None:
    source = tiny_qwen2_folder(tmp_path / "hf")
    file = write_qwen2_gguf(source, tmp_path / "tiny.gguf")
    found, written = look(str(file)), config_of(source)
    assert found.name == "tiny"
    assert {key: written[key] for key in found.config if key != "head_dim"} == dict(found.config)
    assert expected_manifest("tiny", found.config).architecture == expected_manifest("tiny", written).architecture


def test_a_trial_takes_its_time_and_no_more_and_larger_models_are_slower() -> None:
    assert probe(4, 1) > 1e6
    small, large = (shipped().find(name) for name in ("smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct"))
    assert small is not None
    assert large is not None
    speeds = [expected_per_s(expected_manifest(e.name, e.config), 1)[4] for e in (small, large)]
    assert speeds[0] > 2 * speeds[1] > 0
