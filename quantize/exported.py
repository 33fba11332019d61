"""Understands the exporter's graph: which nodes are weights' products, which is the head, where values lie.

The exporter names a weight `<module>.MatMul.weight` and stores it input x output, in one file beside
the graph; a tied embedding is the head's weight, transposed. Values are read from a memory map, one
at a time. A graph that looks otherwise is refused with the node that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantize.errors import ExportFailed
from release.planes import Floats

_SUFFIX = ".MatMul.weight"
_ELEMENTWISE = ("Div", "Tanh", "Mul")


@dataclass(frozen=True, slots=True)
class Linear:
    """One product with a weight. `name` is the module's, `weight` the initializer's, rows x columns = out x in."""

    name: str
    node: str
    weight: str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """The node that looks token embeddings up; `weight` is None where it shares the head's."""

    node: str
    weight: str | None


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported graph and the places of its values."""

    model: Any  # onnx.ModelProto, without values
    folder: Path
    linears: tuple[Linear, ...]
    head: Linear
    embedding: Embedding
    others: tuple[str, ...]  # initializers kept as they are: norms, biases, rotary tables

    def values(self, name: str) -> Floats:
        """An initializer's float32 values; a view into the mapped file."""
        tensor = next(entry for entry in self.model.graph.initializer if entry.name == name)
        return _values(tensor, self.folder)

    def matrix(self, linear: Linear) -> Floats:
        """A product's weight as output x input, contiguous."""
        return np.ascontiguousarray(self.values(linear.weight).T)


def read_exported(path: Path) -> Exported:
    """Reads the graph at `path`. Raises ExportFailed where it is not of the expected shape."""
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for tensor in graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            raise ExportFailed(f"initializer {tensor.name} is not float32: the exporter's output has changed")
    products = [
        _linear(node, sizes) for node in graph.node if node.op_type == "MatMul" and node.input[1].endswith(_SUFFIX)
    ]
    stray = [node.name for node in graph.node if node.op_type == "MatMul" and not node.input[1].endswith(_SUFFIX)]
    if stray:
        raise ExportFailed(f"node {stray[0]} multiplies by something that is no weight")
    last = _before_cap(graph)
    head = next((linear for linear in products if linear.node == last), None)
    if head is None:
        raise ExportFailed("the logits do not come straight from a weight's product")
    embedding = _embedding(graph, head, sizes)
    taken = {linear.weight for linear in products} | {embedding.weight}
    others = tuple(name for name in sizes if name not in taken)
    body = tuple(linear for linear in products if linear is not head)
    return Exported(model, path.parent, body, head, embedding, others)


def _before_cap(graph: Any) -> str | None:
    """The node that makes the logits, before a cap (scale, tanh, scale) where the model has one."""
    makers = {output: node for node in graph.node for output in node.output}
    node = makers.get("logits")
    while node is not None and node.op_type in _ELEMENTWISE:
        node = makers.get(node.input[0])
    return None if node is None else str(node.name)


def _linear(node: Any, sizes: Mapping[str, tuple[int, ...]]) -> Linear:
    columns, rows = sizes[node.input[1]]
    return Linear(node.input[1].removesuffix(_SUFFIX), node.name, node.input[1], rows, columns)


def _embedding(graph: Any, head: Linear, sizes: Mapping[str, tuple[int, ...]]) -> Embedding:
    gather = next((node for node in graph.node if node.op_type == "Gather" and "input_ids" in node.input[1:]), None)
    if gather is None:
        raise ExportFailed("no node looks token embeddings up by input_ids")
    if gather.input[0] in sizes:
        return Embedding(gather.name, gather.input[0])
    maker = next((node for node in graph.node if gather.input[0] in node.output), None)
    if maker is None or maker.op_type != "Transpose" or maker.input[0] != head.weight:
        raise ExportFailed(f"node {gather.name} looks embeddings up in something that is neither a weight nor the head")
    return Embedding(gather.name, None)


def _values(tensor: Any, folder: Path) -> Floats:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return np.asarray(onnx.numpy_helper.to_array(tensor), np.float32)
    place = {entry.key: entry.value for entry in tensor.external_data}
    count = int(np.prod(tuple(tensor.dims)))
    mapped: NDArray[np.float32] = np.memmap(
        folder / place["location"], np.float32, "r", offset=int(place.get("offset", 0)), shape=(count,)
    )
    return mapped.reshape(tuple(tensor.dims))
