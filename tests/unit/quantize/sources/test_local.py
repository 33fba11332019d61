"""Folders and GGUF files at hand, names that mean nothing, and disks that are full."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quantize.sources.cache import Cache, disk_faults
from quantize.sources.errors import BadModel, ConversionFailed, DiskFull, SourceError, UnknownArchitecture, UnknownModel
from quantize.sources.gguf import convert, convert_here, read_config, refuse_what_would_be_lost
from quantize.sources.gguf_header import read_header, read_keys
from quantize.sources.hub import Hub
from quantize.sources.resolve import Source, Sources, resolve
from quantize.sources.transfer import Wanted, fetch
from tests.fakes.file_server import FileServer
from tests.fakes.progress import Recorder
from tests.models import CHAT_TEMPLATE, tiny_family_folder, tiny_llama_folder, tiny_qwen2_folder
from tests.tiny_gguf import write_gguf, write_keys, write_qwen2_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_folder(tmp_path_factory.mktemp("source") / "tiny-llama")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen2_folder(tmp_path_factory.mktemp("source") / "tiny-qwen2")


def pull(name: str | Path, cache: Path, progress: Recorder | None = None) -> Source:
    return Sources(cache=Cache(cache), hub=Hub("http://127.0.0.1:9"), progress=progress).resolve(str(name))


def copy(folder: Path, target: Path, leave_out: str = "") -> Path:
    target.mkdir()
    for file in folder.iterdir():
        if file.name != leave_out:
            (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_folder_is_used_where_it_stands(tiny: Path, tmp_path: Path) -> None:
    source = pull(tiny, tmp_path / "cache")
    assert (source.folder, source.name, source.licence) == (tiny, "tiny-llama", "not stated")
    assert not (tmp_path / "cache").exists()


def test_a_template_inside_another_file_gets_its_own(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "inside", leave_out="chat_template.jinja")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": "default", "template": CHAT_TEMPLATE}]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    source = pull(folder, tmp_path / "cache")
    assert (source.folder / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert (source.folder / "model.safetensors").samefile(folder / "model.safetensors")
    assert not (folder / "chat_template.jinja").exists()
    assert pull(folder, tmp_path / "cache") == source


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("config.json", "holds no config.json: is it a model folder"),
        ("model.safetensors", r"holds no .safetensors file.*save_pretrained\(\)"),
        ("tokenizer.json", "holds no tokenizer.json.*AutoTokenizer"),
    ],
)
def test_an_incomplete_folder_names_what_is_missing(tiny: Path, tmp_path: Path, missing: str, told: str) -> None:
    folder = copy(tiny, tmp_path / "incomplete", leave_out=missing)
    with pytest.raises(BadModel, match=told):
        pull(folder, tmp_path / "cache")


def test_a_quantized_folder_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "awq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(UnknownArchitecture, match=r"quantized already \(awq\): pull the original"):
        pull(folder, tmp_path / "cache")


def test_gguf_becomes_bf16_safetensors_once(qwen: Path, tmp_path: Path) -> None:
    """Asked for twice at the same time: one converts, the other waits and takes the same folder."""
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    file = write_qwen2_gguf(qwen, tmp_path / "tiny.gguf")
    recorders = (Recorder(), Recorder())
    threads = [threading.Thread(target=pull, args=(file, tmp_path / "cache", recorder)) for recorder in recorders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(recorder.finished for recorder in recorders) == [[], ["convert tiny"]]
    assert any("another process is making tiny-" in note for recorder in recorders for note in recorder.notes)

    source = pull(file, tmp_path / "cache")
    original, converted = (load_file(folder / "model.safetensors") for folder in (qwen, source.folder))
    assert original.keys() == converted.keys()
    assert all(torch.equal(tensor.bfloat16(), converted[name]) for name, tensor in original.items())
    text = "<|im_start|>user\nWhere is my parcel?<|im_end|>"
    ids = [Tokenizer.from_file(str(f / "tokenizer.json")).encode(text).ids for f in (qwen, source.folder)]
    assert ids[0] == ids[1]
    assert (source.folder / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert (source.licence, source.origin) == ("apache-2.0", f"file {file}")


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# As GGUF files of each family are, whose conversions take some entries for granted.
_AS_GGUF: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 128, "rope_parameters": _ROPE, "tie_word_embeddings": False}),
    "phi3": ("Phi3", {"sliding_window": 96, "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0}}),
    "gemma2": ("Gemma2", {"head_dim": 32, "sliding_window": 8, "rope_parameters": _ROPE}),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
        },
    ),
}


@pytest.mark.parametrize("family", _AS_GGUF)
def test_gguf_of_a_family_becomes_the_model_it_was_made_of(family: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    source = tiny_family_folder(tmp_path / "hf", _AS_GGUF[family])
    stated = {"sliding_window": 96} if family == "phi3" else {}
    file = write_gguf(source, tmp_path / "tiny.gguf", family, **stated)
    (tmp_path / "out").mkdir()
    refuse_what_would_be_lost(file)
    convert_here(file, tmp_path / "out")
    original, converted = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    assert original.keys() == converted.keys()
    for name, tensor in original.items():  # Gemma's norms go through the format with 1 added
        assert torch.allclose(tensor.bfloat16().float(), converted[name].float(), atol=0.01 if "norm" in name else 0)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "out")]
    differing = {key for key in configs[0] if configs[0][key] != configs[1].get(key)}
    assert differing <= {"dtype", "rms_norm_eps"}
    assert {key: configs[0][key] for key in read_config(file)} == dict(read_config(file))


@pytest.mark.parametrize(
    ("architecture", "stated", "told"),
    [
        ("llama", {"rope__scaling__type": "yarn"}, "scales its rotary positions"),
        ("qwen2", {"attention__key_length": 24}, "heads of 24 values instead of 16"),
        ("phi3", {"rope__dimension_count": 8}, "rotates 8 of the 16 values"),
        ("qwen3", {"attention__key_length": 64}, "heads of 64 values instead of 128"),
        ("gemma2", {"final_logit_softcapping": 12.0}, "caps at final_logit_softcapping"),
    ],
)
def test_gguf_that_its_conversion_would_change_is_refused(
    qwen: Path, tmp_path: Path, architecture: str, stated: dict[str, Any], told: str
) -> None:
    file = write_keys(qwen, tmp_path / "tiny.gguf", architecture, stated)
    with pytest.raises(UnknownArchitecture, match=f"{told}.*pull the original"):
        refuse_what_would_be_lost(file)


def test_gguf_with_rotary_factors_is_refused(qwen: Path, tmp_path: Path) -> None:
    file = write_keys(qwen, tmp_path / "tiny.gguf", "llama", {}, tensors=("rope_freqs.weight",))
    assert read_keys(file).tensors == {"rope_freqs.weight"}
    with pytest.raises(UnknownArchitecture, match=r"by rope_freqs\.weight, which its conversion would lose"):
        convert(file, tmp_path)


def test_gguf_of_another_family_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "other.gguf"
    file.write_bytes(header("general.architecture", "mamba"))
    with pytest.raises(UnknownArchitecture, match=r"'mamba'; Weir can read llama, qwen2"):
        pull(file, tmp_path / "cache")


def test_a_damaged_gguf_leaves_nothing(qwen: Path, tmp_path: Path) -> None:
    file = write_qwen2_gguf(qwen, tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[:-200_000])
    with pytest.raises(ConversionFailed, match=r"tiny.gguf failed: .*fetch it anew"):
        pull(file, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").iterdir())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"GGUF", b"GGUF" + b"\xff" * 60])
def test_what_is_no_gguf_is_said_so(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(BadModel, match="GGUF file"):
        read_header(file)


@pytest.mark.parametrize("name", ["smolm2-135m-instruct", "SmolLM2"])
def test_an_unknown_name_suggests_near_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownModel, match=r"did you mean smollm2-135m-instruct.*Known by name: smollm2"):
        pull(name, tmp_path)


@pytest.mark.parametrize("name", ["", "./absent", "/absent/model.gguf", "a/b/c", "../x", "no such thing"])
def test_what_leads_nowhere_is_unknown(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UnknownModel, BadModel)):
        pull(name, tmp_path / "cache")


def header(key: str, value: str) -> bytes:
    texts = [struct.pack("<Q", len(text)) + text.encode() for text in (key, value)]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + texts[0] + struct.pack("<I", 8) + texts[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], check=False).returncode
    ):
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_too_little_room_is_said_before_anything_is_written(small_disk: Path, qwen: Path, tmp_path: Path) -> None:
    file = write_qwen2_gguf(qwen, tmp_path / "tiny.gguf")
    with pytest.raises(DiskFull, match=r"converting tiny needs 1 MB under .*disk, where 0 MB are free: .*WEIR_CACHE"):
        pull(file, small_disk)
    assert not list((small_disk / "models").iterdir() if (small_disk / "models").exists() else [])


def test_a_disk_that_fills_up_keeps_what_has_arrived(small_disk: Path) -> None:
    content = bytes(300_000)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(100_000))
    with FileServer({"/file": content[:200_000]}).running() as server, httpx.Client() as client:
        wanted = Wanted(f"{server.url}/file", "file", 200_000)
        with pytest.raises(DiskFull, match="what has arrived is kept"), disk_faults(small_disk):
            fetch(client, wanted, small_disk, lambda _: None)
        assert not (small_disk / "file").exists()
        arrived = (small_disk / "file.part").stat().st_size
        ballast.unlink()
        fetch(client, wanted, small_disk, lambda _: None)
        assert (small_disk / "file").read_bytes() == content[:200_000]
        assert server.seen[-1].first == arrived > 0


def test_the_environment_chooses_cache_and_mirrors(tmp_path: Path) -> None:
    environment = {"WEIR_CACHE": str(tmp_path / "here"), "HF_ENDPOINT": "http://127.0.0.1:9", "WEIR_MIRRORS": "OFF"}
    with pytest.raises(Exception, match="WEIR_MIRRORS=off refuses"):
        resolve("minilm-l6", None, environment)
    assert (tmp_path / "here" / "locks").is_dir()
    assert Cache.from_environment({}).root.name == "weir"


def test_a_cache_that_cannot_be_made_says_so(qwen: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"cannot be written .*set WEIR_CACHE"):
        pull(write_qwen2_gguf(qwen, tmp_path / "tiny.gguf"), tmp_path / "file" / "cache")
