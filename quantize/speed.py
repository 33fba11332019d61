"""How fast this box multiplies by quantized weights, tried for a second, and what that makes of a model.

A decode step reads every weight of the layers and the head once, so its time is their number over the rate
at which the very kernel that serves them gets through weights that no cache holds. What else a step does is
a share on top, measured with SmolLM2-135M. An expectation, not a promise: a busy box is slower.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from quantize.graph import ACCURACY_LEVEL
from release.manifest import Manifest

_WIDTH, _MATRICES, _BLOCK = 1536, 12, 32
_TRIAL_S = 0.4
_OTHER_SHARE = 0.2  # attention, norms and the runtime's own steps, of the products' time
TEXT_TOKENS = 16


def weights_per_step(manifest: Manifest, precision: int) -> Mapping[int, int]:
    """Weights that one step multiplies by, by their width; tables that are only looked up do not count."""
    nested = sum(matrix.rows * matrix.columns for matrix in manifest.matrices if matrix.table != matrix.name)
    parts = {f"{matrix.name}.q" for matrix in manifest.matrices}
    # A head of 8 bits in both precisions is kept in blocks, a table in rows.
    heads = sum(
        math.prod(tensor.shape)
        for tensor in manifest.tensors
        if tensor.name.endswith(".q") and tensor.name not in parts and len(tensor.shape) == 3
    )
    found = {precision: nested}
    if heads:
        found[8] = found.get(8, 0) + heads
    return found


def expected_per_s(manifest: Manifest, threads: int) -> Mapping[int, float]:
    """Tokens a second that one sequence gets, by precision; for a classifier, texts of TEXT_TOKENS tokens."""
    rows = 1 if manifest.task == "generate" else TEXT_TOKENS
    rates = {bits: probe(bits, threads, rows) for bits in (4, 8)}
    return {
        precision: 1
        / sum(count / rates[bits] * (1 + _OTHER_SHARE) for bits, count in weights_per_step(manifest, precision).items())
        for precision in manifest.precisions
    }


def probe(bits: int, threads: int, rows: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Weights a second, each multiplied by `rows` inputs, that this box gets through at that width."""
    session, given = _session(bits, threads), {"x0": np.ones((rows, _WIDTH), np.float32)}
    session.run(None, given)
    taken = []
    ends = clock() + _TRIAL_S
    while (began := clock()) < ends:
        session.run(None, given)
        taken.append(clock() - began)
    # Of the quicker ones: whatever else runs on the box only ever slows a trial down.
    return _MATRICES * _WIDTH * _WIDTH / sorted(taken)[len(taken) // 10]


def _session(bits: int, threads: int) -> Any:
    """A chain of products, over weights of random codes."""
    random = np.random.default_rng(0)
    count = _WIDTH // _BLOCK
    arrays, nodes = {}, []
    for index in range(_MATRICES):
        arrays[f"q{index}"] = random.integers(0, 256, (_WIDTH, count, _BLOCK * bits // 8), np.uint8)
        arrays[f"s{index}"] = np.full((_WIDTH, count), 2.0**-bits / _WIDTH, np.float32)
        arrays[f"z{index}"] = np.full((_WIDTH, count if bits == 8 else -(-count // 2)), 0x77, np.uint8)
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                [f"x{index}", f"q{index}", f"s{index}", f"z{index}"],
                [f"x{index + 1}"],
                domain="com.microsoft",
                K=_WIDTH,
                N=_WIDTH,
                bits=bits,
                block_size=_BLOCK,
                accuracy_level=ACCURACY_LEVEL,
            )
        )
    info, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    initializers = [
        helper.make_tensor(name, kind if name[0] == "s" else TensorProto.UINT8, array.shape, array.tobytes(), raw=True)
        for name, array in arrays.items()
    ]
    shape = ["rows", _WIDTH]
    graph = helper.make_graph(
        nodes, "probe", [info("x0", kind, shape)], [info(f"x{_MATRICES}", kind, shape)], initializers
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
