"""Our pass over the exported graph: quantized products, weights outside, inputs a batcher can feed.

- MatMul by a weight becomes MatMulNBits (com.microsoft) at the wanted width, accuracy level 4.
- The embedding becomes GatherBlockQuantized; where it is tied it reads the head's own bytes.
- The attention-mask subgraph gives way to the inputs seqlens_k (total length - 1 of each row) and
  total_seq; `logits_idx` picks, before the head, the positions of each row whose logits are wanted: one
  in service, many where quality is measured. Releases built earlier take exactly one.
- Every initializer is external and has no file: a session is fed from memory.

The graph holds shapes and wiring alone, a few dozen kilobytes; see `release.folder` for the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from quantize.exported import Exported, Linear
from release.manifest import Architecture, Tensor

ACCURACY_LEVEL = 4
HEAD_BITS = 8
EMBEDDING = "model.embed_tokens"
_MICROSOFT = "com.microsoft"
_ONNX_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT, "uint8": TensorProto.UINT8}


def session_shapes(tensors: Sequence[Tensor], bits: int, nested: frozenset[str]) -> dict[str, tuple[str, list[int]]]:
    """What a session of `bits` is fed with: name to (dtype, shape). `nested` are the nested matrices' names."""
    shapes: dict[str, tuple[str, list[int]]] = {}
    for tensor in tensors:
        owner, _, part = tensor.name.rpartition(".")
        if owner in nested and part in ("r", "c"):
            continue
        shape = list(tensor.shape)
        if owner in nested and bits == 8 and part == "q":
            shape[-1] *= 2  # two codes a byte become one
        shapes[tensor.name] = (tensor.dtype, shape)
    for name in nested if bits == 8 else ():
        shapes[f"{name}.z"] = ("uint8", list(shapes[f"{name}.s"][1]))
    return shapes


def rewrite(
    exported: Exported, architecture: Architecture, tensors: Sequence[Tensor], bits: int, block_size: int
) -> bytes:
    """The graph of one precision. `tensors` are all the release's tensors."""
    products = {linear.node: linear for linear in exported.linears}
    nodes: list[Any] = []
    for node in exported.model.graph.node:
        if node.name in products:
            nodes.append(_product(node, products[node.name], bits, block_size))
        elif node.name == exported.head.node:
            nodes.extend(_head(node, exported.head, block_size))
        elif node.name == exported.embedding.node:
            nodes.append(_lookup(node, exported, block_size))
        elif node.op_type == "GroupQueryAttention":
            nodes.append(_attention(node))
        else:
            nodes.append(node)
    outputs = _outputs(architecture)
    nodes = _needed(nodes, {output.name for output in outputs})
    used = {name for node in nodes for name in node.input}
    nested = frozenset(linear.name for linear in exported.linears)
    initializers = [
        _external(name, dtype, shape)
        for name, (dtype, shape) in session_shapes(tensors, bits, nested).items()
        if name in used
    ]
    graph = helper.make_graph(nodes, "weir", _inputs(architecture), outputs, initializer=initializers)
    opsets = [helper.make_opsetid(entry.domain, entry.version) for entry in exported.model.opset_import]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=exported.model.ir_version)
    return bytes(model.SerializeToString(deterministic=True))


def _product(node: Any, linear: Linear, bits: int, block_size: int) -> Any:
    return helper.make_node(
        "MatMulNBits",
        [node.input[0], f"{linear.name}.q", f"{linear.name}.s", f"{linear.name}.z"],
        list(node.output),
        name=node.name,
        domain=_MICROSOFT,
        K=linear.columns,
        N=linear.rows,
        bits=bits,
        block_size=block_size,
        accuracy_level=ACCURACY_LEVEL,
    )


def _head(node: Any, head: Linear, block_size: int) -> list[Any]:
    picked = f"{node.name}/picked"
    pick = helper.make_node("GatherND", [node.input[0], "logits_idx"], [picked], name=f"{node.name}/pick", batch_dims=1)
    product = _product(node, head, HEAD_BITS, block_size)
    product.input[0] = picked
    return [pick, product]


def _lookup(node: Any, exported: Exported, block_size: int) -> Any:
    owner = EMBEDDING if exported.embedding.weight else exported.head.name
    return helper.make_node(
        "GatherBlockQuantized",
        [f"{EMBEDDING}.q", node.input[1], f"{owner}.s", f"{owner}.z"],
        list(node.output),
        name=node.name,
        domain=_MICROSOFT,
        bits=HEAD_BITS,
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


def _external(name: str, dtype: str, shape: list[int]) -> Any:
    tensor = TensorProto()
    tensor.name = name
    tensor.data_type = _ONNX_TYPES[dtype]
    tensor.dims.extend(shape)
    tensor.data_location = TensorProto.EXTERNAL
    place = tensor.external_data.add()
    place.key, place.value = "location", "memory"
    return tensor
