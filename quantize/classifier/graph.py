"""Our pass over a ready-made classifier's graph: quantized products and tables, large values outside.

- MatMul by a constant [K, N] whose K the block size divides becomes MatMulNBits, nested.
- Gather of rows of a large constant table becomes GatherBlockQuantized at 8 bits.
- Gemm, small values and everything else stay as they are; larger values are external and fed from memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantize.architecture import BLOCK_SIZE
from quantize.classifier.source import ReadyMade
from quantize.graph import ACCURACY_LEVEL, HEAD_BITS, external, session_shapes
from release.manifest import Matrix, Tensor
from release.planes import Floats

_MICROSOFT = "com.microsoft"
_LEAST_TABLE = 1 << 16  # values; smaller tables are kept
_LEAST_OUTSIDE = 1 << 10  # bytes; smaller values stay in the graph


@dataclass(frozen=True, slots=True)
class Plan:
    """Names of initializers by what becomes of them."""

    products: tuple[str, ...]
    tables: tuple[str, ...]
    outside: tuple[str, ...]


def plan(source: ReadyMade) -> Plan:
    """What becomes of every initializer; one that is used in two ways is kept."""
    sizes = {tensor.name: tensor for tensor in source.model.graph.initializer}
    uses: dict[str, set[str]] = {}
    for node in source.model.graph.node:
        for position, name in enumerate(node.input):
            if name in sizes:
                uses.setdefault(name, set()).add(_use(node, position, sizes[name]))
    for name in (entry.name for entry in source.model.graph.output):
        uses.setdefault(name, set()).add("kept")
    found = {name: next(iter(kinds)) if len(kinds) == 1 else "kept" for name, kinds in uses.items() if name in sizes}
    products = tuple(name for name, kind in found.items() if kind == "product")
    tables = tuple(name for name, kind in found.items() if kind == "table")
    outside = tuple(
        name
        for name, kind in found.items()
        if kind == "kept" and sizes[name].data_type == TensorProto.FLOAT and _bytes(sizes[name]) >= _LEAST_OUTSIDE
    )
    return Plan(products, tables, outside)


def values(source: ReadyMade, name: str) -> np.ndarray[Any, Any]:
    """An initializer's values."""
    tensor = next(entry for entry in source.model.graph.initializer if entry.name == name)
    found: np.ndarray[Any, Any] = numpy_helper.to_array(tensor, base_dir=str(source.graph.parent))
    return found


def product_weight(source: ReadyMade, name: str) -> Floats:
    """A product's weight as output x input, contiguous."""
    return np.ascontiguousarray(values(source, name).T)


def rewrite_classifier(
    source: ReadyMade, chosen: Plan, tensors: Sequence[Tensor], matrices: Sequence[Matrix], bits: int
) -> bytes:
    """The graph of one precision."""
    nodes = list(_nodes(source, chosen, {matrix.name: matrix for matrix in matrices}, bits))
    used = {name for node in nodes for name in node.input}
    outside = {*chosen.products, *chosen.tables, *chosen.outside}
    inside = [
        numpy_helper.from_array(values(source, tensor.name), tensor.name)
        for tensor in source.model.graph.initializer
        if tensor.name in used and tensor.name not in outside
    ]
    shapes = session_shapes(tensors, bits, matrices)
    fed = [external(name, dtype, shape) for name, (dtype, shape) in shapes.items() if name in used]
    graph = helper.make_graph(nodes, "weir-classifier", _inputs(source), [_logits(source)], [*inside, *fed])
    opsets = {entry.domain: entry.version for entry in source.model.opset_import} | {_MICROSOFT: 1}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
        ir_version=source.model.ir_version,
    )
    return bytes(model.SerializeToString(deterministic=True))


def _use(node: Any, position: int, tensor: Any) -> str:
    if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 2:
        return "kept"
    if node.op_type == "MatMul" and position == 1 and tensor.dims[0] % BLOCK_SIZE == 0:
        return "product"
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    large = int(np.prod(tensor.dims)) >= _LEAST_TABLE and tensor.dims[1] % BLOCK_SIZE == 0
    return "table" if node.op_type == "Gather" and position == 0 and axis == 0 and large else "kept"


def _nodes(source: ReadyMade, chosen: Plan, matrices: dict[str, Matrix], bits: int) -> Iterator[Any]:
    for node in source.model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in chosen.products:
            matrix = matrices[node.input[1]]
            yield helper.make_node(
                "MatMulNBits",
                [node.input[0], *(f"{matrix.name}.{part}" for part in "qsz")],
                list(node.output),
                name=node.name,
                domain=_MICROSOFT,
                K=matrix.columns,
                N=matrix.rows,
                bits=bits,
                block_size=BLOCK_SIZE,
                accuracy_level=ACCURACY_LEVEL,
            )
        elif node.op_type == "Gather" and node.input[0] in chosen.tables:
            table = node.input[0]
            yield helper.make_node(
                "GatherBlockQuantized",
                [f"{table}.q", node.input[1], f"{table}.s", f"{table}.z"],
                list(node.output),
                name=node.name,
                domain=_MICROSOFT,
                bits=HEAD_BITS,
                block_size=BLOCK_SIZE,
                gather_axis=0,
                quantize_axis=1,
            )
        else:
            yield node
    if source.output != "logits":
        yield helper.make_node("Identity", [source.output], ["logits"], name="weir/logits")


def _inputs(source: ReadyMade) -> list[Any]:
    fed = {tensor.name for tensor in source.model.graph.initializer}
    return [
        helper.make_tensor_value_info(entry.name, TensorProto.INT64, ["B", "S"])
        for entry in source.model.graph.input
        if entry.name not in fed
    ]


def _logits(source: ReadyMade) -> Any:
    return helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", len(source.labels)])


def _bytes(tensor: Any) -> int:
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=np.int64)) * int(width)
