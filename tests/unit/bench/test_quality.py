"""What `weir bench quality` compares is what it says, and comes out under the names it promises."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.quality.decoders import decoder_rivals
from bench.quality.encoders import DATA_FILE, intents
from bench.quality.errors import MeasurementError
from bench.quality.rivals import Rivals
from bench.quality.rotate import rotate_model
from bench.quality.run import fetched, run
from bench.quality.text import OWN, evaluation_text
from quantize.architecture import SourceModel
from quantize.evaluation_text import read_text
from quantize.export import GRAPH, Export
from quantize.nest import round_to_nearest
from quantize.progress import Silent
from quantize.sources.resolve import Source
from release.manifest import MANIFEST_NAME
from release.planes import dequantize
from tests import releases

NAMES = {"int8_rtn", "nested8", "int4_rtn", "nested4"}
PROMPT = [5, 9, 33, 70, 101, 200, 45, 77, 12, 8, 300, 31]


def model(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(folder: Path) -> np.ndarray:
    import torch

    with torch.inference_mode():
        found: np.ndarray = model(folder)(torch.tensor([PROMPT])).logits[0].numpy()
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_rotated_model_is_the_same_function_on_other_weights(family: str, tmp_path: Path) -> None:
    source = releases.tiny_hf() if family == "llama" else releases.tiny_qwen2() / "hf"
    rotate_model(source, tmp_path / "rotated", seed=1)
    assert logits(tmp_path / "rotated") == pytest.approx(logits(source), abs=2e-4)
    before, after = (model(folder).state_dict() for folder in (source, tmp_path / "rotated"))
    for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.o_proj.weight", "lm_head.weight"):
        assert not np.allclose(before[name], after[name], atol=0.05)
    assert {"tokenizer.json", "chat_template.jinja"} <= {path.name for path in (tmp_path / "rotated").iterdir()}


def test_a_model_that_no_rotation_is_known_for_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(MeasurementError, match="no rotation is known for gpt2"):
        rotate_model(tmp_path / "gpt2", tmp_path / "out", seed=0)


@pytest.fixture(scope="module")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Rivals:
    source, ready = Source(releases.tiny_hf(), "tiny", "none", "test", "s" * 64), exported()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        made = [
            decoder_rivals(source, rotated=False, seed=0, threads=1, progress=Silent(), export=export)
            for export in (ready, _none)
        ]
    assert made[0][0].folder == made[1][0].folder  # the second time comes from the cache
    assert {path.name for path in made[0][0].folder.iterdir()} == {"nested", "rounded", "eight"}
    return made[0][0]


def exported() -> Export:
    """Copies what was exported for the tiny release before the cache became another."""
    kept = releases.tiny().parent / "exported"

    def export(source: SourceModel, work: Path, *, threads: int) -> Path:
        return shutil.copytree(kept, work / "exported") / GRAPH

    return export


def _none(*_: object, **__: object) -> Path:
    raise AssertionError("nothing is built twice")


def test_the_eight_bit_rival_rounds_every_weight_at_eight_bits(rivals: Rivals) -> None:
    """Not the composed half of a nested release: the source's own weights, rounded by themselves."""
    arrays, weights = rivals.eight.initializers(8), model(releases.tiny_hf()).state_dict()
    name, theirs = "model.layers.1.mlp.down_proj", "model.layers.1.mlp.down_proj.weight"
    expected = round_to_nearest(weights[theirs].numpy(), 32, 8)
    assert (arrays[f"{name}.q"] == expected.codes).all()
    assert (arrays[f"{name}.z"] == expected.zeros).all()
    made = dequantize(arrays[f"{name}.q"], arrays[f"{name}.s"], arrays[f"{name}.z"])
    assert made.reshape(weights[theirs].shape) == pytest.approx(weights[theirs].numpy(), abs=0.01)
    assert rivals.eight.precisions == (8,)
    assert rivals.rounded.manifest.recipe.method == "rtn"
    assert rivals.nested.manifest.recipe.method == "gptq"


def test_bytes_are_those_of_the_files_that_would_be_fetched(rivals: Rivals) -> None:
    found = fetched(rivals)

    def size(folder: str, *without: str) -> int:
        return sum(path.stat().st_size for path in (rivals.folder / folder).iterdir() if path.name not in without)

    assert found["base"] + found["residual"] == size("nested")
    assert found["int4"] == size("rounded", "plane.lo.bin", "graph.8.onnx")
    assert found["int8"] == size("eight")
    assert {MANIFEST_NAME, "graph.8.onnx", "base.bin"} < {path.name for path in (rivals.folder / "eight").iterdir()}


def test_the_document_has_the_promised_keys(monkeypatch: pytest.MonkeyPatch, rivals: Rivals) -> None:
    """On Weir's own text, which is said; and from the cache when it is asked for again."""
    source, ready = str(releases.tiny_hf()), exported()
    monkeypatch.setenv("WEIR_CACHE", str(rivals.folder.parent.parent))
    notes: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    found = run(source, None, rotated=False, threads=1, progress=Notes(), export=ready)
    for key in ("kl", "top1"):
        assert set(found[key]) == NAMES
    assert set(found["perplexity"]) == NAMES | {"float32"}
    assert set(found["bytes"]) == {"base", "residual", "int4", "int8"}
    assert found["kl"]["int8_rtn"] < found["kl"]["int4_rtn"] / 10
    assert found["kl"]["nested8"] < found["kl"]["nested4"] / 10
    assert (found["positions"], found["seed"], found["data"]) == (4096, 0, OWN)
    assert f"evaluating on {OWN}" in notes
    assert json.loads(json.dumps(found)) == found
    assert found["machine"]["cpu_class"]
    assert found["versions"]["onnxruntime"]


def write_sets(folder: Path, count: int) -> None:
    for name, record in (
        ("qa/gsm8k_test", {"question": "How many eggs are {}?"}),
        ("slots/sgd_test_3000", {"prev_system": "Which city?", "text": "City {}, please."}),
        ("qa/boolq_dev_nopassage", {"question": "is {} a number"}),
    ):
        path = folder / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({key: text.format(at) for key, text in record.items()}) for at in range(count)]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))


def test_questions_of_three_sets_are_mixed_and_drawn_by_seed(tmp_path: Path) -> None:
    write_sets(tmp_path, 500)
    text = evaluation_text(tmp_path, 0)
    assert text == evaluation_text(tmp_path, 0) != evaluation_text(tmp_path, 1)
    first = text.text.split("\n\n")[:3]
    assert [word in passage for word, passage in zip(("eggs", "City", "a number"), first, strict=True)] == [True] * 3
    assert len(text.digest) == 64


def test_a_data_folder_that_is_set_and_missing_is_an_error(tmp_path: Path) -> None:
    assert evaluation_text(None, 0).text == read_text()
    with pytest.raises(MeasurementError, match=r"gsm8k_test.jsonl.gz is not there"):
        evaluation_text(tmp_path, 0)
    write_sets(tmp_path, 20)
    with pytest.raises(MeasurementError, match="holds 20 questions"):
        evaluation_text(tmp_path, 0)
    (tmp_path / "qa" / "gsm8k_test.jsonl.gz").write_bytes(b"not compressed")
    with pytest.raises(MeasurementError, match="not a compressed file"):
        evaluation_text(tmp_path, 0)


def test_an_encoder_needs_its_data_set(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(MeasurementError, match="--data or WEIR_DATA"):
            intents(data, 0)
    (tmp_path / DATA_FILE.parent).mkdir()
    records = [
        {"split": split, "text": f"{split} {at}", "label": "a"} for split in ("train", "test") for at in range(9)
    ]
    (tmp_path / DATA_FILE).write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    fitted, tested = intents(tmp_path, 0)
    assert [item.text for item in fitted] == [f"train {at}" for at in range(9)]
    assert {item.text for item in tested} == {f"test {at}" for at in range(9)}
