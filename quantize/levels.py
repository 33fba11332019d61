"""A release's graph at another accuracy level, for measuring what the level costs.

Level 4 quantizes the inputs of every product to int8 as well, which is what makes it quick; level 0
keeps them in float32. On models with massive activations level 4 can flip a near tie (onnxruntime#29849),
so quality is measured at both. The weights are the same.
"""

from __future__ import annotations

import onnx

FLOAT_INPUTS = 0
_LEVEL = "accuracy_level"


def at_level(graph: bytes, level: int) -> bytes:
    """The graph with `level` on every MatMulNBits."""
    model = onnx.load_model_from_string(graph)
    for node in model.graph.node:
        if node.op_type != "MatMulNBits":
            continue
        kept = [attribute for attribute in node.attribute if attribute.name != _LEVEL]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(_LEVEL, level)])
    return bytes(model.SerializeToString(deterministic=True))
