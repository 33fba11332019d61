"""What makes a model folder usable, said once: config.json, safetensors, tokenizer.json, a known family.

Reads small files only, never the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.families import FAMILIES
from quantize.sources.errors import BadModel, UnknownArchitecture

TASKS: Mapping[str, str] = {
    **{family.architecture: "text-generation" for family in FAMILIES.values()},
    "BertModel": "feature-extraction",
    "BertForMaskedLM": "feature-extraction",
}
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.txt",
)
SHARDS_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Facts:
    """`weights` in the order of their names; `template` is the chat template, empty where there is none."""

    architecture: str
    task: str
    weights: tuple[Path, ...]
    template: str


def inspect(folder: Path) -> Facts:
    """Raises BadModel naming the file that is missing or wrong, or UnknownArchitecture."""
    architecture = architecture_of(read_json(folder / "config.json"), str(folder))
    weights = tuple(sorted(folder.glob("*.safetensors")))
    if not weights:
        raise BadModel(
            f"{folder} holds no .safetensors file. Pickled weights (.bin, .pt) are not loaded; load the model with "
            "transformers and save_pretrained() it, then pull that folder"
        )
    if not (folder / "tokenizer.json").is_file():
        raise BadModel(
            f"{folder} holds no tokenizer.json: load its tokenizer with transformers' AutoTokenizer and "
            "save_pretrained() it into that folder"
        )
    return Facts(architecture, TASKS[architecture], weights, _template(folder))


def architecture_of(config: Mapping[str, Any], where: str) -> str:
    """From a config.json. Raises UnknownArchitecture, also for weights that are quantized already."""
    names = config.get("architectures") or ["none"]
    known = next((str(name) for name in names if name in TASKS), None)
    if known is None:
        raise UnknownArchitecture(
            f"{where} is a {', '.join(map(str, names))}; Weir can build {', '.join(TASKS)}. "
            f"Choose one of these families: {', '.join(FAMILIES)}, bert"
        )
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UnknownArchitecture(f"{where} is quantized already ({method}): pull the original model instead")
    return known


def read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadModel(f"{path.parent} holds no {path.name}: is it a model folder in Hugging Face's layout?") from error
    except ValueError as error:
        raise BadModel(f"{path} is not valid JSON ({error}): fetch it anew") from error
    if not isinstance(document, dict):
        raise BadModel(f"{path} must hold an object")
    return document


def write_template(folder: Path) -> None:
    """Gives the chat template a file of its own, where it stands inside tokenizer_config.json only."""
    template = _template(folder)
    if template and not (folder / "chat_template.jinja").exists():
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _template(folder: Path) -> str:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    template = read_json(settings).get("chat_template") if settings.is_file() else None
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template}
        template = named.get("default")
    return template if isinstance(template, str) else ""
