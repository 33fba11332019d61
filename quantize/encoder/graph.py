"""The graph of a classifier on an encoder, one precision at a time, written node by node.

    input_ids int64 [B, S], attention_mask int64 [B, S] (1 for tokens, 0 for padding on the right)
      → 8-bit embedding + positions (the first token type's row is part of them) → LayerNorm
      → layers: nested products, MultiHeadAttention, two SkipLayerNormalizations
      → mean over the tokens → head (float32) → logits float32 [B, L]

Every initializer is external and has no file: a session is fed from memory, as with a decoder's graph.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

from quantize.architecture import BLOCK_SIZE
from quantize.encoder.architecture import Encoder
from quantize.graph import ACCURACY_LEVEL, HEAD_BITS, external, session_shapes
from release.manifest import Matrix, Tensor

EMBEDDING, POSITIONS, FIRST_NORM = "embeddings.words", "embeddings.positions", "embeddings.norm"
HEAD = "classifier"
_MICROSOFT = "com.microsoft"
_OPSETS = {"": 21, _MICROSOFT: 1}
_IR_VERSION = 10


def layer_name(index: int, part: str) -> str:
    """The name of a part of a layer; of matrices those are qkv, attention_out, up and down."""
    return f"layers.{index}.{part}"


def classifier_graph(
    encoder: Encoder, tensors: Sequence[Tensor], matrices: Sequence[Matrix], labels: int, bits: int
) -> bytes:
    """The graph, without values. `tensors` are the release's tensors, `matrices` the nested ones, without offsets."""
    made = _Nodes(encoder, bits)
    state = made.embed()
    for index in range(encoder.architecture.layers):
        state = made.layer(index, state)
    made.classify(state)
    used = {name for node in made.nodes for name in node.input}
    initializers = [
        external(name, dtype, shape)
        for name, (dtype, shape) in session_shapes(tensors, bits, matrices).items()
        if name in used
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*_constants(), *made.nodes],
        "weir-classifier",
        [info(name, TensorProto.INT64, ["B", "S"]) for name in ("input_ids", "attention_mask")],
        [info("logits", TensorProto.FLOAT, ["B", labels])],
        initializer=initializers,
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return bytes(model.SerializeToString(deterministic=True))


def _constants() -> list[Any]:
    """Small numbers that nodes take as inputs."""
    whole = {
        name: helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in (("zero", 0), ("one", 1), ("last", -1))
    }
    values = {**whole, "least": helper.make_tensor("least", TensorProto.FLOAT, [], [1.0])}
    return [
        helper.make_node("Constant", [], [name], name=f"constant/{name}", value=value) for name, value in values.items()
    ]


class _Nodes:
    """Nodes in their order; each method adds some and returns the name of what they make."""

    def __init__(self, encoder: Encoder, bits: int) -> None:
        self.nodes: list[Any] = []
        self._encoder, self._bits = encoder, bits

    def embed(self) -> str:
        words = self._own(
            "GatherBlockQuantized",
            [f"{EMBEDDING}.q", "input_ids", f"{EMBEDDING}.s", f"{EMBEDDING}.z"],
            "embeddings/words",
            bits=HEAD_BITS,
            block_size=BLOCK_SIZE,
            gather_axis=0,
            quantize_axis=1,
        )
        length = self._add("Shape", ["input_ids"], "embeddings/length", start=1, end=2)
        positions = self._add("Slice", [POSITIONS, "zero", length, "zero"], "embeddings/positions")
        whole = self._add("Add", [words, positions], "embeddings/sum")
        self._add("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
        return self._add(
            "LayerNormalization",
            [whole, f"{FIRST_NORM}.weight", f"{FIRST_NORM}.bias"],
            "embeddings/norm",
            axis=-1,
            epsilon=self._encoder.epsilon,
        )

    def layer(self, index: int, state: str) -> str:
        shape = self._encoder.architecture
        hidden, wide = shape.hidden_size, self._encoder.intermediate
        name = functools.partial(layer_name, index)
        packed = self._product(state, name("qkv"), 3 * hidden, hidden)
        parts = [f"{packed}/{letter}" for letter in "qkv"]
        self.nodes.append(helper.make_node("Split", [packed], parts, name=f"{packed}/split", axis=-1, num_outputs=3))
        mixed = self._own(
            "MultiHeadAttention",
            [*parts, f"{name('qkv')}.bias", "mask/out"],
            name("attention"),
            num_heads=shape.heads,
        )
        out = self._product(mixed, name("attention_out"), hidden, hidden)
        state = self._joined(out, state, name("attention_out"), name("attention_norm"))
        up = self._product(state, name("up"), wide, hidden)
        active = self._own(self._encoder.activation, [up, f"{name('up')}.bias"], name("activation"))
        down = self._product(active, name("down"), hidden, wide)
        return self._joined(down, state, name("down"), name("norm"))

    def classify(self, state: str) -> None:
        weights = self._add("Cast", ["attention_mask"], "pool/mask", to=TensorProto.FLOAT)
        column = self._add("Unsqueeze", [weights, "last"], "pool/column")
        summed = self._add("ReduceSum", [self._add("Mul", [state, column], "pool/kept"), "one"], "pool/sum", keepdims=0)
        count = self._add("ReduceSum", [weights, "one"], "pool/count", keepdims=1)
        mean = self._add("Div", [summed, self._add("Max", [count, "least"], "pool/divisor")], "pool/mean")
        self.nodes.append(
            helper.make_node("Gemm", [mean, f"{HEAD}.weight", f"{HEAD}.bias"], ["logits"], name="head", transB=1)
        )

    def _product(self, given: str, name: str, rows: int, columns: int) -> str:
        return self._own(
            "MatMulNBits",
            [given, f"{name}.q", f"{name}.s", f"{name}.z"],
            name,
            K=columns,
            N=rows,
            bits=self._bits,
            block_size=BLOCK_SIZE,
            accuracy_level=ACCURACY_LEVEL,
        )

    def _joined(self, made: str, state: str, product: str, norm: str) -> str:
        """LayerNorm of a half layer's output, its bias and what went into it."""
        return self._own(
            "SkipLayerNormalization",
            [made, state, f"{norm}.weight", f"{norm}.bias", f"{product}.bias"],
            norm,
            epsilon=self._encoder.epsilon,
        )

    def _own(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        return self._add(kind, inputs, name, domain=_MICROSOFT, **attributes)

    def _add(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        output = f"{name}/out"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))
        return output
