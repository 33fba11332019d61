"""Our pass over the exported graph: quantized products, weights outside, inputs a batcher can feed.

- MatMul by a weight becomes MatMulNBits (com.microsoft) at the wanted width, accuracy level 4.
- The embedding becomes GatherBlockQuantized; where it is tied it reads the head's own bytes. Both are nested
  like every product, or 8 bits wide in both graphs.
- A 4-bit product with offsets takes its inputs' block sums too (`release.planes`): they are made once per
  input, by a product with a weight of ones and zeros, and put behind the inputs.
- The attention-mask subgraph gives way to the inputs seqlens_k (total length - 1 of each row) and
  total_seq; `logits_idx` picks, before the head, the positions of each row whose logits are wanted: one
  in service, many where quality is measured. Releases built earlier take exactly one.
- Every initializer is external and has no file: a session is fed from memory.

The graph holds shapes and wiring alone, a few dozen kilobytes; see `release.folder` for the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper

from quantize.exported import Exported, Linear
from release.folder import MATRIX_PARTS
from release.manifest import Architecture, Matrix, Tensor, sums_name
from release.planes import widened

ACCURACY_LEVEL = 4
HEAD_BITS = 8  # of a head or embedding that is not nested
EMBEDDING = "model.embed_tokens"
_MICROSOFT = "com.microsoft"
_ONNX_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT, "uint8": TensorProto.UINT8}


Shapes = dict[str, tuple[str, list[int]]]


def session_shapes(tensors: Sequence[Tensor], bits: int, matrices: Sequence[Matrix]) -> Shapes:
    """What a session of `bits` is fed with: name to (dtype, shape)."""
    parts = {f"{matrix.name}.{part}" for matrix in matrices for part in MATRIX_PARTS}
    shapes: Shapes = {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in tensors if tensor.name not in parts}
    for matrix in matrices:
        shapes.update(_matrix_shapes(matrix, bits))
    return shapes


def _matrix_shapes(matrix: Matrix, bits: int) -> Shapes:
    size, shapes = matrix.block_size, Shapes()

    def weight(name: str, rows: int, columns: int) -> None:
        count = columns // size
        shapes[f"{name}.q"] = ("uint8", [rows, count, size * bits // 8])
        shapes[f"{name}.s"] = ("float32", [rows, count])
        shapes[f"{name}.z"] = ("uint8", [rows, count if bits == 8 else -(-count // 2)])

    columns = _columns(matrix, bits)
    weight(matrix.name, matrix.rows, columns)
    if columns > matrix.columns:
        weight(sums_name(matrix.columns), columns - matrix.columns, matrix.columns)
    if matrix.table:
        shapes[f"{matrix.table}.q"] = ("uint8", [matrix.rows, matrix.columns * bits // 8])
    return shapes


def _columns(matrix: Matrix, bits: int) -> int:
    """How many inputs the product takes at this precision."""
    return widened(matrix.columns, matrix.block_size) if matrix.offsets and bits == 4 else matrix.columns


@dataclass(frozen=True, slots=True)
class _Weight:
    """A quantized weight as a product takes it."""

    name: str
    rows: int
    columns: int
    bits: int
    block_size: int


def rewrite(
    exported: Exported,
    architecture: Architecture,
    tensors: Sequence[Tensor],
    matrices: Sequence[Matrix],
    *,
    bits: int,
    block_size: int,
) -> bytes:
    """The graph of one precision. `tensors` are all the release's tensors, `matrices` its nested ones."""
    products = {linear.node: linear for linear in exported.linears}
    nested = {matrix.name: matrix for matrix in matrices}
    nodes: list[Any] = []
    summed: set[str] = set()
    ends = bits if exported.head.name in nested else HEAD_BITS
    for node in exported.model.graph.node:
        if node.name in products:
            nodes.extend(_nested_product(node, nested[products[node.name].name], bits, summed))
        elif node.name == exported.head.node:
            nodes.extend(_head(node, exported.head, ends, block_size))
        elif node.name == exported.embedding.node:
            nodes.append(_lookup(node, exported, ends, block_size))
        elif node.op_type == "GroupQueryAttention":
            nodes.append(_attention(node))
        else:
            nodes.append(node)
    outputs = _outputs(architecture)
    nodes = _needed(nodes, {output.name for output in outputs})
    used = {name for node in nodes for name in node.input}
    initializers = [
        external(name, dtype, shape)
        for name, (dtype, shape) in session_shapes(tensors, bits, matrices).items()
        if name in used
    ]
    graph = helper.make_graph(nodes, "weir", _inputs(architecture), outputs, initializer=initializers)
    opsets = [helper.make_opsetid(entry.domain, entry.version) for entry in exported.model.opset_import]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=exported.model.ir_version)
    return bytes(model.SerializeToString(deterministic=True))


def _nested_product(node: Any, matrix: Matrix, bits: int, summed: set[str]) -> list[Any]:
    """The product, behind its inputs' block sums where it has offsets; `summed` are the inputs that have theirs."""
    given, columns = node.input[0], _columns(matrix, bits)
    weight = _Weight(matrix.name, matrix.rows, columns, bits, matrix.block_size)
    if columns == matrix.columns:
        return [_product(node.name, given, node.output[0], weight)]
    sums, both = f"{given}/sums", f"{given}/with_sums"
    product = _product(node.name, both, node.output[0], weight)
    if given in summed:
        return [product]
    summed.add(given)
    ones = _Weight(sums_name(matrix.columns), columns - matrix.columns, matrix.columns, bits, matrix.block_size)
    join = helper.make_node("Concat", [given, sums], [both], name=both, axis=-1)
    return [_product(sums, given, sums, ones), join, product]


def _product(name: str, given: str, out: str, weight: _Weight) -> Any:
    return helper.make_node(
        "MatMulNBits",
        [given, *(f"{weight.name}.{part}" for part in "qsz")],
        [out],
        name=name,
        domain=_MICROSOFT,
        K=weight.columns,
        N=weight.rows,
        bits=weight.bits,
        block_size=weight.block_size,
        accuracy_level=ACCURACY_LEVEL,
    )


def _head(node: Any, head: Linear, bits: int, block_size: int) -> list[Any]:
    picked = f"{node.name}/picked"
    pick = helper.make_node("GatherND", [node.input[0], "logits_idx"], [picked], name=f"{node.name}/pick", batch_dims=1)
    weight = _Weight(head.name, head.rows, head.columns, bits, block_size)
    return [pick, _product(node.name, picked, node.output[0], weight)]


def _lookup(node: Any, exported: Exported, bits: int, block_size: int) -> Any:
    owner = EMBEDDING if exported.embedding.weight else exported.head.name
    return helper.make_node(
        "GatherBlockQuantized",
        [f"{EMBEDDING}.q", node.input[1], f"{owner}.s", f"{owner}.z"],
        list(node.output),
        name=node.name,
        domain=_MICROSOFT,
        bits=bits,
        block_size=block_size,
        gather_axis=0,
        quantize_axis=1,
    )


def _attention(node: Any) -> Any:
    fed = onnx.NodeProto()
    fed.CopyFrom(node)
    fed.input[5], fed.input[6] = "seqlens_k", "total_seq"
    return fed


def _needed(nodes: Sequence[Any], wanted: set[str]) -> list[Any]:
    """The nodes that lead to `wanted`, in their order: what fed the old mask falls away."""
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(name for name in node.input if name)
    return kept[::-1]


def _inputs(architecture: Architecture) -> list[Any]:
    info = helper.make_tensor_value_info
    return [
        info("input_ids", TensorProto.INT64, ["B", "S"]),
        info("seqlens_k", TensorProto.INT32, ["B"]),
        info("total_seq", TensorProto.INT32, []),
        info("logits_idx", TensorProto.INT64, ["B", "T", 1]),
        *_cache(architecture, "past_key_values"),
    ]


def _outputs(architecture: Architecture) -> list[Any]:
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", "T", architecture.vocabulary])
    return [logits, *_cache(architecture, "present")]


def _cache(architecture: Architecture, name: str) -> list[Any]:
    shape = ["B", architecture.kv_heads, "P", architecture.head_dim]
    return [
        helper.make_tensor_value_info(f"{name}.{layer}.{kind}", TensorProto.FLOAT, shape)
        for layer in range(architecture.layers)
        for kind in ("key", "value")
    ]


def external(name: str, dtype: str, shape: list[int]) -> Any:
    """An initializer without values: a session is fed with them from memory."""
    tensor = TensorProto()
    tensor.name = name
    tensor.data_type = _ONNX_TYPES[dtype]
    tensor.dims.extend(shape)
    tensor.data_location = TensorProto.EXTERNAL
    place = tensor.external_data.add()
    place.key, place.value = "location", "memory"
    return tensor
