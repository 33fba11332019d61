"""Reads a folder with a ready-made ONNX classifier and says whether it can become a release, before any work.

Understood are graphs that take input_ids and attention_mask, and token_type_ids where they want them, int64
[batch, sequence] with both sizes open, and give one float [batch, labels]; weights in float32. Other inputs,
several outputs, branches and graphs that are quantized already are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from quantize.architecture import read_json
from quantize.errors import UnsupportedArchitecture
from release.manifest import TOKENIZER, TOKENIZER_CONFIG, Architecture, Labelling

PLACES = ("model.onnx", "onnx/model.onnx")
_NEEDED, _MAY = ("input_ids", "attention_mask"), ("token_type_ids",)
_QUANTIZED = frozenset(
    {"MatMulInteger", "QLinearMatMul", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits", "QAttention",
     "DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulBnb4"}
)  # fmt: skip
_MOST_CONTEXT = 8192
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")  # whose position tables begin behind the padding token's row


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """A classifier as it was found. `output` is the logits' name in `model`, which is without its values."""

    path: Path
    graph: Path
    model: Any  # onnx.ModelProto
    output: str
    labels: tuple[str, ...]
    architecture: Architecture
    labelling: Labelling = field(default_factory=Labelling)

    @property
    def files(self) -> tuple[Path, ...]:
        """The graph and the files its weights lie in."""
        places = {
            entry.value
            for tensor in self.model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        return (self.graph, *(self.graph.parent / place for place in sorted(places)))


def find_graph(path: Path) -> Path | None:
    """Where the folder keeps a ready-made graph; None where it has none."""
    return next((path / place for place in PLACES if (path / place).is_file()), None)


def read_ready_made(path: Path) -> ReadyMade:
    """The classifier in `path`. Raises UnsupportedArchitecture saying what stands in the way."""
    graph = find_graph(path)
    if graph is None:
        raise UnsupportedArchitecture(f"{path} has no {' nor '.join(PLACES)}")
    if not (path / TOKENIZER).is_file():
        raise UnsupportedArchitecture(f"{path} has no {TOKENIZER}: save its fast tokenizer there first")
    try:
        model = onnx.load(str(graph), load_external_data=False)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise UnsupportedArchitecture(f"{graph} cannot be read: {error}") from error
    except Exception as error:  # protobuf's own DecodeError, which has no stable home
        raise UnsupportedArchitecture(f"{graph} is no ONNX model: {error}") from error
    _check_nodes(graph, model)
    _check_inputs(graph, model)
    output, count = _output(graph, model)
    config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
    labels = _labels(path, config)
    if count is not None and count != len(labels):
        raise UnsupportedArchitecture(f"{graph} gives {count} values a text, but {len(labels)} labels are named")
    labelling = _labelling(path, config, labels, model)
    return ReadyMade(path, graph, model, output, labels, _architecture(path, config), labelling)


def _check_nodes(graph: Path, model: Any) -> None:
    for node in model.graph.node:
        if node.op_type in _QUANTIZED:
            raise UnsupportedArchitecture(f"{graph} is quantized already (node {node.op_type}): export it in float32")
        if any(
            attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in node.attribute
        ):
            raise UnsupportedArchitecture(f"{graph} branches (node {node.op_type} {node.name}), which is not supported")
    if len(model.functions):
        raise UnsupportedArchitecture(f"{graph} holds functions of its own: export it with them inlined")
    halves = [
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    ]
    if halves:
        raise UnsupportedArchitecture(f"{graph} has weights of half precision ({halves[0]}): export it in float32")


def _check_inputs(graph: Path, model: Any) -> None:
    fed = {tensor.name for tensor in model.graph.initializer}
    inputs = {entry.name: entry.type.tensor_type for entry in model.graph.input if entry.name not in fed}
    unknown = sorted(set(inputs) - {*_NEEDED, *_MAY})
    missing = [name for name in _NEEDED if name not in inputs]
    if unknown or missing:
        raise UnsupportedArchitecture(
            f"{graph} takes {', '.join(sorted(inputs))}; a classifier takes {', '.join(_NEEDED)} and may take {_MAY[0]}"
        )
    for name, kind in inputs.items():
        if kind.elem_type != TensorProto.INT64 or len(kind.shape.dim) != 2:
            raise UnsupportedArchitecture(f"{graph}: {name} must be int64 of two dimensions, batch and sequence")
        if any(dim.HasField("dim_value") for dim in kind.shape.dim):
            raise UnsupportedArchitecture(f"{graph}: {name} has a fixed size: export it with batch and sequence open")


def _output(graph: Path, model: Any) -> tuple[str, int | None]:
    """The logits' name, and how many there are, where the graph says so."""
    outputs = {entry.name: entry.type.tensor_type for entry in model.graph.output}
    name = "logits" if "logits" in outputs else next(iter(outputs), "")
    if name != "logits" and len(outputs) != 1:
        raise UnsupportedArchitecture(f"{graph} gives {', '.join(outputs)}, none of which is called logits")
    dims = outputs[name].shape.dim
    if outputs[name].elem_type != TensorProto.FLOAT or len(dims) != 2:
        raise UnsupportedArchitecture(f"{graph}: {name} must be float32 of two dimensions, batch and labels")
    return name, int(dims[1].dim_value) if dims[1].HasField("dim_value") else None


def _labels(path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    file = path / "labels.txt"
    if file.is_file():
        labels = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    else:
        named = config.get("id2label")
        if not isinstance(named, Mapping):
            raise UnsupportedArchitecture(
                f"{path} names no labels: put id2label into config.json, or labels.txt beside it"
            )
        try:
            labels = tuple(str(named[key]) for key in sorted(named, key=int))
        except (TypeError, ValueError) as error:
            raise UnsupportedArchitecture(f"{path}: id2label must map 0, 1, … to labels") from error
        if [int(key) for key in sorted(named, key=int)] != list(range(len(labels))):
            raise UnsupportedArchitecture(f"{path}: id2label must map 0 to {len(labels) - 1} without gaps")
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise UnsupportedArchitecture(f"{path} must name at least two labels, each once")
    return labels


def _labelling(path: Path, config: Mapping[str, Any], labels: Sequence[str], model: Any) -> Labelling:
    """How its logits become labels, as config.json says, and what texts it takes, as its tokenizer and graph do.

    `problem_type` multi_label_classification makes labels that do not exclude each other; `thresholds` maps some of
    them to the probability they hold from, where that is not 0.5.
    """
    many = config.get("problem_type") == "multi_label_classification"
    given = config.get("thresholds") or {}
    if not isinstance(given, Mapping) or set(given) - set(labels) or (given and not many):
        raise UnsupportedArchitecture(
            f"{path}: thresholds must map labels to numbers, and problem_type be multi_label_classification"
        )
    names = {entry.name for entry in model.graph.input}
    pairs = _MAY[0] in names or config.get("model_type") in _AFTER_PADDING
    cuts = read_json(path / TOKENIZER).get("truncation") is not None
    thresholds = tuple(float(given.get(label, 0.5)) for label in labels) if given else ()
    try:
        return Labelling(many, thresholds, pairs, cuts)
    except ValueError as error:
        raise UnsupportedArchitecture(f"{path}: {error}") from error


def _architecture(path: Path, config: Mapping[str, Any]) -> Architecture:
    """What is known of the shape; a classifier's session needs no more of it than the longest text."""
    settings = read_json(path / TOKENIZER_CONFIG) if (path / TOKENIZER_CONFIG).is_file() else {}
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and config.get("model_type") in _AFTER_PADDING:
        positions -= int(config.get("pad_token_id", 1)) + 1
    known = [size for size in (positions, settings.get("model_max_length")) if isinstance(size, int) and size > 1]
    if not known:
        raise UnsupportedArchitecture(
            f"{path} does not say how long a text may be: put max_position_embeddings into config.json"
        )

    def size(name: str) -> int:
        return value if isinstance(value := config.get(name), int) else 0

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    return Architecture(
        family=str(config.get("model_type") or "onnx"),
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads if heads else 0,
        hidden_size=hidden,
        vocabulary=size("vocab_size"),
        context_length=min(*known, _MOST_CONTEXT),
    )
